"""The totals of a run, found row by row: its time, its failed cells, and the highest peak of each memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from .row import Key, Memory, Origin, Row


@dataclass(slots=True)
class CellTotals:
    """Some cells together.

    Attributes:
        count: How many.
        failed: How many of them did not succeed.
        time_s: Their time.
        longest_s: The time of the longest.
        longest: Which that is.
    """

    count: int = 0
    failed: int = 0
    time_s: float = 0.0
    longest_s: float = -1.0
    longest: Origin = 0

    def add(self, row: Row) -> None:
        """Add a cell."""
        self.count += 1
        self.failed += not row.succeeded
        self.time_s += row.time_s
        if row.time_s > self.longest_s:
            self.longest_s, self.longest = row.time_s, row.origin


@dataclass(slots=True)
class MemoryTotals:
    """One memory over a run.

    Attributes:
        peak_bytes: The highest peak, where the use is attributed; None if it never was.
        highest: The cell that had it.
        exact: Whether all peaks are exact.
        used_bytes: The most in use by all processes at the end of a cell; 0 when that is unknown.
        latest: The last cell that used the memory.
    """

    latest: Origin
    peak_bytes: int | None = None
    highest: Origin = 0
    exact: bool = True
    used_bytes: int = 0

    def add(self, memory: Memory, origin: Origin) -> None:
        """Add the memory over one cell."""
        self.latest = origin
        self.used_bytes = max(self.used_bytes, memory.used_bytes or 0)
        if memory.attributed:
            self.exact = self.exact and memory.quality == "exact"
            if self.peak_bytes is None or memory.lo_bytes > self.peak_bytes:
                self.peak_bytes, self.highest = memory.lo_bytes, origin


@dataclass(slots=True)
class Totals:
    """All cells of a run.

    Attributes:
        begin: When the first began; None before there is one.
        every: All cells, and the records of other processes.
        outer: The cells that are not nested in others.
        processes: The records of other processes.
        memories: RAM and the devices by `Row.key_of`, in the order in which cells name them.
    """

    begin: datetime | None = None
    every: CellTotals = field(default_factory=CellTotals)
    outer: CellTotals = field(default_factory=CellTotals)
    processes: CellTotals = field(default_factory=CellTotals)
    memories: dict[Key, MemoryTotals] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        """Add the next cell."""
        if self.begin is None or row.started_at < self.begin:
            self.begin = row.started_at
        self.every.add(row)
        if row.process is not None:
            self.processes.add(row)
        elif row.execution_count is not None:
            self.outer.add(row)
        for memory in row.all():
            key = row.key_of(memory)
            totals = self.memories.get(key)
            if totals is None:
                totals = self.memories[key] = MemoryTotals(row.origin)
            totals.add(memory, row.origin)
