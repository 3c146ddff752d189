"""Known amounts of tensors on a device: in scopes that overlap, in threads, on streams, in graphs."""

from __future__ import annotations

import gc
import inspect
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from ..engine.scope import Scope
from ..records import DeviceUsage, Measurement, device_id
from ..records.units import MB
from ..sources import DeviceMemory
from ..sources.torch import state
from .check import Found, Memory, Unchecked, exact, figures, in_a_thread

PAGE_BYTES = 2 * MB  # what the driver gives and takes back at once
MOST_BYTES = 1024 * MB
_UNITS = 16  # no check holds more than so many of `unit_bytes`, with what the allocator caches


class Device(Memory):
    """One device of torch, and how much of it a check may hold."""

    in_use: str = "used by tensors"
    _used = "allocated_bytes"

    def __init__(self, torch: Any, backend: str, index: int) -> None:
        self.torch = torch
        self.backend = backend
        self.index = index
        self.id: str = device_id(backend, index)
        self.memory: Any = state.devices(backend)
        self.counts: bool = backend != "cuda" or state.caches()
        native = backend == "xpu" or (backend == "cuda" and torch.cuda.get_allocator_backend() == "native")
        settings = "".join(value for name, value in os.environ.items() if name.endswith("ALLOC_CONF"))
        known = native and self.counts and not re.search("roundup|split_size", settings)
        self.block_bytes = 512 if known else PAGE_BYTES  # of other allocators whole pages are sure
        torch.empty(0, device=self.id)
        torch.accelerator.synchronize(index)  # makes the context
        self.slack_bytes = 0 if self.counts else PAGE_BYTES
        self.used_bytes()  # which some cannot tell
        self.free_bytes: int
        self.total_bytes: int
        self.free_bytes, self.total_bytes = state.mem_get_info(index)
        most_bytes = min(MOST_BYTES, self.free_bytes - self.total_bytes // 10)
        self.unit_bytes: int = most_bytes // _UNITS // PAGE_BYTES * PAGE_BYTES

    def used_bytes(self) -> int | None:
        """Return what torch's own counter says, where it counts."""
        return int(self.memory.memory_allocated(self.index)) if self.counts else None

    def held_bytes(self, size_bytes: int) -> int:
        """Return what the allocator counts for a tensor of so many bytes."""
        return -(-size_bytes // self.block_bytes) * self.block_bytes

    def take(self, size_bytes: int) -> Any:
        """Return a tensor; where the allocator's rounding is unknown, one of whole pages."""
        size_bytes = self.held_bytes(size_bytes) if self.block_bytes == PAGE_BYTES else size_bytes
        return self.torch.empty(size_bytes, dtype=self.torch.uint8, device=self.id)

    def usage(self, scope: Scope) -> DeviceUsage:
        """Return this device's figures of a scope."""
        found = [gpu for gpu in scope.result(Measurement, "").gpus if gpu.id == self.id]
        if not found:
            raise LookupError(f"{self.id} is missing in the record")
        return found[0]

    def ask(self) -> tuple[DeviceMemory | None, int | None, int]:
        """Ask NVML itself, not our sources, for the memory of the device, this process and those listed."""
        try:
            import pynvml as nvml

            nvml.nvmlInit()
        except Exception:  # whatever the driver's library raises
            return None, None, 0
        memory, own_bytes, listed_bytes = None, None, 0
        with suppress(nvml.NVMLError, AttributeError, RuntimeError):
            uuid, handle = self.torch.cuda.get_device_properties(self.index).uuid, None
            for kind in ("GPU", "MIG"):
                with suppress(nvml.NVMLError):
                    handle = handle or nvml.nvmlDeviceGetHandleByUUID(f"{kind}-{uuid}")
            found = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
            if found.total < 1.2 * self.total_bytes:  # else it is the card of the slice
                memory = DeviceMemory(found.total, found.used, found.free)
                rows = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
                own_bytes = next((row.usedGpuMemory for row in rows if row.pid == os.getpid()), None)
                listed_bytes = sum(row.usedGpuMemory or 0 for row in rows if row.pid != os.getpid())
        nvml.nvmlShutdown()
        return memory, own_bytes, listed_bytes

    def clean(self) -> None:
        """Empty the cache, and begin the peaks anew."""
        gc.collect()
        self.torch.accelerator.synchronize(self.index)
        with suppress(*state.TORCH_ERRORS):  # an allocator that neither caches nor counts
            self.memory.empty_cache()
            self.memory.reset_peak_memory_stats(self.index)


def amounts(device: Device) -> Iterator[Found]:
    """Yield the figures of amounts that come, stay and go."""
    unit = device.unit_bytes
    if device.block_bytes == PAGE_BYTES:
        yield Unchecked(device.id, "sizes of no whole pages", "how this allocator rounds them is unknown")
    large, odd = ("large", unit, 4 * unit), ("odd sizes", unit + 1, 3 * unit + 777)
    small = ("one byte kept", 1, 2 * unit), ("1537 bytes for a moment", 0, 1537)
    yield from device.amounts((large, odd, *small))


def scopes(device: Device) -> Iterator[Found]:
    """Yield the figures of nested and overlapping scopes, around all that may happen in them."""
    steps, memory = device.nested, device.memory
    yield from device.play("scopes", steps())
    yield from device.play("in threads", steps(), in_a_thread)
    yield from device.play("empty_cache() between", steps(memory.empty_cache))
    reset = partial(memory.reset_peak_memory_stats, device.index)
    yield from device.play("reset_peak_memory_stats() between", steps(reset))
    streams, case = getattr(device.torch, device.backend), "on a second stream"
    if not hasattr(streams, "Stream"):
        yield Unchecked(device.id, case, f"torch.{device.backend} has no streams")
        return
    stream = streams.Stream(device.index)

    def on_stream(step: Callable[[], Any]) -> Any:
        with streams.stream(stream):
            return step()

    yield from device.play(case, steps(), on_stream)


def at_a_reset(device: Device) -> Iterator[Found]:
    """Yield the figures of memory that comes and goes between our reading of a peak and its reset."""
    core, name, unit = device.torch._C, f"_{device.backend}_resetPeakMemoryStats", device.unit_bytes
    if not device.counts or not hasattr(core, name):
        return
    scope = Scope().open()
    reset = getattr(core, name)  # wrapped by us while a scope is open

    def late(index: int) -> None:
        device.take(2 * unit)
        inspect.unwrap(reset)(index)

    try:
        device.take(unit)
        setattr(core, name, late)
        Scope().open().close()
    finally:
        setattr(core, name, reset)
        scope.close()
    yield from figures(device.id, "for a moment, while we reset", device.usage(scope), 0, 2 * unit)


def users_counters(device: Device) -> Iterator[Found]:
    """Yield what the user's own counters say while we measure, beside what they say without us."""
    memory, index, said = device.memory, device.index, list[dict[str, int]]()

    def ask() -> None:
        stats = memory.memory_stats(index)
        said.append({name: stats[name] for name in stats if name.endswith((".peak", ".current"))})
        memory.reset_peak_memory_stats(index)

    for measured in False, True:
        device.clean()
        steps = ("moment", 5 * device.unit_bytes), *device.nested(ask)
        list(device.play("", steps, measured=measured))
    half = len(said) // 2
    both = zip(said[:half], said[half:], strict=True)
    pairs = [(without[name], with_us[name]) for without, with_us in both for name in without]
    truth, shown = max(pairs, key=lambda pair: abs(pair[0] - pair[1]))  # the worst stands for all
    yield exact(device.id, "the user's own counters", "memory_stats()", truth, shown)


def pinned() -> Iterator[Found]:
    """Yield the figure of page-locked memory."""
    torch, case = state.module(), "pinned memory kept"
    if state.accelerator() != "cuda" or not hasattr(torch._C, "_cuda_hostMemoryStats"):
        if state.accelerator():  # else there is no device
            yield Unchecked("pinned", case, "torch does not count it here")
        return
    torch._C._host_emptyCache()
    scope = Scope().open()
    kept = torch.empty(8 * MB, dtype=torch.uint8, pin_memory=True)
    scope.close()
    found = scope.result(Measurement, "").pinned
    yield exact("pinned", case, "consumed", len(kept), found.consumed_bytes if found else 0)
    del kept
    torch._C._host_emptyCache()


def graph(device: Device) -> Iterator[Found]:
    """Yield the figures of a CUDA graph, whose memory is in a pool of its own."""
    case, torch, unit = "a CUDA graph's private pool", device.torch, device.unit_bytes
    if device.backend != "cuda" or not device.counts:
        yield Unchecked(device.id, case, "only CUDA's caching allocator has them")
        return
    stream, captured = torch.cuda.Stream(device.index), torch.cuda.CUDAGraph()
    device.take(PAGE_BYTES).zero_()  # loads what fills memory
    scope = Scope().open()
    with torch.cuda.graph(captured, stream=stream):
        device.take(unit).zero_()
    captured.replay()
    torch.cuda.synchronize(device.index)
    torch.cuda.empty_cache()
    scope.close()
    usage = device.usage(scope)
    yield exact(device.id, case, "in private pools", (unit, max(unit, 20 * MB)), usage.pools_bytes)
    segments = [one for one in torch.cuda.memory_snapshot() if one["device"] == device.index]
    reserved_bytes = sum(one["total_size"] for one in segments)
    yield exact(device.id, case, "reserved", reserved_bytes, usage.reserved_bytes)
