"""Keras 3: an epoch's memory in the logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..blocks.epoch_scope import EpochScope, caller
from ..cluster.epochs import RankEpochs
from . import not_installed

try:
    from keras.callbacks import Callback
except ModuleNotFoundError as error:
    raise not_installed(error, "keras", __name__) from error

if TYPE_CHECKING:
    from ..blocks.epoch_record import EpochRecord
    from ..records.group import Group


class PeakMemCallback(Callback):  # type: ignore[misc]
    """Add the general RAM and GPU RAM of each epoch, in MB, to the logs that later callbacks read.

    So they appear in the progress bar, in the history that ``fit`` returns, and in a `CSVLogger` that comes
    after this callback:

    ======================  =========================================================
    ``mem_cpu_used_mb``     general RAM that the epoch kept; negative if it gave back
    ``mem_cpu_peak_mb``     what it needed temporarily on top of that
    ``mem_gpu_used_mb``     the same of the device that the model is on
    ``mem_gpu_peak_mb``     the same; 0 without a device
    ======================  =========================================================

    An epoch lasts from this callback's ``on_epoch_begin`` to its ``on_epoch_end``, validation included.

    Attributes:
        history: The epochs that ended, each an `EpochRecord`.
        ranks: On rank 0 of several, a `Group` for each epoch with the record of every rank. It is added when
            all ranks have sent theirs, at the end of the training at the latest. Otherwise empty.
    """

    def __init__(self) -> None:
        super().__init__()
        self.history: list[EpochRecord] = []
        self.ranks: list[Group] = []
        self._all_ranks = RankEpochs(self.ranks)
        self._epoch = EpochScope()

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """Tie the epochs to this call of ``fit``."""
        self._epoch.within(caller("keras", "fit"))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Begin to measure."""
        self._epoch.begin()
        self._all_ranks.begin()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """End the measurement, and add its figures to the logs."""
        record = self._epoch.end(f"epoch {epoch}", self._device())
        self._all_ranks.add(record, f"epoch {epoch}")
        if record is not None:
            self.history.append(record)
            if logs is not None:
                logs.update(record.memory().named("mem_"))

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
        """Stop measuring."""
        self._epoch.within(None)
        self._all_ranks.finish()

    def _device(self) -> Any:
        """Return the model's device with the torch backend; None with others, which use their current one."""
        weights = getattr(self.model, "weights", None)
        device = getattr(weights[0].value, "device", None) if weights else None
        return device if type(device).__module__ == "torch" else None
