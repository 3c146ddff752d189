"""The cells of a notebook as a table; what a notebook displays of each kind of record."""

from __future__ import annotations

import re
import textwrap
from html import escape
from typing import TYPE_CHECKING

from ..analysis.group import Group
from ..analysis.leaks import growing_names
from ..analysis.ranking import FIGURES, ranked, size_of
from ..records import DeviceUsage, Estimate, LineUsage, Measurement, OutOfMemory
from ..records.cell_record import process_of
from ..records.units import (
    MB,
    cells_text,
    mb_text,
    printable_lines,
    rounded_mb,
    shortened,
    time_text,
    without_controls,
)
from ..records.value import html_of, text_of
from ..storage.history import History
from . import estimate, group, lines, out_of_memory
from . import html as html_report
from .growth import device_name, named_devices
from .markup import BLUE, DOT, RED, Drawn, Strong, line, scrolling, small
from .markup import code as code_markup
from .table import Bar, Column, Table, least_sign, moved_parts

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from ..analysis.compare import Change, Comparison, Pair
    from ..analysis.ranking import Ranked
    from ..analysis.totals import Key
    from ..records import CellRecord, Usage
    from .table import Words

    _Worst = dict[str, list[tuple[CellRecord, str]]]  # by figure: the cells, and how high it is

_ROWS = 20  # cells of a history
_CARD = 2048  # bytes
_NAMES = 5  # that grew in one suspect
_RUNS = 6  # of one suspect
_NONE = "no cell has been reported yet"
_LEAK = "every run consumed more, and left more in use than the one before"
_MOMENT = "needed for a moment"
_LEGEND = f"<b style=color:{BLUE}>■</b> consumed{DOT}<b style=color:{RED}>■</b> {_MOMENT}"
_WIDTH = 80  # of text
_BAR = 8  # characters
# Of code in HTML: on a narrow screen it leaves room for the figures.
_CLIPPED = "max-width:18vw;overflow:hidden;text-overflow:ellipsis;white-space:nowrap"
_ID = re.compile(r"[\w-]{1,64}", re.ASCII)  # of a cell of a notebook file; VS Code sends an address
_FIRST = {
    "needed": "most needed first",
    "consumed": "most consumed first",
    "highest": "the highest first",
    "time": "the longest first",
}


def summary(records: Sequence[CellRecord], by: str = "needed") -> str:
    """Return the ranked cells of a run as text of 80 columns, the worst marked, and suspected leaks.

    The records are all of the run, in their order, and `by` is a word that `History.rank` takes.
    """
    found = ranked(records, by)
    if found is None:
        return _NONE
    names = _names(found.devices)
    worst = _worst(found, names)
    marked = {id(record) for cells in worst.values() for record, _ in cells}
    lines = [_title(found), *_table(found.first, names, marked, html=False).text(_WIDTH)]
    for mark, sentences in (" ", [*_remarks(found), f"█ consumed  ░ {_MOMENT}"]), ("*", _sentences(worst)):
        lines += [
            f"{mark} {words}" for sentence in sentences for words in textwrap.wrap(sentence, _WIDTH - 2)
        ]
    if found.suspects:
        lines.append(f"May leak: {_LEAK}:")
        lines += [f"  {_suspect(runs, names)}" for runs in found.suspects]
    if more := _more(found.suspects_count, found.suspects):
        lines.append(f"  {more}")
    return printable_lines(lines)


def html(records: Sequence[CellRecord], by: str = "needed") -> str:
    """Return the same as HTML, the highest figures in bold."""
    found = ranked(records, by)
    if found is None:
        return line(_NONE, quiet=True)
    names = _names(found.devices)
    below = [*_remarks(found), *_sentences(_worst(found, names))]
    shown = scrolling(_table(found.first, names, html=True).html())
    markup = line(f"{escape(_title(found))}{shown}{_LEGEND}{''.join(map(small, below))}")
    if found.suspects:
        markup += line(f"<b>May leak</b>: {_LEAK}")
        markup += "".join(line(escape(_suspect(runs, names))) for runs in found.suspects)
    if more := _more(found.suspects_count, found.suspects):
        markup += line(small(more))
    return without_controls(markup)


def history(cells: History) -> str:
    """Return the cells of a history as HTML, in the order they finished: the last of them."""
    if not cells:
        return line(_NONE, quiet=True)
    records = cells[-_ROWS:]
    own = [record for record in records if process_of(record) is None]
    names = _names(gpu for record in own for gpu in record.gpus)
    which = f", the last {_ROWS}" if len(cells) > _ROWS else ""
    shown = scrolling(_table(records, names, html=True).html())
    return without_controls(line(f"{cells.counted()}{which}; MB{shown}{_LEGEND}"))


def _names(gpus: Iterable[DeviceUsage]) -> dict[Key, str]:
    return {key: name for key, (name, _) in named_devices(gpus).items()}


def _title(found: Ranked) -> str:
    every = cells_text(found.count - found.processes_count + found.left_out, found.processes_count)
    left_out = f" ({found.left_out:,} that only ran %gpulog left out)" if found.left_out else ""
    return f"{every}{left_out}, {_FIRST[found.by]}; MB"


def _more(count: int, shown: Sequence[object]) -> str:
    return f"and {count - len(shown):,} more" if count > len(shown) else ""


def _remarks(found: Ranked) -> Iterator[str]:
    """Yield how many are not in the table, and how coarse its figures are."""
    if more := _more(found.count, found.first):
        yield more
    if found.coarse_bytes:
        coarse_mb = rounded_mb(found.coarse_bytes)
        yield f"RAM: each highest is within ±{coarse_mb} MB, as coarsely as the kernel counts"


def _sentences(worst: _Worst) -> Iterator[str]:
    for words, cells in worst.items():
        yield f"{words}: {'; '.join(f'{shortened(cell.title())}, {figure}' for cell, figure in cells)}"


def _device(record: CellRecord, gpu: DeviceUsage, names: dict[Key, str]) -> str:
    """Return the name of a device: among all of this kernel, or among those of its own process."""
    return device_name(gpu, record.gpus) if process_of(record) else names[gpu.key]


def _table(
    records: Sequence[CellRecord], names: dict[Key, str], marked: Container[int] = (), *, html: bool
) -> Table:
    """Return cells as a table, a row for each memory, with a mark at these ids, or bold figures in HTML."""
    columns = [Column("", "words", html_head="Cell", least=7), Column("", "words", gap=1, least=4)]
    columns += [Column("Consumed", gap=1, least=8), Column("Needed", gap=1, least=6)]
    columns += [Column("", "drawn" if html else "figure", gap=1), Column("Highest", gap=1, least=7)]
    columns += [Column("Time", gap=1, least=7)]
    columns.insert(1 if html else len(columns), Column("Cell", "code", html_head="Source"))
    table = Table(columns)
    shown = [(record, list((_moved if html else _rows)(record, names))) for record in records]
    usages = [usage for _, rows in shown for _, usage in rows if usage is not None]
    scale_bytes = max((usage.needed_bytes for usage in usages), default=0)
    longest_s = max((record.time_s for record in records), default=0.0)
    most = {what: max((rounded_mb(size_of(one, what)) for one in usages), default=0) for what in FIGURES}
    for record, rows in shown:
        code, ended = shortened(record.code_line.strip()), shortened(record.outcome())
        took = time_text(record.time_s)
        time: Words = Strong(took) if record.time_s == longest_s else took
        first: Words = shortened(record.title())
        source: Words = f"{ended}: {code}" if ended else code
        if html:
            first = Drawn(_linked(record))
            failed = f"<b>{escape(ended)}</b> " if ended else ""
            source = Drawn(f'<div style="{_CLIPPED}">{failed}{code_markup(code)}</div>')
        mark = "*" if id(record) in marked else " "
        for name, usage in rows:
            consumed, needed, highest = (_figure(usage, what, most[what], html=html) for what in FIGURES)
            bar = Bar(moved_parts(usage), scale_bytes)
            figures = consumed, needed, bar if html else bar.blocks(_BAR), highest, time
            table.add(
                first, *([source, name] if html else [name]), *figures, *([] if html else [source]), mark=mark
            )
            mark, first, time, source = " ", "", "", Drawn("")
    return table


def _linked(record: CellRecord) -> str:
    """Return the title of a cell, where the front end has its id as a link, which JupyterLab follows."""
    title = escape(shortened(record.title())).replace(" ", "\N{NO-BREAK SPACE}")
    cell_id = record.cell_id or ""
    return (
        f'<a style=color:inherit href="#cell-id={cell_id}">{title}</a>' if _ID.fullmatch(cell_id) else title
    )


def _figure(usage: Usage | None, what: str, most_mb: int, *, html: bool) -> Words:
    """Return a figure of a row in MB, one that is the highest of its column so that it stands out."""
    if usage is None:
        return "n/a"
    size_mb = rounded_mb(size_of(usage, what))
    least = "" if what == "consumed" else least_sign(usage)
    text = f"{least}{size_mb:{',' if html else ''}}"
    return Strong(text) if size_mb and size_mb == most_mb else text


def _moved(record: CellRecord, names: dict[Key, str]) -> list[tuple[str, Usage | None]]:
    """Return the rows of a cell where anything changed or is unknown; RAM if nothing did."""
    found = list(_rows(record, names))

    def moved(usage: Usage | None) -> bool:
        return usage is None or bool(rounded_mb(usage.needed_bytes) or rounded_mb(usage.consumed_bytes))

    return [(name, usage) for name, usage in found if moved(usage)] or found[:1]


def _memories(record: CellRecord, names: dict[Key, str]) -> Iterator[tuple[str, Usage | None]]:
    """Yield RAM and the cell's devices by name; None for a device without attributed use."""
    yield "RAM", record.gen
    for gpu in record.gpus:
        yield _device(record, gpu, names), gpu if gpu.attributed else None


def _rows(record: CellRecord, names: dict[Key, str]) -> Iterator[tuple[str, Usage | None]]:
    """Yield RAM, and each device that changed or has the highest peak of the cell."""
    fullest = max((gpu.peak.lo_bytes for gpu in record.gpus), default=0)
    for name, usage in _memories(record, names):
        idle = usage is not None and max(abs(usage.consumed_bytes), usage.peaked_bytes) < MB
        if usage is None or not idle or name == "RAM" or usage.peak.lo_bytes >= fullest:
            yield name, usage


def _worst(found: Ranked, names: dict[Key, str]) -> _Worst:
    """Return, by the name of each figure, the cells that have the highest: of RAM, and of any device."""
    worst: _Worst = {}
    for figure, record, usage in found.worst:
        name = f"on {_device(record, usage, names)}" if isinstance(usage, DeviceUsage) else "of RAM"
        least = "" if figure == "consumed" else least_sign(usage)
        text = f"{least}{rounded_mb(size_of(usage, figure))} MB {name}"
        worst.setdefault("highest" if figure == "highest" else f"{figure} most", []).append((record, text))
    return worst | {"longest": [(found.longest, time_text(found.longest.time_s))]}


def _suspect(runs: Sequence[CellRecord], names: dict[Key, str]) -> str:
    """Return one cell that may leak: its runs, and what each consumed where it grew every time."""
    grown: dict[str, list[int]] = {}
    for record in runs:
        for name, usage in _memories(record, names):
            grown.setdefault(name, []).append(usage.consumed_bytes if usage else 0)
    every = {name: sizes for name, sizes in grown.items() if len(sizes) == len(runs) and min(sizes) >= MB}
    shown = every or dict([max(grown.items(), key=lambda item: sum(item[1]))])
    growth = "; ".join(_growth(name, sizes) for name, sizes in shown.items())
    who = ", ".join(map(shortened, growing_names(runs)[:_NAMES]))
    return f"{named(runs[-1], ' ')}: {len(runs)} runs, {growth}{who and ': '}{who}"


def _growth(name: str, sizes: Sequence[int]) -> str:
    """Return how much a suspect grew: one figure if all runs were alike, else those of the last few."""
    where = "MB" if name == "RAM" else f"MB on {name}"
    growths = [f"{rounded_mb(size):+}" for size in sizes]
    if len(set(growths)) == 1:
        return f"{growths[0]} {where} each"
    return f"{'..., ' if len(growths) > _RUNS else ''}{', '.join(growths[-_RUNS:])} {where}"


def named(record: CellRecord, between: str = ": ") -> str:
    """Return a cell's label and main line, by which people recognize it; of a script its name."""
    title, code = shortened(record.title()), shortened(record.code_line.strip())
    return title if title == code else f"{title}{between}{code}"


def comparison(found: Comparison, *, unchanged: bool = False) -> str:
    """Return the cells that changed between two runs, or all; the last line is the verdict."""
    shown = [pair for pair in found.pairs if unchanged or pair.changed or pair is found.unexplained]
    lines = [f"{'Highest, MB':20}{'Before':>8}{'Now':>8}{'Change':>8}"] if shown else []
    for pair in shown:
        lines += _compared(pair, unchanged=unchanged)
    grew, count = len(found.regressed), len(found.pairs)
    shared = {pair.after.source for pair in found.pairs if pair.alike > 1}
    for word, records in (("new", found.new), ("removed", found.removed)):
        for record in records:
            remark = " (or an earlier run of a cell above)" if record.source in shared else ""
            lines.append(f"{word}: {named(record)}{remark}{record.outcome() and ', '}{record.outcome()}")
    if same := len(found.pairs) - len(shown):
        lines.append(f"{cells_text(same, 0)} not shown: no change of their own (--all shows every cell)")
    if found.unexplained:
        lines.append(f"{named(found.unexplained.after)}: began higher, and no cell of both runs grew")
    if found.failed:
        lines.append(f"failed now, not before: {'; '.join(map(named, found.failed))}")
    unsure = sum(pair.alike > 1 for pair in found.regressed)
    lines.append(
        f"{grew or 'none'} of {count} {'cell' if count == 1 else 'cells'} grew by more than"
        f" {100 * found.tolerance:.4g} % and {rounded_mb(found.floor_bytes)} MB"
        + (f"; {unsure} of them may be another cell than it was" if unsure else "")
    )
    return printable_lines(lines)


def _compared(pair: Pair, *, unchanged: bool) -> list[str]:
    now, was = (
        f"{record.time_s:.3f} s{record.outcome() and ', '}{record.outcome()}"
        for record in (pair.after, pair.before)
    )
    lines = [f"{named(pair.after)}  ({now}; was {was})"]
    if pair.alike > 1:
        lines.append(f"  (matched by its first line, which {pair.alike} cells share)")
    shown = (one for one in pair.changes if unchanged or one.changed or one.began_higher)
    return [*lines, *map(_changed, shown)]


def _changed(change: Change) -> str:
    before, after = change.before_bytes, change.after_bytes
    grown = "n/a" if before is None or after is None else f"{rounded_mb(after - before):+}"
    remarks = ["(at least)"] if change.at_least else []
    remarks += ["GREW"] if change.regressed else []
    inherited_mb = rounded_mb(change.inherited_bytes or 0)
    if inherited_mb and (change.regressed or change.began_higher):
        remarks.append(f"({inherited_mb:+} MB of it before the cell began)")
    figures = f"{mb_text(before):>8}{mb_text(after):>8}{grown:>8}"
    return f"  {change.name:18}{figures}  {' '.join(remarks)}".rstrip()


html_of[Measurement] = lambda measurement: html_report.report(measurement, named=True)
html_of[LineUsage] = lambda one: lines.html([one])
html_of[OutOfMemory] = lambda card: out_of_memory.html(card, None, _CARD)
html_of[Estimate], text_of[Estimate] = estimate.html, estimate.report
html_of[Group], text_of[Group] = group.html, group.table
html_of[History] = history
