"""The report of an allocation that failed, as text and as HTML: the next step comes first."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from ..records import CPU, OutOfMemory, Owner
from ..records.explained import requested
from ..records.units import MB, clipped, nonzero_mb, printable_lines, readable_sizes, rounded_mb, size_text
from .markup import Part, first_fitting, fitted, legend, size, small, typeset

_FIRST = "asked", "free"
_FAILED = {CPU: "An allocation of RAM failed", "gpu": "Out of memory"}  # where nothing says on which
_TRACEBACK = "last traceback: "
_ADVICE = 400  # bytes
_ALIVE = "alive then"  # when the allocation failed
_ROWS = 6  # of what was alive; the others are added up
_WIDTH = 100  # columns of these rows
_NAME = 32  # characters of a holder's name
_CARD = '<div style="border-left:3px solid #e45756;padding:0 9px;margin:2px 0 6px">'


def report(card: OutOfMemory) -> str:
    """Return the report of an allocation that failed, the next step first."""
    figures = rows(card)
    first = _listed(row for row in figures if row[0] in _FIRST)
    others = _listed(row for row in figures if row[0] not in _FIRST)
    failed = _FAILED.get(card.device, f"Out of memory on {card.device}")
    lines = [f"{failed}{first and ': '}{first}", f"  -> {card.advice}"]
    lines += [f"  {others}"] if others else []
    if card.owners:
        lines.append(f"  held by: {_listed((owner.name, _mb(owner.size_bytes)) for owner in card.owners)}")
    held = ("the last traceback", card.traceback_bytes), ("Out", card.outputs_bytes)
    if hidden := _listed((name, _mb(size_bytes)) for name, size_bytes in held if size_bytes):
        lines.append(f"  hidden: {hidden}")
    if card.alive:
        from . import at_peak  # few cells record their allocations, here and below

        lines.append(f"  {_ALIVE}: {at_peak.kinds_of(card.alive, nonzero_mb)}")
        lines += [f"  {line}" for line in at_peak.lines_of(card.alive, _WIDTH - 2, _ROWS)]
    return printable_lines(lines)


def html(card: OutOfMemory, space_bytes: int) -> str:
    """Return the report as HTML: what is missing, the next step, what was alive, the holders, the figures.

    What does not fit into the space is left out from the end.
    """
    head, after = f"{_CARD}<div><b>{_headline(card)}</div>", "</div>"
    space_bytes -= size(head + after)
    markup = f"<div><b>Do this:</b> {_as_markup(card.advice, min(_ADVICE, space_bytes - 60))}</div>"
    if card.alive:
        from . import at_peak

        said = f"{_ALIVE.capitalize()}: {at_peak.kinds_of(card.alive)}"
        markup += first_fitting([f"<div>{escape(typeset(said))}</div>"], space_bytes - size(markup))
    held = [Part(_holder(owner), owner.size_bytes) for owner in card.owners if owner.size_bytes >= MB]
    fewer = (legend(held[:count], "held by: ") for count in range(len(held), 0, -1))
    markup += first_fitting(fewer, space_bytes - size(markup))
    figures = " · ".join(f"{name} {figure}" for name, figure in rows(card) if figure != "0 MB")
    markup += first_fitting([small(figures)] if figures else [], space_bytes - size(markup))
    return f"{head}{markup}{after}"


def _headline(card: OutOfMemory) -> str:
    """Return what is missing: "GPU 0 is out of memory.</b> 8.0 GB asked, 4.9 GB free: 3.1 GB short."."""
    backend, _, index = card.device.partition(":")
    name = f"GPU {index}" if index.isdecimal() and backend in ("cuda", "hip", "gpu") else card.device
    asked, free = card.asked_bytes, card.free_bytes
    known = [(asked, "asked"), (free, "free")]
    words = ", ".join(f"{size_text(one)} {what}" for one, what in known if one is not None)
    if asked is not None and free is not None and asked - free >= MB:
        words += f": {size_text(asked - free)} short"
    failed = _FAILED.get(card.device, f"{escape(clipped(name, _NAME))} is out of memory")
    return f"{failed}.</b>{f' {words}.' if words else ''}"


def _as_markup(advice: str, space_bytes: int) -> str:
    """Return a step with its commands as code to copy, and its sizes as people read them."""
    readable = readable_sizes(advice)
    words = fitted(readable, space_bytes - len("<code></code>") * -(-readable.count("`") // 2))
    return "".join(f"<code>{piece}</code>" if i % 2 else piece for i, piece in enumerate(words.split("`")))


def _holder(owner: Owner) -> str:
    name = clipped(owner.name.removeprefix(_TRACEBACK), _NAME)
    return f"{name} (last traceback)" if owner.name.startswith(_TRACEBACK) else name


def rows(card: OutOfMemory) -> list[tuple[str, str]]:
    """Return the figures of an allocation that failed, without the unknown ones: what was asked for first."""
    names = "free", "live", "cached", "fragmented", "other processes"
    sizes = card.free_bytes, card.live_bytes, card.cached_bytes, card.fragmented_bytes, card.neighbours_bytes
    known = [(name, _mb(one)) for name, one in zip(names, sizes, strict=True) if one is not None]
    asked = [] if card.asked_bytes is None else [("asked", requested(card.asked_bytes))]
    return asked + known


def _mb(size_bytes: int) -> str:
    return f"{rounded_mb(size_bytes)} MB"


def _listed(figures: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {figure}" for name, figure in figures)
