"""Every device, on the simulated machine: the ladder, neighbours, faults, allocators, energy; to the byte."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pynvml
import pytest
import simgpu
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory import MB
from truth import gpu_of, run

from ipygpulogger.machine import Machine
from ipygpulogger.records import Measurement
from ipygpulogger.render import text
from ipygpulogger.scope import Scope
from ipygpulogger.sources.torch import Torch

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
    on.hold()
    on.release()
    on.close()


def raw(gpu, size_bytes, index=0):
    """Memory of this process outside torch."""
    gpu.dev[index].mine().used += size_bytes


@pytest.fixture
def outside(cuda):
    """Puts back what a test took outside torch."""
    before = [cuda.dev[index].mine() and cuda.dev[index].mine().used for index in range(2)]
    yield
    torch.cuda.empty_cache()
    for index, used in enumerate(before):
        if used is not None:
            cuda.dev[index].mine().used = used


def in_a_new_process(cuda, program, **env):
    """Run a program that asserts what it knows; what it prints, by line."""
    env = {**os.environ, **simgpu.environment(cuda), "PYTHONPATH": str(Path(__file__).parent), **env}
    program = (
        "from truth import MB, assert_ladder, gpu_of, place, rungs, run, state\n"
        "from ipygpulogger import measure\n"
        "from ipygpulogger.machine import machine\n" + textwrap.dedent(program)
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


# -- the ladder ------------------------------------------------------------------------------------


def test_every_rung(cuda, on, outside):
    """Tensors, cache, context and libraries, listed and unlisted tenants, the driver's own: each to the byte."""
    kept = []

    def cell():
        kept.extend((tensor(100 * MB), tensor(60 * MB, "cuda:1")))
        tensor(64 * MB)
        raw(cuda, 80 * MB)
        cuda.dev[0].add_process(1, 300 * MB)
        cuda.dev[0].base_used = 3000 * MB
        cuda.dev[1].base_used = 1000 * MB

    result = run(on, cell, settle=False)
    first, second = result.gpus
    assert dict(first.ladder)["cached"] == 64 * MB
    assert dict(first.ladder)["other processes"] == 3300 * MB
    assert (first.consumed_bytes, second.consumed_bytes) == (180 * MB, 60 * MB)
    assert (first.neighbours_before_bytes, second.neighbours_before_bytes) == (0, 0)
    assert first.headroom_bytes == first.free_bytes + 64 * MB
    assert first.driver_bytes == cuda.dev[0].reserved


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
        "unraw": lambda i, size: outside_torch(i, -extra[i]),
        "listed": lambda i, size: more(rows[i], "used", size * MB + 512),
        "unlisted": lambda i, size: more(cuda.dev[i], "base_used", size * MB + 64),
        "leave": leave,
        "empty": lambda i, size: torch.cuda.empty_cache(),
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
    assert "(+50 MB outside the allocator, nobody tells whose)" in report
    assert report.count("no permission") == (how == "no permission")
    again = run(on, kept.clear, ladder={"known": False})
    assert gpu_of(again).consumed_bytes == -100 * MB
    assert again.notes == ()
    assert "nobody tells" not in text.report(again)


def test_a_driver_before_r510(cuda, outside):
    """Its memory query counts its own reserve as used: no neighbour is invented, and the ladder still sums."""
    cuda.fault("nvmlDeviceGetMemoryInfo_v2", pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    tensor(1, "cuda:1")
    old = Machine(frameworks=[Torch()])
    usage = gpu_of(run(old, lambda: raw(cuda, 80 * MB), ladder={"old_driver": True}))
    assert usage.neighbours_bytes == 0
    assert usage.driver_bytes == cuda.dev[0].reserved
    assert usage.consumed_bytes == 80 * MB
    row = cuda.dev[0].add_process(1, 300 * MB)
    usage = gpu_of(run(old, lambda: setattr(row, "used", 3300 * MB), ladder={"old_driver": True}))
    assert (usage.neighbours_before_bytes, usage.neighbours_bytes) == (300 * MB, 3300 * MB)
    assert usage.consumed_bytes == 0
    cuda.proc_mem_na = 1
    row.used -= 4096
    cuda.dev[1].base_used = 4096  # something moved on both, so the question is asked again
    usage = gpu_of(run(old, ladder={"old_driver": True, "known": False}))
    assert usage.neighbours_bytes is None
    assert usage.driver_bytes is None
    old.close()


def test_neighbours_come_and_go(cuda, on):
    """3000 MB that appear, and 700 MB that were there and leave: consumed never changes, both are shown."""
    row = cuda.dev[0].add_process(1, 700 * MB)

    def come():
        cuda.dev[0].add_process(2, 3000 * MB)

    def go():
        row.kind = 0

    come_result, go_result = run(on, come), run(on, go)
    for result, before_mb, after_mb in ((come_result, 700, 3700), (go_result, 3700, 3000)):
        usage = gpu_of(result)
        assert (usage.consumed_bytes, usage.peaked_bytes, usage.unattributed_bytes) == (0, 0, 0)
        assert (usage.neighbours_before_bytes // MB, usage.neighbours_bytes // MB) == (before_mb, after_mb)
        assert usage.peak.quality == "exact"
        assert f"(other processes {after_mb} MB)" in text.report(result)
    assert "other processes" not in text.report(run(on))


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


def test_a_fault_that_passes_is_forgotten(cuda, on):
    """One question that timed out: the next cell knows again who holds what, though nothing moved."""
    cuda.dev[0].base_used = 200 * MB
    for index in range(2):
        cuda.fault("nvmlDeviceGetComputeRunningProcesses*", pynvml.NVML_ERROR_TIMEOUT, dev=index, count=1)
    scope = Scope(on).open()
    scope.close()
    (note,) = scope.result(Measurement, "").notes
    assert "Timeout" in note
    assert gpu_of(run(on)).neighbours_bytes == 200 * MB


# -- bounds ----------------------------------------------------------------------------------------


def watched(cuda, index=0, reads=3):
    """Until the sampler has looked."""
    seen = cuda.dev[index].n_meminfo
    deadline_s = time.monotonic() + 20
    while cuda.dev[index].n_meminfo < seen + reads and time.monotonic() < deadline_s:
        time.sleep(0.01)


@pytest.mark.parametrize("tensor_mb", [0, 200, 2000])
def test_a_spike_only_the_driver_sees(cuda, on, outside, tensor_mb):
    """900 MB outside torch that come and go: at least, also beside a larger peak of torch's own."""

    def cell():
        tensor(tensor_mb * MB)
        torch.cuda.empty_cache()
        raw(cuda, 900 * MB)
        watched(cuda)
        raw(cuda, -900 * MB)

    result = run(on, cell)
    usage = gpu_of(result)
    assert usage.consumed_bytes == 0
    assert (usage.peak.quality, usage.peak.hi_bytes) == ("sampled", None)
    assert usage.peak.lo_bytes >= usage.before_bytes + tensor_mb * MB
    assert "(peak at least)" in text.report(result)
    assert gpu_of(result, 1).peak.quality == "exact"
    used_mb = [size_bytes // MB for _, size_bytes in usage.timeline]
    assert max(used_mb) >= used_mb[0] + 900
    assert 3 <= len(used_mb) <= 64


def test_torch_alone_is_never_called_sampled(cuda, on, monkeypatch):
    """The sampler looks while segments come and go by the thousand: every peak stays exact."""
    monkeypatch.setattr(on.sampler, "_delay_s", 0)
    monkeypatch.setattr(on.sampler, "_period_s", 0)
    before = cuda.dev[0].n_meminfo
    for cell in range(50):

        def churn(cell=cell):
            until_s = time.monotonic() + 0.02
            while time.monotonic() < until_s:
                kept = [tensor((2 + (cell * 7 + i * 5) % 60) * MB) for i in range(4)]
                del kept[::2]
                torch.cuda.empty_cache()

        usage = gpu_of(run(on, churn))
        assert usage.peak.quality == "exact"
        assert usage.consumed_bytes == 0
    assert cuda.dev[0].n_meminfo - before > 150  # it did look


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
    names = [text.device_name(u, result.gpus) for u in result.gpus]
    assert len(set(names)) == len(names)
    assert {u.uuid for u in hidden} == {gpu.dev[i].uuid.decode() for i in range(2) if i not in truth} if ALL else not hidden
    assert all(text.device_name(u, result.gpus).startswith("NVML") for u in hidden if ours)
    print(*names)
"""


@pytest.mark.parametrize(
    ("visible", "order", "truth", "names"),
    [
        ("1,0", None, [0, 1], "GPU0 GPU1"),
        ("{1}", None, [1], "GPU0 NVML0"),
        ("{1},{0}", "PCI_BUS_ID", [1, 0], "GPU0 GPU1"),
        ("", None, [], "GPU0 GPU1"),
        (None, None, [1, 0], "GPU0 GPU1"),  # the fastest first, which NVML's second is
        (None, "FASTEST_FIRST", [1, 0], "GPU0 GPU1"),
        (None, "PCI_BUS_ID", [0, 1], "GPU0 GPU1"),
        ("0", None, [1], "GPU0 NVML0"),
        ("0", "PCI_BUS_ID", [0], "GPU0 NVML1"),
    ],
)
def test_the_right_device(cuda, visible, order, truth, names):
    """Hidden, swapped, sorted by speed or by bus: each row speaks of its own card, and no name is shared."""
    cuda.dev[1].total += 8192 * MB
    cuda.dev[1].name = b"NVIDIA Fast"
    cuda.cuda_order[0], cuda.cuda_order[1] = 1, 0
    env = {} if order is None else {"CUDA_DEVICE_ORDER": order}
    if visible is not None:
        env["CUDA_VISIBLE_DEVICES"] = visible.format(*(d.uuid.decode() for d in cuda.dev[:2]))
    program = EACH.replace("TRUTH", str(truth)).replace("ALL", "True")
    assert in_a_new_process(cuda, program, **env) == [names]


@pytest.mark.parametrize("parent", [0, 1])
def test_a_slice_is_a_device(cuda, parent):
    """MIG: used and total are the slice's, never the card's, whether or not CUDA tells the slice's UUID."""
    first, _, second = cuda.dev[0].mig(2432 * MB, 0, 4864 * MB)
    first.base_used, second.base_used = 200 * MB, 700 * MB
    cuda.mig_parent_uuid = parent
    uuid = second.uuid.decode()
    program = """
        import torch
        from ipygpulogger.render import text
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
        assert len({text.device_name(u, result.gpus) for u in result.gpus}) == 3, result.gpus
        assert {u.uuid for u in result.gpus} == {
            gpu.dev[0].slice[0].uuid.decode(), gpu.dev[0].slice[2].uuid.decode(), gpu.dev[1].uuid.decode()
        }
    """
    in_a_new_process(cuda, program, CUDA_VISIBLE_DEVICES=uuid)


def test_every_slice_is_told_of(cuda):
    """Two slices of one card are two devices, though NVML gives them one card's index."""
    cuda.dev[0].mig(2432 * MB, 0, 4864 * MB)
    program = """
        from ipygpulogger.render import text
        from ipygpulogger.records import Measurement
        from ipygpulogger.scope import Scope
        scope = Scope(all_devices=True).open()
        scope.close()
        gpus = scope.result(Measurement, "").gpus
        assert len({u.uuid for u in gpus}) == len({text.device_name(u, gpus) for u in gpus}) == 3, gpus
    """
    in_a_new_process(cuda, program)


def test_unified_memory(cuda):
    """A device without memory of its own: used and total are the pool's, in the open, and it is labelled."""
    cuda.dev[0].integrated = 1
    program = """
        import torch
        from ipygpulogger.render import text
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
        assert "unified memory" in text.devices(result.gpus)
        assert len(result.notes) == 1 and "Not Supported" in result.notes[0], result.notes
        assert run(machine(), ladder={"known": False}).notes == ()
    """
    in_a_new_process(cuda, program, CUDA_VISIBLE_DEVICES="0")
