"""Memory over the time of a run, in few stretches of time however many cells there are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .cell_record import CellRecord
from .one_process import OneProcess
from .process import ProcessRecord
from .row import RAM
from .usage import Peak, RamUsage

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from .device_usage import DeviceUsage
    from .process import Process
    from .row import Key, Memory, Origin, Row

_STRETCHES = 240  # at most twice as many are kept, and at least half as many of a long run
_SHORTEST_S = 0.001
_FEW = 24  # stretches in which a cell failed, at most, for these to be drawn
_LONGER_S = 1e-5  # than its cells, which are drawn within it
_NO_PEAK = Peak(0, 0, "exact")  # of a stretch: the peaks are those of its cells


@dataclass(slots=True)
class _Range:
    """One memory over a stretch of time, in bytes; `at` is a time.

    Attributes:
        before: In use at the beginning.
        after: In use at the end.
        low: The least in use at the end of a cell.
        low_at: When.
        high: The most in use at the end of a cell.
        high_at: When.
        peak: The highest peak.
        highest: The cell that had it.
        latest: The last cell that used the memory.
    """

    before: int
    after: int
    low: int
    low_at: float
    high: int
    high_at: float
    peak: int
    highest: Origin
    latest: Origin

    @classmethod
    def of(cls, memory: Memory, end_s: float, origin: Origin) -> _Range:
        after_bytes = memory.after_bytes
        ends = memory.before_bytes, after_bytes, after_bytes, end_s, after_bytes, end_s
        return cls(*ends, memory.lo_bytes, origin, origin)

    def add(self, memory: Memory, end_s: float, origin: Origin) -> None:
        """Add the cell that follows."""
        after_bytes = self.after = memory.after_bytes
        self.latest = origin
        if after_bytes < self.low:
            self.low, self.low_at = after_bytes, end_s
        elif after_bytes > self.high:
            self.high, self.high_at = after_bytes, end_s
        if memory.lo_bytes > self.peak:
            self.peak, self.highest = memory.lo_bytes, origin

    def extend(self, later: _Range) -> None:
        """Add what follows."""
        self.after, self.latest = later.after, later.latest
        if later.low < self.low:
            self.low, self.low_at = later.low, later.low_at
        if later.high > self.high:
            self.high, self.high_at = later.high, later.high_at
        if later.peak > self.peak:
            self.peak, self.highest = later.peak, later.highest


@dataclass(slots=True)
class _Stretch:
    """Cells that follow one another."""

    began: datetime
    start_s: float
    end_s: float
    first: Row
    failed: bool
    ranges: dict[Key, _Range]
    count: int = 1

    @classmethod
    def of(cls, row: Row, start_s: float) -> _Stretch:
        end_s = start_s + row.time_s
        ranges = {RAM: _Range.of(row.gen, end_s, row.origin)}
        stretch = cls(row.started_at, start_s, end_s, row, not row.succeeded, ranges)
        stretch._add_gpus(row, end_s)
        return stretch

    def add(self, row: Row, end_s: float) -> None:
        """Add the cell that follows, which does not begin before."""
        self.end_s = max(self.end_s, end_s)
        self.failed |= not row.succeeded
        self.count += 1
        self.ranges[RAM].add(row.gen, end_s, row.origin)
        self._add_gpus(row, end_s)

    def _add_gpus(self, row: Row, end_s: float) -> None:
        for gpu in row.gpus:
            found = self.ranges.get(gpu.key)
            if found is None:
                self.ranges[gpu.key] = _Range.of(gpu, end_s, row.origin)
            else:
                found.add(gpu, end_s, row.origin)

    def extend(self, later: _Stretch) -> None:
        """Add the cells that follow."""
        if later.start_s < self.start_s:  # a cell that others were nested in ends after them
            self.began, self.start_s = later.began, later.start_s
        self.end_s = max(self.end_s, later.end_s)
        self.failed |= later.failed
        self.count += later.count
        for key, found in later.ranges.items():
            if key in self.ranges:
                self.ranges[key].extend(found)
            else:
                self.ranges[key] = found

    def span_s(self, later: _Stretch) -> float:
        """Return how long it would be with the cells that follow."""
        return max(self.end_s, later.end_s) - min(self.start_s, later.start_s)


class Course:
    """Memory over the time of the rows added so far.

    Neighbouring cells share a stretch of time. Whenever there are too many, stretches become twice as long.
    """

    def __init__(self) -> None:
        self.longest_s = _SHORTEST_S
        self._stretches: list[_Stretch] = []
        self._one = OneProcess()

    @property
    def process(self) -> Process | None:
        """The process that it is of; None for the notebook's own kernel."""
        return self._one.process

    def add(self, row: Row) -> None:
        """Add the next cell; see `OneProcess` for records of other processes."""
        if self._one.gives_way(row.process):
            self.longest_s = _SHORTEST_S
            self._stretches.clear()
        if not self._one.takes(row.process):
            return
        start_s = row.started_at.timestamp()
        end_s = start_s + row.time_s
        last = self._stretches[-1] if self._stretches else None
        if last and last.start_s <= start_s and max(last.end_s, end_s) - last.start_s <= self.longest_s:
            last.add(row, end_s)  # the same as below, in half the time
            return
        self._append(self._stretches, _Stretch.of(row, start_s))
        while len(self._stretches) > 2 * _STRETCHES:
            self.longest_s *= 2
            found: list[_Stretch] = []
            for stretch in self._stretches:
                self._append(found, stretch)
            self._stretches = found

    def _append(self, found: list[_Stretch], stretch: _Stretch) -> None:
        if found and found[-1].span_s(stretch) <= self.longest_s:
            found[-1].extend(stretch)
        else:
            found.append(stretch)

    def cells(self, record: Callable[[Origin], CellRecord]) -> list[CellRecord]:
        """Return what a plot can draw in place of all cells: one for each stretch, and those with its peaks.

        Args:
            record: Returns the record of a row by its origin.
        """
        few_failed = sum(stretch.failed for stretch in self._stretches) <= _FEW
        found: dict[int, CellRecord] = {}
        for stretch in self._stretches:
            if stretch.count > 1:
                whole = _whole(stretch, record, marks_failed=few_failed)
                if self.process is not None:
                    whole = ProcessRecord.of(whole, self.process)
                found[id(whole)] = whole
            for memory in stretch.ranges.values():
                cell = record(memory.highest)
                found[id(cell)] = cell
        return list(found.values())

    def __len__(self) -> int:
        return len(self._stretches)


def _whole(stretch: _Stretch, record: Callable[[Origin], CellRecord], *, marks_failed: bool) -> CellRecord:
    """Return a stretch as if it were one cell, without a peak of its own."""
    ram, count = stretch.ranges[RAM], stretch.first.execution_count
    points = sorted([(ram.low_at, ram.low), (ram.high_at, ram.high)])
    timeline = tuple((at_s - stretch.start_s, size_bytes) for at_s, size_bytes in points)
    return CellRecord(
        label=f"In [{count}]",
        started_at=stretch.began,
        time_s=stretch.end_s - stretch.start_s + _LONGER_S,
        gen=RamUsage(ram.before, ram.after, _NO_PEAK, timeline=timeline),
        gpus=tuple(
            _device(record(found.latest), key, found) for key, found in stretch.ranges.items() if key != RAM
        ),
        execution_count=count,
        cell_id=None,
        source="",
        status="error" if stretch.failed and marks_failed else "ok",
    )


def _device(latest: CellRecord, key: Key, found: _Range) -> DeviceUsage:
    """Return a device over a stretch: as the last cell left it."""
    gpu = next(gpu for gpu in latest.gpus if gpu.key == key)
    return replace(gpu, before_bytes=found.before, peak=_NO_PEAK, context_bytes=0, metrics=(), timeline=())
