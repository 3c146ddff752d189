"""What a function would need, as text and as HTML: the headline, what would be alive, the batch sizes."""

from __future__ import annotations

import textwrap
from html import escape
from typing import TYPE_CHECKING

from ..records.units import (
    clipped,
    nonzero_figure,
    nonzero_mb,
    nonzero_text,
    printable,
    printable_lines,
    rounded_mb,
    without_controls,
)
from . import at_peak
from .markup import BLUE, RED, Part, Strong, code, line, scrolling, small
from .table import Bar, Column, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..records import BatchEstimate, Estimate

_WIDTH = 80  # columns
_LABEL = 32  # characters of the function's name
_ERROR = 90  # characters
_LARGEST = "the largest that fits"
_SHORT = "border-left:3px solid #e45756;padding:1px 0 1px 9px;margin:2px 0 6px"  # as of a failed allocation


def report(estimate: Estimate) -> str:
    """Return an estimate as text, the headline first, without a newline at the end."""
    lines = ["".join(_headline(estimate, nonzero_mb)) + f" ({_label(estimate)})"]
    for sentence in _sentences(estimate, nonzero_mb):
        lines += _wrapped(sentence)
    lines += at_peak.lines_of(estimate.at_peak, _WIDTH)
    if estimate.batches:
        lines += [clipped(row, _WIDTH) for row in _batches(estimate, html=False).text()]
        lines += _wrapped(_replaces(estimate))
    for note in estimate.notes:
        lines += _wrapped(note)
    return printable_lines(lines)


def html(estimate: Estimate) -> str:
    """Return an estimate as HTML: the headline, the sentences, the tables; all foreign text is escaped."""
    needs, outcome = _headline(estimate, nonzero_text)
    head = f"<b>{escape(needs)}</b>{escape(outcome)}. {code(_label(estimate))}"
    below = "".join(map(small, (*_sentences(estimate, nonzero_text), *map(printable, estimate.notes))))
    body = line(f'<div style="margin-bottom:3px">{head}</div>{below}')
    body += scrolling(at_peak.table_of(estimate.at_peak)) if estimate.at_peak else ""
    if estimate.batches:
        figures = scrolling(_batches(estimate, html=True).html("Highest by batch size, MB"))
        replaced = line(small(printable(_replaces(estimate))))
        body += f"<div style=margin-top:6px>{figures}</div>{replaced}"
    return without_controls(f'<div style="{_SHORT}">{body}</div>' if estimate.fits is False else body)


def _headline(estimate: Estimate, shown: Callable[[int], str]) -> tuple[str, str]:
    outcome = _outcome(estimate, estimate.left_bytes or 0, shown)
    needed_bytes = max(0, estimate.peak_bytes - _held_bytes(estimate))
    return f"Needs {shown(needed_bytes)} on {estimate.device}", f"{outcome and ': '}{outcome}"


def _outcome(found: Estimate | BatchEstimate, left_bytes: int, shown: Callable[[int], str]) -> str:
    """Return whether it fits: "fits, 5118 MB left", "1204 MB short"; empty when unknown."""
    if found.fits is None:
        return ""
    if found.fits:
        return f"fits, {shown(left_bytes)} left"
    return f"{shown(found.short_bytes or 0)} short"


def _sentences(estimate: Estimate, shown: Callable[[int], str]) -> Iterator[str]:
    """Yield what the need is compared with, or why it is compared with nothing."""
    if estimate.unknown:
        yield f"Whether it fits is unknown: {estimate.unknown}."
    if estimate.available_bytes is not None:
        capacity_bytes, held_bytes = estimate.capacity_bytes, _held_bytes(estimate)
        is_part = capacity_bytes not in (None, estimate.available_bytes)
        of_all = f" of {shown(capacity_bytes or 0)}" if is_part else ""
        yield f"Available: {shown(estimate.available_bytes - held_bytes)}{of_all}."
        if held_bytes:
            yield f"With the {shown(held_bytes)} already there: highest {shown(estimate.peak_bytes)}."
    if rounded_mb(estimate.reserved_bytes) > rounded_mb(estimate.peak_bytes):
        yield f"The allocator would reserve {shown(estimate.reserved_bytes)}, cached memory included."


def _batches(estimate: Estimate, *, html: bool) -> Table:
    """Return the table of batch sizes; the largest that fits stands out."""
    size, highest = Column("batch", html_head="Size"), Column("highest", html_head="Highest")
    table = Table([size, Column("", "drawn"), highest, Column("", "words")])
    scale_bytes = max((batch.peak_bytes or 0 for batch in estimate.batches), default=0)
    shown, figure = (nonzero_text, nonzero_figure) if html else (nonzero_mb, nonzero_mb)
    for batch in estimate.batches:
        peak_bytes = batch.peak_bytes or 0
        need, outcome = (
            figure(peak_bytes),
            _outcome(batch, (estimate.available_bytes or 0) - peak_bytes, shown),
        )
        if batch.peak_bytes is None:
            need, outcome = "", clipped(printable(f"cannot be estimated: {batch.error}"), _ERROR)
        drawn = Bar([Part("", peak_bytes, RED if batch.fits is False else BLUE)], scale_bytes)
        is_largest = batch.size == estimate.largest_batch
        if is_largest:
            outcome += f" · {_LARGEST}" if html else f"  <- {_LARGEST}"
        table.add(Strong(str(batch.size)) if is_largest else str(batch.size), drawn, need, outcome)
    return table


def _held_bytes(estimate: Estimate) -> int:
    """Return how much of the need is on the device already; 0 if it is compared with a given capacity."""
    return 0 if estimate.available_bytes == estimate.capacity_bytes else estimate.held_bytes


def _replaces(estimate: Estimate) -> str:
    return f"A batch size replaces {estimate.batched}."


def _label(estimate: Estimate) -> str:
    return clipped(printable(estimate.label), _LABEL)


def _wrapped(sentence: str) -> list[str]:
    return textwrap.wrap(printable(sentence), _WIDTH, initial_indent="  ", subsequent_indent="  ")
