"""The report of an allocation that failed, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..records.units import printable_lines, rounded_mb

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..records import OutOfMemory


def report(card: OutOfMemory) -> str:
    """Return the report of an allocation that failed, without a newline at the end."""
    lines = [f"Out of memory on {card.device}: {_listed(rows(card)[:2])}"]
    lines.append(f"  {_listed(rows(card)[2:])}")
    if card.owners:
        lines.append(f"  held by: {_listed((owner.name, owner.size_bytes) for owner in card.owners)}")
    if still_held := hidden(card):
        lines.append(f"  {still_held}")
    return printable_lines([*(line for line in lines if line.strip()), f"  -> {card.advice}"])


def rows(card: OutOfMemory) -> list[tuple[str, int | None]]:
    """Return the figures of an allocation that failed: names and bytes, None when unknown."""
    return [
        ("asked", card.asked_bytes),
        ("free", card.free_bytes),
        ("live", card.live_bytes),
        ("cached", card.cached_bytes),
        ("fragmented", card.fragmented_bytes),
        ("other processes", card.neighbours_bytes),
    ]


def hidden(card: OutOfMemory) -> str:
    """Return what only the traceback and `Out` still hold; empty if nothing."""
    holders = ("the last traceback", card.traceback_bytes), ("Out", card.outputs_bytes)
    held = [(name, size_bytes) for name, size_bytes in holders if size_bytes]
    return f"hidden: {_listed(held)}" if held else ""


def _listed(sizes: Iterable[tuple[str, int | None]]) -> str:
    return ", ".join(
        f"{name} {'n/a' if size_bytes is None else f'{rounded_mb(size_bytes)} MB'}"
        for name, size_bytes in sizes
    )
