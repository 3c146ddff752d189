"""Two runs of a notebook: which cells correspond, and whose peaks grew."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .last_runs import LastRuns
from .row import Row, record_of
from .units import MB
from .usage import Peak, Usage, consumed

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

    from .cell_record import CellRecord
    from .row import Origin

TOLERANCE = 0.05  # of the peak before
FLOOR_BYTES = MB  # less is a page fault, or one more block of an allocator
_WORST, _FIRST = 100, 20  # cells that grew, and new or removed ones, that are listed of very many
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
        process: Which process had the second peak, where it is the highest of several.
    """

    name: str
    before_bytes: int | None
    after_bytes: int | None
    inherited_bytes: int | None
    at_least: bool
    regressed: bool
    process: str = ""


@dataclass(frozen=True, slots=True)
class Pair:
    """The same cell in two runs, in the same process.

    Attributes:
        before: Its record in the first run.
        after: Its record in the second run.
        changes: The change of each peak, RAM first, then the devices.
        alike: How many cells of one run share the first line, if only that line matched the two records:
            with more than one they may be different cells. 1 if the id or the line is unambiguous.
        processes: How many processes ran the cell in each run, where they are not the same ones; each peak is
            then the highest of them. None for one process.
    """

    before: CellRecord
    after: CellRecord
    changes: tuple[Change, ...]
    alike: int
    processes: tuple[int, int] | None = None

    @property
    def regressed(self) -> bool:
        """Whether any of its peaks grew beyond the tolerance."""
        return any(change.regressed for change in self.changes)


@dataclass(frozen=True, slots=True)
class Counts:
    """How many cells two runs have, where a comparison does not list all of them.

    Attributes:
        pairs: The cells of both runs.
        regressed: Those of them with a peak that grew beyond the tolerance.
        unsure: Those of these that may be another cell than it was.
        new: The cells of the second run only.
        removed: The cells of the first run only.
    """

    pairs: int
    regressed: int
    unsure: int
    new: int
    removed: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs of a notebook, in the order of the second.

    Attributes:
        pairs: The cells of both runs.
        new: The cells of the second run only.
        removed: The cells of the first run only.
        tolerance: By which fraction of itself a peak may grow.
        floor_bytes: By how much any peak may grow.
        counts: How many of each there are, if these are not all of them: of very many cells only those that
            grew most are listed, and the first new and removed ones.
    """

    pairs: tuple[Pair, ...]
    new: tuple[CellRecord, ...]
    removed: tuple[CellRecord, ...]
    tolerance: float
    floor_bytes: int
    counts: Counts | None = None

    @property
    def regressed(self) -> tuple[Pair, ...]:
        """The cells with a peak that grew beyond the tolerance."""
        return tuple(pair for pair in self.pairs if pair.regressed)


def compare(
    base: Iterable[CellRecord],
    new: Iterable[CellRecord],
    *,
    tolerance: float = TOLERANCE,
    floor_bytes: int = FLOOR_BYTES,
) -> Comparison:
    """Compare two runs of a notebook, cell by cell.

    Cells are matched by id, and otherwise by their first line. If a cell ran several times, its last run
    counts, as in a saved notebook. Records without an id and with equal lines may be of one cell or of
    several. They are matched from the end, the last with the last, and `Pair.alike` says how many there were.

    A record of another process is compared with that of the same rank or worker. Where a cell ran in other
    processes than before, and for tasks, the highest peaks of all its processes are compared.

    A peak has grown when the increase exceeds the tolerated fraction of the earlier peak, the floor, and the
    granularity of both counters. The increase is measured from the upper bound of the earlier peak to the
    lower bound of the later one, so that it is certain.

    Args:
        base: The first run.
        new: The second run.
        tolerance: By which fraction of itself a peak may grow.
        floor_bytes: By how much any peak may grow.
    """
    names: dict[str, int] = {}
    was, now = LastRuns(names), LastRuns(names)
    for runs, records in ((was, base), (now, new)):
        for record in records:
            runs.add(Row.of(record))
    return Compared(was, now, tolerance, floor_bytes).comparison(record_of, record_of)


class Compared:
    """Two runs of a notebook, which `compare` describes, from the last runs of their cells.

    Args:
        was: The first run.
        now: The second run.
        tolerance: By which fraction of itself a peak may grow.
        floor_bytes: By how much any peak may grow.
    """

    def __init__(self, was: LastRuns, now: LastRuns, tolerance: float, floor_bytes: int) -> None:
        self._was, self._now = was, now
        self._tolerance, self._floor_bytes = tolerance, floor_bytes
        self._before = (
            array("q", [-1]) * now.runs
        )  # of each later run, the earlier one that it is matched with
        self._taken = bytearray(was.runs)
        self._told = bytearray(now.runs)  # later runs for which another of the same cell stands
        self._alike: dict[int, int] = {}  # where it is more than 1
        self._many: dict[int, tuple[list[int], list[int]]] = {}  # where several processes are compared as one
        self._match_processes()
        self._match_ids()
        self._match_sources()

    def comparison(
        self,
        before: Callable[[Origin], CellRecord],
        after: Callable[[Origin], CellRecord],
        *,
        at_most: int | None = None,
    ) -> Comparison:
        """Return the comparison.

        Args:
            before: Returns a record of the first run by its origin.
            after: The same of the second run.
            at_most: How many cells are listed; of more only the worst. None for all.
        """
        was, now = self._was, self._now
        paired = [number for number in now if self._before[number] >= 0]
        new = [number for number in now if self._before[number] < 0 and not self._told[number]]
        removed = [number for number in was if not self._taken[number]]
        counts = None
        if at_most is not None and len(paired) + len(new) + len(removed) > at_most:
            grown = {number: grown_bytes for number in paired if (grown_bytes := self._grown_bytes(number))}
            unsure = sum(number in self._alike for number in grown)
            counts = Counts(len(paired), len(grown), unsure, len(new), len(removed))
            listed = set(sorted(grown, key=grown.__getitem__, reverse=True)[:_WORST])
            paired = [number for number in paired if number in listed]
            new, removed = new[:_FIRST], removed[:_FIRST]
        return Comparison(
            tuple(
                Pair(
                    before(was.origin(self._before[number])),
                    after(now.origin(number)),
                    tuple(self._changes(number)),
                    self._alike.get(number, 1),
                    self._processes(number),
                )
                for number in paired
            ),
            tuple(after(now.origin(number)) for number in new),
            tuple(before(was.origin(number)) for number in removed),
            self._tolerance,
            self._floor_bytes,
            counts,
        )

    def _match(self, before: int, after: int) -> None:
        self._before[after] = before
        self._taken[before] = True

    def _processes(self, number: int) -> tuple[int, int] | None:
        if number not in self._many:
            return None
        before, after = self._many[number]
        return len(before), len(after)

    def _match_processes(self) -> None:
        """Match the cells that ran in other processes: each process, or where these differ, all together."""
        was, now = self._was.elsewhere(), self._now.elsewhere()
        for cell, after in now.items():
            before = was.get(cell)
            if before is None:
                continue
            if before.keys() == after.keys():
                for who, number in after.items():
                    self._match(before[who], number)
                continue
            for number in before.values():
                self._taken[number] = True
            for number in after.values():
                self._told[number] = True
            first = max(after.values(), key=self._now.highest_bytes)
            self._match(max(before.values(), key=self._was.highest_bytes), first)
            self._many[first] = list(before.values()), list(after.values())

    def _match_ids(self) -> None:
        for name, after in self._now.with_ids():
            before = self._was.by_id(name)
            if before is not None:
                self._match(before, after)

    def _match_sources(self) -> None:
        """Match the rest by their first lines, from the end."""
        was = _Chains(
            self._was, (n for n in self._was if not self._taken[n] and not self._was.is_elsewhere(n))
        )
        now = _Chains(
            self._now, (n for n in self._now if self._before[n] < 0 and not self._now.is_elsewhere(n))
        )
        for source in now.last:
            before, after = was.numbers(source), now.numbers(source)
            alike = max(len(before), len(after))
            for one, other in zip(before, after, strict=False):
                self._match(one, other)
                if alike > 1:
                    self._alike[other] = alike

    def _grown_bytes(self, number: int) -> int:
        """Return by how much the peak of a cell grew that grew most beyond the tolerance; 0 if none did."""
        if number not in self._many and not self._now.rose(
            number, self._was, self._before[number], self._floor_bytes
        ):
            return 0
        grown = (
            consumed(change.before_bytes, change.after_bytes)
            for change in self._changes(number)
            if change.regressed and change.before_bytes is not None and change.after_bytes is not None
        )
        return max(grown, default=0)

    def _changes(self, number: int) -> Iterator[Change]:
        if number in self._many:
            yield from self._changes_of_many(*self._many[number])
            return
        was, now = self._was.usages(self._before[number]), self._now.usages(number)
        for name in dict.fromkeys((*was, *now)):
            usages = was.get(name, _UNTOUCHED), now.get(name, _UNTOUCHED)
            yield _change(name, *usages, self._tolerance, self._floor_bytes)

    def _changes_of_many(self, before: Iterable[int], after: Iterable[int]) -> Iterator[Change]:
        """Yield the changes of the highest peaks of several processes."""
        was, now = self._was.highest(before), self._now.highest(after)
        nowhere: tuple[Usage | None, int | None] = _UNTOUCHED, None
        for name in dict.fromkeys((*was, *now)):
            (earlier, _), (later, number) = was.get(name, nowhere), now.get(name, nowhere)
            change = _change(name, earlier, later, self._tolerance, self._floor_bytes)
            yield change if number is None else replace(change, process=self._now.process(number))


class _Chains:
    """Runs by the first lines of their cells, of each line from its last run to its first."""

    def __init__(self, runs: LastRuns, numbers: Iterable[int]) -> None:
        self.last: dict[Hashable, int] = {}
        self._earlier = array("q", [-1]) * runs.runs
        for number in numbers:
            source, nested = runs.source(number)  # a nested cell is not the outer one
            key = (source, nested) if nested else source
            self._earlier[number] = self.last.get(key, -1)
            self.last[key] = number

    def numbers(self, source: Hashable) -> list[int]:
        found, number = [], self.last.get(source, -1)
        while number >= 0:
            found.append(number)
            number = self._earlier[number]
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
