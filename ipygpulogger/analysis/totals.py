"""A run as a whole: its totals, and what a page shows of very many cells."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..records.cell_record import process_of
from .ranking import by_need, raising

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    from ..records.cell_record import CellRecord
    from ..records.usage import Usage

    Key = tuple[str, int, str | None]  # `DeviceUsage.key`, and `RAM`

RAM: Key = ("RAM", -1, None)
ELSEWHERE: tuple[Key, Key] = (("RAM", -1, "processes"), ("GPU", -1, "processes"))  # of all other processes
MOST = 500  # cells that a page shows in full


def memories(record: CellRecord) -> Iterator[tuple[Key, Usage]]:
    """Yield RAM and every device of a record by key; those of all other processes share a key."""
    is_elsewhere = process_of(record) is not None
    yield ELSEWHERE[0] if is_elsewhere else RAM, record.gen
    for gpu in record.gpus:
        yield ELSEWHERE[1] if is_elsewhere else gpu.key, gpu


@dataclass(frozen=True, slots=True)
class CellTotals:
    """Some cells together."""

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
    """One memory over a run."""

    latest: Usage  # as the last cell left it
    used_bytes: int = 0  # the most in use by all processes at the end of a cell; 0 when that is unknown
    uses: list[tuple[CellRecord, Usage]] = field(default_factory=list)  # as far as attributed to processes

    def add(self, usage: Usage, record: CellRecord) -> None:
        """Add the memory over one cell."""
        self.latest = usage
        self.used_bytes = max(self.used_bytes, getattr(usage, "used_bytes", None) or 0)
        if getattr(usage, "attributed", True):
            self.uses.append((record, usage))

    @property
    def highest(self) -> CellRecord | None:
        """The cell that raised the memory to its highest; None where no use is attributed to a process."""
        found = raising(self.uses)
        return found and found[0]

    @property
    def peak_bytes(self) -> int:
        """The highest of all cells."""
        return max((usage.peak.lo_bytes for _, usage in self.uses), default=0)

    @property
    def exact(self) -> bool:
        """Whether all of its peaks are."""
        return all(usage.peak.quality == "exact" for _, usage in self.uses)


@dataclass(frozen=True, slots=True)
class Totals:
    """All cells of a run."""

    begin: datetime | None
    every: CellTotals  # all cells, and the records of other processes
    outer: CellTotals  # the cells of the kernel that are not nested in others
    processes: CellTotals  # the records of other processes
    memories: dict[Key, MemoryTotals]  # RAM and the devices

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


def shown(records: Sequence[CellRecord]) -> list[CellRecord]:
    """Return the cells to show: of very many, those that needed most."""
    most = heapq.nlargest(MOST, range(len(records)), key=lambda number: by_need(records[number]))
    return [records[number] for number in sorted(most)]


def of_one_process(records: Iterable[CellRecord]) -> tuple[list[CellRecord], str]:
    """Return the records of the kernel or, without one, of the first process, and that process's name."""
    found: dict[tuple[str, int] | None, list[CellRecord]] = {}
    for record in records:
        process = process_of(record)
        found.setdefault((process.host, process.pid) if process else None, []).append(record)
    same = found.get(None if None in found else next(iter(found), None), [])
    first = process_of(same[0]) if same else None
    return same, first.named() if first else ""
