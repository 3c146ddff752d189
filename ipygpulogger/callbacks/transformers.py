"""Hugging Face `Trainer`: an epoch's memory as logged metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..blocks.epoch_scope import EpochScope, caller
from ..cluster.epochs import RankEpochs
from . import not_installed

try:
    from transformers import TrainerCallback
except ModuleNotFoundError as error:
    raise not_installed(error, "transformers", __name__) from error

if TYPE_CHECKING:
    from ..blocks.epoch_record import EpochRecord
    from ..records.group import Group


class PeakMemCallback(TrainerCallback):  # type: ignore[misc]
    """Log the general RAM and GPU RAM of each epoch, in MB, as `Trainer` logs its own metrics.

    So they are printed, kept in ``trainer.state.log_history`` and sent to every integration:

    ======================  =========================================================
    ``mem_cpu_used_mb``     general RAM that the epoch kept; negative if it gave back
    ``mem_cpu_peak_mb``     what it needed temporarily on top of that
    ``mem_gpu_used_mb``     the same of the device, ``args.device``
    ``mem_gpu_peak_mb``     the same; 0 without a device
    ======================  =========================================================

    An epoch lasts until the next begins, or training ends, because `Trainer` evaluates and saves after its
    ``on_epoch_end``; that belongs to the epoch before. Its figures are logged at its end. Each process
    measures itself.

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

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Tie the epochs to this call of ``train``."""
        self._number = int(state.epoch or 0)
        self._epoch.within(caller("transformers.trainer", "train"))
        self._all_ranks.finish(wait_s=0)  # where an error ended the training before

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """End the previous epoch, and begin this one."""
        self._end(args)
        self._epoch.begin()
        self._all_ranks.begin()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
        """End the last epoch when `Trainer` logs its summary: after that, integrations close."""
        if "train_runtime" in (logs or ()) and self._end(args):
            state.log_history.insert(-1, state.log_history.pop())  # so that the summary stays last

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Stop measuring."""
        self._epoch.within(None)
        self._all_ranks.finish()

    def _end(self, args: Any) -> bool:
        record = self._epoch.end(f"epoch {self._number}", args.device)
        self._all_ranks.add(record, f"epoch {self._number}")
        if record is None:
            return False
        self._number += 1
        self.history.append(record)
        # A callback gets no reference to its trainer, and the callbacks before it have read the logs already.
        call = caller("transformers.trainer", "train")
        if call is None:
            return False
        call.f_locals["self"].log(record.memory().named("mem_"))
        return True
