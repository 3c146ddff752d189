"""The cells of a notebook, ranked; and two runs, compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..units import rounded_mb
from .text import outcome

if TYPE_CHECKING:
    from ..compare import Change, Comparison, Pair
    from ..records import CellRecord


def comparison(found: Comparison) -> str:
    """Two runs, cell by cell, without a newline at the end; the last line is the verdict."""
    lines = [f"{'MB':20}{'Before':>8}{'Now':>8}{'Change':>8}"]
    for pair in found.pairs:
        lines += _compared(pair)
    lines += [f"new: {named(record)}" for record in found.new]
    lines += [f"removed: {named(record)}" for record in found.removed]
    grew, count = len(found.regressed), len(found.pairs)
    lines.append(
        f"{grew or 'none'} of {count} {'cell' if count == 1 else 'cells'} grew by more than"
        f" {found.tolerance:.4g} of its peak and {rounded_mb(found.floor_bytes)} MB"
    )
    return "\n".join(lines)


def named(record: CellRecord) -> str:
    """A cell as people know it: its number and its first line."""
    return f"{record.label}: {record.source}"


def _compared(pair: Pair) -> list[str]:
    before, after = pair.before, pair.after
    ended = f", {outcome(after)}" if outcome(after) else ""
    was = f", {outcome(before)}" if outcome(before) else ""
    lines = [f"{named(after)}  ({after.time_s:.3f} s{ended}; was {before.time_s:.3f} s{was})"]
    return [*lines, *map(_changed, pair.changes)]


def _changed(change: Change) -> str:
    before, after = change.before_bytes, change.after_bytes
    figures = ["n/a" if size is None else str(rounded_mb(size)) for size in (before, after)]
    grown = "n/a" if before is None or after is None else f"{rounded_mb(after - before):+}"
    remarks = ["(at least)"] if change.at_least else []
    if change.regressed:
        remarks.append("GREW")
        if inherited_mb := rounded_mb(change.inherited_bytes or 0):
            remarks.append(f"({inherited_mb:+} MB of it before the cell began)")
    return f"  {change.name:18}{figures[0]:>8}{figures[1]:>8}{grown:>8}  {' '.join(remarks)}".rstrip()
