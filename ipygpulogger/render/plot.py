"""A notebook's memory over time, as a matplotlib figure that reads on a light page and on a dark one."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from ..analysis.notable import is_inexact
from ..records.units import clipped
from .markup import BLUE, RED
from .plot_data import OWN, SIZES, TIMES, WHOLE, Axis, Panel, panels, ticks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..records import CellRecord

# Colours read on white and on black. Of the two inks one counts as light and the other as dark, as
# matplotlib-inline puts a background under a transparent figure whose tick labels are all dark, or all light.
INK, INK_TOO, PEAK = "#808080", "#7c7c7c", RED
_SMALL = 8  # points
_DPI = 100
_COLORS, _OCTREE = 128, 2  # of the PNG: how many, and the only way that keeps transparency
_LETTER_IN = 0.068  # of a label, with some room around it
_LETTERS = 48
_CURVES = {WHOLE: (INK, 0.3), OWN: (BLUE, 0.8)}  # colour and opacity, from the back to the front
_WIDTH_IN, _LEFT_IN, _RIGHT_IN = 8.0, 0.6, 0.1
_PANEL_IN, _ABOVE_IN, _BELOW_IN = 1.7, 0.34, 0.68  # of a panel, above it, below all
_TITLE_IN, _NUMBERS_IN = 0.3, 0.2  # of the figure; of the cells, above the first panel


def figure(records: Iterable[CellRecord]) -> Figure:
    """Return a figure of memory over the time in the cells: general RAM, and each device that was used.

    Each cell is a band with its number, red if it failed. Of a device it has what this process held, and what
    was in use in all. The highest peaks are bars over their cells, with a triangle if they are lower bounds.
    One process alone is drawn: the notebook's own or, without a record of it, the first of the others, named.

    The figure is on no list of pyplot's, and IPython displays it as a picture.

    Raises:
        ValueError: `records` is empty.
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'ipygpulogger[plot]'") from error
    axis = Axis(records)
    shown = panels(axis)
    top_in = _ABOVE_IN + _NUMBERS_IN + (_TITLE_IN if axis.process else 0)
    height_in = top_in + len(shown) * (_PANEL_IN + _ABOVE_IN) - _ABOVE_IN + _BELOW_IN
    drawn = Figure(figsize=(_WIDTH_IN, height_in), dpi=_DPI, facecolor="none")
    left = _LEFT_IN / _WIDTH_IN
    drawn.subplots_adjust(left, _BELOW_IN / height_in, 1 - _RIGHT_IN / _WIDTH_IN, 1 - top_in / height_in)
    all_axes = drawn.subplots(len(shown), squeeze=False, gridspec_kw={"hspace": _ABOVE_IN / _PANEL_IN})[:, 0]
    if axis.process:
        name = _plain(axis.process)
        drawn.text(left, 1 - 0.08 / height_in, name, color=INK, fontsize=11, va="top", usetex=False)
    entries: dict[str, Any] = {}
    for axes, panel in zip(all_axes, shown, strict=True):
        _draw(axes, panel, axis, first=axes is all_axes[0])
        handles, labels = axes.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
        if axes is not all_axes[-1]:
            axes.set_xticklabels([])
    over = all_axes[0].get_xaxis_transform()
    for middle, label, failed in axis.numbers(axis.width * _LETTER_IN * _DPI / all_axes[0].bbox.width):
        look = {"ha": "center", "color": PEAK if failed else INK, "above_in": 0.05}
        _write(all_axes[0], (middle, 1), label, over, **look)
    all_axes[-1].set_xlabel(axis.caption, color=INK, fontsize=_SMALL)
    if entries:
        place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (left, 0.06 / height_in)}
        place |= {"fontsize": _SMALL, "frameon": False, "labelcolor": INK, "ncol": len(entries)}
        drawn.legend(list(entries.values()), list(entries), **place, borderpad=0, borderaxespad=0)
    drawn._repr_png_ = partial(png, drawn)  # type: ignore[attr-defined, unused-ignore]
    return drawn


def png(drawn: Figure) -> tuple[bytes, dict[str, int]]:
    """Return the picture as IPython wants it, with twice the pixels of its size on the page."""
    from PIL import Image

    whole, smaller = io.BytesIO(), io.BytesIO()
    with warnings.catch_warnings():  # a letter that the font lacks, in a cell's label, is a box
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        drawn.savefig(whole, format="png", dpi=2 * _DPI, facecolor="none")
    with Image.open(whole) as picture:  # a third of it: few colours suffice
        picture.quantize(_COLORS, method=_OCTREE).save(smaller, "png", optimize=True)
    width_in, height_in = drawn.get_size_inches()
    return smaller.getvalue(), {"width": round(width_in * _DPI), "height": round(height_in * _DPI)}


def in_terminal(records: Iterable[CellRecord], show: Callable[[], None]) -> Any:
    """Return the figure, shown by what `show` prints; without matplotlib that is shown at once."""
    try:
        drawn: Any = figure(records)
    except ImportError:
        return show()
    drawn._ipython_display_ = show
    return drawn


def _draw(axes: Any, panel: Panel, axis: Axis, *, first: bool) -> None:
    """Draw one panel; the numbers of the cells stand between the first and its title."""
    from matplotlib.collections import PolyCollection

    axes.set_facecolor("none")
    axes.set_axisbelow(True)
    axes.grid(visible=False, axis="x")
    axes.grid(visible=True, axis="y", color=INK, alpha=0.25, linewidth=0.6)
    axes.tick_params(colors=INK, labelsize=_SMALL, length=0)
    axes.tick_params(axis="y", labelcolor=INK_TOO)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(INK)
        spine.set_linewidth(0.6)
    _shade_bands(axes, axis)
    for name, (color, alpha) in _CURVES.items():
        if runs := panel.curves[name]:
            areas = [[(run[0][0], 0.0), *run, (run[-1][0], 0.0)] for run in runs]
            label = "" if panel.name == "RAM" else name  # the title of its panel says it
            drawn = PolyCollection(areas, color=color, alpha=alpha, linewidth=0.8, zorder=1, label=label)
            axes.add_collection(drawn, autolim=False)
    most_mb, near = panel.height_mb()
    for size_mb in near:
        axes.axhline(size_mb, color=INK, linewidth=0.8, linestyle=(0, (6, 3)), zorder=3)
    _write(axes, (1, 1), panel.limits_text(), axes.transAxes, above_in=0.07, ha="right")
    axes.set_xlim(0, axis.width)
    axes.set_ylim(0, most_mb)
    for along, most, units in ((axes.xaxis, axis.width, TIMES), (axes.yaxis, most_mb, SIZES)):
        found = ticks(most, units)
        along.set_ticks(list(found))
        along.set_ticklabels(list(found.values()))
    _draw_marks(axes, panel)
    above_in = 0.07 + _NUMBERS_IN * first
    title = clipped(panel.title, _LETTERS // 2) + clipped(panel.highest, _LETTERS)
    _write(axes, (0, 1), title, axes.transAxes, above_in=above_in, fontsize=_SMALL + 1, weight="bold")


def _draw_marks(axes: Any, panel: Panel) -> None:
    """Draw how high memory was in the highest of those cells in which it rose notably."""
    marks = panel.rising()
    tops = [mark.top_mb for mark in marks]
    ends = [mark.left for mark in marks], [mark.right for mark in marks]
    axes.hlines(tops, *ends, color=PEAK, linewidth=1.6, zorder=4)
    for at_least, label, marker in ((False, "highest of the cell", "_"), (True, "highest, at least", "^")):
        places = [
            ((mark.left + mark.right) / 2, mark.top_mb)
            for mark in marks
            if is_inexact(mark.usage) == at_least
        ]
        if places:
            look = {"color": PEAK, "markerfacecolor": "none", "markersize": 6, "zorder": 4}
            axes.plot(*zip(*places, strict=True), marker, label=label, **look)


def _shade_bands(axes: Any, axis: Axis) -> None:
    """Shade every second cell, and each that failed."""
    wide, failed = axis.shaded()
    for bands, color, alpha, edge in ((wide, INK, 0.09, 0), (failed, PEAK, 0.13, 1)):
        spans = [(band.left, band.right - band.left) for band in bands]
        look = {"color": color, "alpha": alpha, "linewidth": edge, "zorder": 0}
        axes.broken_barh(spans, (0, 1), transform=axes.get_xaxis_transform(), **look)


def _write(axes: Any, place: tuple[float, float], text: str, over: Any, **look: Any) -> None:
    """Write foreign text at a place of some coordinates; `above_in` inches above it."""
    if text:
        offset = (0, look.pop("above_in", 0) * 72)
        look = {"color": INK, "fontsize": _SMALL, "zorder": 5, "usetex": False, "va": "bottom"} | look
        axes.annotate(_plain(text), place, offset, over, textcoords="offset points", **look)


def _plain(text: str) -> str:
    """Return foreign text on one line, short, with nothing that matplotlib would typeset as mathematics."""
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return clipped(text, 2 * _LETTERS).replace("$", r"\$")
