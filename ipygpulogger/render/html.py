"""The report of a scope as HTML: a plain table without styles and scripts; all foreign text is escaped.

It takes at most two kilobytes. In order of importance: the figures, the report of a failed allocation, notes
and remarks, and, folded, how each device's memory is divided. What does not fit is in the plain text.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from ..records import CellRecord
from ..records.units import clipped, rounded_mb, without_controls
from . import out_of_memory
from .devices import device_name, ladder
from .text import outcome, rows, sentences

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ..records import DeviceUsage, Measurement, OutOfMemory, Peak, Usage

    Row = tuple[str, tuple[str, str, str], str]

_REPORT = 2048  # bytes, at most
_CARD = 1024  # bytes of it for a failed allocation, at most
_TITLE = 200  # bytes
_NAME = 48  # characters of an owner's name

_MORE = "<tr><th>... (%gpulog status)"  # where there are more devices than room


def report(measurement: Measurement) -> str:
    """Return the report of one scope: a line if nothing happened, a table otherwise."""
    ended, found = outcome(measurement), list(rows(measurement, timelines=True))
    card = measurement.out_of_memory if isinstance(measurement, CellRecord) else None
    title = f"{measurement.label}: {measurement.time_s:0.3f} s" + (f", {ended}" if ended else "")
    below = sentences(measurement)
    if not (ended or card or below) and all(map(_quiet, found)):
        told = _line(title, found)
    else:
        told = _told(title, found, below, card)
    return without_controls(told + _details(measurement, _REPORT - _size(told)))


def so_far(measurement: Measurement) -> str:
    """Return the report of a scope that still runs: the same table, without the folded part."""
    title = f"{measurement.label}: {measurement.time_s:.0f} s so far"
    return without_controls(_told(title, list(rows(measurement)), measurement.notes, None))


def _quiet(row: Row) -> bool:
    _, (consumed, peaked, _), remarks = row
    return consumed == peaked == "0" and not remarks


def _line(title: str, found: list[Row]) -> str:
    used = ", ".join(f"{name} {used} MB" for name, (_, _, used), _ in found)
    return f"<p>{_fitted(title, _TITLE)}, nothing consumed; used: {_fitted(used, _CARD)}</p>"


def _told(title: str, found: list[Row], notes: Iterable[str], card: OutOfMemory | None) -> str:
    """Return the table and what follows it, the most important first, as much as fits into the limit."""
    bare = _table(title, found, remarks=False)
    after = _out_of_memory(card, min(_CARD, _REPORT - _size(bare))) if card else ""
    for note in notes:
        room = _REPORT - _size(bare + after) - len("<p></p>")
        after += f"<p>{fitted}</p>" if (fitted := _fitted(note, room)) else ""
    whole = _table(title, found, remarks=True)
    return (whole if _size(whole + after) <= _REPORT else bare) + after


def _table(title: str, found: list[Row], *, remarks: bool) -> str:
    remarks = remarks and any(said for _, _, said in found)
    names = "MB", "Consumed", "Peaked", "Used", *(["Remarks"] if remarks else [])
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    before = f"<table><caption>{_fitted(title, _TITLE)}</caption><thead><tr>{head}</tr></thead><tbody>"
    after = "</tbody></table>"
    for name, figures, said in found:
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in (*figures, *([said] if remarks else [])))
        row = f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>'
        if not remarks and _size(before + row + _MORE + after) > _REPORT:
            return before + _MORE + after
        before += row
    return before + after


def _details(measurement: Measurement, room: int) -> str:
    """Return the folded part, as much as fits; empty if there is nothing to add."""
    before, after = "<details><summary>Details</summary>", "</details>"
    room -= _size(before + after)
    told = _ladders(measurement.gpus, room)
    for sentence in _sentences(measurement, always=bool(told)):
        paragraph = f"<p>{escape(sentence)}</p>"
        if _size(told + paragraph) <= room:
            told += paragraph
    return before + told + after if told else ""


def _ladders(gpus: Sequence[DeviceUsage], room: int) -> str:
    """Return how each device's memory is divided, a row per device, as many as fit.

    The end tags that HTML makes optional are left out: they would take the room of three devices.
    """
    found = {device_name(gpu, gpus): dict(ladder(gpu)) for gpu in gpus if gpu.ladder}
    columns = dict.fromkeys(name for rungs in found.values() for name in rungs)
    before = f"<table><tr><th>MB{''.join(f'<th>{escape(column)}' for column in columns)}"
    body, after = "", "</table>"
    for name, rungs in found.items():
        figures = "".join(f"<td>{rounded_mb(rungs[c]) if c in rungs else ''}" for c in columns)
        row = f"<tr><th>{name}{figures}"
        if _size(before + body + row + _MORE + after) > room:
            after = _MORE + after
            break
        body += row
    return before + body + after if body else ""


def _sentences(measurement: Measurement, *, always: bool) -> Iterator[str]:
    """Yield the sentences of the folded part: child processes, and how exact each peak is.

    Args:
        measurement: What was measured.
        always: Whether to write about peaks even if all are exact.
    """
    usages: list[tuple[str, Usage]] = [("Gen", measurement.gen)]
    usages += [(device_name(gpu, measurement.gpus), gpu) for gpu in measurement.gpus if gpu.attributed]
    children = measurement.children
    if children:
        usages.append(("children", children))
        before, now = rounded_mb(children.before_bytes), rounded_mb(children.after_bytes)
        least = "at least " if children.at_least else ""
        yield f"Children: {children.count}, before {least}{before} MB, now {least}{now} MB"
    if always or children or any(usage.peak.quality != "exact" for _, usage in usages):
        yield f"Peaks in MB: {', '.join(f'{name} {_peak(usage.peak)}' for name, usage in usages)}"


def _peak(peak: Peak) -> str:
    lo, grain = rounded_mb(peak.lo_bytes), rounded_mb(peak.precision_bytes)
    if peak.quality == "exact":
        return f"{lo} exactly" if not grain else f"{lo}, exact to {grain}"
    return f"at least {lo}" if peak.hi_bytes is None else f"{lo} to {rounded_mb(peak.hi_bytes)}"


def _out_of_memory(card: OutOfMemory, room: int) -> str:
    """Return the report of an allocation that failed, with as many owners as fit."""
    figures = "".join(
        f"<tr><th>{name}</th><td>{figure}</td></tr>" for name, figure in out_of_memory.rows(card)
    )
    advice = f"<p>{_fitted(card.advice, min(_CARD // 2, room - len('<p></p>')))}</p>"
    after = f"</tbody></table><p>{escape(out_of_memory.hidden(card))}</p>{advice}"
    before = f"<table><caption>Out of memory on {escape(card.device)}</caption><tbody>{figures}"
    if _size(before + after) > room:
        return advice
    for owner in card.owners:
        name = escape(clipped(owner.name, _NAME))
        row = f"<tr><th>{name}</th><td>{rounded_mb(owner.size_bytes)} MB</td></tr>"
        if _size(before + row + after) <= room:
            before += row
    return before + after


def _fitted(words: str, room: int) -> str:
    """Return text escaped, and shortened to so many bytes."""
    told = escape(words)
    if _size(told) <= room:
        return told
    words = words[: max(0, room)]
    while words and _size(told := escape(words) + "…") > room:
        words = words[:-1]
    return told if words else ""


def _size(markup: str) -> int:
    return len(markup.encode("utf-8", "surrogatepass"))
