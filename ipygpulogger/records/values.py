"""The values everything else passes around: frozen, in bytes and seconds; standard library only.

This is one of the two waists of the house: history and reports know nothing but these.
Consumed and peaked are computed here, in `Usage`, and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from .units import MB, truncated_mb

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

DRIVER = "nvml"  # the backend of a device that no framework of this process uses
MIME = "application/vnd.ipygpulogger.v1+json"  # of a record as a notebook keeps it: `schema.compact`

Quality = Literal["exact", "bounded", "sampled"]
Status = Literal["ok", "error", "interrupted"]
Timeline = tuple[tuple[float, int], ...]  # (seconds since the beginning, bytes), at most 64 of them
Sizes = tuple[tuple[str, int], ...]  # (device, bytes), each device once
CPU = "cpu"  # the device that is general RAM
LIBRARIES = "libraries loaded"  # the owner of what came with imports: "libraries loaded: torch"

_NOTABLE = 0.01


class Data(NamedTuple):
    """The last cell in whole megabytes (``2**20``), truncated toward zero, as the original had it.

    The GPU figures speak of the current device; without one they are 0.
    """

    gen_mem_used_delta: int
    gen_mem_peaked: int
    gen_mem_used: int
    gpu_mem_used_delta: int
    gpu_mem_peaked: int
    gpu_mem_used: int
    time_delta: float


@dataclass(frozen=True, slots=True)
class Peak:
    """The highest use of a scope: the truth lies in ``[lo_bytes, hi_bytes]``.

    Attributes:
        lo_bytes: At least this much.
        hi_bytes: At most this much; None when nothing bounds it from above ("sampled").
        quality: "exact", "bounded" or "sampled".
        precision_bytes: The grain of the counter itself, as its makers document it.
    """

    lo_bytes: int
    hi_bytes: int | None
    quality: Quality
    precision_bytes: int = 0

    @property
    def coarse(self) -> bool:
        """Whether the grain is to be told beside the peak: it is over 1 MB and 1 % of it."""
        return self.precision_bytes > max(MB, self.lo_bytes // 100)


@dataclass(frozen=True, slots=True)
class Usage:
    """Memory at both ends of a scope and at its highest, in bytes."""

    before_bytes: int
    after_bytes: int
    peak: Peak

    @property
    def consumed_bytes(self) -> int:
        """Used after minus used before; negative when memory was given back."""
        return self.after_bytes - self.before_bytes

    @property
    def peaked_bytes(self) -> int:
        """The extra that was needed for a moment and given back; never negative."""
        return max(0, self.peak.lo_bytes - max(self.before_bytes, self.after_bytes))

    @property
    def needed_bytes(self) -> int:
        """What the scope needed at once above what was in use before it; never negative."""
        return max(0, self.consumed_bytes) + self.peaked_bytes


@dataclass(frozen=True, slots=True)
class Heap:
    """What glibc's malloc holds, in bytes: handed out, and kept for the next request."""

    in_use_bytes: int
    kept_bytes: int


@dataclass(frozen=True, slots=True)
class RamUsage(Usage):
    """General RAM of one process: resident memory, and malloc's part of it where that is known.

    ``timeline`` holds the resident bytes of a long scope. ``precision_bytes`` is how far `consumed_bytes` may
    lie from the truth: 0 but on kernels whose resident size is itself approximate (Linux 6.2 to 6.16).
    """

    heap_before: Heap | None = None
    heap_after: Heap | None = None
    timeline: Timeline = ()
    precision_bytes: int = 0

    @property
    def newly_kept_bytes(self) -> int:
        """How much more freed memory malloc keeps than before; 0 where that is unknown."""
        if self.heap_before is None or self.heap_after is None:
            return 0
        return self.heap_after.kept_bytes - self.heap_before.kept_bytes

    @property
    def newly_in_use_bytes(self) -> int:
        """How much more memory malloc has handed out than before, never negative; 0 where unknown."""
        if self.heap_before is None or self.heap_after is None:
            return 0
        return max(0, self.heap_after.in_use_bytes - self.heap_before.in_use_bytes)

    @property
    def kept_of_consumed_bytes(self) -> int:
        """The part of what was consumed that is freed memory malloc did not give back."""
        return max(0, min(self.newly_kept_bytes, self.consumed_bytes - self.newly_in_use_bytes))


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure of a whole device over a scope, all processes together.

    Attributes:
        name: "energy" or "utilization".
        value: None where it is not known.
        unit: "J" or "%".
        reason: Why it is not known, in one sentence.
    """

    name: str
    value: float | None
    unit: str
    reason: str = ""


class Rung(NamedTuple):
    """One part of a device's memory; a ladder of them adds up to the total."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DeviceUsage(Usage):
    """One accelerator device: the process's own memory there, and the whole device.

    ``before_bytes``, ``after_bytes`` and ``peak`` speak of this process: the allocator's bytes,
    plus what the process holds outside it where that is known.

    Attributes:
        index: The framework's index of the device, or NVML's where no framework uses it.
        name: As the driver calls it.
        uuid: "GPU-..." or "MIG-..." where known.
        backend: "cuda", "xpu", ...; "nvml" where no framework here uses the device.
        attributed: Whether anything tells this process's own memory there; if not, consumed and peak are
            unknown, and read 0.
        unified: The device shares the machine's RAM.
        total_bytes: The device's memory; None when unknown.
        used_bytes: In use on the whole device, all processes; None when unknown.
        free_bytes: Free on the device, as the driver says; None when unknown.
        allocated_bytes: Held by live tensors; None without a framework's allocator.
        reserved_bytes: Held by the framework's allocator, live and cached; None without one.
        reserved_peak: The highest of that within the scope, which replayed CUDA graphs do not escape.
        pools_bytes: Of the reserved bytes, those of CUDA graphs and other pools of their own; None when
            unknown.
        other_bytes: In use outside that allocator: context, libraries, neighbours; None when unknown.
        neighbours_bytes: Held by other processes; None when unknown.
        neighbours_before_bytes: The same when the scope began.
        neighbours_peak_bytes: The most that other processes were seen to hold, each time that memory outside
            the allocator jumped; None where it did not, or nobody could tell.
        driver_bytes: What the driver keeps for itself, the total less what is used and free; None when
            unknown. Drivers before R510 count it as used.
        unattributed_bytes: By how much memory outside the allocator grew, where nobody can tell whose
            it is; it is no part of ``consumed_bytes``. 0 where all of it is known.
        unknown_rise_bytes: By how much memory outside the allocator stood higher for a moment than at both
            ends, where nobody can tell whose it was; it is no part of ``peak``. 0 where none was seen.
        limit_bytes: The most the framework lets itself reserve; 0 of a device that CUDA_VISIBLE_DEVICES
            hides; None without a limit.
        context_bytes: What creating the device's context took, if it happened within the scope;
            it is no part of ``consumed_bytes``.
        metrics: What else was asked for, of the whole device: energy, utilization.
        timeline: Of a long scope, seconds since its beginning and bytes in use on the whole device.
    """

    index: int
    name: str
    uuid: str | None = None
    backend: str = "cuda"
    attributed: bool = True
    unified: bool = False
    total_bytes: int | None = None
    used_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    reserved_peak: Peak | None = None
    pools_bytes: int | None = None
    other_bytes: int | None = None
    neighbours_bytes: int | None = None
    neighbours_before_bytes: int | None = None
    neighbours_peak_bytes: int | None = None
    driver_bytes: int | None = None
    unattributed_bytes: int = 0
    unknown_rise_bytes: int = 0
    limit_bytes: int | None = None
    context_bytes: int = 0
    metrics: tuple[Metric, ...] = ()
    timeline: Timeline = ()

    @property
    def held_before_bytes(self) -> int:
        """What the process held there when the scope began, a context made since left out."""
        return self.before_bytes - self.context_bytes

    @property
    def taken_bytes(self) -> int | None:
        """What is not free on the whole device: in use, or kept by the driver for itself."""
        if self.total_bytes is None or self.free_bytes is None:
            return self.used_bytes
        return self.total_bytes - self.free_bytes

    @property
    def neighbours_rise_bytes(self) -> int:
        """By how much other processes were seen to hold more for a moment than at both ends."""
        ends_bytes = (self.neighbours_before_bytes, self.neighbours_bytes)
        if self.neighbours_peak_bytes is None or None in ends_bytes:
            return 0
        return max(0, self.neighbours_peak_bytes - max(filter(None, ends_bytes), default=0))

    @property
    def ladder(self) -> tuple[Rung, ...]:
        """Where the device's memory is, from the tensors up; adds up to the total. Empty when unknown."""
        if self.total_bytes is None or self.used_bytes is None or self.free_bytes is None:
            return ()
        rungs = []
        if self.allocated_bytes is not None:
            rungs.append(Rung("tensors", self.allocated_bytes))
            if self.reserved_bytes is not None:
                rungs.append(Rung("cached", self.reserved_bytes - self.allocated_bytes))
        held_bytes = self.total_bytes - self.free_bytes - (self.driver_bytes or 0)
        outside_bytes = held_bytes - sum(rung.size_bytes for rung in rungs)
        if self.neighbours_bytes is None:
            rungs.append(Rung("context, libraries, other processes", outside_bytes))
        else:
            rungs.append(Rung("context and libraries", outside_bytes - self.neighbours_bytes))
            rungs.append(Rung("other processes", self.neighbours_bytes))
        rungs.append(Rung("free", self.free_bytes))
        if self.driver_bytes:
            rungs.append(Rung("the driver's own", self.driver_bytes))
        return tuple(rungs)

    @property
    def headroom_bytes(self) -> int | None:
        """What this process could still allocate: what is free, within its limit, and its own cache.

        Cached memory in the pools of CUDA graphs serves nobody else: as much of the cache is left out, where
        it is known.
        """
        if self.free_bytes is None:
            return None
        reserved_bytes, free_bytes = self.reserved_bytes or 0, self.free_bytes
        if self.limit_bytes is not None:
            free_bytes = min(free_bytes, max(0, self.limit_bytes - reserved_bytes))
        return free_bytes + max(0, reserved_bytes - (self.allocated_bytes or 0) - (self.pools_bytes or 0))


@dataclass(frozen=True, slots=True)
class ChildrenUsage(Usage):
    """Resident memory of the process's children, added up, without what forked ones share with it.

    Attributes:
        count: How many there are when the scope ends.
        at_least: There was no time to look through all forked children: of the large ones only what
            exceeds their parent's own highest is counted.
    """

    count: int
    at_least: bool = False


@dataclass(frozen=True, slots=True)
class Owner:
    """A name that holds memory: "model", "Out[3]", "last traceback: step.act".

    Attributes:
        name: As the user would write it.
        size_bytes: What it holds; of a cell's record, by how much that grew within the cell.
        device: "cpu" for general RAM, "cuda:0", ...
        kind: Where the name stands.
        shared: Other names that reach some of the same memory, which is counted here alone.
    """

    name: str
    size_bytes: int
    device: str
    kind: Literal["variable", "output", "traceback", "other"]
    shared: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """A device that had no memory left, at the moment an allocation failed; None where unknown.

    Attributes:
        device: "cuda:0".
        asked_bytes: What was asked for.
        free_bytes: What was free on the device.
        live_bytes: Held by live tensors of this process.
        cached_bytes: Held by the framework's allocator, unused.
        fragmented_bytes: Of the cached bytes, those in pieces between live tensors: nobody else can
            have them, and no larger tensor fits.
        neighbours_bytes: Held by other processes.
        traceback_bytes: On this device, what only the failed cell's traceback still holds.
        outputs_bytes: On this device, what only ``Out`` still holds.
        owners: Who holds the most on this device, the largest first.
        advice: The one next step that fits.
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


@dataclass(frozen=True, slots=True)
class LineUsage:
    """One source line of a cell or function, with all that it called.

    The usage of a line that ran several times: `consumed_bytes` is the sum over its runs and
    `peaked_bytes` the most that one of them needed for a moment. ``before_bytes`` is where the first began.

    Attributes:
        lineno: Counted from the top of the cell as the user sees it, or of the file.
        source: The line, without what it is indented by.
        hits: How often it began.
        time_s: Without our own cost.
        gen: General RAM.
        gpus: The devices on which it moved anything: the allocators' memory there.
        place: Where the line stands: "" in the cell itself, else "In [3]" or a file's name.
        complete: Whether its memory was read at every hit; False where that would have been too slow.
        risen: By device ("cpu" for general RAM), from the lowest beginning of its runs to their highest
            moment: at no time can all its runs together have held more. What a loop gives back between
            them counts again and again in `consumed_bytes`, and not here.
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


def notable(moved_bytes: int, used_bytes: int) -> bool:
    """Whether a change is worth a name: more than 1 MB, and more than 1 % of what is used."""
    return moved_bytes > MB and moved_bytes > _NOTABLE * used_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one scope used.

    Attributes:
        label: "In [4]" for a cell, the caller's own words otherwise.
        started_at: Aware, UTC.
        time_s: From the scope's start to its end, without our own cost.
        gen: General RAM.
        gpus: The devices the process touched, by index.
        children: Child processes; None when there were none or their memory is unknown.
        pinned: Page-locked host memory of the frameworks' allocators, which resident memory may not
            contain; None where none was ever used.
        notes: Plain sentences: what could not be measured, and why.
    """

    label: str
    started_at: datetime
    time_s: float
    gen: RamUsage
    gpus: tuple[DeviceUsage, ...] = ()
    children: ChildrenUsage | None = None
    pinned: Usage | None = None
    notes: tuple[str, ...] = ()

    def busiest_gpu(self) -> DeviceUsage | None:
        """The device on which this process's memory moved the most; None without one."""
        return max(
            self.gpus,
            key=lambda gpu: gpu.peak.lo_bytes - min(gpu.before_bytes, gpu.after_bytes),
            default=None,
        )

    def memories(self) -> dict[str, Usage]:
        """General RAM as "cpu", and each device whose figures are this process's: "cuda:0"."""
        devices = {f"{gpu.backend}:{gpu.index}": gpu for gpu in self.gpus if gpu.attributed}
        return {CPU: self.gen, **devices}

    def grown(self) -> dict[str, int]:
        """Of those that grew notably, by how much; what malloc merely keeps is not counted."""
        found = {}
        for device, usage in self.memories().items():
            grown_bytes = usage.consumed_bytes
            if isinstance(usage, RamUsage):
                grown_bytes -= usage.kept_of_consumed_bytes
                if grown_bytes <= usage.precision_bytes:
                    continue
            if notable(grown_bytes, usage.after_bytes):
                found[device] = grown_bytes
        return found

    def gpu(self, index: int | None) -> DeviceUsage | None:
        """The device that the frameworks count as this one, the first where it is None; None without it."""
        ours = [gpu for gpu in self.gpus if gpu.backend != DRIVER] or self.gpus
        return next((gpu for gpu in ours if index in (gpu.index, None)), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: bytes, seconds, ISO 8601 time."""
        values: dict[str, Any] = _plain(self)
        return values | {"started_at": self.started_at.isoformat()}


def _plain(value: Any) -> Any:
    """`dataclasses.asdict`, which copies what cannot change as well: a log has a million values."""
    kind: Any = type(value)
    if kind is tuple:
        return value if not value or type(value[0]) in (str, tuple) else tuple(map(_plain, value))
    names = getattr(kind, "__dataclass_fields__", None)
    if names is None:
        return value
    found = dict(zip(names, _getter(kind)(value), strict=True))
    for name, member in found.items():
        if type(member) not in _SCALARS:
            found[name] = _plain(member)
    return found


_SCALARS = frozenset((int, str, float, bool, type(None)))


@cache
def _getter(kind: Any) -> attrgetter[tuple[Any, ...]]:
    return attrgetter(*kind.__dataclass_fields__)


def held_bytes(now: Measurement) -> dict[str, int | None]:
    """By device, what this process holds: resident memory, and what live arrays hold; None where unknown."""
    found = {f"{gpu.backend}:{gpu.index}": gpu.allocated_bytes for gpu in now.gpus if gpu.backend != DRIVER}
    return {**found, CPU: now.gen.after_bytes}


def came_back(before: Measurement, after: Measurement) -> dict[str, tuple[int, ...]]:
    """What was given back between two measurements, in bytes.

    Returns:
        By device, "RAM" last: of this process's own memory, and, where known, of the whole device's.
    """
    found: dict[str, tuple[int, ...]] = {}
    later = {(gpu.backend, gpu.index, gpu.uuid): gpu for gpu in after.gpus}
    for gpu in before.gpus:
        left = later.get((gpu.backend, gpu.index, gpu.uuid))
        if left is None or gpu.allocated_bytes is None or left.allocated_bytes is None:
            continue
        sizes = [(gpu.allocated_bytes, left.allocated_bytes), (gpu.used_bytes, left.used_bytes)]
        known = (was - now for was, now in sizes if was is not None and now is not None)
        found[f"{gpu.backend}:{gpu.index}"] = tuple(known)
    found["RAM"] = (before.gen.after_bytes - after.gen.after_bytes,)
    return found


class Held(NamedTuple):
    """What this process holds at one moment.

    Attributes:
        name: Of the device, as in `Owner.device`.
        inside_bytes: Resident memory, or what live arrays hold on a device.
        outside_bytes: On a device, outside the frameworks' allocators; None where unknown.
    """

    name: str
    inside_bytes: int
    outside_bytes: int | None = None


def moved_between(ended: Mapping[str, Held], began: Mapping[str, Held], grain_bytes: int) -> Sizes:
    """By how much memory moved from the end of one scope to the beginning of the next.

    A device that is new began with no array; what was outside the allocators there is unknown and left out.

    Args:
        ended: At the end of the one, by whatever names a device; general RAM as "cpu".
        began: At the beginning of the next, likewise.
        grain_bytes: How far the difference of two resident sizes may lie from the truth.
    """
    found = []
    for key, now in began.items():
        was = ended.get(key, Held(now.name, 0))
        moved_bytes = now.inside_bytes - was.inside_bytes
        if now.outside_bytes is not None and was.outside_bytes is not None:
            moved_bytes += now.outside_bytes - was.outside_bytes
        if abs(moved_bytes) > max(MB, grain_bytes if now.name == CPU else 0):
            found.append((now.name, moved_bytes))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRecord(Measurement):
    """What one cell used.

    Attributes:
        execution_count: The 4 of "In [4]"; None for a nested cell or one kept out of the history.
        cell_id: The front end's name of the cell; None where it sends none.
        source: The cell's first line, shortened.
        status: "ok", "error" or "interrupted".
        error: Name of the exception type that ended the cell; None when it ran through.
        current_gpu: Index of the framework's current device when the cell ended; None without one.
        owners: The names that account for what the cell consumed, by how much they grew, the largest first;
            empty where it consumed next to nothing.
        owners_complete: Whether there was time to look everywhere.
        unexplained: Of each device that the owners speak of, what was consumed beyond them, where that is
            notable; negative where they needed less new memory than they hold: they took over what others
            gave back, or have not touched all of it.
        lines: What each line used, in the order of the text; empty where nobody asked.
        out_of_memory: What is known of a cell that died for want of device memory.
        between: By how much memory moved between the end of the cell before and the beginning of this one, by
            device, where that is more than 1 MB; without what our own work took. Empty where no cell came
            before, or another ran at the same time.
        gpulog_only: Whether the cell holds nothing but this package's own magics, such as ``%gpulog free``.
    """

    execution_count: int | None
    cell_id: str | None
    source: str
    status: Status
    error: str | None = None
    current_gpu: int | None = None
    owners: tuple[Owner, ...] = ()
    owners_complete: bool = True
    unexplained: Sizes = ()
    lines: tuple[LineUsage, ...] = ()
    out_of_memory: OutOfMemory | None = None
    between: Sizes = ()
    gpulog_only: bool = False

    def explained(
        self, owners: tuple[Owner, ...], gone_bytes: Mapping[str, int], *, complete: bool
    ) -> CellRecord:
        """The same record with its owners, and with what they do not explain.

        Args:
            owners: All that grew.
            gone_bytes: By device, how much less those names hold that shrank or are gone.
            complete: Whether there was time to look everywhere.
        """
        unexplained = []
        for device, grown_bytes in self.grown().items():
            held_bytes = sum(owner.size_bytes for owner in owners if owner.device == device)
            rest_bytes = grown_bytes + gone_bytes.get(device, 0) - held_bytes
            if notable(abs(rest_bytes), self.memories()[device].after_bytes):
                unexplained.append((device, rest_bytes))
        return replace(self, owners=owners, owners_complete=complete, unexplained=tuple(unexplained))

    def with_libraries(self, names: Sequence[str], most_bytes: int) -> CellRecord:
        """The same record where imported libraries account for general RAM that no name explains.

        Args:
            names: The libraries.
            most_bytes: The most that they account for.
        """
        unexplained = dict(self.unexplained)
        size_bytes = min(unexplained.get(CPU, 0), most_bytes)
        if size_bytes < MB:
            return self
        unexplained[CPU] -= size_bytes
        if not notable(unexplained[CPU], self.gen.after_bytes):
            del unexplained[CPU]
        owner = Owner(f"{LIBRARIES}: {', '.join(names)}", size_bytes, CPU, "other")
        owners = sorted((*self.owners, owner), key=lambda owner: -owner.size_bytes)
        return replace(self, owners=tuple(owners), unexplained=tuple(unexplained.items()))

    def data(self) -> Data:
        """The seven figures of the original, in whole megabytes."""
        gpu = self.gpu(self.current_gpu)
        return Data(
            truncated_mb(self.gen.consumed_bytes),
            truncated_mb(self.gen.peaked_bytes),
            truncated_mb(self.gen.after_bytes),
            truncated_mb(gpu.consumed_bytes) if gpu else 0,
            truncated_mb(gpu.peaked_bytes) if gpu else 0,
            truncated_mb(gpu.used_bytes or 0) if gpu else 0,
            self.time_s,
        )


def growing_names(runs: Sequence[CellRecord]) -> tuple[str, ...]:
    """The names that grew in every run of a cell, who grew most first; values in `Out` have one name."""
    grown: list[dict[str, int]] = []
    for record in runs:
        sizes: dict[str, int] = {}
        for owner in record.owners:
            if owner.kind in ("variable", "output"):
                name = "Out" if owner.kind == "output" else owner.name
                sizes[name] = sizes.get(name, 0) + owner.size_bytes
        grown.append(sizes)
    every = set.intersection(*map(set, grown)) if grown else set()
    return tuple(sorted(every, key=lambda name: (-sum(sizes[name] for sizes in grown), name)))


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What one source says of itself on this machine.

    Attributes:
        source: "general RAM", "NVML", "torch", ...
        state: "exact", "bounded", "sampled" or "absent": what its figures are worth here.
        says: One sentence: what it reads, or why it cannot.
        remedy: What to do about it, where something can be done.
    """

    source: str
    state: Literal["exact", "bounded", "sampled", "absent"]
    says: str
    remedy: str | None = None
