"""A time series in little room: as a line of block characters, and as a drawing for HTML."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from ..records.units import MB, size_text
from .markup import BLUE, RED

if TYPE_CHECKING:
    from ..records import Timeline

_BLOCKS = "▁▂▃▄▅▆▇█"
_POINTS, _STEP, _HEIGHT = 20, 6, 14  # of the drawing; px
_FLAT = 0.1  # of the maximum


def sparkline(timeline: Timeline, width: int = 24) -> str:
    """Return a time series as a line of blocks: the lowest point is ▁, the highest █.

    A column shows the highest of its points, so that the peak is never lost. A column without a point lies
    on the straight line between its neighbours. A series that varies by less than a megabyte is flat: all ▁.

    Args:
        timeline: Seconds and bytes, in order of time.
        width: In characters.

    Returns:
        ``width`` characters; none for an empty series.
    """
    if not timeline or width < 1:
        return ""
    sizes = [size for _, size in timeline]
    low, high = min(sizes), max(sizes)
    if not varies(timeline):
        return _BLOCKS[0] * width
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round((size - low) / (high - low) * top)] for size in _columns(timeline, width))


def drawing(timeline: Timeline) -> str:
    """Return a time series as a thin line on an axis that begins at zero, and its maximum in words.

    Args:
        timeline: Seconds and bytes, in order of time.

    Returns:
        SVG and text; empty if the line would be flat.
    """
    if not varies(timeline):
        return ""
    columns = [max(0.0, size) for size in _columns(timeline, _POINTS)]
    high = max(columns)
    if high - min(columns) < high * _FLAT:
        return ""
    heights = [round(_HEIGHT * (1 - size / high)) + 1 for size in columns]
    steps = " ".join(f"{_STEP} {after - before}" for before, after in pairwise(heights)).replace(" -", "-")
    line = f'<path fill=none stroke={BLUE} d="M0 {heights[0]}l{steps}"/>'
    peak = f"<circle cx={_STEP * columns.index(high)} cy=1 r=2 fill={RED} />"
    axis = f'<path stroke=#8888 d="M0 {_HEIGHT + 1.5}h{_STEP * _POINTS}"/>'
    size_px = f"width={_STEP * _POINTS} height={_HEIGHT + 2}"
    return f"<svg {size_px} style=vertical-align:bottom>{axis}{line}{peak}</svg> max {size_text(high)}"


def varies(timeline: Timeline) -> bool:
    """Return whether a time series varies by a megabyte or more."""
    sizes = [size for _, size in timeline]
    return bool(sizes) and max(sizes) - min(sizes) >= MB


def _columns(timeline: Timeline, width: int) -> list[float]:
    """Return the highest point in each of so many equal parts of the time."""
    start_s = timeline[0][0]
    span_s = timeline[-1][0] - start_s
    found: dict[int, float] = {}
    for at_s, size in timeline:
        column = min(int((at_s - start_s) / span_s * width), width - 1) if span_s else 0
        found[column] = max(size, found.get(column, size))
    if not span_s:
        return [found[0]] * width
    columns, right = [], 0  # `right`: the first point after the middle of the column
    for column in range(width):
        middle_s = start_s + (column + 0.5) / width * span_s
        while timeline[right][0] < middle_s:
            right += 1
        (left_s, left_size), (right_s, right_size) = timeline[max(right - 1, 0)], timeline[right]
        share = (middle_s - left_s) / (right_s - left_s) if right_s > left_s else 1.0
        columns.append(found.get(column, left_size + (right_size - left_size) * share))
    return columns
