"""The figures on a device, held against torch's own and NVML's: `nox -s gpu` has them checked on a real one.

The device should be quiet: a neighbour whose memory moves meanwhile shows in `used`.
"""

import contextlib
import ctypes
import gc
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import pytest
from kernels import Kernel
from memory import MB

from ipygpulogger import measure
from ipygpulogger.engine.machine import machine
from ipygpulogger.engine.scope import Scope
from ipygpulogger.records import Measurement

# A stranger's machine may have warnings of its own: shown, and no errors.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

NOBODY_TELLS = "the driver does not tell which process holds what (a container, WSL)"


# -- the allocator's bytes ---------------------------------------------------------------------------


@pytest.mark.parametrize(("kept_bytes", "moment_bytes"), [(100 * MB, 500 * MB), (512, 20 * MB), (0, 1536)])
def test_consumed_and_peaked_to_the_byte(card, kept_bytes, moment_bytes):
    """What is kept is consumed, and what was needed on top for a moment is the peak; exactly."""
    kept = []

    def cell():
        card.tensor(kept_bytes + moment_bytes)  # dies at once
        kept.append(card.tensor(kept_bytes))

    _, usage = card.measured(cell)
    assert (usage.consumed_bytes, usage.peaked_bytes) == (kept_bytes, moment_bytes)
    assert usage.peak.quality == "exact"
    assert usage.allocated_bytes == card.torch.cuda.memory_allocated()
    assert usage.reserved_bytes == card.torch.cuda.memory_reserved()
    _, usage = card.measured(kept.clear)
    assert (usage.consumed_bytes, usage.peaked_bytes) == (-kept_bytes, 0)


def play(card, seed, measured):
    """A random program of the user's; everything that they read on the way."""
    cuda, rng = card.torch.cuda, random.Random(seed)
    cuda.empty_cache()
    cuda.reset_peak_memory_stats()
    alive, read, scopes = [], [], contextlib.ExitStack()
    with scopes:
        for _ in range(40):
            what = rng.choice(("keep", "keep", "free", "moment", "scope", "end", "cache", "reset", "read"))
            size_bytes = rng.randint(1, 64 * MB)
            if what == "keep":
                alive.append(card.tensor(size_bytes))
            elif what == "free" and alive:
                alive.pop(rng.randrange(len(alive)))
            elif what == "moment":
                card.tensor(size_bytes)
            elif what == "scope":
                scopes.enter_context(measure() if measured else contextlib.nullcontext())
            elif what == "end":
                scopes.pop_all().close()
            elif what == "cache":
                cuda.empty_cache()
            elif what == "reset":
                cuda.reset_peak_memory_stats()
            elif what == "read":
                read.append((cuda.max_memory_allocated(), cuda.max_memory_reserved()))
    read.append({k: v for k, v in cuda.memory_stats().items() if "peak" in k or "current" in k})
    return read


@pytest.mark.parametrize("seed", range(10))
def test_the_users_counters_are_the_users(card, seed):
    """max_memory_allocated() and all other peaks are what they would be without us."""
    assert play(card, seed, measured=True) == play(card, seed, measured=False)


ALLOCATORS = ["max_split_size_mb:64", "expandable_segments:True", "backend:cudaMallocAsync"]


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_allocators_from_a_fresh_process(card, printed, table, allocator):
    """Each counts exactly, from the first allocation, which also makes the context: that one is a note."""
    program = """
        from ipygpulogger import measure
        MB = 2**20
        with measure() as outer:
            import torch
            torch.empty(300 * MB, dtype=torch.uint8, device='cuda')
            with measure() as inner:
                x = torch.empty(100 * MB, dtype=torch.uint8, device='cuda')
        for m in (inner, outer):
            gpu = m.gpus[0]
            print(gpu.consumed_bytes / MB, gpu.peaked_bytes / MB, gpu.peak.quality, gpu.context_bytes // MB)
    """
    said = printed(program, PYTORCH_CUDA_ALLOC_CONF=allocator)
    assert said[:3] == ["100.0", "0.0", "exact"]
    assert said[4:6] == ["100.0", "200.0"], said
    table[f"context and libraries, {allocator}"] = "not told" if card.own_bytes() is None else f"{said[7]} MB"
    assert said[3] == "0"
    if card.own_bytes() is None:
        pytest.skip(f"the context was not checked: {NOBODY_TELLS}")
    assert 50 < int(said[7]) < 3000


def test_the_second_device(card):
    """Each device has its own row and numbers."""
    if card.torch.cuda.device_count() < 2:
        pytest.skip("there is one device only")
    other = 1 - card.index if card.index < 2 else 0
    kept = [card.tensor(512, other)]  # its context
    result, usage = card.measured(
        lambda: kept.append(card.tensor(64 * MB, other)), lambda: card.tensor(32 * MB)
    )
    assert (usage.consumed_bytes, usage.peaked_bytes) == (0, 32 * MB)
    second = next(gpu for gpu in result.gpus if gpu.index == other)
    assert (second.consumed_bytes, second.peaked_bytes) == (64 * MB, 0)


def test_a_graph_keeps_its_memory(card):
    """What a CUDA graph has reserved is no live tensor, cannot be given back, and is named where torch counts it."""
    torch = card.torch
    graph, source = torch.cuda.CUDAGraph(), torch.zeros(64 * MB, dtype=torch.uint8, device="cuda")

    def cell():
        with torch.cuda.graph(graph):
            result = source + source
        graph.replay()
        torch.cuda.synchronize()
        del result
        torch.cuda.empty_cache()

    _, usage = card.measured(cell)
    assert usage.allocated_bytes == torch.cuda.memory_allocated()
    assert usage.reserved_bytes - usage.allocated_bytes >= 64 * MB
    assert usage.reserved_peak.lo_bytes >= 128 * MB
    assert usage.pools_bytes is None or usage.pools_bytes >= 64 * MB


def test_pinned_memory(card):
    """Page-locked memory is a figure of its own where torch counts it, and unknown where it does not."""
    torch = card.torch
    if empty := getattr(torch._C, "_host_emptyCache", None):
        empty()
    kept = []
    result, _ = card.measured(lambda: kept.append(torch.empty(64 * MB, dtype=torch.uint8, pin_memory=True)))
    if hasattr(torch._C, "_cuda_hostMemoryStats"):
        assert result.pinned.consumed_bytes == 64 * MB
    else:
        assert result.pinned is None


# -- the whole device, and NVML -----------------------------------------------------------------------


def test_used_and_the_ladder(card):
    """Used is NVML's, the rungs add up to NVML's total, and none is below nothing."""
    kept = []
    _, usage = card.measured(lambda: kept.append(card.tensor(200 * MB)))
    told = card.nvml()
    assert abs(usage.used_bytes - told.used) <= 2 * MB
    assert abs(usage.free_bytes - told.free) <= 2 * MB
    assert abs(sum(rung.size_bytes for rung in usage.ladder) - told.total) <= 2 * MB
    assert all(rung.size_bytes >= 0 for rung in usage.ladder), usage.ladder
    if (own_bytes := card.own_bytes()) is None:
        pytest.skip(f"neighbours were not checked: {NOBODY_TELLS}")
    assert abs(usage.neighbours_bytes - (told.used - own_bytes)) <= 2 * MB


def test_a_neighbour_is_not_us(card, env):
    """Another process's context and 300 MB: nothing of it is consumed, and it is told as theirs."""
    program = "import torch; x = torch.empty(300 << 20, dtype=torch.uint8, device='cuda'); print(1, flush=True); input()"
    neighbour = subprocess.Popen(
        [sys.executable, "-c", program], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        _, before = card.measured()
        _, usage = card.measured(neighbour.stdout.readline)
        grew_bytes = usage.used_bytes - before.used_bytes
        assert (usage.consumed_bytes, usage.peaked_bytes) == (0, 0)
        assert grew_bytes >= 300 * MB
        if card.own_bytes() is None:
            assert abs(usage.unattributed_bytes - grew_bytes) <= 2 * MB
        else:
            assert abs(usage.neighbours_bytes - before.neighbours_bytes - grew_bytes) <= 2 * MB
    finally:
        neighbour.communicate(b"\n")


def runtime():
    """The CUDA runtime that torch has loaded, to go behind its back."""
    maps = Path("/proc/self/maps")
    found = re.findall(r"/\S*libcudart\S*\.so\S*", maps.read_text()) if maps.exists() else []
    if not found:
        pytest.skip("no CUDA runtime library is loaded by itself")
    return ctypes.CDLL(found[0])


def test_a_raw_allocation_that_came_and_went(card):
    """No allocator saw it: the driver's samples did, and the peak is said to be "at least"."""
    cudart, address = runtime(), ctypes.c_void_p()

    def cell():
        assert not cudart.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(600 * MB))
        time.sleep(0.5)
        assert not cudart.cudaFree(address)

    _, usage = card.measured(lambda: card.tensor(100 * MB), cell)
    assert usage.peak.quality == "sampled"
    assert usage.consumed_bytes == 0
    assert usage.peaked_bytes >= 100 * MB
    assert max(used_bytes for _, used_bytes in usage.timeline) - usage.used_bytes >= 600 * MB - 2 * MB


def test_out_of_memory(env, tmp_path):
    """The card has what was asked for and who holds the memory; and names the limit, which is all that lacks."""
    with Kernel(env, tmp_path) as kernel:
        kernel.run("%load_ext ipygpulogger\n%gpulog start report=text\nimport torch")
        kernel.run("torch.cuda.set_per_process_memory_fraction(2**30 / torch.cuda.mem_get_info()[1])")
        kernel.run("x = torch.empty(300 << 20, dtype=torch.uint8, device='cuda')")
        ran = kernel.run("y = torch.empty(2000 << 20, dtype=torch.uint8, device='cuda')")
        assert "Out of memory on cuda:0: asked " in ran.stdout, ran.stdout
        found = "(lambda o: (o.asked_bytes, o.owners[0].name, o.owners[0].size_bytes, o.advice))({})"
        asked_bytes, name, size_bytes, advice = kernel.value(
            found.format("get_ipython().user_ns['il'].record.out_of_memory")
        )
    assert asked_bytes == pytest.approx(2000 * MB, rel=0.01)  # the error says 1.95 GiB
    assert (name, size_bytes) == ("x", 300 * MB)
    assert "limit" in advice


def test_energy_and_utilization(card, table):
    """Plausible, or not told and why."""
    x = card.torch.ones(2048, 2048, device="cuda")

    def cell():
        until_s = time.monotonic() + 1.2
        while time.monotonic() < until_s:
            for _ in range(20):
                x @ x
            card.torch.cuda.synchronize()

    result, usage = card.measured(cell, metrics={"energy", "utilization"})
    metrics = {metric.name: metric for metric in usage.metrics}
    for metric in metrics.values():
        value = "n/a" if metric.value is None else f"{metric.value:.0f} {metric.unit}"
        table[f"{metric.name} of {result.time_s:.1f} s of matrix products"] = value
    assert metrics.keys() == {"energy", "utilization"}
    assert all(metric.reason for metric in metrics.values() if metric.value is None)
    joule, percent = metrics["energy"].value, metrics["utilization"].value
    assert joule is None or 0 < joule < 2000 * result.time_s
    assert percent is None or 0 <= percent <= 100


# -- what it costs: shown, not asserted ----------------------------------------------------------------


def median_us(ask, times=200):
    """Medians of a question, or of several asked in turn."""
    asks = ask if isinstance(ask, tuple) else (ask,)
    took_s = [[] for _ in asks]
    for _ in range(times):
        for one, seconds in zip(asks, took_s, strict=True):
            began_s = time.perf_counter()
            one()
            seconds.append(time.perf_counter() - began_s)
    return [f"{median(seconds) * 1e6:.0f} us" for seconds in took_s]


def test_the_cost_of_a_boundary(card, table):
    """A table: opening and ending a scope, and the questions that it asks."""
    scopes = [Scope() for _ in range(200)]
    opened, ended, told = iter(scopes), iter(scopes), iter(scopes)
    with measure():
        uuid = next(device.uuid for device, _ in machine().devices.by_device() if device.index == card.index)
    nvml = machine().nvml
    gc.disable()
    machine().attach(card)  # as a logger does: the wrappers stay on
    try:
        table["open a scope"], table["close it"], table["the second snapshot"] = median_us(
            (
                lambda: next(opened).open(),
                lambda: next(ended).close(),
                lambda: next(told).result(Measurement, ""),
            )
        )
        (table["NVML: the device's memory"],) = median_us(lambda: nvml.memory(uuid))
        (table["NVML: who holds it"],) = median_us(lambda: nvml.own_bytes(uuid), 50)
        (table["torch: memory_stats()"],) = median_us(card.torch.cuda.memory_stats)
    finally:
        machine().detach(card)
        gc.enable()
    table["who holds it"] = "not told" if card.own_bytes() is None else "told"
    table["driver"] = card.driver()
