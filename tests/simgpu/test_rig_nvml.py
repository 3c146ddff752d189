"""The real pynvml on the simulated NVML."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pynvml as N
import pytest

import simgpu

MB = 1 << 20


@pytest.fixture
def h(gpu):
    N.nvmlInit()
    yield N.nvmlDeviceGetHandleByIndex(0)
    N.nvmlShutdown()


def code(f, *a, **k):
    with pytest.raises(N.NVMLError) as e:
        f(*a, **k)
    return e.value.value


def test_script_by_time(h, gpu):
    """A 3 ms spike 20 ms from now, exact to the microsecond: checked for every read that lies
    entirely before, in or after the spike, so a busy machine cannot fail it."""
    d = gpu.dev[0]
    quiet = N.nvmlDeviceGetMemoryInfo(h, version=N.nvmlMemory_v2).used
    d.script([(20_000, 700 * MB), (23_000, 0)])
    b = 0
    while b < 30_000:
        a = (time.monotonic_ns() - d.script_t0) / 1e3
        used = N.nvmlDeviceGetMemoryInfo(h, version=N.nvmlMemory_v2).used - quiet
        b = (time.monotonic_ns() - d.script_t0) / 1e3
        if b < 20_000 or a >= 23_000:
            assert used == 0
        elif a >= 20_000 and b < 23_000:
            assert used == 700 * MB


def samples(h, seen=0, kind=N.NVML_GPU_UTILIZATION_SAMPLES):
    value_type, rows = N.nvmlDeviceGetSamples(h, kind, seen)
    assert value_type == N.NVML_VALUE_TYPE_UNSIGNED_INT
    return [(row.timeStamp, row.sampleValue.uiVal) for row in rows]


def test_samples(h, gpu):
    d = gpu.dev[0]
    d.util_gpu, d.util_mem, d.power_mw, d.sample_us = 87, 31, 250_000, 10_000
    a = time.time_ns() // 1000
    rows = samples(h)
    b = time.time_ns() // 1000
    assert len(rows) == 100 and {value for _, value in rows} == {87}
    times = [at for at, _ in rows]
    assert times == list(range(times[0], times[-1] + 1, 10_000))
    assert a - 10_000 < times[-1] <= b  # of the epoch, the newest at most one period old
    assert {value for _, value in samples(h, kind=N.NVML_MEMORY_UTILIZATION_SAMPLES)} == {31}
    assert {value for _, value in samples(h, kind=N.NVML_TOTAL_POWER_SAMPLES)} == {250_000}
    assert code(samples, h, 0, N.NVML_ENC_UTILIZATION_SAMPLES) == N.NVML_ERROR_NOT_SUPPORTED


def test_samples_since(h, gpu):
    gpu.dev[0].sample_us = 50_000
    seen = samples(h)[-1][0]
    time.sleep(0.12)
    rows = samples(h, seen)
    assert len(rows) >= 2 and rows[0][0] == seen + 50_000  # the next ones, none missing
    assert code(samples, h, time.time_ns() // 1000 + 60_000_000) == N.NVML_ERROR_NOT_FOUND
    assert samples(h, rows[0][0] + 1)[0] == rows[1]  # a time between two samples
    gpu.dev[0].sample_us = 0  # an idle GPU whose buffer ran dry
    assert code(samples, h) == N.NVML_ERROR_NOT_FOUND


def v2(h):
    m = N.nvmlDeviceGetMemoryInfo(h, version=N.nvmlMemory_v2)
    assert m.used + m.free + m.reserved == m.total
    return m


def test_mig(h, gpu):
    d = gpu.dev[0]
    quiet = v2(h).used
    a, _, b = d.mig(2432 * MB, 0, 4864 * MB)
    assert N.nvmlDeviceGetMigMode(h) == [1, 1] and N.nvmlDeviceGetMaxMigDeviceCount(h) == 7
    slot = N.nvmlDeviceGetMigDeviceHandleByIndex
    ha, hb = slot(h, 0), slot(h, 2)
    assert code(slot, h, 1) == code(slot, h, 6) == N.NVML_ERROR_NOT_FOUND
    assert code(slot, h, 7) == N.NVML_ERROR_INVALID_ARGUMENT
    assert [N.nvmlDeviceIsMigDeviceHandle(x).value for x in (h, ha, hb)] == [0, 1, 1]
    parent = N.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(hb)
    assert N.nvmlDeviceGetUUID(parent) == N.nvmlDeviceGetUUID(h) == d.uuid.decode()
    assert [N.nvmlDeviceGetIndex(x) for x in (ha, hb)] == [0, 2]
    assert [N.nvmlDeviceGetGpuInstanceId(x) for x in (ha, hb)] == [7, 9]
    assert N.nvmlDeviceGetComputeInstanceId(hb) == 0
    uuids = [N.nvmlDeviceGetUUID(x) for x in (ha, hb)]
    assert uuids == [a.uuid.decode(), b.uuid.decode()] and len({*uuids}) == 2
    assert all(u.startswith("MIG-") and len(u) == 40 for u in uuids)
    assert N.nvmlDeviceGetUUID(N.nvmlDeviceGetHandleByUUID(uuids[1])) == uuids[1]
    assert N.nvmlDeviceGetName(ha) == "NVIDIA SimGPU 16GB MIG 1g.2gb"
    assert N.nvmlDeviceGetName(hb) == "NVIDIA SimGPU 16GB MIG 2g.5gb"

    # memory: a slice has its own, the device the aggregate of the card
    b.base_used = 100 * MB
    d.add_process(11, 300 * MB, slice=0)
    d.add_process(12, 700 * MB, slice=2)
    assert (v2(ha).total, v2(ha).used) == (2432 * MB, 300 * MB)
    assert (v2(hb).total, v2(hb).used) == (4864 * MB, 800 * MB)
    m = N.nvmlDeviceGetMemoryInfo(hb)
    assert (m.total, m.used, m.free) == (4864 * MB, 800 * MB, 4064 * MB)
    assert (v2(h).total, v2(h).used - quiet) == (d.total, 1100 * MB)

    # processes
    def pids(x):
        rows = N.nvmlDeviceGetComputeRunningProcesses(x)
        return {
            p.pid: (p.usedGpuMemory >> 20, p.gpuInstanceId, p.computeInstanceId)
            for p in rows
            if p.pid != os.getpid()
        }

    assert pids(ha) == {11: (300, 7, 0)} and pids(hb) == {12: (700, 9, 0)}
    assert pids(h) == {11: (300, 7, 0), 12: (700, 9, 0)}

    # NVML does not know the utilization in MIG mode, and sensors belong to the device
    for x in (h, ha):
        assert code(N.nvmlDeviceGetUtilizationRates, x) == N.NVML_ERROR_NOT_SUPPORTED
        assert code(samples, x) == N.NVML_ERROR_NOT_SUPPORTED
    assert N.nvmlDeviceGetPowerUsage(h) == d.power_mw
    assert code(N.nvmlDeviceGetPowerUsage, ha) == N.NVML_ERROR_INVALID_ARGUMENT

    # the other device is none of this
    h1 = N.nvmlDeviceGetHandleByIndex(1)
    assert code(N.nvmlDeviceGetMigMode, h1) == N.NVML_ERROR_NOT_SUPPORTED
    assert N.nvmlDeviceGetMaxMigDeviceCount(h1) == 0
    d.lost = 1
    assert code(N.nvmlDeviceGetMemoryInfo, ha) == N.NVML_ERROR_GPU_IS_LOST
    d.lost = 0
    b.total = 0  # a slice that is taken away
    assert code(N.nvmlDeviceGetMemoryInfo, hb) == N.NVML_ERROR_INVALID_ARGUMENT
    assert code(N.nvmlDeviceGetHandleByUUID, uuids[1]) == N.NVML_ERROR_NOT_FOUND


def test_fault_window_and_delay(h, gpu):
    gpu.fault("nvmlDeviceGetMemoryInfo*", N.NVML_ERROR_GPU_IS_LOST, dev=0, skip=2, count=1)
    N.nvmlDeviceGetMemoryInfo(h)
    N.nvmlDeviceGetMemoryInfo(N.nvmlDeviceGetHandleByIndex(1))  # another device does not count
    N.nvmlDeviceGetMemoryInfo(h)
    assert code(N.nvmlDeviceGetMemoryInfo, h) == N.NVML_ERROR_GPU_IS_LOST
    N.nvmlDeviceGetMemoryInfo(h)
    gpu.fault("nvmlDeviceGetPowerUsage", delay_us=20_000)
    t = time.perf_counter()
    N.nvmlDeviceGetPowerUsage(h)
    assert time.perf_counter() - t > 0.02


def test_nothing_is_left_behind(gpu):
    """A process killed with the machine in its hands takes the machine with it."""
    prog = """
import os, signal, simgpu
print(simgpu.start().path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    env = {**os.environ, "PYTHONPATH": str(Path(simgpu.__file__).parents[1])}
    p = subprocess.run([sys.executable, "-c", prog], env=env, text=True, stdout=-1, check=False)
    assert p.returncode == -signal.SIGKILL
    assert p.stdout.startswith("/proc/") and not Path(p.stdout.strip()).exists()


def test_clear(h, gpu):
    """A test may change anything: the next one finds the machine of the start."""
    quiet = bytes(gpu)
    d = gpu.dev[0]
    d.total, d.name, d.lost, d.temp_c, gpu.n_dev, gpu.driver_version = 1 << 30, b"odd", 1, 99, 1, b"1.2"
    d.integrated, d.sample_us, d.energy_step_ms = 1, 2, 3
    d.script([(0, MB)])
    d.load([(0, 50)])
    d.mig(MB)
    d.add_process(4242, MB, slice=0)
    gpu.cuda_order[0], gpu.pid_offset, gpu.mig_parent_uuid = 1, 9, 1
    gpu.fault("nvml*", 3)
    gpu.clear()
    assert bytes(gpu) == quiet
