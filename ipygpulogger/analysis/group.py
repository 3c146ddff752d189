"""The records that many processes made of the same cell or block, their figures, and who stands out.

A process stands out when it needed over 1.2 times the median of a memory, or took over 1.2 times the median
time. The difference must be notable too: over 1 MB and over 1 % of what is in use, or over 0.1 s. Processes
with a task are compared with those that ran the same task. A task that shared its process has no memory of
its own, so only its time is compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from statistics import median
from typing import TYPE_CHECKING, Literal, NamedTuple

from ..records.note import SHARED, of_kind
from ..records.process import ProcessRecord
from ..records.usage import notable
from ..records.value import Sequenced, displayed_text

if TYPE_CHECKING:
    from ..records.device_usage import DeviceUsage

    What = Literal["needed", "used", "time"]
    _Value = tuple[float, ProcessRecord]

FACTOR = 1.2  # of the median
_NOTABLE_S = 0.1
RAM, GPU, TIME = "RAM", "GPU", "time"


class Missing(NamedTuple):
    """A process that sent no record: `who`, as "rank 2", and `why`, as "no answer within 30 s"."""

    who: str
    why: str


class Group(Sequenced[ProcessRecord]):
    """The records of many processes, in the order of their ranks, workers and tasks.

    Printed or displayed it is one table: a row for each process, of more than 16 for those that failed, stand
    out or needed most. Its length is the number of records. It is true if it has anything to tell: a group of
    no record but a missing process is not nothing.

    Attributes:
        label: What was measured, such as "In [4]".
        missing: The processes that sent no record.
        notes: What else is to be said, in plain sentences.
    """

    def __init__(
        self,
        label: str,
        records: Iterable[ProcessRecord],
        missing: Iterable[Missing] = (),
        notes: Iterable[str] = (),
    ) -> None:
        self.label = label
        self._records = tuple(sorted(records, key=place_of))
        self.missing: tuple[Missing, ...] = tuple(missing)
        self.notes: tuple[str, ...] = tuple(notes)

    def __bool__(self) -> bool:
        return bool(self._records or self.missing or self.notes)

    @cached_property
    def figures(self) -> tuple[Figure, ...]:
        """The smallest, the median and the largest figure of RAM, of each device and of the time."""
        found = []
        for name, what, values in _series(self._records) if self._records else ():
            figures = [figure for figure, _ in values]
            largest, most = max(values, key=itemgetter(0))
            found.append(Figure(name, what, min(figures), median(figures), largest, most))
        return tuple(found)

    @cached_property
    def outliers(self) -> tuple[Outlier, ...]:
        """The processes that needed or took over 1.2 times the median, the farthest above it first."""
        found: dict[str, list[Outlier]] = {}
        by_task: dict[str | None, list[ProcessRecord]] = {}
        for record in self._records:
            by_task.setdefault(record.process.task, []).append(record)
        for alike in by_task.values():
            for name, what, of_all in _series(alike):
                values = [pair for pair in of_all if what == "time" or not of_kind(pair[1].notes, *SHARED)]
                if what == "used" or not values:
                    continue
                middle = median(figure for figure, _ in values)
                found.setdefault(name, []).extend(
                    Outlier(record, name, figure, middle)
                    for figure, record in values
                    if figure > FACTOR * middle and _is_notable(name, figure - middle, record)
                )
        return tuple(one for some in found.values() for one in sorted(some, key=lambda one: -one.ratio))

    def __repr__(self) -> str:
        return displayed_text(self)


def place_of(record: ProcessRecord) -> tuple[object, ...]:
    """Return the place of a record among others; no two records share one, whatever order they came in."""
    process = record.process
    known = process.rank is None, process.rank or 0, process.worker or "", process.host, process.pid
    return *known, process.task or "", record.started_at, record.label


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of many processes, in bytes or seconds.

    Its name is "RAM", "GPU", "time", or a device id such as "cuda:1" where a process used several devices.
    It is what was "needed" above what was in use before, or "used" at the end, of a device by all processes.
    `most` is the process with the largest.
    """

    name: str
    what: What
    smallest: float
    median: float
    largest: float
    most: ProcessRecord


@dataclass(frozen=True, slots=True)
class Outlier:
    """A process with a figure, of bytes that it needed or of seconds, far above the median of its like."""

    record: ProcessRecord
    name: str
    figure: float
    median: float

    @property
    def ratio(self) -> float:
        """The figure in medians; infinite where the median is 0."""
        return self.figure / self.median if self.median else float("inf")


def _is_notable(name: str, above: float, record: ProcessRecord) -> bool:
    if name == TIME:
        return above > _NOTABLE_S
    usages = {RAM: record.gen, GPU: record.busiest_gpu(), **{gpu.id: gpu for gpu in record.gpus}}
    usage = usages.get(name)
    return usage is not None and notable(int(above), usage.after_bytes)


def _series(records: Sequence[ProcessRecord]) -> Iterator[tuple[str, What, list[_Value]]]:
    """Yield each figure with its value in every record that has it; RAM first, time last."""
    yield RAM, "needed", [(record.gen.needed_bytes, record) for record in records]
    yield RAM, "used", [(record.gen.after_bytes, record) for record in records]
    devices: dict[str, list[tuple[DeviceUsage, ProcessRecord]]] = {}
    single = all(len(record.gpus) <= 1 for record in records)
    for record in records:
        for gpu in record.gpus:
            devices.setdefault(GPU if single else gpu.id, []).append((gpu, record))
    for name, usages in sorted(devices.items()):
        if needed := [(gpu.needed_bytes, record) for gpu, record in usages if gpu.attributed]:
            yield name, "needed", list(needed)
        if used := [(gpu.used_bytes, record) for gpu, record in usages if gpu.used_bytes is not None]:
            yield name, "used", list(used)
    yield TIME, "time", [(record.time_s, record) for record in records]
