"""The highest cells of a run, found row by row: what a summary tells, without all records at hand."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from .units import MB, rounded_mb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .cell_record import CellRecord
    from .device_usage import DeviceUsage
    from .row import Key, Memory, Origin, Row
    from .usage import Usage

FIRST = 20  # cells that a summary shows
SUSPECTS = 5  # cells that may leak that it shows
One = TypeVar("One")
GIVEN = "given"  # the rank of rows that are added in their rank


class Worst(NamedTuple):
    """The cell with the highest figure of RAM, or of any device.

    Attributes:
        figure: "needed" or "consumed".
        record: The cell.
        usage: That memory: the record's RAM or one of its devices.
    """

    figure: str
    record: CellRecord
    usage: Usage


@dataclass(frozen=True, slots=True)
class Ranked:
    """What a summary tells of a run.

    Attributes:
        by: What the cells are ranked by: "peak", "consumed" or "time".
        count: How many cells there are, with the records of other processes.
        processes_count: How many of them are records of other processes.
        first: The first of them.
        worst: The cells with the highest figures.
        longest: The cell that took longest.
        coarse_bytes: The coarsest granularity of RAM's peaks that is worth a remark; 0 without one.
        devices: A device for each key, in the order in which the ranked cells of the kernel name them.
        suspects: The runs of the first cells that may leak.
        suspects_count: How many such cells there are.
    """

    by: str
    count: int
    first: tuple[CellRecord, ...]
    worst: tuple[Worst, ...]
    longest: CellRecord
    coarse_bytes: int
    devices: tuple[DeviceUsage, ...]
    suspects: Sequence[Sequence[CellRecord]]
    suspects_count: int
    processes_count: int = 0


class Highest(Generic[One]):
    """Those with the highest rank among all that were added so far; of equal ones the first.

    Args:
        count: How many to keep.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._number = 0
        self._heap: list[tuple[Any, int, One]] = []  # the lowest on top

    def add(self, rank: Any, one: One) -> None:
        """Add one, by its rank."""
        self._number -= 1
        if len(self._heap) < self._count:
            heapq.heappush(self._heap, (rank, self._number, one))
        elif rank > self._heap[0][0]:
            heapq.heapreplace(self._heap, (rank, self._number, one))

    def ranked(self) -> list[One]:
        """Return those that it keeps, the highest first."""
        return [one for *_, one in sorted(self._heap, key=lambda kept: kept[:2], reverse=True)]


class Ranking:
    """The rows of a run, of which it keeps those that a summary shows.

    Args:
        by: What to rank by, as in `History.rank`, which leaves out the same cells; or `GIVEN`.
    """

    def __init__(self, by: str) -> None:
        self.by = by
        self.count = self.processes_count = 0
        self._rank = RANKS[by]
        self._number = 0
        self._first = Highest["Row"](FIRST)
        self._worst: dict[tuple[str, bool], _Worst] = {}
        # What rounds to fewer megabytes than the worst has is less.
        self._least = {
            (figure, is_ram): MB / 2 for figure in ("needed", "consumed") for is_ram in (True, False)
        }
        self._longest: tuple[float, Any, int] | None = None
        self._longest_origin: Origin = 0
        self._coarse_bytes = 0
        self._devices: dict[Key, tuple[Any, int, int, Origin]] = {}

    def add(self, row: Row) -> None:
        """Add the next cell."""
        if row.gpulog_only and self.by != GIVEN:
            return
        self.count += 1
        self.processes_count += row.process is not None
        self._number -= 1
        rank, number = self._rank(row), self._number
        self._first.add(rank, row)
        place = rank, number
        self._compare(row, row.gen, is_ram=True, place=place)
        for position, gpu in enumerate(row.gpus):
            named = rank, number, -position
            if row.process is None and (gpu.key not in self._devices or named > self._devices[gpu.key][:3]):
                self._devices[gpu.key] = (*named, row.origin)
            if gpu.attributed:
                self._compare(row, gpu, is_ram=False, place=place)
        if self._longest is None or row.time_s >= self._longest[0]:
            longest = row.time_s, rank, number
            if self._longest is None or longest > self._longest:
                self._longest, self._longest_origin = longest, row.origin
        if row.gen.precision_bytes > self._coarse_bytes and row.gen.peak.coarse:
            self._coarse_bytes = row.gen.precision_bytes

    def _compare(self, row: Row, memory: Memory, *, is_ram: bool, place: tuple[Any, int]) -> None:
        for figure, size_bytes in ("needed", memory.needed_bytes), ("consumed", memory.consumed_bytes):
            if size_bytes >= self._least[figure, is_ram]:
                found = _Worst(size_bytes, row, memory, place)
                highest = self._worst.get((figure, is_ram))
                if highest is None or found.exceeds(highest):
                    self._worst[figure, is_ram] = found
                    self._least[figure, is_ram] = (rounded_mb(size_bytes) - 0.5) * MB

    def ranked(
        self, record: Callable[[Origin], CellRecord], suspects: Sequence[Sequence[Origin]]
    ) -> Ranked | None:
        """Return what a summary tells; None without a cell.

        Args:
            record: Returns the record of a row by its origin, of equal origins the same object.
            suspects: The runs of the cells that may leak.
        """
        if not self.count:
            return None
        devices = sorted(self._devices.items(), key=lambda item: item[1][:3], reverse=True)
        return Ranked(
            self.by,
            self.count,
            tuple(record(row.origin) for row in self._first.ranked()),
            tuple(
                Worst(figure, record(highest.row.origin), highest.usage(record))
                for (figure, _), highest in sorted(self._worst.items(), reverse=True)
                if highest.size_bytes >= MB
            ),
            record(self._longest_origin),
            self._coarse_bytes,
            tuple(_device(record(origin), key) for key, (_, _, _, origin) in devices),
            [[record(origin) for origin in runs] for runs in suspects[:SUSPECTS]],
            len(suspects),
            self.processes_count,
        )


def ranking_of(rows: Iterable[Row], by: str) -> Ranking:
    """Return the ranking of rows."""
    ranking = Ranking(by)
    for row in rows:
        ranking.add(row)
    return ranking


class _Worst(NamedTuple):
    """The cell with a figure that is the highest so far, in whole MB; of equals the first that began."""

    size_bytes: int
    row: Row
    memory: Memory
    place: tuple[Any, int]

    def usage(self, record: Callable[[Origin], CellRecord]) -> Usage:
        """Return the usage of the record that has the figure."""
        found = record(self.row.origin)
        position = next((at for at, gpu in enumerate(self.row.gpus) if gpu is self.memory), None)
        return found.gen if position is None else found.gpus[position]

    def exceeds(self, other: _Worst) -> bool:
        """Return whether this one takes the place of another."""
        mine_mb, its_mb = rounded_mb(self.size_bytes), rounded_mb(other.size_bytes)
        if mine_mb != its_mb:
            return mine_mb > its_mb
        if self.row.started_at != other.row.started_at:
            return self.row.started_at < other.row.started_at
        return self.place > other.place


def _device(record: CellRecord, key: Key) -> DeviceUsage:
    return next(gpu for gpu in record.gpus if gpu.key == key)


def by_peak(row: Row) -> tuple[int, int]:
    """Return the rank of `History.rank` by "peak"."""
    on_devices = 0
    for gpu in row.gpus:
        if gpu.attributed and gpu.needed_bytes > on_devices:
            on_devices = gpu.needed_bytes
    return on_devices if on_devices >= MB else 0, row.gen.needed_bytes


def _by_consumed(row: Row) -> int:
    return max(memory.consumed_bytes for memory in row.memories().values())


RANKS: dict[str, Callable[[Row], Any]] = {
    "peak": by_peak,
    "consumed": _by_consumed,
    "time": lambda row: row.time_s,
    GIVEN: lambda _: 0,
}
