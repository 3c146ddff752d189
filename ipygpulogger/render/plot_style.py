"""How the plot looks: its colours, and how foreign text and shapes are put into it.

The background is transparent, so each colour has to read on white and on black. The two inks look alike, but
one counts as light and the other as dark: matplotlib-inline puts a background under a transparent figure
whose tick labels are all dark, or all light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..records.units import clipped
from .markup import RED

if TYPE_CHECKING:
    from collections.abc import Sequence

INK, INK_TOO = "#808080", "#7c7c7c"
PEAK = RED
SMALL = 8  # points
DPI = 100
_LETTER_IN = 0.068  # of a label, with some room around it
_LETTERS = 48


def letter_width(axes: Any) -> float:
    """Return the width of a letter of a label, on the time axis."""
    left, right = axes.get_xlim()
    return float(_LETTER_IN * DPI / axes.bbox.width * (right - left))


def pixels(axes: Any, width: float) -> float:
    """Return how wide a part of the time axis is drawn."""
    left, right = axes.get_xlim()
    return float(width / (right - left) * axes.bbox.width)


def box(left: float, right: float, bottom: float, top: float) -> list[tuple[float, float]]:
    """Return the corners of a box."""
    return [(left, bottom), (left, top), (right, top), (right, bottom)]


def fill(
    axes: Any, shapes: Sequence[Sequence[tuple[float, float]]], color: str, alpha: float, **look: Any
) -> None:
    """Draw any number of filled shapes as one."""
    if shapes:
        from matplotlib.patches import PathPatch
        from matplotlib.path import Path

        path = Path.make_compound_path(*(Path([*shape, shape[0]], closed=True) for shape in shapes))
        axes.add_artist(PathPatch(path, facecolor=color, edgecolor=color, alpha=alpha, **look))


def stroke(axes: Any, lines: Sequence[Sequence[tuple[float, float]]], color: str, width: float) -> None:
    """Draw any number of lines as one."""
    if lines:
        from matplotlib.patches import PathPatch
        from matplotlib.path import Path

        path = Path.make_compound_path(*map(Path, lines))
        axes.add_artist(PathPatch(path, fill=False, edgecolor=color, linewidth=width, zorder=4))


def write(axes: Any, place: tuple[float, float], text: str, over: Any, **look: Any) -> None:
    """Write foreign text at a place of some coordinates; `above_in` inches above it."""
    if text:
        offset = (0, look.pop("above_in", 0) * 72)
        look = {"color": INK, "fontsize": SMALL, "zorder": 5, "usetex": False, "va": "bottom"} | look
        axes.annotate(plain(text), place, offset, over, textcoords="offset points", **look)


def plain(text: str) -> str:
    """Return foreign text on one line, short, with nothing that matplotlib would typeset as mathematics."""
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return clipped(text, _LETTERS).replace("$", r"\$")
