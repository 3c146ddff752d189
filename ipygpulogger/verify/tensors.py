"""Known amounts of tensors on a device: in scopes that overlap, in threads, on streams, in graphs."""

from __future__ import annotations

import gc
import inspect
import os
import random
import re
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from ..engine.machine import machine
from ..engine.scope import Scope
from ..records import Measurement, device_id
from ..records.units import MB
from ..runtime.errors import call_uninterrupted
from ..sources import DeviceMemory
from ..sources.torch import state
from .check import Figure, Unchecked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ..records import DeviceUsage

    Found = Figure | Unchecked
    Truth = int | tuple[int, int]  # exactly, or between these
    Step = tuple[str, Any]  # "keep", "moment" (bytes), "free", "open", "close" (a scope) or "call"
    Via = Callable[[Callable[[], Any]], Any]

PAGE_BYTES = 2 * MB  # what the driver gives and takes back at once
MOST_BYTES = 1024 * MB
_UNITS = 16  # no check holds more than so many of `unit_bytes`, with what the allocator caches
NOT_BY_PROCESS = "the driver does not report what this process holds, as in containers and under WSL"


def exact(where: str, case: str, what: str, truth: Truth, shown: int | None) -> Found:
    """Return a figure that claims to be exact, beside the truth."""
    if shown is None:
        return Unchecked(where, f"{case}: {what}", "unknown here")
    return Figure(where, case, what, _span(truth), shown, shown, "exact")


def figures(case: str, usage: DeviceUsage, consumed: Truth, needed: Truth) -> Iterator[Found]:
    """Yield what a scope consumed and needed on a device, beside the truth."""
    if usage.attributed:
        yield Figure.consumed(usage.id, case, _span(consumed), usage)
        yield Figure.needed(usage.id, case, _span(needed), usage)
    else:
        yield Unchecked(usage.id, case, NOT_BY_PROCESS)


def _span(truth: Truth) -> tuple[int, int]:
    return (truth, truth) if isinstance(truth, int) else truth


class Device:
    """One device of torch, and how much of it a check may hold."""

    def __init__(self, torch: Any, backend: str, index: int) -> None:
        self.torch, self.backend, self.index, self.id = torch, backend, index, device_id(backend, index)
        self.memory, self.counts = state.devices(backend), backend != "cuda" or state.caches()
        native = backend == "xpu" or (backend == "cuda" and torch.cuda.get_allocator_backend() == "native")
        settings = "".join(value for name, value in os.environ.items() if name.endswith("ALLOC_CONF"))
        known = native and self.counts and not re.search("roundup|split_size", settings)
        self.block_bytes = 512 if known else PAGE_BYTES  # of other allocators whole pages are sure
        torch.empty(0, device=self.id)
        torch.accelerator.synchronize(index)  # makes the context
        self.used_bytes()  # which some cannot tell
        self.free_bytes, self.total_bytes = state.mem_get_info(index)
        most_bytes = min(MOST_BYTES, self.free_bytes - self.total_bytes // 10)
        self.unit_bytes = most_bytes // _UNITS // PAGE_BYTES * PAGE_BYTES

    def used_bytes(self) -> int:
        """Return what torch's own counter says, where it counts."""
        return int(self.memory.memory_allocated(self.index)) if self.counts else 0

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

    def ask(self) -> tuple[DeviceMemory | None, int | None]:
        """Return from the driver, past the package, the memory of the device, and that of this process."""
        try:
            import pynvml as nvml

            nvml.nvmlInit()
        except Exception:  # whatever the driver's library raises
            free_bytes, total_bytes = state.mem_get_info(self.index)
            return DeviceMemory(total_bytes, total_bytes - free_bytes, free_bytes), None
        memory = own_bytes = None
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
        nvml.nvmlShutdown()
        return memory, own_bytes

    def clean(self) -> None:
        """Empty the cache, and begin the peaks anew."""
        gc.collect()
        self.torch.accelerator.synchronize(self.index)
        with suppress(*state.TORCH_ERRORS):  # an allocator that neither caches nor counts
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
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)  # which hold tensors
            raise
        finally:
            try:
                call_uninterrupted(self.clean)
            finally:
                accelerator.set_device_index(was)  # of this thread alone
                machine().close()


def _in_a_thread(step: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(step).result()


def play(
    device: Device, case: str, steps: Iterable[Step], via: Via = lambda step: step(), *, measured: bool = True
) -> Iterator[Found]:
    """Run a program, and yield the figures of each of its scopes beside the truth."""
    kept: list[tuple[int, Any]] = []
    scopes: dict[str, tuple[Scope, int, list[int]]] = {}  # in use before, and after each step
    base_bytes, told = device.used_bytes(), False
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
                usage, slack_bytes = device.usage(scope), 0 if device.counts else PAGE_BYTES
                consumed, needed = now_bytes - before_bytes, max(levels) - before_bytes
                spans = (consumed - slack_bytes, consumed + slack_bytes), (needed, needed + slack_bytes)
                yield from figures(f"{case}, {what}", usage, *spans)
                if device.counts and not told:
                    told, used = True, base_bytes + now_bytes
                    yield exact(device.id, f"{case}, {what}", "used by tensors", used, usage.allocated_bytes)
            elif verb in ("free", "moment") and kept:
                via(partial(kept.__delitem__, 0 if verb == "free" else -1))
    finally:
        for scope, _, _ in scopes.values():
            scope.close()


def amounts(device: Device, *, few: bool = False) -> Iterator[Found]:
    """Yield the figures of amounts that come, stay and go."""
    unit = device.unit_bytes
    if device.block_bytes == PAGE_BYTES:
        yield Unchecked(device.id, "sizes of no whole pages", "how this allocator rounds them is unknown")
    cases = ("large", unit, 4 * unit), ("odd sizes", unit + 1, 3 * unit + 777)
    small = ("one byte kept", 1, 2 * unit), ("1537 bytes for a moment", 0, 1537)
    for case, kept, moment in cases if few else (*cases, *small):
        taken = ("open", "taken"), ("moment", moment), ("keep", kept), ("close", "taken")
        yield from play(device, case, (*taken, ("open", "given back"), ("free", 0), ("close", "given back")))


def _nested(unit: int, between: Callable[[], object] = lambda: None) -> Iterable[Step]:
    return (
        *(("keep", unit), ("open", "outer"), ("keep", unit), ("open", "inner"), ("moment", 2 * unit)),
        *(("call", between), ("open", "overlapping"), ("keep", unit), ("close", "inner")),
        *(("moment", 3 * unit + 1), ("free", 0), ("call", between), ("close", "overlapping")),
        *(("free", 0), ("call", between), ("close", "outer")),
    )


def scopes(device: Device) -> Iterator[Found]:
    """Yield the figures of nested and overlapping scopes, around all that may happen in them."""
    steps, reset = partial(_nested, device.unit_bytes), device.memory.reset_peak_memory_stats
    yield from play(device, "scopes", steps())
    yield from play(device, "in threads", steps(), _in_a_thread)
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

    yield from play(device, case, steps(), on_stream)


def beside_a_thread(device: Device) -> Iterator[Found]:
    """Yield the figures of a scope in which others open and close while a thread allocates."""

    def restless() -> None:
        for _ in range(3000):
            device.tensor(device.unit_bytes)

    with ThreadPoolExecutor(1) as pool:
        scope = Scope().open()
        running = pool.submit(restless)
        while not running.done():
            Scope().open().close()
    running.result()
    scope.close()
    yield from figures("scopes open while a thread allocates", device.usage(scope), 0, device.unit_bytes)
    yield from _at_a_reset(device)


def _at_a_reset(device: Device) -> Iterator[Found]:
    """Yield the figures of memory that comes and goes between our reading of a peak and its reset."""
    core, name, unit = device.torch._C, f"_{device.backend}_resetPeakMemoryStats", device.unit_bytes
    if not device.counts or not hasattr(core, name):
        return
    scope = Scope().open()
    reset = getattr(core, name)  # wrapped by us while a scope is open

    def late(index: int) -> None:
        device.tensor(2 * unit)
        inspect.unwrap(reset)(index)

    try:
        device.tensor(unit)
        setattr(core, name, late)
        Scope().open().close()
    finally:
        setattr(core, name, reset)
        scope.close()
    yield from figures("for a moment, while we reset", device.usage(scope), 0, 2 * unit)


def _asked(device: Device, seed: int, *, measured: bool) -> list[dict[str, int]]:
    """Return what the user's own counters say during a random program."""
    memory, index, rng = device.memory, device.index, random.Random(seed)  # noqa: S311 - no secret
    said: list[dict[str, int]] = []

    def ask() -> None:
        stats = {k: v for k, v in memory.memory_stats(index).items() if k.endswith((".peak", ".current"))}
        said.append({f"memory_stats(): {name}": value for name, value in stats.items()})
        for name in ("max_memory_allocated", "max_memory_reserved"):
            said[-1][f"{name}()"] = getattr(memory, name)(index)

    calls = ask, memory.empty_cache, partial(memory.reset_peak_memory_stats, index)

    def step() -> Step:
        verb = rng.choice(("keep", "moment", "free", "open", "close", "call", "call", "call"))
        arguments = {"open": str(rng.randrange(3)), "close": str(rng.randrange(3)), "call": rng.choice(calls)}
        return verb, arguments.get(verb, rng.randint(1, device.unit_bytes // 2))

    device.clean()
    list(play(device, "", (*(step() for _ in range(40)), ("call", ask)), measured=measured))
    return said


def users_counters(device: Device) -> Iterator[Found]:
    """Yield what the user's own counters say while we measure, beside what they say without us."""
    for seed in range(3):
        both = zip(*(_asked(device, seed, measured=measured) for measured in (False, True)), strict=True)
        pairs = [(name, a[name], b[name]) for a, b in both for name in a]
        case = f"the user's own counters, random program {seed}"
        for what in ("max_memory_allocated()", "max_memory_reserved()", "memory_stats()"):
            each = [
                (abs(truth - shown), truth, shown) for name, truth, shown in pairs if name.startswith(what)
            ]
            _, truth, shown = max(each)  # the worst stands for all
            yield exact(device.id, case, what, truth, shown)


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
    device.tensor(PAGE_BYTES).zero_()  # loads what fills memory
    before, own_before, scope = device.used_bytes(), _outside(device), Scope().open()
    with torch.cuda.graph(captured, stream=stream):
        device.tensor(unit).zero_()
    captured.replay()
    torch.cuda.synchronize(device.index)
    torch.cuda.empty_cache()
    scope.close()
    # A graph keeps the state of the random numbers, and on real devices what the driver needs for it.
    usage, drift, kept = device.usage(scope), _outside(device) - own_before, device.used_bytes() - before
    yield from figures(case, usage, kept + drift, (kept + unit, kept + unit + abs(drift)))
    yield exact(device.id, case, "in private pools", (unit, max(unit, 20 * MB)), usage.pools_bytes)
    segments = [one for one in torch.cuda.memory_snapshot() if one["device"] == device.index]
    reserved_bytes = sum(one["total_size"] for one in segments)
    yield exact(device.id, case, "reserved", reserved_bytes, usage.reserved_bytes)


def _outside(device: Device) -> int:
    own_bytes = device.ask()[1]
    return 0 if own_bytes is None else own_bytes - int(device.memory.memory_reserved(device.index))
