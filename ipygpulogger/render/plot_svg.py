"""The plot as SVG to stand inside an HTML page: small, and in the page's own colour and font."""

from __future__ import annotations

import io
import re
import warnings
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from .plot_style import INK, INK_TOO

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SVG, _XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
_NUMBER = re.compile(r"-?\d+\.\d+")
_STANDING = re.compile(r"rotate\(-0 .*?\)")  # text that is not turned
_INK = re.compile(f"{INK}|{INK_TOO}")
_SPACE = re.compile(r"\s+")
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
    _shorten(root)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.attrib |= {"class": kind, "role": "img", "aria-label": label}
    return ET.tostring(root, encoding="unicode")


def _shorten(element: ET.Element) -> None:
    """Shorten an element and all in it, and leave out what says nothing: here nothing leaves its panel."""
    kept: list[ET.Element] = []
    for child in element:
        _shorten(child)
        if (child.tag == "g" and not child.attrib) or (child.tag == "defs" and not len(child)):
            kept += child
        elif child.tag not in _DROPPED and child.get("style") != "fill:none":
            kept.append(child)
    element[:] = kept
    element.tag, element.tail = element.tag.removeprefix(_SVG), None
    if element.tag != "text":
        element.text = None
    if element.tag == "g":
        element.attrib.pop("id", None)
    _shorten_attributes(element.attrib, is_text=element.tag == "text")


def _shorten_attributes(found: dict[str, str], *, is_text: bool) -> None:
    """Round the figures of an element's attributes, and let text have the colour of the page."""
    found.pop("clip-path", None)
    if _XLINK in found:
        found["href"] = found.pop(_XLINK)
    if "d" in found:
        found["d"] = _path(found["d"])
    for name in ("x", "y", "transform"):
        if name in found:
            found[name] = _NUMBER.sub(_rounded, _STANDING.sub("", found[name]))
    if not found.get("transform", " "):
        del found["transform"]
    if style := found.get("style"):
        style = ";".join(
            part.replace(": ", ":") for part in style.split("; ") if not part.startswith(_SILENT)
        )
        found["style"] = _INK.sub("currentColor", style) if is_text else style


def _path(drawn: str) -> str:
    """Return a path with short figures: each point relative to the one before it, in tenths."""
    words = drawn.split()
    if not {word for word in words if word.isalpha()} <= {"M", "L", "z"}:
        return _SPACE.sub(" ", _NUMBER.sub(_rounded, drawn)).strip()
    told, at, begin = "", (0, 0), (0, 0)
    place = 0
    while place < len(words):
        if words[place] == "z":
            told, at, place = f"{told}z", begin, place + 1
            continue
        point = round(10 * float(words[place + 1])), round(10 * float(words[place + 2]))
        if words[place] == "M":
            told, begin = f"{told}M{_tenths(point[0])} {_tenths(point[1])}l", point
        elif point != at:
            told += f" {_tenths(point[0] - at[0])} {_tenths(point[1] - at[1])}"
        at, place = point, place + 3
    return told.replace(" -", "-").replace("l ", "l").replace("lz", "z")


def _tenths(figure: int) -> str:
    return f"{figure / 10:g}".replace("-0.", "-.").removeprefix("0" if 0 < figure < 10 else "\0")


def _rounded(figure: re.Match[str]) -> str:
    return f"{float(figure[0]):.1f}".removesuffix(".0")
