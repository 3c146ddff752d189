"""A notebook's memory over time, as a matplotlib figure that reads on a light page and on a dark one."""

from __future__ import annotations

import io
import math
import warnings
from datetime import timezone
from functools import partial
from typing import TYPE_CHECKING, Any

from ..records.units import MB, size_text
from .markup import BLUE
from .plot_data import AT_LEAST, CACHED, OTHERS, OWN, RESIDENT, SEEN, TENSORS, UNSEEN, Axis, panels
from .plot_style import DPI, INK, INK_TOO, PEAK, SMALL, box, fill, letter_width, pixels, plain, stroke, write

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matplotlib.figure import Figure

    from ..records import CellRecord
    from .plot_data import Mark, Panel, Points

_LAYERS = {  # colour and opacity
    RESIDENT: ("#3f9c95", 0.55),
    OWN: (BLUE, 0.95),
    TENSORS: (BLUE, 0.95),
    CACHED: (BLUE, 0.4),
    OTHERS: (INK, 0.3),
}
_MARK = {"linestyle": "none", "color": PEAK, "zorder": 4}
_MARKERS: dict[str, dict[str, Any]] = {  # of a peak: a dot, a hollow triangle, and in the legend a bar
    SEEN: {**_MARK, "marker": "o", "markersize": 4, "markerfacecolor": PEAK},
    AT_LEAST: {**_MARK, "marker": "^", "markersize": 5, "markerfacecolor": "none"},
    UNSEEN: {**_MARK, "marker": "_", "markersize": 8, "markeredgewidth": 1.6},
}
_WIDTH_IN, _LEFT_IN, _RIGHT_IN = 8.0, 0.6, 0.1
_FIRST_IN, _ABOVE_IN, _BELOW_IN = 0.48, 0.34, 0.5  # above the first panel, above the others, below all
_COLORS, _OCTREE = 128, 2  # of the PNG: how many, and the only way that keeps transparency
_FEW = 4  # panels that get their full height
_TOP = 1.18  # above the highest, for its label
_IN_VIEW = 2.5  # times the highest use: a limit above is not drawn
_NAMED = 6  # peaks of a panel whose cell and size are written
_NOTABLE = 0.06  # of the panel's height: a peak that rises by less above its cell is not marked
_BAR, _NARROW = 11, 24  # pixels: the shortest bar of a peak; the widest one that has a stem
_LINE_IN = 0.15  # the height of a label
_CLEAR_IN = 0.05  # between a mark and its label
_TITLE_IN, _NUMBERS_IN = 0.07, 0.28  # of a title above its panel, without and with the cells' numbers between
_GB_FROM = 1000  # MB
_ENTRY_IN = 1.5  # of the legend
_NARROW_IN = 5
_ROW_IN = 0.18  # of the legend
_TITLE_LETTER = 1.3  # the width of a letter of a title, in letters of a label


def figure(records: Iterable[CellRecord], *, title: str = "", width_in: float = _WIDTH_IN) -> Figure:
    """Return a figure of memory over the time of a notebook: general RAM, and each device that it used.

    Each cell is a band with its number, red if it failed. The stack of a device is that of its ladder. It has
    an outline where it was sampled; elsewhere straight lines join the two ends of a cell. A peak is a dot at
    its moment, or a bar over its whole cell if no sample saw it; a triangle if it is a lower bound. Idle time
    between cells is a gap, shortened if it is long.

    pyplot is not used: the figure is on none of its lists, and IPython still displays it as a picture.

    Args:
        records: In any order; the runs of a restarted kernel follow one another. Records of other
            processes are not drawn. If all are of other processes, those of the first process are drawn.
        title: Above the figure; by default the name of that process, if there is one.
        width_in: Its width in inches.

    Raises:
        ValueError: `records` is empty.
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'ipygpulogger[plot]'") from error
    axis = Axis(records)
    title = title or axis.process
    shown = panels(axis)
    entries = _legend(shown)
    mixed = len({piece.sampled for panel in shown for piece in panel.pieces}) == 2
    notes = ["outlined where sampled"] if mixed else []
    columns = int(width_in / _ENTRY_IN) if width_in > _NARROW_IN else 1
    panel_in = 1.7 if len(shown) <= _FEW else 1.1
    top_in = _FIRST_IN + (0.3 if title else 0)
    lines = math.ceil(len(entries) / columns) + (len(notes) if width_in <= _NARROW_IN else 0)
    bottom_in = _BELOW_IN + _ROW_IN * lines
    height_in = top_in + len(shown) * (panel_in + _ABOVE_IN) - _ABOVE_IN + bottom_in
    drawn = Figure(figsize=(width_in, height_in), dpi=DPI, facecolor="none")
    left, width = _LEFT_IN / width_in, 1 - (_LEFT_IN + _RIGHT_IN) / width_in
    if title:
        top = 1 - 0.08 / height_in
        drawn.text(left, top, plain(title), color=INK, fontsize=11, va="top", usetex=False)
    all_axes = []
    for place, panel in enumerate(shown):
        bottom = 1 - (top_in + place * (panel_in + _ABOVE_IN) + panel_in) / height_in
        all_axes.append(drawn.add_axes((left, bottom, width, panel_in / height_in)))
        _draw(all_axes[-1], panel, axis)
    _number_bands(all_axes[0], axis)
    _draw_time(all_axes, axis, notes, "; " if width_in > _NARROW_IN else "\n")
    look = {"fontsize": SMALL, "frameon": False, "labelcolor": INK, "borderpad": 0, "borderaxespad": 0}
    look |= {"handlelength": 1.4, "handleheight": 0.8, "columnspacing": 1.6, "handletextpad": 0.5}
    if entries:
        anchor = left, 0.06 / height_in
        drawn.legend(handles=entries, loc="lower left", bbox_to_anchor=anchor, ncol=columns, **look)
    drawn._repr_png_ = partial(_png, drawn)  # type: ignore[attr-defined, unused-ignore]
    return drawn


def _png(drawn: Figure) -> tuple[bytes, dict[str, int]]:
    """Return the picture for IPython, which knows how to display pyplot's figures only.

    It has twice the pixels of its size on the page, for screens that show them.
    """
    from PIL import Image

    stream = io.BytesIO()
    with warnings.catch_warnings():  # a letter that the font lacks, in a cell's label, is drawn as a box
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        drawn.savefig(stream, format="png", dpi=2 * DPI, facecolor="none")
    smaller = io.BytesIO()  # a third of it: few colours suffice
    with Image.open(stream) as picture:
        picture.quantize(_COLORS, method=_OCTREE).save(smaller, "png", optimize=True)
    width_in, height_in = drawn.get_size_inches()
    return smaller.getvalue(), {"width": round(width_in * DPI), "height": round(height_in * DPI)}


# -- one panel ---------------------------------------------------------------------------------------


def _draw(axes: Any, panel: Panel, axis: Axis) -> None:
    """Draw one panel, without its time."""
    from matplotlib.ticker import MaxNLocator

    axes.set_facecolor("none")
    axes.set_axisbelow(True)
    axes.grid(visible=False, axis="x")
    axes.grid(visible=True, axis="y", color=INK, alpha=0.25, linewidth=0.6)
    axes.set_xlim(0, axis.width)
    axes.tick_params(colors=INK, labelsize=SMALL, length=0)
    axes.tick_params(axis="x", pad=5)
    axes.tick_params(axis="y", labelcolor=INK_TOO)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(INK)
        spine.set_linewidth(0.6)
    most_mb = _draw_limits(axes, panel)
    unit, size_mb = ("GB", 1024) if most_mb >= _TOP * _GB_FROM else ("MB", 1)
    steps = [
        step
        for step in MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(0, most_mb / size_mb)
        if step * size_mb <= most_mb
    ]
    axes.set_yticks([step * size_mb for step in steps])
    axes.set_yticklabels([f"{step:g} {unit}" if step else "0" for step in steps])
    axes.set_ylim(0, most_mb)
    _draw_bands(axes, axis)
    _draw_layers(axes, panel)
    _draw_marks(axes, panel, most_mb)
    first = axes is axes.figure.axes[0]  # there the numbers of the cells stand between
    above_in = _NUMBERS_IN if first else _TITLE_IN
    look = {"fontsize": SMALL + 1, "weight": "bold"}
    write(axes, (0, 1), panel.title, axes.transAxes, above_in=above_in, **look)


def _draw_layers(axes: Any, panel: Panel) -> None:
    """Draw the stack, and its outline where it was sampled."""
    for number, name in enumerate(panel.layers):
        color, alpha = _LAYERS[name]
        fill(axes, _shapes(panel, number), color, alpha, linewidth=0, zorder=1)
    xs: list[float] = []
    ys: list[float] = []
    for piece in panel.pieces:
        if piece.sampled:
            xs += [*(x for x, _ in piece.edges[-1]), math.nan]
            ys += [*(size for _, size in piece.edges[-1]), math.nan]
    color, _ = _LAYERS[panel.layers[-1]]
    axes.plot(xs, ys, color=color, linewidth=0.8, marker=None, solid_joinstyle="round", zorder=2)


def _shapes(panel: Panel, number: int) -> list[Points]:
    """Return the shapes of a layer, where it has any height."""
    shapes = (piece.shape(number) for piece in panel.pieces)
    return [shape for shape in shapes if shape]


def _draw_marks(axes: Any, panel: Panel, most_mb: float) -> None:
    """Draw the peaks that rise notably above their cells, and name the highest of them."""
    marks = [mark for mark in panel.marks if mark.rise_mb >= _NOTABLE * most_mb or mark is panel.highest]
    bars, stems = [], []
    for mark in marks:
        if mark.kind == UNSEEN:
            bars.append(_bar(axes, mark))
        if mark.kind == AT_LEAST or (mark.kind == UNSEEN and pixels(axes, mark.right - mark.left) < _NARROW):
            stems.append([(mark.x, mark.floor_mb), (mark.x, mark.top_mb)])
        if mark.bounded:
            stems += [[(mark.x, mark.top_mb), (mark.x, mark.most_mb)], _bound(axes, mark)]
    stroke(axes, bars, PEAK, 1.6)
    stroke(axes, stems, PEAK, 0.8)
    for kind in (SEEN, AT_LEAST):
        shown = [mark for mark in marks if mark.kind == kind]
        axes.plot([mark.x for mark in shown], [mark.top_mb for mark in shown], **_MARKERS[kind])
    _name_marks(axes, panel, marks)


def _bar(axes: Any, mark: Mark) -> Points:
    """Return the bar of a peak over its cell, wide enough to be seen."""
    half = max(mark.right - mark.left, _BAR / pixels(axes, 1)) / 2
    return [(mark.x - half, mark.top_mb), (mark.x + half, mark.top_mb)]


def _bound(axes: Any, mark: Mark) -> Points:
    """Return the end of the line from a peak to its upper bound."""
    half = _BAR / pixels(axes, 1) / 2
    return [(mark.x - half, mark.most_mb), (mark.x + half, mark.most_mb)]


def _name_marks(axes: Any, panel: Panel, marks: Sequence[Mark]) -> None:
    """Write the cell and the size of the highest peaks, the highest first, where none covers another."""
    highest = [panel.highest] if panel.highest else []
    _, top_mb = axes.get_ylim()
    line_mb = top_mb * _LINE_IN * DPI / axes.bbox.height
    written: list[tuple[float, float, float]] = []  # left, right, bottom
    for mark in [*highest, *sorted(marks, key=lambda mark: -mark.top_mb)]:
        half = len(plain(str(mark))) * letter_width(axes) / 2
        x = max(half, min(mark.x, axes.get_xlim()[1] - half))
        left, right, bottom = x - half, x + half, mark.most_mb
        covers = any(left < r and l < right and abs(bottom - b) < line_mb for l, r, b in written)
        if len(written) < _NAMED and not covers:
            written.append((left, right, bottom))
            write(axes, (x, bottom), str(mark), axes.transData, above_in=_CLEAR_IN, ha="center", color=PEAK)


def _draw_limits(axes: Any, panel: Panel) -> float:
    """Draw the limits that are near, name the others, and return the top of the panel in MB."""
    highest_mb, over = panel.highest_mb(), axes.get_yaxis_transform()
    near = {name: size for name, size in panel.limits.items() if size <= _IN_VIEW * highest_mb}
    for name, size_mb in near.items():
        axes.axhline(size_mb, color=INK, linewidth=0.8, linestyle=(0, (6, 3)), zorder=3)
        write(axes, (0.002, size_mb), f"{name} {_limit(size_mb)}", over, above_in=0.02)
    beyond = ", ".join(f"{name} {_limit(size)}" for name, size in panel.limits.items() if name not in near)
    letters = axes.get_xlim()[1] / letter_width(axes) - _TITLE_LETTER * len(panel.title)
    wordings = (beyond and f"{beyond}, above the picture", beyond)
    words = next((words for words in wordings if len(words) <= letters), "")
    write(axes, (1, 1), words, axes.transAxes, above_in=_TITLE_IN, ha="right")
    return _TOP * max([highest_mb, *near.values()])


def _limit(size_mb: float) -> str:
    return size_text(size_mb * MB).replace(".0 ", " ")


def _legend(shown: Sequence[Panel]) -> list[Any]:
    """Return an entry for each layer of the devices and each kind of peak that the figure has."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    layers = {name for panel in shown for number, name in enumerate(panel.layers) if _shapes(panel, number)}
    entries: list[Any] = [
        Patch(facecolor=color, alpha=alpha, label=name)
        for name, (color, alpha) in _LAYERS.items()
        if name in layers and name != RESIDENT  # the title of its panel says it
    ]
    kinds = {mark.kind for panel in shown for mark in panel.marks}
    labels = {UNSEEN: "peak of the cell", SEEN: "peak, at its moment", AT_LEAST: "peak, at least"}
    return entries + [
        Line2D([], [], label=label, **_MARKERS[kind]) for kind, label in labels.items() if kind in kinds
    ]


# -- the time axis


_BAND, _FAILED = (INK, 0.09), (PEAK, 0.13)
_SHADED = 6  # pixels: narrower cells are not shaded alternately
_COLUMNS = 300  # in each of which at most one cell that failed begins
_WORDS = 14  # pixels: a gap as wide is wide enough for its length
_CLOCK_S = 120  # a longer time is written in minutes
_TICKS = 8
_STEPS_S = (
    *(n * 10.0**e for e in range(-4, 2) for n in (1, 2, 5) if n * 10.0**e < 60),
    *(60, 120, 300, 600, 1200, 3600, 7200, 14400, 43200, 86400),
)


def _draw_bands(axes: Any, axis: Axis) -> None:
    """Shade every second cell, and each that failed."""
    over = axes.get_xaxis_transform()
    wide = [band for band in axis.bands[1::2] if pixels(axes, band.right - band.left) >= _SHADED]
    wide = [band for band in wide if band.cell.status == "ok"]
    failed = [band for band in axis.bands if band.cell.status != "ok"]
    failed = list({band.left // (axis.width / _COLUMNS): band for band in failed}.values())
    for bands, (color, alpha) in ((wide, _BAND), (failed, _FAILED)):
        boxes = [box(band.left, band.right, 0, 1) for band in bands]
        look = {"linewidth": 1 if bands is failed else 0}
        fill(axes, boxes, color, alpha, transform=over, zorder=0, **look)


def _number_bands(axes: Any, axis: Axis) -> None:
    """Write the cells' numbers above their bands, failed cells first, where none covers another."""
    over = axes.get_xaxis_transform()
    letter = letter_width(axes)
    written: list[tuple[float, float]] = []  # left and right
    for band in sorted(axis.bands, key=lambda band: band.cell.status == "ok"):
        failed = band.cell.status != "ok"
        count = band.cell.execution_count
        label = str(count) if count and band.cell.label == f"In [{count}]" else band.cell.label
        label = plain(label) + (" ✕" if failed else "")
        middle, half = (band.left + band.right) / 2, (len(label) + 1) * letter / 2
        left, right = middle - half, middle + half
        if left < -letter or right > axis.width + letter:
            continue
        if not any(left < other_right and other_left < right for other_left, other_right in written):
            written.append((left, right))
            write(axes, (middle, 1), label, over, above_in=0.05, ha="center", color=PEAK if failed else INK)


def _draw_time(all_axes: Sequence[Any], axis: Axis, notes: Sequence[str], between: str) -> None:
    """Draw the ticks, the shortened idle times, and where the kernel was restarted; write the notes below."""
    ticks = _ticks(axis, letter_width(all_axes[-1]))
    restarts = [band for band in axis.bands if band.restarted]
    for axes in all_axes:
        axes.set_xticks([x for x, _ in ticks])
        axes.set_xticklabels([label for _, label in ticks] if axes is all_axes[-1] else [])
        for (x, _), label in zip(ticks, axes.get_xticklabels(), strict=False):
            if x > 0.97 * axis.width:  # in the middle of its tick it would leave the figure
                label.set_ha("right")
        for band in restarts:
            look = {"color": INK, "linewidth": 1, "linestyle": (0, (1, 1)), "zorder": 3}
            axes.axvline(band.left - band.gap / 2, **look)
    first = all_axes[0]
    shortened = [band for band in axis.bands if band.idle_s > band.gap]
    wide = [band for band in shortened if pixels(first, band.gap) > _WORDS and not band.restarted]
    for band in (*restarts, *wide):
        text = ("restart, " if band.restarted else "") + f"idle {_elapsed(band.idle_s)}"
        look = {"fontsize": SMALL - 1, "rotation": 90, "va": "center"}
        look["ha"] = "right" if band.restarted else "center"  # a restart has a line there
        write(first, (band.left - band.gap / 2, 0.5), text, first.get_xaxis_transform(), **look)
    words = [f"time since {axis.begin.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S} UTC"]
    words += ["longer idle times shortened"] if shortened else []
    all_axes[-1].set_xlabel(between.join((*words, *notes)), color=INK, fontsize=SMALL)


def _ticks(axis: Axis, letter: float) -> list[tuple[float, str]]:
    """Return places on the axis, and the time since the start of the first cell there.

    The start of a cell is preferred to a round time beside it.

    Args:
        axis: The time axis.
        letter: The width of a letter on it.
    """
    longest = len(_clock(axis.end_s))
    apart = max(axis.width / _TICKS, (longest + 1) * letter)
    step_s = next((step for step in _STEPS_S if step >= apart), apart)
    clock = axis.end_s >= _CLOCK_S
    decimals = max(0, -math.floor(math.log10(step_s)))
    found: list[tuple[float, str]] = []
    last_is_round = False
    for band in axis.bands:
        start_s = axis.since(band.cell)
        last = math.floor((start_s + band.right - band.left) / step_s)
        rounds = (n * step_s for n in range(math.ceil(start_s / step_s), last + 1))
        for at_s in (start_s, *rounds):
            x = band.left + at_s - start_s
            near = bool(found) and x - found[-1][0] < apart
            if near and last_is_round and at_s == start_s:
                found.pop()
                near = bool(found) and x - found[-1][0] < apart
            if not near:
                found.append((x, _clock(at_s) if clock else f"{at_s:.{decimals}f} s"))
                last_is_round = at_s != start_s
    return found


def _elapsed(time_s: float) -> str:
    return _clock(time_s) if time_s >= _CLOCK_S else f"{time_s:.3g} s"


def _clock(time_s: float) -> str:
    """Return a time as "2:30" or "1:02:05"."""
    minutes, seconds = divmod(round(time_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
