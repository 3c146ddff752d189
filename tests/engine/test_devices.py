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
from torch_forks import MAY_DIFFER
from truth import gpu_of, run

from ipygpulogger.engine import ledger as ledgers
from ipygpulogger.engine.machine import Machine
from ipygpulogger.engine.sampler import Sampler
from ipygpulogger.engine.scope import Scope
from ipygpulogger.notebook.logger import IPyGPULogger
from ipygpulogger.records import DeviceUsage, Measurement, Metric, Peak, RamUsage
from ipygpulogger.render import html, text
from ipygpulogger.render.growth import ladders
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


def test_a_neighbour_gives_back_just_what_we_take(cuda, on, outside, monkeypatch):
    """To the byte: the sum stands still, and only a later question tells whose the memory is."""
    row = cuda.dev[0].add_process(1, 700 * MB)
    run(on)
    scope = Scope(on).open()
    raw(cuda, 80 * MB)
    row.used -= 80 * MB
    scope.close()
    monkeypatch.setattr(ledgers, "QUERY_AGAIN_S", 0)
    assert gpu_of(scope.result(Measurement, "")).consumed_bytes == 80 * MB


def test_a_thread_that_allocates_while_we_ask(cuda, on, outside, monkeypatch):
    """Between one question and the next another thread takes 64 MB: nobody's context grows by it."""
    kept, real = [], on.nvml.processes

    def meanwhile(uuid):
        if len(kept) < 2:
            kept.append(tensor(64 * MB))
        return real(uuid)

    run(on)
    monkeypatch.setattr(on.nvml, "processes", meanwhile)
    usage = gpu_of(run(on, lambda: raw(cuda, 8 * MB)))
    assert len(kept) == 2
    assert usage.consumed_bytes == (8 + 64 + 64) * MB
    assert gpu_of(run(on)).consumed_bytes == 0
    kept.clear()
    assert gpu_of(run(on)).consumed_bytes == 0  # it was nobody's cell


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


def test_nobody_tells_of_the_device(cuda, on):
    """Neither NVML nor CUDA: used is n/a and there is no ladder; the allocator's numbers stand."""
    cuda.fault("nvml*", pynvml.NVML_ERROR_GPU_IS_LOST)
    cuda.fault("cudaMemGetInfo", 999)
    kept = []

    def cell():
        tensor(300 * MB)
        kept.append(tensor(100 * MB))

    scope = Scope(on, metrics=("energy",)).open()
    cell()
    scope.close()
    result = scope.result(Measurement, "")
    usage = gpu_of(result)
    assert (usage.consumed_bytes, usage.peaked_bytes, usage.peak.quality) == (100 * MB, 200 * MB, "exact")
    assert (usage.used_bytes, usage.free_bytes, usage.neighbours_bytes) == (None, None, None)
    assert (usage.ladder, usage.headroom_bytes, usage.timeline) == ((), None, ())
    assert text.report(result).splitlines()[2].split()[:4] == ["GPU0:", "100", "200", "n/a"]
    assert "its memory use is unavailable" in ladders(result.gpus)
    assert "tensors" not in html.report(result)
    assert sum("GPU is lost" in note for note in result.notes) == 1
    kept.clear()


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
    looks = []
    monkeypatch.setattr("ipygpulogger.engine.sampler.BUSY_SHARE", 1e9)
    monkeypatch.setattr(on, "sampler", Sampler(lambda: (on.sample(), looks.append(1)), delay_s=0, period_s=0))
    for cell in range(1000):
        if cell >= 50 and len(looks) > 50:
            break

        def churn(cell=cell):
            until_s = time.monotonic() + 0.02
            while time.monotonic() < until_s:
                kept = [tensor((2 + (cell * 7 + i * 5) % 60) * MB) for i in range(4)]
                del kept[::2]
                torch.cuda.empty_cache()

        usage = gpu_of(run(on, churn))
        assert usage.peak.quality == "exact"
        assert usage.consumed_bytes == 0
    assert len(looks) > 50
    print(f"{len(looks)} looks")


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


def test_eight_cards_and_two_of_them_ours(cuda, in_a_new_process):
    """The others have rows of their own only where all are wished for, and nobody asks who uses them."""
    cuda.n_dev = 8
    for index in range(8):
        cuda.dev[index].base_used = (1 + index) * 100 * MB
    program = """
        import torch
        from ipygpulogger.render import html, text
        from ipygpulogger.render.growth import device_name
        gpu = state()
        for i in range(2):
            torch.empty(1, device=f"cuda:{i}")
        asked = [gpu.fault("nvmlDeviceGetComputeRunningProcesses*", dev=i) for i in range(8)]
        def cell():
            for i in range(8):
                gpu.dev[i].base_used += 64 * MB
        assert [u.uuid for u in run(machine(), cell).gpus] == [gpu.dev[i].uuid.decode() for i in (5, 2)]
        gpus = run(machine(), cell, all_devices=True).gpus
        names = [device_name(u, gpus) for u in gpus]
        assert names == ["GPU0", "GPU1", "NVML0", "NVML1", "NVML3", "NVML4", "NVML6", "NVML7"], names
        assert [u.headroom_bytes > 0 for u in gpus] == [True] * 2 + [False] * 6  # CUDA_VISIBLE_DEVICES hides them
        assert [i for i in range(8) if asked[i].hits] == [2, 5], [f.hits for f in asked]
        table = html.report(run(machine(), cell, all_devices=True))
        assert len(table.encode()) <= 2048, len(table.encode())
        assert all(f">{name}<" in table for name in names), table
    """
    in_a_new_process(program, CUDA_VISIBLE_DEVICES="5,2")


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


def test_every_slice_is_told_of(cuda, in_a_new_process):
    """Two slices of one card are two devices, though NVML gives them one card's index."""
    cuda.dev[0].mig(2432 * MB, 0, 4864 * MB)
    program = """
        from ipygpulogger.render import text
        from ipygpulogger.render.growth import device_name
        from ipygpulogger.records import Measurement
        from ipygpulogger.engine.scope import Scope
        scope = Scope(all_devices=True).open()
        scope.close()
        gpus = scope.result(Measurement, "").gpus
        assert len({u.uuid for u in gpus}) == len({device_name(u, gpus) for u in gpus}) == 3, gpus
    """
    in_a_new_process(program)


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

CELLS = """
    import torch
    torch.cuda.synchronize()
    kept = []
    def cell():
        torch.empty(300 << 20, dtype=torch.uint8, device="cuda")
        kept.append(torch.empty(100 << 20, dtype=torch.uint8, device="cuda"))
    for settle in (True, False):
        usage = gpu_of(run(machine(), cell, settle=settle))
        assert (usage.consumed_bytes, usage.peaked_bytes) == (100 * MB, 200 * MB), usage
        assert usage.peak.quality == "exact", usage
        usage = gpu_of(run(machine(), kept.clear, settle=settle))
        assert (usage.consumed_bytes, usage.peaked_bytes) == (-100 * MB, 0), usage
"""


@pytest.mark.parametrize("allocator", ["expandable_segments:True", "backend:cudaMallocAsync"])
def test_allocators_that_count(cuda, allocator, in_a_new_process):
    """Expandable segments and the asynchronous backend: exact, and every rung is the truth."""
    in_a_new_process(CELLS, PYTORCH_CUDA_ALLOC_CONF=allocator)


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
        gpu, kept, notes, texts = state(), [], [], []
        def told(*steps, known=True):
            from ipygpulogger.records import Measurement
            from ipygpulogger.engine.scope import Scope
            machine().settling.settle(gc_collect=False, clear_cache=True)
            scope = Scope().open()
            for step in steps:
                step()
            scope.close()
            machine().settling.settle(gc_collect=False, clear_cache=True)
            result = scope.result(Measurement, "")
            notes.extend(result.notes)
            (usage,) = result.gpus
            device, mine = gpu.dev[0], gpu.dev[0].mine().used
            assert usage.used_bytes == device.base_used + sum(p.used for p in device.proc)
            assert sum(size for _, size in usage.ladder) == device.total == usage.total_bytes
            assert usage.allocated_bytes is None
            assert (usage.after_bytes == mine) if known else not usage.attributed
            assert usage.peak.quality == "sampled" and usage.peak.hi_bytes is None
            texts.append(text.report(result).splitlines()[2])
            return usage
        def cell():
            kept.append(torch.empty(100 << 20, dtype=torch.uint8, device="cuda"))
            gpu.dev[0].base_used += 400 * MB
        assert told(cell).consumed_bytes == 100 * MB
        assert "(peak at least)" in texts[-1], texts
        assert told(kept.clear).consumed_bytes == -100 * MB
        assert kept == [] and len(notes) == 1 and "statistics" in notes[0], notes
        gpu.proc_mem_na = 1
        told(cell, known=False)
        assert texts[-1].split()[1:3] == ["n/a", "n/a"], texts
        assert "per-process usage unavailable" in texts[-1], texts
        print(*notes)
    """
    (note,) = in_a_new_process(program)
    assert "torch" in note


SWITCHED = """
import time
import torch
from ipygpulogger.records import Measurement
from ipygpulogger.engine.scope import Scope
torch.cuda.synchronize()
gpu, switch = state(), torch.cuda.caching_allocator_enable
def tensor(mb):
    return torch.empty(mb << 20, dtype=torch.uint8, device="cuda")
def transient(mb=150, time_s=0.0):
    held = tensor(mb)
    time.sleep(time_s)
def told(*steps):
    with measure() as m:
        for step in steps:
            step()
    (usage,) = m.gpus
    return usage, m.last.notes
def at_least(usage, mb):
    assert usage.peak.quality == "sampled" and usage.peak.hi_bytes is None, usage
    assert usage.peak.lo_bytes >= usage.before_bytes + mb * MB, usage
    return usage
def exact(usage, needed, consumed=0):
    assert usage.peak.quality == "exact", usage
    assert (usage.needed_bytes, usage.consumed_bytes) == (needed * MB, consumed * MB), usage
def driver():
    return gpu.dev[0].mine().used
"""
VARIABLES = ["PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING"]


@pytest.mark.parametrize("variable", VARIABLES)
def test_without_caching_by_a_variable(in_a_new_process, variable):
    """A transient is sampled while it lives, what stays is the driver's figure; said once, by the doctor too."""
    program = """
        usage, notes = told(transient)
        at_least(usage, 0)
        assert usage.allocated_bytes is None and usage.after_bytes == driver()
        assert len(notes) == 1 and "caching allocator is switched off" in notes[0], notes
        usage, notes = told(lambda: transient(time_s=1.0))
        assert at_least(usage, 150).consumed_bytes == 0 and not notes
        kept = []
        usage, _ = told(lambda: kept.append(tensor(100)), transient)
        assert at_least(usage, 100).consumed_bytes == 100 * MB
        usage, _ = told(kept.clear)
        assert at_least(usage, 0).consumed_bytes == -100 * MB
        (torchs,) = [one for one in machine().diagnose() if one.source == "torch"]
        assert torchs.state == "sampled" and "caching allocator is switched off" in torchs.says, torchs
        switch(True)  # changes nothing then
        at_least(told(transient)[0], 0)
    """
    in_a_new_process(SWITCHED + textwrap.dedent(program), **{variable: "1"})


def test_caching_switched_off_and_on_again(in_a_new_process):
    """Before, between, within or after scopes: exact only where torch counted from the first moment to the last."""
    program = """
        off, on, kept = lambda: switch(False), lambda: switch(True), []
        exact(told(transient)[0], 150)
        usage, notes = told(transient, off)
        assert at_least(usage, 0).after_bytes == driver() and "switched off" in notes[0]
        at_least(told(transient)[0], 0)
        assert at_least(told(lambda: kept.append(tensor(70)))[0], 70).consumed_bytes == 70 * MB
        usage, _ = told(transient, on)
        at_least(usage, 0)
        exact(told(transient)[0], 150)
        usage, notes = told(off, transient, on)
        assert at_least(usage, 0).consumed_bytes == 0 and "switches off" in notes[0], notes
        exact(told(transient)[0], 150)
        usage, _ = told(off, lambda: kept.append(tensor(30)), on)
        assert at_least(usage, 30).consumed_bytes == 30 * MB
        usage, _ = told(lambda: kept.append(tensor(20)), off)
        assert at_least(usage, 0).after_bytes == driver()  # what torch keeps cached included
        on()
        outer = Scope().open()
        exact(told(transient)[0], 150)
        off(), on()
        exact(told(transient)[0], 150)
        outer.close()
        (usage,) = outer.result(Measurement, "").gpus
        assert at_least(usage, 150).consumed_bytes == 0
        assert sum(map(len, kept)) == 120 * MB
    """
    in_a_new_process(SWITCHED + textwrap.dedent(program))


def test_lines_and_the_peak_without_caching(in_a_new_process):
    """Neither tells an exact 0, and neither fails."""
    program = """
        from ipygpulogger import measure_lines
        switch(False)
        @measure_lines(report=False)
        def run():
            held = tensor(150)
            del held
        run()
        for line in run.lines:
            for usage in line.gpus:
                assert usage.peak.quality != "exact", line
        with measure(peak=True) as m:
            held = tensor(150)
            del held
        (usage,) = m.gpus
        at_least(usage, 0)
    """
    in_a_new_process(SWITCHED + textwrap.dedent(program))


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
        usage = gpu_of(run(machine(), kept.clear))
        assert usage.consumed_bytes == -64 * MB, usage
    """
    in_a_new_process(program)


@pytest.fixture
def host():
    """torch's page-locked memory, empty before and after; its peaks as they were never asked."""
    if not hasattr(torch.cuda, "reset_peak_host_memory_stats"):
        pytest.skip(f"torch {torch.__version__} does not count pinned memory")
    torch._C._host_emptyCache()
    torch.cuda.reset_peak_host_memory_stats()
    yield
    torch._C._host_emptyCache()
    torch.cuda.reset_peak_host_memory_stats()


def pinned(size_bytes):
    return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)


def test_pinned_memory_is_a_figure_of_its_own(cuda, on, host):
    """Before, after and peak; in the text beside RAM; a smaller peak than an older one is bounded by it."""
    kept = []
    assert run(on).pinned is None

    def cell():
        pinned(256 * MB)
        torch._C._host_emptyCache()
        kept.append(pinned(64 * MB))

    result = run(on, cell)
    usage = result.pinned
    assert (usage.before_bytes, usage.after_bytes, usage.peak) == (
        0, 64 * MB, Peak(256 * MB, 256 * MB, "exact"),
    )  # fmt: skip
    assert "(pinned 64 MB, peak 256 MB)" in text.report(result)

    def smaller():
        pinned(128 * MB)
        torch._C._host_emptyCache()

    peak = run(on, smaller).pinned.peak
    assert peak.lo_bytes <= 192 * MB <= peak.hi_bytes <= 256 * MB
    assert peak.quality == "bounded"
    kept.clear()
    torch._C._host_emptyCache()
    assert run(on).pinned.after_bytes == 0


@pytest.mark.parametrize("again_mb", [0, 128, 512])
def test_the_users_reset_of_pinned_peaks(cuda, on, host, again_mb):
    """However high it rises again: never an exact number that is wrong."""
    pinned(64 * MB)
    torch._C._host_emptyCache()
    run(on)

    def cell():
        pinned(256 * MB)
        torch._C._host_emptyCache()
        torch.cuda.reset_peak_host_memory_stats()
        kept = pinned(again_mb * MB) if again_mb else None
        del kept
        torch._C._host_emptyCache()

    peak = run(on, cell).pinned.peak
    true_bytes = max(256, again_mb) * MB
    assert peak.lo_bytes <= true_bytes
    assert peak.hi_bytes is None or peak.hi_bytes >= true_bytes
    assert peak.quality != "exact" or peak.lo_bytes == true_bytes


# -- headroom --------------------------------------------------------------------------------------


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
        left_bytes = gpu_of(run(on)).headroom_bytes
        assert 0 <= left_bytes <= 8 * MB
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, 0)


# -- energy and load -------------------------------------------------------------------------------

BOTH = ("energy", "utilization")


def test_energy_and_utilization(cuda, on):
    """Joules and per cent of the cell's own time, right by construction; n/a with the reason otherwise."""
    device = cuda.dev[0]
    device.power_mw, device.sample_us = 0, 10_000
    device.load([(-10_000_000, 100), (0, 20)])
    time.sleep(0.03)  # the last sample at 100 % is over

    def cell():
        device.energy_mj += 12_345_600
        time.sleep(0.15)

    result = run(on, cell, metrics=BOTH)
    energy, utilization = gpu_of(result).metrics
    assert (energy.name, energy.unit, energy.value) == ("energy", "J", pytest.approx(12345.6))
    assert utilization == Metric("utilization", 20.0, "%")
    assert "(energy 12346 J, utilization 20 %)" in text.report(result)
    assert run(on, cell).gpus[0].metrics == ()
    short = run(on, metrics=("energy",))
    assert {metric.name: metric.value for metric in gpu_of(short).metrics} == {"energy": None}
    assert "(energy n/a: " in text.report(short)
    cuda.fault("nvmlDeviceGetTotalEnergyConsumption", pynvml.NVML_ERROR_NOT_SUPPORTED)
    cuda.fault("nvmlDeviceGetSamples", pynvml.NVML_ERROR_NOT_SUPPORTED)
    metrics = gpu_of(run(on, cell, metrics=BOTH)).metrics
    assert all(metric.value is None and "Not Supported" in metric.reason for metric in metrics)


def test_energy_of_a_device_first_used_within_the_cell(cuda, in_a_new_process):
    """What NVML counted from the start is told; where it did not, why."""
    program = """
        import time, torch
        from ipygpulogger.records import Measurement
        from ipygpulogger.engine.scope import Scope
        gpu = state()
        gpu.dev[0].power_mw = gpu.dev[1].power_mw = 0
        def first(index):
            def cell():
                torch.empty(1, device=f"cuda:{index}")
                gpu.dev[index].energy_mj += 4_200
                time.sleep(0.12)
            scope = Scope(metrics=("energy",)).open()
            cell()
            scope.close()
            (metric,) = gpu_of(scope.result(Measurement, ""), index).metrics
            return metric
        told = first(0)
        assert (round(told.value, 6), told.reason) == (4.2, ""), told
        gpu.fault("nvml*", 15, dev=1)
        told = first(1)
        assert told.value is None and told.reason, told
    """
    in_a_new_process(program)


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
BROKEN = """
    import sys
    sys.modules.update(dict.fromkeys(("raises", "looks", "half"), sys))  # imported, as it seems
    from ipygpulogger.sources import Device, DeviceCounter, Framework, Observation, Reading
    class Raises(Framework):
        name = "raises"
        def counters(self): raise KeyError("no arena here")
    class Blind(DeviceCounter):
        peak_class = "resettable"
        device = Device("cuda", 1, "blind")
        def look(self): raise OSError("gone")
    class Looks(Framework):
        name = "looks"
        blind = Blind()
        def counters(self): return [self.blind]
    class HalfCounter(DeviceCounter):
        peak_class = "resettable"
        device = Device("cuda", 0, "half")
        def look(self): return Observation((Reading(0, 0),), (0,))
        def reset(self): raise OSError("no reset")
        def device_memory(self): raise OSError("no memory")
        def limit_bytes(self): raise OSError("no limit")
        def pools_bytes(self): raise OSError("no pools")
    class Half(Framework):
        name = "half"
        counter = HalfCounter()
        def counters(self): return [self.counter]
"""


def test_somebody_elses_sources(cuda, tmp_path, in_a_new_process):
    """Through real entry points: the good one is measured, the bad ones are said once and left out."""
    (tmp_path / "arena.py").write_text(textwrap.dedent(ARENA))
    (tmp_path / "broken.py").write_text(textwrap.dedent(BROKEN))
    info = tmp_path / "third-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[ipygpulogger.sources]\narena = example_source:Arena\nnone = no_such_module:Source\n"
        "raises = broken:Raises\nlooks = broken:Looks\nhalf = broken:Half\n"
    )
    program = """
        import arena, os
        gpu = state()
        row = gpu.dev[0].add_process(os.getpid(), 500 * MB)
        notes = []
        def told(step):
            with measure() as m:
                step()
            notes.extend(m.last.notes)
            return gpu_of(m)
        def keep():
            arena.take(300 * MB); arena.give(200 * MB)
            row.used += 100 * MB
        usage = told(keep)
        assert (usage.consumed_bytes, usage.peaked_bytes) == (100 * MB, 200 * MB), usage
        assert (usage.peak.quality, usage.uuid) == ("exact", gpu.dev[0].uuid.decode())
        assert usage.total_bytes == gpu.dev[0].total
        first = list(notes)
        def free():
            arena.give(50 * MB)
            row.used -= 50 * MB
        usage = told(free)
        assert usage.consumed_bytes == -50 * MB
        assert notes == first, notes
        from ipygpulogger.engine.machine import machine
        failed = [one.source for one in machine().diagnose() if "left out" in one.says]
        assert sorted(failed) == ["none", "raises"], failed
        print(*notes, sep=chr(10))
    """
    env = {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[1]}"}
    notes = in_a_new_process(program, **env)
    for name in ("source none", "source raises", "broken.Blind"):
        assert sum(name in note for note in notes) == 1, notes
    assert not any("Arena" in note for note in notes)


# -- in a real kernel ------------------------------------------------------------------------------

START = "from ipygpulogger import IPyGPULogger; il = IPyGPULogger({}).start()"


class Truth:
    """A kernel, what it says of its last cell, and the devices as they are."""

    def __init__(self, kernel, gpu):
        self.kernel, self.gpu = kernel, gpu
        self.pid = kernel.value("__import__('os').getpid()")

    def usage(self, index):
        """The last cell's usage as a plain dictionary, its ladder included; checked against the truth."""
        told = self.kernel.value(
            "next({**d, 'ladder': u.ladder, 'consumed': u.consumed_bytes >> 20, 'peaked': u.peaked_bytes >> 20}"
            " for d, u in zip(il.record.to_dict()['gpus'], il.record.gpus)"
            f" if (u.index, u.backend) == ({index}, 'cuda'))"
        )
        device = self.gpu.dev[index]
        allocated, reserved = self.kernel.value(
            f"[torch.cuda.memory_allocated({index}), torch.cuda.memory_reserved({index})]"
        )
        mine = device.mine(self.pid).used
        others = device.base_used + sum(p.used for p in device.proc) - mine
        assert dict(told["ladder"]) == {
            "tensors": allocated,
            "cached": reserved - allocated,
            "context and libraries": mine - reserved,
            "other processes": others,
            "free": device.total - device.reserved - mine - others,
            "the driver's own": device.reserved,
        }
        assert sum(size for _, size in told["ladder"]) == told["total_bytes"] == device.total
        assert told["uuid"] == device.uuid.decode()
        return told


def make(name, size_mb, index):
    return f"{name} = torch.empty({size_mb} << 20, dtype=torch.uint8, device='cuda:{index}')"


@pytest.mark.kernel(gpu=True)
def test_two_devices_in_a_kernel(gpu, kernel):
    """One in the middle of a cell, both in one, each its own; il.data follows the current device."""
    kernel.run(START.format(""))
    kernel.run("import torch, time")
    truth = Truth(kernel, gpu)
    cell = f"{make('a', 64, 0)}; time.sleep(0.3); {make('b', 32, 1)}; {make('t', 256, 1)}; del t; time.sleep(0.3)"
    ran = kernel.run(cell)
    first, second = truth.usage(0), truth.usage(1)
    assert (first["consumed"], first["peaked"], first["peak"]["quality"]) == (64, 0, "exact")
    assert (second["consumed"], second["peaked"], second["peak"]["quality"]) == (32, 256, "exact")
    assert second["context_bytes"] == 500 * MB
    assert "+ context 500 MB" in ran.stdout
    for told in (first, second):
        course = told["timeline"]
        assert 2 < len(course) <= 64
        assert [at for at, _ in course] == sorted(at for at, _ in course)
        assert course[-1][1] == told["used_bytes"]
    assert second["timeline"][0][1] < second["timeline"][-1][1]  # it began without us
    both = f"{make('c', 20, 0)}; {make('t', 300, 0)}; del t; {make('d', 40, 1)}; {make('t', 500, 1)}; del t"
    kernel.run(both)
    figures = [(truth.usage(i)["consumed"], truth.usage(i)["peaked"]) for i in range(2)]
    assert figures == [(20, 300), (40, 500)]
    assert kernel.value("[il.data.gpu_mem_used_delta, il.data.gpu_mem_peaked]") == [20, 300]
    kernel.run("torch.cuda.set_device(1); del d")
    assert kernel.value("[il.data.gpu_mem_used_delta, il.data.gpu_mem_peaked]") == [-40, 0]
    used = gpu.dev[1].base_used + sum(p.used for p in gpu.dev[1].proc)
    assert kernel.value("il.data.gpu_mem_used") == used // MB
    assert kernel.value("il.record.gpus[0].timeline") == []  # a short cell

    asked = kernel.send("print('up', flush=True); time.sleep(0.8); 1")
    kernel.wait_for_print(asked, "up")
    row = gpu.dev[0].mine(truth.pid)
    row.used += 900 * MB
    seen = gpu.dev[0].n_meminfo
    kernel.wait_for(lambda: gpu.dev[0].n_meminfo > seen + 1)
    row.used -= 900 * MB
    ran = kernel.wait(asked)
    rows = {line.split(":")[0]: line for line in ran.stdout.splitlines()}
    assert "(peak at least)" in rows["GPU0"]
    assert "(peak" not in rows["GPU1"]
    assert truth.usage(0)["consumed"] == 0

    row = gpu.dev[0].add_process(1, 3000 * MB)
    ran = kernel.run("1")
    assert truth.usage(0)["consumed"] == 0
    asked = kernel.send("print('up', flush=True); time.sleep(0.5); 1")
    kernel.wait_for_print(asked, "up")
    row.used = 100 * MB
    ran = kernel.wait(asked)
    assert truth.usage(0)["consumed"] == 0
    assert "(other processes " in ran.stdout


@pytest.mark.kernel(gpu=True)
def test_the_magic_and_the_rich_report(gpu, kernel):
    """Status prints the ladder and the headroom; metrics are asked for by name; the table is folded and small."""
    kernel.run("%load_ext ipygpulogger")
    kernel.run("import torch, time")
    truth = Truth(kernel, gpu)
    kernel.run(f"{make('a', 64, 0)}; {make('b', 32, 1)}")
    first = truth.usage(0)
    refused = kernel.run("%gpulog start metrics=energy,watts")
    assert refused.status == "error" or "metrics takes any of" in refused.stderr
    assert "Traceback" not in refused.stderr
    status = kernel.run("%gpulog status").displays[-1]["data"]["text/plain"]
    for index, told in ((0, first), (1, truth.usage(1))):
        block = status[status.index(f"GPU{index}: NVIDIA") :].split("GPU1: NVIDIA")[0 if index == 0 else -1]
        figures = {line[:38].strip(): line[38:].split() for line in block.splitlines()[1:]}
        for name, size_bytes in told["ladder"]:
            assert figures[name] == [str(round(size_bytes / MB)), "MB"]
        assert figures["total"] == [str(gpu.dev[index].total // MB), "MB"]
        free_mb = round(dict(told["ladder"])["free"] / MB)
        assert figures["headroom"] == [str(free_mb + round(dict(told["ladder"])["cached"] / MB)), "MB"]
    kernel.run("%gpulog start metrics=energy,utilization")
    gpu.dev[0].power_mw = gpu.dev[1].power_mw = 0
    ran = kernel.run("time.sleep(0.3)")
    plain = ran.displays[0]["data"]["text/plain"]
    assert "energy n/a" in plain
    gpu.dev[0].util_gpu, gpu.dev[0].sample_us = 64, 10_000
    asked = kernel.send("print('up', flush=True); time.sleep(0.3)")
    kernel.wait_for_print(asked, "up")
    gpu.dev[0].energy_mj += 7_250
    data = kernel.wait(asked).displays[0]["data"]
    assert "energy 7.25 J" in data["text/plain"]
    assert "utilization 64 %" in data["text/plain"]
    table = data["text/html"]
    assert table.count("<details ") == table.count("</details>") == 1
    assert "<details open" not in table
    for word in ("free", "utilization"):
        assert word in table[table.index("</summary>") :]
    assert len(table.encode()) < 2048


# -- the reports -----------------------------------------------------------------------------------


def a_device(index, **more):
    known = {
        "index": index, "name": "<b>&NVIDIA", "uuid": f"GPU-{index}", "total_bytes": 81_559 * MB,
        "used_bytes": 40_000 * MB, "free_bytes": 40_000 * MB, "allocated_bytes": 20_000 * MB,
        "reserved_bytes": 30_000 * MB, "neighbours_bytes": 5_000 * MB, "neighbours_before_bytes": 0,
        "driver_bytes": 1_559 * MB, "limit_bytes": 70_000 * MB, "pools_bytes": 100 * MB,
        "reserved_peak": Peak(70_000 * MB, 70_000 * MB, "exact"),
        "metrics": (Metric("energy", 12345.6, "J"), Metric("utilization", None, "%", "the driver's <i>")),
    }  # fmt: skip
    return DeviceUsage(30_000 * MB, 29_000 * MB, Peak(50_000 * MB, None, "sampled"), **(known | more))


def a_measurement(*gpus, **more):
    from datetime import datetime, timezone

    gen = RamUsage(100_000 * MB, 120_000 * MB, Peak(140_000 * MB, 140_000 * MB, "exact"))
    started_at = datetime.now(timezone.utc)
    return Measurement(label="In [1234]", started_at=started_at, time_s=1234.567, gen=gen, gpus=gpus, **more)


@pytest.mark.parametrize("talkative", [False, True])
@pytest.mark.parametrize("count", [1, 2, 8])
def test_a_table_of_many_devices_is_small(count, talkative):
    """At most 2 KB, folded, nothing unescaped; of eight devices with much to say the rows at least."""
    calm = {"metrics": (), "neighbours_before_bytes": 5_000 * MB, "limit_bytes": None}
    devices = [a_device(index, **({} if talkative else calm)) for index in range(count)]
    table = html.report(a_measurement(*devices))
    assert len(table.encode()) <= 2048
    assert table.count("<details open ") == table.count("</details>") == 1
    for foreign in ("<b>&", "<i>", "&NVIDIA"):
        assert foreign not in table
    for index in range(count):
        assert f">GPU{index if count > 1 else ''}<td" in table


def test_names_are_escaped():
    """Labels and notes of others are no markup."""
    measurement = a_measurement(a_device(0), notes=("the driver says <script>",))
    table = html.report(measurement)
    assert "<script>" not in table
    assert "&lt;script&gt;" in table
