"""How the memory that a cell needs grows with the size of its data, and at which size the headroom ends."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import linear_regression
from typing import NamedTuple

from ..records.cell_record import CellRecord, process_of
from ..records.units import MB
from ..records.usage import Usage, needed
from . import leaks

RAM = "RAM"  # the key of general RAM in `leaks.memories`
_RISES_BYTES = {RAM: 8 * MB}  # the least rise from the smallest to the largest size that is a growth
_RISES_ELSEWHERE_BYTES = 2 * MB
_TOLERANCE_BYTES, _TOLERANCE = 2 * MB, 0.02  # off the line, as allocators round; and of the highest point
_FAR = 10
_GIVEN_BACK_BYTES, _GIVEN_BACK = 2 * MB, 0.03  # of what was there before a run, or of what the run needed
_LITTLE = "needed less than 2 MB"  # as `notebook.enrichers` has it: the size of its data is not looked up
_UNNAMED = "its code names no array, loader or batch size; what is inside functions is not seen"
_HIDES = "a run that begins with larger data in memory than it needs hides what it needed: run it again"


class Headroom(NamedTuple):
    """What is left of one memory now."""

    used_bytes: int  # what this process uses of it
    left_bytes: int | None  # what it could still allocate; None when unknown


class Point(NamedTuple):
    """What one run needed."""

    size: int  # how large its data was
    need_bytes: int  # what it needed at its peak
    label: str = ""  # the run: "In [4]"


@dataclass(frozen=True, slots=True)
class _Line:
    points: tuple[Point, ...]  # what the last run of each size needed above what other cells hold, by size
    slope_bytes: float  # how much more is needed for one more
    base_bytes: float  # the need at size 0, by the line
    off_bytes: int  # how far the farthest point lies from the line
    is_line: bool  # the points lie on it, as far as allocators round, and its need at size 0 is not negative

    @classmethod
    def of(cls, runs: Iterable[Point]) -> _Line:
        points = tuple(sorted({point.size: point for point in runs}.values()))
        sizes = [point.size for point in points]
        slope, base = linear_regression(sizes, [point.need_bytes for point in points])
        off_bytes = round(max(abs(point.need_bytes - base - slope * point.size) for point in points))
        tolerance_bytes = max(_TOLERANCE_BYTES, _TOLERANCE * max(point.need_bytes for point in points))
        return cls(points, slope, base, off_bytes, off_bytes <= tolerance_bytes and base >= -tolerance_bytes)

    def largest(self, left_bytes: int) -> int:
        lowest, *between, highest = (point.size for point in self.points)
        margin_bytes = 2 * self.off_bytes if between else _TOLERANCE_BYTES
        free_bytes = left_bytes - self.base_bytes - margin_bytes + 0.5  # half a byte of rounding
        if free_bytes <= self.slope_bytes * highest:
            return max(0, int(free_bytes // self.slope_bytes))
        more_bytes = 2 * margin_bytes / (highest - lowest)  # beyond what ran, the line itself is less sure
        return int((free_bytes + more_bytes * highest) // (self.slope_bytes + more_bytes))


@dataclass(frozen=True, slots=True)
class MemoryFit(_Line):
    """How the need of one memory grows with the size."""

    device: str  # "RAM", or the device's id
    at_least: bool  # the highest use of some run is only a lower bound
    left_bytes: int | None  # the most that the cell can need now; None when unknown
    ends_at: int | None  # the largest size for which there is enough, with a margin; None where unknown


@dataclass(frozen=True, slots=True)
class CellFit:
    """How the memory that a cell needs grows with the size of its data."""

    runs: tuple[CellRecord, ...]  # those that succeeded, in their order
    name: str = ""  # what varied: an array, a batch size or a number in a call
    memories: tuple[MemoryFit, ...] = ()  # where the need rose with the size, the first to end first
    failed: tuple[tuple[int, CellRecord], ...] = ()  # runs that failed or were interrupted, with their size
    missing: str = ""  # what is missing for a line, in one sentence


def fit_of(
    records: Iterable[CellRecord],
    left: Mapping[Hashable, Headroom],
    count: int | None = None,
    name: str | None = None,
) -> CellFit:
    """Return how the memory of a cell grows with the size of its data; else a ValueError that says why."""
    # `left` is by memory, as `leaks.memories` names it. Without a count it is the last cell that ran with
    # several sizes, or else the last whose sizes are known; without a name the size that varied in most runs.
    known = [record for record in records if process_of(record) is None]
    runs = _runs_of(known, count)
    if not runs:
        return CellFit((), missing=f"every cell so far {_LITTLE}, or {_UNNAMED}")
    whole = tuple(run for run in runs if run.status == "ok")
    sizes = _varied(whole)
    if name is not None and name not in sizes:
        varied_names = f"; these varied: {', '.join(sizes)}" if sizes else ""
        raise ValueError(f"no size named {name} varied between the runs{varied_names}")
    if not sizes:
        return CellFit(whole, missing=_missing(runs, whole))
    name = name or max(sizes, key=lambda one: len(sizes[one]))
    whole = tuple(run for run in whole if _size(run, name) > 0)
    found = [_of_memory(known, whole, name, device, left) for device in leaks.memories(whole[-1])]
    ends = [(math.inf if one.ends_at is None else one.ends_at, one.device, one) for one in found if one]
    rising = [one for end, _, one in sorted(ends) if end <= _FAR * min(ends)[0]]
    failed = tuple((_size(run, name), run) for run in runs if run.status != "ok" and _size(run, name))
    missing = "" if rising else f"no memory was seen to grow with {name}; {_HIDES}"
    return CellFit(whole, name, tuple(rising), failed, missing)


def _size(run: CellRecord, name: str) -> int:
    return dict(run.dimensions).get(name, 0)


def _varied(runs: Sequence[CellRecord]) -> dict[str, list[int]]:
    """Return the sizes of each name that varied between runs that succeeded, names of the last run first."""
    found: dict[str, list[int]] = {name: [] for run in reversed(runs) for name, _ in run.dimensions}
    for run in runs:
        for name, size in run.dimensions if run.status == "ok" else ():
            found[name] += [size] if size > 0 else []
    return {name: sizes for name, sizes in found.items() if len(set(sizes)) > 1}


def _runs_of(records: Sequence[CellRecord], count: int | None) -> list[CellRecord]:
    """Return all runs of the cell that is asked for; none if none is, and no cell could have a line."""
    cells: dict[Hashable, list[CellRecord]] = {}  # of which the last one ran the latest
    for record in records:
        if (cell := cell_of(record)) is not None:
            cells[cell] = [*cells.pop(cell, []), record]
    latest = list(reversed(cells.values()))
    if count is not None:
        latest = [runs for runs in latest if any(run.execution_count == count for run in runs)]
        if not latest:
            is_there = any(record.execution_count == count for record in records)
            fault = f"the runs of In [{count}] cannot be told apart"
            raise ValueError(fault if is_there else f"In [{count}] is not in the history")
    sized = [runs for runs in latest if count is not None or any(run.dimensions for run in runs)]
    return next(filter(_varied, latest), next(iter(sized), []))


def cell_of(record: CellRecord) -> Hashable:
    """Return what makes another run of a cell recognizable, also with other sizes; None if nothing does."""
    if record.code and record.source and not record.gpulog_only:
        return record.cell_id, record.code
    return leaks.identity(record)


def _missing(runs: Sequence[CellRecord], whole: Sequence[CellRecord]) -> str:
    sized = [run for run in whole if run.dimensions]
    if not whole:
        return f"{runs[-1].label} has not succeeded yet"
    if not sized:
        usages = whole[-1].gen, *whole[-1].gpus
        is_little = all(one.peak.lo_bytes <= one.before_bytes + 2 * MB for one in usages)
        return f"{whole[-1].label} {_LITTLE}" if is_little else f"{whole[-1].label}: {_UNNAMED}"
    name, size = sized[-1].dimensions[0]
    return f"{sized[-1].label} ran with one size only ({name}: {size:,}): run it again with another size"


def _of_memory(
    records: Sequence[CellRecord],
    runs: Sequence[CellRecord],
    name: str,
    device: Hashable,
    left: Mapping[Hashable, Headroom],
) -> MemoryFit | None:
    """Return how the need of one memory grows; None if it does not, or is not known of two sizes."""
    measured = [run for run in runs if _has_point(run, device)]
    if len({_size(run, name) for run in measured}) < 2:
        return None
    now = left.get(device)
    needs, others_bytes = _needs(records, measured, device, now)
    line = _Line.of([Point(_size(run, name), needs[id(run)], run.label) for run in measured])
    left_bytes = None
    if now is not None and now.left_bytes is not None:
        left_bytes = max(0, now.left_bytes + now.used_bytes - others_bytes)
    if not line.is_line:  # a cell that keeps all it makes needs that above what is there before it
        alone = _Line.of([_alone(run, name, device) for run in measured])
        if alone.is_line:
            line, left_bytes = alone, None if now is None else now.left_bytes
    points = line.points
    rises_bytes = line.slope_bytes * (points[-1].size - points[0].size)
    if rises_bytes < _RISES_BYTES.get(str(device), _RISES_ELSEWHERE_BYTES):
        return None
    return MemoryFit(
        **asdict(line),
        device=next((gpu.id for gpu in measured[-1].gpus if gpu.key == device), RAM),
        at_least=any(leaks.memories(run)[device].peak.hi_bytes is None for run in measured),
        left_bytes=left_bytes,
        ends_at=None if left_bytes is None or not line.is_line else line.largest(left_bytes),
    )


def _alone(run: CellRecord, name: str, device: Hashable) -> Point:
    usage = leaks.memories(run)[device]
    need_bytes = needed(_highest_bytes(usage), usage.before_bytes, usage.after_bytes)
    return Point(_size(run, name), need_bytes, run.label)


def _has_point(run: CellRecord, device: Hashable) -> bool:
    """Return whether the highest use of a run is what it needed, not what it gave back."""
    usage = leaks.memories(run).get(device)
    if usage is None or not usage.needed_bytes:
        return False
    return -usage.consumed_bytes <= max(_GIVEN_BACK_BYTES, _GIVEN_BACK * usage.needed_bytes)


def _needs(
    records: Sequence[CellRecord], runs: Sequence[CellRecord], device: Hashable, now: Headroom | None
) -> tuple[dict[int, int], int]:
    """Return by `id` what each run needed of one memory above what other cells hold, and what those hold."""
    # A cell that runs again replaces what its earlier run left, so that does not count as held by others.
    # What is freed between cells was theirs first.
    wanted, found, seen = {id(run) for run in runs}, dict[int, int](), set[object]()
    kernel = others_bytes = left_bytes = 0

    def others(used_bytes: int) -> int:
        nonlocal others_bytes, left_bytes
        left_bytes -= min(max(0, left_bytes), max(0, others_bytes + left_bytes - used_bytes))
        others_bytes = used_bytes - left_bytes
        return others_bytes

    for number, record in leaks.with_kernel(records):
        if number != kernel:
            kernel, left_bytes, seen = number, 0, set()
        usage, cell = leaks.memories(record).get(device), cell_of(record)
        if usage is not None:
            held_bytes = others(usage.before_bytes)
            if id(record) in wanted:
                found[id(record)] = _highest_bytes(usage) - held_bytes
            if id(record) in wanted or cell in seen:
                left_bytes += usage.consumed_bytes
        seen |= {cell} - {None}
    return found, others_bytes if now is None else others(now.used_bytes)


def _highest_bytes(usage: Usage) -> int:
    """Return the upper bound of the highest use, or the lower one if it has no other."""
    peak = usage.peak
    return peak.lo_bytes if peak.hi_bytes is None else peak.hi_bytes
