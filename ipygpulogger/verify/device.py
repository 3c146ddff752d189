"""Known amounts of memory on every device that torch sees, by torch and beside it, each with the truth.

A tenth of each device stays free, and no check runs out of memory on purpose.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from ..engine.machine import machine
from ..engine.scope import Scope
from ..records import DRIVER, Measurement, device_id
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
_NOT_BY_PROCESS = "the driver does not report what this process holds, as in containers and under WSL"


def _exact(where: str, case: str, what: str, truth: int | Span, shown: int | None) -> Found:
    if shown is None:
        return Unchecked(where, f"{case}: {what}", "unknown here")
    span = (truth, truth) if isinstance(truth, int) else truth
    return Figure(where, case, what, span, shown, shown, "exact")


def _figures(case: str, usage: DeviceUsage, consumed: int | Span, needed: int) -> Iterator[Found]:
    """Yield what a scope consumed and needed on a device, beside the truth."""
    if not usage.attributed:
        yield Unchecked(usage.id, case, _NOT_BY_PROCESS)
        return
    span = (consumed, consumed) if isinstance(consumed, int) else consumed
    yield Figure.consumed(usage.id, case, span, usage)
    yield Figure.needed(usage.id, case, (needed, needed), usage)


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
                    yield _exact(where, about, "used by tensors", base_bytes + now_bytes, usage.allocated_bytes)
            elif verb in ("free", "moment") and kept:
                via(lambda: kept.pop(what if verb == "free" else -1) and None)
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


def _nested(unit: int, between: Callable[[], object] = gc.collect) -> tuple[Step, ...]:
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
    memory, index, rng, kept = device.memory, device.index, random.Random(seed), 0
    said: dict[str, list[int]] = {}
    steps: list[Step] = []

    def ask() -> None:
        for name in ("max_memory_allocated", "max_memory_reserved"):
            said.setdefault(f"{name}()", []).append(getattr(memory, name)(index))
        for name, value in memory.memory_stats(index).items():
            if name.endswith((".peak", ".current")):
                said.setdefault(f"memory_stats(): {name}", []).append(value)

    calls = ask, memory.empty_cache, partial(memory.reset_peak_memory_stats, index)
    for _ in range(40):
        size_bytes, step = rng.randint(1, device.unit_bytes // 2), rng.randrange(9)
        if step < 2:
            steps.append(("keep", size_bytes))
            kept += 1
        elif step == 2 and kept:
            kept -= 1
            steps.append(("free", rng.randint(0, kept)))
        elif step == 3:
            steps.append(("moment", size_bytes))
        elif step in (4, 5):
            steps.append(("open" if step == 4 else "close", str(rng.randrange(3))))
        elif step > 5:
            steps.append(("call", calls[step - 6]))
    device.clean()
    list(play(device, "", (*steps, ("call", ask)), measured=measured))
    return said


def _users_counters(device: Device) -> Iterator[Found]:
    for seed in range(5):
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
    ]
