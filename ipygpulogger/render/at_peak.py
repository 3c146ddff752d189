"""What was alive when memory was highest, as text and as HTML: by kind, and by kind, name and place."""

from __future__ import annotations

import textwrap
from html import escape
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from ..records import CPU
from ..records.at_peak import BEFORE
from ..records.units import (
    MB,
    clipped,
    nonzero_figure,
    nonzero_mb,
    nonzero_text,
    printable,
    printable_lines,
    rounded_mb,
    time_text,
    without_controls,
)
from .markup import (
    AMBER,
    BLUE,
    GREY,
    PALE,
    PREFORMATTED,
    PURPLE,
    Part,
    Text,
    bar,
    cell_bar,
    code,
    legend,
    line,
    scrolling,
    small,
    table,
    typeset,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..records import AtPeak
    from .markup import Cell

    _Times = Sequence[tuple[str, float]]  # by device

_WIDTH = 100  # columns of the whole table
_LINE = 80  # columns of a line of kinds
_DEVICES = 3  # in a report
_ROWS = 20  # of one device; the others are added up
_NAME = 40  # characters, at most
_PLACE = 26  # characters, at most
_LEAST_NAME = 12
_UNKNOWN = "Nothing is known of what was alive at the peak."

_KINDS = {"before": "held before"}  # as people read them, where that differs
_FILLS = {
    "parameters": BLUE,
    "optimizer state": PALE,
    "gradients": PURPLE,
    "activations": AMBER,
    "variables": "#72b7b2",
    "temporaries": "#9d755d",
    "before": GREY,
}


class _Line(NamedTuple):
    """A row of the table as words."""

    kind: str
    name: str
    place: str
    size: str
    resident: str
    blocks: str


def text(rows: Sequence[AtPeak], times_s: _Times, notes: Sequence[str] = ()) -> str:
    """Return the whole table as text, without a newline at the end.

    Args:
        rows: Of each device the largest first.
        times_s: By device, how long after the beginning its peak was.
        notes: Sentences to write below.
    """
    told = [] if rows else [_UNKNOWN]
    for device, found in _by_device(rows):
        told.append(_headline(device, found, times_s, nonzero_mb))
        told += lines_of(found, _WIDTH)
    for note in notes:
        told += textwrap.wrap(printable(note), _WIDTH)
    return printable_lines(told)


def lines_of(rows: Sequence[AtPeak], width: int, most: int = _ROWS, *, size_first: bool = False) -> list[str]:
    """Return the rows of one device as lines of text: kind, name, place, size, blocks.

    Args:
        rows: The largest first.
        width: Of a line, in columns, at most.
        most: How many rows are listed; the others are one line with their sum.
        size_first: Begin with the size, which is then seen where a narrow page cuts the lines.
    """
    shown = [*map(_as_line, rows[:most]), *_rest(rows[most:])]
    widths = [max((len(words) for words in column), default=0) for column in zip(*shown, strict=True)]
    if not widths:
        return []
    kind, name, place, size, resident, blocks = widths
    others = sum(2 + one for one in (kind, place, size, resident, blocks) if one)
    name = min(name, _NAME, max(_LEAST_NAME, width - others - 2))
    told = []
    for one in shown:
        cells = [one.kind.ljust(kind), clipped(one.name, name).ljust(name)]
        cells += [one.place.ljust(place)] if place else []
        cells.insert(0 if size_first else len(cells), one.size.rjust(size))
        cells += [one.resident.rjust(resident)] if resident else []
        cells += [one.blocks.rjust(blocks)] if blocks else []
        told.append(clipped("".join(f"  {cell}" for cell in cells).rstrip(), width))
    return told


def html(rows: Sequence[AtPeak], times_s: _Times, notes: Sequence[str] = ()) -> str:
    """Return the same as HTML: of each device a bar of the kinds, and the table; foreign text is escaped."""
    said = "" if rows else line(small(_UNKNOWN))
    for device, found in _by_device(rows):
        head = escape(typeset(_headline(device, found, times_s, nonzero_text)))
        said += line(f'<div style="margin:6px 0 3px"><b>{head}</b></div>{kinds_bar(found)}')
        said += scrolling(table_of(found))
    return without_controls(said + "".join(line(small(printable(note))) for note in notes))


def fold(rows: Sequence[AtPeak], times_s: _Times, most: int = 0, *, drawn: bool = False) -> str:
    """Return what unfolds below a report: the kinds of each device as a line, its largest rows below it.

    A device where little happened has no line, see `_reported`.

    Args:
        rows: Of each device the largest first.
        times_s: By device, how long after the beginning its peak was.
        most: How many rows of each device; 0 for the line alone.
        drawn: Whether to draw the kinds as a bar.
    """
    told = ""
    for device, found in _reported(rows):
        said = f"{_headline(device, found, times_s, nonzero_text)}: {kinds_of(found)}"
        head = escape(typeset(said))
        if not most:
            told += f"<div>{head}</div>"
            continue
        told += f"<details><summary style=cursor:pointer>{head}</summary>{kinds_bar(found) if drawn else ''}"
        told += f"{listed(found, most)}</details>"
    return told


def listed(rows: Sequence[AtPeak], most: int) -> str:
    """Return the rows of one device as preformatted lines, which scroll on a narrow page.

    Args:
        rows: The largest first.
        most: How many rows are listed; the others are one line with their sum.
    """
    lines = lines_of(rows, _WIDTH, most, size_first=True)
    return f"<pre {PREFORMATTED}>{escape(chr(10).join(lines))}</pre>"


def kinds_bar(rows: Sequence[AtPeak]) -> str:
    """Return the kinds of one device as a bar with its legend, the largest first."""
    parts = [
        Part(_KINDS.get(kind, kind), size_bytes, _FILLS.get(kind, GREY)) for kind, size_bytes in _kinds(rows)
    ]
    return bar(parts, sum(part.size_bytes for part in parts)) + legend(parts)


def table_of(rows: Sequence[AtPeak], most: int = _ROWS) -> str:
    """Return the rows of one device as an HTML table, a bar for the size of each.

    Args:
        rows: The largest first.
        most: How many rows are listed; the others are one row with their sum.
    """
    scale_bytes = max((row.size_bytes for row in rows), default=0)
    resident = any(row.resident_bytes is not None for row in rows)
    body: list[list[Cell]] = []
    for row in rows[:most]:
        drawn = cell_bar([Part("", row.size_bytes, _FILLS.get(row.kind, GREY))], scale_bytes)
        figures: list[Cell] = [nonzero_figure(row.size_bytes)]
        if resident:
            figures.append(nonzero_figure(_resident_bytes(row)))
        name = code(clipped(printable(row.name), _NAME), unbroken=True) if row.place else escape(row.name)
        place = f"<span style=white-space:nowrap>{escape(_place(row))}</span>"
        body.append([_kind(row), drawn, *figures, f"{row.blocks:,}", Text(name), Text(place)])
    if rest := rows[most:]:
        resident_cells = [nonzero_figure(sum(map(_resident_bytes, rest)))] if resident else []
        size = nonzero_figure(sum(row.size_bytes for row in rest))
        blocks = f"{sum(row.blocks for row in rest):,}"
        body.append([_more(rest), "", size, *resident_cells, blocks, Text(""), Text("")])
    sizes = ["asked for, MB", "resident, MB"] if resident else ["MB"]
    head: list[str | Text] = ["Kind", "", *sizes, "Blocks", Text("Name"), Text("Place")]
    return table(head, body, caption=" ")


def kinds_lines(rows: Sequence[AtPeak], times_s: _Times) -> list[str]:
    """Return for each of the first devices a line with its peak, and below it the kinds, the largest first.

    A device where little happened has none, see `_reported`.

    Args:
        rows: Of each device the largest first.
        times_s: By device, how long after the beginning its peak was.
    """
    told = []
    for device, found in _reported(rows):
        told.append(clipped(_headline(device, found, times_s, nonzero_mb), _LINE))
        told += kinds_within(found, _LINE)
    return [printable(one) for one in told]


def kinds_line(rows: Sequence[AtPeak], times_s: _Times) -> str:
    """Return the same of the first device on one line; empty if no device is reported.

    Args:
        rows: Of each device the largest first.
        times_s: By device, how long after the beginning its peak was.
    """
    for device, found in _reported(rows):
        return printable(f"{_headline(device, found, times_s, nonzero_mb)}: {kinds_of(found, nonzero_mb)}")
    return ""


def kinds_within(rows: Sequence[AtPeak], width: int) -> list[str]:
    """Return the kinds of one device as lines of text of so many columns, indented; seldom more than one."""
    told: list[str] = []
    for kind in kinds_of(rows, nonzero_mb).split(", "):
        if told and len(told[-1]) + len(kind) + 3 <= width:
            told[-1] += f" {kind},"
        else:
            told.append(f"  {kind},")
    return [*told[:-1], told[-1].rstrip(",")]


def kinds_of(rows: Sequence[AtPeak], shown: Callable[[int], str] = nonzero_text) -> str:
    """Return the kinds of one device and their sizes, the largest first; without those of less than 1 MB.

    Args:
        rows: Of that device.
        shown: Returns a size as text.
    """
    found = _kinds(rows)
    listed = [(kind, size_bytes) for kind, size_bytes in found if rounded_mb(size_bytes) or len(found) == 1]
    told = (f"{_KINDS.get(kind, kind)} {shown(size_bytes)}" for kind, size_bytes in listed)
    return ", ".join(told) or "of less than 1 MB each"


def _by_device(rows: Sequence[AtPeak]) -> Iterator[tuple[str, list[AtPeak]]]:
    """Yield each device with its rows, the largest first; general RAM comes last."""
    devices = dict.fromkeys(row.device for row in rows)
    for device in sorted(devices, key=lambda name: name == CPU):
        found = [row for row in rows if row.device == device]
        yield device, sorted(found, key=lambda row: (row.is_sum, -row.size_bytes))


def _reported(rows: Sequence[AtPeak]) -> Iterator[tuple[str, list[AtPeak]]]:
    """Yield the first devices that a report tells of, with their rows.

    It is silent on less than 1 MB of general RAM, and on a device where all was there before the cell.
    """
    told = (
        (device, found)
        for device, found in _by_device(rows)
        if (
            sum(row.size_bytes for row in found) >= MB
            if device == CPU
            else any(row.place != BEFORE for row in found)
        )
    )
    return islice(told, _DEVICES)


def _headline(device: str, rows: Sequence[AtPeak], times_s: _Times, shown: Callable[[int], str]) -> str:
    """Return when the peak was, and how much: "At the peak, 1.92 s in: 9842 MB on cuda:0"."""
    time_s = dict(times_s).get(device)
    size = shown(sum(row.size_bytes for row in rows))
    when = "At the peak" if time_s is None else f"At the peak, {time_text(time_s)} in"
    return f"{when}: {size} {'of general RAM asked for' if device == CPU else f'on {device}'}"


def _kinds(rows: Sequence[AtPeak]) -> list[tuple[str, int]]:
    """Return each kind with its size, the largest first."""
    sizes: dict[str, int] = {}
    for row in rows:
        sizes[row.kind] = sizes.get(row.kind, 0) + row.size_bytes
    return sorted(sizes.items(), key=lambda one: -one[1])


def _as_line(row: AtPeak) -> _Line:
    resident = "" if row.resident_bytes is None else f"resident {nonzero_mb(row.resident_bytes)}"
    blocks = _blocks(row.blocks)
    return _Line(_kind(row), printable(row.name), _place(row), nonzero_mb(row.size_bytes), resident, blocks)


def _rest(rows: Sequence[AtPeak]) -> list[_Line]:
    """Return one line for what is not listed; nothing if all is."""
    if not rows:
        return []
    size = nonzero_mb(sum(row.size_bytes for row in rows))
    return [_Line(_more(rows), "", "", size, "", _blocks(sum(row.blocks for row in rows)))]


def _blocks(count: int) -> str:
    return f"{count:,} blocks" if count > 1 else ""


def _more(rows: Sequence[AtPeak]) -> str:
    """Return what stands for rows that are not listed; how many they are, if each is of one place."""
    return "and others" if any(row.is_sum for row in rows) else f"and {len(rows):,} more"


def _kind(row: AtPeak) -> str:
    return _KINDS.get(row.kind, row.kind)


def _place(row: AtPeak) -> str:
    """Return the place; of a long one the end, which has the number of the line."""
    place = printable(row.place)
    return place if len(place) <= _PLACE else f"…{place[1 - _PLACE :]}"


def _resident_bytes(row: AtPeak) -> int:
    """Return how much resident memory rose; where the row does not say, by what was asked for."""
    return row.size_bytes if row.resident_bytes is None else row.resident_bytes
