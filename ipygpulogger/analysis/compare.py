"""Two runs of a notebook: which cells correspond, which of them went higher, and which fail now."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from ..records.cell_record import TEST, CellRecord, line_code, process_of
from ..records.units import MB
from ..records.usage import Peak, Usage

if TYPE_CHECKING:
    _Runs = dict[Hashable, CellRecord]
    _Usages = dict[str, Usage | None]  # by RAM or device; None without attributed use

RAM = "RAM"  # the name of general RAM among the names of devices
TOLERANCE = 0.05  # of the highest before
FLOOR_BYTES = MB  # less is a page fault, or one more block of an allocator
_REUSED_BYTES = 5 * MB  # of RAM, a test may use again of what malloc kept of earlier ones
_UNTOUCHED = Usage(0, 0, Peak(0, 0, "exact"))  # of a device that a cell did not use


@dataclass(frozen=True, slots=True)
class Change:
    """The highest use of one memory by a cell, in two runs."""

    name: str  # "RAM", or the device id: "cuda:0"
    before_bytes: int | None  # None when unknown, 0 for a device that was not used
    after_bytes: int | None
    inherited_bytes: int | None  # how much more was in use when the cell began, because of those before it
    at_least: bool  # one of the two is not exact
    regressed: bool  # it grew beyond the tolerance, and so did what the cell itself needed
    began_higher: bool = False  # it grew beyond the tolerance, but only because the cell began higher
    changed: bool = True  # by more than the tolerance, up or down, and not only where the cell began


@dataclass(frozen=True, slots=True)
class Pair:
    """The same cell in two runs, in the same process."""

    before: CellRecord
    after: CellRecord
    changes: tuple[Change, ...]  # RAM first, then the devices

    @property
    def regressed(self) -> bool:
        """Whether it went higher on any memory, by its own need."""
        return any(change.regressed for change in self.changes)

    @property
    def changed(self) -> bool:
        """Whether anything is worth a look."""
        return self.after.outcome() != self.before.outcome() or any(one.changed for one in self.changes)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs of a notebook, in the order of the second."""

    pairs: tuple[Pair, ...]
    new: tuple[CellRecord, ...]  # cells of the second run only
    removed: tuple[CellRecord, ...]  # of the first run only
    tolerance: float
    floor_bytes: int

    @property
    def regressed(self) -> tuple[Pair, ...]:
        """The cells that went higher beyond the tolerance, by their own need."""
        return tuple(pair for pair in self.pairs if pair.regressed)

    @property
    def failed(self) -> tuple[CellRecord, ...]:
        """The cells that fail in the second run and did not in the first, new ones among them."""
        now = (*(pair.after for pair in self.pairs if pair.before.status == "ok"), *self.new)
        return tuple(record for record in now if record.status != "ok")

    @property
    def unexplained(self) -> Pair | None:
        """The first cell that went higher because it began higher, where no cell of both runs has grown."""
        higher = (pair for pair in self.pairs if any(change.began_higher for change in pair.changes))
        return None if self.regressed else next(higher, None)


def compare(
    base: Iterable[CellRecord],
    new: Iterable[CellRecord],
    *,
    tolerance: float = TOLERANCE,
    floor_bytes: int = FLOOR_BYTES,
) -> Comparison:
    """Compare two runs of a notebook, cell by cell."""
    # Cells are matched by id, and otherwise by their first line, from the end. If a cell ran several times,
    # its last run counts, as in a saved notebook. A record of another process is compared with that of the
    # same rank or worker. Tasks are left out: a scheduler chooses where each runs. So are the cells that only
    # ran our own magics.
    #
    # A cell has grown when its highest use has, by more than the tolerated fraction of what that was, the
    # floor, and the granularity of both counters; and when that much is left without what was there before.
    # The increase is from the upper bound of the earlier to the lower of the later, so that it is certain.
    was, now = _last_runs(base), _last_runs(new)
    # By what makes the cell recognizable; a number does not.
    matches = {key: key for key in now if type(key) is not int and key in was}
    matches |= _by_source(_rest(was, matches), _rest(now, matches))
    pairs = []
    for key in filter(matches.__contains__, now):
        before, after = was[matches[key]], now[key]
        changes = tuple(_changes(_usages(before), _usages(after), tolerance, floor_bytes))
        pairs.append(Pair(before, after, changes))
    added, removed = _rest(now, matches), _rest(was, matches.values())
    return Comparison(tuple(pairs), tuple(added.values()), tuple(removed.values()), tolerance, floor_bytes)


def _last_runs(records: Iterable[CellRecord]) -> _Runs:
    """Return the last run of each cell, by its id or a number; in another process by a tuple."""
    found: _Runs = {}
    for number, record in enumerate(records):
        if record.gpulog_only:
            continue
        process = process_of(record)
        key: Hashable = number if record.cell_id is None else record.cell_id
        if process is not None:
            if process.task is not None:
                continue
            key = record.cell_id, record.source or record.label, process.named()
        found.pop(key, None)  # its place is that of its last run
        found[key] = record
    return found


def _rest(runs: _Runs, taken: Collection[Hashable]) -> _Runs:
    return {key: record for key, record in runs.items() if key not in taken}


def _by_source(was: _Runs, now: _Runs) -> dict[Hashable, Hashable]:
    """Return the kernel's cells with the same first line, matched from the end; a nested one is another."""
    own = [[(key, one) for key, one in runs.items() if not isinstance(key, tuple)] for runs in (was, now)]
    line = attrgetter("source") if all(one.source for runs in own for _, one in runs) else line_code
    earlier, found = dict[Hashable, list[Hashable]](), dict[Hashable, Hashable]()
    for key, record in own[0]:
        earlier.setdefault((line(record), record.execution_count is None), []).append(key)
    for key, record in reversed(own[1]):
        if keys := earlier.get((line(record), record.execution_count is None)):
            found[key] = keys.pop()
    return found


def _usages(record: CellRecord) -> _Usages:
    """Return RAM and each device by its id; of slices of one card, which share it, each for itself."""
    found: _Usages = {RAM: record.gen}
    for number, gpu in enumerate(record.gpus):
        part = sum(other.id == gpu.id for other in record.gpus[:number])
        found[f"{gpu.id}.{part}" if part else gpu.id] = gpu if gpu.attributed else None
    if is_test(record):  # others ran before it, perhaps not the same as in the other run
        return {name: usage and _above_zero(usage, name == RAM) for name, usage in found.items()}
    return found


def is_test(record: CellRecord) -> bool:
    """Return whether it is a test of pytest, of which not the highest is compared, but what it needed."""
    return (record.cell_id or "").startswith(TEST)


def _above_zero(usage: Usage, is_ram: bool) -> Usage:
    precision_bytes = max(usage.peak.precision_bytes, _REUSED_BYTES if is_ram else 0)
    peak = Peak.within(usage.needed_bytes, usage.needed_at_most_bytes, precision_bytes)
    return Usage(0, usage.consumed_bytes, peak)


def _changes(earlier: _Usages, later: _Usages, tolerance: float, floor_bytes: int) -> Iterator[Change]:
    for name in dict.fromkeys((*earlier, *later)):
        was, now = earlier.get(name, _UNTOUCHED), later.get(name, _UNTOUCHED)
        if was is None or now is None:
            before, after = (None if one is None else one.peak.lo_bytes for one in (was, now))
            yield Change(name, before, after, None, at_least=False, regressed=False, changed=before != after)
        else:
            yield _change(name, was, now, tolerance, floor_bytes)


def _change(name: str, was: Usage, now: Usage, tolerance: float, floor_bytes: int) -> Change:
    before, after = was.peak, now.peak
    before_bytes = before.lo_bytes if before.hi_bytes is None else before.hi_bytes
    grain_bytes = max(before.precision_bytes, after.precision_bytes)
    tolerated_bytes = max(tolerance * before_bytes, floor_bytes, grain_bytes)
    inherited_bytes = now.before_bytes - was.before_bytes
    grown_bytes, change_bytes = after.lo_bytes - before_bytes, after.lo_bytes - before.lo_bytes
    is_own = grown_bytes - max(0, inherited_bytes) > tolerated_bytes
    figures = before.lo_bytes, after.lo_bytes, inherited_bytes
    at_least = (before.quality, after.quality) != ("exact", "exact")
    began_higher = grown_bytes > tolerated_bytes and not is_own
    changed = min(abs(change_bytes), abs(change_bytes - inherited_bytes)) > tolerated_bytes
    return Change(name, *figures, at_least, is_own, began_higher, changed)
