"""How the memory that a cell needs grows with the size of its data, and at which size the room ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from . import leaks
from .cell_record import process_of
from .line_through import (
    LineThrough,
    Point,
    bend,
    bent_reaches,
    secant,
    sizes_of,
    sure_size,
    unproven_first,
    without_warm_up,
)
from .need import highest_bytes, needs
from .runs import cell_of, runs_of
from .units import MB
from .usage import needed
from .value import Value
from .varied import apart_and_in_step, varied, with_numbers

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from .cell_record import CellRecord

_NOTHING = (
    "no cell so far needed more than 2 MB and named its data, such as an array, a loader or a batch_size,"
    " or ran again with another number in its first line; what is inside functions is not seen"
)
RAM = "RAM"  # the key of general RAM in `leaks.memories`
_RISES_BYTES = {RAM: 8 * MB}  # between the lowest and the highest point, to be told
_RISES_ELSEWHERE_BYTES = 2 * MB
_FAR = 10
_GIVEN_BACK_BYTES, _GIVEN_BACK = 2 * MB, 0.03  # of what was there before a run, or of what the run needed


class Room(NamedTuple):
    """What is left of one memory now.

    Attributes:
        used_bytes: What this process uses of it.
        left_bytes: What it could still allocate; None when unknown.
    """

    used_bytes: int
    left_bytes: int | None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MemoryFit(Value):
    """How the need of one memory grows with the size.

    Attributes:
        device: "RAM", or the device's id.
        points: What each run needed, in their order, above what is held by cells that ran only once.
        line: The nearest line.
        off_bytes: How far the farthest point lies from it.
        is_straight: Whether all points lie on it, as far as allocators round.
        bends: If not: 1 if the need rises faster and faster, -1 slower and slower, 0 neither.
        hidden: The runs that have no point because they began with larger data than they needed.
        left_out: The first run, if it needed more than the line of the others says; None if it fits.
        unproven: The first run, if too few others tell whether it is unlike them; or None.
        at_least: Whether some peak is only a lower bound.
        room_bytes: The most that the cell can need now; None when unknown.
        ends_at: The largest size for which there is room; None when that is unknown. Where the need rises
            faster with the largest sizes, or the points are not straight, it is that of the line through the
            two largest sizes.
        sure_to: The largest size for which there is room even if the need is above the line, as far as the
            runs leave that open, see `line_through.sure_size`; None where that is unknown.
    """

    device: str
    points: tuple[Point, ...]
    line: LineThrough
    off_bytes: int
    is_straight: bool
    bends: int
    hidden: tuple[str, ...]
    left_out: Point | None
    unproven: Point | None
    at_least: bool
    room_bytes: int | None
    ends_at: int | None
    sure_to: int | None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CellFit(Value):
    """How the memory that a cell needs grows with the size of its data.

    Attributes:
        runs: The runs of the cell that succeeded, in their order.
        name: What varied: the name of an array or a batch size, or of a number in the first line; empty if
            nothing did.
        with_it: Other names that varied as well, so that part of the growth may be theirs.
        in_step: Other names that rose wherever `name` did: which one the need grows with cannot be told.
        memories: RAM and each device where the need rose with the size, in the order in which the rooms end.
            Left out is one where that is at more than ten times the size of the first.
        failed: Runs that failed or were interrupted, by the size that they had.
        missing: What is missing for a line, in one sentence; empty if nothing is.
    """

    runs: tuple[CellRecord, ...]
    name: str = ""
    with_it: tuple[str, ...] = ()
    in_step: tuple[str, ...] = ()
    memories: tuple[MemoryFit, ...] = ()
    failed: tuple[tuple[int, CellRecord], ...] = ()
    missing: str = ""


def fit_of(
    records: Iterable[CellRecord], rooms: Mapping[Hashable, Room], count: int | None = None
) -> CellFit:
    """Return how the memory of a cell grows with the size of its data.

    Args:
        records: All cells, in their order.
        rooms: What is left now, by memory as `leaks.memories` names it.
        count: The execution count of one of the cell's runs; None for the last cell that ran with several
            sizes, or else the last that needed memory.

    Raises:
        ValueError: There is no such cell.
    """
    known = [record for record in records if process_of(record) is None]
    found = _fit(known, rooms, count)
    if found.name:
        return found
    by_numbers = [with_numbers(one) if _needed_some(one) else one for one in known]
    otherwise = _fit(by_numbers, rooms, count)
    return otherwise if otherwise.memories else found


def _fit(known: Sequence[CellRecord], rooms: Mapping[Hashable, Room], count: int | None) -> CellFit:
    """Return the same, by the dimensions that these records have."""
    runs = runs_of(known, count)
    if not runs:
        return CellFit((), missing=_NOTHING)
    whole = tuple(run for run in runs if run.status == "ok")
    name = varied(whole)
    if not name:
        return CellFit(whole, missing=_missing(runs, whole))
    whole = tuple(run for run in whole if dict(run.dimensions).get(name, 0) > 0)
    found = (_of_memory(known, whole, name, device, rooms) for device in leaks.memories(whole[-1]))
    failed = tuple(
        (dict(run.dimensions)[name], run)
        for run in runs
        if run.status != "ok" and name in dict(run.dimensions)
    )
    rising = _tightest_first(one for one in found if one is not None)
    missing = "" if rising else _missing_growth(whole, name)
    with_it, in_step = apart_and_in_step(whole, name)
    return CellFit(whole, name, with_it, in_step, rising, failed, missing)


# -- what is missing ---------------------------------------------------------------------------------


def _missing(runs: Sequence[CellRecord], whole: Sequence[CellRecord]) -> str:
    """Return what is missing where no size varied."""
    sized = [run for run in whole if run.dimensions]
    last = sized[-1] if sized else runs[-1]
    if not whole:
        return f"{last.label} has not succeeded yet"
    if not sized:
        return (
            f"{last.label} needed less than 2 MB, or its code names no array, loader or batch size;"
            " what is inside functions is not seen"
        )
    name, size = sized[-1].dimensions[0]
    return f"{last.label} ran with {name} of {size} only: run it again with another size"


def _missing_growth(runs: Sequence[CellRecord], name: str) -> str:
    """Return why there is no line although the size varied."""
    vague = [run for run in runs if any(_is_hidden(run, device) for device in _grown_in(runs))]
    if not vague:
        return f"no memory was seen to grow with {name}"
    return (
        f"{vague[-1].label} began with larger data in memory than it needs, which hides what it needed:"
        " run it again"
    )


def _needed_some(run: CellRecord) -> bool:
    """Return whether a run needed so much of some memory that dimensions are recorded."""
    return any(usage.needed_bytes >= _RISES_ELSEWHERE_BYTES for usage in leaks.memories(run).values())


def _grown_in(runs: Sequence[CellRecord]) -> set[Hashable]:
    """Return the memories of which some run needed more than a little."""
    return {
        device
        for run in runs
        for device, usage in leaks.memories(run).items()
        if usage.needed_bytes >= _RISES_BYTES.get(str(device), _RISES_ELSEWHERE_BYTES)
    }


# -- the line ----------------------------------------------------------------------------------------


def _of_memory(
    records: Sequence[CellRecord],
    runs: Sequence[CellRecord],
    name: str,
    device: Hashable,
    rooms: Mapping[Hashable, Room],
) -> MemoryFit | None:
    """Return how the need of one memory grows; None if it does not, or is not known of two sizes."""
    measured = [run for run in runs if _tells(run, device)]
    room = rooms.get(device)
    points, room_bytes = _points(records, measured, name, device, room)
    if len(sizes_of(points)) < 2:
        return None
    kept = without_warm_up(points)
    line = LineThrough.of(kept)
    lowest, highest = sizes_of(kept)[0], sizes_of(kept)[-1]
    if line.at(highest) - line.at(lowest) < _RISES_BYTES.get(str(device), _RISES_ELSEWHERE_BYTES):
        return None
    is_straight, bends = line.meets(kept), bend(kept)
    ends_at = sure_to = None
    if room_bytes is not None:
        ends_at = _ends_at(line, kept, room_bytes)
        if ends_at is not None and is_straight:
            sure_to = min(ends_at, sure_size(line, kept, room_bytes))
    return MemoryFit(
        _name_of(measured[-1], device),
        tuple(points),
        line,
        line.off_bytes(kept),
        is_straight,
        0 if is_straight else bends,
        tuple(run.label for run in runs if _is_hidden(run, device)),
        None if kept is points else points[0],
        unproven_first(kept) if kept is points else None,
        any(leaks.memories(run)[device].peak.hi_bytes is None for run in measured),
        room_bytes,
        ends_at,
        sure_to,
    )


def _ends_at(line: LineThrough, points: Sequence[Point], room_bytes: int) -> int | None:
    """Return the largest size for which there is room; None where the points do not show it."""
    bends = bend(points)
    if line.meets(points):
        # Where the need rises faster and faster, however little, the largest sizes say how it goes on.
        return (secant(points) if bends > 0 else line).reaches(room_bytes)
    return bent_reaches(points, room_bytes) if bends else None


def _tells(run: CellRecord, device: Hashable) -> bool:
    """Return whether a run's peak tells what it needed."""
    usage = leaks.memories(run).get(device)
    return usage is not None and usage.needed_bytes > 0 and not _is_hidden(run, device)


def _is_hidden(run: CellRecord, device: Hashable) -> bool:
    """Return whether a run gave back what was there before it, such as the larger data of the run before.

    That may be part of its peak, or all of it.
    """
    usage = leaks.memories(run).get(device)
    if usage is None:
        return False
    return -usage.consumed_bytes > max(_GIVEN_BACK_BYTES, _GIVEN_BACK * usage.needed_bytes)


def _tightest_first(found: Iterable[MemoryFit]) -> tuple[MemoryFit, ...]:
    """Return those where the room ends first, without those where it ends far beyond."""
    ends = [(float("inf") if one.ends_at is None else one.ends_at, one.device, one) for one in found]
    return tuple(
        one
        for end, _, one in sorted(ends, key=lambda item: item[:2])
        if end <= _FAR * min(ends, key=lambda item: item[:2])[0]
    )


def _points(
    records: Sequence[CellRecord],
    runs: Sequence[CellRecord],
    name: str,
    device: Hashable,
    room: Room | None,
) -> tuple[list[Point], int | None]:
    """Return what each run needed, and what the cell may need now.

    That is what it needed above what others hold. Where only what it needed above what was in use before it
    lies on a line, it keeps what it makes, and the line is that one.
    """
    by_run: dict[int, int] = {}
    others_bytes = 0
    for kernel in _kernels(records):
        is_last = kernel[-1] is records[-1]
        used_bytes = room.used_bytes if room is not None and is_last else None
        found, others_bytes = needs(kernel, runs, device, cell_of, used_bytes)
        by_run |= found
    above_others = [_point(run, name, by_run[id(run)]) for run in runs]
    left_bytes = None if room is None else room.left_bytes
    if len(sizes_of(above_others)) > 2 and not _is_straight(above_others):
        usages = [leaks.memories(run)[device] for run in runs]
        alone = [
            _point(run, name, needed(highest_bytes(usage), usage.before_bytes, usage.after_bytes))
            for run, usage in zip(runs, usages, strict=True)
        ]
        if _is_straight(alone):
            return alone, left_bytes
    if room is None or left_bytes is None:
        return above_others, None
    return above_others, max(0, left_bytes + room.used_bytes - others_bytes)


def _is_straight(points: Sequence[Point]) -> bool:
    kept = without_warm_up(points)
    return LineThrough.of(kept).meets(kept)


def _point(run: CellRecord, name: str, need_bytes: int) -> Point:
    return Point(dict(run.dimensions)[name], need_bytes, run.label)


def _kernels(records: Sequence[CellRecord]) -> list[list[CellRecord]]:
    """Return the records of each kernel."""
    found: dict[int, list[CellRecord]] = {}
    for kernel, record in leaks.with_kernel(records):
        found.setdefault(kernel, []).append(record)
    return list(found.values())


def _name_of(record: CellRecord, device: Hashable) -> str:
    return next((gpu.id for gpu in record.gpus if gpu.key == device), RAM)
