"""PyTorch Lightning: an epoch's memory as logged metrics."""

from __future__ import annotations

from typing import Any

from ..blocks.watch_epochs import EpochRecord, EpochScope, caller
from . import unusable

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError as _error:
    raise unusable(_error, "lightning", __name__) from _error


class PeakMemCallback(Callback):  # type: ignore[misc]
    """Log the general RAM and GPU RAM of each epoch, in MB, to every logger and ``trainer.callback_metrics``.

    These are the four figures of `EpochMemory`, ``mem/cpu_used_mb`` to ``mem/gpu_peak_mb``. GPU is the device
    that the trainer runs on.

    An epoch lasts from its ``on_train_epoch_start`` to that of the next, or to the end of training. It
    includes validation, checkpoints and the module's own ``on_train_epoch_end``; the sanity check before
    training is in no epoch. Its figures are logged at its end. Under DDP each process measures itself; only
    the first one logs, and ``history`` has each process's own.
    """

    def __init__(self) -> None:
        self._epochs = EpochScope()
        self.history: list[EpochRecord] = self._epochs.history
        self._number = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Begin to measure, in the middle of an epoch if training resumes from a checkpoint there."""
        self._epochs.within(caller("lightning.pytorch", "fit"))
        self._number = trainer.current_epoch
        self._epochs.begin()

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """End the previous epoch, and begin this one."""
        if trainer.current_epoch != self._number:
            self._end(trainer)
        self._number = trainer.current_epoch
        self._epochs.begin()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """End the last epoch."""
        self._end(trainer)
        self._epochs.within(None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """Drop the open epoch."""
        self._epochs.within(None)

    def _end(self, trainer: Any) -> None:
        record = self._epochs.end(f"epoch {self._number}", trainer.strategy.root_device)
        if record is None:
            return
        figures = {name: float(figure) for name, figure in record.memory().named("mem/").items()}
        trainer.callback_metrics.update(figures)
        trainer.logged_metrics.update(figures)
        for logger in trainer.loggers:  # with the step that Lightning itself uses for an epoch
            step = trainer.fit_loop.epoch_loop._batches_that_stepped - 1
            logger.log_metrics({**figures, "epoch": self._number}, step=step)
