"""How the memory of a cell grows with the size of its data, as text and as HTML with a drawing."""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING

from ..records.fit import RAM
from ..records.line_through import sizes_of
from ..records.units import (
    MB,
    clipped,
    printable,
    printable_lines,
    readable_sizes,
    rounded_mb,
    shortened,
    without_controls,
)
from .fit_drawing import drawing
from .markup import Text, code, line, scrolling, small, table, typeset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..records.fit import CellFit, MemoryFit
    from .markup import Cell

_NUMBERS = re.compile(r"(\d+)")
_RUNS = 20  # of a table
_LABELS = 4  # runs that a title names
_NAME = 32  # characters of what varied
_NEAR = 1.01  # times the size that is sure to fit: up to there nothing else is named
_FAR = 10  # times the largest size that ran: what lies beyond is only roughly known


def report(found: CellFit) -> str:
    """Return how the memory of a cell grows as text: what each run needed, where the room ends, the line."""
    verdicts = [_verdict(memory, _name(found)) for memory in found.memories]
    return printable_lines([*_title(found), *_table(found), *verdicts, *_sentences(found)])


def html(found: CellFit) -> str:
    """Return the same as HTML, with a drawing of each memory; all foreign text is escaped."""
    name = _name(found)
    title = "".join(
        f"<div>{escape(printable(_labels(found)))}: {code(shortened(source))}</div>"
        for source in _source(found)
    )
    verdicts = "".join(
        f"<div><b>{escape(typeset(readable_sizes(_verdict(memory, name))))}</b></div>"
        for memory in found.memories
    )
    said = "".join(small(printable(readable_sizes(sentence))) for sentence in _sentences(found))
    drawn = "".join(drawing(memory, name) for memory in found.memories)
    return without_controls(line(f"{title}{verdicts}{said}{drawn}{_html_table(found)}"))


# -- words -------------------------------------------------------------------------------------------


def _title(found: CellFit) -> list[str]:
    return [f"{_labels(found)}: {shortened(source)}" for source in _source(found)]


def _source(found: CellFit) -> list[str]:
    """Return the runs' first line, with "..." for numbers that differ; none without runs."""
    lines = [_NUMBERS.split(run.source) for run in found.runs]
    if not lines:
        return []
    last = lines[-1]
    if any(line[::2] != last[::2] for line in lines):  # they differ in more than numbers
        return ["".join(last)]
    return ["".join(parts[0] if len(set(parts)) == 1 else "..." for parts in zip(*lines, strict=True))]


def _labels(found: CellFit) -> str:
    labels = [run.label for run in found.runs]
    more = len(labels) - _LABELS
    return ", ".join(labels[-_LABELS:]) + (f" and {more} earlier" if more > 0 else "")


def _name(found: CellFit) -> str:
    return clipped(printable(found.name), _NAME)


def _sentences(found: CellFit) -> Iterator[str]:
    name = _name(found)
    if found.missing:
        yield f"{found.missing[:1].upper()}{found.missing[1:]}."
    for memory in found.memories:
        yield f"{memory.device}: {_growth(memory, name)}."
        yield from _doubts(memory)
    if any(len(sizes_of(memory.points)) == 2 for memory in found.memories):
        yield "Two sizes always lie on a line: a run with a third one shows whether it holds."
    if found.with_it and found.memories:
        others = ", ".join(clipped(other, _NAME) for other in found.with_it)
        yield f"{others} varied as well: part of the growth may come from there."
    if found.in_step and found.memories:
        others = " and ".join(clipped(other, _NAME) for other in (found.name, *found.in_step))
        yield f"{others} varied together, so it cannot be told which one it grows with: vary one alone."
    for size, run in found.failed:
        yield f"{run.label} {run.outcome()} at {name} = {size:,}, so it has no point."


def _doubts(memory: MemoryFit) -> Iterator[str]:
    """Yield what makes the size at which the room ends less sure."""
    if memory.ends_at is not None and memory.ends_at > _FAR * sizes_of(memory.points)[-1]:
        yield f"The largest that ran is {sizes_of(memory.points)[-1]:,}: try one in between."
    if (first := memory.left_out) is not None:
        above_bytes = first.need_bytes - memory.line.at(first.size)
        where = f"{_mb(abs(above_bytes))} {'above' if above_bytes > 0 else 'below'} the line"
        yield f"The first run, {first.label}, is {where} and left out: first runs also set things up."
    elif not memory.is_straight and len(sizes_of(memory.points[1:])) == 2:
        yield "It may be only the first run that is unlike the others: a further run shows it."
    elif memory.is_straight and (first := memory.unproven) is not None:
        yield f"{first.label} is the first run, which may be unlike later ones: run its size once more."
    if memory.hidden:
        yield f"{', '.join(memory.hidden[-_LABELS:])} began with larger data in memory, which hides its need."
    if memory.device != RAM and memory.ends_at is not None:
        yield "Leave a few percent: what the allocator loses to fragmentation is not in this figure."
    if memory.at_least:
        yield "Some peaks are only lower bounds, so the room may end earlier."


def _growth(memory: MemoryFit, name: str) -> str:
    """Return the line in words, or that there is none."""
    if not memory.is_straight:
        how = {1: "; the need grows faster and faster", -1: "; the need grows slower and slower"}
        return f"not a line, as the runs lie up to {_mb(memory.off_bytes)} off{how.get(memory.bends, '')}"
    each, base_bytes = _small(memory.line.rise / memory.line.scale), memory.line.at(0)
    told = f"{each} for each of {name}"
    if base_bytes >= MB:
        told = f"{_mb(base_bytes)}, and {told}"
    elif base_bytes <= -MB:
        told = f"{told}, minus {_mb(-base_bytes)} in all"
    if len(sizes_of(memory.points)) < 3:
        return told
    return f"{told}; every run is within {_mb(max(memory.off_bytes, MB))} of that line"


def _verdict(memory: MemoryFit, name: str) -> str:
    """Return at which size the room ends."""
    if memory.room_bytes is None:
        return f"{memory.device}: how much is left now is unknown."
    left = f"{_mb(memory.room_bytes)} left for it"
    if memory.ends_at is None:
        return (
            f"{memory.device}: {_mb(memory.room_bytes)} are left for the cell, but the runs do not show up to"
            f" which {name} that is enough."
        )
    size = _size(memory.ends_at, memory)
    if not memory.is_straight:
        if memory.bends > 0:
            return f"{memory.device}: {name} must stay below {size}, with {left}."
        enough = f"enough up to at least {name} = {size}"
    elif memory.ends_at < 1:
        enough = f"not enough for {name} = 1"
    elif not memory.sure_to:
        enough = f"perhaps enough up to {name} = {size}"
    else:
        enough = f"enough up to {name} = {_size(memory.sure_to, memory)}"
        if memory.ends_at > _NEAR * memory.sure_to:
            enough += f", perhaps {size}"
    return f"{memory.device}: {enough}, with {left}."


def _size(size: int, memory: MemoryFit) -> str:
    """Return a size in words; one far beyond those that ran is rounded down to two digits."""
    if size <= _FAR * sizes_of(memory.points)[-1]:
        return f"{size:,}"
    digits = 10 ** (len(str(size)) - 2)
    return f"about {size // digits * digits:,}"


def _mb(size_bytes: float) -> str:
    return f"{rounded_mb(size_bytes)} MB"


def _small(size_bytes: float) -> str:
    """Return a size that may be far below a megabyte, with three digits."""
    for unit, unit_bytes in (("MB", MB), ("kB", 1024)):
        if size_bytes >= unit_bytes:
            size = size_bytes / unit_bytes
            return f"{size:.0f} {unit}" if size >= 100 else f"{size:.3g} {unit}"
    return f"{size_bytes:.3g} bytes"


# -- tables ------------------------------------------------------------------------------------------


def _rows(found: CellFit) -> list[tuple[int, str, list[int | None]]]:
    """Return the runs by their size: size, label, what it needed of each memory; the last of very many."""
    needs = [{point.label: point for point in memory.points} for memory in found.memories]
    labels = dict.fromkeys(point.label for memory in found.memories for point in memory.points)
    rows = []
    for label in list(labels)[-_RUNS:]:
        points = [by_run.get(label) for by_run in needs]
        size = next(point.size for point in points if point is not None)
        rows.append((size, label, [None if point is None else point.need_bytes for point in points]))
    return sorted(rows, key=lambda row: row[0])


def _table(found: CellFit) -> Iterator[str]:
    rows = _rows(found)
    if not rows:
        return
    name = _name(found)
    width = max(len(name), *(len(f"{size:,}") for size, _, _ in rows))
    heads = [f"{memory.device} MB" for memory in found.memories]
    yield f"  {name:>{width}}  {'  '.join(f'{head:>10}' for head in heads)}"
    for size, label, needs in rows:
        cells = ("" if need is None else str(rounded_mb(need)) for need in needs)
        yield f"  {size:>{width},}  {'  '.join(f'{cell:>10}' for cell in cells)}  {shortened(label)}"


def _html_table(found: CellFit) -> str:
    rows: list[list[Cell]] = [
        [
            f"{size:,}",
            *("" if need is None else f"{rounded_mb(need):,}" for need in needs),
            Text(escape(shortened(label))),
        ]
        for size, label, needs in _rows(found)
    ]
    if not rows:
        return ""
    return scrolling(table([_name(found), *(f"{one.device} MB" for one in found.memories), Text("")], rows))
