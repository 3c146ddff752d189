"""The report of an allocation that failed, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..records.out_of_memory import requested
from ..records.units import printable_lines, rounded_mb

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..records import OutOfMemory, Owner

_FIRST = "asked", "free"


def report(card: OutOfMemory) -> str:
    """Return the report of an allocation that failed, the next step first, without a newline at the end."""
    known = rows(card)
    first = _listed(row for row in known if row[0] in _FIRST)
    others = _listed(row for row in known if row[0] not in _FIRST)
    lines = [f"Out of memory on {card.device}{first and ': '}{first}", f"  -> {card.advice}"]
    lines += [f"  {others}"] if others else []
    if card.owners:
        lines.append(f"  held by: {_listed(_holders(card.owners))}")
    if still_held := hidden(card):
        lines.append(f"  {still_held}")
    return printable_lines(lines)


def rows(card: OutOfMemory) -> list[tuple[str, str]]:
    """Return the figures of an allocation that failed, without the unknown ones: what was asked for first."""
    sizes = {
        "free": card.free_bytes,
        "live": card.live_bytes,
        "cached": card.cached_bytes,
        "fragmented": card.fragmented_bytes,
        "other processes": card.neighbours_bytes,
    }
    known = [
        (name, f"{rounded_mb(size_bytes)} MB") for name, size_bytes in sizes.items() if size_bytes is not None
    ]
    return known if card.asked_bytes is None else [("asked", requested(card.asked_bytes)), *known]


def hidden(card: OutOfMemory) -> str:
    """Return what only the traceback and `Out` still hold; empty if nothing."""
    held = ("the last traceback", card.traceback_bytes), ("Out", card.outputs_bytes)
    told = _listed((name, f"{rounded_mb(size_bytes)} MB") for name, size_bytes in held if size_bytes)
    return f"hidden: {told}" if told else ""


def _holders(owners: Iterable[Owner]) -> Iterator[tuple[str, str]]:
    for owner in owners:
        yield owner.name, f"{rounded_mb(owner.size_bytes)} MB"


def _listed(figures: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {figure}" for name, figure in figures)
