"""Two runs of a notebook: which cells correspond, and whose peaks grew."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .units import MB
from .usage import Peak, Usage

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Sequence

    from .cell_record import CellRecord

TOLERANCE = 0.05  # of the peak before
FLOOR_BYTES = MB  # less is a page fault, or one more block of an allocator
_UNTOUCHED = Usage(0, 0, Peak(0, 0, "exact"))  # of a device that a cell did not use


@dataclass(frozen=True, slots=True)
class Change:
    """One peak of a cell, in two runs.

    Attributes:
        name: "RAM", or the device id: "cuda:0".
        before_bytes: The peak in the first run; None when unknown, 0 for a device that was not used.
        after_bytes: The peak in the second run, likewise.
        inherited_bytes: How much more (or less) was in use when the cell began, because of the cells before
            it. None when a peak is.
        at_least: Whether one of the two peaks is not exact.
        regressed: Whether the peak grew beyond the tolerance.
    """

    name: str
    before_bytes: int | None
    after_bytes: int | None
    inherited_bytes: int | None
    at_least: bool
    regressed: bool


@dataclass(frozen=True, slots=True)
class Pair:
    """The same cell in two runs.

    Attributes:
        before: Its record in the first run.
        after: Its record in the second run.
        changes: The change of each peak, RAM first, then the devices.
        alike: How many cells of one run share the first line, if only that line matched the two records:
            with more than one they may be different cells. 1 if the id or the line is unambiguous.
    """

    before: CellRecord
    after: CellRecord
    changes: tuple[Change, ...]
    alike: int

    @property
    def regressed(self) -> bool:
        """Whether any of its peaks grew beyond the tolerance."""
        return any(change.regressed for change in self.changes)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs of a notebook, in the order of the second.

    Attributes:
        pairs: The cells of both runs.
        new: The cells of the second run only.
        removed: The cells of the first run only.
        tolerance: By which fraction of itself a peak may grow.
        floor_bytes: By how much any peak may grow.
    """

    pairs: tuple[Pair, ...]
    new: tuple[CellRecord, ...]
    removed: tuple[CellRecord, ...]
    tolerance: float
    floor_bytes: int

    @property
    def regressed(self) -> tuple[Pair, ...]:
        """The cells with a peak that grew beyond the tolerance."""
        return tuple(pair for pair in self.pairs if pair.regressed)


def compare(
    base: Sequence[CellRecord],
    new: Sequence[CellRecord],
    *,
    tolerance: float = TOLERANCE,
    floor_bytes: int = FLOOR_BYTES,
) -> Comparison:
    """Compare two runs of a notebook, cell by cell.

    Cells are matched by id, and otherwise by their first line. If a cell ran several times, its last run
    counts, as in a saved notebook. Records without an id and with equal lines may be of one cell or of
    several. They are matched from the end, the last with the last, and `Pair.alike` says how many there were.

    A peak has grown when the increase exceeds the tolerated fraction of the earlier peak, the floor, and the
    granularity of both counters. The increase is measured from the upper bound of the earlier peak to the
    lower bound of the later one, so that it is certain.

    Args:
        base: The first run.
        new: The second run.
        tolerance: By which fraction of itself a peak may grow.
        floor_bytes: By how much any peak may grow.
    """
    was, now = _last_runs(base), _last_runs(new)
    found = _matched(was, now)
    pairs = tuple(
        Pair(found[i][0], after, tuple(_changes(found[i][0], after, tolerance, floor_bytes)), found[i][1])
        for i, after in enumerate(now)
        if i in found
    )
    taken = {id(pair.before) for pair in pairs}
    return Comparison(
        pairs,
        tuple(after for i, after in enumerate(now) if i not in found),
        tuple(before for before in was if id(before) not in taken),
        tolerance,
        floor_bytes,
    )


def _last_runs(records: Iterable[CellRecord]) -> list[CellRecord]:
    """Return the last run of each cell; records without an id count as different cells."""
    kept: dict[Hashable, CellRecord] = {}
    for number, record in enumerate(records):
        identity = number if record.cell_id is None else record.cell_id
        kept.pop(identity, None)  # its place is that of its last run
        kept[identity] = record
    return list(kept.values())


def _matched(base: list[CellRecord], new: list[CellRecord]) -> dict[int, tuple[CellRecord, int]]:
    """Return, by place in the second run, the record in the first, and how many cells it may be of."""
    found: dict[int, tuple[CellRecord, int]] = {}
    for key in (_by_id, _by_source):
        taken = {id(record) for record, _ in found.values()}
        before, after = defaultdict(list), defaultdict(list)
        for record in base:
            if id(record) not in taken:
                before[key(record)].append(record)
        for i, record in enumerate(new):
            if i not in found and key(record) is not None:
                after[key(record)].append(i)
        for name, places in after.items():
            alike = max(len(before[name]), len(places))
            for i, record in zip(reversed(places), reversed(before[name]), strict=False):
                found[i] = record, alike
    return found


def _by_id(record: CellRecord) -> Hashable:
    return record.cell_id


def _by_source(record: CellRecord) -> Hashable:
    return record.source, record.execution_count is None  # a nested cell is not the outer one


def _changes(before: CellRecord, after: CellRecord, tolerance: float, floor_bytes: int) -> Iterator[Change]:
    was, now = _usages(before), _usages(after)
    for name in dict.fromkeys((*was, *now)):
        yield _change(name, was.get(name, _UNTOUCHED), now.get(name, _UNTOUCHED), tolerance, floor_bytes)


def _usages(record: CellRecord) -> dict[str, Usage | None]:
    """Return the usages by name; None for a device without attributed use."""
    found: dict[str, Usage | None] = {"RAM": record.gen}
    parts = Counter[str]()  # slices of one card share its index
    for gpu in record.gpus:
        parts[gpu.id] += 1
        found[gpu.id if parts[gpu.id] == 1 else f"{gpu.id}.{parts[gpu.id] - 1}"] = (
            gpu if gpu.attributed else None
        )
    return found


def _change(name: str, was: Usage | None, now: Usage | None, tolerance: float, floor_bytes: int) -> Change:
    if was is None or now is None:
        was_bytes, now_bytes = (None if usage is None else usage.peak.lo_bytes for usage in (was, now))
        return Change(name, was_bytes, now_bytes, inherited_bytes=None, at_least=False, regressed=False)
    before, after = was.peak, now.peak
    before_bytes = before.lo_bytes if before.hi_bytes is None else before.hi_bytes
    tolerated_bytes = max(
        tolerance * before_bytes, floor_bytes, before.precision_bytes, after.precision_bytes
    )
    return Change(
        name,
        before.lo_bytes,
        after.lo_bytes,
        inherited_bytes=now.before_bytes - was.before_bytes,
        at_least=(before.quality, after.quality) != ("exact", "exact"),
        regressed=after.lo_bytes - before_bytes > tolerated_bytes,
    )
