"""The records of many processes as HTML: one line that unfolds to the table; at most twelve kilobytes."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Literal

from ..records.imbalance import GPU, RAM, TIME, busiest
from ..records.units import MB, rounded_mb, size_text, time_text, without_controls
from .group_rows import (
    LABEL,
    NAME,
    ROWS,
    count_of,
    figure_name,
    gpu_figures,
    has_gpus,
    heads_of,
    mark_of,
    name_in_words,
    ram_figures,
    rows_of,
    sentences,
    spread_of,
    squeezed,
)
from .markup import (
    BLUE,
    DOT,
    RED,
    Drawn,
    Part,
    Strong,
    Text,
    cell_bar,
    faint,
    folded,
    line,
    size,
    small,
    table,
    typeset,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..records.group import Group
    from ..records.imbalance import Figure, Outlier
    from .group_rows import Row
    from .markup import Cell

    Weight = Literal["strong", "plain", "faint"]

_LIMIT = 12288  # bytes
_OUTLIERS = 3  # that the line names
_NAMES = NAME, 16, 8  # characters of a name: fewer if the table takes too much


def html(group: Group) -> str:
    """Return the table as HTML."""
    clauses = _clauses(group)
    summary = DOT.join(_weighed(words, weight) for words, weight in clauses)
    if not group and not group.missing and not group.notes:
        return without_controls(line(summary, quiet=True))
    spoken = "; ".join(words for words, _ in clauses)
    is_open = _matters(group)
    room = _LIMIT - size(folded(summary, "", spoken=spoken, is_open=is_open))
    return without_controls(folded(summary, _body(group, room), spoken=spoken, is_open=is_open))


def _weighed(words: str, weight: Weight) -> str:
    told = escape(typeset(words))
    return f"<b>{told}</b>" if weight == "strong" else faint(told) if weight == "faint" else told


def _matters(group: Group) -> bool:
    """Return whether the table is open from the start: memory moved, or there is something to be said."""
    usages = (usage for record in group for usage in (record.gen, *record.gpus))
    moved = any(usage.needed_bytes >= MB or usage.consumed_bytes <= -MB for usage in usages)
    return moved or bool(group.missing or group.notes or group.outliers)


def _clauses(group: Group) -> list[tuple[str, Weight]]:
    """Return the line: how many processes, how long they took, what they needed, who stands out."""
    found: list[tuple[str, Weight]] = []
    if label := squeezed(group.label, LABEL).strip():
        found.append((label, "faint"))
    found.append((count_of(group), "strong"))
    found += [(_range(one), "plain") for one in group.figures if one.name == TIME]
    needed = [one for one in group.figures if one.what == "needed" and rounded_mb(one.largest)]
    found += [(f"{one.name} needed {_range(one)}", "plain") for one in needed[:_OUTLIERS]]
    marks: dict[int, list[Outlier]] = {}
    for one in group.outliers:
        marks.setdefault(id(one.record), []).append(one)
    for some in list(marks.values())[:_OUTLIERS]:
        process = some[0].record.process
        who = squeezed(process.task or process.named(), NAME)
        found.append((f"{who}: {', '.join(map(mark_of, some[:2]))}", "strong"))
    if len(marks) > _OUTLIERS:
        found.append((f"{len(marks) - _OUTLIERS:,} more far above the median", "plain"))
    if failed := sum(record.outcome() != "" for record in group):
        found.append((f"{failed:,} failed", "strong"))
    if len(group.missing) == 1:
        found.append((f"{squeezed(group.missing[0].who, NAME)} is missing", "strong"))
    elif group.missing:
        found.append((f"{len(group.missing):,} are missing", "strong"))
    return found


def _range(one: Figure) -> str:
    """Return the smallest and the largest figure: "100 to 300 MB", or one if they read the same."""
    told = time_text if one.name == TIME else size_text
    smallest, largest = told(one.smallest), told(one.largest)
    if smallest == largest:
        return largest
    figure, _, unit = smallest.partition(" ")
    return f"{figure if largest.endswith(f' {unit}') else smallest} to {largest}"


def _body(group: Group, room: int) -> str:
    """Return what the line unfolds to: as many bars and as long names as there is room for."""
    rows, tables = rows_of(group), ""
    count = len(rows)
    for bars, name in (((RAM, GPU), NAME), ((GPU,), NAME), *(((), name) for name in _NAMES)):
        tables = _tables(group, rows, bars, name)
        if size(tables) <= room:
            break
    while size(tables) > room and len(rows) > 1:  # very long names, of which each character takes six bytes
        rows = rows[:-1]
        tables = _tables(group, rows, (), _NAMES[-1])
    if len(rows) < count:
        tables += small(f"and {count - len(rows)} more")
    room -= size(tables)
    for sentence in sentences(group):
        said = small(sentence)
        if size(said) <= room:
            tables += said
            room -= size(said)
    return tables


def _tables(group: Group, rows: Sequence[Row], bars: Sequence[str], name: int) -> str:
    found = [_row_table(group, rows, bars, name)] if rows else []
    found += [_spread_table(group, name)] if spread_of(group) else []
    if len(group) > ROWS:
        found.reverse()
    return "<div style=height:6px></div>".join(found)


def _row_table(group: Group, rows: Sequence[Row], bars: Sequence[str], name: int) -> str:
    """Return the processes as a table.

    Args:
        group: All of them.
        rows: Those that have a row.
        bars: The memories that are drawn.
        name: How many characters of a name are shown.
    """
    memories = [RAM, *([GPU] if has_gpus(group) else [])]
    marked = any(row.marks for row in rows)
    scales = {
        RAM: max(row.record.gen.needed_bytes for row in rows),
        GPU: max((gpu.needed_bytes for row in rows for gpu in row.record.gpus), default=0),
    }
    _, *others = heads_of(group)
    head: list[str | Text] = ["MB", *map(Text, others)]
    for memory in memories:
        head += [Text(memory)] if memory in bars else []
        head += ["Consumed" if memory in bars else f"{memory} consumed", "Peaked", "Used"]
    head += ["Time", *([Text("")] if marked else [])]
    cells: list[list[Cell]] = []
    for record, (who, *rest), marks in rows:
        called = _whole(squeezed(who, name))
        row: list[Cell] = [Strong(called) if marks else called]
        row += [Text(escape(_whole(squeezed(one, name)))) for one in rest]
        for memory in memories:
            if memory in bars:
                usage = record.gen if memory == RAM else busiest(record)
                parts = (
                    [
                        Part("consumed", max(0, usage.consumed_bytes), BLUE),
                        Part("peaked", usage.peaked_bytes, RED),
                    ]
                    if usage
                    else []
                )
                row.append(cell_bar(parts, scales[memory]))
            row += map(_grouped, ram_figures(record) if memory == RAM else gpu_figures(record))
        row.append(time_text(record.time_s))
        if marked:
            row.append(Drawn(f"<b>{escape(_whole(', '.join(marks)))}</b>" if marks else ""))
        cells.append(row)
    return _wide(table(head, cells))


def _wide(markup: str) -> str:
    """Return a table that scrolls by itself, where it is wider than the page, and never breaks a word."""
    return f'<div style="overflow-x:auto;padding-left:1px;white-space:nowrap">{markup}</div>'


def _whole(words: str) -> str:
    """Return words that stay on one line, also where JupyterLab lets the cells of a table break."""
    return words.replace(" ", "\N{NO-BREAK SPACE}")


def _grouped(figure: str) -> str:
    """Return a figure with its thousands apart."""
    sign, digits = ("≥", figure[1:]) if figure.startswith("≥") else ("", figure)
    return f"{sign}{int(digits):,}" if digits.lstrip("-").isdecimal() else figure


def _spread_table(group: Group, name: int) -> str:
    """Return how the figures are spread, as a table."""
    many = len(group) > ROWS
    head: list[str | Text] = ["MB", "Smallest", "Median", *(["90 % below", "99 % below"] if many else [])]
    head += ["Largest", "Spread", Text("Most")]
    rows: list[list[Cell]] = []
    for one in spread_of(group):
        figures = [one.smallest, one.median, *(one.quantiles if many else ()), one.largest, one.spread]
        told = [time_text(f) if one.name == TIME else f"{rounded_mb(f):,}" for f in figures]
        rows.append(
            [
                _whole(figure_name(one)),
                *told,
                Text(escape(_whole(squeezed(name_in_words(one.most), name * 2)))),
            ]
        )
    return _wide(table(head, rows))
