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
figures that the framework shows stay those of its own process. A group is added when all ranks have sent
their record, at the end of the training at the latest. A framework is imported by its own file only.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ..blocks.watch_epochs import EpochScope
from ..cluster.torch_distributed import RankEpochs

if TYPE_CHECKING:
    from types import FrameType

    from ..analysis.group import Group
    from ..blocks.watch_epochs import EpochRecord


class Epochs:
    """What every adapter measures: the epochs of this process, and on rank 0 those of all ranks.

    Attributes:
        history: The epochs that ended, each an `EpochRecord`.
        ranks: On rank 0 of several, a `Group` for each epoch. Otherwise empty.
    """

    def __init__(self) -> None:
        self.history: list[EpochRecord] = []
        self.ranks: list[Group] = []
        self._scope, self._of_ranks = EpochScope(), RankEpochs(self.ranks)

    @property
    def is_open(self) -> bool:
        """Whether an epoch has begun and not ended."""
        return self._scope.is_open()

    def within(self, fit: FrameType | None) -> None:
        """Drop the open epoch, and tie those that follow to a call of the framework's ``fit``."""
        self._scope.within(fit)

    def begin(self) -> None:
        """Begin an epoch."""
        self._scope.begin()
        self._of_ranks.begin()

    def end(self, number: int, device: Any) -> EpochRecord | None:
        """End the epoch, and return its record; None if none was open, or it could not be measured.

        Args:
            number: Of the epoch.
            device: Where the training runs; None if unknown.
        """
        label = f"epoch {number}"
        record = self._scope.end(label, device)
        self._of_ranks.add(record, label)
        if record is not None:
            self.history.append(record)
        return record

    def finish(self, **wait: float) -> None:
        """Drop the open epoch, and take what the other ranks sent of those that ended."""
        self._scope.within(None)
        self._of_ranks.finish(**wait)


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
    found = found_version(package)
    return ImportError(f"{adapter} needs {error.name}, which {found} does not have: pip install -U {package}")


def found_version(package: str) -> str:
    """Return the name of an imported package and its version, if it has one."""
    return f"{package} {getattr(sys.modules.get(package), '__version__', '')}".rstrip()
