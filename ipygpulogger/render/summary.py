"""The cells of a notebook as a table; what a notebook displays of each kind of record."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from ..analysis.group import Group
from ..analysis.leaks import growing_names
from ..analysis.ranking import ranked
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
from .markup import Drawn, Strong, line, scrolling, small
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
_FIGURES = "consumed", "peaked", "needed", "peak"
_COLUMNS = {
    "consumed": Column("Consumed", gap=1, least=8),
    "peaked": Column("Peaked", gap=1, least=6),
    "needed": Column("Needed", gap=1, least=7),
    "drawn": Column("", "drawn"),
    "peak": Column("Peak", gap=1, least=7),
}
_FIRST = {
    "peak": "by what each needed above what was in use before it",
    "consumed": "who consumed most first",
    "time": "the longest first",
}


def summary(records: Sequence[CellRecord], by: str, suspects: Sequence[Sequence[CellRecord]]) -> str:
    """Return the ranked cells of a notebook, the highest marked, and suspected leaks.

    The records and the suspects are as `History.rank` and `History.suspects` return them.
    """
    found = ranked(records, by, suspects)
    if found is None:
        return _NONE
    names = _names(found.devices)
    worst = _worst(found, names)
    marked = {id(record) for cells in worst.values() for record, _ in cells}
    lines = [_title(found), *_table(found.first, names, marked, html=False).text()]
    if more := _more(found.count, found.first):
        lines.append(f"  {more}")
    lines += [f"* {sentence}" for sentence in _sentences(worst)]
    if found.coarse_bytes:
        lines.append(
            f"RAM: each peak is within ±{rounded_mb(found.coarse_bytes)} MB, as coarsely as the kernel counts"
        )
    if found.suspects:
        lines.append(f"May leak: {_LEAK}:")
        lines += [f"  {_suspect(runs, names)}" for runs in found.suspects]
    if more := _more(found.suspects_count, found.suspects):
        lines.append(f"  {more}")
    return printable_lines(lines)


def html(records: Sequence[CellRecord], by: str, suspects: Sequence[Sequence[CellRecord]]) -> str:
    """Return the same as HTML: a table with a bar for each memory, its highest figures in bold."""
    found = ranked(records, by, suspects)
    if found is None:
        return line(_NONE, quiet=True)
    names = _names(found.devices)
    markup = scrolling(_table(found.first, names, html=True).html(_title(found)))
    below = [_more(found.count, found.first), *_sentences(_worst(found, names))]
    markup += "".join(map(small, filter(None, below)))
    if found.suspects:
        markup += line(f"<b>May leak</b>: {_LEAK}")
        markup += "".join(line(escape(_suspect(runs, names))) for runs in found.suspects)
    if more := _more(found.suspects_count, found.suspects):
        markup += small(more)
    return without_controls(markup)


def history(cells: History) -> str:
    """Return the cells of a history as HTML, in the order they finished: the last of them."""
    if not cells:
        return line(_NONE, quiet=True)
    records = cells[-_ROWS:]
    own = [record for record in records if process_of(record) is None]
    names = _names(gpu for record in own for gpu in record.gpus)
    which = f", the last {_ROWS}" if len(cells) > _ROWS else ""
    shown = _table(records, names, html=True).html(f"{cells.counted()}{which}; MB")
    return without_controls(scrolling(shown))


def _names(gpus: Iterable[DeviceUsage]) -> dict[Key, str]:
    return {key: name for key, (name, _) in named_devices(gpus).items()}


def _title(found: Ranked) -> str:
    count = cells_text(found.count - found.processes_count, found.processes_count)
    return f"{count}, {_FIRST[found.by]}; MB"


def _more(count: int, shown: Sequence[object]) -> str:
    return f"and {count - len(shown):,} more" if count > len(shown) else ""


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
    order = ("needed", "drawn", "consumed", "peaked", "peak") if html else _FIGURES
    cell, memory = Column("", "words", html_head="Cell", least=8), Column("", "words", gap=1, least=5)
    time, source = Column("Time", gap=1, least=9), Column("Cell", "code", html_head="Source")
    table = Table([cell, memory, *(_COLUMNS[name] for name in order), time, source])
    shown = [(record, list((_moved if html else _rows)(record, names))) for record in records]
    usages = [usage for _, rows in shown for _, usage in rows if usage is not None]
    scale_bytes = max((usage.needed_bytes for usage in usages), default=0)
    longest_s = max((record.time_s for record in records), default=0.0)
    most = {
        name: max((rounded_mb(getattr(usage, f"{name}_bytes")) for usage in usages), default=0)
        for name in ("needed", "consumed")
    }
    for record, rows in shown:
        title, ended = shortened(record.title()), shortened(record.outcome())
        code = shortened(record.source)
        if html:
            took = time_text(record.time_s)
            outcome = f" <b>{escape(ended)}</b>" if ended else ""
            first: Words = Drawn(f"{escape(title)}{outcome}")
            last: tuple[Words, Words] = (Strong(took) if record.time_s == longest_s else took, code)
        else:
            first = title
            last = f"{record.time_s:.3f}s", f"{code}{f'  ({ended})' if ended else ''}"
        mark = "*" if id(record) in marked else " "
        for name, usage in rows:
            figures: dict[str, Words | Bar] = dict.fromkeys(_FIGURES, "n/a")
            if usage is not None:
                for what, (least, size_bytes) in _sizes(usage).items():
                    size_mb = rounded_mb(size_bytes)
                    text = f"{least}{size_mb:{',' if html else ''}}"
                    figures[what] = Strong(text) if size_mb and size_mb == most.get(what) else text
            figures["drawn"] = Bar(moved_parts(usage), scale_bytes)
            table.add(first, name, *(figures[what] for what in order), *last, mark=mark)
            mark, first, last = " ", "", ("", Drawn(""))
    return table


def _sizes(usage: Usage) -> dict[str, tuple[str, int]]:
    """Return the figures of a row: the sign before each, and bytes."""
    least = least_sign(usage)
    return {
        "consumed": ("", usage.consumed_bytes),
        "peaked": ("", usage.peaked_bytes),
        "needed": (least, usage.needed_bytes),
        "peak": (least, usage.peak.lo_bytes),
    }


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
        name = _device(record, usage, names) if isinstance(usage, DeviceUsage) else ""
        least, size_bytes = _sizes(usage)[figure]
        text = f"{least}{rounded_mb(size_bytes)} {f'MB on {name}' if name else 'MB of RAM'}"
        if figure == "needed":
            text += f" (peak {least}{rounded_mb(usage.peak.lo_bytes)})"
        worst.setdefault(f"{figure} most", []).append((record, text))
    return worst | {"longest": [(found.longest, f"{found.longest.time_s:.3f}s")]}


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
    """Return a cell's label and first line, by which people recognize it."""
    return f"{shortened(record.title())}{between}{shortened(record.source)}"


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
