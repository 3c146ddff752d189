"""What few records have: child processes, lines, what was alive at the peak, a failed allocation.

It is imported when the first of these is made, or a record is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .cell_record import Owner
from .device_usage import CPU, DeviceUsage, Sizes
from .units import MB, rounded_mb, size_text
from .usage import Usage
from .value import Displayed, Value


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ChildUsage(Usage):
    """Resident memory of one child process within a scope, without the pages that a forked one shares.

    Attributes:
        name: The program, or what the process calls itself; at most 15 characters.
        pid: Its process id.
        ended: Whether it ended within the scope. Its peak is what it left, or at least what was seen.
    """

    name: str
    pid: int
    ended: bool = False


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ChildrenUsage(Usage):
    """Resident memory of all child processes together, without the pages that forked children share.

    The lower bound of the peak is the most that they were seen to hold at once. The upper bound is the sum of
    their own peaks, which need not coincide.

    Attributes:
        count: How many children there are at the end of the scope.
        at_least: Whether the sum is a lower bound, as there was no time to inspect every forked child.
        ended: How many certainly ended within the scope; more may have come and gone unseen.
        shared_bytes: Their part of the pages that forked processes share at the end (Pss); None if not read.
        largest: At most 4: those that needed the most, from 5 MB on, and then those that have the most.
    """

    count: int
    at_least: bool = False
    ended: int = 0
    shared_bytes: int | None = None
    largest: tuple[ChildUsage, ...] = ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LineUsage(Displayed, Value):
    """One source line of a cell or function, including everything that it called.

    For a line that ran several times, `consumed_bytes` is the sum over its runs and `peaked_bytes` the
    most that one of them needed for a moment. ``before_bytes`` is what was in use when the first run began.

    Attributes:
        lineno: The line's number, from the top of the cell as the user sees it, or of the file.
        source: The line without its indentation.
        hits: How often it began.
        time_s: Its time without the cost of measuring.
        gen: General RAM.
        gpus: The allocators' memory on each device where the line changed anything.
        place: Where the line stands: "" in the cell itself, else "In [3]" or the name of a file.
        complete: Whether its memory was read at every hit; False where that would have been too slow.
        risen: By device id ("cpu" for general RAM), the highest peak of any run above the lowest start of
            any run: all runs together cannot have held more at one time.
    """

    lineno: int
    source: str
    hits: int
    time_s: float
    gen: Usage
    gpus: tuple[DeviceUsage, ...] = ()
    place: str = ""
    complete: bool = True
    risen: Sizes = ()

    def memories(self) -> dict[str, Usage]:
        """Return general RAM as "cpu", and by id each device where the line changed anything."""
        return {CPU: self.gen, **{gpu.id: gpu for gpu in self.gpus}}

    def need_bytes(self, device: str) -> int:
        """Return the most that it can have held at once: what is freed between its runs counts once."""
        needed_bytes = self.memories()[device].needed_bytes
        return min(needed_bytes, dict(self.risen).get(device, needed_bytes))


Kind = Literal[
    "parameters", "gradients", "optimizer state", "activations", "variables", "temporaries", "before"
]
OTHERS = "others"  # the name of a row that stands for several, which has no place
BEFORE = "before the cell"  # the place of what had been allocated when the measurement began
UNRECORDED = "not recorded"  # the place of what was allocated where torch's history is lost


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CallStack(Value):
    """How much one chain of calls in the user's code allocated.

    Attributes:
        size_bytes: The size of its blocks.
        frames: The cell's line first, a recursion once: "In [7]:3", "train.py:41 step". Empty for the rest.
        library_frames: How many frames of libraries are left out; of several such stacks the most.
    """

    size_bytes: int
    frames: tuple[str, ...] = ()
    library_frames: int = 0


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AtPeak(Displayed, Value):
    """Blocks of memory that were alive when a device's memory was highest, of one kind and from one place.

    The rows of one device add up to the peak of the framework's allocator there, those of "cpu" to the peak
    of what was asked for.

    Attributes:
        device: "cuda:0"; "cpu" for general RAM.
        kind: What the blocks held, by the first of these that is so. "parameters" of modules, "optimizer
            state" and "gradients"; "variables" that a name held at the end, when a backward pass began, or
            until the cell deleted it; "activations" kept by a graph; "temporaries" freed before the end, or a
            library's workspace; and "before", held before the measurement began and by nothing named.
        name: The variable that holds the blocks, or the source line that allocated them.
        place: The user's line: "In [7]:3", "train.py:41", of a helper "In [7]:3 → load, In [2]:5"; `BEFORE`,
            or `UNRECORDED` where it is not known.
        size_bytes: Their size, as the allocator counts it.
        blocks: How many there were.
        stacks: The calls that led there, the largest first; they add up to the size. Empty where unknown.
    """

    device: str
    kind: Kind
    name: str
    place: str
    size_bytes: int
    blocks: int
    stacks: tuple[CallStack, ...] = ()

    @property
    def is_sum(self) -> bool:
        """Whether the row stands for several places."""
        return self.name == OTHERS and not self.place


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class KindTimeline(Displayed, Value):
    """The memory of the framework's allocator on one device over a measurement, by kind.

    A point holds until the next one. Its sum is what the allocator had at that moment. There are as many as a
    drawing can show: what was between two of them was never higher than both.

    Attributes:
        device: "cuda:0".
        kinds: The kinds as in `AtPeak`, what lasts first.
        points: Seconds since the beginning, and the bytes of each kind.
        phases: "forward", "backward" or "step", from when and until when; where they were observed.
        unit: "s"; of an estimate "allocations", as it counts those instead of seconds.
    """

    device: str
    kinds: tuple[Kind, ...]
    points: tuple[tuple[float, tuple[int, ...]], ...]
    phases: tuple[tuple[str, float, float], ...] = ()
    unit: Literal["s", "allocations"] = "s"

    def peak(self) -> tuple[float, tuple[int, ...]]:
        """Return the point of the most memory, of several the first."""
        return max(self.points, key=lambda point: sum(point[1]))


def folded(rows: Sequence[AtPeak], most: int) -> tuple[AtPeak, ...]:
    """Return the largest rows, and the others as one row for each device and kind; the sums stay the same.

    By device the rows that stay, then those that stand for several, named `OTHERS` and without a place.
    """
    single = [row for row in rows if not row.is_sum]
    if len(single) <= most:
        return tuple(rows)
    largest = {id(row) for row in sorted(single, key=lambda row: -row.size_bytes)[:most]}
    kept = [row for row in single if id(row) in largest]
    others: dict[tuple[str, Kind], list[AtPeak]] = {}
    for row in rows:
        if id(row) not in largest:
            others.setdefault((row.device, row.kind), []).append(row)
    sums = [
        AtPeak(*key, OTHERS, "", sum(row.size_bytes for row in some), sum(row.blocks for row in some))
        if len(some) > 1
        else some[0]
        for key, some in others.items()
    ]
    sums.sort(key=lambda row: -row.size_bytes)
    devices = dict.fromkeys(row.device for row in rows)
    return tuple(row for device in devices for row in (*kept, *sums) if row.device == device)


_GIB = 1024 * MB


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class OutOfMemory(Displayed, Value):
    """A device, or general RAM, when an allocation there failed; each figure is None when unknown.

    Attributes:
        device: "cuda:0"; "gpu" where it is not known which; "cpu" for general RAM, of which only what was
            asked for and is free is known.
        asked_bytes: The size of the allocation that failed; above 1 GiB off by up to 5 MB.
        free_bytes: Free on the device.
        live_bytes: In live tensors of this process.
        cached_bytes: Reserved by the framework's allocator and unused.
        fragmented_bytes: The part of the cached bytes in gaps between live tensors, which cannot be returned.
        neighbours_bytes: In use by other processes.
        traceback_bytes: On this device, what only the failed cell's traceback still refers to.
        outputs_bytes: On this device, what only ``Out`` still refers to.
        owners: The names that hold the most on this device, the largest first.
        advice: The one next step that is most likely to help.
        alive: What was alive when the allocation failed, the largest first; empty unless that was recorded.
    """

    device: str
    asked_bytes: int | None
    free_bytes: int | None
    live_bytes: int | None
    cached_bytes: int | None
    fragmented_bytes: int | None
    neighbours_bytes: int | None
    traceback_bytes: int
    outputs_bytes: int
    owners: tuple[Owner, ...]
    advice: str
    alive: tuple[AtPeak, ...] = ()


def requested(asked_bytes: int) -> str:
    """Return the size of an allocation that failed as text, no more exactly than it is known.

    A whole number of hundredths of a GiB is what torch's message tells: "7.81 GiB"; any other, "8000 MB".
    """
    if asked_bytes >= 1000 * _GIB:
        return size_text(asked_bytes)
    hundredths = round(asked_bytes * 100 / _GIB)
    if asked_bytes > _GIB and asked_bytes == round(hundredths / 100 * _GIB):
        return f"{hundredths / 100:.2f} GiB"
    return f"{rounded_mb(asked_bytes)} MB"
