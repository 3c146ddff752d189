"""The values everything else passes around: frozen, in bytes and seconds; standard library only.

This is one of the two waists of the house: history and reports know nothing but these.
Consumed and peaked are computed here, in `Usage`, and nowhere else.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from .units import truncated_mb

if TYPE_CHECKING:
    from datetime import datetime

MIME = "application/vnd.ipygpulogger.v1+json"  # of a record as a notebook keeps it: `CellRecord.to_dict`

Quality = Literal["exact", "bounded", "sampled"]
Status = Literal["ok", "error", "interrupted"]


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


@dataclass(frozen=True, slots=True)
class Heap:
    """What glibc's malloc holds, in bytes: handed out, and kept for the next request."""

    in_use_bytes: int
    kept_bytes: int


@dataclass(frozen=True, slots=True)
class RamUsage(Usage):
    """General RAM of one process: resident memory, and malloc's part of it where that is known."""

    heap_before: Heap | None = None
    heap_after: Heap | None = None

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


@dataclass(frozen=True, slots=True)
class DeviceUsage(Usage):
    """One accelerator device: the process's own memory there, and the whole device.

    ``before_bytes``, ``after_bytes`` and ``peak`` speak of this process: the allocator's bytes,
    plus what the process holds outside it where that is known.

    Attributes:
        index: The framework's index of the device, or NVML's where no framework uses it.
        name: As the driver calls it.
        uuid: "GPU-..." where known.
        total_bytes: The device's memory; None when unknown.
        used_bytes: In use on the whole device, all processes; None when unknown.
        allocated_bytes: Held by live tensors; None without a framework's allocator.
        reserved_bytes: Held by the framework's allocator, live and cached; None without one.
        other_bytes: In use outside that allocator: context, libraries, neighbours; None when unknown.
        neighbours_bytes: Held by other processes; None when unknown.
        context_bytes: What creating the device's context took, if it happened within the scope;
            it is no part of ``consumed_bytes``.
    """

    index: int
    name: str
    uuid: str | None = None
    total_bytes: int | None = None
    used_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    other_bytes: int | None = None
    neighbours_bytes: int | None = None
    context_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ChildrenUsage(Usage):
    """Resident memory of the process's children, added up; memory they share counts once for each."""

    count: int


@dataclass(frozen=True, slots=True)
class Owner:
    """A name that holds memory: "model", "Out[3]", "last traceback: step.act"."""

    name: str
    size_bytes: int
    device: str
    kind: Literal["variable", "output", "traceback", "other"]


@dataclass(frozen=True, slots=True)
class LineUsage:
    """One source line of a cell or function."""

    lineno: int
    source: str
    hits: int
    time_s: float
    gen: Usage
    gpus: tuple[DeviceUsage, ...] = ()


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
        notes: Plain sentences: what could not be measured, and why.
    """

    label: str
    started_at: datetime
    time_s: float
    gen: RamUsage
    gpus: tuple[DeviceUsage, ...] = ()
    children: ChildrenUsage | None = None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: bytes, seconds, ISO 8601 time."""
        return asdict(self) | {"started_at": self.started_at.isoformat()}


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
    """

    execution_count: int | None
    cell_id: str | None
    source: str
    status: Status
    error: str | None = None
    current_gpu: int | None = None
    owners: tuple[Owner, ...] = ()
    lines: tuple[LineUsage, ...] = ()

    def data(self) -> Data:
        """The seven figures of the original, in whole megabytes."""
        wanted = (gpu for gpu in self.gpus if self.current_gpu in (gpu.index, None))
        gpu = next(wanted, None)
        return Data(
            truncated_mb(self.gen.consumed_bytes),
            truncated_mb(self.gen.peaked_bytes),
            truncated_mb(self.gen.after_bytes),
            truncated_mb(gpu.consumed_bytes) if gpu else 0,
            truncated_mb(gpu.peaked_bytes) if gpu else 0,
            truncated_mb(gpu.used_bytes or 0) if gpu else 0,
            self.time_s,
        )


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
