"""Two runs of a notebook, compared, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..analysis.compare import Counts
from ..records.units import mb_text, printable_lines, rounded_mb, shortened
from .summary import named

if TYPE_CHECKING:
    from ..analysis.compare import Change, Comparison, Pair


def comparison(found: Comparison) -> str:
    """Return two runs compared cell by cell, without a newline at the end; the last line is the verdict."""
    lines = [f"{'MB':20}{'Before':>8}{'Now':>8}{'Change':>8}"]
    for pair in found.pairs:
        lines += _compared(pair)
    unsure = sum(pair.alike > 1 for pair in found.regressed)
    counts = found.counts or Counts(
        len(found.pairs), len(found.regressed), unsure, len(found.new), len(found.removed)
    )
    if grew := counts.regressed - len(found.regressed):
        lines.append(f"and {grew:,} more that grew")
    if listed := counts.pairs - counts.regressed - (len(found.pairs) - len(found.regressed)):
        lines.append(f"and {listed:,} more that did not grow")
    shared = {pair.after.source for pair in found.pairs if pair.alike > 1}
    for word, records, count in (
        ("new", found.new, counts.new),
        ("removed", found.removed, counts.removed),
    ):
        for record in records:
            remark = " (or an earlier run of a cell above)" if record.source in shared else ""
            lines.append(f"{word}: {named(record)}{remark}")
        if count > len(records):
            lines.append(f"{word}: {count - len(records):,} more")
    grew, count = counts.regressed, counts.pairs
    lines.append(
        f"{grew or 'none'} of {count} {'cell' if count == 1 else 'cells'} grew by more than"
        f" {100 * found.tolerance:.4g} % and {rounded_mb(found.floor_bytes)} MB"
        + (f"; {counts.unsure} of them may be another cell than it was" if counts.unsure else "")
    )
    return printable_lines(lines)


def _compared(pair: Pair) -> list[str]:
    before, after = pair.before, pair.after
    ended = f", {after.outcome()}" if after.outcome() else ""
    was = f", {before.outcome()}" if before.outcome() else ""
    lines = [f"{named(after)}  ({after.time_s:.3f} s{ended}; was {before.time_s:.3f} s{was})"]
    if pair.alike > 1:
        lines.append(f"  (matched by its first line, which {pair.alike} cells share)")
    if pair.processes:
        count_before, count = pair.processes
        lines.append(f"  (the highest of {count:,} {_records(count)}; was of {count_before:,})")
    return [*lines, *map(_changed, pair.changes)]


def _records(count: int) -> str:
    return "record" if count == 1 else "records"


def _changed(change: Change) -> str:
    before, after = change.before_bytes, change.after_bytes
    figures = [mb_text(before), mb_text(after)]
    grown = "n/a" if before is None or after is None else f"{rounded_mb(after - before):+}"
    remarks = [f"({shortened(change.process)})"] if change.process else []
    remarks += ["(at least)"] if change.at_least else []
    if change.regressed:
        remarks.append("GREW")
        if inherited_mb := rounded_mb(change.inherited_bytes or 0):
            remarks.append(f"({inherited_mb:+} MB of it before the cell began)")
    return f"  {change.name:18}{figures[0]:>8}{figures[1]:>8}{grown:>8}  {' '.join(remarks)}".rstrip()
