"""Cells ranked by what they used, and what a summary says of a run: the highest cells and figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ..records.cell_record import process_of
from ..records.units import MB, rounded_mb
from .leaks import memories

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ..records.cell_record import CellRecord
    from ..records.device_usage import DeviceUsage
    from ..records.usage import Usage

FIRST = 20  # cells that a summary shows
SUSPECTS = 5  # cells that may leak that it shows


def by_peak(record: CellRecord) -> tuple[int, int]:
    """Return the rank of a cell by "peak"; `History.rank` has the rule."""
    on_devices = max((gpu.needed_bytes for gpu in record.gpus if gpu.attributed), default=0)
    return on_devices if on_devices >= MB else 0, record.gen.needed_bytes


_RANKS: dict[str, Callable[[CellRecord], Any]] = {
    "peak": by_peak,
    "consumed": lambda record: max(usage.consumed_bytes for usage in memories(record).values()),
    "time": lambda record: record.time_s,
}


def rank(records: Iterable[CellRecord], by: str) -> list[CellRecord]:
    """Return the records, the highest first; `History.rank` has the rule.

    Raises:
        ValueError: `by` is none of the words.
    """
    if by not in _RANKS:
        raise ValueError(f"rank by {', '.join(map(repr, _RANKS))}, not {by!r}")
    return sorted((record for record in records if not record.gpulog_only), key=_RANKS[by], reverse=True)


class Worst(NamedTuple):
    """The cell with the highest figure of RAM, or of any device."""

    figure: str  # "needed" or "consumed"
    record: CellRecord
    usage: Usage  # of the record's RAM or one of its devices


@dataclass(frozen=True, slots=True)
class Ranked:
    """What a summary says of a run."""

    by: str  # "peak", "consumed" or "time"
    count: int  # of the cells, with the records of other processes
    processes_count: int  # of these records
    first: tuple[CellRecord, ...]
    worst: tuple[Worst, ...]
    longest: CellRecord
    coarse_bytes: int  # the coarsest granularity of RAM's peaks that is worth a remark; 0 without one
    devices: tuple[DeviceUsage, ...]  # one for each key, as the ranked cells of the kernel name them
    suspects: Sequence[Sequence[CellRecord]]  # the runs of the first cells that may leak
    suspects_count: int  # of all such cells


def ranked(records: Sequence[CellRecord], by: str, suspects: Sequence[Sequence[CellRecord]]) -> Ranked | None:
    """Return what a summary says of cells; None without a cell."""
    if not records:
        return None
    devices: dict[Any, DeviceUsage] = {}
    for record in records:
        for gpu in record.gpus if process_of(record) is None else ():
            devices.setdefault(gpu.key, gpu)
    return Ranked(
        by,
        len(records),
        sum(process_of(record) is not None for record in records),
        tuple(records[:FIRST]),
        tuple(_worst(records)),
        max(records, key=lambda record: record.time_s),
        max((one.gen.peak.precision_bytes for one in records if one.gen.peak.coarse), default=0),
        tuple(devices.values()),
        suspects[:SUSPECTS],
        len(suspects),
    )


def _worst(records: Sequence[CellRecord]) -> Iterator[Worst]:
    """Yield the highest figures in whole MB, of RAM and of any device; of equal ones the first that began."""
    for figure in ("needed", "consumed"):
        for memory in ("RAM", "device"):
            sizes = [
                (size_bytes, Worst(figure, record, usage))
                for record in records
                for usage in _usages(record, memory)
                if (size_bytes := getattr(usage, f"{figure}_bytes")) >= MB
            ]
            most_mb = rounded_mb(max((size_bytes for size_bytes, _ in sizes), default=0))
            first = (one for size_bytes, one in sizes if rounded_mb(size_bytes) == most_mb)
            yield from sorted(first, key=lambda one: one.record.started_at)[:1]


def _usages(record: CellRecord, memory: str) -> Sequence[Usage]:
    return (record.gen,) if memory == "RAM" else [gpu for gpu in record.gpus if gpu.attributed]
