"""Two runs of a notebook: which cells are the same, which got worse."""

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
FLOOR_BYTES = MB  # a page fault or an allocator's block more is no news
_UNTOUCHED = Usage(0, 0, Peak(0, 0, "exact"))  # a device that a cell has nothing on


@dataclass(frozen=True, slots=True)
class Change:
    """One peak of a cell, in two runs.

    Attributes:
        name: "RAM", or the device as records name it: "cuda:0".
        before_bytes: In the first run; None where nobody tells. 0 for a device that was not touched.
        after_bytes: In the second, likewise.
        inherited_bytes: By how much more (or less) was in use when the cell began: what cells before it
            left behind, and no doing of its own. None where a peak is.
        at_least: Whether one of the two peaks was not exact.
        regressed: Whether it grew beyond what is tolerated.
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
        before: In the first.
        after: In the second.
        changes: RAM first, then the devices.
        alike: How many cells of one run have the first line by which alone it was found again, itself
            included: with more than one it may be another cell. 1 where its id or its line tells.
    """

    before: CellRecord
    after: CellRecord
    changes: tuple[Change, ...]
    alike: int

    @property
    def regressed(self) -> bool:
        """Whether any of its peaks grew beyond what is tolerated."""
        return any(change.regressed for change in self.changes)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs of a notebook, in the order of the second.

    Attributes:
        pairs: The cells that both have.
        new: Those that only the second has.
        removed: Those that only the first has.
        tolerance: The part of a peak by which it may grow.
        floor_bytes: What it may always grow by.
    """

    pairs: tuple[Pair, ...]
    new: tuple[CellRecord, ...]
    removed: tuple[CellRecord, ...]
    tolerance: float
    floor_bytes: int

    @property
    def regressed(self) -> tuple[Pair, ...]:
        """The cells that got worse."""
        return tuple(pair for pair in self.pairs if pair.regressed)


def compare(
    base: Sequence[CellRecord],
    new: Sequence[CellRecord],
    *,
    tolerance: float = TOLERANCE,
    floor_bytes: int = FLOOR_BYTES,
) -> Comparison:
    """Compare two runs of a notebook, cell by cell.

    A cell is found again by its id, else by its first line. Of a cell that ran several times the last
    run counts, as in a saved notebook. So of equal lines without an id, which may be one cell or several,
    the last is taken for the last, the one before it for the one before it; `Pair.alike` says that
    there were several.

    A peak has grown when it lies higher than before by more than the tolerated part of what it was, by
    more than the floor, and by more than the grain of either counter. A peak that is known within
    bounds counts with the bound that says least: nothing has grown that may have been there before.

    Args:
        base: The first run.
        new: The second.
        tolerance: The part of a peak by which it may grow.
        floor_bytes: What it may always grow by.
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
    """Each cell once, as it ran last; cells without an id cannot be told to be the same."""
    kept: dict[Hashable, CellRecord] = {}
    for number, record in enumerate(records):
        identity = number if record.cell_id is None else record.cell_id
        kept.pop(identity, None)  # it stands where it ran last
        kept[identity] = record
    return list(kept.values())


def _matched(base: list[CellRecord], new: list[CellRecord]) -> dict[int, tuple[CellRecord, int]]:
    """By the place of a cell in the second run: the same in the first, and how many it may have been."""
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
    return record.source, record.execution_count is None  # a nested cell is not its outer one


def _changes(before: CellRecord, after: CellRecord, tolerance: float, floor_bytes: int) -> Iterator[Change]:
    was, now = _usages(before), _usages(after)
    for name in dict.fromkeys((*was, *now)):
        yield _change(name, was.get(name, _UNTOUCHED), now.get(name, _UNTOUCHED), tolerance, floor_bytes)


def _usages(record: CellRecord) -> dict[str, Usage | None]:
    """By name; None where nobody tells which process uses a device."""
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
