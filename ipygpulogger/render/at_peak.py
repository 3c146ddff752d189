"""What was alive when memory was highest, as text and as HTML: by kind, and by kind, name and place."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from html import escape
from itertools import accumulate, islice, takewhile
from typing import TYPE_CHECKING

from ..records import CPU
from ..records.explained import BEFORE
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
from .markup import PREFORMATTED, Part, Text, bar, colours, legend, line, scrolling, typeset
from .table import Bar, Column, Table, squeezed
from .timeline import FILLS as _FILLS
from .timeline import HELD, drawings

if TYPE_CHECKING:
    from ..records import AtPeak
    from ..records.explained import CallStack, KindTimeline

    _Times = Sequence[tuple[str, float]]  # by device
    _Over = Sequence[KindTimeline]

_WIDTH = 100  # columns of the whole table
_LINE = 80  # columns of a line of kinds
_DEVICES = 3  # in a report
_ROWS = 20  # of one device; the others are added up
_NAME = 40  # characters, at most
_PLACE = 30  # characters, at most
HEIGHT = 190  # pixels of the areas over time
_SPACE = "\N{NO-BREAK SPACE}"
# What a row unfolds into: boxes, each a list of calls, and below it the boxes of what the last one called.
_CALLS = 4700  # bytes in one table
_CHARACTERS = 62  # what has room in the whole width
_ICICLE = "width:400px;max-width:60vw;font-size:11px;line-height:17px;text-indent:3px;white-space:nowrap;"
_BOX = "margin:0;padding:0;overflow:hidden;border-left:2px solid"  # without room for the marks of a list


def text(rows: Sequence[AtPeak], times_s: _Times, timelines: _Over = ()) -> str:
    """Return the whole table as text, with the memory over time, without a newline at the end."""
    lines = []
    for device, found in _by_device(rows):
        lines += [_headline(device, found, times_s, nonzero_mb), *lines_of(found, _WIDTH)]
        lines += [line for one in drawings(timelines, device) for line in one.text()]
    return printable_lines(lines)


def lines_of(rows: Sequence[AtPeak], width: int, most: int = _ROWS) -> list[str]:
    """Return the rows of one device as lines of text: kind, name, place, size, blocks."""
    return _table(rows, most, html=False).text(width)[1:]  # without heads


def html(rows: Sequence[AtPeak], times_s: _Times, timelines: _Over = (), height: int = HEIGHT) -> str:
    """Return the same as HTML: of each device a bar of the kinds, and the table; foreign text is escaped."""
    markup = ""
    for device, found in _by_device(rows):
        head = escape(typeset(_headline(device, found, times_s, nonzero_text)))
        parts = [Part(kind, size_bytes, _FILLS[kind]) for kind, size_bytes in _kinds(found)]
        drawn = bar(parts, sum(part.size_bytes for part in parts)) + legend(parts)
        markup += line(f'<div style="margin:6px 0 3px"><b>{head}</b></div>{drawn}')
        named = {part.name for part in parts if part.size_bytes >= MB}
        markup += drawn_over(timelines, device, height, named)
        markup += scrolling(_table(found, _ROWS, html=True).html(" "))
    return without_controls(markup)


def drawn_over(
    timelines: Sequence[KindTimeline], device: str, height: int = HEIGHT, named: Collection[str] = ()
) -> str:
    """Return the memory of a device over time, with the colours that are not explained yet."""
    found = drawings(timelines, device)
    fills = {name: _FILLS[name] for one in found for name in one.names if name not in named}
    return without_controls("".join(one.svg(_FILLS, height) for one in found) + colours(fills))


def fold(rows: Sequence[AtPeak], times_s: _Times, most: int = 0) -> str:
    """Return what unfolds below a report: the kinds of each device as a line, its largest rows below it."""
    markup = ""
    for device, found in _reported(rows):
        head = escape(typeset(f"{_headline(device, found, times_s, nonzero_text)}: {kinds_of(found)}"))
        if most:
            lines = escape("\n".join(lines_of(found, _WIDTH, most)))
            below = f"<pre {PREFORMATTED}>{lines}</pre>"  # which scrolls on a narrow page
            markup += f"<details><summary style=cursor:pointer>{head}</summary>{below}</details>"
        else:
            markup += f"<div>{head}</div>"
    return markup


def _table(rows: Sequence[AtPeak], most: int, *, html: bool) -> Table:
    """Return the first rows of one device as a table, and the others as their sum."""
    kind_of, *words = (Column("", "words", html_head=head) for head in ("Kind", "Name", "Place"))
    size, blocks_of = (Column("", html_head=head) for head in ("MB", "Blocks"))
    # On a narrow page the size stays in sight.
    columns = [size, *words, blocks_of, Column("", "drawn")] if html else [*words, size, blocks_of]
    table = Table([kind_of, *columns])
    scale_bytes = max((row.size_bytes for row in rows), default=0)

    def add(kind: str, name: str | Text, place: str, some: Sequence[AtPeak]) -> None:
        size_bytes, blocks = sum(row.size_bytes for row in some), sum(row.blocks for row in some)
        drawn = Bar([Part("", size_bytes, _FILLS.get(kind, ""))], scale_bytes)
        if html:
            table.add(kind, nonzero_figure(size_bytes), name, place, f"{blocks:,}", drawn)
        else:
            table.add(kind, name, place, nonzero_mb(size_bytes), f"{blocks:,} blocks" if blocks > 1 else "")

    calls = [_calls(row) if html else "" for row in rows[:most]]
    for row, markup, taken in zip(rows, calls, accumulate(map(len, calls)), strict=False):
        name = "\N{EM SPACE}" * any(calls) + clipped(printable(row.name), _NAME)  # as wide as a triangle
        name_cell = Text(markup) if markup and taken <= _CALLS else name
        add(_kind(row), name_cell, squeezed(row.place, _PLACE), [row])
    if rest := rows[most:]:
        # How many there are is known if each is of one place.
        add("and others" if any(row.is_sum for row in rest) else f"and {len(rest):,} more", "", "", rest)
    return table


def _calls(row: AtPeak) -> str:
    """Return a row's name, which unfolds into the calls that led there; empty if its place says as much."""
    if sum(len(one.frames) for one in row.stacks) <= len(row.place.split(" → ")):
        return ""
    boxes = _boxes(row.stacks, 0, row.size_bytes, _CHARACTERS, _FILLS[_kind(row)][:7])
    name = escape(clipped(printable(row.name), _NAME))
    return f"<details><summary style=cursor:pointer>{name}</summary>{boxes}</details>"


def _boxes(stacks: Iterable[CallStack], depth: int, over_bytes: int, most: float, fill: str) -> str:
    """Return what was called at a depth as boxes side by side; each is as wide as its share of the caller."""
    groups: dict[tuple[str, ...], list[CallStack]] = {}
    for one in stacks:
        groups.setdefault(one.frames[depth : depth + 1], []).append(one)
    markup, style, is_split = "", "" if depth else _ICICLE, len(groups) > 1
    for some in groups.values():
        size_bytes = sum(one.size_bytes for one in some)
        share = size_bytes / max(over_bytes, 1)
        levels = zip(*(one.frames[depth:] for one in some), strict=False)
        lines = [level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels)] or ["others"]
        inner = [one for one in some if len(one.frames) > depth + len(lines)]
        below = _boxes(inner, depth + len(lines), size_bytes, share * most, fill)
        if not inner and (count := max(one.library_frames for one in some)):
            lines.append(f"+ {count} library frame{'s' * (count > 1)}")
        lines[0] = f"{nonzero_text(size_bytes)} {lines[0]}" if share < 1 else lines[0]
        width = f"width:{share * 100:.3g}%;" if is_split or share < 1 else style
        markup += f'<ul style="{width}{_BOX} {fill};background:{fill}30">'
        for text in map(printable, lines):
            title = f' title="{escape(text)}"' if max(len(text), _CHARACTERS) > share * most else ""
            markup += f"<li{title}>{escape(clipped(text, max(int(share * most), 1)))}"
        markup += f"{below}</ul>"
    return f'<div style="{style}display:flex;align-items:start">{markup}</div>' if is_split else markup


def kinds_lines(rows: Sequence[AtPeak], times_s: _Times, *, compact: bool = False) -> list[str]:
    """Return a line for each of the first devices, and below it the kinds; compact, one of the first."""
    lines: list[str] = []
    for device, found in islice(_reported(rows), 1 if compact else _DEVICES):
        head, kinds = _headline(device, found, times_s, nonzero_mb), kinds_of(found, nonzero_mb)
        if compact:
            return [printable(f"{head}: {kinds}")]
        lines.append(clipped(head, _LINE))
        # Lines break between the kinds; `printable` makes plain spaces of the others.
        kinds = kinds.replace(" ", _SPACE).replace(f",{_SPACE}", ", ")
        lines += textwrap.wrap(kinds, _LINE, initial_indent="  ", subsequent_indent="  ")
    return [printable(one) for one in lines]


def kinds_of(rows: Sequence[AtPeak], shown: Callable[[int], str] = nonzero_text) -> str:
    """Return the kinds of one device and their sizes, the largest first; without those of less than 1 MB."""
    found = _kinds(rows)
    listed = [(kind, size_bytes) for kind, size_bytes in found if rounded_mb(size_bytes) or len(found) == 1]
    return ", ".join(f"{kind} {shown(size_bytes)}" for kind, size_bytes in listed) or "of less than 1 MB each"


def _by_device(rows: Sequence[AtPeak]) -> Iterator[tuple[str, list[AtPeak]]]:
    """Yield each device with its rows, the largest first; general RAM comes last."""
    devices = dict.fromkeys(row.device for row in rows)
    for device in sorted(devices, key=lambda name: name == CPU):
        found = [row for row in rows if row.device == device]
        yield device, sorted(found, key=lambda row: (row.is_sum, -row.size_bytes))


def _reported(rows: Sequence[AtPeak]) -> Iterator[tuple[str, list[AtPeak]]]:
    """Yield the first devices with rows; not RAM below 1 MB, nor where all was there before the cell."""

    def is_reported(device: str, some: Sequence[AtPeak]) -> bool:
        if device == CPU:
            return sum(row.size_bytes for row in some) >= MB
        return any(row.place != BEFORE for row in some)

    return islice((one for one in _by_device(rows) if is_reported(*one)), _DEVICES)


def _headline(device: str, rows: Sequence[AtPeak], times_s: _Times, shown: Callable[[int], str]) -> str:
    """Return when the peak was, and how much: "At the peak, 1.92 s in: 9842 MB on cuda:0"."""
    time_s = dict(times_s).get(device)
    size = shown(sum(row.size_bytes for row in rows))
    when = "At the peak" if time_s is None else f"At the peak, {time_text(time_s)} in"
    return f"{when}: {size} {'of RAM allocated' if device == CPU else f'on {device}'}"


def _kinds(rows: Sequence[AtPeak]) -> list[tuple[str, int]]:
    """Return each kind with its size, the largest first."""
    sizes = Counter[str]()
    for row in rows:
        sizes[_kind(row)] += row.size_bytes
    return sizes.most_common()


def _kind(row: AtPeak) -> str:
    return HELD if row.kind == "before" else row.kind
