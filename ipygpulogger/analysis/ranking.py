"""Cells ranked by what they used, and what a summary says of a run: the highest cells and figures."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..records.cell_record import process_of
from ..records.units import MB, rounded_mb
from ..records.usage import notable
from .leaks import memories, suspects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ..records.cell_record import CellRecord
    from ..records.device_usage import DeviceUsage
    from ..records.usage import Usage

T = TypeVar("T")
FIRST = 20  # cells that a summary shows
SUSPECTS = 5  # cells that may leak that it shows
FIGURES = "consumed", "needed", "highest"


def size_of(usage: Usage, figure: str) -> int:
    """Return one of the `FIGURES` in bytes; of a peak that is not exact its lower bound."""
    if figure == "consumed":
        return usage.consumed_bytes
    return usage.needed_bytes if figure == "needed" else usage.peak.lo_bytes


def by_need(record: CellRecord, figure: str = "needed") -> tuple[int, int]:
    """Return the rank of a cell by "needed", or by another figure; `History.rank` has the rule."""
    on_devices = max((size_of(gpu, figure) for gpu in record.gpus if gpu.attributed), default=0)
    return on_devices if on_devices >= MB else 0, size_of(record.gen, figure)


_RANKS: dict[str, Callable[[CellRecord], Any]] = {
    "needed": by_need,
    "consumed": lambda record: max(usage.consumed_bytes for usage in memories(record).values()),
    "highest": lambda record: by_need(record, "highest"),
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


class Worst(NamedTuple):
    """The cell with the highest figure of RAM, or of any device."""

    figure: str  # of `FIGURES`
    record: CellRecord
    usage: Usage  # of the record's RAM or one of its devices


@dataclass(frozen=True, slots=True)
class Ranked:
    """What a summary says of a run."""

    by: str
    first: tuple[CellRecord, ...]
    count: int  # of all that are ranked
    left_out: int  # cells that only ran this package's own magics
    processes_count: int  # records of other processes
    worst: tuple[Worst, ...]
    longest: CellRecord
    coarse_bytes: int  # the coarsest granularity of RAM's peaks that is worth a remark; 0 without one
    devices: tuple[DeviceUsage, ...]  # one for each key, as the ranked cells of the kernel name them
    suspects: Sequence[Sequence[CellRecord]]  # the runs of the first cells that may leak
    suspects_count: int  # of all such cells


def ranked(every: Sequence[CellRecord], by: str) -> Ranked | None:
    """Return what a summary says of a run, from its records in their order; None without a cell."""
    records, suspected = rank(every, by), suspects(every)
    if not records:
        return None
    devices: dict[Any, DeviceUsage] = {}
    for record in records:
        for gpu in record.gpus if process_of(record) is None else ():
            devices.setdefault(gpu.key, gpu)
    return Ranked(
        "needed" if by == "peak" else by,
        tuple(records[:FIRST]),
        len(records),
        len(every) - len(records),
        sum(process_of(record) is not None for record in records),
        tuple(_worst(records)),
        max(records, key=lambda record: record.time_s),
        max((one.gen.peak.precision_bytes for one in records if one.gen.peak.coarse), default=0),
        tuple(devices.values()),
        suspected[:SUSPECTS],
        len(suspected),
    )


def _worst(records: Sequence[CellRecord]) -> Iterator[Worst]:
    """Yield who needed and consumed most, and who raised memory to its highest, of RAM and of any device."""
    for figure, memory in product(FIGURES, ("RAM", "device")):
        found = [Worst(figure, record, usage) for record in records for usage in _usages(record, memory)]
        found = [one for one in found if size_of(one.usage, figure) >= MB]
        found.sort(key=lambda one: one.record.started_at)
        if figure == "highest":
            yield from raising(found, lambda one: one.usage)
        elif found:
            yield max(
                found, key=lambda one: rounded_mb(size_of(one.usage, one.figure))
            )  # the first of equals


def raising(found: Sequence[T], usage_of: Callable[[T], Usage]) -> list[T]:
    """Return the one that raised memory to its highest, if any did.

    A cell that only ran while memory was there did not. So of those that came within 1 MB or 1 % of the
    highest it is the one that needed most.
    """
    highest_bytes = max((usage_of(one).peak.lo_bytes for one in found), default=0)
    near = [one for one in found if not notable(highest_bytes - usage_of(one).peak.lo_bytes, highest_bytes)]
    return [max(near, key=lambda one: usage_of(one).needed_bytes)] if highest_bytes >= MB else []


def _usages(record: CellRecord, memory: str) -> Sequence[Usage]:
    return (record.gen,) if memory == "RAM" else [gpu for gpu in record.gpus if gpu.attributed]
