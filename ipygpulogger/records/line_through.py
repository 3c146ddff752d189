"""The straight line nearest to some points, in whole numbers, so that points on a line are met exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .units import MB

if TYPE_CHECKING:
    from collections.abc import Sequence

_TOLERANCE_BYTES, _TOLERANCE = 2 * MB, 0.02  # and this much of the highest point


class Point(NamedTuple):
    """What one run needed.

    Attributes:
        size: How large its data was.
        need_bytes: What it needed at its peak.
        label: The run: "In [4]".
    """

    size: int
    need_bytes: int
    label: str = ""


class LineThrough(NamedTuple):
    """The line with the least sum of squared deviations: need = (rise * size + base) / scale.

    Attributes:
        rise: The slope, times `scale`.
        base: The need at size 0, times `scale`.
        scale: Makes both whole numbers; positive.
    """

    rise: int
    base: int
    scale: int

    @classmethod
    def of(cls, points: Sequence[Point]) -> LineThrough:
        """Return the line nearest to points of at least two sizes."""
        count, sizes = len(points), sum(point.size for point in points)
        needs = sum(point.need_bytes for point in points)
        products = sum(point.size * point.need_bytes for point in points)
        scale = count * sum(point.size**2 for point in points) - sizes**2
        rise = count * products - sizes * needs
        return cls(rise * count, needs * scale - rise * sizes, scale * count)

    def at(self, size: int) -> int:
        """Return the need at a size, in whole bytes, rounded up."""
        return -((-self.rise * size - self.base) // self.scale)

    def reaches(self, room_bytes: int) -> int | None:
        """Return the largest size whose need is at most this; None if the line does not rise."""
        if self.rise <= 0:
            return None
        return max(0, (room_bytes * self.scale - self.base) // self.rise)

    def off_bytes(self, points: Sequence[Point]) -> int:
        """Return how far the farthest point lies from the line."""
        return max(abs(point.need_bytes - self.at(point.size)) for point in points)

    def meets(self, points: Sequence[Point]) -> bool:
        """Return whether no point lies farther from the line than allocators round: 2 MB, or 2 %."""
        highest_bytes = max(point.need_bytes for point in points)
        return self.off_bytes(points) <= max(_TOLERANCE_BYTES, _TOLERANCE * highest_bytes)


def sure_size(line: LineThrough, points: Sequence[Point], room_bytes: int) -> int:
    """Return up to which size the room is enough although runs do not need exactly what a line says.

    It is, if neither the points nor what is needed at that size lie more than twice as far from the true line
    as the points lie from this one. Two sizes always lie on a line: there 2 MB stand for that distance. While
    only two other sizes ran, the first run may be unlike them, and the line of the others must have room as
    well; while only one did, the line from there to 0.

    Args:
        line: The line nearest to the points; it rises.
        points: Of at least two sizes, in the order of the runs.
        room_bytes: What there is room for.
    """
    lowest, *between, highest = sizes_of(points)
    off_bytes = line.off_bytes(points)
    noise_bytes = 2 * off_bytes if between else max(2 * off_bytes, _TOLERANCE_BYTES)
    apart_bytes = off_bytes + noise_bytes  # the true line from this one, among the sizes
    sure, most = 0, line.reaches(room_bytes) or 0
    while sure < most:
        size = (sure + most + 1) // 2
        beyond = max(0, lowest - size, size - highest)
        spread_bytes = apart_bytes + 2 * apart_bytes * beyond // (highest - lowest)
        if line.at(size) + spread_bytes + noise_bytes <= room_bytes:
            sure = size
        else:
            most = size - 1
    others = points[1:]
    sizes = sizes_of(others)
    if points[0].size in sizes or len(sizes) > 2:
        return sure
    end = LineThrough.of(others if len(sizes) > 1 else [*others, Point(0, 0)]).reaches(room_bytes)
    return sure if end is None else min(sure, max(end, sizes[-1]))


def sizes_of(points: Sequence[Point]) -> list[int]:
    """Return the different sizes, the smallest first."""
    return sorted({point.size for point in points})


def without_warm_up(points: Sequence[Point]) -> Sequence[Point]:
    """Return the points without the first run's, if the others lie on a line and it does not.

    A first run also needs what libraries allocate once, and a first training step has no optimizer state yet.
    """
    first, *others = points
    if len(sizes_of(others)) < 2 or LineThrough.of(points).meets(points):
        return points
    line = LineThrough.of(others)
    is_proven = len(sizes_of(others)) > 2 or first.size in sizes_of(others)
    return others if is_proven and line.meets(others) and not line.meets([*others, first]) else points


def unproven_first(points: Sequence[Point]) -> Point | None:
    """Return the first run if too few others tell whether it is unlike them; None if enough do."""
    first, *others = points
    sizes = sizes_of(others)
    if first.size in sizes or len(sizes) > 2:
        return None
    return None if len(sizes) == 2 and LineThrough.of(points).meets(points) else first


def bend(points: Sequence[Point]) -> int:
    """Return 1 if the need rises faster and faster with the size, -1 if slower and slower, 0 if neither."""
    sizes = sizes_of(points)
    means = [_mean(points, size) for size in sizes]
    slopes = [(means[i + 1] - means[i]) / (sizes[i + 1] - sizes[i]) for i in range(len(sizes) - 1)]
    if len(slopes) < 2:
        return 0
    if slopes == sorted(slopes):
        return 1
    return -1 if slopes == sorted(slopes, reverse=True) else 0


def secant(points: Sequence[Point]) -> LineThrough:
    """Return the line through the two largest sizes."""
    largest = sizes_of(points)[-2:]
    return LineThrough.of([point for point in points if point.size in largest])


def bent_reaches(points: Sequence[Point], room_bytes: int) -> int | None:
    """Return where the room ends by the line through the two largest sizes; None if that line does not rise.

    Where the first run may be unlike the others, the line of those counts as well: of both ends the smaller
    if the need rises slower and slower, so that the room is enough at least up to there, else the larger.
    """
    end = secant(points).reaches(room_bytes)
    if end is None or unproven_first(points) is None:
        return end
    other = LineThrough.of(points[1:]).reaches(room_bytes)
    if bend(points) < 0:
        return end if other is None else min(end, other)
    return None if other is None else max(end, other)


def _mean(points: Sequence[Point], size: int) -> float:
    needs = [point.need_bytes for point in points if point.size == size]
    return sum(needs) / len(needs)
