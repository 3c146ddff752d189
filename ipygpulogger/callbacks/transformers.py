"""Hugging Face `Trainer`: an epoch's memory as logged metrics."""

from __future__ import annotations

from typing import Any

from ..blocks.watch_epochs import EpochRecord, EpochScope, caller
from . import unusable

try:
    from transformers import TrainerCallback
except ModuleNotFoundError as _error:
    raise unusable(_error, "transformers", __name__) from _error


class PeakMemCallback(TrainerCallback):  # type: ignore[misc]
    """Log the general RAM and GPU RAM of each epoch, in MB, as `Trainer` logs its own metrics.

    So the four figures of `EpochMemory`, ``mem_cpu_used_mb`` to ``mem_gpu_peak_mb``, are printed, kept in
    ``trainer.state.log_history`` and sent to every integration. GPU is ``args.device``.

    An epoch lasts until the next begins, or training ends, because `Trainer` evaluates and saves after its
    ``on_epoch_end``; that belongs to the epoch before. Its figures are logged at its end. Each process
    measures itself.
    """

    def __init__(self) -> None:
        self._epochs = EpochScope()
        self.history: list[EpochRecord] = self._epochs.history
        self._number = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Tie the epochs to this call of ``train``."""
        self._number = int(state.epoch or 0)
        self._epochs.within(caller("transformers.trainer", "train"))

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """End the previous epoch, and begin this one."""
        self._end(args)
        self._epochs.begin()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
        """End the last epoch when `Trainer` logs its summary: after that, integrations close."""
        if "train_runtime" in (logs or ()) and self._end(args):
            state.log_history.insert(-1, state.log_history.pop())  # so that the summary stays last

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Stop measuring."""
        self._epochs.within(None)

    def _end(self, args: Any) -> bool:
        record = self._epochs.end(f"epoch {self._number}", args.device)
        if record is None:
            return False
        self._number += 1
        # A callback gets no reference to its trainer, and the callbacks before it have read the logs already.
        call = caller("transformers.trainer", "train")
        if call is None:
            return False
        call.f_locals["self"].log(record.memory().named("mem_"))
        return True
