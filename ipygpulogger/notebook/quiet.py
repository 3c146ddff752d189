"""What is not reported: small cells and tables of other processes under ``quiet``, and our own magics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..records.budget import LEFT, OVER
from ..render.text import nearly_full

if TYPE_CHECKING:
    from ..records import CellRecord
    from ..records.group import Group
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


def has_table(group: Group, quiet: Threshold | None, *, requested: bool) -> bool:
    """Return whether the records of other processes have a table: as if each were a cell's.

    Args:
        group: The records, of which one may have gone over the budget, and what is missing.
        quiet: The option; None to show every table.
        requested: Whether the last cell begins with ``%%gpulog``.
    """
    if requested or quiet is None or group.missing or group.notes:
        return True
    return any(
        is_reported(
            record,
            quiet,
            requested=False,
            warned=any(note.startswith((OVER, *LEFT)) for note in record.notes),
        )
        for record in group
    )
