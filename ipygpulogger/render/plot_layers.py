"""The stacked layers of the plot: how a device's memory was divided over time.

From the bottom: what this process holds outside the allocator, tensors, cached, and other processes; the top
is what is in use on the whole device. Records have tensors and cached at the ends of a cell only, and between
them the whole device's time series. What that series shows above the tensors is drawn as cached where it was
this process's own: memory that the allocator had reserved, for its cache or for tensors that lived for a
moment.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from ..records.units import in_mb

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..records import DeviceUsage

    Points = list[tuple[float, float]]  # a place on the time axis, and MB
    Row = tuple[float, tuple[float, ...]]  # a place on the time axis, and the tops of the layers there

_SAME_MB = 1e-7  # less than a byte: an error of the arithmetic
_STEADY_MB = 64.0  # what other processes may change by without being seen


class Piece(NamedTuple):
    """The layers of a panel over one stretch of time."""

    edges: tuple[Points, ...]  # the upper edge of each layer, from the bottom
    sampled: bool  # otherwise only the ends of cells are known, and straight lines join them

    @classmethod
    def of_rows(cls, rows: Sequence[Row], *, sampled: bool) -> Piece:
        """Return the piece whose layers have these tops."""
        count = len(rows[0][1])
        return cls(tuple([(x, tops[number]) for x, tops in rows] for number in range(count)), sampled)

    @classmethod
    def of_curve(cls, points: Points, *, sampled: bool) -> Piece:
        """Return the piece of a panel with one layer, from points in any order."""
        return cls((sorted(points, key=_x),), sampled)

    @property
    def left(self) -> float:
        """Where it begins."""
        return self.edges[0][0][0]

    @property
    def right(self) -> float:
        """Where it ends."""
        return self.edges[0][-1][0]

    def shape(self, number: int) -> Points:
        """Return the outline of a layer: its upper edge, then the lower one backwards; empty if flat."""
        upper = self.edges[number]
        lower = self.edges[number - 1] if number else [(self.left, 0.0), (self.right, 0.0)]
        if upper == lower or all(size <= 0 for _, size in upper):
            return []
        return [*upper, *reversed(lower)]


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
        return Levels(outside, own - outside, 0.0 if use.context_bytes else like.cached, others)


class Stack:
    """The layers of one device over one stretch of time, while its cells are added."""

    def __init__(self, last: Levels | None) -> None:
        self.last = last  # at the end of the cell that ended last
        self._end = -1.0
        self._before = last
        self._levels: tuple[Points, ...] = ([], [], [], [])
        self._whole: Points = []  # sampled: in use on the whole device
        self._steady = True  # what other processes use did not change while it was sampled

    def __bool__(self) -> bool:
        return bool(self._levels[0])

    def add(self, use: DeviceUsage, left: float, right: float) -> None:
        """Add one cell, unless nothing is known of the device there."""
        if not use.attributed and use.used_bytes is None and not use.timeline:
            return
        after = Levels.after(use)
        before = after.before(use, self._before)
        for points, begin, end in zip(self._levels, before, after, strict=True):
            points.extend(((left, begin), (right, end)))
        self._whole += [(min(left + at_s, right), in_mb(size)) for at_s, size in use.timeline]
        self._steady &= abs(after.others - before.others) <= _STEADY_MB and _is_own(use)
        if right >= self._end:
            self.last, self._end = after, right

    def piece(self) -> Piece:
        """Return all cells together."""
        return Piece.of_rows(list(self._rows()), sampled=bool(self._whole))

    def _rows(self) -> Iterator[Row]:
        levels = [sorted(points, key=_x) for points in self._levels]
        if not self._whole:
            for x, parts in _rows(levels):
                yield x, _stacked(parts)
            return
        for x, parts in _rows([*levels, sorted(self._whole, key=_x)]):
            yield x, self._within(*parts)

    def _within(
        self, outside: float, tensors: float, cached: float, others: float, whole: float
    ) -> tuple[float, ...]:
        """Return the tops of the layers at a moment when the whole device was sampled."""
        own = max(0.0, whole - others) if self._steady else min(whole, outside + tensors + cached)
        floor = min(outside, own)
        return floor, min(floor + tensors, own), own, whole


def _is_own(use: DeviceUsage) -> bool:
    """Return whether what the whole device shows beyond both ends was this process's own.

    Where per-process usage is unavailable, it was if the most that the allocator had reserved explains the
    highest sample.
    """
    if not use.attributed or use.neighbours_rise_bytes or use.unknown_rise_bytes:
        return False
    if in_mb(abs(use.unattributed_bytes)) > _STEADY_MB:
        return False
    if use.neighbours_bytes is not None:
        return True
    reserved = use.reserved_peak
    if reserved is None or reserved.hi_bytes is None or use.other_bytes is None:
        return False
    highest_bytes = max((size for _, size in use.timeline), default=0)
    return in_mb(highest_bytes - use.other_bytes - reserved.hi_bytes) <= _STEADY_MB


def _stacked(parts: Sequence[float]) -> tuple[float, ...]:
    return tuple(sum(parts[: number + 1]) for number in range(len(parts)))


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


def drawable(pieces: Sequence[Piece], column: float) -> list[Piece]:
    """Return as few pieces and points as a picture shows whose columns are so wide; no peak is lost."""
    return [
        piece._replace(edges=tuple(_straightened(_thinned(edge, column)) for edge in piece.edges))
        for piece in _merged(pieces, column)
    ]


def _merged(pieces: Sequence[Piece], column: float) -> list[Piece]:
    """Return the pieces, of which those are one that no picture shows apart."""
    found: list[Piece] = []
    for piece in pieces:
        if found and piece.left - found[-1].right < column / 2:
            for edge, more in zip(found[-1].edges, piece.edges, strict=True):
                edge.extend(more)
            found[-1] = found[-1]._replace(sampled=found[-1].sampled or piece.sampled)
        else:
            found.append(piece._replace(edges=tuple(map(list, piece.edges))))
    return found


def _thinned(edge: Points, column: float) -> Points:
    """Return both ends of an edge, and its highest and its lowest point in each column."""
    columns: dict[float, list[int]] = {}
    for at, (x, _) in enumerate(edge):
        columns.setdefault(x // column, []).append(at)
    keep = {0, len(edge) - 1}
    for inside in columns.values():
        keep |= {pick(inside, key=lambda at: edge[at][1]) for pick in (min, max)}
    return [edge[at] for at in sorted(keep)]


def _straightened(edge: Points) -> Points:
    """Return an edge without the points on a straight line between their neighbours."""
    kept = edge[:1]
    for (x, size), (after, size_after) in pairwise([*edge[1:], (math.inf, 0.0)]):
        before, size_before = kept[-1]
        share = (x - before) / (after - before) if after > before else math.inf
        on_line = abs(size_before + (size_after - size_before) * share - size) <= _SAME_MB
        if after == math.inf or not on_line:
            kept.append((x, size))
    return kept
