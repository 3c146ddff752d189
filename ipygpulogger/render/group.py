"""The records of many processes as one table; of very many those that failed or needed most.

However many processes there are, the text has at most 80 columns, and it and the HTML are of bounded length.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import groupby, islice
from operator import attrgetter
from typing import TYPE_CHECKING

from ..analysis.group import FACTOR, GPU, RAM, TIME, Group, Outlier
from ..records.note import NoteKind, of_kind
from ..records.units import (
    clipped,
    grouped,
    printable,
    printable_lines,
    rounded_mb,
    shortened,
    size_text,
    time_text,
    without_controls,
)
from .markup import BLUE, RED, Strong, colours, folded, line, small, typeset
from .table import Bar, Column, Table, least_sign, moved_parts, squeezed
from .text import figures

if TYPE_CHECKING:
    from ..records import Usage
    from ..records.process import ProcessRecord

    _Process = tuple[ProcessRecord, bool]  # with a row; whether it is marked

_ROWS = 16  # processes with a row each
_NAME = 24  # characters of a name, at most
_LABEL = 40  # characters of the label
_COLUMNS = 80  # of text
_MEMORIES = 3  # whose medians are said
_NAMED = 8  # processes that a sentence names
_SENTENCES = 4  # of each kind
_SENTENCE = 110  # characters of a foreign sentence


def table(group: Group) -> str:
    """Return the table as text of at most 80 columns, without a newline at the end."""
    lines = [_title(group)]
    if len(group):
        lines += _process_table(group, html=False).text(_COLUMNS)
    for sentence in _sentences(group):
        lines += textwrap.wrap(sentence, _COLUMNS, subsequent_indent="  ", break_on_hyphens=False) or [""]
    return printable_lines(lines)


def html(group: Group) -> str:
    """Return the table as HTML: a line that folds."""
    title = escape(typeset(_title(group)))
    if not group:
        return without_controls(line(title, quiet=True))
    markup = _process_table(group, html=True).html() if len(group) else ""
    # A table that scrolls by itself, where it is wider than the page, and never breaks a word.
    shown = f'<div style="overflow-x:auto;padding-left:1px;white-space:nowrap">{markup}</div>'
    fills = {"consumed": BLUE, "more for a moment": RED} if len(group) else {}
    body = shown + colours(fills, is_folded=True) + "".join(map(small, _sentences(group)))
    return without_controls(folded(title, body, is_open=True))


def _title(group: Group) -> str:
    """Return the line above the table: "step: 3 processes, 0.24 s; RAM in MB"."""
    took = f", {time_text(max(record.time_s for record in group))}" if len(group) else ""
    unit = "" if not len(group) else "; MB" if any(record.gpus for record in group) else "; RAM in MB"
    return f"{squeezed(group.label, _LABEL)}: {_count_of(group)}{took}{unit}"


def _whole(name: str) -> str:
    """Return a name, squeezed, that no front end breaks into lines."""
    return squeezed(name, _NAME).replace(" ", "\N{NO-BREAK SPACE}")


def _processes(group: Group) -> list[_Process]:
    """Return the processes with a row: all, or of many those that failed, stand out or needed most."""
    found, ratios = [], dict[int, float]()  # the highest of each that stands out, by `id`
    for one in group.outliers:
        ratios[id(one.record)] = max(one.ratio, ratios.get(id(one.record), 0.0))
    for record in group:
        marked = record.outcome() or of_kind(record.notes, NoteKind.OVER_BUDGET) or id(record) in ratios
        found.append((record, bool(marked)))

    def weight(at: int) -> tuple[bool, bool, float, int]:
        record, marked = found[at]
        needed_bytes = max(usage.needed_bytes for usage in (record.gen, *record.gpus))
        return record.outcome() == "", not marked, -ratios.get(id(record), 0.0), -needed_bytes

    return [found[at] for at in sorted(sorted(range(len(found)), key=weight)[:_ROWS])]


def _process_table(group: Group, *, html: bool) -> Table:
    processes = _processes(group)
    hosts = len({record.process.host for record in group}) > 1  # hosts and tasks tell processes apart
    tasks = any(record.process.task is not None for record in group)
    memories = [RAM, GPU] if any(record.gpus for record in group) else [RAM]
    columns = [Column("", "words", html_head="MB")]
    columns += [Column("Host", "words", gap=1)] if hosts else []
    columns += [Column("Task", "words", gap=1)] if tasks else []
    scales = {}
    for memory in memories:
        over = memory if len(memories) > 1 else ""
        columns.append(Column(memory, "drawn"))
        columns.append(Column("Consumed", over=over, gap=1 if memory == RAM else 2))
        columns += [Column("Needed", over=over, gap=1), Column(" Used", over=over, gap=1)]
        usages = [usage for record, _ in processes if (usage := _usage(record, memory))]
        scales[memory] = max((usage.needed_bytes for usage in usages), default=0)
    table = Table([*columns, Column("Time", gap=1)])
    for record, marked in processes:
        process = record.process
        names = [process.named(), *[process.host] * hosts, *[process.task or ""] * tasks]
        first, *others = map(_whole, names)
        cells: list[str | Strong | Bar] = [Strong(first) if marked else first, *others]
        for memory in memories:
            usage = _usage(record, memory)
            cells.append(Bar(moved_parts(usage), scales[memory]))
            cells += map(grouped, _figures(usage)) if html else _figures(usage)
        table.add(*cells, time_text(record.time_s), mark="*" if marked else " ")
    return table


def _usage(record: ProcessRecord, memory: str) -> Usage | None:
    """Return what a process used of RAM, or of the device on which it needed most."""
    return record.gen if memory == RAM else record.busiest_gpu()


def _figures(usage: Usage | None) -> tuple[str, str, str]:
    """Return what was consumed, needed and is used, in MB."""
    if usage is None:
        return "", "", ""
    consumed, peaked, used = figures(usage)
    known = peaked != "n/a"
    return consumed, f"{least_sign(usage)}{rounded_mb(usage.needed_bytes)}" if known else peaked, used


def _count_of(group: Group) -> str:
    """Return how many processes there are: "4 of 5 processes on 2 hosts"; of tasks none is missing."""
    tasks = any(record.process.task is not None for record in group)
    one, many = ("task", "tasks") if tasks else ("process", "processes")
    count, expected = len(group), len(group) + (0 if tasks else len(group.missing))
    of = f" of {expected:,}" if expected > count else ""
    hosts = len({record.process.host for record in group})
    return f"{count:,}{of} {one if expected == 1 else many}{f' on {hosts:,} hosts' if hosts > 1 else ''}"


def _sentences(group: Group) -> Iterator[str]:
    """Yield what stands below the table: who has no row, stands out, failed, or is missing; the notes."""
    if len(group) > _ROWS:
        needed = [one for one in group.figures if one.what == "needed" and rounded_mb(one.largest)]
        medians = [f"{TIME} {time_text(group.figures[-1].median)}"]
        medians += [f"{one.name} needed {size_text(one.median)}" for one in needed[:_MEMORIES]]
        yield f"and {len(group) - _ROWS:,} more; medians: {', '.join(medians)}"
    for name, some in islice(groupby(group.outliers, key=attrgetter("name")), _SENTENCES):
        yield _standing_out(name, list(some))
    ended = ((_name_in_words(record), shortened(record.outcome())) for record in group if record.outcome())
    yield from _who(ended, "{who}: {why}")
    yield from _who(((shortened(who), why) for who, why in group.missing), "missing: {who} ({why})")
    yield from (clipped(printable(note), _SENTENCE) for note in group.notes[:_SENTENCES])
    noted = ((_name_in_words(record), str(note)) for record in group for note in record.notes)
    yield from _who(noted, "{who}: {why}")


def _standing_out(name: str, some: Sequence[Outlier]) -> str:
    """Return who stands out in one figure: "RAM: rank 2 needed 312 MB, 1.5 times the median"."""
    first, *rest = some
    did = f"took {time_text(first.figure)}" if name == TIME else f"needed {size_text(first.figure)}"
    more = f"; {len(rest):,} more {'is' if len(rest) == 1 else 'are'} over {FACTOR} times" if rest else ""
    return f"{name}: {_name_in_words(first.record)} {did}, {first.ratio:,.1f} times the median{more}"


def _name_in_words(record: ProcessRecord) -> str:
    """Return what a process is called in a sentence: "rank 2", "train on worker 1"."""
    name, task = record.process.named(), record.process.task
    return squeezed(name, _NAME) if task is None else f"{squeezed(task, _NAME)} on {squeezed(name, _NAME)}"


def _who(reasons: Iterable[tuple[str, str]], sentence: str) -> Iterator[str]:
    """Yield a sentence for each of the first reasons (name, why), with the first names that have it."""
    found: dict[str, list[str]] = {}
    for name, why in reasons:
        found.setdefault(clipped(printable(why), _SENTENCE), []).append(name)
    for why, names in islice(found.items(), _SENTENCES):
        first = list(dict.fromkeys(names))[:_NAMED]
        others = f" and {len(names) - len(first):,} more" if len(names) > len(first) else ""
        yield sentence.format(who=", ".join(first) + others, why=why)
    if len(found) > _SENTENCES:
        yield f"and {len(found) - _SENTENCES:,} more of this kind"
