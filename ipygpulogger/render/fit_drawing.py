"""The runs of a cell over the size of its data, drawn as SVG: points, the line, and where the room ends."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, NamedTuple

from ..records.line_through import sizes_of
from ..records.units import MB, clipped, printable, size_text
from .markup import BLUE, RED

if TYPE_CHECKING:
    from ..records.fit import MemoryFit
    from ..records.line_through import LineThrough

_WIDTH, _HEIGHT, _LEFT, _BELOW, _ABOVE = 460, 170, 64, 20, 12  # px
_BEYOND = 3  # times the largest size that ran: what is drawn at most
_ROOM = 1.5  # times the highest point: a higher room is not drawn
_TICK, _LINE = 44, 12  # px: the least distance of two numbers beside each other, and below each other
_DASHES = ' stroke-dasharray="4 3"'
_LETTERS = "fill=currentColor font-size=11 opacity=.7"


class _Scale(NamedTuple):
    """What is drawn: from 0 to the largest size, and from 0 to the highest need."""

    size: float
    need_bytes: float

    def x(self, size: float) -> float:
        return round(_LEFT + size / self.size * (_WIDTH - _LEFT - 8), 1)

    def y(self, need_bytes: float) -> float:
        return round(_ABOVE + (1 - need_bytes / self.need_bytes) * (_HEIGHT - _ABOVE - _BELOW), 1)


def drawing(memory: MemoryFit, name: str) -> str:
    """Return the runs as points, the line through them, and where it meets what is left, as SVG.

    Args:
        memory: What is drawn.
        name: What varied.
    """
    largest = sizes_of(memory.points)[-1]
    ends_at = memory.ends_at or 0
    size = 1.06 * (ends_at if largest < ends_at <= _BEYOND * largest else largest)
    highest_bytes = max(*(point.need_bytes for point in memory.points), memory.line.at(int(size)), MB)
    room_bytes = memory.room_bytes
    if room_bytes is not None and room_bytes > _ROOM * highest_bytes:
        room_bytes = None
    scale = _Scale(size, 1.04 * max(highest_bytes, room_bytes or 0))
    parts = [
        f'<path stroke=#8888 fill=none d="M{_LEFT} {_ABOVE}V{scale.y(0)}H{_WIDTH}"/>',
        _line(memory.line, scale, "" if memory.is_straight else _DASHES),
        *([] if room_bytes is None else _room(room_bytes, memory.ends_at, scale)),
        *_points(memory, scale),
        *_numbers(memory, room_bytes, scale),
        _word(_LEFT - 5, _HEIGHT - 6, escape(clipped(name, 10)), "end"),
    ]
    label = f'role=img aria-label="{escape(memory.device)} over {escape(name)}"'
    place = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width={_WIDTH} height={_HEIGHT} style=max-width:100%'
    return f"<div><svg {label} {place}>{''.join(parts)}</svg></div>"


def _line(line: LineThrough, scale: _Scale, dashes: str) -> str:
    """Return the line, from where it leaves the axis."""
    begin = max(0.0, -line.base / line.rise)
    (x1, y1), (x2, y2) = (
        (scale.x(size), scale.y((line.rise * size + line.base) / line.scale))
        for size in (min(begin, scale.size), scale.size)
    )
    return f'<path stroke={BLUE} fill=none d="M{x1} {y1}L{x2} {y2}"{dashes}/>'


def _room(room_bytes: int, ends_at: int | None, scale: _Scale) -> list[str]:
    """Return the height of what is left, and the size at which it ends."""
    y = scale.y(room_bytes)
    parts = [f'<path stroke={RED} fill=none d="M{_LEFT} {y}H{_WIDTH}"/>']
    if ends_at is not None and ends_at <= scale.size:
        parts.append(f'<path stroke={RED} fill=none d="M{scale.x(ends_at)} {y}V{scale.y(0)}"{_DASHES}/>')
    return parts


def _points(memory: MemoryFit, scale: _Scale) -> list[str]:
    found = []
    for point in memory.points:
        look = f"stroke={BLUE} fill=none" if point == memory.left_out else f"fill={BLUE}"
        title = f"<title>{escape(printable(point.label))}: {escape(size_text(point.need_bytes))}</title>"
        place = f"cx={scale.x(point.size)} cy={scale.y(point.need_bytes)}"
        found.append(f"<circle {place} r=3.5 {look}>{title}</circle>")
    return found


def _numbers(memory: MemoryFit, room_bytes: int | None, scale: _Scale) -> list[str]:
    """Return the numbers beside the axes, as many as there is place for: where the room ends first."""
    highest_bytes = max(point.need_bytes for point in memory.points)
    heights = [highest_bytes] if room_bytes is None else [room_bytes, highest_bytes]
    sizes = sizes_of(memory.points)[::-1]
    if memory.ends_at is not None and memory.ends_at <= scale.size:
        sizes = [memory.ends_at, *sizes]
    parts: list[str] = []
    taken: list[float] = []
    for need_bytes in heights:
        if all(abs(scale.y(need_bytes) - y) >= _LINE for y in taken):
            taken.append(scale.y(need_bytes))
            parts.append(_word(_LEFT - 5, scale.y(need_bytes) + 4, size_text(need_bytes), "end"))
    taken = [_LEFT - 5]  # the name of the axis
    for size in sizes:
        if all(abs(scale.x(size) - x) >= _TICK for x in taken):
            taken.append(scale.x(size))
            parts.append(_word(scale.x(size), _HEIGHT - 6, f"{size:,}", "middle"))
    return parts


def _word(x: float, y: float, markup: str, anchor: str) -> str:
    return f"<text x={x} y={y} text-anchor={anchor} {_LETTERS}>{markup}</text>"
