"""The rich report of a cell, as IPython displays it: text, HTML, and the record itself as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..engine.machine import machine
from ..records import MIME
from ..records.embed import embedded
from ..render import html

if TYPE_CHECKING:
    from ..records import CellRecord


def bundle(record: CellRecord, plain: str, *, compact: bool, beside_peak: bool = False) -> dict[str, Any]:
    """Return the report by MIME type.

    Args:
        record: The cell's.
        plain: The same report as plain text.
        compact: Write it on one line.
        beside_peak: The whole table of what was alive at the peak is displayed as well.
    """
    total_bytes = machine().limits.total_bytes
    markup = html.report(record, compact=compact, ram_total_bytes=total_bytes, beside_peak=beside_peak)
    return {"text/plain": plain, "text/html": markup, MIME: embedded(record)}
