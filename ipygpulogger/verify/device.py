"""Known amounts of memory on every device that torch sees, by torch and beside it, each with the truth.

A tenth of each device stays free, and no check runs out of memory on purpose.
"""

from __future__ import annotations

import ctypes
import gc
import os
import random
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..engine.machine import machine
from ..engine.scope import Scope
from ..records import Measurement, device_id
from ..records.units import MB, size_text
from ..runtime import clock
from ..runtime.errors import first_line
from ..sources.torch import state
from ..sources.torch.allocators import Torch
from .check import Check, Figure, Unchecked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ..records import DeviceUsage

    Found = Figure | Unchecked
    Span = tuple[int, int]  # the truth lies in it, both ends included
    Step = tuple[Literal["keep", "free", "moment", "open", "close", "call"], Any]

PAGE_BYTES = 2 * MB  # what the driver gives and takes back at once
MOST_BYTES = 1024 * MB
UNITS = 16  # no check holds more than so many of `unit_bytes`, with what the allocator caches
SEEN_WITHIN_S = 2.0  # the sampler looks for the first time after a tenth of a second
_NOT_BY_PROCESS = "the driver does not report what this process holds, as in containers and under WSL"


def _exact(where: str, case: str, what: str, truth: int | Span, shown: int | None) -> Found:
    if shown is None:
        return Unchecked(where, f"{case}: {what}", "unknown here")
    return Figure(where, case, what, _span(truth), shown, shown, "exact")


def _span(truth: int | Span) -> Span:
    return (truth, truth) if isinstance(truth, int) else truth


def _figures(case: str, usage: DeviceUsage, consumed: int | Span, needed: int | Span) -> Iterator[Found]:
    """Yield what a scope consumed and needed on a device, beside the truth."""
    if not usage.attributed:
        yield Unchecked(usage.id, case, _NOT_BY_PROCESS)
        return
    yield Figure.consumed(usage.id, case, _span(consumed), usage)
    yield Figure.needed(usage.id, case, _span(needed), usage)


class Device:
    """One device of torch, and how much of it a check may hold."""

    def __init__(self, torch: Any, backend: str, index: int) -> None:
        self.torch, self.backend, self.index, self.id = torch, backend, index, device_id(backend, index)
        torch.empty(1, device=self.id)  # makes the context
        self.memory = state.devices(backend)
        self.free_bytes, self.total_bytes = state.mem_get_info(index)
        most_bytes = min(MOST_BYTES, self.free_bytes - self.total_bytes // 10)
        self.unit_bytes = most_bytes // UNITS // PAGE_BYTES * PAGE_BYTES
        self.block_bytes = 512 if backend in ("cuda", "xpu") else PAGE_BYTES
        if any("roundup" in value for name, value in os.environ.items() if name.endswith("ALLOC_CONF")):
            self.block_bytes = PAGE_BYTES  # how others round is unknown
        elif backend == "cuda" and not state.caches():
            self.block_bytes = PAGE_BYTES
        elif backend == "cuda" and torch.cuda.get_allocator_backend() == "cudaMallocAsync":
            self.block_bytes = 1

    def held_bytes(self, size_bytes: int) -> int:
        """Return what the allocator counts for a tensor of so many bytes."""
        return -(-size_bytes // self.block_bytes) * self.block_bytes

    def tensor(self, size_bytes: int) -> Any:
        """Return a tensor; where the allocator's rounding is unknown, one of whole pages."""
        size_bytes = self.held_bytes(size_bytes) if self.block_bytes == PAGE_BYTES else size_bytes
        return self.torch.empty(size_bytes, dtype=self.torch.uint8, device=self.id)

    def usage(self, scope: Scope) -> DeviceUsage:
        """Return this device's figures of a scope."""
        found = [gpu for gpu in scope.result(Measurement, "").gpus if gpu.id == self.id]
        if not found:
            raise LookupError(f"{self.id} is missing in the record")
        return found[0]

    def ask(self) -> tuple[int, int, int | None, int | None]:
        """Return from the driver, past the package: total, free and used bytes, and those of this process."""
        free_bytes, total_bytes = state.mem_get_info(self.index)
        try:
            import pynvml as nvml

            nvml.nvmlInit()
        except Exception:  # whatever the driver's library raises
            return total_bytes, free_bytes, None, None
        try:
            uuid, handle = self.torch.cuda.get_device_properties(self.index).uuid, None
            for kind in ("GPU", "MIG"):
                with suppress(nvml.NVMLError):
                    handle = handle or nvml.nvmlDeviceGetHandleByUUID(f"{kind}-{uuid}")
            memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
            rows = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            own = next((row.usedGpuMemory for row in rows if row.pid == os.getpid()), None)
            if memory.total < 1.2 * total_bytes:  # else CUDA gave the UUID of the card, not of the slice
                return memory.total, memory.free, memory.used, own
        except (nvml.NVMLError, AttributeError, RuntimeError):
            pass
        finally:
            nvml.nvmlShutdown()
        return total_bytes, free_bytes, None, None

    def clean(self) -> None:
        """Empty the cache, and begin the peaks anew."""
        gc.collect()
        self.torch.accelerator.synchronize(self.index)
        with suppress(*state.TORCH_ERRORS):  # without an allocator that caches or counts
            self.memory.empty_cache()
            self.memory.reset_peak_memory_stats(self.index)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make it the current device meanwhile; clean before and after."""
        accelerator = self.torch.accelerator
        was = accelerator.current_device_index()
        try:
            accelerator.set_device_index(self.index)
            self.clean()
            yield
        finally:
            self.clean()
            accelerator.set_device_index(was)
            machine().close()


def _devices() -> list[Device | Unchecked]:
    """Return each device that torch sees, or why it cannot be checked."""
    source = Torch()
    source.load()
    torch = state.module()
    if torch is None:
        return [Unchecked("devices", "all", f"torch: {source.diagnose().says}")]
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        return [Unchecked("devices", "all", f"torch {torch.__version__} finds no device")]
    found: list[Device | Unchecked] = []
    for index in range(torch.accelerator.device_count()):
        where = device_id(accelerator.type, index)
        try:
            device = Device(torch, accelerator.type, index)
        except state.TORCH_ERRORS as error:
            found.append(Unchecked(where, "all", f"torch cannot use it: {first_line(error)}"))
            continue
        free, total = size_text(device.free_bytes), size_text(device.total_bytes)
        little = f"too little is free: {free} of {total}, of which a tenth is left alone"
        found.append(device if device.unit_bytes > 0 else Unchecked(where, "all", little))
    return found


def _usable() -> list[Device]:
    return [device for device in _devices() if isinstance(device, Device)]


def _unusable() -> Iterator[Found]:
    devices = _devices()
    yield from (one for one in devices if isinstance(one, Unchecked))
    if len(devices) == 1 and isinstance(devices[0], Device):
        yield Unchecked("devices", "several at once", "there is one device only")


def _on_each(case: Callable[[Device], Iterator[Found]]) -> Callable[[], Iterator[Found]]:
    def run() -> Iterator[Found]:
        for device in _usable():
            with device.current():
                yield from case(device)

    return run


# -- the allocator's bytes -----------------------------------------------------------------------------


def _directly(step: Callable[[], Any]) -> Any:
    return step()


def _in_a_thread(step: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(step).result()


def play(
    device: Device,
    case: str,
    steps: Iterable[Step],
    *,
    via: Callable[[Callable[[], Any]], Any] = _directly,
    measured: bool = True,
) -> Iterator[Found]:
    """Run a program, and yield the figures of each of its scopes beside the truth."""
    kept: list[tuple[int, Any]] = []
    scopes: dict[str, tuple[Scope, int, list[int]]] = {}  # in use before, and after each step
    counts = state.caches() or device.backend != "cuda"
    base_bytes = device.memory.memory_allocated(device.index) if counts else 0
    try:
        for verb, what in steps:
            if verb in ("keep", "moment"):
                kept.append((device.held_bytes(what), via(partial(device.tensor, what))))
            now_bytes = sum(size_bytes for size_bytes, _ in kept)
            for _, _, levels in scopes.values():
                levels.append(now_bytes)
            if verb == "call":
                what()
            elif verb == "open" and measured and what not in scopes:
                scopes[what] = Scope().open(), now_bytes, [now_bytes]
            elif verb == "close" and what in scopes:
                scope, before_bytes, levels = scopes.pop(what)
                scope.close()
                usage, about, where = device.usage(scope), f"{case}, {what}", device.id
                highest_bytes = max(levels)
                yield from _figures(about, usage, now_bytes - before_bytes, highest_bytes - before_bytes)
                if counts:
                    yield _exact(
                        where, about, "used by tensors", base_bytes + now_bytes, usage.allocated_bytes
                    )
            elif verb in ("free", "moment") and kept:
                via(partial(kept.__delitem__, 0 if verb == "free" else -1))
    finally:
        for scope, _, _ in scopes.values():
            scope.close()


def _amounts(device: Device) -> Iterator[Found]:
    unit = device.unit_bytes
    if device.block_bytes == PAGE_BYTES:
        yield Unchecked(device.id, "sizes of no whole pages", "how this allocator rounds them is unknown")
    for case, kept, moment in (
        ("large", unit, 4 * unit),
        ("odd sizes", unit + 1, 3 * unit + 777),
        ("one byte kept", 1, 2 * unit),
        ("1537 bytes for a moment", 0, 1537),
    ):
        steps = ("open", "taken"), ("moment", moment), ("keep", kept), ("close", "taken")
        back = ("open", "given back"), ("free", 0), ("close", "given back")
        yield from play(device, case, (*steps, *back))


def _nested(unit: int, between: Callable[[], object] = lambda: None) -> tuple[Step, ...]:
    return (
        *(("keep", unit), ("open", "outer"), ("keep", unit), ("open", "inner"), ("moment", 2 * unit)),
        *(("call", between), ("open", "overlapping"), ("keep", unit), ("close", "inner")),
        *(("moment", 3 * unit + 1), ("free", 0), ("call", between), ("close", "overlapping")),
        *(("free", 0), ("call", between), ("close", "outer")),
    )


def _scopes(device: Device) -> Iterator[Found]:
    steps, reset = partial(_nested, device.unit_bytes), device.memory.reset_peak_memory_stats
    yield from play(device, "scopes", steps())
    yield from play(device, "each step in a thread", steps(), via=_in_a_thread)
    yield from play(device, "empty_cache() between", steps(device.memory.empty_cache))
    yield from play(device, "reset_peak_memory_stats() between", steps(partial(reset, device.index)))
    streams, case = getattr(device.torch, device.backend), "on a second stream"
    if not hasattr(streams, "Stream"):
        yield Unchecked(device.id, case, f"torch.{device.backend} has no streams")
        return
    stream = streams.Stream(device.index)

    def on_stream(step: Callable[[], Any]) -> Any:
        with streams.stream(stream):
            return step()

    yield from play(device, case, steps(), via=on_stream)


def _beside_a_thread(device: Device) -> Iterator[Found]:
    done, began = threading.Event(), threading.Event()

    def restless() -> None:
        while not done.is_set():
            device.tensor(device.unit_bytes)
            began.set()

    thread, scope = threading.Thread(target=restless), Scope().open()
    try:
        thread.start()
        began.wait()
        for _ in range(50):
            Scope().open().close()
    finally:
        done.set()
        thread.join()
        scope.close()
    yield from _figures("scopes open while a thread allocates", device.usage(scope), 0, device.unit_bytes)


def _asked(device: Device, seed: int, *, measured: bool) -> dict[str, list[int]]:
    """Return what the user's own counters say during a random program."""
    memory, index, rng = device.memory, device.index, random.Random(seed)  # noqa: S311 - no secret
    said: dict[str, list[int]] = {}

    def ask() -> None:
        for name in ("max_memory_allocated", "max_memory_reserved"):
            said.setdefault(f"{name}()", []).append(getattr(memory, name)(index))
        for name, value in memory.memory_stats(index).items():
            if name.endswith((".peak", ".current")):
                said.setdefault(f"memory_stats(): {name}", []).append(value)

    def step() -> Step:
        size_bytes, scope = rng.randint(1, device.unit_bytes // 2), str(rng.randrange(3))
        moves: tuple[Step, ...] = ("keep", size_bytes), ("moment", size_bytes), ("free", 0)
        calls = ask, memory.empty_cache, partial(memory.reset_peak_memory_stats, index)
        return rng.choice((*moves, ("open", scope), ("close", scope), *(("call", one) for one in calls)))

    device.clean()
    list(play(device, "", (*(step() for _ in range(40)), ("call", ask)), measured=measured))
    return said


def _users_counters(device: Device) -> Iterator[Found]:
    for seed in range(3):
        without, ours = (_asked(device, seed, measured=measured) for measured in (False, True))
        case = f"the user's own counters, random program {seed}"
        for what in ("max_memory_allocated()", "max_memory_reserved()", "memory_stats()"):
            both = [p for k in without if k.startswith(what) for p in zip(without[k], ours[k], strict=True)]
            truth, shown = max(both, key=lambda pair: abs(pair[0] - pair[1]))  # the worst stands for all
            yield _exact(device.id, case, what, truth, shown)


def _pinned() -> Iterator[Found]:
    torch, case = state.module(), "pinned memory kept"
    if state.accelerator() != "cuda" or not hasattr(torch._C, "_cuda_hostMemoryStats"):
        yield Unchecked("pinned", case, "torch does not count it here")
        return
    torch._C._host_emptyCache()
    scope = Scope().open()
    kept = torch.empty(8 * MB, dtype=torch.uint8, pin_memory=True)
    scope.close()
    pinned = scope.result(Measurement, "").pinned
    yield _exact("pinned", case, "consumed", len(kept), pinned.consumed_bytes if pinned else 0)
    del kept
    torch._C._host_emptyCache()


def _graph(device: Device) -> Iterator[Found]:
    case, torch, unit = "a CUDA graph's private pool", device.torch, device.unit_bytes
    if device.backend != "cuda" or not state.caches():
        yield Unchecked(device.id, case, "only CUDA's caching allocator has them")
        return
    stream, graph = torch.cuda.Stream(device.index), torch.cuda.CUDAGraph()
    device.tensor(PAGE_BYTES).zero_()  # loads what fills memory
    was_bytes, scope = device.memory.memory_allocated(device.index), Scope().open()
    with torch.cuda.graph(graph, stream=stream):
        device.tensor(unit).zero_()
    graph.replay()
    torch.cuda.synchronize(device.index)
    torch.cuda.empty_cache()
    scope.close()
    usage, kept_bytes = device.usage(scope), device.memory.memory_allocated(device.index) - was_bytes
    yield from _figures(case, usage, kept_bytes, kept_bytes + unit)  # a graph keeps the random numbers' state
    yield _exact(device.id, case, "in private pools", (unit, max(unit, 20 * MB)), usage.pools_bytes)
    reserved_bytes = torch.cuda.memory_reserved(device.index)
    yield _exact(device.id, case, "reserved", reserved_bytes, usage.reserved_bytes)


# -- the whole device, and what is beside torch ---------------------------------------------------------


def _ladder(device: Device) -> Iterator[Found]:
    kept, scope, case = device.tensor(device.unit_bytes), Scope().open(), "the whole device"
    scope.close()
    first, usage, last = device.ask(), device.usage(scope), device.ask()
    free, used = (min(first[1], last[1]), max(first[1], last[1])), (first[2], last[2])
    yield _exact(device.id, case, "free", free, usage.free_bytes)
    yield _exact(device.id, case, "total", first[0], sum(rung.size_bytes for rung in usage.ladder))
    if used[0] is None or used[1] is None:
        yield Unchecked(device.id, f"{case}: used", "the driver cannot be asked apart from us")
        return
    span = min(used), max(used)
    yield _exact(device.id, case, "used", span, usage.used_bytes)
    if last[3] is None:
        yield Unchecked(device.id, f"{case}: other processes", _NOT_BY_PROCESS)
    else:
        others = span[0] - last[3], span[1] - last[3]
        yield _exact(device.id, case, "used by other processes", others, usage.neighbours_bytes)
    del kept


@contextmanager
def _raw(library: Any, size_bytes: int) -> Iterator[None]:
    """Hold memory of the driver's, of which torch knows nothing."""
    kind, address = ("cuda" if hasattr(library, "cudaMalloc") else "hip"), ctypes.c_void_p()
    if getattr(library, f"{kind}Malloc")(ctypes.byref(address), ctypes.c_size_t(size_bytes)):
        raise MemoryError(f"the driver refuses {size_text(size_bytes)}")
    try:
        yield
    finally:
        getattr(library, f"{kind}Free")(address)


def _beside_torch(device: Device) -> Iterator[Found]:
    exact, size_bytes = partial(_exact, device.id), 2 * device.unit_bytes
    truth = size_bytes, size_bytes + PAGE_BYTES  # the driver may need another page to keep account
    maps = Path("/proc/self/maps").read_bytes() if sys.platform == "linux" else b""
    found = re.search(rb"/\S*lib(?:cudart|amdhip64)\S*\.so\S*", maps)
    if found is None:
        yield Unchecked(device.id, "memory beside torch", "no runtime library of the device is loaded")
        return
    library, case = ctypes.CDLL(os.fsdecode(found[0])), "beside torch, kept"
    before, scope = device.usage(Scope().open()), Scope().open()
    with _raw(library, size_bytes):
        scope.close()
        usage, own_bytes = device.usage(scope), device.ask()[3]
    if None not in (before.other_bytes, usage.other_bytes):
        yield exact(case, "outside the allocator", truth, usage.other_bytes - before.other_bytes)
    if own_bytes is not None:
        yield from _figures(case, usage, truth, truth)
    else:
        yield exact(case, "attributed to no process", truth, usage.unattributed_bytes)
    case, scope, until_s = "beside torch, for a moment", Scope().open(), clock.monotonic_s() + SEEN_WITHIN_S
    with _raw(library, size_bytes):
        used_bytes = device.ask()[2] or 0
        (one,) = (one for one in scope.device_scopes() if one.device.id == device.id)
        while one.highest_used_bytes < used_bytes and clock.monotonic_s() < until_s:
            time.sleep(0.01)
    scope.close()
    if not used_bytes or one.device.uuid is None:
        yield Unchecked(device.id, case, "nothing samples the whole device here")
        return
    usage = device.usage(scope)
    yield from _figures(case, usage, 0, truth)
    seen_bytes = max(used for _, used in usage.timeline or [(0, 0)]) - (usage.used_bytes or 0)
    yield exact(case, "used over time", truth, seen_bytes)


def checks() -> list[Check]:
    """Return the checks of all devices."""
    return [
        Check("which devices there are", _unusable),
        Check("devices: for a moment, and kept", _on_each(_amounts)),
        Check("devices: scopes, threads and streams", _on_each(_scopes)),
        Check("devices: while a thread allocates", _on_each(_beside_a_thread)),
        Check("devices: the user's own counters", _on_each(_users_counters)),
        Check("pinned memory", _pinned),
        Check("devices: CUDA graphs", _on_each(_graph)),
        Check("devices: used, free, others", _on_each(_ladder)),
        Check("devices: beside torch", _on_each(_beside_torch)),
    ]
