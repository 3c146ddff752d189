"""Which cells have no report: small ones under the option ``quiet``, and our own magics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..render.text import nearly_full

if TYPE_CHECKING:
    from ..records import CellRecord
    from .threshold import Threshold


def is_reported(record: CellRecord, quiet: Threshold | None, *, requested: bool, warned: bool) -> bool:
    """Return whether a cell has a report.

    Args:
        record: The cell's.
        quiet: The option; None to report every cell but those of our own magics.
        requested: Whether the cell begins with ``%%gpulog``, and so has a report in any case.
        warned: Whether it went over its budget, or little RAM is left.
    """
    if requested or record.gpulog_only:
        return requested
    if quiet is None or warned or record.status != "ok" or any(map(nearly_full, record.gpus)):
        return True
    return not quiet.covers(record)
