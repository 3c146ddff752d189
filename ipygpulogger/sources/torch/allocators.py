"""torch: the allocators' own counters on every `torch.accelerator` device, exact and resettable.

torch's functions look the names below up in `torch._C` at each call, so wrappers there reach `torch.cuda` and
`torch.accelerator` alike.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

from ...records import Diagnosis, device_id
from ...runtime.errors import first_line
from .. import contract
from ..contract import Device, DeviceMemory, Holding, Observation, Reading, Unavailable, unavailable
from ..frameworks import ResettableCounter, ResettableFramework, Stats
from . import state, tensors
from .state import TORCH_ERRORS

# By type of accelerator, "" for any other. Which of them exist depends on the build.
_READS = {"cuda": "_cuda_memoryStats", "xpu": "_xpu_memoryStats", "": "_accelerator_getDeviceStats"}
_RESETS = {
    "cuda": "_cuda_resetPeakMemoryStats",
    "xpu": "_xpu_resetPeakMemoryStats",
    "": "_accelerator_resetPeakStats",
    "host": "_cuda_resetPeakHostMemoryStats",  # of no device
}


class TorchCounter(ResettableCounter):
    """The caching allocator of one device: allocated and reserved bytes."""

    def observe(self) -> Observation:
        """Read the allocator's statistics, with its counts of allocations as the stamp."""
        stats = self._last = self._source.read(self.device.index)
        allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        readings = tuple(Reading(one["current"], one["peak"]) for one in (allocated, reserved))
        # torch counts allocations under the same lock, so the stamp is as old as the readings. Its
        # asynchronous backend (cudaMallocAsync) counts none: then a loss at a reset cannot be detected.
        allocations = stats["allocation"]["all"]["allocated"]
        if not allocations and readings[0].current_bytes:
            return Observation(readings, ())
        return Observation(readings, (allocations, allocated["allocated"], reserved["allocated"]))

    def growth_bytes(self, earlier: tuple[int, ...], later: tuple[int, ...]) -> tuple[int | None, ...]:
        """Return the bytes allocated between two stamps."""
        if len(earlier) != len(later) or any(b < a for a, b in zip(earlier, later, strict=True)):
            return None, None  # the user reset the accumulated counts in between
        return later[1] - earlier[1], later[2] - earlier[2]

    def device_memory(self) -> DeviceMemory | None:
        """Ask the driver through torch, which is right under MIG, WSL and hidden devices as well."""
        try:
            free_bytes, total_bytes = state.mem_get_info(self.device.index)
        except TORCH_ERRORS:
            return None
        return DeviceMemory(total_bytes, total_bytes - free_bytes, free_bytes)

    def limit_bytes(self) -> int | None:
        """Return what `set_per_process_memory_fraction` allows; None without a limit, or if unknown."""
        return state.limit_bytes(self.device.index)

    def fragmented_bytes(self) -> int | None:
        """Return what torch calls inactive split blocks."""
        with suppress(Unavailable):
            return int(self._source.read(self.device.index)["inactive_split_bytes"]["all"]["current"])
        return None

    def releasable_bytes(self) -> int:
        """Return what emptying the cache would release: reserved blocks of which no part is in use."""
        stats = self._source.read(self.device.index)
        names = "reserved_bytes", "active_bytes", "inactive_split_bytes", "allocated_bytes"
        reserved, active, split, allocated = (stats[name]["all"]["current"] for name in names)
        return int(reserved - max(active, allocated) - split)

    def pools_bytes(self) -> int | None:
        """Return what CUDA graphs and `torch.cuda.MemPool` reserve, if torch counts it (2.13, not 2.6)."""
        with suppress(Unavailable, KeyError):
            stats = self._last or self._source.read(self.device.index)
            pools = stats["reserved_bytes_by_private_pools"].values()
            return int(sum(pool["all"]["current"] for pool in pools))
        return None


class PinnedCounter(contract.Counter):
    """torch's page-locked host memory, live and cached, for all devices; its peak is read, never reset."""

    peak_class: contract.PeakClass = "monotone"

    def observe(self) -> Observation:
        """Read the host allocator's statistics."""
        with unavailable("torch gives no statistics of pinned memory"):
            held = state.module()._C._cuda_hostMemoryStats()["allocated_bytes"]
        return Observation((Reading(held["current"], held["peak"]),), ())


class Torch(ResettableFramework):
    """torch in this process, once the user has imported it."""

    name = "torch"
    READS, RESETS = tuple(_READS.values()), tuple(_RESETS.values())

    def __init__(self) -> None:
        super().__init__()
        self._counters: dict[int, TorchCounter] = {}
        self._pinned = PinnedCounter()
        self._import_error = ""  # of `load`; not the exception, whose frames would stay alive

    def counters(self) -> list[TorchCounter]:
        """Return the devices on which this process has a context, by index."""
        backend = state.accelerator()
        if backend is not None:
            with suppress(*TORCH_ERRORS):  # a device in an error state: the counters known so far remain
                for index in range(state.devices(backend).device_count()):
                    if index not in self._counters and self._uses(backend, index):
                        self._counters[index] = TorchCounter(self, _describe(backend, index))
        return [self._counters[index] for index in sorted(self._counters)]

    def _uses(self, backend: str, index: int) -> bool:
        if backend == "cuda":
            return bool(state.module()._C._cuda_hasPrimaryContext(index))
        with suppress(Unavailable):
            return state.current_index() == index or self.read(index)["allocation"]["all"]["allocated"] > 0
        return False

    def pinned(self) -> contract.Counter | None:
        """Return the counter of page-locked memory, once CUDA is initialised and if torch counts it."""
        counted = state.accelerator() == "cuda" and hasattr(state.module()._C, "_cuda_hostMemoryStats")
        return self._pinned if counted else None

    def current_index(self) -> int | None:
        """Return the index of torch's current device; None while no context exists."""
        return state.current_index()

    def load(self) -> None:
        """Import torch; `diagnose` reports an error."""
        try:
            import_module("torch")
        except Exception as error:  # a missing library raises OSError, ImportError or ValueError
            self._import_error = f"{type(error).__name__}: {first_line(error)}"

    def can_preload(self) -> bool:
        """Return whether there is a CUDA device, and no context on any device so far."""
        torch = state.module()
        if state.accelerator() is not None or not hasattr(torch, "cuda"):
            return False
        try:
            return bool(torch.cuda.is_available() and not torch.cuda._is_in_bad_fork())
        except Exception:  # torch's DeferredCudaCallError is not among TORCH_ERRORS
            return False  # the user's own first call will raise it again, in their own cell

    def preload(self) -> None:
        """Create the current device's context, so that its half gigabyte is not charged to a cell."""
        if self.can_preload():
            with suppress(Exception):  # as in `can_preload`
                state.module().cuda.synchronize()

    def settle(self) -> None:
        """Empty the allocators' caches, if they hold anything."""
        backend = state.accelerator()
        if backend is not None:
            with suppress(*TORCH_ERRORS, Unavailable):
                if any(counter.releasable_bytes() for counter in self.counters()):
                    state.devices(backend).empty_cache()

    def read(self, index: int) -> Stats:
        """Return a device's own statistics; not with a pluggable allocator, nor in an error state."""
        backend = state.accelerator()
        if backend is None:
            raise Unavailable("torch uses no device")
        with unavailable("torch gives no memory statistics"):
            if backend == "cuda" and not state.caches():
                raise Unavailable("torch's caching allocator is switched off, and so torch counts no memory")
            stats: Stats = self.wrappers.own(_READS.get(backend) or _READS[""])(index)
            stats["allocated_bytes"]["all"]["peak"], stats["allocation"]  # all we need is there
        return stats

    def reset(self, index: int) -> None:
        """Reset a device's peaks."""
        with unavailable("torch does not reset its peaks"):
            self.wrappers.own(_RESETS.get(state.accelerator() or "") or _RESETS[""])(index)

    def _place(self) -> Any:
        return getattr(state.module(), "_C", None)

    def _is_used(self) -> bool:
        return state.accelerator() is not None

    def _device_of(self, device: int | None = None) -> int | None:
        return device

    def may_hold(self, kind: type) -> bool:
        """As in `tensors`."""
        return tensors.may_hold(kind, state.module())

    def holding(self, value: Any) -> Holding | None:
        """As in `tensors`."""
        return tensors.holding(value, state.module())

    def leading_dimension(self, value: Any) -> int | None:
        """As in `tensors`."""
        return tensors.leading_dimension(value, state.module())

    def diagnose(self) -> Diagnosis:
        """Say which devices torch uses here, or why it uses none."""
        torch = state.module()
        if torch is None:
            return Diagnosis("torch", *self._absence())
        version = getattr(torch, "__version__", "?")
        counters = self.counters()
        if not counters:
            return Diagnosis("torch", "absent", f"{version}, uses no device so far")
        try:
            for counter in counters:
                counter.observe()
        except Unavailable as error:
            remedy = "use torch's own allocator, with its cache"
            return Diagnosis("torch", "sampled", f"{error}: at least, from the driver", remedy)
        devices = ", ".join(counter.device.id for counter in counters)
        return Diagnosis("torch", "exact", f"{version}, the allocator's own peaks on {devices}")

    def _absence(self) -> tuple[Literal["absent", "not imported yet"], str, str | None]:
        """Return that torch is not in this process, why, and what helps."""
        try:
            spec = find_spec("torch")
        except (ImportError, ValueError):
            spec = None
        if spec is None or spec.origin is None:  # without an origin: a folder that is called torch
            python = sys.executable
            return "absent", f"not installed for {python}", f"to use it: {python} -m pip install torch"
        if self._import_error:
            says = f"installed, but import torch fails: {self._import_error}"
            return "absent", says, f"{sys.executable} -c 'import torch' shows where it fails"
        return "not imported yet", "installed; measured from the cell on that imports it", None


def _describe(backend: str, index: int) -> Device:
    if backend != "cuda":
        return Device(backend, index, device_id(backend, index))
    properties = state.module().cuda.get_device_properties(index)
    uuid, unified = getattr(properties, "uuid", None), bool(getattr(properties, "is_integrated", 0))
    uuid = f"GPU-{uuid}" if uuid else None
    return Device(backend, index, properties.name, uuid, properties.total_memory, unified)
