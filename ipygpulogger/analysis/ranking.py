"""Cells ranked by what they used, which raised memory to its highest, which count for totals and plots."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from ..records.cell_record import CellRecord, process_of
from ..records.units import MB, rounded_mb, size_text
from ..records.usage import Usage
from .leaks import memories
from .notable import is_inexact

Key = tuple[str, int, str | None]  # `DeviceUsage.key`
T = TypeVar("T")
MOST = 500  # cells that a page shows in full
# The figures of a memory, in bytes; of a peak that is not exact its lower bound.
SIZES: dict[str, Callable[[Usage], int]] = {
    "consumed": attrgetter("consumed_bytes"),
    "needed": attrgetter("needed_bytes"),
    "highest": attrgetter("peak.lo_bytes"),
}


def by_need(record: CellRecord, figure: str = "needed") -> tuple[int, int]:
    """Return the rank of a cell by "needed", or by another figure; `History.rank` has the rule."""
    on_devices = max((SIZES[figure](gpu) for gpu in record.gpus if gpu.attributed), default=0)
    return on_devices if on_devices >= MB else 0, SIZES[figure](record.gen)


_RANKS: dict[str, Callable[[CellRecord], Any]] = {
    "needed": by_need,
    "consumed": lambda record: max(usage.consumed_bytes for usage in memories(record).values()),
    # Of cells that show the same level, the one that raised memory to it comes before those that began there.
    "highest": lambda record: (*map(rounded_mb, by_need(record, "highest")), by_need(record)),
    "time": lambda record: record.time_s,
}


def rank(records: Iterable[CellRecord], by: str) -> list[CellRecord]:
    """Return the records, the highest first; `History.rank` has the rule."""
    by = "needed" if by == "peak" else by  # as earlier versions called it
    if by not in _RANKS:
        raise ValueError(f"rank by {', '.join(map(repr, _RANKS))}, not {by!r}")
    return sorted((record for record in records if not record.gpulog_only), key=_RANKS[by], reverse=True)


def raising(found: Sequence[tuple[T, Usage]]) -> tuple[T, Usage, str] | None:
    """Return who raised memory to its highest, that, and its size in words; None if it stayed below 1 MB."""
    # A cell that only ran while memory was there did not. So of those that came within 5 MB or 1 % of the
    # highest it is the one that needed most.
    highest = max((usage for _, usage in found), key=lambda usage: usage.peak.lo_bytes, default=None)
    if highest is None or highest.peak.lo_bytes < MB:
        return None
    near_bytes = highest.peak.lo_bytes - max(5 * MB, highest.peak.lo_bytes // 100)
    near = [one for one in found if one[1].peak.lo_bytes >= near_bytes]
    most = [usage.peak.hi_bytes for _, usage in found if is_inexact(usage)]
    high_bytes = highest.peak.lo_bytes  # it bounds the cells after it where no mark can be reset
    least = "at least " if any(one is None or rounded_mb(one - high_bytes) > 0 for one in most) else ""
    return max(near, key=lambda one: one[1].needed_bytes)[0], highest, f"{least}{size_text(high_bytes)}"


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
