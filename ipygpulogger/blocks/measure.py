"""`measure`: a scope around a block, a call, a generator."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, final, overload

from ..analysis.notable import divided, overdrawn
from ..engine.peaks import WeakIdentitySet
from ..engine.scope import Scope
from ..records import Measurement
from ..records.note import Note, NoteKind
from ..records.units import parse_size, printable
from ..render import text
from ..runtime import clock
from ..runtime.errors import say
from ..runtime.wrappers import around_calls

if TYPE_CHECKING:
    from ..breakdown.recording import PeakRecording
    from ..records import AtPeak, DeviceUsage, KindTimeline, RamUsage

F = TypeVar("F", bound="Callable[..., Any]")

# As `warnings` keeps it for each module; one for all of ours, as each sentence names what it is about.
_shown: dict[str | tuple[str, type[Warning], int], int] = {}
# The tasks of an engine that are measured in this process. The lock is reentrant: the garbage collector may
# run while it is held, and end a generator that is measured.
_tasks: WeakIdentitySet[_Block] = WeakIdentitySet()
_tasks_lock = threading.RLock()
# The blocks and calls entered in this thread or task, outermost first.
_entered_here: ContextVar[tuple[weakref.ref[_Block], ...]] = ContextVar("entered here", default=())


def warn(sentence: str) -> None:
    """Issue a `RuntimeWarning`, once for each sentence unless filters ask for more; never raise."""
    with suppress(Exception):  # filters make errors of warnings, the stream is broken, `showwarning` fails
        warnings.warn_explicit(printable(sentence), RuntimeWarning, "ipygpulogger", 1, "ipygpulogger", _shown)


class OverBudget(Exception):  # noqa: N818 - what happened, in the word of the option
    """A block or call needed more than its budget; `record` is its `Measurement`."""

    def __init__(self, sentence: str, record: Measurement) -> None:
        super().__init__(sentence, record)  # both, so that a copy from another process has both
        self.record = record

    def __str__(self) -> str:
        return str(self.args[0])


class _Block:
    """One run of a block or one call; if it cannot be measured, it warns, and the user's code runs on."""

    def __init__(self, measure: Measure, label: str) -> None:
        self.measure, self._label = measure, label
        self.others = 0  # other tasks that ran meanwhile, if it is one
        self._scope: Scope | None = None
        self._recording, self._began_s = measure.recording(), 0.0

    def __enter__(self) -> None:
        if self.measure.of_task:
            with _tasks_lock:
                for other in _tasks:
                    other.others += 1
                    self.others += 1
                _tasks.add(self)
        try:
            self._scope = Scope()
            if self._recording is not None:
                self._recording.begin()
            self._scope.open()
        except Exception as reason:
            self._scope = None
            self.measure.warn(f"{self._label} is not measured: {reason}")
        _entered_here.set((*_entered_here.get(), weakref.ref(self)))
        self._began_s = clock.monotonic_s()

    def __exit__(self, kind: object = None, *error: object) -> None:
        measurement, time_s = None, clock.monotonic_s() - self._began_s
        _entered_here.set(tuple(known for known in _entered_here.get() if known() not in (self, None)))
        try:
            if self._scope is not None:
                self._scope.close()
                if self._scope.may_show(self.measure.from_bytes):
                    measurement = self._measurement(self._scope)
                    time_s = measurement.time_s
        except Exception as reason:
            self.measure.warn(f"{self._label} is not measured: {reason}")
        finally:
            self.close()
        self.measure.ended(self._label, time_s, measurement)
        if kind is None and measurement is not None and (over := self.measure.over_budget(measurement)):
            raise OverBudget(printable(f"{self._label} {over}"), measurement)

    def _measurement(self, scope: Scope) -> Measurement:
        if self._recording is not None:
            self._recording.end()
            self._recording.keep_failure(self._label)
        measurement = scope.result(Measurement, self._label)
        if self._recording is not None:
            measurement = self._recording.result(measurement)
        if self.others:
            said = f"shared with {self.others} other task{'s' * (self.others > 1)} of its process"
            note = Note(NoteKind.SHARED_WITH_TASKS, said)
            measurement = replace(measurement, notes=(*measurement.notes, note))
        return measurement

    def close(self) -> None:
        """Close the scope and the recording, also after their end has failed."""
        if self._recording is not None:
            with suppress(Exception):
                self._recording.drop()
        if self._scope is not None:
            with suppress(Exception):
                self._scope.close()
        if self.measure.of_task:  # a forked child finds a lock that another thread held
            with _tasks_lock:
                _tasks.discard(self)


@final
class Measure:
    """What `measure` returns: a context manager and decorator that has the last measurement."""

    def __init__(
        self,
        label: str | None,
        *,
        report: bool = False,
        compact: bool = False,
        peak: bool | Literal["all"] = False,
        of_task: bool = False,
    ) -> None:
        # `measure` describes the first four. A task of an engine notes how many others ran meanwhile.
        self._label, self._report, self._compact, self._peak = label, report, compact, peak
        self.of_task = of_task
        self.from_bytes = 0  # a block that needed less than this gets no record, and `last` is None
        self.budget_bytes: int | None = None
        self.warn: Callable[[str], object] = warn
        self._last: Measurement | None = None
        self._last_label = label or "block"
        self._time_s: float | None = None  # None until a block or call has ended
        self._open: list[_Block] = []

    def __enter__(self) -> Measure:
        block = _Block(self, self._label or "block")
        self._open.append(block)
        try:
            block.__enter__()
        except BaseException:  # interrupted: Python will not call `__exit__`
            self._forget(block)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        # The latest block of this task; of all, if another task or thread entered it.
        here = [block for known in _entered_here.get() if (block := known()) in self._open]
        for block in (here or self._open)[-1:]:
            try:
                self._open.remove(block)
                block.__exit__(*error)
            finally:
                self._forget(block)

    def _forget(self, block: _Block) -> None:
        block.close()
        if block in self._open:
            self._open.remove(block)

    def __call__(self, function: F) -> F:
        """Measure every call of a function, coroutine function or generator function; else TypeError."""
        label = self._label or str(getattr(function, "__qualname__", "call"))
        return around_calls(function, lambda: _Block(self, label), "measure")  # type: ignore[no-any-return]

    def recording(self) -> PeakRecording | None:
        """Return what records the allocations of one block or call; None where they are not recorded."""
        if not self._peak:
            return None
        from ..breakdown.recording import PeakRecording

        return PeakRecording(ram=True if self._peak == "all" else None)

    def ended(self, label: str, time_s: float, measurement: Measurement | None) -> None:
        """Keep, and report if asked, what a block or call used; None if it could not be measured."""
        is_first, self._last = self._last is None, measurement
        self._last_label, self._time_s = label, time_s
        if measurement is None or not self._report:
            for note in measurement.notes if self._peak and measurement else ():
                if note.startswith("What was alive at the peak in general RAM is not known"):
                    self.warn(note)
            return
        if reason := say(text.report(measurement, compact=self._compact, heads=is_first)):
            warn(f"{label} is measured, and its report cannot be written: {reason}")

    def over_budget(self, measurement: Measurement) -> str:
        """Return by how much a block or call needed more than its budget; empty if it did not."""
        if self.budget_bytes is None:
            return ""
        over, unknown = overdrawn(measurement, *divided(measurement, self.budget_bytes))
        for sentence in unknown:
            self.warn(sentence)
        return over

    @property
    def label(self) -> str:
        """Return the name of the last block or call, measured or not."""
        return self._last_label

    @property
    def last(self) -> Measurement | None:
        """Return the last finished block or call; None if it could not be measured, an error before it."""
        _ = self.time_s  # an error before the first
        return self._last

    @property
    def gen(self) -> RamUsage | None:
        """Return the general RAM of the last block or call; None if it could not be measured."""
        return None if self.last is None else self.last.gen

    @property
    def gpus(self) -> tuple[DeviceUsage, ...]:
        """Return the devices that the process touched; empty if they could not be measured."""
        return () if self.last is None else self.last.gpus

    @property
    def at_peak(self) -> tuple[AtPeak, ...]:
        """Return what was alive at the peak of the last block or call; empty unless ``peak=True``."""
        return () if self.last is None else self.last.at_peak

    @property
    def timeline(self) -> tuple[KindTimeline, ...]:
        """Return the memory over the last block or call by kind, by device; empty unless ``peak=True``."""
        return () if self.last is None else self.last.timeline

    @property
    def time_s(self) -> float:
        """Return the seconds from start to end of the last block or call, measured or not."""
        if self._time_s is None:
            why = "the block has not ended, or the function was not called"
            raise RuntimeError(f"nothing measured yet: {why}")
        return self._time_s

    def _repr_html_(self) -> str | None:
        """Return the report of the last block or call as HTML, for IPython; None before the first."""
        return None if self._last is None else self._last._repr_html_()

    def __repr__(self) -> str:
        return text.report(self._last) if self._last else "<measure: nothing measured yet>"


@overload
def measure(label: F, /) -> F: ...
@overload
def measure(
    label: str | None = None,
    report: bool = False,
    *,
    compact: bool = False,
    peak: bool | Literal["all"] = False,
    budget: str | None = None,
) -> Measure: ...
def measure(
    label: Any = None,
    report: bool = False,
    *,
    compact: bool = False,
    peak: bool | Literal["all"] = False,
    budget: str | None = None,
) -> Any:
    """Measure a block or every call of a function, without collecting garbage or emptying caches.

    Args:
        label: The name of the measurement; by default the function's.
        report: Print a report at the end.
        compact: Print it on one line.
        peak: Tell what was alive when memory was highest, by kind and line: on GPUs from torch's record of
            its allocations; in general RAM through memray, if it is installed, where no GPU is used.
            "all" does both.
        budget: A size such as "2GB": `OverBudget` is raised at the end where more was needed, on a GPU, or
            in RAM where no GPU is used; not where the block or call fails, or could not be measured.

    Raises:
        ValueError: ``peak`` is not one of its values, or ``budget`` is not a memory size.
        OverBudget: A block or call needed more.

    Returns:
        A context manager and decorator. After the end it has ``gen``, ``gpus``, ``at_peak`` and ``time_s`` of
        the last block or call, and the complete `Measurement` as ``last``.

    Example:
        ``with measure("load") as m: data = load()``, then ``m.gen.consumed_bytes``.
    """
    if peak not in (True, False, "all"):
        raise ValueError(f"peak takes True, False or 'all', not {peak!r}")
    if label is not None and not isinstance(label, str):
        return Measure(None, report=True, compact=compact, peak=peak)(label)
    made = Measure(label, report=report, compact=compact, peak=peak)
    try:
        made.budget_bytes = None if budget is None else parse_size(budget)
    except ValueError as error:
        raise ValueError(f"budget: {error}") from None
    return made
