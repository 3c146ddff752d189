"""The style of the plots: inks, shapes and words, and a figure as SVG in the colours of its page.

The background is transparent, so each colour has to read on white and on black. The two inks look alike, but
one counts as light and the other as dark: matplotlib-inline puts a background under a transparent figure
whose tick labels are all dark, or all light.
"""

from __future__ import annotations

import io
import re
import warnings
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from ..records.units import clipped
from .markup import RED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

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


_SVG, _XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
_NUMBER = re.compile(r"-?\d+\.\d+")
_STEP = re.compile(r"([MLz])(?: (\S+) (\S+))?")
_INK = re.compile(f"{INK}|{INK_TOO}")
_DROPPED = ("metadata", "clipPath", "style")
_SILENT = ("font-family", "stroke-linecap: square", "stroke-linejoin: miter", "stroke-dashoffset: 0")


def svg(drawn: Figure, label: str, kind: str) -> str:
    """Return a figure as an ``<svg>`` element, without its background.

    Its words and lines have the colour of the text around it, and so are right on any page.

    Args:
        drawn: From `plot.figure`.
        label: What it shows, for those who do not see it.
        kind: Its class; figures of one page need different ones.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib as mpl

    file = io.StringIO()
    with warnings.catch_warnings(), mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": kind}):
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)  # only to measure the text
        drawn.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    root = ET.fromstring(file.getvalue())  # noqa: S314 - matplotlib just wrote it
    for element in root.iter():
        _shorten(element)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.attrib |= {"class": kind, "role": "img", "aria-label": label}
    return ET.tostring(root, encoding="unicode")


def _shorten(element: ET.Element) -> None:
    """Leave out what shows nothing, round places to a tenth, and let text have the colour of the page."""
    element.tag, element.tail = element.tag.removeprefix(_SVG), None
    inner = [child for child in element if child.tag.removeprefix(_SVG) not in _DROPPED]
    element[:] = [child for child in inner if child.get("style") != "fill: none"]
    found, is_text = element.attrib, element.tag == "text"
    element.text = element.text if is_text else None
    found.pop("clip-path", None)
    if element.tag == "g":
        found.pop("id", None)
    if _XLINK in found:
        found["href"] = found.pop(_XLINK)
    if "d" in found:
        found["d"] = _path(found["d"])
    for name in ("x", "y", "transform"):
        if name in found:
            found[name] = _NUMBER.sub(_tenths, found[name])
    if style := found.get("style"):
        kept = [part for part in style.split("; ") if not part.startswith(_SILENT)]
        style = ";".join(kept).replace(": ", ":")
        found["style"] = _INK.sub("currentColor", style) if is_text else style


def _path(drawn: str) -> str:
    """Return a path with each point relative to the one before it, in tenths: half as long."""
    if not {letter for letter in drawn if letter.isalpha()} <= {"M", "L", "z"}:
        return _NUMBER.sub(_tenths, drawn)
    short, last = "", (0, 0)
    for command, x, y in _STEP.findall(drawn):
        if command == "z":
            short += "z"
            continue
        point = round(10 * float(x)), round(10 * float(y))
        if command == "M":
            short += f"M{point[0] / 10:g} {point[1] / 10:g}l"
        elif point != last:
            short += f" {(point[0] - last[0]) / 10:g} {(point[1] - last[1]) / 10:g}"
        last = point
    return re.sub(r"l(?=[Mz]|$)", "", short).replace("l ", "l").replace(" -", "-")


def _tenths(figure: re.Match[str]) -> str:
    return f"{float(figure[0]):.1f}"
