"""What every HTML report is made of: fitted text, lines, tables, bars, folds, time series.

Styles are inline, as notebooks keep no other. Colours hold on a light and on a dark page. With all styles
stripped, figures are aligned by the table's own attributes. All text given here is escaped here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..records.units import MB, MINUS, size_text

if TYPE_CHECKING:
    from ..records import Timeline
    from .headline import Weight

T = TypeVar("T")

BLUE, PALE, GREY = "#4c78a8", "#4c78a880", "#9e9e9e"
PURPLE, RED, AMBER = "#b279a2", "#e45756", "#e4a11b"

# Words break where a line has no room for one, but not so that the columns of a table get narrower.
_REPORT = "font-size:12.5px;margin-left:6px;overflow-wrap:break-word"  # where JupyterLab puts printed text
_BAR = "display:flex;height:9px;max-width:520px;border-radius:3px;overflow:hidden;background:#8883"
_TABLE = "border-collapse:separate;border-spacing:12px 0;font-size:inherit;margin:0 -12px"
_WRAPS = ";display:inline-block;min-width:9em;word-break:break-all"  # JupyterLab keeps no `anywhere`
_TRIANGLE = "13px"  # the width of what unfolds a line
_SPACE = "\N{NO-BREAK SPACE}"
DOT = f"{_SPACE}· "  # between the items of a line; a broken line never begins with it
_PAGE = _TABLE.replace("inherit;margin:0 -12px", "12.5px;margin:0 -6px")  # of a page: where reports begin
# Of aligned text; nbconvert lets `pre` inherit the font.
PREFORMATTED = 'style="font-family:monospace;font-size:11.5px;margin:2px 0;overflow-x:auto;white-space:pre"'
_THIN = 0.3  # per cent of a bar, at least: what the legend names is seen
# JupyterLab's sanitizer drops `font`. Without spaces an attribute needs no quotes.
_HEAD = "style=font-weight:400;padding:0"
_NAME = f"{_HEAD};text-align:left"
_FIGURE = "style=padding:0"
_LEFT = "align=left style=padding:0;text-align:left"
_CELL_BAR = "display:flex;width:72px;height:8px;border-radius:2px;overflow:hidden;background:#8882"
_TEXT = "align=left style=opacity:.65;padding:0;text-align:left"


_HYPHEN = re.compile(r"(?<![\w)])-(?=\d)")
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:[MGT]B|s|min|h|of)\b)|(?<=of) (?=\d)")


class Part(NamedTuple):
    """A part of a bar."""

    name: str  # in the legend
    size_bytes: int
    fill: str = ""  # a CSS background; empty for what is free


class Strong(NamedTuple):
    """A figure of a table that stands out."""

    words: str


class Drawn(NamedTuple):
    """A cell of a table that holds a bar, or code, at full strength; already escaped."""

    markup: str


class Text(NamedTuple):
    """A cell of a table that holds words, or a drawing, in place of a figure; already escaped."""

    markup: str


Cell = str | Strong | Text | Drawn  # a `str` is escaped


def fitted(words: str, most: int) -> str:
    """Return text escaped, and shortened to so many bytes."""
    markup = escape(words)
    if size(markup) <= most:
        return markup
    words = words[: max(0, most)]
    while words and size(markup := escape(words) + "…") > most:
        words = words[:-1]
    return markup if words else ""


def first_fitting(versions: Iterable[str], most: int) -> str:
    """Return the first of these versions, the fullest first, that fits; nothing if none does."""
    return next((markup for markup in versions if size(markup) <= most), "")


def typeset(words: str) -> str:
    """Return words in which no line ends between a figure and its unit, with real minus signs."""
    if " " in words:
        words = _BEFORE_UNIT.sub(_SPACE, words)
    return _HYPHEN.sub(MINUS, words) if "-" in words else words


def size(markup: str) -> int:
    """Return how many bytes markup takes."""
    return len(markup.encode("utf-8", "surrogatepass"))


def faint(markup: str) -> str:
    """Return markup as words of less importance."""
    return f"<span style=opacity:.65>{markup}</span>"


def weighed(words: str, weight: Weight) -> str:
    """Return words of a headline as markup."""
    markup = escape(typeset(words))
    if weight == "strong":
        return f"<b>{markup}</b>"
    return faint(markup) if weight == "faint" else markup


def code(words: str, *, wraps: bool = False) -> str:
    """Return words in the letters of code, with their spaces; in a column that gets narrow they wrap."""
    markup = escape(words).replace("  ", "&nbsp; ")
    return f"<code style=background:none;padding:0{_WRAPS if wraps else ''}>{markup}</code>"


def scrolling(markup: str) -> str:
    """Return a wide table that scrolls by itself, so that it never widens the page."""
    return f"<div style=overflow-x:auto>{markup}</div>"


def line(markup: str, *, quiet: bool = False, indented: bool = False) -> str:
    """Return one line, a quiet one grey; that and an `indented` one begin where the words of `folded` do."""
    indent = f";padding-left:{_TRIANGLE}" if quiet or indented else ""
    return f"<div style={_REPORT}{indent}{';opacity:.6' if quiet else ''}>{markup}</div>"


def small(words: str) -> str:
    """Return a sentence in small grey letters."""
    return f'<div style="font-size:11.5px;opacity:.7">{escape(words)}</div>'


def footnote(words: str) -> str:
    """Return such a sentence below a table, where the table begins."""
    return line(small(words))


def folded(summary: str, body: str, *, is_open: bool = False) -> str:
    """Return a line that unfolds."""
    return (
        f"<details{' open' if is_open else ''} style={_REPORT}><summary style=cursor:pointer>"
        f'{summary}</summary><div style="margin:4px 0 6px {_TRIANGLE};overflow-x:auto">{body}</div></details>'
    )


def table(head: Sequence[str | Text], rows: Iterable[Sequence[Cell]], *, caption: str = "") -> str:
    """Return a table whose first column names the row, and whose other columns are figures or `Text`.

    The rows are in ``tfoot``, as JupyterLab stripes those of ``tbody`` like a DataFrame's. The end tags that
    HTML makes optional are left out, and so is ``scope``: header cells that fill a row or a column head it.
    """
    style = _PAGE if caption else _TABLE
    above = f'<caption style="padding:0 12px;text-align:left">{escape(caption)}</caption>' if caption else ""
    first, *others = head
    names = "".join(f"<th {_NAME if isinstance(name, Text) else _HEAD}>{_content(name)}" for name in others)
    body = f"<th {_NAME}>{_content(first)}{names}"
    for name, *figures in rows:
        # The rest of a row that unfolds stands at its first line (0); JupyterLab centres it.
        more = ";vertical-align:0" if any("<details" in _content(figure) for figure in figures) else ""
        body += f"<tr align=right><th {_NAME}{more}>{_content(name)}"
        body += "".join(_data(figure, more) for figure in figures)
    return f'<table style="{style}">{above}<tfoot><tr align=right style=opacity:.65>{body}</tfoot></table>'


def _data(cell: Cell, more: str) -> str:
    style = _TEXT if isinstance(cell, Text) else _LEFT if isinstance(cell, Drawn) else _FIGURE
    return f"<td {style}{more}>{_content(cell)}"


def _content(cell: Cell) -> str:
    if isinstance(cell, Strong):
        return f"<b>{escape(typeset(cell.words))}</b>"
    return escape(typeset(cell)) if isinstance(cell, str) else cell.markup


def bar(parts: Sequence[Part], total_bytes: int) -> str:
    """Return parts of a whole as a bar: what is left over is free. A part never takes more than is left."""
    return f'<div style="{_BAR}">{_segments(parts, total_bytes)}</div>' if total_bytes > 0 else ""


def cell_bar(parts: Sequence[Part], total_bytes: int) -> Drawn:
    """Return parts of a whole as a short bar in a table; empty where there is nothing to draw."""
    drawn = _segments(parts, total_bytes) if total_bytes > 0 else ""
    return Drawn(f'<div style="{_CELL_BAR}">{drawn}</div>' if drawn else "")


def _segments(parts: Sequence[Part], total_bytes: int) -> str:
    drawn, left = "", 100.0
    for part in parts:
        if part.fill and part.size_bytes >= MB and left > 0:
            share = min(left, max(_THIN, part.size_bytes / total_bytes * 100))
            left -= share
            drawn += f"<b style=width:{share:.3g}%;background:{part.fill}></b>"
    return drawn


def legend(parts: Sequence[Part], name: str = "") -> str:
    """Return what a bar shows in words, each part with its colour; below 1 MB is left out."""
    said = (
        _key(f"{part.name} {size_text(part.size_bytes)}", part.fill)
        for part in parts
        if part.size_bytes >= MB
    )
    return f'<div style="font-size:11.5px;margin:2px 0 4px">{escape(name)}{DOT.join(said)}</div>'


def colours(fills: Mapping[str, str], *, is_folded: bool = False) -> str:
    """Return what the colours of the bars in a table mean, below the table; nothing if there are none."""
    said = DOT.join(_key(words, fill) for words, fill in fills.items())
    markup = said and f'<div style="font-size:11.5px">{said}</div>'
    return markup if is_folded or not said else line(markup)


def _key(words: str, fill: str) -> str:
    square = f"<b style=color:{fill}>■</b>{_SPACE}" if fill else ""
    return square + escape(words.replace(" ", _SPACE))


_BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(timeline: Timeline, width: int = 24) -> str:
    """Return a time series as so many blocks, ▁ the lowest; empty if it varies by less than 1 MB."""
    sizes = [size for _, size in timeline]
    low, high = min(sizes, default=0), max(sizes, default=0)
    if high - low < MB:
        return ""
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round((size - low) / (high - low) * top)] for size in columns(timeline, width))


def columns(timeline: Sequence[tuple[float, T]], width: int, key: Any = None) -> list[T]:
    """Return the highest point in each of so many equal parts of the time, or the last one before it."""
    start_s, last = timeline[0]
    span_s = timeline[-1][0] - start_s or 1.0
    places = [min(int((at_s - start_s) / span_s * width), width - 1) for at_s, _ in timeline]
    found = []
    for column in range(width):
        inside = [size for place, (_, size) in zip(places, timeline, strict=True) if place == column]
        found.append(max(inside, default=last, key=key))
        last = inside[-1] if inside else last
    return found
