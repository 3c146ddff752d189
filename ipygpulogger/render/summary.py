"""The cells of a notebook as a table, ranked or in their order, as text and as HTML."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from ..analysis.leaks import growing_names
from ..analysis.ranking import ranked
from ..records import DeviceUsage
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
from .growth import device_name, named_devices
from .growth import named as named_devices_of
from .markup import Drawn, Strong, Text, cell_bar, code, line, scrolling, small
from .markup import table as markup_table
from .table import least_sign, moved_parts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..analysis.compare import Change, Comparison, Pair
    from ..analysis.ranking import Ranked
    from ..analysis.totals import Key
    from ..records import CellRecord, Usage
    from ..storage.history import History
    from .markup import Cell

_ROWS = 20  # cells of a history
_LABEL = 10  # columns of a label
_NAMES = 5  # that grew in one suspect
_RUNS = 6  # of one suspect
_FIRST = {
    "peak": "by what each needed above what was in use before it",
    "consumed": "who consumed most first",
    "time": "the longest first",
}


def summary(records: Sequence[CellRecord], by: str, suspects: Sequence[Sequence[CellRecord]]) -> str:
    """Return the ranked cells of a notebook, the highest marked, and suspected leaks.

    Args:
        records: In descending order, as `History.rank` returns them.
        by: What they are ranked by: "peak", "consumed" or "time".
        suspects: The runs of each cell that may leak, as `History.suspects` returns them.

    Returns:
        Lines of text, without a newline at the end.
    """
    found = ranked(records, by, suspects)
    if found is None:
        return "no cell has been reported yet"
    names = _names(found)
    worst = _worst(found, names)
    marked = {id(record) for _, cells in worst for record, _ in cells}
    lines = [f"{_count(found)}, {_FIRST[found.by]}; MB"]
    width = _width(found)
    lines.append(f"{'':{width + 6}}{'Consumed':>9}{'Peaked':>7}{'Needed':>8}{'Peak':>8}{'Time':>10}  Cell")
    for record in found.first:
        lines += _rows_of(record, names, "*" if id(record) in marked else "", width)
    if found.count > len(found.first):
        lines.append(f"  and {found.count - len(found.first):,} more")
    for words, cells in worst:
        listed = (f"{shortened(record.title())}, {figure}" for record, figure in cells)
        lines.append(f"* {words}: {'; '.join(listed)}")
    if found.coarse_bytes:
        lines.append(
            f"RAM: each peak is within ±{rounded_mb(found.coarse_bytes)} MB, as coarsely as the kernel counts"
        )
    if found.suspects:
        lines.append("May leak: every run consumed more, and left more in use than the one before:")
        lines += [f"  {_suspect(runs, names)}" for runs in found.suspects]
    if found.suspects_count > len(found.suspects):
        lines.append(f"  and {found.suspects_count - len(found.suspects)} more")
    return printable_lines(lines)


def html(records: Sequence[CellRecord], by: str, suspects: Sequence[Sequence[CellRecord]]) -> str:
    """Return the same as HTML: a table with a bar for each memory, its highest figures in bold."""
    found = ranked(records, by, suspects)
    if found is None:
        return line("no cell has been reported yet", quiet=True)
    names = _names(found)
    markup = _table(found.first, names, f"{_count(found)}, {_FIRST[found.by]}; MB")
    if found.count > len(found.first):
        markup += small(f"and {found.count - len(found.first):,} more")
    for words, cells in _worst(found, names):
        markup += small(f"{words}: {'; '.join(f'{shortened(cell.title())}, {text}' for cell, text in cells)}")
    if found.suspects:
        markup += line("<b>May leak</b>: every run consumed more, and left more in use than the one before")
        markup += "".join(line(escape(_suspect(runs, names))) for runs in found.suspects)
    if found.suspects_count > len(found.suspects):
        markup += small(f"and {found.suspects_count - len(found.suspects)} more")
    return without_controls(markup)


def _names(found: Ranked) -> dict[Key, str]:
    return {key: name for key, (name, _) in named_devices_of(found.devices).items()}


def history(cells: History) -> str:
    """Return the cells of a history as HTML, in the order they finished: the last of them."""
    if not cells:
        return line("no cell has been reported yet", quiet=True)
    records = cells[-_ROWS:]
    own = [record for record in records if process_of(record) is None]
    names = {key: name for key, (name, _) in named_devices(own).items()}
    which = f", the last {_ROWS}" if len(cells) > _ROWS else ""
    return without_controls(_table(records, names, f"{cells.counted()}{which}; MB"))


def _count(found: Ranked) -> str:
    return cells_text(found.count - found.processes_count, found.processes_count)


def _device(record: CellRecord, gpu: DeviceUsage, names: dict[Key, str]) -> str:
    """Return the name of a device: among all of this kernel, or among those of its own process."""
    return device_name(gpu, record.gpus) if process_of(record) else names[gpu.key]


def _table(records: Sequence[CellRecord], names: dict[Key, str], caption: str) -> str:
    """Return cells as an HTML table, a row for each memory; the highest figure of each column is bold."""
    shown = [(record, i == 0, *row) for record in records for i, row in enumerate(_moved(record, names))]
    usages = [usage for *_, usage in shown if usage is not None]
    scale_bytes = max((usage.needed_bytes for usage in usages), default=0)
    longest = max((record.time_s for record in records), default=0.0)
    most = {
        figure: max((rounded_mb(getattr(usage, figure)) for usage in usages), default=0)
        for figure in ("needed_bytes", "consumed_bytes")
    }

    def figure(usage: Usage, name: str) -> Cell:
        size_mb = rounded_mb(getattr(usage, name))
        text = f"{least_sign(usage) if name == 'needed_bytes' else ''}{size_mb:,}"
        return Strong(text) if size_mb and size_mb == most[name] else text

    rows: list[list[Cell]] = []
    for record, first, name, usage in shown:
        row: list[Cell] = [Drawn(_cell(record)) if first else "", Text(escape(name))]
        if usage is None:
            row += ["n/a", Drawn(""), "n/a", "n/a", "n/a"]
        else:
            row += [figure(usage, "needed_bytes"), cell_bar(moved_parts(usage), scale_bytes)]
            row += [figure(usage, "consumed_bytes"), f"{rounded_mb(usage.peaked_bytes):,}"]
            row.append(f"{least_sign(usage)}{rounded_mb(usage.peak.lo_bytes):,}")
        took = time_text(record.time_s)
        row.append("" if not first else Strong(took) if record.time_s == longest else took)
        row.append(Drawn(code(shortened(record.source)) if first else ""))
        rows.append(row)
    head: list[str | Text] = ["Cell", "", "Needed", "", "Consumed", "Peaked", "Peak", "Time", Text("Source")]
    return scrolling(markup_table(head, rows, caption=caption))


def _moved(record: CellRecord, names: dict[Key, str]) -> list[tuple[str, Usage | None]]:
    """Return the rows of a cell where anything changed or is unknown; RAM if nothing did."""
    found = list(_rows(record, names))
    moved = [
        (name, usage) for name, usage in found if usage is None or rounded_mb(usage.needed_bytes)
        or rounded_mb(usage.consumed_bytes)
    ]  # fmt: skip
    return moved or found[:1]


def _cell(record: CellRecord) -> str:
    """Return the name of a cell as markup: its label, and how it ended."""
    ended = f" <b>{escape(shortened(record.outcome()))}</b>" if record.outcome() else ""
    return f"{escape(shortened(record.title()))}{ended}"


def _memories(record: CellRecord, names: dict[Key, str]) -> Iterator[tuple[str, Usage | None]]:
    """Yield RAM and the cell's devices by name; None for a device without attributed use."""
    yield "RAM", record.gen
    for gpu in record.gpus:
        yield _device(record, gpu, names), gpu if gpu.attributed else None


def _worst(found: Ranked, names: dict[Key, str]) -> list[tuple[str, list[tuple[CellRecord, str]]]]:
    """Return, by the name of each figure, the cells that have the highest: of RAM, and of any device."""
    worst: dict[str, list[tuple[CellRecord, str]]] = {}
    for figure, record, usage in found.worst:
        where = _where(_device(record, usage, names) if isinstance(usage, DeviceUsage) else "RAM")
        if figure == "needed":
            text = f"{_needed(usage)} {where} (peak {_peak(usage)})"
        else:
            text = f"{rounded_mb(usage.consumed_bytes)} {where}"
        worst.setdefault(f"{figure} most", []).append((record, text))
    return [*worst.items(), ("longest", [(found.longest, f"{found.longest.time_s:.3f}s")])]


def _rows(record: CellRecord, names: dict[Key, str]) -> Iterator[tuple[str, Usage | None]]:
    """Yield RAM, and each device that changed or has the highest peak of the cell."""
    fullest = max((gpu.peak.lo_bytes for gpu in record.gpus), default=0)
    for name, usage in _memories(record, names):
        idle = usage is not None and max(abs(usage.consumed_bytes), usage.peaked_bytes) < MB
        if usage is None or not idle or name == "RAM" or usage.peak.lo_bytes >= fullest:
            yield name, usage


def _width(found: Ranked) -> int:
    """Return the width of the column of labels: wider where they name processes."""
    titles = (len(shortened(record.title())) + 2 for record in found.first if process_of(record))
    return max(_LABEL, *titles, _LABEL)


def _rows_of(record: CellRecord, names: dict[Key, str], mark: str, width: int) -> Iterator[str]:
    """Yield a row for RAM, and one for each device that changed or has the highest peak of the cell."""
    ended = shortened(record.outcome())
    tail = f"{record.time_s:9.3f}s  {shortened(record.source)}{f'  ({ended})' if ended else ''}"
    head = f"{mark:2}{shortened(record.title())}"
    for name, usage in _rows(record, names):
        figures: tuple[str, ...] = ("n/a",) * 4
        if usage is not None:
            consumed, peaked = rounded_mb(usage.consumed_bytes), rounded_mb(usage.peaked_bytes)
            figures = str(consumed), str(peaked), _needed(usage), _peak(usage)
        yield f"{head:{width}} {name:5}{figures[0]:>9}{figures[1]:>7}{figures[2]:>8}{figures[3]:>8}{tail}"
        head = tail = ""


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


def _peak(usage: Usage) -> str:
    return f"{least_sign(usage)}{rounded_mb(usage.peak.lo_bytes)}"


def _needed(usage: Usage) -> str:
    return f"{least_sign(usage)}{rounded_mb(usage.needed_bytes)}"


def _where(name: str) -> str:
    return "MB of RAM" if name == "RAM" else f"MB on {name}"


def named(record: CellRecord, between: str = ": ") -> str:
    """Return a cell's label and first line, by which people recognize it."""
    return f"{shortened(record.title())}{between}{shortened(record.source)}"


def comparison(found: Comparison) -> str:
    """Return two runs compared cell by cell, without a newline at the end; the last line is the verdict."""
    lines = [f"{'MB':20}{'Before':>8}{'Now':>8}{'Change':>8}"]
    for pair in found.listed:
        lines += _compared(pair)
    grew, count = len(found.regressed), len(found.pairs)
    if count > len(found.listed):
        more = grew - len(found.listed)
        lines += [f"and {more:,} more that grew"] if more else []
        lines.append(f"and {count - grew:,} more that did not grow")
    shared = {pair.after.source for pair in found.pairs if pair.alike > 1}
    for word, records in (("new", found.new), ("removed", found.removed)):
        for record in records[:_ROWS]:
            remark = " (or an earlier run of a cell above)" if record.source in shared else ""
            lines.append(f"{word}: {named(record)}{remark}")
        if len(records) > _ROWS:
            lines.append(f"{word}: {len(records) - _ROWS:,} more")
    unsure = sum(pair.alike > 1 for pair in found.regressed)
    lines.append(
        f"{grew or 'none'} of {count} {'cell' if count == 1 else 'cells'} grew by more than"
        f" {100 * found.tolerance:.4g} % and {rounded_mb(found.floor_bytes)} MB"
        + (f"; {unsure} of them may be another cell than it was" if unsure else "")
    )
    return printable_lines(lines)


def _compared(pair: Pair) -> list[str]:
    before, after = pair.before, pair.after
    ended = f", {after.outcome()}" if after.outcome() else ""
    was = f", {before.outcome()}" if before.outcome() else ""
    lines = [f"{named(after)}  ({after.time_s:.3f} s{ended}; was {before.time_s:.3f} s{was})"]
    if pair.alike > 1:
        lines.append(f"  (matched by its first line, which {pair.alike} cells share)")
    if pair.processes:
        count_before, count = pair.processes
        records = "record" if count == 1 else "records"
        lines.append(f"  (the highest of {count:,} {records}; was of {count_before:,})")
    return [*lines, *map(_changed, pair.changes)]


def _changed(change: Change) -> str:
    before, after = change.before_bytes, change.after_bytes
    figures = [mb_text(before), mb_text(after)]
    grown = "n/a" if before is None or after is None else f"{rounded_mb(after - before):+}"
    remarks = [f"({shortened(change.process)})"] if change.process else []
    remarks += ["(at least)"] if change.at_least else []
    if change.regressed:
        remarks.append("GREW")
        if inherited_mb := rounded_mb(change.inherited_bytes or 0):
            remarks.append(f"({inherited_mb:+} MB of it before the cell began)")
    return f"  {change.name:18}{figures[0]:>8}{figures[1]:>8}{grown:>8}  {' '.join(remarks)}".rstrip()
