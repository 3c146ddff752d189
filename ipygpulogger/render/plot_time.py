"""The time of the plot: the bands of the cells with their numbers, the ticks, the gaps and the restarts."""

from __future__ import annotations

import math
from datetime import timezone
from typing import TYPE_CHECKING, Any

from .plot_style import INK, PEAK, SMALL, box, fill, letter_width, pixels, plain, write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .plot_axis import Axis

_BAND, _FAILED = (INK, 0.09), (PEAK, 0.13)
_SHADED = 6  # pixels: narrower cells are not shaded alternately
_COLUMNS = 300  # in each of which at most one cell that failed begins
_WORDS = 14  # pixels: a gap as wide has room for its length
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


def draw_bands(axes: Any, axis: Axis) -> None:
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


def number_bands(axes: Any, axis: Axis) -> None:
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


def draw_time(all_axes: Sequence[Any], axis: Axis, notes: Sequence[str], between: str) -> None:
    """Draw the ticks, the shortened idle times, and where the kernel was restarted; write the notes below."""
    ticks = _ticks(axis, letter_width(all_axes[-1]))
    restarts = [stretch for stretch in axis.stretches if stretch.restarted]
    for axes in all_axes:
        axes.set_xticks([x for x, _ in ticks])
        axes.set_xticklabels([label for _, label in ticks] if axes is all_axes[-1] else [])
        for (x, _), label in zip(ticks, axes.get_xticklabels(), strict=False):
            if x > 0.97 * axis.width:  # in the middle of its tick it would leave the figure
                label.set_ha("right")
        for stretch in restarts:
            look = {"color": INK, "linewidth": 1, "linestyle": (0, (1, 1)), "zorder": 3}
            axes.axvline(stretch.x - stretch.gap / 2, **look)
    shortened = [stretch for stretch in axis.stretches if stretch.idle_s > stretch.gap]
    wide = [s for s in shortened if pixels(all_axes[0], s.gap) > _WORDS and not s.restarted]
    over = all_axes[0].get_xaxis_transform()
    for stretch in (*restarts, *wide):
        text = ("restart, " if stretch.restarted else "") + f"idle {_elapsed(stretch.idle_s)}"
        look = {"fontsize": SMALL - 1, "rotation": 90, "va": "center"}
        look["ha"] = "right" if stretch.restarted else "center"  # a restart has a line there
        write(all_axes[0], (stretch.x - stretch.gap / 2, 0.5), text, over, **look)
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
    longest = len(_clock(axis.stretches[-1].end_s))
    apart = max(axis.width / _TICKS, (longest + 1) * letter)
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
