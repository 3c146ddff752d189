"""A notebook's memory over time in 80 columns of characters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..records.units import MB, clipped, printable_lines, size_text, time_text
from .plot_data import OWN, WHOLE, Axis, panels

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..records import CellRecord
    from .plot_data import Panel, Points

_LEFT, _WIDTH, _ROWS = 9, 71, 6  # characters: of the sizes, of a panel; lines of a panel
_EIGHTHS = " ▁▂▃▄▅▆▇█"


def drawing(records: Iterable[CellRecord]) -> str:
    """Return what `plot.figure` draws, as text: the cells side by side, as wide as they took long.

    Raises:
        ValueError: `records` is empty.
    """
    axis = Axis(records)
    lines = [axis.process] if axis.process else []
    for panel in panels(axis):
        highest = f", highest {panel.highest}" if panel.highest else ""
        lines += [clipped(f"{panel.title}{highest}", _LEFT + _WIDTH), *_rows(panel, axis)]
    lines.append(_numbers(axis))
    lines.append(f"{'0':>{_LEFT + 1}}{time_text(axis.width):>{_WIDTH - 1}}")
    lines.append(f"{'':{_LEFT}}█ in use  ░ highest of the cell")
    return printable_lines(line.rstrip() for line in lines)


def _rows(panel: Panel, axis: Axis) -> list[str]:
    """Return the lines of one panel, the highest first: in eighths of a line, as far as memory was in use."""
    used, highest = [0.0] * _WIDTH, [0.0] * _WIDTH
    for run in panel.curves[OWN] or panel.curves[WHOLE]:
        _fill(used, run, axis)
    for mark in panel.marks:
        _fill(highest, [(mark.left, mark.top_mb), (mark.right, mark.top_mb)], axis)
    lines, most_mb = [], max(1.0, *used, *highest)
    for row in reversed(range(_ROWS)):
        drawn = ""
        for used_mb, top_mb in zip(used, highest, strict=True):
            eighths, top = (round(size_mb / most_mb * 8 * _ROWS) - 8 * row for size_mb in (used_mb, top_mb))
            drawn += "░" if eighths <= 0 < top else _EIGHTHS[max(0, min(eighths, 8))]
        label = size_text(most_mb * MB) if row == _ROWS - 1 else "" if row else "0"
        lines.append(f"{label:>{_LEFT - 1}} {drawn}")
    return lines


def _fill(columns: list[float], points: Points, axis: Axis) -> None:
    """Raise columns to the highest of straight lines between points."""
    for (left, before_mb), (right, after_mb) in zip(points, points[1:] or points, strict=False):
        first, last = (min(int(x / axis.width * _WIDTH), _WIDTH - 1) for x in (left, right))
        for at in range(first, last + 1):
            part = (at - first) / (last - first) if last > first else 1.0
            size_mb = before_mb + (after_mb - before_mb) * part
            columns[at] = max(columns[at], size_mb if last > first else max(before_mb, after_mb))


def _numbers(axis: Axis) -> str:
    """Return the line of the cells' numbers, failed cells first, where none covers another."""
    line = [" "] * (_LEFT + _WIDTH)
    for band in sorted(axis.bands, key=lambda band: band.cell.status == "ok"):
        label = f"{band.cell.execution_count or ''}{'' if band.cell.status == 'ok' else '✕'}"
        at = _LEFT + int((band.left + band.right) / 2 / axis.width * (_WIDTH - 1)) - (len(label) - 1) // 2
        if "".join(line[at - 1 : at + len(label) + 1]).isspace() and at + len(label) <= len(line):
            line[at : at + len(label)] = label
    return "".join(line)
