"""A notebook's memory over time, as a matplotlib figure."""

from __future__ import annotations

import io
import math
import warnings
from datetime import timezone
from functools import partial
from typing import TYPE_CHECKING, Any

from ..records.units import clipped
from .plot_axis import AT_LEAST, SEEN, UNSEEN, Axis, panels

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matplotlib.figure import Figure

    from ..records import CellRecord
    from .plot_axis import Band, Mark, Panel

# Background and text colours are both set, so that the picture reads alike on a light page and on a dark one.
_PAPER, _INK, _FAINT, _WHOLE = "white", "#222222", "#8a8a8a", "#555555"
_BANDS = "#f3f3f3", "#e6e6e6"
_RAM, _GPU, _FAILED = "#1f5f99", "#7a3b96", "#b3261e"
_WIDTH_IN, _LEFT_IN, _PANEL_IN, _BETWEEN_IN = 9.0, 0.85, 7.95, 0.32
_SMALL = 8  # points
_LETTER_IN = 0.075  # of a label, with some room around it
_LETTERS = 40
_DPI = 100
_FEW = 4  # panels that get their full height
_MANY = 60  # marks; more are drawn small
_IN_VIEW = 2.5  # times the highest use: a limit above is not drawn
_CLEAR = 9  # pixels above a mark
_THIN = 2  # pixels: too narrow for a hatch
_COLUMNS = 3  # of the legend
_CLOCK_S = 120  # a longer time is written in minutes
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
_MARKERS = {SEEN: ("o", True), UNSEEN: ("o", False), AT_LEAST: ("^", False)}  # and whether it is filled


def figure(records: Iterable[CellRecord], *, title: str = "") -> Figure:
    """Return a figure of memory over the time of a notebook: general RAM, and each device that it used.

    Each cell is a band, hatched if the cell failed. A solid line was sampled while a cell ran; a dotted one
    joins the two ends of a cell without samples. A peak that the samples saw is a filled mark at its moment;
    any other is a hollow mark on a dotted bar, somewhere in its cell. Idle time between cells is a gap,
    shortened if it is long.

    pyplot is not used: the figure is on none of its lists, and IPython still displays it as a picture.

    Args:
        records: In any order; the runs of a restarted kernel follow one another.
        title: Above the figure.

    Raises:
        ValueError: There are no records.
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'ipygpulogger[plot]'") from error
    axis = Axis(records)
    shown = panels(axis)
    entries = _legend(shown, axis)
    panel_in = 2.0 if len(shown) <= _FEW else 1.3
    legend_in = 0.2 * math.ceil(len(entries) / _COLUMNS) + 0.1
    top_in, bottom_in = 0.3 + (0.35 if title else 0), 0.5 + legend_in
    height_in = top_in + len(shown) * (panel_in + _BETWEEN_IN) - _BETWEEN_IN + bottom_in
    drawn = Figure(figsize=(_WIDTH_IN, height_in), dpi=_DPI, facecolor=_PAPER)
    left, width = _LEFT_IN / _WIDTH_IN, _PANEL_IN / _WIDTH_IN
    if title:
        top = 1 - 0.08 / height_in
        drawn.text(left, top, _plain(title), color=_INK, fontsize=11, va="top", usetex=False)
    all_axes = []
    for place, panel in enumerate(shown):
        bottom = 1 - (top_in + place * (panel_in + _BETWEEN_IN) + panel_in) / height_in
        all_axes.append(drawn.add_axes((left, bottom, width, panel_in / height_in)))
        _draw(all_axes[-1], panel, axis, _GPU if place else _RAM)
    _name_bands(all_axes[0], axis)
    _draw_time(all_axes, axis)
    look = {"fontsize": _SMALL, "frameon": False, "labelcolor": _INK, "borderpad": 0, "borderaxespad": 0}
    drawn.legend(
        handles=entries, loc="lower left", bbox_to_anchor=(left, 0.08 / height_in), ncol=_COLUMNS, **look
    )
    drawn._repr_png_ = partial(_png, drawn)  # type: ignore[attr-defined, unused-ignore]
    return drawn


def _png(drawn: Figure) -> bytes:
    """Return the picture for IPython, which knows how to display pyplot's figures only."""
    stream = io.BytesIO()
    with warnings.catch_warnings():  # a letter that the font lacks, in a cell's label, is drawn as a box
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        drawn.savefig(stream, format="png", dpi=_DPI, facecolor=_PAPER, transparent=False)
    return stream.getvalue()


# -- one panel ---------------------------------------------------------------------------------------


def _draw(axes: Any, panel: Panel, axis: Axis, color: str) -> None:
    """Draw one panel, without its time."""
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
    _draw_curves(axes, panel, color)
    _draw_marks(axes, panel, axis, color)
    _draw_limits(axes, panel)
    _write(axes, 0, 1.03, panel.title, axes.transAxes, va="bottom")
    if top := panel.highest:
        side = "left" if top.x < 0.1 * axis.width else "right" if top.x > 0.9 * axis.width else "center"
        above_mb = top.most_mb + _CLEAR / axes.bbox.height * axes.get_ylim()[1]
        _write(axes, top.x, above_mb, str(top), axes.transData, ha=side, va="bottom")


def _pixels(span: Band | Mark, axis: Axis) -> float:
    """Return how wide a cell or a mark is drawn."""
    return (span.right - span.left) / axis.width * _PANEL_IN * _DPI


def _draw_bands(axes: Any, axis: Axis) -> None:
    over = axes.get_xaxis_transform()
    for remainder, color in enumerate(_BANDS):
        boxes = [_box(band.left, band.right, 0, 1) for band in axis.bands[remainder::2]]
        _draw_boxes(axes, boxes, transform=over, facecolor=color, linewidth=0, zorder=0)
    failed = [band for band in axis.bands if band.cell.status != "ok"]
    boxes = [_box(band.left, band.right, 0, 1) for band in failed if _pixels(band, axis) > _THIN]
    _draw_boxes(
        axes, boxes, transform=over, facecolor="none", edgecolor=_FAILED, alpha=0.35, linewidth=0, hatch="///"
    )
    middles = [(band.left + band.right) / 2 for band in failed]
    look = {"s": 22, "marker": "x", "color": _FAILED, "linewidth": 1.4, "zorder": 5}
    axes.scatter(middles, [0.95] * len(failed), transform=over, **look)


def _draw_curves(axes: Any, panel: Panel, color: str) -> None:
    for line, style in ((panel.own.sampled, "-"), (panel.own.joined, ":")):
        xs, sizes = [x for x, _ in line], [size for _, size in line]
        axes.fill_between(xs, sizes, color=color, alpha=0.22, linewidth=0, zorder=1)
        axes.plot(xs, sizes, style, color=color, linewidth=1.4, marker=None, zorder=3)
    for line, look in ((panel.whole.sampled, "--"), (panel.whole.joined, "_")):
        xs, sizes = [x for x, _ in line], [size for _, size in line]
        axes.plot(xs, sizes, look, color=_WHOLE, linewidth=1, markersize=5, zorder=2)


def _draw_marks(axes: Any, panel: Panel, axis: Axis, color: str) -> None:
    """Draw the peaks; one that no sample saw as a bar over its cell, one between two bounds as a line."""
    unseen = [mark for mark in panel.marks if mark.kind != SEEN]
    boxes = [_box(m.left, m.right, m.floor_mb, m.top_mb) for m in unseen if _pixels(m, axis) > _THIN]
    _draw_boxes(
        axes, boxes, facecolor="none", edgecolor=color, alpha=0.6, linewidth=0.6, hatch="....", zorder=2
    )
    lines = [(m.x, m.floor_mb, m.top_mb) for m in unseen if _pixels(m, axis) <= _THIN]
    lines += [(m.x, m.top_mb, m.most_mb) for m in panel.marks if m.bounded]
    axes.vlines(*zip(*lines, strict=True) if lines else ([], [], []), color=color, linewidth=1, zorder=3)
    small = len(panel.marks) > _MANY
    for kind, (marker, full) in _MARKERS.items():
        marks = [mark for mark in panel.marks if mark.kind == kind]
        look = {"s": 5 if small else 24, "linewidth": 0.6 if small else 1.2, "marker": marker, "zorder": 4}
        look |= {"facecolor": color if full else _PAPER, "edgecolor": color}
        axes.scatter([mark.x for mark in marks], [mark.top_mb for mark in marks], **look)


def _draw_limits(axes: Any, panel: Panel) -> None:
    """Draw the limits that are near; name those that would compress everything else if they were drawn."""
    highest_mb, over = panel.highest_mb(), axes.get_yaxis_transform()
    drawn = {name: size for name, size in panel.limits.items() if size <= _IN_VIEW * highest_mb}
    axes.set_ylim(0, 1.2 * max([highest_mb, *drawn.values()]))
    for name, size_mb in drawn.items():
        axes.axhline(size_mb, color=_INK, linewidth=1, linestyle="-.", zorder=3)
        _write(axes, 0.005, size_mb, f"{name} {size_mb:,.0f} MB", over, va="center")
    beyond = [f"{name} {size:,.0f} MB" for name, size in panel.limits.items() if name not in drawn]
    text = f"{', '.join(beyond)}: far above" if beyond else ""
    _write(axes, 1, 1.03, text, axes.transAxes, ha="right", va="bottom")


def _draw_boxes(axes: Any, boxes: list[Any], **look: Any) -> None:
    from matplotlib.collections import PolyCollection

    axes.add_collection(PolyCollection(boxes, **look), autolim=False)


def _write(axes: Any, x: float, y: float, text: str, over: Any, **look: Any) -> None:
    if text:
        ground = {"facecolor": _PAPER, "edgecolor": "none", "alpha": 0.75, "pad": 1}
        look = {"color": _INK, "fontsize": _SMALL, "zorder": 5, "usetex": False, "bbox": ground} | look
        axes.text(x, y, _plain(text), transform=over, **look)


# -- time and legend ---------------------------------------------------------------------------------


def _name_bands(axes: Any, axis: Axis) -> None:
    """Write the cells' labels above their bands, except where one would cover a neighbour."""
    over = axes.get_xaxis_transform()
    befores = [0.0, *(band.right for band in axis.bands)]
    afters = [*(band.left for band in axis.bands[1:]), axis.width]
    written = 0.0  # the right end of the last label
    for band, before, after in zip(axis.bands, befores, afters, strict=False):
        middle = (band.left + band.right) / 2
        half = len(band.cell.label) * _LETTER_IN / _PANEL_IN * axis.width / 2
        if max(before, written) <= middle - half and middle + half <= after:
            written = middle + half
            _write(axes, middle, 1.03, band.cell.label, over, ha="center", va="bottom")


def _draw_time(all_axes: Sequence[Any], axis: Axis) -> None:
    """Draw the ticks, the shortened idle times, and where the kernel was restarted."""
    ticks = _ticks(axis)
    restarts = [stretch for stretch in axis.stretches if stretch.restarted]
    for axes in all_axes:
        axes.set_xticks([x for x, _ in ticks])
        axes.set_xticklabels([label for _, label in ticks] if axes is all_axes[-1] else [])
        for stretch in restarts:
            look = {"color": _INK, "linewidth": 1, "linestyle": (0, (1, 1)), "zorder": 3}
            axes.axvline(stretch.x - stretch.gap / 2, **look)
    shortened = [stretch for stretch in axis.stretches if stretch.idle_s > stretch.gap]
    wide = [s for s in shortened if s.gap / axis.width * _PANEL_IN > _LETTER_IN * 2 and not s.restarted]
    over = all_axes[0].get_xaxis_transform()
    for stretch in (*restarts, *wide):
        text = ("restart, " if stretch.restarted else "") + f"idle {_elapsed(stretch.idle_s)}"
        look = {"fontsize": _SMALL - 1, "rotation": 90, "ha": "center", "va": "center"}
        _write(all_axes[0], stretch.x - stretch.gap / 2, 0.5, text, over, **look)
    label = f"time since {axis.begin.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    label += "; longer idle times shortened" if shortened else ""
    all_axes[-1].set_xlabel(label, color=_INK, fontsize=9)


def _ticks(axis: Axis) -> list[tuple[float, str]]:
    """Return places on the axis, and the time since the start of the first cell there.

    The start of a cell is preferred to a round time beside it.
    """
    apart = axis.width / _TICKS
    step_s = next((step for step in _STEPS_S if step >= apart), apart)
    clock = axis.stretches[-1].end_s >= _CLOCK_S
    decimals = max(0, -math.floor(math.log10(step_s)))
    found: list[tuple[float, str]] = []
    last_is_round = False
    for stretch in axis.stretches:
        first = math.ceil(stretch.start_s / step_s)
        rounds = (n * step_s for n in range(first, math.floor(stretch.end_s / step_s) + 1))
        for at_s in (stretch.start_s, *rounds):
            x = stretch.x + at_s - stretch.start_s
            near = bool(found) and x - found[-1][0] < apart
            if near and last_is_round and at_s == stretch.start_s:
                found.pop()
                near = bool(found) and x - found[-1][0] < apart
            if not near:
                found.append((x, _clock(at_s) if clock else f"{at_s:.{decimals}f} s"))
                last_is_round = at_s != stretch.start_s
    return found


def _elapsed(time_s: float) -> str:
    return _clock(time_s) if time_s >= _CLOCK_S else f"{time_s:.3g} s"


def _clock(time_s: float) -> str:
    """Return a time as "2:30" or "1:02:05"."""
    minutes, seconds = divmod(round(time_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _legend(shown: Sequence[Panel], axis: Axis) -> list[Any]:
    """Return an entry for each kind of line and mark that the figure has."""
    from matplotlib.lines import Line2D

    kinds = {mark.kind for panel in shown for mark in panel.marks}
    line, mark = {"color": _INK, "linewidth": 1.4}, {"color": _INK, "linestyle": "none", "markersize": 5}
    whole = {"color": _WHOLE, "linestyle": "--", "marker": "_", "linewidth": 1}
    entries: list[tuple[bool, str, dict[str, Any]]] = [
        (any(panel.own.sampled for panel in shown), "sampled", line),
        (any(panel.own.joined for panel in shown), "a cell's two ends, joined", line | {"linestyle": ":"}),
        (any(panel.whole for panel in shown), "whole device, all processes", whole),
        *(
            (kind in kinds, kind, mark | {"marker": marker, "markerfacecolor": _INK if full else _PAPER})
            for kind, (marker, full) in _MARKERS.items()
        ),
        (
            any(mark.bounded for panel in shown for mark in panel.marks),
            "peak, up to its upper bound",
            mark | {"marker": "|", "markersize": 8},
        ),
        (
            any(band.cell.status != "ok" for band in axis.bands),
            "cell that failed or was interrupted",
            mark | {"marker": "x", "color": _FAILED},
        ),
    ]
    return [Line2D([], [], label=label, **look) for there, label, look in entries if there]


def _box(left: float, right: float, bottom: float, top: float) -> list[tuple[float, float]]:
    return [(left, bottom), (left, top), (right, top), (right, bottom)]


def _plain(text: str) -> str:
    """Return foreign text on one line, short, with nothing that matplotlib would typeset as mathematics."""
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return clipped(text, _LETTERS).replace("$", r"\$")
