"""The real pynvml on the simulated NVML."""

import os
import signal
import subprocess
import sys
import threading
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


def test_identity(h, gpu):
    assert N.nvmlDeviceGetCount() == 2
    assert N.nvmlSystemGetDriverVersion() == "580.65.06"
    assert N.nvmlDeviceGetName(h) == "NVIDIA SimGPU 16GB"
    h1 = N.nvmlDeviceGetHandleByIndex(1)
    uuid, pci = N.nvmlDeviceGetUUID(h1), N.nvmlDeviceGetPciInfo(h1).busId
    assert N.nvmlDeviceGetIndex(N.nvmlDeviceGetHandleByUUID(uuid)) == 1
    assert N.nvmlDeviceGetIndex(N.nvmlDeviceGetHandleByPciBusId(pci)) == 1
    assert code(N.nvmlDeviceGetHandleByIndex, 2) == N.NVML_ERROR_INVALID_ARGUMENT
    assert code(N.nvmlDeviceGetHandleByUUID, "GPU-x") == N.NVML_ERROR_NOT_FOUND
    assert code(N.nvmlDeviceGetMigMode, h) == N.NVML_ERROR_NOT_SUPPORTED


def test_uninitialised(kernel_env):
    """In a process of its own: torch initialises NVML and never shuts it down."""
    prog = """
import pynvml as N
try: N.nvmlDeviceGetCount()
except N.NVMLError_Uninitialized: print('uninitialised')
N.nvmlInit(); N.nvmlInit(); N.nvmlShutdown(); print(N.nvmlDeviceGetCount())
"""
    out = subprocess.check_output([sys.executable, "-c", prog], env=kernel_env, text=True)
    assert out.split() == ["uninitialised", "2"]


def test_no_driver(gpu):
    prog = """
import pynvml as N
try: N.nvmlInit()
except N.NVMLError_DriverNotLoaded: print('no driver')
"""
    env = {**os.environ, **simgpu.environment(gpu, driver=False)}
    assert subprocess.check_output([sys.executable, "-c", prog], env=env, text=True).strip() == "no driver"


def test_memory_is_live(h, gpu):
    quiet = N.nvmlDeviceGetMemoryInfo(h, version=N.nvmlMemory_v2).used
    gpu.dev[0].base_used = 1234 * MB
    v1, v2 = N.nvmlDeviceGetMemoryInfo(h), N.nvmlDeviceGetMemoryInfo(h, version=N.nvmlMemory_v2)
    assert v2.used - quiet == 1234 * MB
    assert v1.used == v2.used + v2.reserved  # as in the real driver
    assert v1.total == v1.used + v1.free == v2.used + v2.free + v2.reserved


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


def test_script_by_read(h, gpu):
    quiet = N.nvmlDeviceGetMemoryInfo(h, version=N.nvmlMemory_v2).used
    gpu.dev[0].script([(1, 10), (3, 700 * MB), (4, 0)], by_read=True)
    seen = [N.nvmlDeviceGetMemoryInfo(h, version=N.nvmlMemory_v2).used - quiet for _ in range(5)]
    assert seen == [10, 10, 700 * MB, 0, 0]


def test_processes(h, gpu):
    d = gpu.dev[0]
    d.add_process(4242, 300 * MB)
    d.add_process(77, 12 * MB, kind=2)
    rows = {p.pid: p.usedGpuMemory for p in N.nvmlDeviceGetComputeRunningProcesses(h)}
    assert rows[4242] == 300 * MB and 77 not in rows
    assert [p.pid for p in N.nvmlDeviceGetGraphicsRunningProcesses(h)] == [77]
    gpu.proc_mem_na = 1  # WSL, Windows WDDM
    assert {p.usedGpuMemory for p in N.nvmlDeviceGetComputeRunningProcesses(h)} == {None}
    gpu.pid_offset = 1000  # container without --pid=host
    assert 5242 in {p.pid for p in N.nvmlDeviceGetComputeRunningProcesses(h)}


def test_sensors(h, gpu):
    d = gpu.dev[0]
    d.util_gpu, d.util_mem, d.power_mw, d.temp_c = 87, 31, 250_000, 66
    u = N.nvmlDeviceGetUtilizationRates(h)
    assert (u.gpu, u.memory) == (87, 31)
    assert N.nvmlDeviceGetPowerUsage(h) == 250_000
    assert N.nvmlDeviceGetTemperature(h, N.NVML_TEMPERATURE_GPU) == 66
    start = time.monotonic()
    e = N.nvmlDeviceGetTotalEnergyConsumption(h)
    time.sleep(0.01)
    e = N.nvmlDeviceGetTotalEnergyConsumption(h) - e
    assert 2_499 <= e <= 250_000 * (time.monotonic() - start) + 1  # 250 W for 0.01 s, in mJ


@pytest.mark.parametrize(
    "fn, call, rc",
    [
        ("nvmlInit", lambda _: N.nvmlInit(), N.NVML_ERROR_LIB_RM_VERSION_MISMATCH),
        ("nvmlInit", lambda _: N.nvmlInit(), N.NVML_ERROR_NO_PERMISSION),
        ("nvmlDeviceGetMemoryInfo*", N.nvmlDeviceGetMemoryInfo, N.NVML_ERROR_NOT_SUPPORTED),
        ("nvmlDeviceGetMemoryInfo*", N.nvmlDeviceGetMemoryInfo, N.NVML_ERROR_GPU_IS_LOST),
        ("nvmlDeviceGetCompute*", N.nvmlDeviceGetComputeRunningProcesses, N.NVML_ERROR_NO_PERMISSION),
        ("*", N.nvmlDeviceGetUUID, N.NVML_ERROR_UNKNOWN),
    ],
)
def test_faults(h, gpu, fn, call, rc):
    gpu.fault(fn, rc)
    assert code(call, h) == rc


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


def test_lost_gpu(h, gpu):
    gpu.dev[0].lost = 1
    assert code(N.nvmlDeviceGetMemoryInfo, h) == N.NVML_ERROR_GPU_IS_LOST
    N.nvmlDeviceGetMemoryInfo(N.nvmlDeviceGetHandleByIndex(1))


def test_read_counter(h, gpu):
    n = gpu.dev[0].n_meminfo
    for _ in range(5):
        N.nvmlDeviceGetMemoryInfo(h)
    assert gpu.dev[0].n_meminfo == n + 5


def test_threads(h, gpu):
    """Concurrent readers while the state changes: never a torn or impossible value."""
    bad, stop = [], threading.Event()

    def read():
        while not stop.is_set():
            m = N.nvmlDeviceGetMemoryInfo(h)
            if m.used + m.free != m.total:
                bad.append(m)

    ts = [threading.Thread(target=read) for _ in range(4)]
    [t.start() for t in ts]
    for i in range(2000):
        gpu.dev[0].base_used = (i % 16) << 30
    stop.set()
    [t.join() for t in ts]
    assert not bad


def test_own_name(h, gpu):
    assert N.nvmlSystemGetProcessName(os.getpid()) == str(Path("/proc/self/exe").readlink())


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
    d.script([(0, MB)])
    d.add_process(4242, MB)
    gpu.cuda_order[0], gpu.pid_offset = 1, 9
    gpu.fault("nvml*", 3)
    gpu.clear()
    assert bytes(gpu) == quiet
