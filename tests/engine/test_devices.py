"""Every device, on the simulated machine: the ladder, neighbours, faults, allocators, energy; to the byte."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pynvml
import pytest
import simgpu
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory import MB, no_frame_kept
from torch_forks import MAY_DIFFER
from truth import gpu_of, run

from ipygpulogger.engine.machine import Machine
from ipygpulogger.notebook.logger import IPyGPULogger
from ipygpulogger.records import Peak
from ipygpulogger.render import text
from ipygpulogger.sources.torch.allocators import Torch

pytestmark = pytest.mark.torch

CODES = [
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_TIMEOUT,
    pynvml.NVML_ERROR_UNKNOWN,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
]


def tensor(size_bytes, device="cuda:0"):
    return torch.empty(size_bytes, dtype=torch.uint8, device=device)


@pytest.fixture
def on(cuda):
    """A machine of its own, with both devices in use."""
    tensor(1, "cuda:1")
    on = Machine(frameworks=[Torch()])
    yield on
    for index in range(2):
        torch.cuda.reset_peak_memory_stats(index)
    on.attach(on)
    on.detach(on)
    on.close()


def raw(gpu, size_bytes, index=0):
    """Memory of this process outside torch."""
    gpu.dev[index].mine().used += size_bytes


@pytest.fixture
def outside(cuda):
    """Puts back what a test took outside torch."""

    def not_torchs(index):
        return cuda.dev[index].mine().used - torch.cuda.memory_reserved(index)

    before = [cuda.dev[index].mine() and not_torchs(index) for index in range(2)]
    yield
    for index, used in enumerate(before):
        if used is not None:
            cuda.dev[index].mine().used -= not_torchs(index) - used


@pytest.fixture
def in_a_new_process(cuda, torch_forks):
    """Run a program that asserts what it knows; what it prints, by line."""

    def run(program, **env):
        program = (
            "from truth import MB, assert_ladder, gpu_of, place, rungs, run, state\n"
            "from ipygpulogger import measure\n"
            "from ipygpulogger.engine.machine import machine\n" + textwrap.dedent(program)
        )
        tests = str(Path(__file__).parents[1])
        env.setdefault("PYTHONPATH", os.pathsep.join(filter(None, [tests, os.environ.get("PYTHONPATH")])))
        if env.keys() <= MAY_DIFFER:
            status, out, err = torch_forks.run(program, **env)
        else:
            done = subprocess.run(
                [sys.executable, "-c", program],
                env={**os.environ, **simgpu.environment(cuda), **env},
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            status, out, err = done.returncode, done.stdout, done.stderr
        assert status == 0, err
        return out.splitlines()

    return run


# -- the ladder ------------------------------------------------------------------------------------


happenings = st.lists(
    st.tuples(
        st.sampled_from(["tensor", "free", "raw", "unraw", "listed", "unlisted", "leave", "empty", "end"]),
        st.integers(0, 1),
        st.integers(1, 40),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(happenings)
def test_whatever_happens(cuda, on, outside, story):
    """Random tensors, raw memory and neighbours: each device's ladder and consumed are the truth."""
    cuda.clear()
    rows = [cuda.dev[index].add_process(1, 200 * MB) for index in range(2)]
    alive, extra, steps = ([], []), [0, 0], []

    def held(index):
        own = cuda.dev[index].mine().used - torch.cuda.memory_reserved(index)
        return own + torch.cuda.memory_allocated(index)

    def outside_torch(index, size_bytes):
        extra[index] += size_bytes
        raw(cuda, size_bytes, index)

    def leave(index, size):
        rows[index].used, cuda.dev[index].base_used = 1000 + size, 0

    def more(thing, name, size_bytes):
        setattr(thing, name, getattr(thing, name) + size_bytes)

    # Sizes of their own: nobody's change hides another's.
    play = {
        "tensor": lambda i, size: alive[i].append(tensor(size * MB, f"cuda:{i}")),
        "free": lambda i, size: alive[i] and alive[i].pop(size % len(alive[i])),
        "raw": lambda i, size: outside_torch(i, size * MB + 4096),
        "unraw": lambda i, _: outside_torch(i, -extra[i]),
        "listed": lambda i, size: more(rows[i], "used", size * MB + 512),
        "unlisted": lambda i, size: more(cuda.dev[i], "base_used", size * MB + 64),
        "leave": leave,
        "empty": lambda _, __: torch.cuda.empty_cache(),
    }
    for step in (*story, ("end", 0, 0)):
        if step[0] != "end":
            steps.append(step)
            continue
        before = [held(index) for index in range(2)]
        result = run(on, lambda: [play[what](*how) for what, *how in steps], settle=False)
        for index in range(2):
            assert gpu_of(result, index).consumed_bytes == held(index) - before[index]
        steps.clear()
    for index in range(2):
        outside_torch(index, -extra[index])


@pytest.mark.parametrize("how", ["container", "WSL", "no permission"])
def test_nobody_tells_whose(cuda, on, outside, how):
    """Host pids, no sizes, no list: neighbours unknown, the cell's own numbers exact, the text says so."""
    cuda.dev[0].base_used = 700 * MB
    if how == "container":
        cuda.pid_offset = 5_000_000
    elif how == "WSL":
        cuda.proc_mem_na = 1
    else:
        cuda.fault("nvmlDeviceGetComputeRunningProcesses*", pynvml.NVML_ERROR_NO_PERMISSION)
    kept = []

    def cell():
        tensor(300 * MB)
        kept.append(tensor(100 * MB))
        cuda.dev[0].base_used += 50 * MB

    result = run(on, cell, ladder={"known": False})
    usage = gpu_of(result)
    assert (usage.consumed_bytes, usage.peaked_bytes) == (100 * MB, 200 * MB)
    assert usage.neighbours_bytes is None
    assert usage.unattributed_bytes == 50 * MB
    report = text.report(result)
    assert "(+50 MB outside the allocator, owner unknown)" in report
    assert report.count("no permission") == (how == "no permission")
    again = run(on, kept.clear, ladder={"known": False})
    assert gpu_of(again).consumed_bytes == -100 * MB
    assert again.notes == ()
    assert "owner unknown" not in text.report(again)


# -- faults ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["at start", "between", "within"])
@pytest.mark.parametrize(
    ("function", "costs"),
    [
        ("nvmlInit", "device"),
        ("nvmlDeviceGetCount*", "device"),
        ("nvmlDeviceGetHandleByIndex*", "device"),
        ("nvmlDeviceGetUUID", "device"),
        ("nvmlDeviceGetMemoryInfo*", "memory"),
        ("nvmlDeviceGetMemoryInfo_v2", "memory"),
        ("nvmlDeviceGetMemoryInfo", ""),  # the first version, which nobody asks here
        ("nvmlDeviceGetComputeRunningProcesses*", "processes"),
        ("nvmlDeviceGetTotalEnergyConsumption", "energy"),
        ("nvmlDeviceGetSamples", "utilization"),
        ("nvml*", "memory"),
    ],
)
def test_one_function_fails(cuda, outside, function, costs, when):
    """Whichever it is, whatever it answers: the allocator's numbers stand, what is missing is said once."""
    tensor(1, "cuda:1")
    cuda.dev[0].base_used = 200 * MB
    cuda.dev[0].sample_us = cuda.dev[1].sample_us = 0
    for code in CODES:
        with no_frame_kept():
            one_fault(cuda, function, code, costs, when)


def one_fault(cuda, function, code, costs, when):
    on, kept = Machine(frameworks=[Torch()]), []

    def cell():
        tensor(300 * MB)
        kept.append(tensor(100 * MB))
        if when == "within":
            cuda.fault(function, code)
        for index in range(2):  # something moves, so that all is asked
            cuda.dev[index].base_used += 4096

    if when != "at start":
        run(on)
    if when != "within":
        cuda.fault(function, code)
    blind = when == "at start" and (costs == "device" or function == "nvml*")
    unknown = blind or costs in ("memory", "processes")
    ladder = {"known": not unknown, "nvml": not blind and costs != "memory"}
    results = [
        run(on, *steps, ladder=ladder, metrics=("energy", "utilization"))
        for steps in ((cell,), (kept.clear,), ())
    ]
    usages = [gpu_of(result) for result in results]
    figures = [(usage.consumed_bytes // MB, usage.peaked_bytes // MB) for usage in usages]
    assert figures == [(100, 200), (-100, 0), (0, 0)]
    assert {usage.peak.quality for usage in usages} == {"exact"}
    assert [usage.unattributed_bytes for usage in usages] in ([0, 0, 0], [4096, 0, 0])
    notes = [note for result in results for note in result.notes]
    assert len(notes) == len(set(notes))
    assert results[2].notes == ()
    assert bool(notes) == unknown
    assert all(metric.value is None and metric.reason for usage in usages for metric in usage.metrics)
    cuda.faults[0].fn, cuda.n_fault = b"", 0  # the driver recovers
    if not blind:
        assert gpu_of(run(on)).neighbours_bytes == cuda.dev[0].base_used
    on.close()


# -- bounds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tensor_mb", [0, 200, 2000])
def test_a_spike_only_the_driver_sees(cuda, on, outside, tensor_mb):
    """900 MB outside torch that come and go: at least, also beside a larger peak of torch's own."""

    def cell():
        tensor(tensor_mb * MB)
        torch.cuda.empty_cache()
        raw(cuda, 900 * MB)
        on.sample()
        raw(cuda, -900 * MB)

    result = run(on, cell)
    usage = gpu_of(result)
    assert (usage.consumed_bytes, usage.unknown_rise_bytes) == (0, 900 * MB)
    assert (usage.peak.quality, usage.peak.hi_bytes) == ("sampled", None)
    assert usage.peak.lo_bytes >= usage.before_bytes + tensor_mb * MB
    assert gpu_of(result, 1).peak.quality == "exact"
    (_, before_bytes), *inner, _ = usage.timeline
    assert max(size_bytes for _, size_bytes in inner) == before_bytes + 900 * MB


# -- which device ----------------------------------------------------------------------------------

EACH = """
    import torch, sys
    gpu = state()
    truth = [int(i) for i in sys.argv[1:]] if len(sys.argv) > 1 else TRUTH
    for i in range(torch.cuda.device_count()):
        torch.empty(1, device=f"cuda:{i}")
    assert torch.cuda.device_count() == len(truth), torch.cuda.device_count()
    kept = []
    def cell():
        for i in range(len(truth)):
            kept.append(torch.empty((100 + 20 * i) << 20, dtype=torch.uint8, device=f"cuda:{i}"))
            torch.empty((50 + 20 * i) << 20, dtype=torch.uint8, device=f"cuda:{i}")
            gpu.dev[truth[i]].base_used += (300 + 100 * i) * MB
    result = run(machine(), cell, all_devices=ALL)
    ours = [u for u in result.gpus if u.backend == "cuda"]
    assert [u.index for u in ours] == list(range(len(truth)))
    for i, usage in enumerate(ours):
        device = gpu.dev[truth[i]]
        assert usage.uuid == device.uuid.decode(), (usage.uuid, device.uuid)
        assert (usage.consumed_bytes, usage.peaked_bytes) == ((100 + 20 * i) * MB, (50 + 20 * i) * MB)
        assert usage.total_bytes == device.total
        assert usage.neighbours_bytes - usage.neighbours_before_bytes == (300 + 100 * i) * MB
        assert usage.name == device.name.decode()
    hidden = [u for u in result.gpus if u.backend == "nvml"]
    from ipygpulogger.render import text
    from ipygpulogger.render.growth import device_name
    names = [device_name(u, result.gpus) for u in result.gpus]
    assert len(set(names)) == len(names)
    assert {u.uuid for u in hidden} == {gpu.dev[i].uuid.decode() for i in range(2) if i not in truth} if ALL else not hidden
    assert all(device_name(u, result.gpus).startswith("NVML") for u in hidden if ours)
    print(*names)
"""


@pytest.mark.parametrize(
    ("visible", "order", "truth", "names"),
    [
        ("1,0", None, [0, 1], "GPU0 GPU1"),
        ("{1}", None, [1], "GPU0 NVML0"),
        ("{1},{0}", "PCI_BUS_ID", [1, 0], "GPU0 GPU1"),
        ("", None, [], "GPU0 GPU1"),
        (None, "FASTEST_FIRST", [1, 0], "GPU0 GPU1"),  # which NVML's second is
        (None, "PCI_BUS_ID", [0, 1], "GPU0 GPU1"),
        ("0", None, [1], "GPU0 NVML0"),
        ("0", "PCI_BUS_ID", [0], "GPU0 NVML1"),
    ],
)
def test_the_right_device(cuda, visible, order, truth, names, in_a_new_process):
    """Hidden, swapped, sorted by speed or by bus: each row speaks of its own card, and no name is shared."""
    cuda.dev[1].total += 8192 * MB
    cuda.dev[1].name = b"NVIDIA Fast"
    cuda.cuda_order[0], cuda.cuda_order[1] = 1, 0
    env = {} if order is None else {"CUDA_DEVICE_ORDER": order}
    if visible is not None:
        env["CUDA_VISIBLE_DEVICES"] = visible.format(*(d.uuid.decode() for d in cuda.dev[:2]))
    program = EACH.replace("TRUTH", str(truth)).replace("ALL", "True")
    assert in_a_new_process(program, **env) == [names]


@pytest.mark.parametrize("parent", [0, 1])
def test_a_slice_is_a_device(cuda, parent, in_a_new_process):
    """MIG: used and total are the slice's, never the card's, whether or not CUDA tells the slice's UUID."""
    first, _, second = cuda.dev[0].mig(2432 * MB, 0, 4864 * MB)
    first.base_used, second.base_used = 200 * MB, 700 * MB
    cuda.mig_parent_uuid = parent
    uuid = second.uuid.decode()
    program = """
        import torch
        from ipygpulogger.render import text
        from ipygpulogger.render.growth import device_name
        gpu = state()
        torch.cuda.synchronize()
        kept = []
        def cell():
            kept.append(torch.empty(100 << 20, dtype=torch.uint8, device="cuda"))
            torch.empty(150 << 20, dtype=torch.uint8, device="cuda")
            gpu.dev[0].slice[2].base_used += 50 * MB
            gpu.dev[0].slice[0].base_used += 90 * MB
        result = run(machine(), cell, metrics=("energy", "utilization"))
        (usage,) = result.gpus
        assert usage.uuid == gpu.dev[0].slice[2].uuid.decode(), usage.uuid
        assert usage.total_bytes == 4864 * MB
        assert usage.used_bytes == 750 * MB + gpu.dev[0].mine().used
        assert (usage.consumed_bytes, usage.peaked_bytes) == (100 * MB, 150 * MB)
        assert usage.neighbours_bytes == 750 * MB
        assert all(m.value is None and m.reason for m in usage.metrics)
        assert "GPU:" in text.report(result)
        result = run(machine(), all_devices=True)
        assert len({device_name(u, result.gpus) for u in result.gpus}) == 3, result.gpus
        assert {u.uuid for u in result.gpus} == {
            gpu.dev[0].slice[0].uuid.decode(), gpu.dev[0].slice[2].uuid.decode(), gpu.dev[1].uuid.decode()
        }
    """
    in_a_new_process(program, CUDA_VISIBLE_DEVICES=uuid)


def test_unified_memory(cuda, in_a_new_process):
    """A device without memory of its own: used and total are the pool's, in the open, and it is labelled."""
    cuda.dev[0].integrated = 1
    program = """
        import torch
        from ipygpulogger.render import text
        from ipygpulogger.render.growth import ladders
        gpu = state()
        torch.cuda.synchronize()
        kept = []
        def cell():
            kept.append(torch.empty(100 << 20, dtype=torch.uint8, device="cuda"))
            torch.empty(150 << 20, dtype=torch.uint8, device="cuda")
            gpu.dev[0].base_used += 400 * MB
        result = run(machine(), cell, ladder={"known": False})
        (usage,) = result.gpus
        assert usage.unified
        assert (usage.consumed_bytes, usage.peaked_bytes) == (100 * MB, 150 * MB)
        free, total = torch.cuda.mem_get_info()
        assert (usage.total_bytes, usage.used_bytes, usage.free_bytes) == (total, total - free, free)
        assert usage.neighbours_bytes is None and usage.unattributed_bytes == 0
        assert "unified memory" in ladders(result.gpus)
        assert len(result.notes) == 1 and "Not Supported" in result.notes[0], result.notes
        assert run(machine(), ladder={"known": False}).notes == ()
    """
    in_a_new_process(program, CUDA_VISIBLE_DEVICES="0")


# -- other allocators ------------------------------------------------------------------------------


@pytest.mark.parametrize("allocator", ["expandable_segments:True", "backend:cudaMallocAsync"])
def test_allocators_that_count(cuda, allocator, in_a_new_process):
    """Expandable segments and the asynchronous backend: exact, and every rung is the truth."""
    program = """
        import torch
        torch.cuda.synchronize()
        kept = []
        def cell():
            torch.empty(300 << 20, dtype=torch.uint8, device="cuda")
            kept.append(torch.empty(100 << 20, dtype=torch.uint8, device="cuda"))
        for settle in (True, False):
            for step, figures in ((cell, (100 * MB, 200 * MB)), (kept.clear, (-100 * MB, 0))):
                usage = gpu_of(run(machine(), step, settle=settle))
                assert (usage.consumed_bytes, usage.peaked_bytes, usage.peak.quality) == (*figures, "exact"), usage
    """
    in_a_new_process(program, PYTORCH_CUDA_ALLOC_CONF=allocator)


PLUGGABLE = """
#include <stddef.h>
int cudaMalloc(void **, size_t);
int cudaFree(void *);
void *take(size_t size, int device, void *stream)
{ void *p = NULL; (void)device; (void)stream; cudaMalloc(&p, size); return p; }
void give(void *p, size_t size, int device, void *stream)
{ (void)size; (void)device; (void)stream; cudaFree(p); }
"""


def test_a_pluggable_allocator(cuda, tmp_path, in_a_new_process):
    """It counts nothing: the driver's figure of this process instead, as "at least", or n/a; said once."""
    source, library = tmp_path / "plug.c", tmp_path / "plug.so"
    source.write_text(PLUGGABLE)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    program = f"""
        import torch
        from ipygpulogger.render import text
        torch.cuda.memory.change_current_allocator(
            torch.cuda.memory.CUDAPluggableAllocator({str(library)!r}, "take", "give"))
        torch.cuda.synchronize()
        gpu, kept, notes = state(), [], []
        def cell():
            kept.append(torch.empty(100 << 20, dtype=torch.uint8, device="cuda"))
            gpu.dev[0].base_used += 400 * MB
        for step, consumed, known in ((cell, 100 * MB, True), (kept.clear, -100 * MB, True), (cell, 0, False)):
            gpu.proc_mem_na = not known
            with measure() as m:
                step()
            (usage,), device, row = m.gpus, gpu.dev[0], text.report(m.last).splitlines()[2]
            notes.extend(m.last.notes)
            assert usage.used_bytes == device.base_used + sum(p.used for p in device.proc)
            assert sum(size for _, size in usage.ladder) == device.total == usage.total_bytes
            assert (usage.allocated_bytes, usage.attributed, usage.consumed_bytes) == (None, known, consumed)
            assert usage.peak.quality == "sampled" and usage.peak.hi_bytes is None
            assert ("(peaked at least)" if known else "per-process usage unavailable") in row, row
        print(*notes, sep=chr(10))
    """
    first = in_a_new_process(program)[0]
    assert "torch" in first and "statistics" in first


CACHING = """
import torch
from ipygpulogger import measure_lines
from ipygpulogger.engine.scope import Scope
from ipygpulogger.records import Measurement
torch.cuda.synchronize()
gpu, kept = state(), []
off, on = (lambda: torch.cuda.caching_allocator_enable(False)), (lambda: torch.cuda.caching_allocator_enable(True))
def tensor(mb):
    return torch.empty(mb << 20, dtype=torch.uint8, device="cuda")
def transient():
    held = tensor(150)
    machine().sample()
def told(*steps):
    with measure() as m:
        for step in steps:
            step()
    (usage,) = m.gpus
    return usage, m.last.notes
def at_least(usage, consumed=0):
    assert usage.peak.quality == "sampled" and usage.peak.hi_bytes is None, usage
    assert usage.consumed_bytes == consumed * MB, usage
    return usage
def exact(usage):
    assert (usage.peak.quality, usage.needed_bytes, usage.consumed_bytes) == ("exact", 150 * MB, 0), usage
def driver():
    return gpu.dev[0].mine().used
"""
SWITCHED_OFF = """
usage, notes = told(transient)
assert at_least(usage).unknown_rise_bytes == 150 * MB
assert usage.allocated_bytes is None and usage.after_bytes == driver()
assert len(notes) == 1 and "caching allocator is switched off" in notes[0], notes
usage, notes = told(lambda: kept.append(tensor(100)), transient)
assert at_least(usage, 100) and not notes
(torchs,) = [one for one in machine().diagnose() if one.source == "torch"]
assert torchs.state == "sampled" and "caching allocator is switched off" in torchs.says, torchs
on()  # changes nothing then
at_least(told(transient)[0])
"""
SWITCHED_NOW_AND_THEN = """
exact(told(transient)[0])
usage, notes = told(transient, off)
assert at_least(usage).after_bytes == driver() and "switched off" in notes[0]
at_least(told(lambda: kept.append(tensor(70)))[0], 70)
@measure_lines(report=False)
def lines():
    held = tensor(150)
    del held
lines()
assert all(usage.peak.quality != "exact" for line in lines.lines for usage in line.gpus)
at_least(told(transient, on)[0])
exact(told(transient)[0])
"""


@pytest.mark.parametrize(
    ("program", "env"),
    [
        (SWITCHED_OFF, {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}),
        (SWITCHED_OFF, {"PYTORCH_NO_HIP_MEMORY_CACHING": "1"}),
        (SWITCHED_NOW_AND_THEN, {}),
    ],
)
def test_without_the_caching_allocator(in_a_new_process, program, env):
    """Exact only where torch counted from the first moment to the last, with lines too; said once, by the doctor too."""
    in_a_new_process(CACHING + program, **env)


def test_pools_and_graphs(cuda, in_a_new_process):
    """A pool is counted; a graph's memory stays reserved, a replay adds nothing, and it is no headroom."""
    program = """
        import torch
        from ipygpulogger.records import Peak
        torch.cuda.synchronize()
        kept, pool, graph = [], torch.cuda.MemPool(), torch.cuda.CUDAGraph()
        def tensor(size):
            return torch.empty(size, dtype=torch.uint8, device="cuda")
        def fill():
            with torch.cuda.use_mem_pool(pool):
                kept.append(tensor(64 * MB))
        usage = gpu_of(run(machine(), fill))
        tells = "reserved_bytes_by_private_pools" in torch._C._cuda_memoryStats(0)  # 2.6 does not
        assert (usage.consumed_bytes, usage.pools_bytes) == (64 * MB, 64 * MB if tells else None), usage
        def capture():
            with torch.cuda.graph(graph):
                tensor(1024 * MB).zero_()
        before = torch.cuda.memory_allocated()
        usage = gpu_of(run(machine(), capture))
        assert usage.consumed_bytes == torch.cuda.memory_allocated() - before < MB, usage  # its random state
        assert usage.peaked_bytes >= 1024 * MB, usage
        assert usage.reserved_bytes - usage.allocated_bytes >= 1024 * MB, usage
        assert usage.pools_bytes == (1088 * MB if tells else None), usage
        held = usage.reserved_bytes
        usage = gpu_of(run(machine(), graph.replay, graph.replay))
        assert (usage.consumed_bytes, usage.peaked_bytes, usage.reserved_bytes) == (0, 0, held), usage
        assert usage.reserved_peak == Peak(held, held, "exact"), usage
        try:
            tensor(usage.headroom_bytes + 64 * MB)
        except torch.OutOfMemoryError:
            pass
        else:
            raise AssertionError(usage)
        if tells:
            tensor(usage.headroom_bytes - 8 * MB)
        graph.reset()
        assert gpu_of(run(machine(), kept.clear)).consumed_bytes == -64 * MB
    """
    in_a_new_process(program)


@pytest.mark.skipif(
    not hasattr(torch.cuda, "reset_peak_host_memory_stats"), reason="this torch does not count pinned memory"
)
@pytest.mark.parametrize("again_mb", [None, 0, 128, 512])
def test_pinned_memory_is_a_figure_of_its_own(cuda, on, again_mb):
    """Beside RAM; a peak under an older one is bounded; after the user's reset never exact and wrong."""

    def reset():
        torch._C._host_emptyCache()
        torch.cuda.reset_peak_host_memory_stats()

    def pinned(size_mb):
        return torch.empty(size_mb * MB, dtype=torch.uint8, pin_memory=True)

    def cell():
        pinned(256)
        if again_mb is not None:
            reset()
            pinned(again_mb)
        torch._C._host_emptyCache()
        kept.append(pinned(64))

    reset()
    kept = []
    assert run(on).pinned is None
    result = run(on, cell)
    usage, peak = result.pinned, result.pinned.peak
    true_bytes = max(256, again_mb or 0) * MB
    assert (usage.before_bytes, usage.after_bytes) == (0, 64 * MB)
    assert peak.lo_bytes <= true_bytes
    assert peak.hi_bytes is None or peak.hi_bytes >= true_bytes
    assert peak.quality != "exact" or peak.lo_bytes == true_bytes
    if again_mb is None:
        assert peak == Peak(256 * MB, 256 * MB, "exact")
        assert "(pinned 64 MB, highest 256 MB)" in text.report(result)
        peak = run(on, lambda: pinned(128)).pinned.peak
        assert (peak.quality, peak.lo_bytes <= 192 * MB <= peak.hi_bytes <= 256 * MB) == ("bounded", True)
    kept.clear()
    reset()


@pytest.mark.parametrize("fraction", [None, 0.5])
def test_headroom_is_what_can_still_be_had(cuda, on, fraction):
    """A little less than it says can be allocated, 64 MB more cannot; a limit of torch's own included."""
    cuda.dev[0].base_used = 1000 * MB
    kept = [tensor(300 * MB)]
    if fraction:
        torch.cuda.set_per_process_memory_fraction(fraction, 0)
    try:
        usage = gpu_of(run(on, lambda: tensor(200 * MB), settle=False))
        assert usage.limit_bytes == (int(fraction * torch.cuda.mem_get_info()[1]) if fraction else None)
        assert dict(usage.ladder)["cached"] == 200 * MB
        with pytest.raises(torch.OutOfMemoryError):
            tensor(usage.headroom_bytes + 64 * MB)
        kept.append(tensor(usage.headroom_bytes - 4 * MB))
        assert 0 <= gpu_of(run(on)).headroom_bytes <= 8 * MB
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, 0)


@pytest.mark.parametrize("wish", ["energy", ("watts",), 3, ["energy", "watts"], [["energy"]]])
def test_unknown_metrics_are_refused(cuda, wish):
    """One sentence, which names what there is."""
    with pytest.raises(ValueError, match="metrics takes any of 'energy', 'utilization', not"):
        IPyGPULogger.check({"metrics": wish})


# -- a source of somebody else's -------------------------------------------------------------------

ARENA = """
    class ArenaError(Exception): pass
    class Stats: live_bytes = peak_bytes = bytes_ever_allocated = 0
    stats_ = Stats()
    def devices_in_use(): return [0]
    def stats(device): return stats_
    def reset_peak(device): stats_.peak_bytes = stats_.live_bytes
    def take(n):
        stats_.live_bytes += n; stats_.bytes_ever_allocated += n
        stats_.peak_bytes = max(stats_.peak_bytes, stats_.live_bytes)
    def give(n): stats_.live_bytes -= n
"""


def test_somebody_elses_sources(cuda, tmp_path, in_a_new_process):
    """Through real entry points: the good one is measured, the bad one is said once and left out."""
    (tmp_path / "arena.py").write_text(textwrap.dedent(ARENA))
    info = tmp_path / "third-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[ipygpulogger.sources]\narena = example_source:Arena\nnone = no_such_module:Source\n"
    )
    program = """
        import arena, os
        gpu = state()
        row = gpu.dev[0].add_process(os.getpid(), 500 * MB)
        def move(take, give):
            arena.take(take * MB); arena.give(give * MB)
            row.used += (take - give) * MB
        for take, give in ((300, 200), (0, 50)):
            with measure() as m:
                move(take, give)
            usage = gpu_of(m)
            assert (usage.consumed_bytes, usage.peaked_bytes) == ((take - give) * MB, min(take, give) * MB), usage
            assert (usage.peak.quality, usage.uuid) == ("exact", gpu.dev[0].uuid.decode())
            assert usage.total_bytes == gpu.dev[0].total
            print(*m.last.notes, sep=chr(10))
        assert [one.source for one in machine().diagnose() if "left out" in one.says] == ["none"]
    """
    env = {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[1]}"}
    notes = in_a_new_process(program, **env)
    assert sum("source none" in note for note in notes) == 1, notes
    assert not any("Arena" in note for note in notes)
