"""The last run of each cell of a notebook's run, in each process: what a comparison needs of it."""

from __future__ import annotations

from array import array
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from .device_usage import device_id
from .usage import Peak, Usage

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator

    from .cell_record import CellRecord
    from .process import Process
    from .row import Memory, Origin, Row
    from .usage import Quality

RAM = "RAM"  # the name of general RAM among the names of devices
_FIGURES = 6  # of a memory: the number of its name, before, bounds of the peak, granularity, flags
_BOUNDED, _EXACT, _ATTRIBUTED = 1, 2, 4  # flags
_SURE = _BOUNDED | _EXACT | _ATTRIBUTED


class Elsewhere(NamedTuple):
    """What makes a run in another process recognizable.

    Attributes:
        cell: The cell's id, and its first line or its label.
        task: What ran there; None for the whole process.
        who: The rank or worker; of a task the number of the run.
    """

    cell: tuple[str | None, str]
    task: str | None
    who: str | int

    @classmethod
    def of(cls, row: Row, process: Process, number: int) -> Elsewhere:
        """Return that of a row, which is the run with this number."""
        who = process.named() if process.task is None else number
        return cls((row.cell_id, row.source or row.label), process.task, who)


class LastRuns:
    """The last run of each cell, as in a saved notebook; records without an id are of different cells.

    A record of another process belongs to its rank or worker. Of tasks all records are kept, as a cell may
    start the same task many times.

    A run has a number, by which it is asked for here. It takes a few numbers, its cell's id, and its first
    line unless another run has the same.

    Args:
        names: The numbers of the memories' names, which two runs that are compared share.
    """

    def __init__(self, names: dict[str, int]) -> None:
        self._names = names
        self._last: dict[Hashable, int] = {}  # by id, or by a number of its own: the number of the last run
        self._elsewhere: dict[int, Elsewhere] = {}  # runs in other processes
        self._processes: dict[int, Process] = {}  # those
        self._sources: list[str] = []
        self._same: dict[str, str] = {}  # each source once
        self._nested = bytearray()
        self._places = array("q")
        self._records: dict[int, CellRecord] = {}  # of runs that are not in a log
        self._begins = array("Q", [0])  # where the figures of a run begin
        self._figures = array("q")

    def __len__(self) -> int:
        return len(self._last)

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers of the last runs, in their order."""
        return iter(self._last.values())

    @property
    def runs(self) -> int:
        """How many runs were added; their numbers are below."""
        return len(self._sources)

    def add(self, row: Row) -> None:
        """Add the next cell."""
        number = self.runs
        identity: Hashable = number if row.cell_id is None else row.cell_id
        if row.process is not None:
            self._elsewhere[number] = identity = Elsewhere.of(row, row.process, number)
            self._processes[number] = row.process
        self._last.pop(identity, None)  # its place is that of its last run
        self._last[identity] = number
        self._sources.append(self._same.setdefault(row.source, row.source))
        self._nested.append(row.execution_count is None)
        if isinstance(row.origin, int):
            self._places.append(row.origin)
        else:
            self._places.append(-1)
            self._records[number] = row.origin
        self._add(RAM, row.gen)
        if row.gpus:
            parts = Counter[str]()  # slices of one card share its index
            for gpu in row.gpus:
                name = device_id(*gpu.key[:2])
                parts[name] += 1
                self._add(name if parts[name] == 1 else f"{name}.{parts[name] - 1}", gpu)
        self._begins.append(len(self._figures))

    def _add(self, name: str, memory: Memory) -> None:
        hi_bytes = memory.hi_bytes
        flags = _BOUNDED * (hi_bytes is not None) | _EXACT * (memory.quality == "exact")
        flags |= _ATTRIBUTED * memory.attributed
        number = self._names.setdefault(name, len(self._names))
        bounds = memory.lo_bytes, hi_bytes or 0, memory.precision_bytes
        self._figures.extend((number, memory.before_bytes, *bounds, flags))

    def with_ids(self) -> Iterator[tuple[str, int]]:
        """Yield id and number of each last run of a cell with an id."""
        return ((name, number) for name, number in self._last.items() if isinstance(name, str))

    def elsewhere(self) -> dict[Hashable, dict[Hashable, int]]:
        """Return the last runs in other processes: by cell and task, then by process, their numbers."""
        found: dict[Hashable, dict[Hashable, int]] = {}
        for number in self:
            if (run := self._elsewhere.get(number)) is not None:
                found.setdefault((run.cell, run.task), {})[run.who] = number
        return found

    def is_elsewhere(self, number: int) -> bool:
        """Return whether a run was in another process."""
        return number in self._elsewhere

    def by_id(self, name: str) -> int | None:
        """Return the last run of the cell with an id."""
        return self._last.get(name)

    def source(self, number: int) -> tuple[str, bool]:
        """Return the first line of a run's cell, and whether the cell was nested in another."""
        return self._sources[number], bool(self._nested[number])

    def origin(self, number: int) -> Origin:
        """Return where the record of a run is."""
        place = self._places[number]
        return self._records[number] if place < 0 else place

    def usages(self, number: int) -> dict[str, Usage | None]:
        """Return the usages of a run by name; None for a device without attributed use.

        Each has what was in use at the beginning and the peak. What was in use at the end is not kept.
        """
        names = list(self._names)
        figures = self._figures[self._begins[number] : self._begins[number + 1]]
        found: dict[str, Usage | None] = {}
        for at in range(0, len(figures), _FIGURES):
            name, before_bytes, lo_bytes, hi_bytes, precision_bytes, flags = figures[at : at + _FIGURES]
            bound = hi_bytes if flags & _BOUNDED else None
            quality: Quality = "exact" if flags & _EXACT else "bounded"  # or sampled: neither is exact
            usage = Usage(before_bytes, 0, Peak(lo_bytes, bound, quality, precision_bytes))
            found[names[name]] = usage if flags & _ATTRIBUTED else None
        return found

    def highest(self, numbers: Iterable[int]) -> dict[str, tuple[Usage | None, int | None]]:
        """Return, of several runs, the highest peak of RAM and of any device, each with the run that has it.

        Different processes may know a device by different ids, so all devices are one here: "GPU".
        """
        found: dict[str, tuple[Usage | None, int | None]] = {}
        for number in numbers:
            for device, usage in self.usages(number).items():
                name = RAM if device == RAM else "GPU"
                known, _ = found.setdefault(name, (usage, None if usage is None else number))
                if usage is not None and (known is None or usage.peak.lo_bytes > known.peak.lo_bytes):
                    found[name] = usage, number
        return found

    def highest_bytes(self, number: int) -> int:
        """Return the highest peak of a run, on whichever device."""
        return max((usage.peak.lo_bytes for usage in self.usages(number).values() if usage), default=0)

    def process(self, number: int) -> str:
        """Return which process a run was in: "rank 2"; empty for this kernel."""
        return self._processes[number].named() if number in self._processes else ""

    def rose(self, number: int, earlier: LastRuns, other: int, by_bytes: int) -> bool:
        """Return whether any peak of a run may be higher than in an earlier one by more than so many bytes.

        This is told in a fraction of the time of comparing all `usages`.
        """
        mine, begin, end = self._figures, self._begins[number], self._begins[number + 1]
        its, its_begin = earlier._figures, earlier._begins[other]
        if end - begin != earlier._begins[other + 1] - its_begin:
            return True
        for at, at_its in zip(
            range(begin, end, _FIGURES), range(its_begin, len(its), _FIGURES), strict=False
        ):
            if mine[at] != its[at_its] or mine[at + 5] & its[at_its + 5] != _SURE:
                return True
            if mine[at + 2] - its[at_its + 3] > by_bytes:
                return True
        return False
