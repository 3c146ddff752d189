"""What the plot draws: the records of a notebook laid out on one axis of time, a panel for each memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ..records import DeviceUsage
from ..records.units import MB, in_mb
from .devices import named_devices

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..records import CellRecord, Timeline, Usage

SEEN, UNSEEN, AT_LEAST = "peak, at its moment", "peak, at some moment of its cell", "peak, at least"


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

    Raises:
        ValueError: There are no records.
    """

    def __init__(self, records: Iterable[CellRecord]) -> None:
        self.cells = sorted(records, key=lambda record: (record.started_at, -record.time_s))
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
        longest_s = busy_s * min(0.03, 0.4 / len(self.stretches)) if idle_s > busy_s / 2 else math.inf
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


@dataclass
class Curve:
    """A line with gaps; a point is a place on the axis and MB."""

    sampled: list[tuple[float, float]] = field(default_factory=list)
    joined: list[tuple[float, float]] = field(
        default_factory=list
    )  # the ends of cells, with no sample between

    def __bool__(self) -> bool:
        return bool(self.sampled or self.joined)

    def add(self, points: list[tuple[float, float]], *, sampled: bool) -> None:
        """Add the points of one stretch, in any order."""
        line = self.sampled if sampled else self.joined
        line += [*sorted(points, key=lambda point: point[0]), (math.nan, math.nan)] if points else []


class Mark(NamedTuple):
    """The peak of one cell, in MB."""

    label: str
    kind: str
    left: float
    right: float
    x: float
    floor_mb: float
    top_mb: float
    most_mb: float  # the upper bound

    @property
    def bounded(self) -> bool:
        """Whether the bounds are far enough apart to draw."""
        return self.most_mb - self.top_mb >= 1

    def __str__(self) -> str:
        least = "at least " if self.kind == AT_LEAST else ""
        bound = f" to {self.most_mb:,.0f}" if self.bounded else ""
        return f"{self.label}: {least}{self.top_mb:,.0f}{bound} MB"


@dataclass
class Panel:
    """General RAM or one device."""

    name: str
    title: str = ""
    own: Curve = field(default_factory=Curve)
    whole: Curve = field(default_factory=Curve)  # of a device, all processes together
    marks: list[Mark] = field(default_factory=list)
    limits: dict[str, float] = field(default_factory=dict)  # by name, in MB
    highest: Mark | None = None  # the highest peak, whether or not it is among the marks

    def highest_mb(self) -> float:
        """Return the highest of everything that is drawn except the limits."""
        curves = (self.own, self.whole)
        points = [size for curve in curves for line in (curve.sampled, curve.joined) for _, size in line]
        marks = [*self.marks, *([self.highest] if self.highest else [])]
        return max(
            [1.0, *(size for size in points if not math.isnan(size)), *(mark.most_mb for mark in marks)]
        )


def panels(axis: Axis) -> list[Panel]:
    """Return the panels of a plot: general RAM, then each device that any cell used."""
    return [_ram(axis), *_devices(axis)]


def _ram(axis: Axis) -> Panel:
    panel = Panel("RAM")
    for stretch in axis.stretches:
        _add_own(panel, axis, stretch, [(cell, cell.gen, cell.gen.timeline) for cell in stretch.cells])
    return panel


def _devices(axis: Axis) -> Iterator[Panel]:
    for key, (name, gpu) in named_devices(axis.cells).items():
        panel = Panel(name, f"{name}: {gpu.name}")
        for stretch in axis.stretches:
            usages = [(cell, use) for cell in stretch.cells for use in cell.gpus if use.key == key]
            _add_own(panel, axis, stretch, [(cell, use, ()) for cell, use in usages if use.attributed])
            whole, sampled = [], False
            for cell, use in usages:
                start = stretch.x + axis.since(cell) - stretch.start_s
                whole += [(start + at_s, in_mb(size)) for at_s, size in use.timeline]
                sampled = sampled or bool(use.timeline)
                if use.used_bytes is not None and not use.timeline:
                    whole.append((start + cell.time_s, in_mb(use.used_bytes)))
            panel.whole.add(whole, sampled=sampled)
        if gpu.total_bytes is not None:
            panel.limits["total"] = in_mb(gpu.total_bytes)
        if gpu.limit_bytes is not None:
            panel.limits["limit"] = in_mb(gpu.limit_bytes)
        yield panel


def _add_own(
    panel: Panel, axis: Axis, stretch: Stretch, usages: list[tuple[CellRecord, Usage, Timeline]]
) -> None:
    """Add what this process used over a stretch, and its peaks there."""
    points: list[tuple[float, float]] = []
    marked: set[float] = set()
    for cell, usage, timeline in usages:
        left = stretch.x + axis.since(cell) - stretch.start_s
        right = left + cell.time_s
        before_bytes = usage.held_before_bytes if isinstance(usage, DeviceUsage) else usage.before_bytes
        points.append((left, in_mb(before_bytes)))
        points += [(left + at_s, in_mb(size)) for at_s, size in timeline]
        points.append((right, in_mb(usage.after_bytes)))
        mark = _mark(cell.label, usage, timeline, left, right)
        if mark.most_mb - mark.floor_mb >= 1 and mark.top_mb not in marked:  # else the outer cell has it too
            marked.add(mark.top_mb)
            panel.marks.append(mark)
        if panel.highest is None or mark.top_mb > panel.highest.top_mb:
            panel.highest = mark
    panel.own.add(points, sampled=any(timeline for _, _, timeline in usages))


def _mark(label: str, usage: Usage, timeline: Timeline, left: float, right: float) -> Mark:
    peak = usage.peak
    x, kind = (left + right) / 2, UNSEEN
    if peak.hi_bytes is None or peak.quality == "sampled":
        kind = AT_LEAST
    if timeline:
        at_s, size = max(timeline, key=lambda point: point[1])
        if peak.lo_bytes - size <= max(MB, peak.lo_bytes // 100):
            x, kind = min(left + at_s, right), SEEN if kind == UNSEEN else kind
    floor_bytes = max(usage.before_bytes, usage.after_bytes)
    most_bytes = max(peak.lo_bytes, peak.hi_bytes or 0)
    return Mark(label, kind, left, right, x, in_mb(floor_bytes), in_mb(peak.lo_bytes), in_mb(most_bytes))
