"""The cells that may leak, found row by row: the same as `leaks.suspects`, without all records at hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .leaks import GROWTH_BYTES, RUNS
from .row import RAM

if TYPE_CHECKING:
    from datetime import datetime

    from .process import Process
    from .row import Key, Memory, Origin, Row

    Cell = tuple[str | None, str, str, Process | None]  # as `leaks.identity`


@dataclass(slots=True)
class _Streak:
    """The last runs of a cell that grew on one device.

    Attributes:
        runs: Their origins, oldest first.
        after_bytes: What the last one left in use there.
    """

    runs: list[Origin]
    after_bytes: int


class Growing:
    """The cells that may leak, among the rows added so far; `History.suspects` has the rule."""

    def __init__(self) -> None:
        self._found: list[list[Origin]] = []  # of kernels that have ended
        self._order: dict[int, None] = {}  # hashes of cells, in the order of their first runs
        self._streaks: dict[Cell, dict[Key, _Streak]] = {}  # of cells whose last run grew
        self._last: tuple[int, datetime] | None = None

    def add(self, row: Row) -> None:
        """Add the next cell."""
        if self._in_new_kernel(row):
            self._found = self.suspects()
            self._order.clear()
            self._streaks.clear()
        if row.gpulog_only or (row.cell_id is None and row.source.startswith("%")):
            return
        code = row.code if row.cell_id is None else ""
        cell = row.cell_id, row.source or row.label, code, row.process
        self._order.setdefault(hash(cell))
        before = self._streaks.pop(cell, None) if self._streaks else None
        streaks = {}
        for key, memory in row.memories().items():
            if _consumed_bytes(memory) > GROWTH_BYTES:
                streak = before.get(key) if before else None
                if streak is None or memory.after_bytes - streak.after_bytes <= GROWTH_BYTES:
                    streak = _Streak([], 0)
                streak.runs.append(row.origin)
                streak.after_bytes = memory.after_bytes
                streaks[key] = streak
        if streaks:
            self._streaks[cell] = streaks

    def suspects(self) -> list[list[Origin]]:
        """Return for each cell that may leak its last runs, oldest first, as many as grew."""
        longest = {
            cell: max((streak.runs for streak in streaks.values()), key=len)
            for cell, streaks in self._streaks.items()
        }
        places = {first: place for place, first in enumerate(self._order)}
        found = [(places[hash(cell)], runs) for cell, runs in longest.items() if len(runs) >= RUNS]
        return [*self._found, *(runs for _, runs in sorted(found, key=lambda one: one[0]))]

    def _in_new_kernel(self, row: Row) -> bool:
        """Return whether the execution count started over, and the cells before ran in another kernel."""
        count = row.execution_count
        if count is None or row.process is not None:
            return False
        restarted = False
        if self._last is not None and count <= self._last[0]:
            if row.started_at <= self._last[1]:  # two cells ran at the same time
                return False
            restarted = True
        self._last = count, row.started_at
        return restarted


def _consumed_bytes(memory: Memory) -> int:
    """Return what was consumed, of RAM without the freed memory that malloc keeps."""
    return memory.consumed_bytes - (max(0, memory.newly_kept_bytes) if memory.key == RAM else 0)
