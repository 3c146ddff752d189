"""PyTorch Lightning: an epoch's memory as logged metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..blocks.epoch_scope import EpochScope, caller
from . import not_installed

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError as error:
    raise not_installed(error, "lightning", __name__) from error

if TYPE_CHECKING:
    from ..blocks.epoch_record import EpochRecord


class PeakMemCallback(Callback):  # type: ignore[misc]
    """General RAM and GPU RAM of every epoch, in MB, for every logger and in ``trainer.callback_metrics``.

    ======================  ====================================================
    ``mem/cpu_used_mb``     general RAM that the epoch kept; negative: gave back
    ``mem/cpu_peak_mb``     what it needed for a moment on top of that
    ``mem/gpu_used_mb``     the same of the device the trainer runs on
    ``mem/gpu_peak_mb``     the same; 0 without a device
    ======================  ====================================================

    An epoch lasts from its ``on_train_epoch_start`` until the next one's, or until training ends: its
    validation, checkpoints and the module's own ``on_train_epoch_end`` are in it, and the sanity check
    before training is in none. Its figures are logged then, not before. Under DDP every process measures
    itself, and loggers hear of the first; ``history`` has each one's own.

    Attributes:
        history: The epochs that ended, each an `EpochRecord`.
    """

    def __init__(self) -> None:
        self.history: list[EpochRecord] = []
        self._number = 0
        self._epoch = EpochScope()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Training begins; in the middle of an epoch, where a checkpoint was written there."""
        self._epoch.within(caller("lightning.pytorch", "fit"))
        self._number = trainer.current_epoch
        self._epoch.begin()

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """An epoch begins, and the one before ends."""
        if trainer.current_epoch != self._number:
            self._end(trainer)
        self._number = trainer.current_epoch
        self._epoch.begin()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """The last epoch ends."""
        self._end(trainer)
        self._epoch.within(None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """What was under way is told nowhere."""
        self._epoch.within(None)

    def _end(self, trainer: Any) -> None:
        record = self._epoch.end(f"epoch {self._number}", trainer.strategy.root_device)
        if record is None:
            return
        self.history.append(record)
        figures = {name: float(figure) for name, figure in record.memory().named("mem/").items()}
        trainer.callback_metrics.update(figures)
        trainer.logged_metrics.update(figures)
        for logger in trainer.loggers:  # at the step at which Lightning itself logs an epoch
            step = trainer.fit_loop.epoch_loop._batches_that_stepped - 1
            logger.log_metrics({**figures, "epoch": self._number}, step=step)
