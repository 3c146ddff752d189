"""The memory of a device over a measurement, by kind: as SVG without script, and as lines of blocks."""

from __future__ import annotations

import textwrap
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from itertools import accumulate, count, pairwise

from ..records.explained import KindTimeline
from ..records.units import clipped, in_mb, nonzero_mb, nonzero_text, printable, time_text
from .markup import AMBER, BLUE, GREY, PALE, PURPLE, RED, columns, typeset

HELD = "held before"  # what people read for "before"
_KINDS = HELD, "parameters", "optimizer state", "variables", "gradients", "activations", "temporaries"
_COLOURS = GREY, BLUE, PALE, "#72b7b2", PURPLE, AMBER, "#9d755d"
FILLS: dict[str, str] = dict(zip(_KINDS, _COLOURS, strict=True))
_FILLINGS = dict(zip(_KINDS, ":█▓▚▒░·", strict=True))  # in a terminal
_ROWS, _COLUMNS, _GUTTER = 12, 66, 12  # in a terminal
_LEFT, _ABOVE, _LANE, _TIMES = 72, 20, 13, 26  # pixels: beside the areas, above them, a phase, the axis
_GRID = 1000  # the areas' own coordinates, each way
_TEXT = "fill=currentColor fill-opacity=.75"


def drawings(timelines: Iterable[KindTimeline], device: str) -> list[Drawing]:
    """Return what there is to draw of a device: nothing where a record was damaged."""
    of_device = (one for one in timelines if one.device == device and one.points)
    whole = (one for one in of_device if all(len(one.kinds) == len(sums) for _, sums in one.points))
    return [Drawing(one) for one in whole if sum(one.peak()[1]) > 0]


class Drawing:
    """A timeline to be drawn."""

    def __init__(self, one: KindTimeline) -> None:
        self._one, self._peak_at, self._peak = one, *one.peak()
        self._bytes, self._first, self._last = sum(self._peak), one.points[0][0], one.points[-1][0]
        self.names: list[str] = [HELD if kind == "before" else kind for kind in one.kinds]
        spans: dict[str, list[tuple[float, float]]] = {"forward": [], "backward": [], "step": []}
        for name, begin, end in one.phases:
            spans.setdefault(name, []).append((self._share(begin), self._share(end)))
        self._phases = {name: found for name, found in spans.items() if found}

    def text(self) -> list[str]:
        """Return lines: the peak, twelve of blocks, phases, the axis, and what the blocks mean."""
        place = _column(self._share(self._peak_at))
        peak = f"{nonzero_mb(self._bytes)} at {self._when(self._peak_at)}"
        is_left = place + len(peak) + 2 < _COLUMNS
        lines = [("", " " * place + f"▼ {peak}" if is_left else f"{peak} ▼".rjust(place + 1))]
        fillings = [*(_FILLINGS[name] for name in self.names), " "]
        tops = [list(accumulate(sizes)) for sizes in columns(self._one.points, _COLUMNS, key=sum)]
        sizes = {min(int(share * _ROWS), _ROWS - 1): words for share, words in self._sizes()}
        for row in reversed(range(_ROWS)):
            level = (row + 0.5) / _ROWS * self._bytes
            lines.append((sizes.get(row, ""), "".join(fillings[bisect_right(top, level)] for top in tops)))
        for name, spans in self._phases.items():
            lane = [" "] * _COLUMNS
            for begin, end in ((_column(a), round(b * _COLUMNS)) for a, b in spans):
                lane[begin : max(end, begin + 1)] = "━" * max(end - begin, 1)
            lines.append((name, "".join(lane)))
        first, last = self._when(self._first), self._when(self._last)
        lines.append(("", first + last.rjust(_COLUMNS - len(first))))
        keys = "  ".join(f"{_FILLINGS[name]}\N{NO-BREAK SPACE}{name}" for name in self.names)
        lines += [("", printable(line)) for line in textwrap.wrap(keys, _COLUMNS)]
        return [f"{clipped(printable(name), _GUTTER):>{_GUTTER}} {line}".rstrip() for name, line in lines]

    def svg(self, fills: Mapping[str, str], height: int) -> str:
        """Return SVG with areas of this height; its words have one size however wide it is."""
        bottom = _ABOVE + height
        drawn = ""
        for share, words in self._sizes():
            y = round(bottom - share * height)
            drawn += f"<line x2=100% y1={y} y2={y} stroke=currentColor stroke-opacity=.2 />"
            drawn += f"<text x=-8 y={y + 4} text-anchor=end {_TEXT}>{words}</text>"
        drawn += (
            f'<svg y={_ABOVE} width=100% height={height} viewBox="0 0 {_GRID} {_GRID}" '
            f"preserveAspectRatio=none>{self._areas(fills)}</svg>"
        )
        x = f"{self._share(self._peak_at):.2%}"
        anchor = _anchor(self._share(self._peak_at), 0.25)
        drawn += (
            f"<line x1={x} x2={x} y1={_ABOVE} y2={bottom} stroke=currentColor stroke-dasharray=2,3 />"
            f"<circle cx={x} cy={_ABOVE} r=4 fill={RED} />"
            f"<text x={x} y={_ABOVE - 8} text-anchor={anchor} font-weight=bold fill=currentColor>"
            f"{typeset(nonzero_text(self._bytes))} at {self._when(self._peak_at)}</text>"
        )
        for name, spans in self._phases.items():
            drawn += f"<text x=-8 y={bottom + 17} text-anchor=end {_TEXT}>{escape(name)}</text>"
            for begin, end in spans:
                width = max(end - begin, 0.002)
                drawn += f"<rect x={begin:.2%} y={bottom + 10} width={width:.2%} height=7 {_TEXT} />"
            bottom += _LANE
        ticks = _ticks(self._last - self._first)
        for at in ticks:
            share = at / (self._last - self._first or 1)
            where = f"x={share:.2%} y={bottom + 20} text-anchor={_anchor(share, 0.06)}"
            unit = " s" if self._one.unit == "s" else " allocations" if at == ticks[-1] else ""
            drawn += f"<text {where} {_TEXT}>{at:,.9g}{unit}</text>"
        # Where a notebook is not trusted, JupyterLab keeps the words alone: they have no size then.
        return (
            f'<div style="font-size:0;padding-left:{_LEFT}px;max-width:{2 * height + 200}px">'
            f'<svg role=img overflow=visible aria-label="{escape(self._said())}" width=100%'
            f' height={bottom + _TIMES} style="display:block;font:11px sans-serif">{drawn}</svg></div>'
        )

    def _areas(self, fills: Mapping[str, str]) -> str:
        """Return one path for each kind, upon those below: along its upper edge, back along the lower."""
        along = [round(self._share(at) * _GRID) for at, _ in self._one.points]
        tops = [list(accumulate(sums, initial=0)) for _, sums in self._one.points]
        levels = [[_GRID - round(top / self._bytes * _GRID) for top in one] for one in tops]
        drawn = ""
        for name, (lower, upper) in zip(self.names, pairwise(zip(*levels, strict=True)), strict=True):
            there = [f"H{x}V{b}" for x, (a, b) in zip(along[1:], pairwise(upper), strict=True) if a != b]
            back = [f"H{x}V{a}" for x, (a, b) in zip(along[1:], pairwise(lower), strict=True) if a != b]
            path = f"M0 {upper[0]}{''.join(there)}H{_GRID}V{lower[-1]}{''.join(reversed(back))}H0Z"
            drawn += f'<path fill={fills[name]} d="{path}"><title>{name}</title></path>'
        return drawn

    def _said(self) -> str:
        """Return the drawing in one sentence."""
        kinds = sorted(zip(self._peak, self.names, strict=True), reverse=True)
        parts = ", ".join(f"{name} {nonzero_text(size)}" for size, name in kinds if size)
        phases = f"; marked: {', '.join(self._phases)}" if self._phases else ""
        is_time = self._one.unit == "s"
        span = time_text(self._last) if is_time else f"{int(self._last):,} allocations"
        highest = f"highest {nonzero_text(self._bytes)} at {self._when(self._peak_at)}"
        return f"Memory of {self._one.device} over {span} by kind, {highest}: {parts}{phases}."

    def _when(self, at: float) -> str:
        return time_text(at) if self._one.unit == "s" else f"allocation {int(at):,}"

    def _share(self, at: float) -> float:
        """Return how far along the axis a moment is, from 0 to 1."""
        return min(max((at - self._first) / (self._last - self._first or 1), 0.0), 1.0)

    def _sizes(self) -> Iterator[tuple[float, str]]:
        """Yield round sizes: their share of the peak, and how they are written."""
        for tick in _ticks(in_mb(self._bytes)):
            yield tick / in_mb(self._bytes), f"{tick:,.9g} MB" if tick else "0"


def _ticks(most: float) -> list[float]:
    """Return round figures from 0 to the highest one: two to four steps."""
    steps = (factor * 10.0**power for power in count(-9) for factor in (1, 2, 5))
    step = next(step for step in steps if 4 * step >= most)
    return [step * i for i in range(int(most / step) + 1)]


def _column(share: float) -> int:
    return min(int(share * _COLUMNS), _COLUMNS - 1)


def _anchor(share: float, near: float) -> str:
    return "start" if share < near else "end" if share > 1 - near else "middle"
