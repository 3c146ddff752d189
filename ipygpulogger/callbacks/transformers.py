"""Hugging Face `Trainer`: an epoch's memory as logged metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..blocks.epoch_scope import EpochScope, caller
from . import not_installed

try:
    from transformers import TrainerCallback
except ModuleNotFoundError as error:
    raise not_installed(error, "transformers", __name__) from error

if TYPE_CHECKING:
    from ..blocks.epoch_record import EpochRecord


class PeakMemCallback(TrainerCallback):  # type: ignore[misc]
    """General RAM and GPU RAM of every epoch, in MB, logged as `Trainer` logs its own metrics.

    So they are printed, kept in ``trainer.state.log_history`` and sent to every integration:

    ======================  ====================================================
    ``mem_cpu_used_mb``     general RAM that the epoch kept; negative: gave back
    ``mem_cpu_peak_mb``     what it needed for a moment on top of that
    ``mem_gpu_used_mb``     the same of the device, ``args.device``
    ``mem_gpu_peak_mb``     the same; 0 without a device
    ======================  ====================================================

    An epoch lasts until the next begins, or training is over: `Trainer` evaluates and saves after its
    ``on_epoch_end``, and that is in the epoch after which it happens. Its figures are logged then, not
    before. Every process measures itself.

    Attributes:
        history: The epochs that ended, each an `EpochRecord`.
    """

    def __init__(self) -> None:
        self.history: list[EpochRecord] = []
        self._number = 0
        self._epoch = EpochScope()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Training begins."""
        self._number = int(state.epoch or 0)
        self._epoch.within(caller("transformers.trainer", "train"))

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """An epoch begins, and the one before ends."""
        self._end(args)
        self._epoch.begin()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
        """The last epoch ends where `Trainer` logs its summary, after which integrations close."""
        if "train_runtime" in (logs or ()) and self._end(args):
            state.log_history.insert(-1, state.log_history.pop())  # the summary stays the last

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Training is over."""
        self._epoch.within(None)

    def _end(self, args: Any) -> bool:
        record = self._epoch.end(f"epoch {self._number}", args.device)
        if record is None:
            return False
        self._number += 1
        self.history.append(record)
        # No callback is handed its trainer, and what a callback adds to the logs others have seen already.
        call = caller("transformers.trainer", "train")
        if call is None:
            return False
        call.f_locals["self"].log(record.memory().named("mem_"))
        return True
