"""The records of many processes as one table, of very many the quantiles and who stands out.

However many processes there are, the text has at most 80 columns and a bounded number of lines. The HTML is
one line that unfolds, at most twelve kilobytes.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from itertools import groupby, islice
from operator import attrgetter
from typing import TYPE_CHECKING

from ..analysis.imbalance import FACTOR, GPU, RAM, TIME
from ..records.note import Note, NoteKind, of_kind
from ..records.units import (
    MB,
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
from ..records.usage import notable
from .headline import Phrase
from .markup import DOT, Strong, folded, line, size, small, weighed
from .table import Bar, Column, Table, least_sign, moved_parts, squeezed
from .text import figures

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ..analysis.group import Group
    from ..analysis.imbalance import Figure, Outlier
    from ..records import Usage
    from ..records.process import ProcessRecord

    _Process = tuple[ProcessRecord, tuple[str, ...]]  # with a row; in which way it stands out, in a few words

_ROWS = 16  # processes with a row each
_FEW = 8  # rows of more processes: those that stand out most
_FIGURES = 16  # whose spread is shown
_NAME = 24  # characters of a name, at most
_LABEL = 40  # characters of the label
_COLUMNS = 80  # of text
_LIMIT = 12288  # bytes of HTML
_OUTLIERS = 3  # that the line names
_NAMED = 8  # processes that a sentence names
_NAMED_SHARING = 3  # tasks that a sentence names of those that shared a process
_MOST_TIMES = 99
_SENTENCES = 4  # of each kind
_SENTENCE = 110  # characters of a foreign sentence
_WHOM = {
    NoteKind.SHARED_WITH_NOTEBOOK: "the notebook",
    NoteKind.SHARED_WITH_BLOCKS: "other blocks",
    NoteKind.SHARED_WITH_TASKS: "others",
}


def table(group: Group) -> str:
    """Return the table as text of at most 80 columns, without a newline at the end."""
    took = f", {time_text(max(record.time_s for record in group))}" if len(group) else ""
    unit = "" if not len(group) else "; MB" if any(record.gpus for record in group) else "; RAM in MB"
    processes = _processes(group)
    parts = [_process_table(group, processes).text(_COLUMNS, over=">")] if processes else []
    if len(group) > 1 and (spread := _spread_table(group)).rows:
        parts.insert(0 if len(group) > _ROWS else 1, spread.text(_COLUMNS))
    lines = [f"{squeezed(group.label, _LABEL)}: {_count_of(group)}{took}{unit}"]
    lines += [line for part in parts for line in part]
    for sentence in _sentences(group):
        lines += textwrap.wrap(sentence, _COLUMNS, subsequent_indent="  ", break_on_hyphens=False) or [""]
    return printable_lines(lines)


def html(group: Group) -> str:
    """Return the table as HTML: a line that unfolds."""
    summary = DOT.join(weighed(*phrase) for phrase in _headline(group))
    if not group:
        return without_controls(line(summary, quiet=True))
    is_open = _matters(group)
    space = _LIMIT - size(folded(summary, "", is_open=is_open))
    return without_controls(folded(summary, _body(group, space), is_open=is_open))


def _matters(group: Group) -> bool:
    """Return whether the table is open from the start: memory moved, or there is something to be said."""
    usages = (usage for record in group for usage in (record.gen, *record.gpus))
    moved = any(usage.needed_bytes >= MB or usage.consumed_bytes <= -MB for usage in usages)
    return moved or bool(group.missing or group.notes or group.outliers)


def _headline(group: Group) -> Iterator[Phrase]:
    """Yield the line: how many processes, how long they took, what they needed, who stands out."""
    if label := squeezed(group.label, _LABEL).strip():
        yield Phrase(label, "faint")
    yield Phrase(_count_of(group), "strong")
    needed = [one for one in group.figures if one.what == "needed" and rounded_mb(one.largest)]
    for one in [*(one for one in group.figures if one.name == TIME), *needed[:_OUTLIERS]]:
        yield Phrase(f"{'' if one.name == TIME else f'{one.name} needed '}{_range(one)}")
    outliers = _by_process(group)
    for some in list(outliers.values())[:_OUTLIERS]:
        process = some[0].record.process
        who = squeezed(process.task or process.named(), _NAME)
        yield Phrase(f"{who}: {', '.join(map(_mark_of, some[:2]))}", "strong")
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
    """Return what the line unfolds to: with bars and names as long as there is space for."""
    processes, tables = _processes(group), ""
    for bars, name in ((RAM, GPU), _NAME), ((), _NAME), ((), 8):
        found = [_process_table(group, processes, bars=bars, name=name, html=True)] if processes else []
        found.append(_spread_table(group, name=name, html=True))
        shown = [_wide(table.html()) for table in found if table.rows]
        tables = "<div style=height:6px></div>".join(shown[::-1] if len(group) > _ROWS else shown)
        if size(tables) <= space:
            break
    space -= size(tables)
    for said in map(small, _sentences(group)):
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


def _processes(group: Group) -> list[_Process]:
    """Return the processes with a row: all, or of many those that failed or stand out most."""
    outliers = _by_process(group)
    found = [(record, (*_urgent(record), *map(_mark_of, outliers.get(id(record), ())))) for record in group]
    if len(group) <= _ROWS:
        return found

    def weight(process: _Process) -> tuple[bool, float]:
        record, _ = process
        ratios = [one.ratio for one in outliers.get(id(record), ())]
        return record.outcome() == "", -max(ratios, default=0.0)

    first = sorted((process for process in found if process[1]), key=weight)[:_FEW]
    return [process for process in found if process in first]


def _by_process(group: Group) -> dict[int, list[Outlier]]:
    found: dict[int, list[Outlier]] = {}
    for one in group.outliers:
        found.setdefault(id(one.record), []).append(one)
    return found


def _urgent(record: ProcessRecord) -> Iterator[str]:
    """Yield in a few words that a process failed, or went over a budget."""
    if outcome := record.outcome():
        yield shortened(outcome)
    if of_kind(record.notes, NoteKind.OVER_BUDGET):
        yield "over budget"


def _process_table(
    group: Group,
    processes: Sequence[_Process],
    *,
    bars: Sequence[str] = (),
    name: int = _NAME,
    html: bool = False,
) -> Table:
    """Return those processes that have a row as a table; `bars` are the memories that are drawn."""
    hosts = len({record.process.host for record in group}) > 1  # hosts and tasks tell processes apart
    tasks = any(record.process.task is not None for record in group)
    memories = [RAM, GPU] if any(record.gpus for record in group) else [RAM]
    marked = html and any(marks for _, marks in processes)
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
        names = [process.named(), *[process.host] * hosts, *[process.task or ""] * tasks]
        first, *others = (_whole(one, name) for one in names)
        cells: list[str | Strong | Bar] = [Strong(first) if marks else first, *others]
        for memory in memories:
            usage = _usage(record, memory)
            if memory in bars:
                cells.append(Bar(moved_parts(usage), scales[memory]))
            cells += map(grouped, _figures(usage)) if html else _figures(usage)
        cells.append(time_text(record.time_s))
        if marked:
            said = ", ".join(marks).replace(" ", "\N{NO-BREAK SPACE}")
            cells.append(Strong(said) if said else "")
        table.add(*cells, mark="*" if marks else " ")
    return table


def _usage(record: ProcessRecord, memory: str) -> Usage | None:
    """Return what a process used of RAM, or of the device on which it needed most."""
    return record.gen if memory == RAM else record.busiest_gpu()


def _figures(usage: Usage | None) -> tuple[str, str, str]:
    """Return what was consumed, peaked and is used, in MB."""
    if usage is None:
        return "", "", ""
    consumed, peaked, used = figures(usage)
    return consumed, peaked if peaked == "n/a" else f"{least_sign(usage)}{peaked}", used


def _spread_table(group: Group, *, name: int = _NAME, html: bool = False) -> Table:
    """Return how the figures are spread that differ notably and most; of very many processes, all figures."""
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
            most = _whole(_name_in_words(one.most), name * 2)
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


def _mark_of(one: Outlier) -> str:
    """Return in which way a process stands out: "RAM 1.5x" is one and a half times the median."""
    return f"{one.name} {_times(one.ratio)}x"


def _times(ratio: float) -> str:
    if ratio > _MOST_TIMES:
        return f">{_MOST_TIMES}"
    return f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:.0f}"


def _count_of(group: Group) -> str:
    """Return how many processes there are: "4 of 5 ranks on 2 hosts"."""
    noun = _noun_of(group)
    missing = 0 if noun == "tasks" else len(group.missing)  # of tasks it is their workers that are missing
    count, expected = len(group), len(group) + missing
    noun = noun if expected != 1 else noun.removesuffix("es") if noun == "processes" else noun[:-1]
    of = f" of {expected:,}" if missing else ""
    hosts = len({record.process.host for record in group})
    return f"{count:,}{of} {noun}{f' on {hosts:,} hosts' if hosts > 1 else ''}"


def _noun_of(group: Group) -> str:
    """Return what the processes are called together: "ranks", "tasks", "engines", "processes"."""
    if any(record.process.task is not None for record in group):
        return "tasks"
    names = [record.process.named() for record in group] or [who for who, _ in group.missing]
    words = {name.rpartition(" ")[0] for name in names if name.rpartition(" ")[2].isdigit()}
    word = next(iter(words), "pid")
    same = len(words) == 1 and word.isalpha() and all(name.startswith(f"{word} ") for name in names)
    return f"{printable(word)}s" if same and word != "pid" else "processes"


def _sentences(group: Group) -> Iterator[str]:
    """Yield what is to be said below the table: who stands out, failed, or is missing; the notes."""
    for name, some in islice(groupby(group.outliers, key=attrgetter("name")), _SENTENCES):
        yield _standing_out(name, list(some))
    failed = ((_name_in_words(record), record.outcome()) for record in group)
    yield from _who(((who, shortened(why)) for who, why in failed if why), "{who}: {why}")
    missing = ((shortened(who), clipped(printable(why), _SENTENCE)) for who, why in group.missing)
    yield from _who(missing, "missing: {who} ({why})")
    yield from (clipped(printable(note), _SENTENCE) for note in group.notes[:_SENTENCES])
    yield from _notes(group)


def _standing_out(name: str, some: Sequence[Outlier]) -> str:
    """Return who stands out in one figure: "RAM: rank 2 needed 312 MB, 1.5 times the median"."""
    verb, shown = ("took", time_text) if name == TIME else ("needed", size_text)
    first, *rest = some
    more = f"; {len(rest):,} more {'is' if len(rest) == 1 else 'are'} over {FACTOR} times" if rest else ""
    times = f"{_times(first.ratio)} times the median"
    if first.ratio > _MOST_TIMES:
        times = f"the median is {shown(first.median)}"
    return f"{name}: {_name_in_words(first.record)} {verb} {shown(first.figure)}, {times}{more}"


def _name_in_words(record: ProcessRecord) -> str:
    """Return what a process is called in a sentence: "rank 2", "train on worker 1"."""
    name, task = record.process.named(), record.process.task
    return squeezed(name, _NAME) if task is None else f"{squeezed(task, _NAME)} on {squeezed(name, _NAME)}"


def _notes(group: Group) -> Iterator[str]:
    """Yield the notes of the records, each once, with who has it."""
    notes: list[tuple[str, str]] = []
    shared: dict[str, list[str]] = {}
    for record in group:
        name = _name_in_words(record)
        for note in record.notes:
            if isinstance(note, Note) and note.kind in _WHOM:
                shared.setdefault(_WHOM[note.kind], []).append(name)
            else:
                notes.append((name, clipped(printable(note), _SENTENCE)))
    for whom, names in shared.items():
        few = len(set(names)) == len(names) <= _NAMED_SHARING
        who = ", ".join(names) if few else f"{len(names):,} {_noun_of(group)}"
        yield f"{who} shared {'its' if len(names) == 1 else 'their'} process with {whom}"
    yield from _who(notes, "{who}: {why}")


def _who(reasons: Iterable[tuple[str, str]], sentence: str) -> Iterator[str]:
    """Yield a sentence for each of the first reasons (name, why), with the first names that have it."""
    found: dict[str, list[str]] = {}
    for name, why in reasons:
        found.setdefault(why, []).append(name)
    for why, names in list(found.items())[:_SENTENCES]:
        times = Counter(names)
        first = list(times.items())[:_NAMED]
        who = ", ".join(name if count == 1 else f"{name} ({count:,} times)" for name, count in first)
        others = len(names) - sum(count for _, count in first)
        yield sentence.format(who=who + (f" and {others:,} more" if others else ""), why=why)
    if len(found) > _SENTENCES:
        yield f"and {len(found) - _SENTENCES:,} more of this kind"
