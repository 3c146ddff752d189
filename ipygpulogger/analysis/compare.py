"""Two runs of a notebook: which cells correspond, and whose peaks grew."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from ..records.cell_record import process_of
from ..records.units import MB
from ..records.usage import Peak, Usage, consumed
from . import leaks

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator

    from ..records.cell_record import CellRecord

RAM = "RAM"  # the name of general RAM among the names of devices
TOLERANCE = 0.05  # of the peak before
FLOOR_BYTES = MB  # less is a page fault, or one more block of an allocator
_ALL, _WORST = 1000, 100  # cells that a report lists; of more than that
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

    @property
    def listed(self) -> tuple[Pair, ...]:
        """The cells that a report lists, which of very many are those that grew most."""
        if len(self.pairs) <= _ALL:
            return self.pairs
        worst = {id(pair) for pair in sorted(self.regressed, key=_grown_bytes)[-_WORST:]}
        return tuple(pair for pair in self.pairs if id(pair) in worst)


def _grown_bytes(pair: Pair) -> int:
    """Return by how much the peak of a cell grew that grew most beyond the tolerance."""
    return max(
        consumed(change.before_bytes, change.after_bytes)
        for change in pair.changes
        if change.regressed and change.before_bytes is not None and change.after_bytes is not None
    )


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
    was, now = _last_runs(base), _last_runs(new)
    matches = [
        *_by_process(was, now),
        *(_Match([key], [key]) for key in now if type(key) is str and key in was),
    ]
    matches += _by_source(
        _rest(was, (key for match in matches for key in match.before)),
        _rest(now, (key for match in matches for key in match.after)),
    )
    pairs: dict[Hashable, Pair] = {}
    for match in matches:
        before = {key: was[key] for key in match.before}
        after = {key: now[key] for key in match.after}
        usages = _highest if match.together else _usages
        changes = _changes(usages(before.values()), usages(after.values()), tolerance, floor_bytes)
        key = max(after, key=lambda key: _highest_bytes(now[key]))
        pairs[key] = Pair(
            max(before.values(), key=_highest_bytes),
            now[key],
            tuple(changes),
            match.alike,
            (len(before), len(after)) if match.together else None,
        )
    return Comparison(
        tuple(pairs[key] for key in now if key in pairs),
        tuple(_rest(now, (key for match in matches for key in match.after)).values()),
        tuple(_rest(was, (key for match in matches for key in match.before)).values()),
        tolerance,
        floor_bytes,
    )


# -- which cells correspond ----------------------------------------------------------------------------


class _Elsewhere(NamedTuple):
    """What makes a run in another process recognizable: its cell, what ran there, and the rank or worker.

    A cell may start the same task many times, so of tasks all runs are kept, by their number.
    """

    cell: tuple[str | None, str, str | None]
    who: str | int


class _Match(NamedTuple):
    """Last runs of a cell in the first run and in the second, by their keys.

    Attributes:
        before: One key, or several of processes that are compared as one.
        after: Likewise.
        alike: As in `Pair`.
        together: Whether they are compared as one.
    """

    before: list[Hashable]
    after: list[Hashable]
    alike: int = 1
    together: bool = False


def _last_runs(records: Iterable[CellRecord]) -> dict[Hashable, CellRecord]:
    """Return the last run of each cell in each process, in their order, by its id or a number of its own."""
    found: dict[Hashable, CellRecord] = {}
    for number, record in enumerate(records):
        process = process_of(record)
        key: Hashable = number if record.cell_id is None else record.cell_id
        if process is not None:
            who: str | int
            if process.task is None:  # two runs of a task may have different labels
                name, who = record.source or record.label, process.named()
            else:
                name, who = record.source, number
            key = _Elsewhere((record.cell_id, name, process.task), who)
        found.pop(key, None)  # its place is that of its last run
        found[key] = record
    return found


def _rest(runs: dict[Hashable, CellRecord], taken: Iterable[Hashable]) -> dict[Hashable, CellRecord]:
    without = set(taken)
    return {key: record for key, record in runs.items() if key not in without}


def _by_process(was: Iterable[Hashable], now: Iterable[Hashable]) -> Iterator[_Match]:
    """Yield the cells that ran in other processes: each process, or where these differ, all together."""
    earlier, later = _in_processes(was), _in_processes(now)
    for cell, after in later.items():
        before = earlier.get(cell, {})
        if before.keys() == after.keys():
            yield from (_Match([before[who]], [after[who]]) for who in after)
        elif before:
            yield _Match(list(before.values()), list(after.values()), together=True)


def _in_processes(keys: Iterable[Hashable]) -> dict[Hashable, dict[Hashable, Hashable]]:
    """Return the keys of runs in other processes, by cell and task, then by process."""
    found: dict[Hashable, dict[Hashable, Hashable]] = {}
    for key in keys:
        if isinstance(key, _Elsewhere):
            found.setdefault(key.cell, {})[key.who] = key
    return found


def _by_source(was: dict[Hashable, CellRecord], now: dict[Hashable, CellRecord]) -> Iterator[_Match]:
    """Yield the cells with the same first line, matched from the end."""
    earlier, later = _with_source(was), _with_source(now)
    for source, after in later.items():
        before = earlier.get(source, [])
        alike = max(len(before), len(after))
        for one, other in zip(reversed(before), reversed(after), strict=False):
            yield _Match([one], [other], alike)


def _with_source(runs: dict[Hashable, CellRecord]) -> dict[Hashable, list[Hashable]]:
    """Return the keys of the kernel's runs by first line; a nested cell is not the outer one."""
    found: dict[Hashable, list[Hashable]] = {}
    for key, record in runs.items():
        if not isinstance(key, _Elsewhere):
            found.setdefault((record.source, record.execution_count is None), []).append(key)
    return found


# -- what changed --------------------------------------------------------------------------------------

_Usages = dict[str, tuple[Usage | None, str]]  # by RAM or device; None without attributed use; whose it is


def _usages(records: Iterable[CellRecord]) -> _Usages:
    """Return the usages of the one record by name; slices of one card share its index."""
    (record,) = records
    found: _Usages = {RAM: (record.gen, "")}
    parts = Counter[str]()
    for gpu in record.gpus:
        name = gpu.id if not parts[gpu.id] else f"{gpu.id}.{parts[gpu.id]}"
        parts[gpu.id] += 1
        found[name] = gpu if gpu.attributed else None, ""
    return found


def _highest(records: Iterable[CellRecord]) -> _Usages:
    """Return, of several records, the highest peak of RAM and of any device, each with its process.

    Different processes may know a device by different ids, so all devices are one here: "GPU".
    """
    found: _Usages = {}
    for record in records:
        process = process_of(record)
        for device, (usage, _) in _usages([record]).items():
            name = RAM if device == RAM else "GPU"
            known = found[name][0] if name in found else None
            if name not in found or (
                usage is not None and (known is None or usage.peak.lo_bytes > known.peak.lo_bytes)
            ):
                found[name] = usage, process.named() if process and usage else ""
    return found


def _highest_bytes(record: CellRecord) -> int:
    """Return the highest peak of a record, on whichever device."""
    return max(usage.peak.lo_bytes for usage in leaks.memories(record).values())


def _changes(was: _Usages, now: _Usages, tolerance: float, floor_bytes: int) -> Iterator[Change]:
    for name in dict.fromkeys((*was, *now)):
        (before, _), (after, process) = was.get(name, (_UNTOUCHED, "")), now.get(name, (_UNTOUCHED, ""))
        yield replace(_change(name, before, after, tolerance, floor_bytes), process=process)


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
