"""The records of many processes as one table of text; of very many the quantiles, and who stands out.

It has 80 columns at most, and a bounded number of lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..records.imbalance import GPU, RAM, TIME
from ..records.units import printable_lines, rounded_mb, time_text
from .group_rows import (
    LABEL,
    NAME,
    ROWS,
    count_of,
    figure_name,
    gpu_figures,
    has_gpus,
    heads_of,
    name_in_words,
    ram_figures,
    rows_of,
    sentences,
    spread_of,
    squeezed,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..records.group import Group
    from ..records.imbalance import Figure
    from .group_rows import Row

_COLUMNS = 80
_FIGURE = 14  # columns of the name of a figure


def table(group: Group) -> str:
    """Return the table as text of at most 80 columns, without a newline at the end."""
    took = f", {time_text(max(record.time_s for record in group))}" if group else ""
    head = f"{squeezed(group.label, LABEL)}: {count_of(group)}{took}{_unit(group)}"
    lines = [head]
    rows = rows_of(group)
    if len(group) > ROWS:
        lines += _spread_lines(group)
    if rows:
        lines += _row_lines(group, rows)
    if 1 < len(group) <= ROWS:
        lines += _spread_lines(group)
    for sentence in sentences(group):
        lines += _wrapped(sentence)
    return printable_lines(lines)


def _unit(group: Group) -> str:
    return "" if not group else "; MB" if has_gpus(group) else "; RAM in MB"


def _row_lines(group: Group, rows: Sequence[Row]) -> Iterator[str]:
    """Yield the heads of the table and its rows; those that stand out have a star."""
    heads = heads_of(group)
    gpus = has_gpus(group)
    figures = [
        [*ram_figures(row.record), *(gpu_figures(row.record) if gpus else ()), time_text(row.record.time_s)]
        for row in rows
    ]
    named = ["Consumed", "Peaked", "Used"]
    figure_heads = [*named, *(named if gpus else ()), "Time"]
    widths = [
        max(len(head) + (head == "Used"), *(len(cells[i]) for cells in figures)) + 1 + (i == 3 and gpus)
        for i, head in enumerate(figure_heads)
    ]
    names = _name_widths([heads, *(row.names for row in rows)], _COLUMNS - 2 - sum(widths))
    indent = " " * (2 + sum(names) + len(names) - 1)
    if gpus:
        yield f"{indent}{RAM:>{sum(widths[:3])}}{GPU:>{sum(widths[3:6])}}"
    yield (
        "  " + _joined(heads, names) + "".join(f"{h:>{w}}" for h, w in zip(figure_heads, widths, strict=True))
    )
    for row, cells in zip(rows, figures, strict=True):
        star = "* " if row.marks else "  "
        yield (
            star
            + _joined(row.names, names)
            + "".join(f"{c:>{w}}" for c, w in zip(cells, widths, strict=True))
        )


def _name_widths(columns: Sequence[Sequence[str]], room: int) -> list[int]:
    """Return the widths of the columns of names, the widest of them narrowed until all fit."""
    widths = [min(NAME, max(map(len, column))) for column in zip(*columns, strict=True)]
    while sum(widths) + len(widths) - 1 > room:
        widths[widths.index(max(widths))] -= 1
    return widths


def _joined(names: Sequence[str], widths: Sequence[int]) -> str:
    return " ".join(f"{squeezed(name, width):{width}}" for name, width in zip(names, widths, strict=True))


def _spread_lines(group: Group) -> Iterator[str]:
    """Yield the table of the spread: a row for each figure."""
    found = spread_of(group)
    if not found:
        return
    many = len(group) > ROWS
    heads = ["Smallest", "Median", *(["p90", "p99"] if many else []), "Largest", "Spread"]
    table = [heads]
    for one in found:
        cells = [one.smallest, one.median, *(one.quantiles if many else ()), one.largest, one.spread]
        table.append([_short(one, figure) for figure in cells])
    widths = [max(map(len, column)) + 1 for column in zip(*table, strict=True)]
    names = ["", *(squeezed(figure_name(one), _FIGURE) for one in found)]
    first = max(map(len, names))
    room = _COLUMNS - 4 - first - sum(widths)
    most = ["Most", *(squeezed(name_in_words(one.most), room) for one in found)]
    for name, told, who in zip(names, table, most, strict=True):
        figures = "".join(f"{figure:>{width}}" for figure, width in zip(told, widths, strict=True))
        yield f"  {name:{first}}{figures}  {who}"


def _short(one: Figure, figure: float) -> str:
    """Return a figure of at most eight characters."""
    if one.name != TIME:
        return f"{rounded_mb(figure)}"
    told = time_text(figure)
    return told if len(told) <= 8 else f"{figure:.0f} s"


def _wrapped(sentence: str) -> Iterator[str]:
    """Yield a sentence in lines of at most 80 columns."""
    import textwrap

    yield from textwrap.wrap(sentence, _COLUMNS, subsequent_indent="  ", break_on_hyphens=False) or [""]
