"""One epoch of a training, measured: `watch_epochs` for a plain loop, `EpochScope` for the adapters."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, final

from ..engine.machine import machine
from ..engine.scope import Scope
from ..records import Measurement
from ..records.units import MB, truncated_mb
from ..runtime.calls import Call
from ..runtime.frames import walk_stack
from ..runtime.output import say
from .warn import warn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sized
    from types import FrameType

    from ..records import DeviceUsage, Peak

T = TypeVar("T")


class EpochMemory(NamedTuple):
    """One epoch in whole megabytes (``2**20``), truncated toward zero, as fastai's PeakMemMetric had it.

    ``used`` is what the epoch kept, negative where it gave memory back; ``peak`` is what it needed for a
    moment on top of that, never negative. ``cpu`` is general RAM, ``gpu`` the device the training ran on;
    without one its figures are 0.
    """

    cpu_used: int
    cpu_peak: int
    gpu_used: int
    gpu_peak: int

    def named(self, prefix: str) -> dict[str, int]:
        """The figures by the names that loggers keep apart: ``mem_cpu_used_mb`` with the prefix ``mem_``."""
        return {f"{prefix}{name}_mb": figure for name, figure in self._asdict().items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRecord(Measurement):
    """What one epoch used.

    Attributes:
        on_cpu: The framework said that the training ran on no device.
        gpu_index: Of the device it ran on; None where nobody said: then it is the one whose memory moved
            the most.
    """

    on_cpu: bool = False
    gpu_index: int | None = None

    def trained_on(self) -> DeviceUsage | None:
        """The device it ran on; None without one."""
        if self.on_cpu:
            return None
        return self.busiest_gpu() if self.gpu_index is None else self.gpu(self.gpu_index)

    def memory(self) -> EpochMemory:
        """The four figures of the epoch, in whole megabytes."""
        gpu = self.trained_on()
        return EpochMemory(
            truncated_mb(self.gen.consumed_bytes),
            truncated_mb(self.gen.peaked_bytes),
            truncated_mb(gpu.consumed_bytes) if gpu else 0,
            truncated_mb(gpu.peaked_bytes) if gpu else 0,
        )


class EpochScope:
    """One epoch at a time; what a training framework's callback holds. It never raises.

    Copied or pickled with the callback, it begins anew: the copy measures nothing.
    """

    def __init__(self) -> None:
        self._scope: Scope | None = None
        self._during: Call | None = None

    def within(self, frame: FrameType | None) -> None:
        """Drop what is open, and from here on outlive no epoch of this call, however it ends."""
        self.drop()
        self._during = frame and Call(frame)

    def is_open(self) -> bool:
        """Whether an epoch has begun and not ended."""
        return self._scope is not None

    def begin(self) -> None:
        """An epoch begins; one that never ended is dropped."""
        self.drop()
        try:
            self._scope = Scope(during=self._during)
            self._scope.open()
        except Exception as reason:  # the training goes on all the same
            self._scope = None
            warn(f"the epoch is not measured: {reason}")

    def end(self, label: str, device: Any = None, *, marked: bool = False) -> EpochRecord | None:
        """The epoch ends; None if none was under way, or it could not be measured.

        Args:
            label: What it is called.
            device: Where the training runs: "cuda:1", a `torch.device`; without an index the framework's
                current device. None where nobody knows.
            marked: Whoever asks shows himself which figures are not exact; else a warning says so.
        """
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
            record = scope.result(
                EpochRecord,
                label,
                on_cpu=kind == "cpu",
                gpu_index=int(index) if index.isdecimal() else current,
            )
        except Exception as reason:
            self._scope = None
            warn(f"{label} is not measured: {reason}")
            return None
        for note in record.notes:
            warn(note)
        for doubt in () if marked else _doubts(record):
            warn(f"the memory of an epoch is not exact: {doubt}")
        return record

    def drop(self) -> None:
        """The epoch did not end: nothing is told of it, and nothing stays behind."""
        try:
            if self._scope is not None:
                self._scope.close()
        except Exception:  # there is nothing to tell, and at the interpreter's end the engine may be gone
            pass
        self._scope = None

    def __reduce__(self) -> tuple[type[EpochScope], tuple[()]]:
        return EpochScope, ()


def caller(package: str, *names: str) -> FrameType | None:
    """The nearest call, of those in progress on this thread, of a function so named in a package."""
    for frame in walk_stack(sys._getframe(1)):
        if frame.f_code.co_name in names:
            module = frame.f_globals.get("__name__")
            if f"{module}.".startswith(f"{package}."):
                return frame
    return None


@final
class WatchedEpochs(Generic[T]):
    """What `watch_epochs` returns: the items again, and what was measured.

    Attributes:
        history: The epochs that ended, each an `EpochRecord`.
    """

    def __init__(self, items: Iterable[T], *, report: bool, device: Any = None) -> None:
        self.history: list[EpochRecord] = []
        self._items, self._report, self._device = items, report, device

    def __len__(self) -> int:
        items: Sized = self._items  # type: ignore[assignment] # if it has no length, that is what is said
        return len(items)

    def __iter__(self) -> Iterator[T]:
        scope, items, rows = EpochScope(), iter(self._items), 0
        try:
            for i in count():
                scope.begin()  # before the next item, so that what that takes is in its epoch
                try:
                    item = [next(items)]
                except StopIteration:
                    return
                name = str(item[0]) if isinstance(item[0], int) else str(i)
                yield item.pop()  # kept alive by nobody here
                record = scope.end(f"epoch {name}", self._device, marked=self._report)
                if record is None:
                    continue
                self.history.append(record)
                if self._report:
                    say(("" if rows else f"{_HEADER}\n") + _row(name, record))
                    rows += 1
        finally:
            scope.drop()


_HEADER = "epoch        time  cpu used      peak  gpu used      peak"


def _row(name: str, record: EpochRecord) -> str:
    figures = "".join(f"{figure:>10}" for figure in record.memory())
    remarks = "".join(f" ({doubt})" for doubt in _doubts(record))
    return f"{name:>5}{record.time_s:>11.3f}s{figures} MB{remarks}"


def _doubts(record: EpochRecord) -> Iterator[str]:
    """What is not sure of the four figures."""
    gpu = record.trained_on()
    peaks = [record.gen.peak, *([gpu.peak] if gpu and gpu.attributed else [])]
    if not all(map(_exact, peaks)):
        yield "peak at least"
    if gpu is not None and not gpu.attributed:
        yield "nobody tells which process uses the GPU"


def _exact(peak: Peak) -> bool:
    return peak.hi_bytes is not None and peak.hi_bytes - peak.lo_bytes < MB


def watch_epochs(epochs: Iterable[T], report: bool = True, device: Any = None) -> WatchedEpochs[T]:
    """Measure every turn of a loop: its general RAM and GPU RAM, what it kept and what it needed on top.

    A turn begins before its item is fetched and ends when the loop asks for the next. One that is left
    by ``break``, by an exception or by an interrupt is told nowhere, and leaves nothing behind.

    Args:
        epochs: What to loop over; nothing is done with the items.
        report: Print a row of a table after every turn, in MB.
        device: Where the training runs: "cuda:1", a `torch.device`; by default the device whose memory
            moved the most. ``history`` has them all.

    Returns:
        The same items to loop over; ``history`` holds an `EpochRecord` for every turn that ended.

    Example:
        ``for epoch in watch_epochs(range(3)): train()``
    """
    return WatchedEpochs(epochs, report=report, device=device)
