"""The panels of the plot: general RAM and each device, with its layers, its peaks and its limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ..records.units import MB, in_mb, size_text
from .devices import named_devices
from .plot_layers import Piece, Stack, drawable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..records import CellRecord, Timeline, Usage
    from .plot_axis import Axis, Stretch
    from .plot_layers import Levels, Points

RESIDENT, OWN, TENSORS = "resident", "this process", "tensors"
CACHED, OTHERS = "cached or transient", "context, other processes"
SEEN, UNSEEN, AT_LEAST = "at its moment", "at some moment of its cell", "at least"
_RAM, _DEVICE = (RESIDENT,), (OTHERS, TENSORS, CACHED, OTHERS)  # the layers of a panel, from the bottom
_OPAQUE = (OTHERS, OWN, CACHED, OTHERS)  # of a device without an allocator that is known
_MOST_COLUMNS, _LEAST_COLUMNS = 250, 24  # of a panel: in each, of a curve only the extremes are kept
_COLUMNS = 700  # of all panels: the more there are, the smaller each is drawn
_MARKED = 24  # equal parts of the time, in each of which only the highest peak is marked


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

    @property
    def rise_mb(self) -> float:
        """How far it may lie above both ends of its cell."""
        return self.most_mb - self.floor_mb

    def __str__(self) -> str:
        least = "at least " if self.kind == AT_LEAST else ""
        said, most = size_text(self.top_mb * MB), size_text(self.most_mb * MB)
        if self.bounded and said != most:
            figure, _, unit = said.partition(" ")
            said = f"{figure if most.endswith(unit) else said} to {most}"
        return f"{self.label}: {least}{said}"


@dataclass
class Panel:
    """General RAM or one device."""

    name: str
    title: str
    layers: tuple[str, ...]
    pieces: list[Piece] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    limits: dict[str, float] = field(default_factory=dict)  # by name, in MB
    highest: Mark | None = None  # the highest peak, whether or not it is among the marks

    def highest_mb(self) -> float:
        """Return the highest of everything that is drawn except the limits."""
        tops = [size for piece in self.pieces for _, size in piece.edges[-1]]
        marks = [*self.marks, *([self.highest] if self.highest else [])]
        return max([1.0, *tops, *(mark.most_mb for mark in marks)])

    def add(self, mark: Mark) -> None:
        """Add the peak of a cell, if it is above both ends."""
        if mark.rise_mb >= 1:
            self.marks.append(mark)
        if self.highest is None or mark.top_mb > self.highest.top_mb:
            self.highest = mark


def description(axis: Axis) -> str:
    """Return what the plot shows in one sentence, for those who do not see it."""
    highest = [f"{panel.name} {panel.highest}" for panel in panels(axis) if panel.highest]
    return f"Memory over time; the highest: {'; '.join(highest)}"


def panels(axis: Axis) -> list[Panel]:
    """Return the panels of a plot: general RAM, then each device that any cell used."""
    found = [_ram(axis), *_devices(axis)]
    columns = min(_MOST_COLUMNS, max(_LEAST_COLUMNS, _COLUMNS / len(found) ** 1.5))
    column = axis.width / columns
    for panel in found:
        panel.pieces = drawable(panel.pieces, column)
        panel.marks = _highest(panel.marks, axis.width / _MARKED)
    return found


def _ram(axis: Axis) -> Panel:
    panel = Panel("RAM", "RAM of this process", _RAM)
    for stretch in axis.stretches:
        points: Points = []
        for cell in stretch.cells:
            left, right = _ends(axis, stretch, cell)
            points += _joined(left, right, cell.gen.before_bytes, cell.gen.after_bytes, cell.gen.timeline)
        sampled = any(cell.gen.timeline for cell in stretch.cells)
        panel.pieces.append(Piece.of_curve(points, sampled=sampled))
        _mark_peaks(panel, axis, stretch, [(cell, cell.gen, cell.gen.timeline) for cell in stretch.cells])
    return panel


def _devices(axis: Axis) -> Iterator[Panel]:
    for key, (name, gpu) in named_devices(axis.cells).items():
        every = [use for cell in axis.cells for use in cell.gpus if use.key == key]
        told = any(use.allocated_bytes is not None for use in every)
        panel = Panel(name, f"{name}: {gpu.name}", _DEVICE if told else _OPAQUE)
        last: Levels | None = None
        for stretch in axis.stretches:
            usages = [(cell, use) for cell in stretch.cells for use in cell.gpus if use.key == key]
            stack = Stack(last)
            for cell, use in usages:
                stack.add(use, *_ends(axis, stretch, cell))
            last = stack.last
            if stack:
                panel.pieces.append(stack.piece())
            _mark_peaks(panel, axis, stretch, [(cell, use, ()) for cell, use in usages if use.attributed])
        if gpu.total_bytes is not None:
            panel.limits["total"] = in_mb(gpu.total_bytes)
        if gpu.limit_bytes is not None:
            panel.limits["limit"] = in_mb(gpu.limit_bytes)
        yield panel


def _ends(axis: Axis, stretch: Stretch, cell: CellRecord) -> tuple[float, float]:
    left = stretch.x + axis.since(cell) - stretch.start_s
    return left, left + cell.time_s


def _joined(left: float, right: float, before_bytes: int, after_bytes: int, timeline: Timeline) -> Points:
    inner = [(left + at_s, in_mb(size)) for at_s, size in timeline]
    return [(left, in_mb(before_bytes)), *inner, (right, in_mb(after_bytes))]


def _mark_peaks(
    panel: Panel, axis: Axis, stretch: Stretch, usages: list[tuple[CellRecord, Usage, Timeline]]
) -> None:
    """Add the peaks of the cells of a stretch; that of a nested cell only if the outer one has another."""
    marked: set[float] = set()
    for cell, usage, timeline in usages:
        mark = _mark(cell.label, usage, timeline, *_ends(axis, stretch, cell))
        if mark.top_mb not in marked:
            panel.add(mark)
        if mark.rise_mb >= 1:
            marked.add(mark.top_mb)


def _highest(marks: Sequence[Mark], column: float) -> list[Mark]:
    """Return the marks, and of those that share a column the highest alone, by either of their bounds."""
    found: dict[tuple[float, str], Mark] = {}
    for mark in marks:
        place = mark.x // column
        for bound in ("top_mb", "most_mb"):
            held = found.setdefault((place, bound), mark)
            if getattr(mark, bound) > getattr(held, bound):
                found[place, bound] = mark
    return list(dict.fromkeys(found.values()))


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
