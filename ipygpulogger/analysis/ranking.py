"""Cells ranked by what they used, and which of them raised memory to its highest."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from ..records.units import MB, rounded_mb
from .leaks import memories

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ..records.cell_record import CellRecord
    from ..records.usage import Usage

T = TypeVar("T")
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
    """Return the records, the highest first; `History.rank` has the rule.

    Raises:
        ValueError: `by` is none of the words.
    """
    by = "needed" if by == "peak" else by  # as earlier versions called it
    if by not in _RANKS:
        raise ValueError(f"rank by {', '.join(map(repr, _RANKS))}, not {by!r}")
    return sorted((record for record in records if not record.gpulog_only), key=_RANKS[by], reverse=True)


def raising(found: Sequence[tuple[T, Usage]]) -> tuple[T, Usage] | None:
    """Return who raised memory to its highest, and that; None if it stayed below 1 MB.

    A cell that only ran while memory was there did not. So of those that came within 5 MB or 1 % of the
    highest it is the one that needed most.
    """
    highest = max((usage for _, usage in found), key=lambda usage: usage.peak.lo_bytes, default=None)
    if highest is None or highest.peak.lo_bytes < MB:
        return None
    near_bytes = highest.peak.lo_bytes - max(5 * MB, highest.peak.lo_bytes // 100)
    near = [one for one in found if one[1].peak.lo_bytes >= near_bytes]
    return max(near, key=lambda one: one[1].needed_bytes)[0], highest
