"""PyTorch Lightning: an epoch's memory as logged metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..blocks.epoch_scope import EpochScope, caller
from ..cluster.epochs import RankEpochs
from . import not_installed

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError as error:
    raise not_installed(error, "lightning", __name__) from error

if TYPE_CHECKING:
    from ..blocks.epoch_record import EpochRecord
    from ..records.group import Group


class PeakMemCallback(Callback):  # type: ignore[misc]
    """Log the general RAM and GPU RAM of each epoch, in MB, to every logger and ``trainer.callback_metrics``.

    ======================  =========================================================
    ``mem/cpu_used_mb``     general RAM that the epoch kept; negative if it gave back
    ``mem/cpu_peak_mb``     what it needed temporarily on top of that
    ``mem/gpu_used_mb``     the same of the device the trainer runs on
    ``mem/gpu_peak_mb``     the same; 0 without a device
    ======================  =========================================================

    An epoch lasts from its ``on_train_epoch_start`` to that of the next, or to the end of training. It
    includes validation, checkpoints and the module's own ``on_train_epoch_end``; the sanity check before
    training is in no epoch. Its figures are logged at its end. Under DDP each process measures itself; only
    the first one logs, and ``history`` has each process's own.

    Attributes:
        history: The epochs that ended, each an `EpochRecord`.
        ranks: On rank 0 of several, a `Group` for each epoch with the record of every rank. It is added when
            all ranks have sent theirs, at the end of the training at the latest. Otherwise empty.
    """

    def __init__(self) -> None:
        self.history: list[EpochRecord] = []
        self.ranks: list[Group] = []
        self._all_ranks = RankEpochs(self.ranks)
        self._number = 0
        self._epoch = EpochScope()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Begin to measure, in the middle of an epoch if training resumes from a checkpoint there."""
        self._epoch.within(caller("lightning.pytorch", "fit"))
        self._number = trainer.current_epoch
        self._epoch.begin()
        self._all_ranks.begin()

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """End the previous epoch, and begin this one."""
        if trainer.current_epoch != self._number:
            self._end(trainer)
        self._number = trainer.current_epoch
        self._epoch.begin()
        self._all_ranks.begin()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """End the last epoch."""
        self._end(trainer)
        self._epoch.within(None)
        self._all_ranks.finish()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """Drop the open epoch."""
        self._epoch.within(None)
        self._all_ranks.finish(wait_s=0)

    def _end(self, trainer: Any) -> None:
        record = self._epoch.end(f"epoch {self._number}", trainer.strategy.root_device)
        self._all_ranks.add(record, f"epoch {self._number}")
        if record is None:
            return
        self.history.append(record)
        figures = {name: float(figure) for name, figure in record.memory().named("mem/").items()}
        trainer.callback_metrics.update(figures)
        trainer.logged_metrics.update(figures)
        for logger in trainer.loggers:  # with the step that Lightning itself uses for an epoch
            step = trainer.fit_loop.epoch_loop._batches_that_stepped - 1
            logger.log_metrics({**figures, "epoch": self._number}, step=step)
