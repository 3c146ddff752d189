"""Adapters that show an epoch's memory in the training framework's own way.

============  ======================  =========================================================
file          class                   where the four figures appear
============  ======================  =========================================================
mem           `PeakMemMetric`         fastai's progress table, `recorder.values`
lightning     `PeakMemCallback`       every logger, `trainer.callback_metrics`
transformers  `PeakMemCallback`       the printed logs, `state.log_history`, every integration
keras         `PeakMemCallback`       the progress bar, `History`, `CSVLogger`
============  ======================  =========================================================

Each also has ``history``: an `EpochRecord` for every epoch that ended. In a training that runs as several
ranks of torch.distributed, ``ranks`` on rank 0 has what all of them used, a `Group` for each epoch; the
figures that the framework shows stay those of its own process. A framework is imported by its own file only.
"""

from __future__ import annotations

import sys


def not_installed(error: ModuleNotFoundError, package: str, adapter: str) -> ImportError:
    """Return the error to raise if an adapter's framework cannot be imported.

    Args:
        error: What importing it raised.
        package: The name of the framework.
        adapter: The module of the adapter.

    Returns:
        One sentence with the command that installs it; the error itself, if it is about another package.
    """
    if (error.name or "").partition(".")[0] != package:
        return error
    if sys.modules.get(package) is None:
        return ImportError(f"{adapter} needs {package}, which is not installed: pip install {package}")
    return ImportError(
        f"{adapter} needs {error.name}, which {_found(package)} does not have: pip install -U {package}"
    )


def too_old(package: str, needed: str, adapter: str) -> ImportError:
    """Return the error to raise if the installed version of an adapter's framework is too old.

    Args:
        package: The name of the framework, which is imported.
        needed: The oldest major version that the adapter supports.
        adapter: The module of the adapter.
    """
    command = f"pip install '{package}>={needed}'"
    return ImportError(f"{adapter} needs {package} {needed} or newer, not {_found(package)}: {command}")


def _found(package: str) -> str:
    """Return the name of an imported package and its version, if it has one."""
    return f"{package} {getattr(sys.modules.get(package), '__version__', '')}".rstrip()
