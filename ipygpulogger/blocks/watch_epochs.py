"""`watch_epochs`: a scope and a record for each epoch of a training."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from types import FrameType
from typing import Any, Generic, NamedTuple, TypeVar, final

from ..engine.machine import machine
from ..engine.scope import Scope
from ..records import DeviceUsage, Measurement
from ..records.units import MB, truncated_mb
from ..runtime.errors import say
from ..runtime.objects import walk_stack
from ..runtime.wrappers import Call
from .measure import warn

T = TypeVar("T")
_HEADER = "epoch        time  cpu used      peak  gpu used      peak"


class EpochMemory(NamedTuple):
    """One epoch in whole megabytes (``2**20``), truncated toward zero, as in fastai's PeakMemMetric.

    ``used`` is what the epoch kept, ``peak`` what it needed on top of that for a moment. ``cpu`` is general
    RAM, ``gpu`` the device that the training ran on; without one its figures are 0.
    """

    cpu_used: int
    cpu_peak: int
    gpu_used: int
    gpu_peak: int

    def named(self, prefix: str) -> dict[str, int]:
        """Return the figures under names for loggers: ``mem_cpu_used_mb`` with the prefix ``mem_``."""
        return {f"{prefix}{name}_mb": figure for name, figure in self._asdict().items()}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EpochRecord(Measurement):
    """What one epoch used.

    Attributes:
        on_cpu: Whether the framework said that the training ran on the CPU.
        gpu_index: The index of the device it ran on; None if unknown: the one whose memory changed most.
    """

    on_cpu: bool = False
    gpu_index: int | None = None

    def trained_on(self) -> DeviceUsage | None:
        """Return the device that the training ran on; None without one."""
        if self.on_cpu:
            return None
        return self.busiest_gpu() if self.gpu_index is None else self.gpu(self.gpu_index)

    def memory(self) -> EpochMemory:
        """Return the four figures of the epoch, in whole megabytes."""
        gen, gpu = self.gen, self.trained_on()
        of_gpu = (gpu.consumed_bytes, gpu.peaked_bytes) if gpu else (0, 0)
        return EpochMemory(*map(truncated_mb, (gen.consumed_bytes, gen.peaked_bytes, *of_gpu)))


def caveats(record: EpochRecord) -> Iterator[str]:
    """Yield what is not exact about the four figures."""
    gpu = record.trained_on()
    peaks = [record.gen.peak, *([gpu.peak] if gpu and gpu.attributed else [])]
    if any(peak.hi_bytes is None or peak.hi_bytes - peak.lo_bytes >= MB for peak in peaks):
        yield "peak at least"
    if gpu is not None and not gpu.attributed:
        yield "per-process GPU usage unavailable"


class EpochScope:
    """Measures one epoch at a time into `history`; never raises. A copy, as of a callback, has none open."""

    def __init__(self, history: list[EpochRecord] | None = None) -> None:
        self.history: list[EpochRecord] = [] if history is None else history
        self._scope: Scope | None = None
        self._during: Call | None = None

    def within(self, frame: FrameType | None) -> None:
        """Drop the open epoch, and tie those that follow to a call of ``fit``: they end with it, however."""
        self.drop()
        self._during = frame and Call(frame)

    def is_open(self) -> bool:
        """Return whether an epoch has begun and not ended."""
        return self._scope is not None

    def begin(self) -> None:
        """Begin an epoch; drop one that never ended."""
        self.drop()
        try:
            self._scope = Scope(during=self._during)
            self._scope.open()
        except Exception as reason:  # the training goes on
            self._scope = None
            warn(f"the epoch is not measured: {reason}")

    def end(self, label: str, device: Any = None, *, marked: bool = False) -> EpochRecord | None:
        """End the epoch; keep and return its record, None if none was open or could be measured."""
        # The training ran on `device`: without an index the framework's current one, None if unknown. Unless
        # the caller has the figures that are not exact `marked`, a warning names them.
        scope = self._scope
        if scope is None:
            return None
        try:
            stale = scope.orphaned()
            scope.close()
            self._scope = None
            if stale:
                return None
            kind, _, index = str(device or "").partition(":")
            current = machine().frameworks.current_index() if kind else None
            gpu_index = int(index) if index.isdecimal() else current
            record = scope.result(EpochRecord, label, on_cpu=kind == "cpu", gpu_index=gpu_index)
        except Exception as reason:
            self._scope = None
            warn(f"{label} is not measured: {reason}")
            return None
        self.history.append(record)
        for note in record.notes:
            warn(note)
        for caveat in () if marked else caveats(record):
            warn(f"the memory of an epoch is not exact: {caveat}")
        return record

    def drop(self) -> None:
        """Close the open epoch without a record."""
        with suppress(Exception):  # closing fails while the interpreter shuts down
            if self._scope is not None:
                self._scope.close()
        self._scope = None

    def __reduce__(self) -> tuple[Any, ...]:
        return EpochScope, (self.history,)


def caller(package: str, *names: str) -> FrameType | None:
    """Return the innermost running call on this thread of a function with such a name in a package."""
    for frame in walk_stack(sys._getframe(1)):
        if frame.f_code.co_name in names:
            module = frame.f_globals.get("__name__")
            if f"{module}.".startswith(f"{package}."):
                return frame
    return None


@final
class WatchedEpochs(Generic[T]):
    """What `watch_epochs` returns: the items to loop over; ``history`` has an `EpochRecord` of each."""

    def __init__(self, items: Iterable[T], *, report: bool, device: Any = None) -> None:
        self.history: list[EpochRecord] = []
        self._items, self._report, self._device = items, report, device

    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type] # without a length, this raises its own error

    def __iter__(self) -> Iterator[T]:
        scope, items, rows = EpochScope(self.history), iter(self._items), 0
        try:
            for i in count():
                scope.begin()  # before the item is fetched, so that this is part of the epoch
                try:
                    item = [next(items)]
                except StopIteration:
                    return
                name = str(item[0]) if isinstance(item[0], int) else str(i)
                yield item.pop()  # no reference to it stays here
                record = scope.end(f"epoch {name}", self._device, marked=self._report)
                if record is not None and self._report:
                    say(("" if rows else f"{_HEADER}\n") + _row(name, record))
                    rows += 1
        finally:
            scope.drop()


def _row(name: str, record: EpochRecord) -> str:
    figures = "".join(f"{figure:>10}" for figure in record.memory())
    remarks = "".join(f" ({caveat})" for caveat in caveats(record))
    return f"{name:>5}{record.time_s:>11.3f}s{figures} MB{remarks}"


def watch_epochs(epochs: Iterable[T], report: bool = True, device: Any = None) -> WatchedEpochs[T]:
    """Measure each iteration of a loop: the general RAM and GPU RAM that it kept, and its transient peak.

    An iteration begins before its item is fetched and ends when the loop requests the next. One that is left
    by ``break``, by an exception or by an interrupt is not recorded.

    Args:
        epochs: What to loop over; the items are passed on unchanged.
        report: Print a row of a table after each iteration, in MB.
        device: Where the training runs: "cuda:1", a `torch.device`; by default the device whose memory
            changed most. ``history`` has all of them.

    Returns:
        The same items to loop over; ``history`` holds an `EpochRecord` for each iteration that ended.

    Example:
        ``for epoch in watch_epochs(range(3)): train()``
    """
    return WatchedEpochs(epochs, report=report, device=device)
