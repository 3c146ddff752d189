"""Training frameworks: each adapter tells an epoch's memory in its framework's own way.

============  ======================  =========================================================
file          class                   where the four figures appear
============  ======================  =========================================================
mem           `PeakMemMetric`         fastai's progress table, `recorder.values`
lightning     `PeakMemCallback`       every logger, `trainer.callback_metrics`
transformers  `PeakMemCallback`       the printed logs, `state.log_history`, every integration
keras         `PeakMemCallback`       the progress bar, `History`, `CSVLogger`
============  ======================  =========================================================

Each has ``history``, too: an `EpochRecord` for every epoch that ended. A framework is imported with its
own file only.
"""

from __future__ import annotations

import sys


def not_installed(error: ModuleNotFoundError, package: str, adapter: str) -> ImportError:
    """What to say where an adapter's framework cannot be imported.

    Args:
        error: What its import raised.
        package: The framework.
        adapter: The adapter's module.

    Returns:
        One sentence with the command that helps; or the error itself, if it is another package's.
    """
    if (error.name or "").partition(".")[0] != package:
        return error
    if sys.modules.get(package) is None:
        return ImportError(f"{adapter} needs {package}, which is not installed: pip install {package}")
    return ImportError(
        f"{adapter} needs {error.name}, which {_found(package)} does not have: pip install -U {package}"
    )


def too_old(package: str, needed: str, adapter: str) -> ImportError:
    """What to say where an adapter's framework is installed in a version that it cannot work with.

    Args:
        package: The framework, which is imported.
        needed: The oldest major version that the adapter works with.
        adapter: The adapter's module.
    """
    command = f"pip install '{package}>={needed}'"
    return ImportError(f"{adapter} needs {package} {needed} or newer, not {_found(package)}: {command}")


def _found(package: str) -> str:
    """Which version is imported, in words."""
    return f"{package} {getattr(sys.modules.get(package), '__version__', '')}".rstrip()
