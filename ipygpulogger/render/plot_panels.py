"""The memory axes of the plot: a panel for general RAM and one for each device, as stacked layers and peaks.

A device's layers are those of its ladder. From the bottom: what this process holds outside the allocator,
tensors, cached, and other processes; the top of the stack is what is in use on the whole device. Records have
tensors and cached at the ends of a cell only, and between them the whole device's time series. What that
series shows above the tensors is drawn as cached where other processes stayed the same: it is memory that the
allocator had reserved, for the cache or for tensors that lived for a moment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ..records.units import MB, in_mb
from .devices import named_devices

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..records import CellRecord, DeviceUsage, Timeline, Usage
    from .plot_axis import Axis, Stretch

    Points = list[tuple[float, float]]  # a place on the time axis, and MB
    Row = tuple[float, tuple[float, ...]]  # a place on the time axis, and the tops of the layers there

RESIDENT, OWN, TENSORS = "resident", "this process", "tensors"
CACHED, OTHERS = "cached, or held for a moment", "context, other processes"
SEEN, UNSEEN, AT_LEAST = "at its moment", "at some moment of its cell", "at least"
_RAM, _DEVICE = (RESIDENT,), (OTHERS, TENSORS, CACHED, OTHERS)  # the layers of a panel, from the bottom
_OPAQUE = (OTHERS, OWN, CACHED, OTHERS)  # of a device without an allocator that is known
_STEADY_MB = 64.0  # what other processes may change by without being seen
_COLUMNS = 400  # of a panel, within each of which only the ends and the extremes of a curve are kept
_ALL_COLUMNS = 1600  # of all panels together
_MARKED = 24  # equal parts of the time, in each of which only the highest peak is marked


class Piece(NamedTuple):
    """The layers of a panel over one stretch of time."""

    rows: tuple[Row, ...]
    sampled: bool  # otherwise only the ends of cells are known, and straight lines join them

    def layer(self, number: int) -> tuple[Points, Points]:
        """Return the lower and the upper edge of a layer."""
        lower = [(x, tops[number - 1] if number else 0.0) for x, tops in self.rows]
        return lower, [(x, tops[number]) for x, tops in self.rows]


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
        bound = f" to {self.most_mb:,.0f}" if self.bounded else ""
        return f"{self.label}: {least}{self.top_mb:,.0f}{bound} MB"


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
        tops = [tops[-1] for piece in self.pieces for _, tops in piece.rows]
        marks = [*self.marks, *([self.highest] if self.highest else [])]
        return max([1.0, *tops, *(mark.most_mb for mark in marks)])

    def add(self, mark: Mark) -> None:
        """Add the peak of a cell, if it is above both ends."""
        if mark.rise_mb >= 1:
            self.marks.append(mark)
        if self.highest is None or mark.top_mb > self.highest.top_mb:
            self.highest = mark


def panels(axis: Axis) -> list[Panel]:
    """Return the panels of a plot: general RAM, then each device that any cell used."""
    found = [_ram(axis), *_devices(axis)]
    columns = max(1, min(_COLUMNS, _ALL_COLUMNS // len(found)))
    for panel in found:
        panel.pieces = [
            piece._replace(rows=_thinned(piece.rows, axis.width / columns)) for piece in panel.pieces
        ]
        panel.marks = _highest(panel.marks, axis.width / _MARKED)
    return found


def _ram(axis: Axis) -> Panel:
    panel = Panel("RAM", "RAM of this process", _RAM)
    for stretch in axis.stretches:
        points: Points = []
        for cell in stretch.cells:
            left, right = _ends(axis, stretch, cell)
            points += _joined(left, right, cell.gen.before_bytes, cell.gen.after_bytes, cell.gen.timeline)
        rows = _rows([sorted(points, key=_x)])
        panel.pieces.append(Piece(tuple(rows), any(cell.gen.timeline for cell in stretch.cells)))
        _mark_peaks(panel, axis, stretch, [(cell, cell.gen, cell.gen.timeline) for cell in stretch.cells])
    return panel


def _devices(axis: Axis) -> Iterator[Panel]:
    for key, (name, gpu) in named_devices(axis.cells).items():
        every = [use for cell in axis.cells for use in cell.gpus if use.key == key]
        told = any(use.allocated_bytes is not None for use in every)
        panel = Panel(name, f"{name}: {gpu.name}", _DEVICE if told else _OPAQUE)
        last: _Levels | None = None
        for stretch in axis.stretches:
            usages = [(cell, use) for cell in stretch.cells for use in cell.gpus if use.key == key]
            curves = _Curves(last)
            for cell, use in usages:
                curves.add(use, *_ends(axis, stretch, cell))
            last = curves.last
            if curves:
                panel.pieces.append(Piece(tuple(curves.rows()), bool(curves.whole)))
            _mark_peaks(panel, axis, stretch, [(cell, use, ()) for cell, use in usages if use.attributed])
        if gpu.total_bytes is not None:
            panel.limits["total"] = in_mb(gpu.total_bytes)
        if gpu.limit_bytes is not None:
            panel.limits["limit"] = in_mb(gpu.limit_bytes)
        yield panel


class _Levels(NamedTuple):
    """How a device's memory was divided at one moment, in MB."""

    outside: float  # held by this process outside the allocator, where that is known
    tensors: float
    cached: float
    others: float  # all else in use on the device

    @classmethod
    def after(cls, use: DeviceUsage) -> _Levels:
        """Return the levels at the end of a cell."""
        own = in_mb(use.after_bytes) if use.attributed else 0.0
        tensors = own if use.allocated_bytes is None else min(own, in_mb(use.allocated_bytes))
        cached = max(0.0, in_mb((use.reserved_bytes or 0) - (use.allocated_bytes or 0)))
        used = in_mb(use.used_bytes or 0)
        return cls(own - tensors, tensors, cached, max(0.0, used - own - cached))

    def before(self, use: DeviceUsage, last: _Levels | None) -> _Levels:
        """Return the levels at the beginning of a cell, from those at its end and those of the last cell.

        The record has what the process held, and perhaps what other processes did. The rest was as the last
        cell left it.
        """
        like = last or self
        own = in_mb(use.held_before_bytes) if use.attributed else 0.0
        outside = 0.0 if use.context_bytes else min(own, like.outside)
        others = like.others
        if use.neighbours_before_bytes is not None and use.neighbours_bytes is not None:
            others = max(0.0, self.others + in_mb(use.neighbours_before_bytes - use.neighbours_bytes))
        return _Levels(outside, own - outside, 0.0 if use.context_bytes else like.cached, others)


class _Curves:
    """The layers of one device over one stretch of time, while they are collected."""

    def __init__(self, last: _Levels | None) -> None:
        self.last = last  # at the end of the cell that ended last
        self._end = -1.0
        self._before = last
        self.levels: tuple[Points, ...] = ([], [], [], [])
        self.whole: Points = []  # sampled: in use on the whole device
        self._steady = True  # what other processes use did not change while it was sampled

    def __bool__(self) -> bool:
        return bool(self.levels[0])

    def add(self, use: DeviceUsage, left: float, right: float) -> None:
        """Add one cell, unless nothing is known of the device there."""
        if not use.attributed and use.used_bytes is None and not use.timeline:
            return
        after = _Levels.after(use)
        before = after.before(use, self._before)
        for points, begin, end in zip(self.levels, before, after, strict=True):
            points.extend(((left, begin), (right, end)))
        self.whole += [(min(left + at_s, right), in_mb(size)) for at_s, size in use.timeline]
        rose = use.neighbours_rise_bytes or use.unknown_rise_bytes or use.unattributed_bytes
        changed = abs(after.others - before.others) > _STEADY_MB
        self._steady &= use.attributed and use.neighbours_bytes is not None and not (rose or changed)
        if right >= self._end:
            self.last, self._end = after, right

    def rows(self) -> Iterator[Row]:
        """Yield the tops of the layers."""
        levels = [sorted(points, key=_x) for points in self.levels]
        if not self.whole:
            for x, parts in _rows(levels):
                yield x, _stacked(parts)
            return
        for x, (*parts, whole) in _rows([*levels, sorted(self.whole, key=_x)]):
            outside, tensors, cached, others = parts
            own = max(0.0, whole - others) if self._steady else min(whole, outside + tensors + cached)
            outside = min(outside, own)
            tensors = min(tensors, own - outside)
            yield x, (outside, outside + tensors, own, whole)


def _stacked(parts: Sequence[float]) -> tuple[float, ...]:
    return tuple(sum(parts[: number + 1]) for number in range(len(parts)))


def _ends(axis: Axis, stretch: Stretch, cell: CellRecord) -> tuple[float, float]:
    left = stretch.x + axis.since(cell) - stretch.start_s
    return left, left + cell.time_s


def _joined(left: float, right: float, before_bytes: int, after_bytes: int, timeline: Timeline) -> Points:
    inner = [(left + at_s, in_mb(size)) for at_s, size in timeline]
    return [(left, in_mb(before_bytes)), *inner, (right, in_mb(after_bytes))]


def _x(point: tuple[float, float]) -> float:
    return point[0]


def _rows(curves: Sequence[Points]) -> list[Row]:
    """Return all curves at each place where any of them has a point.

    A curve may have several points at one place. Between its points it is a straight line.
    """
    places = sorted({x for points in curves for x, _ in points})
    columns = [list(_values(points, places)) for points in curves]
    rows: list[Row] = []
    for x, *values in zip(places, *columns, strict=True):
        rows += [
            (x, tuple(found[min(number, len(found) - 1)] for found in values))
            for number in range(max(map(len, values)))
        ]
    return rows


def _values(points: Points, places: Sequence[float]) -> Iterator[list[float]]:
    """Yield the values of one curve at each of the places, in order: more than one where it has a step."""
    at = 0
    for x in places:
        found = []
        while at < len(points) and points[at][0] <= x:
            found.append(points[at][1])
            at += 1
        if not found:
            (x0, y0), (x1, y1) = points[max(0, at - 1)], points[min(at, len(points) - 1)]
            found = [y0 + (y1 - y0) * (x - x0) / (x1 - x0) if x1 > x0 else y0]
        yield found


def _thinned(rows: Sequence[Row], column: float) -> tuple[Row, ...]:
    """Return the rows without those that a picture cannot show: the ends and extremes of each column stay."""
    kept: list[Row] = []
    begin = 0
    for end in range(1, len(rows) + 1):
        if end < len(rows) and column and rows[end][0] // column == rows[begin][0] // column:
            continue
        inside = range(begin, end)
        keep = {begin, end - 1}
        for layer in range(len(rows[begin][1])):
            keep |= {pick(inside, key=lambda at, n=layer: rows[at][1][n]) for pick in (min, max)}
        kept += [rows[at] for at in sorted(keep)]
        begin = end
    return tuple(kept)


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
        place = mark.x // column if column else mark.x
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
