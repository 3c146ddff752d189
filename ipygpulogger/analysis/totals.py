"""Which records of a run count for its totals, its plot, and a page of very many cells."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from ..records.cell_record import process_of
from .ranking import by_need

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..records.cell_record import CellRecord

    Key = tuple[str, int, str | None]  # `DeviceUsage.key`

MOST = 500  # cells that a page shows in full


def outer(records: Iterable[CellRecord]) -> list[CellRecord]:
    """Return the cells of the kernel that are not nested in others; without any, its other records."""
    own = [record for record in records if process_of(record) is None]
    return [record for record in own if record.execution_count is not None] or own


def shown(records: Sequence[CellRecord]) -> list[CellRecord]:
    """Return the cells to show: of very many, those that needed most."""
    most = heapq.nlargest(MOST, range(len(records)), key=lambda number: by_need(records[number]))
    return [records[number] for number in sorted(most)]


def of_one_process(records: Iterable[CellRecord]) -> tuple[list[CellRecord], str]:
    """Return the records of the kernel or, without one, of the first process, and that process's name."""
    found: dict[tuple[str, int] | None, list[CellRecord]] = {}
    for record in records:
        process = process_of(record)
        found.setdefault((process.host, process.pid) if process else None, []).append(record)
    same = found.get(None if None in found else next(iter(found), None), [])
    first = process_of(same[0]) if same else None
    return same, first.named() if first else ""
