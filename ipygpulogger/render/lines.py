"""The lines of a cell or function: a table as text or HTML, and one sentence about the heaviest line."""

from __future__ import annotations

from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from ..records import CPU, device_id
from ..records.units import MB, clipped, mb_range, printable_lines, rounded_mb, without_controls
from .markup import BLUE, GREY, Drawn, Part, Strong, Text, cell_bar, code, scrolling, small
from .markup import table as markup_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..records import LineUsage, Usage
    from .markup import Cell

_WIDTH = 72  # characters of a source line
_UNKNOWN = "n/a"
_AT_LEAST = "+: at least so much."
_PARTLY = "*: of a part of its hits; n/a where those moved nothing."

_Device = tuple[str, int]  # backend and index; for general RAM:
_RAM: _Device = "", -1


class _Row(NamedTuple):
    """A line as the table shows it; each column but the source is a figure."""

    line: LineUsage
    heaviest: bool
    figures: tuple[str, ...]
    source: str


def table(lines: Sequence[LineUsage], notes: Sequence[str] = ()) -> str:
    """Return what each line used as text, without a newline at the end; the heaviest line is marked.

    Args:
        lines: The lines that ran, those of each place together.
        notes: Sentences to write below.
    """
    if not lines:
        return printable_lines(["No line ran that is measured.", *notes])
    devices = _devices(lines)
    groups = list(_groups(lines, devices))
    columns = "Line", "Hits", "Time s", *(["consumed", "peaked"] * len(devices))
    shown = [row.figures for _, rows in groups for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *shown, strict=True)]
    pairs = ((name, widths[3 + 2 * i] + 2 + widths[4 + 2 * i]) for i, name in enumerate(_names(devices)))
    over = " " * (2 + sum(widths[:3]) + 4) + "".join(f"  {f'{name} MB':^{room}}" for name, room in pairs)
    told = [over.rstrip(), f"  {_aligned(columns, widths)}  Source"]
    for place, rows in groups:
        if place:
            told.append(f"{place}:")
        told += [
            f"{'>' if row.heaviest else ' '} {_aligned(row.figures, widths)}  {row.source}".rstrip()
            for row in rows
        ]
    return printable_lines([*told, *_below(shown, notes)])


def html(lines: Sequence[LineUsage], notes: Sequence[str] = ()) -> str:
    """Return the same as HTML: a bar for what each line needed; all foreign text is escaped."""
    if not lines:
        said = ["No line ran that is measured.", *notes]
        return without_controls("".join(map(small, said)))
    devices = _devices(lines)
    groups = list(_groups(lines, devices))
    names = _names(devices)
    figures = [f"{name} {figure}" for name in names for figure in ("consumed", "peaked")]
    needs = {
        id(line): [
            Part(name, _need_bytes(line, usage, device), GREY if device == _RAM else BLUE)
            for device, name in zip(devices, names, strict=True)
            if (usage := _usage(line, device)) is not None
        ]
        for line in lines
    }
    scale_bytes = max(sum(part.size_bytes for part in parts) for parts in needs.values())
    body: list[list[Cell]] = []
    for place, rows in groups:
        if place:
            body.append([Text(f"<b style=white-space:nowrap>{escape(place)}</b>")])
        for row in rows:
            source = code(row.source)
            number, *told = row.figures
            shown: list[Cell] = [Strong(figure) if row.heaviest else figure for figure in told]
            bar = cell_bar(needs[id(row.line)], scale_bytes if scale_bytes >= MB else 0)
            shown.append(Drawn(f"<b>{source}</b>" if row.heaviest else source))
            body.append([Strong(number) if row.heaviest else number, bar, *shown])
    shown_figures = [row.figures for _, rows in groups for row in rows]
    below = "".join(map(small, _below(shown_figures, notes)))
    head: list[str | Text] = ["Line", "", "Hits", "Time s", *figures, Text("Source")]
    return without_controls(scrolling(markup_table(head, body, caption="Memory by line, MB")) + below)


def heaviest(lines: Sequence[LineUsage]) -> str:
    """Return one sentence about the line that needed the most memory; empty if none needed a megabyte."""
    found = _heaviest(lines)
    if found is None:
        return ""
    line, device = found
    usage = _usage(line, device)
    assert usage is not None
    consumed, peaked = rounded_mb(usage.consumed_bytes), rounded_mb(usage.peaked_bytes)
    at_least = "at least " if usage.peak.hi_bytes is None else ""
    ran = f"{line.hits} hits, " if line.hits > 1 else ""
    ran += "" if line.complete else "a part of them measured, "
    figures = [f"{consumed:+} MB"] if consumed else []
    figures += [f"peaked {at_least}{peaked} MB"] if peaked else []
    where = f" of {line.place}" if line.place else ""
    ((name),) = _names([device])
    return (
        f"heaviest line {line.lineno}{where}: {clipped(line.source.strip(), _WIDTH)}"
        f"  {', '.join(figures)} {'of' if device == _RAM else 'on'} {name} ({ran}{line.time_s:.2f} s)"
    )


def _heaviest(lines: Sequence[LineUsage]) -> tuple[LineUsage, _Device] | None:
    """Return the line that needed the most on one device, and that device; GPUs go before RAM.

    A line that calls another includes its memory. So of lines that are equal to a megabyte, the one that took
    the least time is chosen: it is the innermost.
    """
    needs: dict[_Device, list[tuple[int, LineUsage]]] = {}
    for device in _devices(lines):
        used = ((line, _usage(line, device)) for line in lines)
        needs[device] = [(_need_bytes(line, usage, device), line) for line, usage in used if usage]
    most_bytes = max((size for found in needs.values() for size, _ in found), default=0)
    if most_bytes < MB:
        return None
    for device in [*filter(_RAM.__ne__, needs), _RAM]:
        alike = [line for size_bytes, line in needs[device] if size_bytes > most_bytes - MB]
        if alike:
            return min(alike, key=lambda line: line.time_s), device
    return None


def _need_bytes(line: LineUsage, usage: Usage, device: _Device) -> int:
    """Return the most that a line can have held at once: what is freed between its runs counts once."""
    name = CPU if device == _RAM else device_id(*device)
    return min(usage.needed_bytes, dict(line.risen).get(name, usage.needed_bytes))


def _usage(line: LineUsage, device: _Device) -> Usage | None:
    """Return what a line used of a device; None if it changed nothing there."""
    if device == _RAM:
        return line.gen
    return next((gpu for gpu in line.gpus if (gpu.backend, gpu.index) == device), None)


def _devices(lines: Sequence[LineUsage]) -> list[_Device]:
    """Return general RAM, and the devices where any line changed anything."""
    return [_RAM, *sorted({(gpu.backend, gpu.index) for line in lines for gpu in line.gpus})]


def _names(devices: Sequence[_Device]) -> list[str]:
    indices = [index for _, index in devices]
    return [
        "RAM" if backend == "" else f"GPU{index}" if indices.count(index) == 1 else device_id(backend, index)
        for backend, index in devices
    ]


def _groups(lines: Sequence[LineUsage], devices: Sequence[_Device]) -> Iterator[tuple[str, list[_Row]]]:
    """Yield each place with its rows, their common indentation removed."""
    found = _heaviest(lines)
    for place, members in groupby(lines, key=lambda line: line.place):
        here = list(members)
        margin = min((_indent(line.source) for line in here if line.source.strip()), default=0)
        yield (
            place,
            [
                _Row(
                    line,
                    found is not None and line is found[0],
                    tuple(_figures(line, devices)),
                    clipped(line.source.expandtabs(4)[margin:].rstrip(), _WIDTH),
                )
                for line in here
            ],
        )


def _figures(line: LineUsage, devices: Sequence[_Device]) -> Iterator[str]:
    yield from (str(line.lineno), str(line.hits), f"{line.time_s:.3f}")
    for device in devices:
        usage = _usage(line, device)
        figures = (str(rounded_mb(usage.consumed_bytes)), _peaked(usage)) if usage else ("0", "0")
        if line.complete:
            yield from figures
        else:
            yield from (_UNKNOWN if figure in ("0", "0+") else f"{figure.rstrip('+')}*" for figure in figures)


def _peaked(usage: Usage) -> str:
    if usage.peaked_at_most_bytes is None:
        return f"{rounded_mb(usage.peaked_bytes)}+"
    return mb_range(usage.peaked_bytes, usage.peaked_at_most_bytes)


def _below(shown: Sequence[Sequence[str]], notes: Sequence[str]) -> list[str]:
    signs = {figure[-1] for figures in shown for figure in figures}
    legends = {"+": _AT_LEAST, "*": _PARTLY}
    return [*(said for sign, said in legends.items() if sign in signs), *notes]


def _aligned(figures: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{figure:>{width}}" for figure, width in zip(figures, widths, strict=True))


def _indent(source: str) -> int:
    source = source.expandtabs(4)
    return len(source) - len(source.lstrip())
