"""The time axis of the plot: the records of a notebook from left to right, with long idle times shortened."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ..records.one_process import of_one_process

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..records import CellRecord


@dataclass
class Stretch:
    """Cells without idle time between them: one, and those that ran while it did."""

    start_s: float  # since the first cell of all
    end_s: float
    cells: list[CellRecord]
    restarted: bool  # the execution count started over: it is another kernel's
    x: float = 0.0  # where it begins on the axis
    idle_s: float = 0.0  # before it
    gap: float = 0.0  # the part of the idle time that the axis shows


class Band(NamedTuple):
    """A cell on the axis."""

    cell: CellRecord
    left: float
    right: float


class Axis:
    """Where each moment is drawn: in seconds, with long idle times shortened.

    Attributes:
        process: The name of the process that is drawn, the only one; empty for the notebook's own kernel.

    Raises:
        ValueError: There are no records.
    """

    def __init__(self, records: Iterable[CellRecord]) -> None:
        found, self.process = of_one_process(records)
        self.cells = sorted(found, key=lambda record: (record.started_at, -record.time_s))
        if not self.cells:
            raise ValueError("there is nothing to plot: no cell has been reported yet")
        self.begin = self.cells[0].started_at
        self.stretches: list[Stretch] = []
        count = 0
        for cell in self.cells:
            start_s = self.since(cell)
            if self.stretches and start_s < self.stretches[-1].end_s:
                last = self.stretches[-1]
                last.cells.append(cell)
                last.end_s = max(last.end_s, start_s + cell.time_s)
            else:
                restarted = bool(count and cell.execution_count and cell.execution_count <= count)
                self.stretches.append(Stretch(start_s, start_s + cell.time_s, [cell], restarted))
                count = cell.execution_count or count
        self.width = self._lay_out() or 0.001
        self.bands = list(self._bands())

    def since(self, cell: CellRecord) -> float:
        """Return the seconds from the start of the first cell to the start of this one."""
        return (cell.started_at - self.begin).total_seconds()

    def _lay_out(self) -> float:
        busy_s = sum(stretch.end_s - stretch.start_s for stretch in self.stretches)
        idle_s = self.stretches[-1].end_s - busy_s
        share = min(0.03, 6 / len(self.stretches) ** 2)  # so that many gaps are not most of the picture
        longest_s = busy_s * share if idle_s > busy_s / 2 else math.inf
        x = end_s = 0.0
        for stretch in self.stretches:
            stretch.idle_s = stretch.start_s - end_s
            stretch.gap = min(stretch.idle_s, longest_s)
            stretch.x = x + stretch.gap
            x, end_s = stretch.x + stretch.end_s - stretch.start_s, stretch.end_s
        return x

    def _bands(self) -> Iterator[Band]:
        for stretch in self.stretches:
            right = stretch.x
            for cell in stretch.cells:  # a cell nested in another has no band of its own
                end = stretch.x + self.since(cell) + cell.time_s - stretch.start_s
                if cell is stretch.cells[0] or (end > right and cell.execution_count is not None):
                    yield Band(cell, right, end)
                    right = end
