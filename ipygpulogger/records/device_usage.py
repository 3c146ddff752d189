"""Memory of one accelerator device over a scope, and what changed on each device between two measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from .units import MB, rounded_mb
from .usage import Peak, Timeline, Usage
from .value import Value

if TYPE_CHECKING:
    from .measurement import Measurement

CPU = "cpu"  # the device id of general RAM
DRIVER = "nvml"  # the backend of a device that no framework of this process uses

Sizes = tuple[tuple[str, int], ...]  # (device id, bytes), each device once


def device_id(backend: str, index: int) -> str:
    """Return a device's id as PyTorch writes it: "cuda:0"."""
    return f"{backend}:{index}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Metric(Value):
    """A figure of a whole device, "energy" in "J" or "utilization" in "%"; or the reason that it is None."""

    name: str
    value: float | None
    unit: str
    reason: str = ""


class Rung(NamedTuple):
    """One part of a device's memory; the rungs of a ladder add up to the total."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DeviceUsage(Usage):
    """Memory of one accelerator device.

    ``before_bytes``, ``after_bytes`` and ``peak`` are this process's memory on the device: live tensors, and
    what the process holds outside the framework's allocator where that is known. What is None is unknown.

    Attributes:
        index: The framework's index of the device, or NVML's where no framework uses it.
        name: The device's name as the driver reports it.
        uuid: "GPU-..." or "MIG-...".
        backend: "cuda", "xpu", ...; "nvml" when no framework of this process uses the device.
        attributed: Whether this process's memory can be told apart; if not, consumed and peak read 0.
        unified: Whether the device shares the machine's RAM.
        total_bytes: The device's capacity.
        used_bytes: In use on the whole device by all processes.
        free_bytes: Free on the whole device as the driver reports it.
        allocated_bytes: In live tensors; None without a framework's allocator.
        reserved_bytes: Reserved by the framework's allocator, live and cached; None without one.
        reserved_peak: Its peak, with replayed CUDA graphs.
        pools_bytes: The part of the reserved bytes in private pools, such as those of CUDA graphs.
        other_bytes: In use outside the allocator: context, libraries, other processes.
        neighbours_bytes: In use by other processes.
        neighbours_before_bytes: The same at the beginning of the scope.
        driver_bytes: Kept by the driver for itself, and in use by no process.
        outside_bytes: The part of what was consumed that is outside the allocator, such as loaded libraries.
        unattributed_bytes: How much memory outside the allocator grew without being attributed to any
            process, no part of what was consumed.
        unknown_rise_bytes: How far it rose so above both ends for a moment, no part of ``peak``.
        limit_bytes: The most that the framework may reserve, 0 on a hidden device; None without a limit.
        context_bytes: The device context that was created within the scope, no part of what was consumed.
        metrics: Further figures of the whole device that the user asked for: energy, utilization.
        timeline: Bytes in use on the whole device over a long scope.
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
    driver_bytes: int | None = None
    outside_bytes: int = 0
    unattributed_bytes: int = 0
    unknown_rise_bytes: int = 0
    limit_bytes: int | None = None
    context_bytes: int = 0
    metrics: tuple[Metric, ...] = ()
    timeline: Timeline = ()

    @property
    def id(self) -> str:
        """The device's id, such as ``cuda:0``."""
        return device_id(self.backend, self.index)

    def described(self) -> str:
        """Return the figures as words; what is used is that of the whole device."""
        figures = "per-process usage unavailable"
        if self.attributed:
            figures = Usage.described(self).rpartition(", ")[0]
        if self.used_bytes is None:
            return figures
        total = f" of {rounded_mb(self.total_bytes)}" if self.total_bytes else ""
        return f"{figures}, used {rounded_mb(self.used_bytes)}{total} MB"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}: {self.described()}>"

    @property
    def key(self) -> tuple[str, int, str | None]:
        """What identifies the device in every record of a session; slices of one card share its id."""
        return self.backend, self.index, self.uuid

    @property
    def held_before_bytes(self) -> int:
        """What the process held there at the beginning, without a context created since."""
        return self.before_bytes - self.context_bytes

    @property
    def taken_bytes(self) -> int | None:
        """What is in use on the whole device, or kept by the driver for itself; None when unknown."""
        if self.total_bytes is None or self.free_bytes is None:
            return self.used_bytes
        return self.total_bytes - self.free_bytes

    @property
    def ladder(self) -> tuple[Rung, ...]:
        """The parts of the device's memory, which add up to the total; empty when unknown."""
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
        """What this process could still allocate, which is free memory within its limit, plus its own cache.

        Cached memory in private pools serves only their owners, so it is left out where its size is known.
        """
        if self.free_bytes is None:
            return None
        reserved_bytes, free_bytes = self.reserved_bytes or 0, self.free_bytes
        if self.limit_bytes is not None:
            free_bytes = min(free_bytes, max(0, self.limit_bytes - reserved_bytes))
        return free_bytes + max(0, reserved_bytes - (self.allocated_bytes or 0) - (self.pools_bytes or 0))


class DeviceHolding(NamedTuple):
    """What this process holds on one device at one moment."""

    name: str  # the device id, as in `Owner.device`
    inside_bytes: int  # resident memory, or what live arrays hold on an accelerator
    outside_bytes: int | None = None  # on an accelerator, outside the frameworks' allocators


def held_bytes(now: Measurement) -> dict[str, int | None]:
    """Return by device id what this process holds: live arrays and resident memory; None when unknown."""
    found = {gpu.id: gpu.allocated_bytes for gpu in now.gpus if gpu.backend != DRIVER}
    return {**found, CPU: now.gen.after_bytes}


def came_back(before: Measurement, after: Measurement) -> dict[str, tuple[int, ...]]:
    """Return how many bytes were freed between two measurements, by device id, "RAM" last.

    First of this process's own memory, and then, where known, of the whole device's.
    """
    found: dict[str, tuple[int, ...]] = {}
    later = {gpu.key: gpu for gpu in after.gpus}
    for gpu in before.gpus:
        left = later.get(gpu.key)
        if left is None or gpu.allocated_bytes is None or left.allocated_bytes is None:
            continue
        found[gpu.id] = (gpu.allocated_bytes - left.allocated_bytes,)
        if gpu.used_bytes is not None and left.used_bytes is not None:
            found[gpu.id] += (gpu.used_bytes - left.used_bytes,)
    found["RAM"] = (before.gen.after_bytes - after.gen.after_bytes,)
    return found


def moved_between(
    ended: Mapping[str, DeviceHolding], began: Mapping[str, DeviceHolding], grain_bytes: int
) -> Sizes:
    """Return how much memory changed between two scopes, by device id; what is unknown is left out.

    So are changes of at most 1 MB, or of RAM of ``grain_bytes``, the possible error of a resident size.
    """
    found = []
    for key, now in began.items():
        was = ended.get(key, DeviceHolding(now.name, 0))
        moved_bytes = now.inside_bytes - was.inside_bytes
        if now.outside_bytes is not None and was.outside_bytes is not None:
            moved_bytes += now.outside_bytes - was.outside_bytes
        if abs(moved_bytes) > max(MB, grain_bytes if now.name == CPU else 0):
            found.append((now.name, moved_bytes))
    return tuple(found)
