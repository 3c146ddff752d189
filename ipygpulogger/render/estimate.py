"""What a function would need, as text: the headline, what would be alive, the batch sizes."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import replace
from html import escape

from ..records import BatchEstimate, Estimate
from ..records.units import clipped, nonzero_mb, printable, printable_lines, rounded_mb
from . import at_peak
from .markup import PREFORMATTED
from .table import Column, Table
from .timeline import drawings

_WIDTH = 80  # columns
_LABEL = 32  # characters of the function's name
_ERROR = 90  # characters


def html(estimate: Estimate) -> str:
    """Return an estimate as HTML: its text, and the memory over its allocations."""
    words = escape(report(replace(estimate, timeline=())))
    drawn = at_peak.drawn_over(estimate.timeline, estimate.device)
    return f"<pre {PREFORMATTED}>{words}</pre>{drawn}"


def report(estimate: Estimate) -> str:
    """Return an estimate as text, the headline first, without a newline at the end."""
    lines = [_headline(estimate)]
    for sentence in _sentences(estimate):
        lines += _wrapped(sentence)
    lines += at_peak.lines_of(estimate.at_peak, _WIDTH)
    lines += [line for one in drawings(estimate.timeline, estimate.device) for line in one.text()]
    if estimate.batches:
        lines += [clipped(row, _WIDTH) for row in _batches(estimate).text()]
        lines += _wrapped(f"A batch size replaces {estimate.batched}.")
    for note in estimate.notes:
        lines += _wrapped(note)
    return printable_lines(lines)


def _headline(estimate: Estimate) -> str:
    outcome = _outcome(estimate, estimate.left_bytes or 0)
    needed_bytes = max(0, estimate.peak_bytes - _held_bytes(estimate))
    needs = f"Needs {nonzero_mb(needed_bytes)} on {estimate.device}{outcome and ': '}{outcome}"
    return f"{needs} ({clipped(printable(estimate.label), _LABEL)})"


def _outcome(found: Estimate | BatchEstimate, left_bytes: int) -> str:
    """Return whether it fits: "fits, 5118 MB left", "1204 MB short"; empty when unknown."""
    if found.fits is None:
        return ""
    if found.fits:
        return f"fits, {nonzero_mb(left_bytes)} left"
    return f"{nonzero_mb(found.short_bytes or 0)} short"


def _sentences(estimate: Estimate) -> Iterator[str]:
    """Yield what the need is compared with, or why it is compared with nothing."""
    if estimate.unknown:
        yield f"Whether it fits is unknown: {estimate.unknown}."
    if estimate.available_bytes is not None:
        capacity_bytes, held_bytes = estimate.capacity_bytes, _held_bytes(estimate)
        is_part = capacity_bytes not in (None, estimate.available_bytes)
        of_all = f" of {nonzero_mb(capacity_bytes or 0)}" if is_part else ""
        yield f"Available: {nonzero_mb(estimate.available_bytes - held_bytes)}{of_all}."
        if held_bytes:
            highest = nonzero_mb(estimate.peak_bytes)
            yield f"With the {nonzero_mb(held_bytes)} already there: highest {highest}."
    if rounded_mb(estimate.reserved_bytes) > rounded_mb(estimate.peak_bytes):
        yield f"The allocator would reserve {nonzero_mb(estimate.reserved_bytes)}, cached memory included."


def _batches(estimate: Estimate) -> Table:
    """Return the table of batch sizes; the largest that fits is marked."""
    table = Table([Column("batch"), Column("highest"), Column("", "words")])
    for batch in estimate.batches:
        if batch.peak_bytes is None:
            need, outcome = "", clipped(printable(f"cannot be estimated: {batch.error}"), _ERROR)
        else:
            need = nonzero_mb(batch.peak_bytes)
            outcome = _outcome(batch, (estimate.available_bytes or 0) - batch.peak_bytes)
        outcome += "  <- the largest that fits" if batch.size == estimate.largest_batch else ""
        table.add(str(batch.size), need, outcome)
    return table


def _held_bytes(estimate: Estimate) -> int:
    """Return how much of the need is on the device already; 0 if it is compared with a given capacity."""
    return 0 if estimate.available_bytes == estimate.capacity_bytes else estimate.held_bytes


def _wrapped(sentence: str) -> list[str]:
    return textwrap.wrap(printable(sentence), _WIDTH, initial_indent="  ", subsequent_indent="  ")
