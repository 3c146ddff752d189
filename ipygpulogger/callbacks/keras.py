"""Keras 3: an epoch's memory in the logs."""

from __future__ import annotations

from typing import Any

from ..blocks.watch_epochs import EpochRecord, EpochScope, caller
from . import unusable

try:
    from keras.callbacks import Callback
except ModuleNotFoundError as _error:
    raise unusable(_error, "keras", __name__) from _error


class PeakMemCallback(Callback):  # type: ignore[misc]
    """Add the general RAM and GPU RAM of each epoch, in MB, to the logs that later callbacks read.

    So the four figures of `EpochMemory`, ``mem_cpu_used_mb`` to ``mem_gpu_peak_mb``, appear in the progress
    bar, in the history that ``fit`` returns, and in a `CSVLogger` that comes after this callback. GPU is the
    device that the model is on.

    An epoch lasts from this callback's ``on_epoch_begin`` to its ``on_epoch_end``, validation included.
    """

    def __init__(self) -> None:
        super().__init__()
        self._epochs = EpochScope()
        self.history: list[EpochRecord] = self._epochs.history

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """Tie the epochs to this call of ``fit``."""
        self._epochs.within(caller("keras", "fit"))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Begin to measure."""
        self._epochs.begin()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """End the measurement, and add its figures to the logs."""
        record = self._epochs.end(f"epoch {epoch}", self._device())
        if record is not None and logs is not None:
            logs.update(record.memory().named("mem_"))

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
        """Stop measuring."""
        self._epochs.within(None)

    def _device(self) -> Any:
        """Return the model's device with the torch backend; None with others, which use their current one."""
        weights = getattr(self.model, "weights", None)
        device = getattr(weights[0].value, "device", None) if weights else None
        return device if type(device).__module__ == "torch" else None
