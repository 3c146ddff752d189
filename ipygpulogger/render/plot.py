"""A notebook's memory over time, as a matplotlib figure that reads on a light page and on a dark one."""

from __future__ import annotations

import io
import math
import warnings
from datetime import timezone
from functools import partial
from typing import TYPE_CHECKING, Any

from ..records.units import MB, clipped, size_text
from .markup import BLUE, RED
from .plot_data import (
    AT_LEAST,
    CACHED,
    OTHERS,
    OWN,
    RESIDENT,
    SEEN,
    TENSORS,
    UNSEEN,
    Axis,
    elapsed,
    panels,
    ticks,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matplotlib.figure import Figure

    from ..records import CellRecord
    from .plot_data import Mark, Panel, Points

# Colours read on white and on black. Of the two inks one counts as light and the other as dark, as
# matplotlib-inline puts a background under a transparent figure whose tick labels are all dark, or all light.
INK, INK_TOO, PEAK = "#808080", "#7c7c7c", RED
_SMALL = 8  # points
_DPI = 100
_LETTER_IN = 0.068  # of a label, with some room around it
_LETTERS = 48
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
_ENTRIES, _ROW_IN = 5, 0.18  # of the legend: in a row, and its height
_TITLE_LETTER = 1.3  # the width of a letter of a title, in letters of a label


def figure(records: Iterable[CellRecord], *, title: str = "") -> Figure:
    """Return a figure of memory over the time of a notebook: general RAM, and each device that it used.

    Each cell is a band with its number, red if it failed. The stack of a device is that of its ladder, with
    an outline where it was sampled; elsewhere straight lines join the two ends of a cell. A peak is a dot at
    its moment, or a bar over its whole cell if no sample saw it; a triangle if it is a lower bound. One
    process alone is drawn: the notebook's own or, without a record of it, the first of the others, named.

    pyplot is not used: the figure is on none of its lists, and IPython still displays it as a picture.

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
    panel_in = 1.7 if len(shown) <= _FEW else 1.1
    top_in = _FIRST_IN + (0.3 if title else 0)
    bottom_in = _BELOW_IN + _ROW_IN * math.ceil(len(entries) / _ENTRIES)
    height_in = top_in + len(shown) * (panel_in + _ABOVE_IN) - _ABOVE_IN + bottom_in
    drawn = Figure(figsize=(_WIDTH_IN, height_in), dpi=_DPI, facecolor="none")
    left, width = _LEFT_IN / _WIDTH_IN, 1 - (_LEFT_IN + _RIGHT_IN) / _WIDTH_IN
    if title:
        top = 1 - 0.08 / height_in
        drawn.text(left, top, _plain(title), color=INK, fontsize=11, va="top", usetex=False)
    all_axes = []
    for place, panel in enumerate(shown):
        bottom = 1 - (top_in + place * (panel_in + _ABOVE_IN) + panel_in) / height_in
        all_axes.append(drawn.add_axes((left, bottom, width, panel_in / height_in)))
        _draw(all_axes[-1], panel, axis)
    _number_bands(all_axes[0], axis)
    mixed = len({piece.sampled for panel in shown for piece in panel.pieces}) == 2
    _draw_time(all_axes, axis, ["outlined where sampled"] if mixed else [])
    if entries:
        drawn.legend(
            handles=entries,
            loc="lower left",
            bbox_to_anchor=(left, 0.06 / height_in),
            ncol=_ENTRIES,
            fontsize=_SMALL,
            frameon=False,
            labelcolor=INK,
            borderpad=0,
            borderaxespad=0,
            handlelength=1.4,
            handleheight=0.8,
            columnspacing=1.6,
            handletextpad=0.5,
        )
    drawn._repr_png_ = partial(_png, drawn)  # type: ignore[attr-defined, unused-ignore]
    return drawn


def _png(drawn: Figure) -> tuple[bytes, dict[str, int]]:
    """Return the picture for IPython, with twice the pixels of its size on the page."""
    from PIL import Image

    stream = io.BytesIO()
    with warnings.catch_warnings():  # a letter that the font lacks, in a cell's label, is drawn as a box
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        drawn.savefig(stream, format="png", dpi=2 * _DPI, facecolor="none")
    smaller = io.BytesIO()  # a third of it: few colours suffice
    with Image.open(stream) as picture:
        picture.quantize(_COLORS, method=_OCTREE).save(smaller, "png", optimize=True)
    width_in, height_in = drawn.get_size_inches()
    return smaller.getvalue(), {"width": round(width_in * _DPI), "height": round(height_in * _DPI)}


def _draw(axes: Any, panel: Panel, axis: Axis) -> None:
    """Draw one panel, without its time."""
    from matplotlib.ticker import MaxNLocator

    axes.set_facecolor("none")
    axes.set_axisbelow(True)
    axes.grid(visible=False, axis="x")
    axes.grid(visible=True, axis="y", color=INK, alpha=0.25, linewidth=0.6)
    axes.set_xlim(0, axis.width)
    axes.tick_params(colors=INK, labelsize=_SMALL, length=0)
    axes.tick_params(axis="x", pad=5)
    axes.tick_params(axis="y", labelcolor=INK_TOO)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(INK)
        spine.set_linewidth(0.6)
    most_mb = _draw_limits(axes, panel)
    unit, size_mb = ("GB", 1024) if most_mb >= _TOP * _GB_FROM else ("MB", 1)
    steps = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(0, most_mb / size_mb)
    steps = [step for step in steps if step * size_mb <= most_mb]
    axes.set_yticks([step * size_mb for step in steps])
    axes.set_yticklabels([f"{step:g} {unit}" if step else "0" for step in steps])
    axes.set_ylim(0, most_mb)
    _draw_bands(axes, axis)
    _draw_layers(axes, panel)
    _draw_marks(axes, panel, most_mb)
    first = axes is axes.figure.axes[0]  # there the numbers of the cells stand between
    look = {"above_in": _NUMBERS_IN if first else _TITLE_IN, "fontsize": _SMALL + 1, "weight": "bold"}
    _write(axes, (0, 1), panel.title, axes.transAxes, **look)


def _draw_layers(axes: Any, panel: Panel) -> None:
    """Draw the stack, and its outline where it was sampled."""
    for number, name in enumerate(panel.layers):
        color, alpha = _LAYERS[name]
        _fill(axes, panel.shapes(number), color, alpha, linewidth=0, zorder=1)
    xs: list[float] = []
    ys: list[float] = []
    for piece in panel.pieces:
        if piece.sampled:
            xs += [*(x for x, _ in piece.edges[-1]), math.nan]
            ys += [*(size for _, size in piece.edges[-1]), math.nan]
    color, _ = _LAYERS[panel.layers[-1]]
    axes.plot(xs, ys, color=color, linewidth=0.8, marker=None, solid_joinstyle="round", zorder=2)


_Box = tuple[float, float, float]  # of words: left, right, bottom


def _take(taken: list[_Box], box: _Box, height: float = 1.0) -> bool:
    """Take a place for words if none of that height covers it."""
    left, right, bottom = box
    if any(left < r and l < right and abs(bottom - b) < height for l, r, b in taken):
        return False
    taken.append(box)
    return True


def _draw_marks(axes: Any, panel: Panel, most_mb: float) -> None:
    """Draw the peaks that rise notably above their cells, and name the highest of them."""
    marks = [mark for mark in panel.marks if mark.rise_mb >= _NOTABLE * most_mb or mark is panel.highest]
    bars, stems = [], []
    shortest = _BAR / _pixels(axes, 1)

    def line(mark: Mark, low_mb: float, high_mb: float, width: float = 0.0) -> Points:
        return [(mark.x - width / 2, low_mb), (mark.x + width / 2, high_mb)]

    for mark in marks:
        width = mark.right - mark.left
        if mark.kind == UNSEEN:
            bars.append(line(mark, mark.top_mb, mark.top_mb, max(width, shortest)))
        if mark.kind == AT_LEAST or (mark.kind == UNSEEN and _pixels(axes, width) < _NARROW):
            stems.append(line(mark, mark.floor_mb, mark.top_mb))
        if mark.bounded:
            stems.append(line(mark, mark.top_mb, mark.most_mb))
            stems.append(line(mark, mark.most_mb, mark.most_mb, shortest))
    for lines, width in ((bars, 1.6), (stems, 0.8)):
        _draw_lines(axes, lines, fill=False, edgecolor=PEAK, linewidth=width, zorder=4)
    for kind in (SEEN, AT_LEAST):
        shown = [mark for mark in marks if mark.kind == kind]
        axes.plot([mark.x for mark in shown], [mark.top_mb for mark in shown], **_MARKERS[kind])
    _name_marks(axes, panel, marks)


def _name_marks(axes: Any, panel: Panel, marks: Sequence[Mark]) -> None:
    """Write the cell and the size of the highest peaks, the highest first, where none covers another."""
    highest = [panel.highest] if panel.highest else []
    line_mb = axes.get_ylim()[1] * _LINE_IN * _DPI / axes.bbox.height
    taken: list[_Box] = []
    look = {"above_in": _CLEAR_IN, "ha": "center", "color": PEAK}
    for mark in [*highest, *sorted(marks, key=lambda mark: -mark.top_mb)]:
        half = len(_plain(str(mark))) * _letter_width(axes) / 2
        x = max(half, min(mark.x, axes.get_xlim()[1] - half))
        if len(taken) < _NAMED and _take(taken, (x - half, x + half, mark.most_mb), line_mb):
            _write(axes, (x, mark.most_mb), str(mark), axes.transData, **look)


def _draw_limits(axes: Any, panel: Panel) -> float:
    """Draw the limits that are near, name the others, and return the top of the panel in MB."""
    highest_mb, over = panel.highest_mb(), axes.get_yaxis_transform()
    near = {name: size for name, size in panel.limits.items() if size <= _IN_VIEW * highest_mb}
    for name, size_mb in near.items():
        axes.axhline(size_mb, color=INK, linewidth=0.8, linestyle=(0, (6, 3)), zorder=3)
        _write(axes, (0.002, size_mb), f"{name} {_limit(size_mb)}", over, above_in=0.02)
    beyond = ", ".join(f"{name} {_limit(size)}" for name, size in panel.limits.items() if name not in near)
    letters = axes.get_xlim()[1] / _letter_width(axes) - _TITLE_LETTER * len(panel.title)
    wordings = (beyond and f"{beyond}, above the picture", beyond)
    words = next((words for words in wordings if len(words) <= letters), "")
    _write(axes, (1, 1), words, axes.transAxes, above_in=_TITLE_IN, ha="right")
    return _TOP * max([highest_mb, *near.values()])


def _limit(size_mb: float) -> str:
    return size_text(size_mb * MB).replace(".0 ", " ")


def _legend(shown: Sequence[Panel]) -> list[Any]:
    """Return an entry for each layer of the devices and each kind of peak that the figure has."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    layers = {name for panel in shown for number, name in enumerate(panel.layers) if panel.shapes(number)}
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


_BAND, _FAILED = (INK, 0.09), (PEAK, 0.13)
_SHADED = 6  # pixels: narrower cells are not shaded alternately
_COLUMNS = 300  # in each of which at most one cell that failed begins
_WORDS = 14  # pixels: a gap as wide is wide enough for its length


def _draw_bands(axes: Any, axis: Axis) -> None:
    """Shade every second cell, and each that failed."""
    over = axes.get_xaxis_transform()
    wide = [band for band in axis.bands[1::2] if _pixels(axes, band.right - band.left) >= _SHADED]
    wide = [band for band in wide if band.cell.status == "ok"]
    failed = [band for band in axis.bands if band.cell.status != "ok"]
    failed = list({band.left // (axis.width / _COLUMNS): band for band in failed}.values())
    for bands, (color, alpha) in ((wide, _BAND), (failed, _FAILED)):
        boxes = [[(b.left, 0.0), (b.left, 1.0), (b.right, 1.0), (b.right, 0.0)] for b in bands]
        edge = 1 if bands is failed else 0
        _fill(axes, boxes, color, alpha, transform=over, zorder=0, linewidth=edge)


def _number_bands(axes: Any, axis: Axis) -> None:
    """Write the cells' numbers above their bands, failed cells first, where none covers another."""
    over = axes.get_xaxis_transform()
    letter = _letter_width(axes)
    taken: list[_Box] = []
    for band in sorted(axis.bands, key=lambda band: band.cell.status == "ok"):
        failed = band.cell.status != "ok"
        count = band.cell.execution_count
        label = str(count) if count and band.cell.label == f"In [{count}]" else band.cell.label
        label = _plain(label) + (" ✕" if failed else "")
        middle, half = (band.left + band.right) / 2, (len(label) + 1) * letter / 2
        left, right = middle - half, middle + half
        if left >= -letter and right <= axis.width + letter and _take(taken, (left, right, 0.0)):
            _write(axes, (middle, 1), label, over, above_in=0.05, ha="center", color=PEAK if failed else INK)


def _draw_time(all_axes: Sequence[Any], axis: Axis, notes: Sequence[str]) -> None:
    """Draw the ticks, the shortened idle times, and where the kernel was restarted; write the notes below."""
    found = ticks(axis, _letter_width(all_axes[-1]))
    restarts = [band for band in axis.bands if band.restarted]
    for axes in all_axes:
        axes.set_xticks([x for x, _ in found])
        axes.set_xticklabels([label for _, label in found] if axes is all_axes[-1] else [])
        for (x, _), label in zip(found, axes.get_xticklabels(), strict=False):
            if x > 0.97 * axis.width:  # in the middle of its tick it would leave the figure
                label.set_ha("right")
        for band in restarts:
            look = {"color": INK, "linewidth": 1, "linestyle": (0, (1, 1)), "zorder": 3}
            axes.axvline(band.left - band.gap / 2, **look)
    first = all_axes[0]
    shortened = [band for band in axis.bands if band.idle_s > band.gap]
    wide = [band for band in shortened if _pixels(first, band.gap) > _WORDS and not band.restarted]
    for band in (*restarts, *wide):
        text = ("restart, " if band.restarted else "") + f"idle {elapsed(band.idle_s)}"
        look = {"fontsize": _SMALL - 1, "rotation": 90, "va": "center"}
        look["ha"] = "right" if band.restarted else "center"  # a restart has a line there
        _write(first, (band.left - band.gap / 2, 0.5), text, first.get_xaxis_transform(), **look)
    words = [f"time since {axis.begin.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S} UTC"]
    words += ["longer idle times shortened"] if shortened else []
    all_axes[-1].set_xlabel("; ".join((*words, *notes)), color=INK, fontsize=_SMALL)


def _letter_width(axes: Any) -> float:
    """Return the width of a letter of a label, on the time axis."""
    return _LETTER_IN * _DPI / _pixels(axes, 1)


def _pixels(axes: Any, width: float) -> float:
    """Return how wide a part of the time axis is drawn."""
    left, right = axes.get_xlim()
    return float(width / (right - left) * axes.bbox.width)


def _fill(axes: Any, shapes: Sequence[Points], color: str, alpha: float, **look: Any) -> None:
    """Draw any number of filled shapes as one."""
    closed = [[*shape, shape[0]] for shape in shapes]
    _draw_lines(axes, closed, closed=True, facecolor=color, edgecolor=color, alpha=alpha, **look)


def _draw_lines(axes: Any, lines: Sequence[Points], *, closed: bool = False, **look: Any) -> None:
    """Draw any number of lines as one."""
    if lines:
        from matplotlib.patches import PathPatch
        from matplotlib.path import Path

        path = Path.make_compound_path(*(Path(line, closed=closed) for line in lines))
        axes.add_artist(PathPatch(path, **look))


def _write(axes: Any, place: tuple[float, float], text: str, over: Any, **look: Any) -> None:
    """Write foreign text at a place of some coordinates; `above_in` inches above it."""
    if text:
        offset = (0, look.pop("above_in", 0) * 72)
        look = {"color": INK, "fontsize": _SMALL, "zorder": 5, "usetex": False, "va": "bottom"} | look
        axes.annotate(_plain(text), place, offset, over, textcoords="offset points", **look)


def _plain(text: str) -> str:
    """Return foreign text on one line, short, with nothing that matplotlib would typeset as mathematics."""
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return clipped(text, _LETTERS).replace("$", r"\$")
