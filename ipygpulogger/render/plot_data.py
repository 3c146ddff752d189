"""What the plot of a notebook shows, in numbers: its cells on a time axis, and the panels over it.

Records have tensors and cached at the ends of a cell only, and between them the whole device's time series.
What that series shows above the tensors is drawn as cached where it was this process's own: its cache, or
tensors that lived for a moment.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ..analysis.totals import of_one_process
from ..records.units import MB, in_mb, size_text
from .growth import named_devices

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from ..records import CellRecord, DeviceUsage, Timeline, Usage

    Points = list[tuple[float, float]]  # a place on the time axis, and MB

RESIDENT, OWN, TENSORS = "resident", "this process", "tensors"
CACHED, OTHERS = "cached or transient", "context, other processes"
SEEN, UNSEEN, AT_LEAST = "at its moment", "at some moment of its cell", "at least"
_RAM, _DEVICE = (RESIDENT,), (OTHERS, TENSORS, CACHED, OTHERS)  # the layers of a panel, from the bottom
_OPAQUE = (OTHERS, OWN, CACHED, OTHERS)  # of a device without an allocator that is known
_MOST_COLUMNS, _LEAST_COLUMNS = 250, 24  # of a panel: in each, of a curve only the extremes are kept
_COLUMNS = 700  # of all panels: the more there are, the smaller each is drawn
_MARKED = 24  # equal parts of the time, in each of which only the highest peak is marked
_STEADY_MB = 64.0  # what other processes may change by without being seen
_CLOCK_S = 120  # a longer time is written in minutes
_TICKS = 8
_STEPS_S = (
    *(n * 10.0**e for e in range(-4, 2) for n in (1, 2, 5) if n * 10.0**e < 60),
    *(60, 120, 300, 600, 1200, 3600, 7200, 14400, 43200, 86400),
)


class Band(NamedTuple):
    """A cell on the time axis, with those that ran within it."""

    cells: list[CellRecord]  # the outer one first
    left: float
    right: float
    idle_s: float  # before it
    gap: float  # the part of the idle time that the axis shows
    restarted: bool  # the execution count started over: it is another kernel's

    @property
    def cell(self) -> CellRecord:
        """The cell whose band it is."""
        return self.cells[0]

    def ends(self, cell: CellRecord) -> tuple[float, float]:
        """Return where one of its cells begins and ends on the axis."""
        left = self.left + (cell.started_at - self.cell.started_at).total_seconds()
        return left, min(left + cell.time_s, self.right)


class Axis:
    """Where each moment is drawn: in seconds, with long idle times shortened.

    Raises:
        ValueError: The records are empty.
    """

    def __init__(self, records: Iterable[CellRecord]) -> None:
        found, self.process = of_one_process(records)  # its name; empty for the notebook's own kernel
        self.cells = sorted(found, key=lambda record: (record.started_at, -record.time_s))
        if not self.cells:
            raise ValueError("there is nothing to plot: no cell has been reported yet")
        self.begin = self.cells[0].started_at
        together: list[list[CellRecord]] = []
        self.end_s = 0.0
        for cell in self.cells:
            end_s = self.since(cell) + cell.time_s
            if together and self.since(cell) < self.end_s and end_s <= self.end_s:
                together[-1].append(cell)
            else:
                together.append([cell])
            self.end_s = max(self.end_s, end_s)
        self.bands = self._bands(together)
        self.width = self.bands[-1].right or 0.001

    def since(self, cell: CellRecord) -> float:
        """Return the seconds from the start of the first cell to the start of this one."""
        return (cell.started_at - self.begin).total_seconds()

    def _bands(self, together: list[list[CellRecord]]) -> list[Band]:
        spans: list[tuple[float, float]] = []
        for cell, *_ in together:
            start_s = self.since(cell)
            end_s = start_s + cell.time_s
            spans.append((max(start_s, spans[-1][1]) if spans else start_s, end_s))
        busy_s = sum(end_s - start_s for start_s, end_s in spans)
        share = min(0.03, 6 / len(spans) ** 2)  # so that many gaps are not most of the picture
        longest_s = busy_s * share if self.end_s - busy_s > busy_s / 2 else math.inf
        found: list[Band] = []
        x = last_s = 0.0
        count = 0
        for cells, (start_s, end_s) in zip(together, spans, strict=True):
            gap = min(start_s - last_s, longest_s)
            restarted = bool(count and cells[0].execution_count and cells[0].execution_count <= count)
            count = cells[0].execution_count or count
            left, x = x + gap, x + gap + end_s - start_s
            found.append(Band(cells, left, x, start_s - last_s, gap, restarted))
            last_s = end_s
        return found


def ticks(axis: Axis, letter: float) -> list[tuple[float, str]]:
    """Return places on the axis and the time there, of a cell's start rather than a round time beside it."""
    longest = len(_clock(axis.end_s))
    apart = max(axis.width / _TICKS, (longest + 1) * letter)
    step_s = next((step for step in _STEPS_S if step >= apart), apart)
    clock = axis.end_s >= _CLOCK_S
    decimals = max(0, -math.floor(math.log10(step_s)))
    found: list[tuple[float, str, bool]] = []  # with whether it is a round time
    for band in axis.bands:
        start_s = axis.since(band.cell)
        last = math.floor((start_s + band.right - band.left) / step_s)
        rounds = (n * step_s for n in range(math.ceil(start_s / step_s), last + 1))
        for at_s in (start_s, *rounds):
            x = band.left + at_s - start_s
            if found and found[-1][2] and at_s == start_s and x - found[-1][0] < apart:
                found.pop()
            if not found or x - found[-1][0] >= apart:
                label = _clock(at_s) if clock else f"{at_s:.{decimals}f} s"
                found.append((x, label, at_s != start_s))
    return [(x, label) for x, label, _ in found]


def elapsed(time_s: float) -> str:
    """Return how long something took, as text."""
    return _clock(time_s) if time_s >= _CLOCK_S else f"{time_s:.3g} s"


def _clock(time_s: float) -> str:
    minutes, seconds = divmod(round(time_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


class Piece(NamedTuple):
    """The layers of a panel over one stretch of time."""

    edges: tuple[Points, ...]  # the upper edge of each layer, from the bottom
    sampled: bool  # otherwise only the ends of cells are known, and straight lines join them

    def shape(self, number: int) -> Points:
        """Return the outline of a layer: its upper edge, then the lower one backwards; empty if flat."""
        upper = self.edges[number]
        lower = self.edges[number - 1] if number else [(upper[0][0], 0.0), (upper[-1][0], 0.0)]
        if upper == lower or all(size <= 0 for _, size in upper):
            return []
        return [*upper, *reversed(lower)]


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
        low, most = size_text(self.top_mb * MB), size_text(self.most_mb * MB)
        if self.bounded and low != most:
            figure, _, unit = low.partition(" ")
            low = f"{figure if most.endswith(unit) else low} to {most}"
        return f"{self.label}: {least}{low}"


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

    def shapes(self, number: int) -> list[Points]:
        """Return the shapes of a layer, where it has any height."""
        return list(filter(None, (piece.shape(number) for piece in self.pieces)))

    def highest_mb(self) -> float:
        """Return the highest of everything that is drawn except the limits."""
        tops = [size for piece in self.pieces for _, size in piece.edges[-1]]
        marks = [*self.marks, *([self.highest] if self.highest else [])]
        return max([1.0, *tops, *(mark.most_mb for mark in marks)])

    def mark(self, band: Band, usages: Iterable[tuple[CellRecord, Usage, Timeline]]) -> None:
        """Add the peaks of the cells of a band; that of a nested cell only if the outer one has another."""
        marked: set[float] = set()
        for cell, usage, timeline in usages:
            mark = _mark(cell.label, usage, timeline, *band.ends(cell))
            if mark.rise_mb >= 1 and mark.top_mb not in marked:
                self.marks.append(mark)
                marked.add(mark.top_mb)
            if self.highest is None or mark.top_mb > self.highest.top_mb:
                self.highest = mark


def panels(axis: Axis) -> list[Panel]:
    """Return the panels of a plot: general RAM, then each device that any cell used."""
    found = [_ram(axis), *_devices(axis)]
    columns = min(_MOST_COLUMNS, max(_LEAST_COLUMNS, _COLUMNS / len(found) ** 1.5))
    for panel in found:
        panel.pieces = drawable(panel.pieces, axis.width / columns)
        panel.marks = _highest(panel.marks, axis.width / _MARKED)
    return found


def _ram(axis: Axis) -> Panel:
    panel = Panel("RAM", "RAM of this process", _RAM)
    for band in axis.bands:
        points: Points = []
        for cell in band.cells:
            left, right = band.ends(cell)
            inner = [(left + at_s, in_mb(size)) for at_s, size in cell.gen.timeline]
            points += [(left, in_mb(cell.gen.before_bytes)), *inner, (right, in_mb(cell.gen.after_bytes))]
        points.sort(key=lambda point: point[0])
        panel.pieces.append(Piece((points,), any(cell.gen.timeline for cell in band.cells)))
        panel.mark(band, [(cell, cell.gen, cell.gen.timeline) for cell in band.cells])
    return panel


def _devices(axis: Axis) -> Iterator[Panel]:
    for key, (name, gpu) in named_devices(gpu for cell in axis.cells for gpu in cell.gpus).items():
        every = [use for cell in axis.cells for use in cell.gpus if use.key == key]
        known = any(use.allocated_bytes is not None for use in every)
        panel = Panel(name, f"{name}: {gpu.name}", _DEVICE if known else _OPAQUE)
        last: Levels | None = None
        for band in axis.bands:
            usages = [(cell, use) for cell in band.cells for use in cell.gpus if use.key == key]
            shown = [(cell, use) for cell, use in usages if use.attributed or use.used_bytes is not None]
            if shown:  # of cells within one another the outer one has the course
                cell, use = shown[0]
                panel.pieces.append(_layers(use, last, *band.ends(cell)))
                last = Levels.after(use)
            panel.mark(band, [(cell, use, ()) for cell, use in usages if use.attributed])
        limits = {"total": gpu.total_bytes, "limit": gpu.limit_bytes}
        panel.limits = {what: in_mb(size) for what, size in limits.items() if size is not None}
        yield panel


class Levels(NamedTuple):
    """How a device's memory was divided at one moment, in MB."""

    outside: float  # held by this process outside the allocator, where that is known
    tensors: float
    cached: float
    others: float  # all else in use on the device

    @classmethod
    def after(cls, use: DeviceUsage) -> Levels:
        """Return the levels at the end of a cell."""
        own = in_mb(use.after_bytes) if use.attributed else 0.0
        tensors = own if use.allocated_bytes is None else min(own, in_mb(use.allocated_bytes))
        cached = max(0.0, in_mb((use.reserved_bytes or 0) - (use.allocated_bytes or 0)))
        used = in_mb(use.used_bytes or 0)
        return cls(own - tensors, tensors, cached, max(0.0, used - own - cached))

    def before(self, use: DeviceUsage, last: Levels | None) -> Levels:
        """Return those at the beginning of a cell: what is not in the record was as the last cell left it."""
        like = last or self
        own = in_mb(use.held_before_bytes) if use.attributed else 0.0
        outside = 0.0 if use.context_bytes else min(own, like.outside)
        others = like.others
        if use.neighbours_before_bytes is not None and use.neighbours_bytes is not None:
            others = max(0.0, self.others + in_mb(use.neighbours_before_bytes - use.neighbours_bytes))
        return Levels(outside, own - outside, 0.0 if use.context_bytes else like.cached, others)


def _layers(use: DeviceUsage, last: Levels | None, left: float, right: float) -> Piece:
    """Return the layers of a device in one cell."""
    import numpy as np  # comes with matplotlib

    after = Levels.after(use)
    before = after.before(use, last)
    times = np.array([left, *(min(left + at_s, right) for at_s, _ in use.timeline), right])
    levels = [np.interp(times, (left, right), ends) for ends in zip(before, after, strict=True)]
    tops: Sequence[NDArray[Any]] = list(np.cumsum(levels, axis=0))
    if use.timeline:
        outside, tensors, _, others = levels
        sampled = [in_mb(size) for _, size in use.timeline]
        whole = np.array([sampled[0], *sampled, sampled[-1]])
        steady = abs(after.others - before.others) <= _STEADY_MB and _is_own(use)
        own = np.maximum(0, whole - others) if steady else np.minimum(whole, tops[2])
        floor = np.minimum(outside, own)
        tops = [floor, np.minimum(floor + tensors, own), own, whole]
    edges = tuple([*zip(times.tolist(), top.tolist(), strict=True)] for top in tops)
    return Piece(edges, bool(use.timeline))


def _is_own(use: DeviceUsage) -> bool:
    """Return whether what the whole device shows beyond both ends was this process's own."""
    if not use.attributed or use.neighbours_rise_bytes or use.unknown_rise_bytes:
        return False
    if in_mb(abs(use.unattributed_bytes)) > _STEADY_MB:
        return False
    if use.neighbours_bytes is not None:
        return True
    reserved = use.reserved_peak
    if reserved is None or reserved.hi_bytes is None or use.other_bytes is None:
        return False
    highest_bytes = max((size for _, size in use.timeline), default=0)  # explained by what was reserved?
    return in_mb(highest_bytes - use.other_bytes - reserved.hi_bytes) <= _STEADY_MB


def drawable(pieces: Sequence[Piece], column: float) -> list[Piece]:
    """Return as few pieces and points as a picture shows whose columns are so wide; no peak is lost."""
    found: list[Piece] = []
    for piece in pieces:
        if found and piece.edges[0][0][0] - found[-1].edges[0][-1][0] < column / 2:  # too narrow to see
            for edge, more in zip(found[-1].edges, piece.edges, strict=True):
                edge.extend(more)
            found[-1] = found[-1]._replace(sampled=found[-1].sampled or piece.sampled)
        else:
            found.append(piece._replace(edges=tuple(map(list, piece.edges))))
    return [piece._replace(edges=tuple(_thinned(edge, column) for edge in piece.edges)) for piece in found]


def _thinned(edge: Points, column: float) -> Points:
    """Return both ends of an edge, and the highest and the lowest point of each column that others lack."""
    columns: dict[float, list[int]] = {}
    for at, (x, _) in enumerate(edge):
        columns.setdefault(x // (column or 1.0), []).append(at)  # 0 of a time that is next to nothing
    keep = {0, len(edge) - 1}
    for inside in columns.values():
        keep |= {pick(inside, key=lambda at: edge[at][1]) for pick in (min, max)}
    return [edge[at] for at in sorted(keep)]


def _highest(marks: Sequence[Mark], column: float) -> list[Mark]:
    """Return the marks, and of those that share a column the highest alone, by either of their bounds."""
    found: dict[tuple[float, str], Mark] = {}
    for mark in marks:
        for bound in ("top_mb", "most_mb"):
            place = mark.x // (column or 1.0), bound
            if place not in found or getattr(mark, bound) > getattr(found[place], bound):
                found[place] = mark
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
    sizes = max(usage.before_bytes, usage.after_bytes), peak.lo_bytes, max(peak.lo_bytes, peak.hi_bytes or 0)
    return Mark(label, kind, left, right, x, *map(in_mb, sizes))
