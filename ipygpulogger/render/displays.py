"""What a notebook displays of each kind of record: `il.record`, `il.history`, a line, a failed allocation."""

from __future__ import annotations

from ..analysis.group import Group
from ..records import Estimate, LineUsage, Measurement, OutOfMemory
from ..records.value import html_of, text_of
from ..storage.history import History
from . import estimate, group, html, lines, out_of_memory, summary

_CARD = 2048  # bytes


def _of_card(card: OutOfMemory) -> str:
    return out_of_memory.html(card, None, _CARD)


html_of[Measurement] = lambda measurement: html.report(measurement, named=True)
html_of[LineUsage] = lambda line: lines.html([line])
html_of[OutOfMemory] = _of_card
html_of[Estimate] = estimate.html
text_of[Estimate] = estimate.report
html_of[History] = summary.history
html_of[Group] = group.html
text_of[Group] = group.table
