"""What the plot of a notebook shows, in numbers and as characters: its cells side by side, panels over them.

The axis has the time in the cells alone. Straight lines join what is known: the ends of cells, and samples.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timezone
from typing import TYPE_CHECKING, NamedTuple

from ..analysis.ranking import of_one_process, raising
from ..records.units import MB, clipped, in_mb, printable, printable_lines, size_text, time_text
from .growth import named_devices

if TYPE_CHECKING:
    from ..records import CellRecord, DeviceUsage, Usage

    Points = list[tuple[float, float]]  # a place on the time axis, and MB

OWN, WHOLE = "this process", "all processes on the device"
_COLUMNS = 300  # of a single panel: in each, of a curve only the extremes are kept
_TOP = 1.1  # above the highest
_IN_VIEW = 2.5  # times the highest use: a limit above has no line
_MARKED = 24  # peaks of a panel
_NOTABLE = 0.06  # of the panel's height: a peak that rises by less above its cell is not marked
_SHADED_COLUMNS = 120  # parts of the axis; narrower cells are not shaded alternately
SIZES: Mapping[str, int] = {"MB": 1, "GB": 1024}
TIMES: Mapping[str, int] = {"s": 1, "min": 60, "h": 3600}
# Of the drawing in characters: of the sizes, of a panel; lines of a panel.
_LEFT, _WIDTH, _ROWS = 9, 71, 6
_EIGHTHS = " ▁▂▃▄▅▆▇█"


class Band(NamedTuple):
    """A cell on the time axis, with those that ran within it."""

    cells: list[CellRecord]  # the outer one first
    left: float
    right: float

    @property
    def cell(self) -> CellRecord:
        """The cell whose band it is."""
        return self.cells[0]

    def ends(self, cell: CellRecord) -> tuple[float, float]:
        """Return where one of its cells begins and ends on the axis."""
        left = self.left + (cell.started_at - self.cell.started_at).total_seconds()
        return left, min(left + cell.time_s, self.right)


class Axis:
    """Where each moment is drawn: in seconds, the cells one after the other; without any a ValueError."""

    def __init__(self, records: Iterable[CellRecord]) -> None:
        self.process: str  # its name; empty for the notebook's own kernel
        found, self.process = of_one_process(records)
        self.cells: list[CellRecord] = sorted(found, key=lambda record: (record.started_at, -record.time_s))
        if not self.cells:
            raise ValueError("there is nothing to plot: no cell has been reported yet")
        begin = self.cells[0].started_at
        since = f"{begin.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
        self.caption: str = f"time in the cells, from {since} on"
        self.bands: list[Band] = []
        x = last_s = 0.0
        for cell in self.cells:
            start_s = (cell.started_at - begin).total_seconds()
            end_s = start_s + cell.time_s
            if self.bands and start_s < last_s and end_s <= last_s:
                self.bands[-1].cells.append(cell)
                continue
            left, x = x, x + end_s - max(start_s, last_s)
            self.bands.append(Band([cell], left, x))
            last_s = end_s
        self.width: float = x or 0.001

    def shaded(self) -> tuple[list[Band], list[Band]]:
        """Return every second cell, if it is wide and did not fail, and each that failed."""
        wide = [band for band in self.bands[1::2] if band.right - band.left >= self.width / _SHADED_COLUMNS]
        failed = [band for band in self.bands if band.cell.status != "ok"]
        return [band for band in wide if band.cell.status == "ok"], failed

    def numbers(self, letter: float) -> Iterator[tuple[float, str, bool]]:
        """Yield the middle of a band, its number, whether it failed, where so wide letters have room."""
        taken: list[tuple[float, float]] = []
        for band in sorted(self.bands, key=lambda band: band.cell.status == "ok"):
            failed, count = band.cell.status != "ok", band.cell.execution_count
            label = str(count) if count and band.cell.label == f"In [{count}]" else printable(band.cell.label)
            label += " ✕" if failed else ""
            middle, half = (band.left + band.right) / 2, (len(label) + 1) * letter / 2
            left, right = middle - half, middle + half
            inside = -letter <= left and right <= self.width + letter
            if inside and all(right <= start or end <= left for start, end in taken):
                taken.append((left, right))
                yield middle, label, failed


def ticks(most: float, units: Mapping[str, int]) -> dict[float, str]:
    """Return round ticks from zero on, six at most, in the largest unit of which there are two or more."""
    unit = [name for name, size in units.items() if size == 1 or most >= 2 * size][-1]
    wide = max(most / units[unit] / 5, 1e-9)
    power = 10.0 ** math.floor(math.log10(wide))
    step = next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= wide)
    steps = (count * step for count in range(6) if count * step * units[unit] <= most)
    return {at * units[unit]: f"{at:g} {unit}" if at else "0" for at in steps}


class Mark(NamedTuple):
    """How high memory was in one cell."""

    cell: CellRecord
    left: float
    right: float
    usage: Usage

    @property
    def top_mb(self) -> float:
        """The highest in MB; if it is not exact, its lower bound."""
        return in_mb(self.usage.peak.lo_bytes)


@dataclass
class Panel:
    """General RAM or one device: curves of unbroken runs of points, and how high each cell was."""

    name: str
    title: str
    limits: dict[str, float] = field(default_factory=dict)  # by name, in MB
    curves: dict[str, list[Points]] = field(default_factory=lambda: {OWN: [[]], WHOLE: [[]]})
    marks: list[Mark] = field(default_factory=list)

    @property
    def highest(self) -> str:
        """The end of a title, such as ", highest 900 MB, raised by In [1]"; empty where there is none."""
        found = raising([(mark, mark.usage) for mark in self.marks])
        return "" if found is None else f", highest {found[2]}, raised by {found[0].cell.label}"

    def height_mb(self) -> tuple[float, list[float]]:
        """Return the size at the top of the panel, and the limits below it, which are drawn as lines."""
        sizes = [size for runs in self.curves.values() for points in runs for _, size in points]
        highest_mb = max([1.0, *sizes, *(mark.top_mb for mark in self.marks)])
        near = [size_mb for size_mb in self.limits.values() if size_mb <= _IN_VIEW * highest_mb]
        return _TOP * max([highest_mb, *near]), near

    def limits_text(self) -> str:
        """Return the limits, near and far: "total 16 GB, limit 15.1 GB"."""
        words = (f"{name} {size_text(size * MB).replace('.0 ', ' ')}" for name, size in self.limits.items())
        return ", ".join(words)

    def rising(self) -> list[Mark]:
        """Return the highest of those cells in which memory rose notably."""
        least_mb = _NOTABLE * self.height_mb()[0]
        rising = [mark for mark in self.marks if in_mb(mark.usage.peaked_bytes) >= least_mb]
        return heapq.nlargest(_MARKED, rising, key=lambda mark: mark.top_mb)


def panels(axis: Axis, columns: int = _COLUMNS) -> list[Panel]:
    """Return the panels of a plot: general RAM, then each device that any cell used."""
    found = [_ram(axis), *_devices(axis)]
    column = axis.width / columns * len(found) ** 0.5  # the more panels, the fewer points has each
    for panel in found:
        for name, runs in panel.curves.items():
            panel.curves[name] = [thinned(points, column) for points in runs if points]
    return found


def _ram(axis: Axis) -> Panel:
    panel = Panel("RAM", "RAM of this process")
    points: Points = []
    for band in axis.bands:
        of_band: Points = []
        for cell in band.cells:
            left, right = band.ends(cell)
            of_band += [(left, in_mb(cell.gen.before_bytes)), (right, in_mb(cell.gen.after_bytes))]
            of_band += [(left + at_s, in_mb(size)) for at_s, size in cell.gen.timeline]
            panel.marks.append(Mark(cell, left, right, cell.gen))
        points += sorted(of_band, key=lambda point: point[0])
    panel.curves[OWN] = [points]
    return panel


def _devices(axis: Axis) -> Iterator[Panel]:
    """Yield the panel of each device; a curve ends where a cell has no figure of it."""
    for key, (name, gpu) in named_devices(gpu for cell in axis.cells for gpu in cell.gpus).items():
        limits = {"total": gpu.total_bytes, "limit": gpu.limit_bytes}
        known = {what: in_mb(size) for what, size in limits.items() if size is not None}
        panel = Panel(name, f"{name}: {gpu.name}", known)
        for band in axis.bands:
            uses = [(cell, use) for cell in band.cells for use in cell.gpus if use.key == key]
            for cell, use in uses:
                if use.attributed:
                    panel.marks.append(Mark(cell, *band.ends(cell), use))
            # Of cells within one another the outer one has the course.
            course = _course(uses[0][1], *band.ends(uses[0][0])) if uses else {}
            for curve, runs in panel.curves.items():
                if curve in course:
                    runs[-1] += course[curve]
                elif runs[-1]:
                    runs.append([])
        yield panel


def _course(use: DeviceUsage, left: float, right: float) -> dict[str, Points]:
    """Return what is known of a device in one cell, by curve; others hold what they do at its end."""
    course: dict[str, Points] = {}
    sampled = [(min(left + at_s, right), in_mb(size)) for at_s, size in use.timeline]
    if use.attributed:
        before_mb, after_mb = in_mb(use.held_before_bytes), in_mb(use.after_bytes)
        others_mb = max(in_mb(use.used_bytes or 0) - after_mb, 0.0)
        most_mb = in_mb(use.peak.lo_bytes if use.peak.hi_bytes is None else use.peak.hi_bytes)
        between = [(x, min(max(size - others_mb, 0.0), most_mb)) for x, size in sampled]
        course[OWN] = [(left, before_mb), *between, (right, after_mb)]
    if use.used_bytes is not None:
        course[WHOLE] = [*sampled, (right, in_mb(use.used_bytes))]
    return course


def thinned(points: Points, column: float) -> Points:
    """Return both ends of a curve, and the highest and the lowest point of each column."""
    columns: dict[float, list[int]] = {}
    for at, (x, _) in enumerate(points):
        columns.setdefault(x // (column or 1.0), []).append(at)  # 0 of a time that is next to nothing
    keep = {0, len(points) - 1}
    for inside in columns.values():
        keep |= {pick(inside, key=lambda at: points[at][1]) for pick in (min, max)}
    return [points[at] for at in sorted(keep)]


def drawing(records: Iterable[CellRecord]) -> str:
    """Return what `plot.figure` draws, as text: the cells side by side, as wide as they took long."""
    axis = Axis(records)
    lines = [axis.process] if axis.process else []
    for panel in panels(axis):
        lines += [clipped(f"{panel.title}{panel.highest}", _LEFT + _WIDTH), *_rows(panel, axis)]
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
