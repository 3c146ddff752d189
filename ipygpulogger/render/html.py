"""The report as HTML: a plain table that needs no style and no script; every foreign string escaped."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from ..records import CellRecord
from ..units import rounded_mb
from .text import device_name, ladder, out_of_memory_hidden, out_of_memory_rows, outcome, rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..records import DeviceUsage, Measurement

_REPORT = 2048  # bytes, at most
_CARD = 1024  # of it
_NAME = 48  # characters of an owner's name

_MORE = "<tr><th>... (%gpulog status)"  # where there are more devices than room
_HEAD = "".join(f'<th scope="col">{name}</th>' for name in ("MB", "Consumed", "Peaked", "Used"))


def report(measurement: Measurement) -> str:
    """The report of one scope as an HTML table; with many devices as much of it as has room."""
    after = "".join(f"<p>{escape(note)}</p>" for note in measurement.notes) + _out_of_memory(measurement)
    told = _table(measurement, remarks=True) + after
    if len(told.encode()) > _REPORT:  # the plain text has all of them
        told = _table(measurement, remarks=False) + after
    return told + _details(measurement.gpus, _REPORT - len(told.encode()))


def _table(measurement: Measurement, *, remarks: bool) -> str:
    ended = outcome(measurement)
    caption = f"{measurement.label}: {measurement.time_s:0.3f} s" + (f", {ended}" if ended else "")
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(f"<td>{escape(figure)}</td>" for figure in figures)
        + (f"<td>{escape(said)}</td>" if said and remarks else "")
        + "</tr>"
        for name, figures, said in rows(measurement)
    )
    return (
        f"<table><caption>{escape(caption)}</caption>"
        f"<thead><tr>{_HEAD}</tr></thead><tbody>{body}</tbody></table>"
    )


def _details(gpus: Sequence[DeviceUsage], room: int) -> str:
    """Where each device's memory is, folded: a row a device, as many as have room.

    Without the end tags that HTML lets out: they would take the room of three devices.
    """
    found = {device_name(gpu, gpus): dict(ladder(gpu)) for gpu in gpus if gpu.ladder}
    columns = dict.fromkeys(name for rungs in found.values() for name in rungs)
    head = "".join(f"<th>{escape(column)}" for column in columns)
    before = f"<details><summary>GPU memory</summary><table><tr><th>MB{head}"
    body, after = "", "</table></details>"
    for name, rungs in found.items():
        figures = "".join(f"<td>{rounded_mb(rungs[c]) if c in rungs else ''}" for c in columns)
        row = f"<tr><th>{name}{figures}"
        if len((before + body + row + _MORE + after).encode()) > room:
            after = _MORE + after
            break
        body += row
    return before + body + after if body else ""


def _out_of_memory(measurement: Measurement) -> str:
    """The card of a cell that died for want of memory, with as many owners as have room."""
    card = measurement.out_of_memory if isinstance(measurement, CellRecord) else None
    if card is None:
        return ""
    figures = "".join(
        f"<tr><th>{name}</th><td>{'n/a' if size_bytes is None else rounded_mb(size_bytes)}</td></tr>"
        for name, size_bytes in out_of_memory_rows(card)
    )
    after = f"</tbody></table><p>{escape(out_of_memory_hidden(card))}</p><p>{escape(card.advice)}</p>"
    before = f"<table><caption>Out of memory on {escape(card.device)}, MB</caption><tbody>{figures}"
    for owner in card.owners:
        name = escape(owner.name if len(owner.name) <= _NAME else owner.name[: _NAME - 1] + "…")
        row = f"<tr><th>{name}</th><td>{rounded_mb(owner.size_bytes)}</td></tr>"
        if len((before + row + after).encode()) <= _CARD:
            before += row
    return before + after
