"""The lines of a cell or function: a table as text or HTML, and one sentence about the heaviest line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, product

from ..records import CPU, LineUsage, Usage, device_id
from ..records.units import MB, clipped, mb_range, printable_lines, rounded_mb, time_text, without_controls
from .markup import BLUE, GREY, Part, Strong, colours, footnote, scrolling
from .table import Bar, Column, Table

_WIDTH = 72  # characters of a source line
_UNKNOWN = "n/a"
_SIGNS = {"+": "+: at least so much.", "*": "*: of a part of its hits; n/a where those moved nothing."}


def table(lines: Sequence[LineUsage], notes: Sequence[str] = ()) -> str:
    """Return what each line used as text, those of each place together, with the notes below."""
    shown = _table(lines, html=False).text() if lines else []
    return printable_lines([*shown, *_below(lines, notes)])


def html(lines: Sequence[LineUsage], notes: Sequence[str] = ()) -> str:
    """Return the same as HTML: a bar for what each line needed; all foreign text is escaped."""
    below = "".join(map(footnote, _below(lines, notes)))
    shown = scrolling(_table(lines, html=True).html("Memory by line, MB")) if lines else ""
    fills = {"needed in RAM": GREY, "needed on a GPU": BLUE} if len(_devices(lines)) > 1 else {"needed": GREY}
    return without_controls(shown + (colours(fills) if lines else "") + below)


def _table(lines: Sequence[LineUsage], *, html: bool) -> Table:
    """Return the lines as a table, each place with its name above it and its common indentation removed."""
    devices = _devices(lines)
    names = _names(devices)
    figures = product(names, ("consumed", "needed"))
    first = Column("Line"), Column("Hits"), Column("Time")
    heads = (Column(what, over=f"{name} MB", html_head=f"{name} {what}") for name, what in figures)
    columns, at = [*first, *heads], 1 if html else 3 + 2 * len(devices)  # where no page cuts the source off
    columns.insert(at, Column("Source", "code"))
    table = Table([*columns, Column("", "drawn")])
    parts = [
        [
            Part(name, line.need_bytes(device), GREY if device == CPU else BLUE)
            for device, name in zip(devices, names, strict=True)
            if device in line.memories()
        ]
        for line in lines
    ]
    scale_bytes = max(sum(part.size_bytes for part in some) for some in parts)
    heaviest, _ = _heaviest(lines) or (None, None)
    for place, members in groupby(zip(lines, parts, strict=True), key=lambda one: one[0].place):
        here = list(members)
        if place:
            table.add(place)
        sources = [line.source.expandtabs(4).rstrip() for line, _ in here]
        margin = min((len(source) - len(source.lstrip()) for source in sources if source), default=0)
        for source, (line, some) in zip(sources, here, strict=True):
            cells: list[str | Strong | Bar] = [*_figures(line, devices)]
            cells.insert(at, clipped(source[margin:], _WIDTH))
            if line is heaviest:
                cells = [Strong(str(cell)) for cell in cells]
            bar = Bar(some, scale_bytes if scale_bytes >= MB else 0)
            table.add(*cells, bar, mark=">" if line is heaviest else " ")
    return table


def heaviest(lines: Sequence[LineUsage]) -> str:
    """Return one sentence about the line that needed the most memory; empty if none needed a megabyte."""
    found = _heaviest(lines)
    if found is None:
        return ""
    line, device = found
    usage = line.memories()[device]
    consumed, needed = rounded_mb(usage.consumed_bytes), rounded_mb(line.need_bytes(device))
    at_least = "at least " if usage.peak.hi_bytes is None else ""
    ran = f"{line.hits} hits, " if line.hits > 1 else ""
    ran += "" if line.complete else "a part of them measured, "
    figures = [f"{consumed:+} MB"] if consumed else []
    figures += [f"needed {at_least}{needed} MB"] if at_least or needed != consumed else []
    where = f" of {line.place}" if line.place else ""
    ((name),) = _names([device])
    return (
        f"heaviest line {line.lineno}{where}: {f'{clipped(line.source.strip(), _WIDTH)}  '.lstrip()}"
        f"{', '.join(figures)} {'of' if device == CPU else 'on'} {name} ({ran}{time_text(line.time_s)})"
    )


def _heaviest(lines: Sequence[LineUsage]) -> tuple[LineUsage, str] | None:
    """Return the line that needed the most on one device, and that device; GPUs go before RAM.

    A line includes what it calls. So of lines that are equal to a megabyte it is the fastest, the innermost.
    """
    needs = {
        device: [(line.need_bytes(device), line) for line in lines if device in line.memories()]
        for device in _devices(lines)
    }
    most_bytes = max((size for found in needs.values() for size, _ in found), default=0)
    for device in [*filter(CPU.__ne__, needs), CPU] if most_bytes >= MB else ():
        alike = [line for size_bytes, line in needs[device] if size_bytes > most_bytes - MB]
        if alike:
            return min(alike, key=lambda line: line.time_s), device
    return None


def _devices(lines: Sequence[LineUsage]) -> list[str]:
    """Return general RAM, and the devices where any line changed anything."""
    found = {(gpu.backend, gpu.index) for line in lines for gpu in line.gpus}
    return [CPU, *(device_id(*device) for device in sorted(found))]


def _names(devices: Sequence[str]) -> list[str]:
    indices = [device.rpartition(":")[2] for device in devices]
    return [
        "RAM" if device == CPU else f"GPU{index}" if indices.count(index) == 1 else device
        for device, index in zip(devices, indices, strict=True)
    ]


def _figures(line: LineUsage, devices: Sequence[str]) -> Iterator[str]:
    yield from (str(line.lineno), str(line.hits), time_text(line.time_s))
    for device in devices:
        figures = "0", "0"
        if usage := line.memories().get(device):
            figures = str(rounded_mb(usage.consumed_bytes)), _needed(usage, line.need_bytes(device))
        if line.complete:
            yield from figures
        else:
            yield from (_UNKNOWN if figure in ("0", "0+") else f"{figure.rstrip('+')}*" for figure in figures)


def _needed(usage: Usage, least_bytes: int) -> str:
    most_bytes = usage.needed_at_most_bytes
    if most_bytes is None or usage.peaked_at_most_bytes is None:
        return f"{rounded_mb(least_bytes)}+"
    if rounded_mb(usage.peaked_bytes) == rounded_mb(usage.peaked_at_most_bytes):
        return str(rounded_mb(least_bytes))
    return mb_range(least_bytes, min(most_bytes, least_bytes + usage.peaked_at_most_bytes))


def _below(lines: Sequence[LineUsage], notes: Sequence[str]) -> list[str]:
    """Return the sentences below the table: what its signs mean, and the notes."""
    if not lines:
        return ["No line ran that is measured.", *notes]
    devices = _devices(lines)
    signs = {figure[-1] for line in lines for figure in _figures(line, devices)}
    return [*(said for sign, said in _SIGNS.items() if sign in signs), *notes]
