"""A notebook's memory over time, as a matplotlib figure; and a long cell's, as a line of text."""

from __future__ import annotations

import io
import math
import warnings
from dataclasses import dataclass, field
from datetime import timezone
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ..records import DRIVER, DeviceUsage
from ..records.units import MB
from .text import device_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from matplotlib.figure import Figure

    from ..records import CellRecord, Timeline, Usage

    Key = tuple[str, int, str | None]

_BLOCKS = "▁▂▃▄▅▆▇█"

# Both grounds are set, so that the picture reads alike on a light page and on a dark one.
_PAPER, _INK, _FAINT, _WHOLE = "white", "#222222", "#8a8a8a", "#555555"
_BANDS = "#f3f3f3", "#e6e6e6"
_RAM, _GPU, _FAILED = "#1f5f99", "#7a3b96", "#b3261e"
_WIDTH_IN, _LEFT_IN, _PANEL_IN, _BETWEEN_IN = 9.0, 0.85, 7.95, 0.32
_SMALL = 8  # points
_LETTER_IN = 0.075  # with room around it
_LETTERS = 40
_DPI = 100
_FEW = 4  # panels that have all the height they like
_MANY = 60  # marks that are drawn small
_IN_VIEW = 2.5  # times the highest use: a limit that is drawn
_CLEAR = 9  # pixels: above a mark
_THIN = 2  # pixels: too narrow for a hatch
_COLUMNS = 3  # of the legend
_CLOCK_S = 120  # from there on a time is told in minutes
_TICKS = 8
_STEPS_S = (
    *(n * 10.0**e for e in range(-4, 2) for n in (1, 2, 5) if n * 10.0**e < 60),
    60,
    120,
    300,
    600,
    1200,
    3600,
    7200,
    14400,
    43200,
    86400,
)

_SEEN, _UNSEEN, _AT_LEAST = "peak, at its moment", "peak, at some moment of its cell", "peak, at least"
_MARKERS = {_SEEN: ("o", True), _UNSEEN: ("o", False), _AT_LEAST: ("^", False)}  # and whether it is full


def sparkline(timeline: Timeline, width: int = 24) -> str:
    """The course of one number as a line of blocks: the lowest point is ▁, the highest █.

    A column shows the highest of its points, so the peak is never lost; one without a point lies on the
    straight line between its neighbours. A course that stays within a megabyte is flat: all ▁.

    Args:
        timeline: Seconds and bytes, in order of time.
        width: Characters.

    Returns:
        ``width`` characters; none for an empty timeline.
    """
    if not timeline or width < 1:
        return ""
    sizes = [size for _, size in timeline]
    low, high = min(sizes), max(sizes)
    if high - low < MB:
        return _BLOCKS[0] * width
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round((size - low) / (high - low) * top)] for size in _columns(timeline, width))


def _columns(timeline: Timeline, width: int) -> list[float]:
    """The highest in each of as many equal stretches of time."""
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


def figure(records: Iterable[CellRecord], *, title: str = "") -> Figure:
    """Memory over the time of a notebook: general RAM, and each device that it used.

    Each cell is a band, hatched where the cell failed. A solid line was sampled while a cell ran; a dotted
    one joins the two ends of a cell, between which nobody looked. A peak stands at its moment, a full mark,
    where the samples saw it; else somewhere in its cell, a hollow mark on a dotted bar. Idle time between
    cells is a gap, and a long one is shortened.

    pyplot is not touched: the figure is in nobody's list, and IPython shows it as a picture all the same.

    Args:
        records: In any order; the runs of a kernel that was restarted stand one after the other.
        title: Above the figure.

    Raises:
        ValueError: There are no records.
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'ipygpulogger[plot]'") from error
    axis = _Axis(records)
    panels = [_ram(axis), *_devices(axis)]
    entries = _legend(panels, axis)
    panel_in = 2.0 if len(panels) <= _FEW else 1.3
    legend_in = 0.2 * math.ceil(len(entries) / _COLUMNS) + 0.1
    top_in, bottom_in = 0.3 + (0.35 if title else 0), 0.5 + legend_in
    height_in = top_in + len(panels) * (panel_in + _BETWEEN_IN) - _BETWEEN_IN + bottom_in
    drawn = Figure(figsize=(_WIDTH_IN, height_in), dpi=_DPI, facecolor=_PAPER)
    left, width = _LEFT_IN / _WIDTH_IN, _PANEL_IN / _WIDTH_IN
    if title:
        top = 1 - 0.08 / height_in
        drawn.text(left, top, _plain(title), color=_INK, fontsize=11, va="top", usetex=False)
    all_axes = []
    for place, panel in enumerate(panels):
        bottom = 1 - (top_in + place * (panel_in + _BETWEEN_IN) + panel_in) / height_in
        all_axes.append(drawn.add_axes((left, bottom, width, panel_in / height_in)))
        _draw(all_axes[-1], panel, axis)
    _name_bands(all_axes[0], axis)
    _draw_time(all_axes, axis)
    look = {"fontsize": _SMALL, "frameon": False, "labelcolor": _INK, "borderpad": 0, "borderaxespad": 0}
    drawn.legend(
        handles=entries, loc="lower left", bbox_to_anchor=(left, 0.08 / height_in), ncol=_COLUMNS, **look
    )
    drawn._repr_png_ = partial(_png, drawn)  # type: ignore[attr-defined, unused-ignore]
    return drawn


def named_devices(records: Iterable[CellRecord]) -> dict[Key, tuple[str, DeviceUsage]]:
    """The devices of many cells, each as it was last seen, by the names they have beside one another."""
    latest = {device_key(gpu): gpu for record in records for gpu in record.gpus}
    found = sorted(latest.values(), key=lambda gpu: (gpu.backend == DRIVER, gpu.backend, gpu.index))
    return {device_key(gpu): (device_name(gpu, found), gpu) for gpu in found}


def device_key(gpu: DeviceUsage) -> Key:
    """What stays the same of a device from cell to cell."""
    return gpu.backend, gpu.index, gpu.uuid


def _png(drawn: Figure) -> bytes:
    """The picture, for IPython: a figure that pyplot does not know has no other."""
    stream = io.BytesIO()
    with warnings.catch_warnings():  # a letter that the font lacks is drawn as a box, in a label of ours
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        drawn.savefig(stream, format="png", dpi=_DPI, facecolor=_PAPER, transparent=False)
    return stream.getvalue()


# -- the records over one axis of time -----------------------------------------------------------------


@dataclass
class _Stretch:
    """Cells with no idle time between them: one, and those that ran within it."""

    start_s: float  # since the first cell of all
    end_s: float
    cells: list[CellRecord]
    restarted: bool  # by a kernel that had begun to count anew
    x: float = 0.0  # where it begins on the axis
    idle_s: float = 0.0  # before it
    gap: float = 0.0  # as much of it as the axis shows


class _Band(NamedTuple):
    """A cell on the axis."""

    cell: CellRecord
    left: float
    right: float


class _Axis:
    """Where each moment stands: seconds, of which long idle times have only a few."""

    def __init__(self, records: Iterable[CellRecord]) -> None:
        self.cells = sorted(records, key=lambda record: (record.started_at, -record.time_s))
        if not self.cells:
            raise ValueError("there is nothing to plot: no cell has been reported yet")
        self.begin = self.cells[0].started_at
        self.stretches: list[_Stretch] = []
        count = 0
        for cell in self.cells:
            start_s = self.since(cell)
            if self.stretches and start_s < self.stretches[-1].end_s:
                last = self.stretches[-1]
                last.cells.append(cell)
                last.end_s = max(last.end_s, start_s + cell.time_s)
            else:
                restarted = bool(count and cell.execution_count and cell.execution_count <= count)
                self.stretches.append(_Stretch(start_s, start_s + cell.time_s, [cell], restarted))
                count = cell.execution_count or count
        self.width = self._lay_out() or 0.001
        self.bands = list(self._bands())

    def since(self, cell: CellRecord) -> float:
        """From the first cell's start to this one's."""
        return (cell.started_at - self.begin).total_seconds()

    def pixels(self, span: _Band | _Mark) -> float:
        """How wide it is drawn."""
        return (span.right - span.left) / self.width * _PANEL_IN * _DPI

    def _lay_out(self) -> float:
        busy_s = sum(stretch.end_s - stretch.start_s for stretch in self.stretches)
        idle_s = self.stretches[-1].end_s - busy_s
        longest_s = busy_s * min(0.03, 0.4 / len(self.stretches)) if idle_s > busy_s / 2 else math.inf
        x = end_s = 0.0
        for stretch in self.stretches:
            stretch.idle_s = stretch.start_s - end_s
            stretch.gap = min(stretch.idle_s, longest_s)
            stretch.x = x + stretch.gap
            x, end_s = stretch.x + stretch.end_s - stretch.start_s, stretch.end_s
        return x

    def _bands(self) -> Iterator[_Band]:
        for stretch in self.stretches:
            right = stretch.x
            for cell in stretch.cells:  # a cell within another has none of its own
                end = stretch.x + self.since(cell) + cell.time_s - stretch.start_s
                if cell is stretch.cells[0] or (end > right and cell.execution_count is not None):
                    yield _Band(cell, right, end)
                    right = end


@dataclass
class _Course:
    """A line with gaps; a point is a place on the axis and MB."""

    sampled: list[tuple[float, float]] = field(default_factory=list)
    joined: list[tuple[float, float]] = field(default_factory=list)  # ends of cells, nothing in between

    def __bool__(self) -> bool:
        return bool(self.sampled or self.joined)

    def add(self, points: list[tuple[float, float]], *, sampled: bool) -> None:
        """The points of one stretch, in any order."""
        line = self.sampled if sampled else self.joined
        line += [*sorted(points, key=lambda point: point[0]), (math.nan, math.nan)] if points else []


class _Mark(NamedTuple):
    """A peak, in MB."""

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
        """Whether its bounds are worth telling apart."""
        return self.most_mb - self.top_mb >= 1

    def __str__(self) -> str:
        least = "at least " if self.kind == _AT_LEAST else ""
        bound = f" to {self.most_mb:,.0f}" if self.bounded else ""
        return f"{self.label}: {least}{self.top_mb:,.0f}{bound} MB"


@dataclass
class _Panel:
    """General RAM or one device."""

    name: str
    title: str
    color: str
    own: _Course = field(default_factory=_Course)
    whole: _Course = field(default_factory=_Course)  # of a device, all processes together
    marks: list[_Mark] = field(default_factory=list)
    limits: dict[str, float] = field(default_factory=dict)  # by name, in MB
    highest: _Mark | None = None  # marked as a peak or not

    def highest_mb(self) -> float:
        """Of all that is drawn, but for the limits."""
        courses = (self.own, self.whole)
        points = [size for course in courses for line in (course.sampled, course.joined) for _, size in line]
        marks = [*self.marks, *([self.highest] if self.highest else [])]
        return max(
            [1.0, *(size for size in points if not math.isnan(size)), *(mark.most_mb for mark in marks)]
        )


def _ram(axis: _Axis) -> _Panel:
    panel = _Panel("RAM", "", _RAM)
    for stretch in axis.stretches:
        _add_own(panel, axis, stretch, [(cell, cell.gen, cell.gen.timeline) for cell in stretch.cells])
    return panel


def _devices(axis: _Axis) -> Iterator[_Panel]:
    for key, (name, gpu) in named_devices(axis.cells).items():
        panel = _Panel(name, f"{name}: {gpu.name}", _GPU)
        for stretch in axis.stretches:
            usages = [(cell, use) for cell in stretch.cells for use in cell.gpus if device_key(use) == key]
            _add_own(panel, axis, stretch, [(cell, use, ()) for cell, use in usages if use.attributed])
            whole, sampled = [], False
            for cell, use in usages:
                start = stretch.x + axis.since(cell) - stretch.start_s
                whole += [(start + at_s, size / MB) for at_s, size in use.timeline]
                sampled = sampled or bool(use.timeline)
                if use.used_bytes is not None and not use.timeline:
                    whole.append((start + cell.time_s, use.used_bytes / MB))
            panel.whole.add(whole, sampled=sampled)
        if gpu.total_bytes is not None:
            panel.limits["total"] = gpu.total_bytes / MB
        if gpu.limit_bytes is not None:
            panel.limits["limit"] = gpu.limit_bytes / MB
        yield panel


def _add_own(
    panel: _Panel, axis: _Axis, stretch: _Stretch, usages: list[tuple[CellRecord, Usage, Timeline]]
) -> None:
    """What the process itself used over a stretch, and its peaks there."""
    points: list[tuple[float, float]] = []
    marked: set[float] = set()
    for cell, usage, timeline in usages:
        left = stretch.x + axis.since(cell) - stretch.start_s
        right = left + cell.time_s
        before_bytes = usage.held_before_bytes if isinstance(usage, DeviceUsage) else usage.before_bytes
        points.append((left, before_bytes / MB))
        points += [(left + at_s, size / MB) for at_s, size in timeline]
        points.append((right, usage.after_bytes / MB))
        mark = _mark(cell.label, usage, timeline, left, right)
        if mark.most_mb - mark.floor_mb >= 1 and mark.top_mb not in marked:  # by the cell around this one
            marked.add(mark.top_mb)
            panel.marks.append(mark)
        if panel.highest is None or mark.top_mb > panel.highest.top_mb:
            panel.highest = mark
    panel.own.add(points, sampled=any(timeline for _, _, timeline in usages))


def _mark(label: str, usage: Usage, timeline: Timeline, left: float, right: float) -> _Mark:
    peak = usage.peak
    x, kind = (left + right) / 2, _UNSEEN
    if peak.hi_bytes is None or peak.quality == "sampled":
        kind = _AT_LEAST
    if timeline:
        at_s, size = max(timeline, key=lambda point: point[1])
        if peak.lo_bytes - size <= max(MB, peak.lo_bytes // 100):
            x, kind = min(left + at_s, right), _SEEN if kind == _UNSEEN else kind
    floor_bytes = max(usage.before_bytes, usage.after_bytes)
    most_bytes = max(peak.lo_bytes, peak.hi_bytes or 0)
    return _Mark(label, kind, left, right, x, floor_bytes / MB, peak.lo_bytes / MB, most_bytes / MB)


# -- what is drawn ---------------------------------------------------------------------------------------


def _draw(axes: Any, panel: _Panel, axis: _Axis) -> None:
    """One panel, but for its time."""
    axes.set_facecolor(_PAPER)
    axes.grid(visible=False)
    axes.set_xlim(0, axis.width)
    axes.tick_params(colors=_INK, labelsize=_SMALL)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(_FAINT)
    axes.set_ylabel(f"{panel.name}, MB", color=_INK, fontsize=9)
    axes.yaxis.set_major_formatter("{x:,.10g}")
    axes.yaxis.get_major_locator().set_params(nbins=5)
    _draw_bands(axes, axis)
    _draw_courses(axes, panel)
    _draw_marks(axes, panel, axis)
    _draw_limits(axes, panel)
    _say(axes, 0, 1.03, panel.title, axes.transAxes, va="bottom")
    if top := panel.highest:
        side = "left" if top.x < 0.1 * axis.width else "right" if top.x > 0.9 * axis.width else "center"
        above_mb = top.most_mb + _CLEAR / axes.bbox.height * axes.get_ylim()[1]
        _say(axes, top.x, above_mb, str(top), axes.transData, ha=side, va="bottom")


def _draw_bands(axes: Any, axis: _Axis) -> None:
    over = axes.get_xaxis_transform()
    for remainder, color in enumerate(_BANDS):
        boxes = [_box(band.left, band.right, 0, 1) for band in axis.bands[remainder::2]]
        _draw_boxes(axes, boxes, transform=over, facecolor=color, linewidth=0, zorder=0)
    failed = [band for band in axis.bands if band.cell.status != "ok"]
    boxes = [_box(band.left, band.right, 0, 1) for band in failed if axis.pixels(band) > _THIN]
    _draw_boxes(
        axes, boxes, transform=over, facecolor="none", edgecolor=_FAILED, alpha=0.35, linewidth=0, hatch="///"
    )
    middles = [(band.left + band.right) / 2 for band in failed]
    look = {"s": 22, "marker": "x", "color": _FAILED, "linewidth": 1.4, "zorder": 5}
    axes.scatter(middles, [0.95] * len(failed), transform=over, **look)


def _draw_courses(axes: Any, panel: _Panel) -> None:
    for line, style in ((panel.own.sampled, "-"), (panel.own.joined, ":")):
        xs, sizes = [x for x, _ in line], [size for _, size in line]
        axes.fill_between(xs, sizes, color=panel.color, alpha=0.22, linewidth=0, zorder=1)
        axes.plot(xs, sizes, style, color=panel.color, linewidth=1.4, marker=None, zorder=3)
    for line, look in ((panel.whole.sampled, "--"), (panel.whole.joined, "_")):
        xs, sizes = [x for x, _ in line], [size for _, size in line]
        axes.plot(xs, sizes, look, color=_WHOLE, linewidth=1, markersize=5, zorder=2)


def _draw_marks(axes: Any, panel: _Panel, axis: _Axis) -> None:
    """The peaks: where no sample saw it, a bar over its whole cell; between two bounds, a line."""
    unseen = [mark for mark in panel.marks if mark.kind != _SEEN]
    boxes = [_box(m.left, m.right, m.floor_mb, m.top_mb) for m in unseen if axis.pixels(m) > _THIN]
    _draw_boxes(
        axes, boxes, facecolor="none", edgecolor=panel.color, alpha=0.6, linewidth=0.6, hatch="....", zorder=2
    )
    lines = [(m.x, m.floor_mb, m.top_mb) for m in unseen if axis.pixels(m) <= _THIN]
    lines += [(m.x, m.top_mb, m.most_mb) for m in panel.marks if m.bounded]
    axes.vlines(
        *zip(*lines, strict=True) if lines else ([], [], []), color=panel.color, linewidth=1, zorder=3
    )
    small = len(panel.marks) > _MANY
    for kind, (marker, full) in _MARKERS.items():
        marks = [mark for mark in panel.marks if mark.kind == kind]
        look = {"s": 5 if small else 24, "linewidth": 0.6 if small else 1.2, "marker": marker, "zorder": 4}
        look |= {"facecolor": panel.color if full else _PAPER, "edgecolor": panel.color}
        axes.scatter([mark.x for mark in marks], [mark.top_mb for mark in marks], **look)


def _draw_limits(axes: Any, panel: _Panel) -> None:
    highest_mb, over = panel.highest_mb(), axes.get_yaxis_transform()
    drawn = {name: size for name, size in panel.limits.items() if size <= _IN_VIEW * highest_mb}
    axes.set_ylim(0, 1.2 * max([highest_mb, *drawn.values()]))
    for name, size_mb in drawn.items():
        axes.axhline(size_mb, color=_INK, linewidth=1, linestyle="-.", zorder=3)
        _say(axes, 0.005, size_mb, f"{name} {size_mb:,.0f} MB", over, va="center")
    beyond = [f"{name} {size:,.0f} MB" for name, size in panel.limits.items() if name not in drawn]
    said = f"{', '.join(beyond)}: far above" if beyond else ""  # it would press all the rest to the ground
    _say(axes, 1, 1.03, said, axes.transAxes, ha="right", va="bottom")


def _draw_boxes(axes: Any, boxes: list[Any], **look: Any) -> None:
    from matplotlib.collections import PolyCollection

    axes.add_collection(PolyCollection(boxes, **look), autolim=False)


def _say(axes: Any, x: float, y: float, words: str, over: Any, **look: Any) -> None:
    if words:
        ground = {"facecolor": _PAPER, "edgecolor": "none", "alpha": 0.75, "pad": 1}
        look = {"color": _INK, "fontsize": _SMALL, "zorder": 5, "usetex": False, "bbox": ground} | look
        axes.text(x, y, _plain(words), transform=over, **look)


# -- its time, its legend ------------------------------------------------------------------------------


def _name_bands(axes: Any, axis: _Axis) -> None:
    """The cells' labels above their bands, where they do not reach over a neighbour."""
    over = axes.get_xaxis_transform()
    befores = [0.0, *(band.right for band in axis.bands)]
    afters = [*(band.left for band in axis.bands[1:]), axis.width]
    said = 0.0  # as far as the last label reaches
    for band, before, after in zip(axis.bands, befores, afters, strict=False):
        middle = (band.left + band.right) / 2
        half = len(band.cell.label) * _LETTER_IN / _PANEL_IN * axis.width / 2
        if max(before, said) <= middle - half and middle + half <= after:
            said = middle + half
            _say(axes, middle, 1.03, band.cell.label, over, ha="center", va="bottom")


def _draw_time(all_axes: Sequence[Any], axis: _Axis) -> None:
    """The ticks, the idle times that are shown shorter, and where the kernel was restarted."""
    ticks = _ticks(axis)
    restarts = [stretch for stretch in axis.stretches if stretch.restarted]
    for axes in all_axes:
        axes.set_xticks([x for x, _ in ticks])
        axes.set_xticklabels([said for _, said in ticks] if axes is all_axes[-1] else [])
        for stretch in restarts:
            look = {"color": _INK, "linewidth": 1, "linestyle": (0, (1, 1)), "zorder": 3}
            axes.axvline(stretch.x - stretch.gap / 2, **look)
    shortened = [stretch for stretch in axis.stretches if stretch.idle_s > stretch.gap]
    wide = [s for s in shortened if s.gap / axis.width * _PANEL_IN > _LETTER_IN * 2 and not s.restarted]
    over = all_axes[0].get_xaxis_transform()
    for stretch in (*restarts, *wide):
        words = ("restart, " if stretch.restarted else "") + f"idle {_elapsed(stretch.idle_s)}"
        look = {"fontsize": _SMALL - 1, "rotation": 90, "ha": "center", "va": "center"}
        _say(all_axes[0], stretch.x - stretch.gap / 2, 0.5, words, over, **look)
    said = f"time since {axis.begin.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    said += "; longer idle times shortened" if shortened else ""
    all_axes[-1].set_xlabel(said, color=_INK, fontsize=9)


def _ticks(axis: _Axis) -> list[tuple[float, str]]:
    """Places on the axis, and how long after the first cell's start they are."""
    apart = axis.width / _TICKS
    step_s = next((step for step in _STEPS_S if step >= apart), apart)
    clock = axis.stretches[-1].end_s >= _CLOCK_S
    decimals = max(0, -math.floor(math.log10(step_s)))
    found: list[tuple[float, str]] = []
    round_one = False  # the last of them; the start of a cell is worth more
    for stretch in axis.stretches:
        first = math.ceil(stretch.start_s / step_s)
        rounds = (n * step_s for n in range(first, math.floor(stretch.end_s / step_s) + 1))
        for at_s in (stretch.start_s, *rounds):
            x = stretch.x + at_s - stretch.start_s
            near = bool(found) and x - found[-1][0] < apart
            if near and round_one and at_s == stretch.start_s:
                found.pop()
                near = bool(found) and x - found[-1][0] < apart
            if not near:
                found.append((x, _clock(at_s) if clock else f"{at_s:.{decimals}f} s"))
                round_one = at_s != stretch.start_s
    return found


def _elapsed(time_s: float) -> str:
    return _clock(time_s) if time_s >= _CLOCK_S else f"{time_s:.3g} s"


def _clock(time_s: float) -> str:
    """As "2:30" or "1:02:05"."""
    minutes, seconds = divmod(round(time_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _legend(panels: Sequence[_Panel], axis: _Axis) -> list[Any]:
    """What each kind of mark means, of those that are there."""
    from matplotlib.lines import Line2D

    kinds = {mark.kind for panel in panels for mark in panel.marks}
    line, mark = {"color": _INK, "linewidth": 1.4}, {"color": _INK, "linestyle": "none", "markersize": 5}
    whole = {"color": _WHOLE, "linestyle": "--", "marker": "_", "linewidth": 1}
    entries: list[tuple[bool, str, dict[str, Any]]] = [
        (any(panel.own.sampled for panel in panels), "sampled", line),
        (any(panel.own.joined for panel in panels), "a cell's two ends, joined", line | {"linestyle": ":"}),
        (any(panel.whole for panel in panels), "whole device, all processes", whole),
        *(
            (kind in kinds, kind, mark | {"marker": marker, "markerfacecolor": _INK if full else _PAPER})
            for kind, (marker, full) in _MARKERS.items()
        ),
        (
            any(mark.bounded for panel in panels for mark in panel.marks),
            "peak, up to its upper bound",
            mark | {"marker": "|", "markersize": 8},
        ),
        (
            any(band.cell.status != "ok" for band in axis.bands),
            "cell that failed or was interrupted",
            mark | {"marker": "x", "color": _FAILED},
        ),
    ]
    return [Line2D([], [], label=said, **look) for there, said, look in entries if there]


def _box(left: float, right: float, bottom: float, top: float) -> list[tuple[float, float]]:
    return [(left, bottom), (left, top), (right, top), (right, bottom)]


def _plain(words: str) -> str:
    """Foreign words on one line, short, and never taken for mathematics."""
    words = " ".join("".join(c if c.isprintable() else " " for c in words).split())
    words = words if len(words) <= _LETTERS else words[: _LETTERS - 1] + "…"
    return words.replace("$", r"\$")
