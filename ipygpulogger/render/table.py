"""One table, described once: `Table.text` aligns it for a terminal, `Table.html` draws it for a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from typing import Literal, NamedTuple

from ..records import Usage
from ..records.units import MB, clipped, printable, rounded_mb
from .markup import BLUE, RED, Cell, Drawn, Part, Strong, Text, cell_bar, code
from .markup import table as html_table


class Column(NamedTuple):
    """A column of a table."""

    head: str
    kind: Literal["figure", "words", "code", "drawn"] = "figure"  # to the right; to the left; in HTML alone
    over: str = ""  # in text, what stands over it and its neighbours together
    html_head: str | None = None  # what stands over it in HTML; the same if None
    gap: int = 2  # in text, how many spaces are before it
    least: int = 0  # in text, its width at least


class Bar(NamedTuple):
    """A cell with a bar."""

    parts: Sequence[Part]
    scale_bytes: int  # how much fills the cell

    def blocks(self, width: int) -> str:
        """Return the bar for text: its first part in full blocks, the others in light ones."""
        drawn, sizes = "", 0
        for part, block in zip(self.parts, "█░", strict=False):
            sizes += part.size_bytes if part.size_bytes >= MB else 0
            # What is seen at all takes a character, and no part takes that of another.
            columns = -(-sizes * width // self.scale_bytes) if sizes and self.scale_bytes else 0
            drawn += block * (columns - len(drawn))
        return f"{drawn:{width}}"


Words = str | Strong | Drawn | Text  # of a cell; a `Strong` one stands out in HTML


@dataclass
class Table:
    """A table that has not been drawn yet; the first column names the row."""

    columns: Sequence[Column]
    rows: list[tuple[str, Sequence[Words | Bar]]] = field(default_factory=list)  # with their marks

    def add(self, *cells: Words | Bar, mark: str = " ") -> None:
        """Add a row, in text with a mark before it; a single cell is a heading of the rows below."""
        self.rows.append((mark, cells))

    def text(self, width: int | None = None, *, marks: bool = True) -> list[str]:
        """Return lines of text with room for marks, of at most this width if words can be squeezed so far."""
        shown = [at for at, column in enumerate(self.columns) if column.kind != "drawn"]
        first, *others = (self.columns[at] for at in shown)
        columns = [first._replace(gap=0), *others]
        heads = [column.head for column in columns]
        rows = [[_words(cells[at]) for at in shown] for _, cells in self.rows if len(cells) > 1]
        widths = _widths(columns, [heads, *rows], width)
        drawn = [_over(columns, widths)] if any(column.over for column in columns) else []
        drawn.append(_line(" ", heads, columns, widths))
        words = iter(rows)
        for mark, cells in self.rows:
            is_heading = len(cells) == 1
            drawn.append(f"{_words(cells[0])}:" if is_heading else _line(mark, next(words), columns, widths))
        return drawn if marks else [line[2:] for line in drawn]

    def html(self, caption: str = "") -> str:
        """Return the table as HTML, with what it is about above it; empty if the line above says so."""
        names = (c.head.strip() if c.html_head is None else c.html_head for c in self.columns)
        head = [
            Text(escape(name)) if name and column.kind != "figure" else name
            for name, column in zip(names, self.columns, strict=True)
        ]
        return html_table(head, (self._drawn(cells) for _, cells in self.rows), caption=caption)

    def _drawn(self, cells: Sequence[Words | Bar]) -> list[Cell]:
        if len(cells) == 1:
            return [Text(f"<b style=white-space:nowrap>{escape(_words(cells[0]))}</b>")]
        return [_cell(cell, column.kind) for cell, column in zip(cells, self.columns, strict=True)]


def _widths(columns: Sequence[Column], rows: Iterable[Sequence[str]], most: int | None) -> list[int]:
    """Return the widths of columns of text; of those that are no figures the widest are squeezed to fit."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    widths = [max(width, column.least) for width, column in zip(widths, columns, strict=True)]
    flexible = [at for at, column in enumerate(columns) if column.kind != "figure"]
    gaps = len("* ") + sum(column.gap for column in columns)
    while most is not None and gaps + sum(widths) > most:
        widest = max(flexible, key=widths.__getitem__)
        if widths[widest] == 1:
            break
        widths[widest] -= 1
    return widths


def _line(mark: str, cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    line = f"{mark} "
    for cell, column, width in zip(cells, columns, widths, strict=True):
        shown = clipped(printable(cell), width) if column.kind == "code" else squeezed(cell, width)
        words = f"{cell:>{width}}" if column.kind == "figure" else f"{shown:{width}}"
        line += " " * column.gap + words if width else ""  # nothing is in a column without width
    return line.rstrip()


def _over(columns: Sequence[Column], widths: Sequence[int]) -> str:
    """Return the line above the heads: what stands over several columns."""
    line = "  "
    for name, group in groupby(zip(columns, widths, strict=True), key=lambda one: one[0].over):
        gaps, wide = zip(*((column.gap, width) for column, width in group), strict=True)
        line += " " * gaps[0] + f"{name:^{sum(gaps[1:]) + sum(wide)}}"
    return line.rstrip()


def _cell(cell: Words | Bar, kind: str) -> Cell:
    if isinstance(cell, Bar):
        return cell_bar(cell.parts, cell.scale_bytes)
    if kind == "figure" or isinstance(cell, (Drawn, Text)):
        return cell
    markup = code(_words(cell), wraps=True) if kind == "code" else escape(_words(cell))
    if isinstance(cell, Strong):
        return Drawn(f"<b>{markup}</b>")
    return Text(markup) if kind == "words" else Drawn(markup)


def _words(cell: Words | Bar) -> str:
    return cell if isinstance(cell, str) else cell.words if isinstance(cell, Strong) else ""


def squeezed(words: str, characters: int) -> str:
    """Return words made printable, their middle left out if they are longer: ends tell names apart."""
    shown = printable(words)
    if len(shown) <= characters:
        return shown
    head = (characters - 1) // 3
    return f"{shown[:head]}…{shown[len(shown) - (characters - 1 - head) :]}"


def least_sign(usage: Usage) -> str:
    """Return the sign before a figure whose peak is a lower bound."""
    lo_bytes, hi_bytes = usage.peak.lo_bytes, usage.peak.hi_bytes
    return "" if hi_bytes is not None and rounded_mb(hi_bytes) == rounded_mb(lo_bytes) else "≥"


def moved_parts(usage: Usage | None) -> list[Part]:
    """Return the parts of the bar of what moved in a memory: consumed, and needed for a moment."""
    if usage is None:
        return []
    consumed = Part("consumed", max(0, usage.consumed_bytes), BLUE)
    return [consumed, Part("for a moment", usage.peaked_bytes, RED)]
