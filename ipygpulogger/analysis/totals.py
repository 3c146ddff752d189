"""A run as a whole: its totals, how its figures are spread, and what a page shows of very many cells."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from ..records.cell_record import CellRecord, process_of
from ..records.process import ProcessRecord
from ..records.usage import Peak, RamUsage, Usage
from .ranking import by_peak

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    from ..records.device_usage import DeviceUsage

    Key = tuple[str, int, str | None]  # `DeviceUsage.key`, and `RAM`
    _Stretch = tuple[float, float, list[CellRecord]]  # its begin and its end, in seconds, and its cells

RAM: Key = ("RAM", -1, None)
ELSEWHERE: tuple[Key, Key] = (("RAM", -1, "processes"), ("GPU", -1, "processes"))  # of all other processes
MOST = 500  # cells that a page shows in full
_BY_PEAK, _BY_TIME, _FAILED = 200, 50, 50  # cells in full of more than that
_STRETCHES = 480  # of time, in which very many cells are drawn
_SHORTEST_S = 0.001
_FEW = 24  # stretches in which a cell failed, at most, for these to be drawn
_LONGER_S = 1e-5  # than its cells, which are drawn within it
_NO_PEAK = Peak(0, 0, "exact")  # of a stretch: the peaks are those of its cells


def memories(record: CellRecord) -> Iterator[tuple[Key, Usage]]:
    """Yield RAM and every device of a record by key; those of all other processes share a key."""
    is_elsewhere = process_of(record) is not None
    yield ELSEWHERE[0] if is_elsewhere else RAM, record.gen
    for gpu in record.gpus:
        yield ELSEWHERE[1] if is_elsewhere else gpu.key, gpu


@dataclass(frozen=True, slots=True)
class CellTotals:
    """Some cells together.

    Attributes:
        count: How many.
        failed: How many of them did not succeed.
        time_s: Their time.
        longest: The one that took longest; None without one.
    """

    count: int
    failed: int
    time_s: float
    longest: CellRecord | None

    @classmethod
    def of(cls, records: Sequence[CellRecord]) -> CellTotals:
        """Return the totals of records."""
        failed = sum(record.status != "ok" for record in records)
        longest = max(records, key=lambda record: record.time_s, default=None)
        return cls(len(records), failed, sum(record.time_s for record in records), longest)


@dataclass(slots=True)
class MemoryTotals:
    """One memory over a run.

    Attributes:
        latest: As the last cell left it.
        highest: The cell with the highest peak, where the use is attributed; None if it never was.
        exact: Whether all peaks are exact.
        used_bytes: The most in use by all processes at the end of a cell; 0 when that is unknown.
        needed: What each cell needed, where the use is attributed.
        peaks: The peak of each, likewise.
    """

    latest: Usage
    highest: CellRecord | None = None
    exact: bool = True
    used_bytes: int = 0
    needed: list[int] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)
    peak_bytes: int = -1

    def add(self, usage: Usage, record: CellRecord) -> None:
        """Add the memory over one cell."""
        self.latest = usage
        self.used_bytes = max(self.used_bytes, getattr(usage, "used_bytes", None) or 0)
        if getattr(usage, "attributed", True):
            self.exact = self.exact and usage.peak.quality == "exact"
            self.needed.append(usage.needed_bytes)
            self.peaks.append(usage.peak.lo_bytes)
            if self.highest is None or usage.peak.lo_bytes > self.peak_bytes:
                self.peak_bytes, self.highest = usage.peak.lo_bytes, record


@dataclass(frozen=True, slots=True)
class Totals:
    """All cells of a run.

    Attributes:
        begin: When the first began; None before there is one.
        every: All cells, and the records of other processes.
        outer: The cells of the kernel that are not nested in others.
        processes: The records of other processes.
        memories: RAM and the devices by the keys of `memories`, in the order in which cells name them.
    """

    begin: datetime | None
    every: CellTotals
    outer: CellTotals
    processes: CellTotals
    memories: dict[Key, MemoryTotals]

    @classmethod
    def of(cls, records: Sequence[CellRecord]) -> Totals:
        """Return the totals of a run."""
        processes = [record for record in records if process_of(record) is not None]
        own = [record for record in records if process_of(record) is None]
        outer = [record for record in own if record.execution_count is not None]
        found: dict[Key, MemoryTotals] = {}
        for record in records:
            for key, usage in memories(record):
                if key not in found:
                    found[key] = MemoryTotals(usage)
                found[key].add(usage, record)
        begin = min((record.started_at for record in records), default=None)
        every, of_outer, of_processes = map(CellTotals.of, (records, outer, processes))
        return cls(begin, every, of_outer, of_processes, found)


class Line(NamedTuple):
    """The cells with the same first line.

    Attributes:
        source: The line.
        totals: The cells.
        ram_bytes: The most RAM that one of them needed.
        gpu_bytes: The most that one of them needed on a device; None where no use of a device is known.
    """

    source: str
    totals: CellTotals
    ram_bytes: int
    gpu_bytes: int | None


def by_first_line(records: Iterable[CellRecord], at_most: int) -> tuple[list[Line], int]:
    """Return the first lines whose cells took the most time, and how many first lines there are."""
    found: dict[str, list[CellRecord]] = {}
    for record in records:
        found.setdefault(record.source, []).append(record)
    longest = heapq.nlargest(at_most, found.items(), key=lambda item: sum(one.time_s for one in item[1]))
    lines = []
    for source, cells in longest:
        on_devices = [gpu.needed_bytes for cell in cells for gpu in cell.gpus if gpu.attributed]
        ram_bytes = max(cell.gen.needed_bytes for cell in cells)
        lines.append(Line(source, CellTotals.of(cells), ram_bytes, max(on_devices, default=None)))
    return lines, len(found)


def quantiles(figures: Sequence[float]) -> list[float]:
    """Return the figures that 50, 90, 99 and 100 % do not exceed; there must be one figure at least."""
    ordered = sorted(figures)
    return [ordered[math.ceil(part * len(ordered)) - 1] for part in (0.5, 0.9, 0.99, 1.0)]


def shown(records: Sequence[CellRecord]) -> list[CellRecord]:
    """Return the cells that a page shows in full, in their order.

    Of very many these are the cells that needed most, those that took longest, and the last that failed.
    """
    numbers = range(len(records))
    if len(records) <= MOST:
        return list(records)
    most = heapq.nlargest(_BY_PEAK, numbers, key=lambda number: by_peak(records[number]))
    longest = heapq.nlargest(_BY_TIME, numbers, key=lambda number: records[number].time_s)
    failed = [number for number in numbers if records[number].status != "ok"][-_FAILED:]
    return [records[number] for number in sorted({*most, *longest, *failed})]


# -- memory over time, in few stretches ------------------------------------------------------------------


def of_one_process(records: Iterable[CellRecord]) -> tuple[list[CellRecord], str]:
    """Return the records of the kernel or, without one, of the first process, and that process's name."""
    found = [(process_of(record), record) for record in records]
    own = [record for process, record in found if process is None]
    first = next((process for process, _ in found), None)
    if own or first is None:
        return own, ""
    places = [(process and (process.host, process.pid), record) for process, record in found]
    return [record for place, record in places if place == (first.host, first.pid)], first.named()


def stretches(records: Iterable[CellRecord]) -> tuple[list[CellRecord], float]:
    """Return what a plot can draw in place of very many cells, and how long a stretch of time is at most.

    Neighbouring cells of one process share a stretch, which is drawn as one cell without a peak of its own.
    The cells with the highest peak of each memory in each stretch are returned too.
    """
    cells, _ = of_one_process(records)
    longest_s = max(_SHORTEST_S, sum(cell.time_s for cell in cells) / _STRETCHES)
    found = _joined(
        ((at := cell.started_at.timestamp(), at + cell.time_s, [cell]) for cell in cells), longest_s
    )
    while len(found) > _STRETCHES:
        longest_s *= 2
        found = _joined(found, longest_s)
    few_failed = sum(any(cell.status != "ok" for cell in stretch) for *_, stretch in found) <= _FEW
    drawn: dict[int, CellRecord] = {}
    for *_, stretch in found:
        if len(stretch) > 1:
            whole = _whole(stretch, marks_failed=few_failed)
            drawn[id(whole)] = whole
        highest: dict[Key, tuple[int, CellRecord]] = {}
        for cell in stretch:
            for key, usage in memories(cell):
                if key not in highest or usage.peak.lo_bytes > highest[key][0]:
                    highest[key] = usage.peak.lo_bytes, cell
        drawn |= {id(cell): cell for _, cell in highest.values()}
    return list(drawn.values()), longest_s


def _joined(found: Iterable[_Stretch], longest_s: float) -> list[_Stretch]:
    """Return stretches of which neighbours are one where they fit into so much time together."""
    joined: list[_Stretch] = []
    for begin_s, end_s, cells in found:
        if joined:
            first_s, last_s, before = joined[-1]
            if max(last_s, end_s) - min(first_s, begin_s) <= longest_s:
                before += cells
                joined[-1] = min(first_s, begin_s), max(last_s, end_s), before
                continue
        joined.append((begin_s, end_s, cells))
    return joined


def _whole(stretch: Sequence[CellRecord], *, marks_failed: bool) -> CellRecord:
    """Return a stretch as if it were one cell."""
    begin = min(cell.started_at for cell in stretch)
    ends = [
        ((cell.started_at - begin).total_seconds() + cell.time_s, cell.gen.after_bytes) for cell in stretch
    ]
    extremes = (extreme(ends, key=lambda end: end[1]) for extreme in (min, max))
    first, last = stretch[0], stretch[-1]
    began: dict[Key, DeviceUsage] = {}
    ended: dict[Key, DeviceUsage] = {}
    for cell in stretch:
        for gpu in cell.gpus:
            began.setdefault(gpu.key, gpu)
            ended[gpu.key] = gpu
    whole = CellRecord(
        label=f"In [{first.execution_count}]",
        started_at=begin,
        time_s=max(end_s for end_s, _ in ends) + _LONGER_S,
        gen=RamUsage(
            first.gen.before_bytes, last.gen.after_bytes, _NO_PEAK, timeline=tuple(sorted(extremes))
        ),
        gpus=tuple(
            replace(
                gpu,
                before_bytes=began[key].before_bytes,
                peak=_NO_PEAK,
                context_bytes=0,
                metrics=(),
                timeline=(),
            )
            for key, gpu in ended.items()
        ),
        execution_count=first.execution_count,
        cell_id=None,
        source="",
        status="error" if marks_failed and any(cell.status != "ok" for cell in stretch) else "ok",
    )
    process = process_of(first)
    return whole if process is None else ProcessRecord.of(whole, process)
