"""The cells of a notebook as a table; what a notebook displays of each kind of record."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from ..analysis.compare import Change, Comparison, Pair, is_test
from ..analysis.group import Group
from ..analysis.leaks import growing_names, suspects
from ..analysis.ranking import SIZES, Key, raising, rank
from ..records import CellRecord, Estimate, KindTimeline, Measurement, OutOfMemory, Usage
from ..records.cell_record import process_of
from ..records.units import MB, mb_text, printable_lines, rounded_mb, shortened, time_text, without_controls
from ..records.value import html_of, text_of
from ..storage.history import History
from . import at_peak, estimate, group, out_of_memory
from . import html as html_report
from .growth import device_name, named_devices
from .markup import BLUE, DOT, RED, Drawn, Strong, line, scrolling, small
from .table import Bar, Column, Table, Words, least_sign, moved_parts

_ROWS = 20  # cells
_SUSPECTS = 5
_CARD = 2048  # bytes
_NAMES = 5  # that grew in one suspect
_NONE = "no cell has been reported yet"
_LEAK = "every run consumed more, and left more in use than the one before"
_MOMENT = "more for a moment"
_LEGEND = f"<b style=color:{BLUE}>■</b> consumed{DOT}<b style=color:{RED}>■</b> {_MOMENT}"
_WIDTH = 80  # of text, of which a table without marks leaves two
_BAR = 8  # characters
# Of code in HTML: on a narrow screen it leaves room for the figures; JupyterLab would wrap it.
_CLIPPED = "max-width:18vw;overflow:hidden;text-overflow:ellipsis;white-space:nowrap"
_CODE = "background:none;padding:0;white-space:pre"
_ID = re.compile(r"[\w-]{1,64}", re.ASCII)  # of a cell of a notebook file; VS Code sends an address


def summary(
    records: Sequence[CellRecord], by: str = "needed", *, most: int = _ROWS, width: int = _WIDTH
) -> str:
    """Return the ranked cells of a run as text, `most` of them, and those that may leak.

    The records are all of the run, in their order, and `by` is a word that `History.rank` takes.
    """
    if not (ranked := rank(records, by)):
        return _NONE
    names, (below, leaking) = _names(ranked), _below(records, ranked, most)
    lines = [_title(records, ranked, by)]
    lines += _table(ranked[:most], names, html=False).text(width + 2, marks=False)
    for sentence in (*below, f"█ consumed  ░ {_MOMENT}"):
        lines += textwrap.wrap(sentence, width)
    return printable_lines([*lines, *leaking])


def html(records: Sequence[CellRecord], by: str = "needed") -> str:
    """Return the same as HTML, the highest figures in bold."""
    if not (ranked := rank(records, by)):
        return line(_NONE, quiet=True)
    names, (below, leaking) = _names(ranked), _below(records, ranked)
    shown = scrolling(_table(ranked[:_ROWS], names, html=True).html())
    markup = line(f"{escape(_title(records, ranked, by))}{shown}{''.join(map(small, below))}{_LEGEND}")
    markup += "".join(map(line, map(escape, leaking))).replace("May leak", "<b>May leak</b>", 1)
    return without_controls(markup)


def _title(records: Sequence[CellRecord], ranked: Sequence[CellRecord], by: str) -> str:
    only_ours = len(records) - len(ranked)
    left_out = f" ({only_ours:,} that only ran %gpulog left out)" if only_ours else ""
    return f"{History(records).counted()}{left_out}, ranked by {'needed' if by == 'peak' else by}; MB"


def _below(
    records: Sequence[CellRecord], ranked: Sequence[CellRecord], most: int = _ROWS
) -> tuple[list[str], list[str]]:
    """Return what stands below the table, and which cells may leak."""
    suspected = suspects(records)
    below = [f"and {len(ranked) - most:,} more"] if len(ranked) > most else []
    raised = [f"{one.name} {one.size}, raised by {shortened(one.by.title())}" for one in highest(records)]
    below += [f"highest: {'; '.join(raised)}"] if raised else []
    if coarse := [rounded_mb(one.gen.peak.precision_bytes) for one in ranked if one.gen.peak.coarse]:
        below.append(f"RAM: each highest is within ±{max(coarse)} MB, as coarsely as the kernel counts")
    leaking = [f"May leak: {_LEAK}:"] if suspected else []
    leaking += [f"  {suspect(runs)}" for runs in suspected[:_SUSPECTS]]
    leaking += [f"  and {len(suspected) - _SUSPECTS:,} more"] if len(suspected) > _SUSPECTS else []
    return below, leaking


class Raised(NamedTuple):
    """The highest use of one memory, and who raised it to that."""

    name: str
    by: CellRecord
    usage: Usage
    size: str  # how high it was; "at least" if another cell may have been higher


def highest(records: Sequence[CellRecord]) -> Iterator[Raised]:
    """Yield who raised each memory to its highest."""
    names = _names(records)
    found: dict[str, list[tuple[CellRecord, Usage]]] = {}
    for record in records:
        for name, usage in _memories(record, names):
            found.setdefault(name, []).extend([] if usage is None else [(record, usage)])
    for name, uses in found.items():
        if (one := raising(uses)) is not None:
            yield Raised(name, *one)


def _names(records: Sequence[CellRecord]) -> dict[Key, str]:
    """Return the names of this kernel's devices."""
    gpus = (gpu for record in records if process_of(record) is None for gpu in record.gpus)
    return {key: name for key, (name, _) in named_devices(gpus).items()}


def _table(records: Sequence[CellRecord], names: dict[Key, str], *, html: bool) -> Table:
    """Return cells as a table, a row for each memory, the highest figures in bold."""
    columns = [Column("", "words", html_head="Cell", least=7), Column("", "words", gap=1, least=4)]
    columns += [Column("Consumed", gap=1, least=8), Column("Needed", gap=1, least=6)]
    columns += [Column("", "drawn" if html else "figure", gap=1), Column("Highest", gap=1, least=7)]
    columns += [Column("Time", gap=1, least=7)]
    source_head = "File" if any(map(is_test, records)) else "Cell"
    columns.insert(1 if html else len(columns), Column(source_head, "code", html_head="Source"))
    table = Table(columns)
    shown = [(record, _rows(record, names)) for record in records]
    usages = [usage for _, rows in shown for _, usage in rows if usage is not None]
    scale_bytes = max((usage.needed_bytes for usage in usages), default=0)
    longest_s = max((record.time_s for record in records), default=0.0)
    most = {
        what: max((rounded_mb(size_of(one)) for one in usages), default=0) for what, size_of in SIZES.items()
    }
    for record, rows in shown:
        code, ended = shortened(record.code_line.strip()), shortened(record.outcome())
        took = time_text(record.time_s)
        time: Words = Strong(took) if record.time_s == longest_s else took
        first: Words = shortened(record.title())
        source: Words = ": ".join(filter(None, (ended, code)))
        if html:
            first = Drawn(_linked(record))
            failed = f"<b>{escape(ended)}</b> " if ended else ""
            source = Drawn(
                f'<div style="{_CLIPPED}">{failed}<code style="{_CODE}">{escape(code)}</code></div>'
            )
        for name, usage in rows:
            consumed, needed, highest = (_figure(usage, what, most[what], html=html) for what in SIZES)
            bar = Bar(moved_parts(usage), scale_bytes)
            figures = consumed, needed, bar if html else bar.blocks(_BAR), highest, time
            table.add(first, *([source, name] if html else [name]), *figures, *([] if html else [source]))
            first, time, source = "", "", Drawn("")
    return table


def _linked(record: CellRecord) -> str:
    """Return the title of a cell, where the front end has its id as a link, which JupyterLab follows."""
    title = escape(shortened(record.title())).replace(" ", "\N{NO-BREAK SPACE}")
    cell_id = record.cell_id or ""
    return f'<a href="#cell-id={cell_id}">{title}</a>' if _ID.fullmatch(cell_id) else title


def _figure(usage: Usage | None, what: str, most_mb: int, *, html: bool) -> Words:
    """Return a figure of a row in MB, one that is the highest of its column so that it stands out."""
    if usage is None:
        return "n/a"
    size_mb = rounded_mb(SIZES[what](usage))
    least = "" if what == "consumed" else least_sign(usage)
    text = f"{least}{size_mb:{',' if html else ''}}"
    return Strong(text) if size_mb and size_mb == most_mb else text


def _memories(record: CellRecord, names: dict[Key, str]) -> Iterator[tuple[str, Usage | None]]:
    """Yield RAM and the devices by name, among those of its process; None for a device of unknown use."""
    yield "RAM", record.gen
    for gpu in record.gpus:
        name = device_name(gpu, record.gpus) if process_of(record) else names[gpu.key]
        yield name, gpu if gpu.attributed else None


def _rows(record: CellRecord, names: dict[Key, str]) -> list[tuple[str, Usage | None]]:
    """Return each memory that changed or is unknown, and the fullest device; RAM if there is none."""
    fullest_bytes = max((gpu.peak.lo_bytes for gpu in record.gpus if gpu.attributed), default=0)

    def is_shown(name: str, usage: Usage | None) -> bool:
        if usage is None or rounded_mb(usage.needed_bytes) or rounded_mb(usage.consumed_bytes):
            return True
        return name != "RAM" and usage.peak.lo_bytes == fullest_bytes > 0

    found = list(_memories(record, names))
    return [one for one in found if is_shown(*one)] or found[:1]


def suspect(runs: Sequence[CellRecord]) -> str:
    """Return one cell that may leak: its runs, and what each consumed where it grew every time."""
    names = _names(runs)
    grown: dict[str, list[int]] = {}
    for record in runs:
        for name, usage in _memories(record, names):
            grown.setdefault(name, []).append(usage.consumed_bytes if usage else 0)
    every = {name: sizes for name, sizes in grown.items() if len(sizes) == len(runs) and min(sizes) >= MB}
    shown = every or dict([max(grown.items(), key=lambda item: sum(item[1]))])
    growth = []
    for name, sizes in shown.items():
        ends = dict.fromkeys(f"{rounded_mb(size):+}" for size in (min(sizes), max(sizes)))
        growth.append(f"{' to '.join(ends)} MB {'' if name == 'RAM' else f'on {name} '}each")
    who = ", ".join(map(shortened, growing_names(runs)[:_NAMES]))
    return f"{named(runs[-1], ' ')}: {len(runs)} runs, {'; '.join(growth)}{who and ': '}{who}"


def named(record: CellRecord, between: str = ": ") -> str:
    """Return a cell's label and main line, by which people recognize it; of a script its name."""
    title, code = shortened(record.title()), shortened(record.code_line.strip())
    return title if code in ("", title) else f"{title}{between}{code}"


def comparison(found: Comparison, *, unchanged: bool = False) -> str:
    """Return the cells that changed between two runs, or all; the last line is the verdict."""
    shown = [pair for pair in found.pairs if unchanged or pair.changed or pair is found.unexplained]
    of_tests = any(is_test(pair.after) for pair in found.pairs)
    noun, what = ("test", "Needed, MB") if of_tests else ("cell", "Highest, MB")
    lines = [f"{what:20}{'Before':>8}{'Now':>8}{'Change':>8}"] if shown else []
    for pair in shown:
        lines += _compared(pair, unchanged=unchanged)
    grew, count = len(found.regressed) or "none", len(found.pairs)
    for word, records in (("new", found.new), ("removed", found.removed)):
        for record in records:
            lines.append(f"{word}: {named(record)}{record.outcome() and ', '}{record.outcome()}")
    if same := len(found.pairs) - len(shown):
        lines.append(f"{same:,} not shown: no change of their own (--all shows every {noun})")
    if found.unexplained:
        lines.append(f"{named(found.unexplained.after)}: began higher, and no cell of both runs grew")
    if found.failed:
        lines.append(f"failed now, not before: {'; '.join(map(named, found.failed))}")
    tolerated = f"{100 * found.tolerance:.4g} % and {rounded_mb(found.floor_bytes)} MB"
    lines.append(f"{grew} of {count} {noun}{'' if count == 1 else 's'} grew by more than {tolerated}")
    return printable_lines(lines)


def _compared(pair: Pair, *, unchanged: bool) -> list[str]:
    now, was = (
        f"{record.time_s:.3f} s{record.outcome() and ', '}{record.outcome()}"
        for record in (pair.after, pair.before)
    )
    lines = [f"{named(pair.after)}  ({now}; was {was})"]
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
html_of[OutOfMemory] = lambda card: out_of_memory.html(card, _CARD)
html_of[Estimate], text_of[Estimate] = estimate.html, estimate.report
html_of[KindTimeline] = lambda one: at_peak.drawn_over((one,), one.device)
html_of[Group], text_of[Group] = group.html, group.table
html_of[History] = html
