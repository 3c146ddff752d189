"""The records of many processes as one table, of very many the quantiles and who stands out.

However many processes there are, the text has at most 80 columns and a bounded number of lines. The HTML is
one line that unfolds, at most twelve kilobytes.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, NamedTuple

from ..analysis.imbalance import GPU, RAM, TIME, busiest
from ..records import DeviceUsage
from ..records.note import NoteKind, of_kind
from ..records.units import (
    MB,
    mb_text,
    printable_lines,
    rounded_mb,
    shortened,
    size_text,
    time_text,
    without_controls,
)
from ..records.usage import notable
from .group_words import count_of, mark_of, name_in_words, sentences
from .headline import Phrase
from .markup import BLUE, DOT, RED, Part, Strong, folded, line, size, small, weighed
from .table import Bar, Column, Table, squeezed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..analysis.group import Group
    from ..analysis.imbalance import Figure, Outlier
    from ..records import Usage
    from ..records.process import ProcessRecord

_ROWS = 16  # processes with a row each
_FEW = 8  # rows of more processes: those that stand out most
_FIGURES = 16  # whose spread is shown
_NAME = 24  # characters of a name, at most
_LABEL = 40  # characters of the label
_COLUMNS = 80  # of text
_LIMIT = 12288  # bytes of HTML
_OUTLIERS = 3  # that the line names


class _Process(NamedTuple):
    """A process that has a row.

    Attributes:
        record: Its record.
        marks: In which way it stands out, in a few words each.
    """

    record: ProcessRecord
    marks: tuple[str, ...]


def table(group: Group) -> str:
    """Return the table as text of at most 80 columns, without a newline at the end."""
    took = f", {time_text(max(record.time_s for record in group))}" if len(group) else ""
    unit = "" if not len(group) else "; MB" if _has_gpus(group) else "; RAM in MB"
    processes = _processes(group)
    parts = [_process_table(group, processes).text(_COLUMNS, over=">")] if processes else []
    if len(group) > 1 and (spread := _spread_table(group)).rows:
        parts.insert(0 if len(group) > _ROWS else 1, spread.text(_COLUMNS))
    lines = [f"{squeezed(group.label, _LABEL)}: {count_of(group)}{took}{unit}"]
    lines += [line for part in parts for line in part]
    for sentence in sentences(group):
        lines += textwrap.wrap(sentence, _COLUMNS, subsequent_indent="  ", break_on_hyphens=False) or [""]
    return printable_lines(lines)


def html(group: Group) -> str:
    """Return the table as HTML: a line that unfolds."""
    phrases = list(_headline(group))
    summary = DOT.join(weighed(*phrase) for phrase in phrases)
    if not group:
        return without_controls(line(summary, quiet=True))
    spoken = "; ".join(phrase.words for phrase in phrases)
    is_open = _matters(group)
    space = _LIMIT - size(folded(summary, "", spoken=spoken, is_open=is_open))
    return without_controls(folded(summary, _body(group, space), spoken=spoken, is_open=is_open))


def _matters(group: Group) -> bool:
    """Return whether the table is open from the start: memory moved, or there is something to be said."""
    usages = (usage for record in group for usage in (record.gen, *record.gpus))
    moved = any(usage.needed_bytes >= MB or usage.consumed_bytes <= -MB for usage in usages)
    return moved or bool(group.missing or group.notes or group.outliers)


def _headline(group: Group) -> Iterator[Phrase]:
    """Yield the line: how many processes, how long they took, what they needed, who stands out."""
    if label := squeezed(group.label, _LABEL).strip():
        yield Phrase(label, "faint")
    yield Phrase(count_of(group), "strong")
    needed = [one for one in group.figures if one.what == "needed" and rounded_mb(one.largest)]
    for one in [*(one for one in group.figures if one.name == TIME), *needed[:_OUTLIERS]]:
        yield Phrase(f"{'' if one.name == TIME else f'{one.name} needed '}{_range(one)}")
    outliers: dict[int, list[Outlier]] = {}
    for outlier in group.outliers:
        outliers.setdefault(id(outlier.record), []).append(outlier)
    for some in list(outliers.values())[:_OUTLIERS]:
        process = some[0].record.process
        who = squeezed(process.task or process.named(), _NAME)
        yield Phrase(f"{who}: {', '.join(map(mark_of, some[:2]))}", "strong")
    if len(outliers) > _OUTLIERS:
        yield Phrase(f"{len(outliers) - _OUTLIERS:,} more far above the median")
    if failed := sum(record.outcome() != "" for record in group):
        yield Phrase(f"{failed:,} failed", "strong")
    if len(group.missing) == 1:
        yield Phrase(f"{squeezed(group.missing[0].who, _NAME)} is missing", "strong")
    elif group.missing:
        yield Phrase(f"{len(group.missing):,} are missing", "strong")


def _range(one: Figure) -> str:
    """Return the smallest and the largest figure: "100 to 300 MB", or one if they read the same."""
    shown = time_text if one.name == TIME else size_text
    smallest, largest = shown(one.smallest), shown(one.largest)
    if smallest == largest:
        return largest
    figure, _, unit = smallest.partition(" ")
    return f"{figure if largest.endswith(f' {unit}') else smallest} to {largest}"


def _body(group: Group, space: int) -> str:
    """Return what the line unfolds to: as many bars and as long names as there is space for."""
    processes, spread, tables = _processes(group), _spread_table(group).rows, ""
    count = len(processes)

    def drawn(bars: Sequence[str], name: int) -> str:
        found = [_process_table(group, processes, bars=bars, name=name, html=True)] if processes else []
        found += [_spread_table(group, name=name, html=True)] if spread else []
        shown = [_wide(table.html()) for table in found]
        return "<div style=height:6px></div>".join(shown[::-1] if len(group) > _ROWS else shown)

    for bars, name in ((RAM, GPU), _NAME), ((GPU,), _NAME), ((), _NAME), ((), 16), ((), 8):
        tables = drawn(bars, name)
        if size(tables) <= space:
            break
    while size(tables) > space and len(processes) > 1:  # names of characters that take six bytes each
        processes = processes[:-1]
        tables = drawn((), 8)
    if len(processes) < count:
        tables += small(f"and {count - len(processes)} more")
    space -= size(tables)
    for said in map(small, sentences(group)):
        if size(said) <= space:
            tables += said
            space -= size(said)
    return tables


def _wide(markup: str) -> str:
    """Return a table that scrolls by itself, where it is wider than the page, and never breaks a word."""
    return f'<div style="overflow-x:auto;padding-left:1px;white-space:nowrap">{markup}</div>'


def _whole(words: str, characters: int) -> str:
    """Return words, squeezed, that stay on one line also where JupyterLab lets the cells of a table break."""
    return squeezed(words, characters).replace(" ", "\N{NO-BREAK SPACE}")


# -- the processes -------------------------------------------------------------------------------------


def _processes(group: Group) -> list[_Process]:
    """Return the processes with a row: all, or of many those that failed or stand out most."""
    ratios: dict[int, float] = {}
    marks: dict[int, list[str]] = {}
    for one in group.outliers:
        ratios[id(one.record)] = max(one.ratio, ratios.get(id(one.record), 0.0))
        marks.setdefault(id(one.record), []).append(mark_of(one))
    found = []
    for record in group:
        said = (*_urgent(record), *marks.get(id(record), ()))
        if said or len(group) <= _ROWS:
            found.append(_Process(record, said))
    if len(group) > _ROWS:
        order = {id(record): place for place, record in enumerate(group)}
        found.sort(key=lambda one: (one.record.outcome() == "", -ratios.get(id(one.record), 0.0)))
        found = sorted(found[:_FEW], key=lambda one: order[id(one.record)])
    return found


def _urgent(record: ProcessRecord) -> Iterator[str]:
    """Yield in a few words that a process failed, went over a budget, or grows with every run."""
    if outcome := record.outcome():
        yield shortened(outcome)
    if of_kind(record.notes, NoteKind.OVER_BUDGET):
        yield "over budget"
    if of_kind(record.notes, NoteKind.GREW):
        yield "grows"


def _process_table(
    group: Group,
    processes: Sequence[_Process],
    *,
    bars: Sequence[str] = (),
    name: int = _NAME,
    html: bool = False,
) -> Table:
    """Return the processes as a table.

    Args:
        group: All of them.
        processes: Those that have a row.
        bars: The memories that are drawn.
        name: How many characters of a name are shown.
        html: Whether there is space to write thousands apart.
    """
    hosts = len({record.process.host for record in group}) > 1  # hosts and tasks tell processes apart
    tasks = any(record.process.task is not None for record in group)
    memories = [RAM, GPU] if _has_gpus(group) else [RAM]
    marked = html and any(one.marks for one in processes)
    columns = [Column("", "words", html_head="MB")]
    columns += [Column("Host", "words", gap=1)] if hosts else []
    columns += [Column("Task", "words", gap=1)] if tasks else []
    scales = {}
    for memory in memories:
        drawn, over = memory in bars, memory if len(memories) > 1 else ""
        consumed = "Consumed" if drawn else f"{memory} consumed"
        columns += [Column(memory, "drawn")] if drawn else []
        columns.append(Column("Consumed", over=over, html_head=consumed, gap=1 if memory == RAM else 2))
        columns += [Column("Peaked", over=over, gap=1), Column(" Used", over=over, gap=1)]
        usages = [usage for record, _ in processes if (usage := _usage(record, memory))]
        scales[memory] = max((usage.needed_bytes for usage in usages), default=0)
    columns += [Column("Time", gap=1), *([Column("", "drawn")] if marked else [])]
    table = Table(columns)
    for record, marks in processes:
        process = record.process
        names = [
            process.named(),
            *([process.host] if hosts else []),
            *([process.task or ""] if tasks else []),
        ]
        first, *others = (_whole(one, name) for one in names)
        cells: list[str | Strong | Bar] = [Strong(first) if marks else first, *others]
        for memory in memories:
            usage = _usage(record, memory)
            if memory in bars:
                cells.append(Bar(_moved(usage), scales[memory]))
            figures = _figures(usage)
            cells += map(_grouped, figures) if html else figures
        cells.append(time_text(record.time_s))
        if marked:
            said = ", ".join(marks).replace(" ", "\N{NO-BREAK SPACE}")
            cells.append(Strong(said) if said else "")
        table.add(*cells, mark="*" if marks else " ")
    return table


def _has_gpus(group: Group) -> bool:
    return any(record.gpus for record in group)


def _usage(record: ProcessRecord, memory: str) -> Usage | None:
    """Return what a process used of RAM, or of the device on which it needed most."""
    return record.gen if memory == RAM else busiest(record)


def _moved(usage: Usage | None) -> list[Part]:
    if usage is None:
        return []
    consumed = Part("consumed", max(0, usage.consumed_bytes), BLUE)
    return [consumed, Part("peaked", usage.peaked_bytes, RED)]


def _figures(usage: Usage | None) -> tuple[str, str, str]:
    """Return what was consumed, peaked and is used, in MB."""
    if usage is None:
        return "", "", ""
    used, attributed = mb_text(usage.after_bytes), True
    if isinstance(usage, DeviceUsage):
        used, attributed = mb_text(usage.used_bytes), usage.attributed
    consumed, peaked = (
        f"{rounded_mb(usage.consumed_bytes)}",
        f"{_least_sign(usage)}{rounded_mb(usage.peaked_bytes)}",
    )
    return consumed if attributed else "n/a", peaked if attributed else "n/a", used


def _least_sign(usage: Usage) -> str:
    """Return the sign before a figure whose peak is a lower bound."""
    lo_bytes, hi_bytes = usage.peak.lo_bytes, usage.peak.hi_bytes
    return "" if hi_bytes is not None and rounded_mb(hi_bytes) == rounded_mb(lo_bytes) else "≥"


def _grouped(figure: str) -> str:
    """Return a figure with its thousands apart."""
    sign, digits = ("≥", figure[1:]) if figure.startswith("≥") else ("", figure)
    return f"{sign}{int(digits):,}" if digits.lstrip("-").isdecimal() else figure


# -- the spread ----------------------------------------------------------------------------------------


def _spread_table(group: Group, *, name: int = _NAME, html: bool = False) -> Table:
    """Return how the figures are spread that differ notably; of very many processes, all figures.

    Of very many devices these are the figures that differ most.

    Args:
        group: The processes.
        name: How many characters of a name are shown.
        html: Whether there is space to write thousands apart, and times in full.
    """
    many = len(group) > _ROWS
    columns = [Column("", "words", html_head="MB"), Column("Smallest", gap=1), Column("Median", gap=1)]
    if many:
        columns += [Column(f"p{at}", html_head=f"{at} % below", gap=1) for at in (90, 99)]
    columns += [Column("Largest", gap=1), Column("Spread", gap=1), Column("Most", "words")]
    table = Table(columns)
    found = [one for one in group.figures if many or _differs(one)]
    widest = sorted(found, key=lambda one: (one.name != TIME, -one.spread))[:_FIGURES]
    for one in found:
        if one in widest:
            figures = [one.smallest, one.median, *(one.quantiles if many else ()), one.largest, one.spread]
            what = one.name if one.name == TIME else f"{one.name} {one.what}"
            most = _whole(name_in_words(one.most), name * 2)
            shown = (_figure(one, figure, html=html) for figure in figures)
            table.add(what.replace(" ", "\N{NO-BREAK SPACE}"), *shown, most)
    return table


def _differs(one: Figure) -> bool:
    if one.name == TIME:
        return one.spread > max(0.01, one.median / 100)
    return notable(int(one.spread), int(one.median))


def _figure(one: Figure, figure: float, *, html: bool) -> str:
    """Return a figure; in text it has at most eight characters."""
    if one.name != TIME:
        return f"{rounded_mb(figure):,}" if html else f"{rounded_mb(figure)}"
    shown = time_text(figure)
    return shown if html or len(shown) <= 8 else f"{figure:.0f} s"
