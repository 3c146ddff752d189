"""fastai 2: `PeakMemMetric`, four columns in the progress table."""

from __future__ import annotations

from types import FrameType
from typing import Any

from ..blocks.watch_epochs import EpochRecord, EpochScope, caller
from . import unusable

try:
    import fastai

    # First of all: fastai 1 has other modules, and importing them fails in many ways with a newer torch.
    if getattr(fastai, "__version__", "").startswith(("0.", "1.")):
        raise ImportError(f"{__name__} needs fastai 2, not {fastai.__version__}: pip install 'fastai>=2'")
    from fastai.callback.core import Callback
except ModuleNotFoundError as _error:
    raise unusable(_error, "fastai", __name__) from _error


NAMES = ("cpu used", "peak", "gpu used", "peak")

_FIRST, _BEFORE_THE_ROW, _AFTER_THE_NAMES = -1000, 49, 51  # the Recorder's own is 50


class PeakMemMetric(Callback):  # type: ignore[misc]
    """Show the general RAM and GPU RAM of each epoch, in MB: what it used, and the peak on top of that.

    ``Learner(..., cbs=PeakMemMetric())`` or ``learn.fit(1, cbs=PeakMemMetric())``. The columns follow those
    of the metrics. An epoch lasts from before any callback's ``before_epoch`` until fastai's recorder writes
    its row, validation included. Callbacks that run after the recorder, such as the one that saves the best
    model, are not measured. GPU is the device of ``learn.dls``; without one its figures are 0.

    A logger that identifies columns by name keeps only one of the two called "peak": set ``names`` then.

    Args:
        learn: Ignored; fastai 1 passed the learner.
        names: The names of the four columns.
    """

    def __init__(self, learn: Any = None, names: tuple[str, str, str, str] = NAMES) -> None:  # noqa: ARG002
        self._epochs = EpochScope()
        self.history: list[EpochRecord] = self._epochs.history
        self._names, self._column = names, 0

    @property
    def order(self) -> int:
        """Return the place among the callbacks, which fastai looks up at each event."""
        # The columns are named after the recorder named its own and before they are shown. An epoch begins
        # before all other callbacks and ends just before the recorder writes the row.
        fit = caller("fastai.learner", "fit", "_do_fit")
        if fit is None or fit.f_code.co_name == "fit":  # the fit begins or ends
            return _AFTER_THE_NAMES
        return _BEFORE_THE_ROW if self._epochs.is_open() else _FIRST

    def before_fit(self) -> None:
        """Add the names of the columns."""
        fit = _fit()
        if fit is None:
            return
        self._epochs.within(fit)
        recorder = getattr(self.learn, "recorder", None)
        if recorder is not None:
            names = recorder.metric_names
            self._column = len(names) - bool(recorder.add_time)
            recorder.metric_names = names[: self._column] + list(self._names) + names[self._column :]

    def before_epoch(self) -> None:
        """Begin to measure."""
        if _fit() is not None:
            self._epochs.begin()

    def after_epoch(self) -> None:
        """End the measurement, and add its figures to the recorder's row."""
        if _fit() is None:
            return
        record = self._epochs.end(f"epoch {self.learn.epoch}", getattr(self.learn.dls, "device", None))
        recorder = getattr(self.learn, "recorder", None)
        if recorder is not None:
            missing = self._column - len(recorder.log)  # metrics that a cancelled epoch has no value for
            figures = record.memory() if record else [None] * len(self._names)
            recorder.log += [None] * missing + [*figures]

    def after_fit(self) -> None:
        """Stop measuring."""
        if _fit() is not None:
            self._epochs.within(None)


def _fit() -> FrameType | None:
    """Return the call of `Learner.fit` that sent this event; None if a validation or prediction sent it."""
    event = caller("fastai.learner", "__call__")
    sender = event and event.f_back
    if sender is None or sender.f_code.co_name != "_with_events":
        return None
    return caller("fastai.learner", "fit")
