"""The NVML source on the simulated driver: right, or absent with one plain reason."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import types
from functools import partial
from random import Random

import pynvml
import pytest
import simgpu

from ipygpulogger.engine.machine import machine
from ipygpulogger.sources import Unavailable
from ipygpulogger.sources.nvidia.nvml import Nvml

MB = 2**20

FAULTS = [
    (pynvml.NVML_ERROR_NO_PERMISSION, "no permission"),
    (pynvml.NVML_ERROR_NOT_SUPPORTED, "NVML says"),
    (pynvml.NVML_ERROR_GPU_IS_LOST, "NVML says"),
    (pynvml.NVML_ERROR_TIMEOUT, "NVML says"),
    (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "differ"),
    (pynvml.NVML_ERROR_UNKNOWN, "NVML says"),
]


def used_bytes(nvml, uuid):
    nvml.devices()  # which opens the library
    memory = nvml.memory(uuid)
    return None if memory is None else memory.used_bytes


def test_devices_and_their_memory(gpu, nvml):
    """Every device by UUID; used as nvidia-smi shows it, without the reserve; one may fall off the bus."""
    first, second = nvml.devices()
    assert (first.index, second.index) == (0, 1)
    assert first.uuid == gpu.dev[0].uuid.decode()
    assert first.total_bytes == gpu.dev[0].total
    quiet = used_bytes(nvml, second.uuid)
    gpu.dev[1].base_used = 777 * MB
    gpu.dev[0].lost = 1
    assert used_bytes(nvml, second.uuid) - quiet == 777 * MB
    assert used_bytes(nvml, first.uuid) is None


def test_a_device_without_a_name(gpu, nvml, monkeypatch):
    """A driver that names no device has them nevertheless, each with a text for its name."""
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda _: None)
    assert [device.name for device in nvml.devices()] == ["GPU", "GPU"]


@pytest.mark.linux("elsewhere it is unknown whose the pids are")
def test_our_own_part(gpu, nvml):
    """0 when others are listed; unknown where the driver hides sizes, or lists a host's pids (containers)."""
    uuid = nvml.devices()[0].uuid
    assert nvml.own_bytes(uuid) == 0
    gpu.dev[0].add_process(1, 300 * MB)  # pid 1 exists everywhere
    assert nvml.own_bytes(uuid) == 0
    gpu.dev[0].add_process(os.getpid(), 120 * MB)
    assert nvml.own_bytes(uuid) == 120 * MB
    gpu.proc_mem_na = 1  # WSL
    assert nvml.own_bytes(uuid) is None
    gpu.proc_mem_na, gpu.pid_offset = 0, 5_000_000
    assert nvml.own_bytes(uuid) is None


def test_what_others_hold(gpu, nvml):
    """All that are listed, each once, of either kind; where the driver does not say, it is unknown and no note."""
    uuid = nvml.devices()[0].uuid
    assert nvml.others_bytes(uuid) == 0
    gpu.dev[0].add_process(os.getpid(), 120 * MB)
    assert nvml.others_bytes(uuid) == 0
    gpu.dev[0].add_process(1, 4 * MB)
    assert nvml.others_bytes(uuid) == 4 * MB
    for kind in ("Compute", "Graphics"):
        fault = gpu.fault(f"nvmlDeviceGet{kind}RunningProcesses*", 3, count=1)
        assert nvml.others_bytes(uuid) is None
        assert fault.hits == 1 and nvml.notes.take() == ()
    gpu.proc_mem_na = 1  # WSL
    assert nvml.others_bytes(uuid) is None


@pytest.mark.linux("elsewhere it is unknown whose the pids are")
def test_a_list_of_processes_is_no_garbage(gpu, nvml):
    """pynvml makes a class for so many processes, and a class is garbage of the cell's unless it is held."""
    uuid = nvml.devices()[0].uuid
    for count in range(1, 5):
        gpu.dev[0].add_process(1, MB)
        gc.collect()
        assert nvml.own_bytes(uuid) == 0
        assert gc.collect() == 0, count


@pytest.mark.parametrize(("number", "told"), [(11040, "11.4"), (12080, "12.8"), (13000, "13.0")])
def test_the_version_of_cuda(gpu, nvml, number, told):
    """The driver tells 1000 times the major version and 10 times the minor one."""
    gpu.cuda_version = number
    nvml.devices()
    assert nvml.versions()[1] == told


@pytest.mark.parametrize(("code", "says"), FAULTS)
@pytest.mark.parametrize("function", ["nvmlDeviceGetMemoryInfo*", "nvmlDeviceGetComputeRunningProcesses*"])
def test_every_fault_costs_one_figure(gpu, nvml, code, says, function):
    """A failing question is None and said once, to the doctor while it fails; it is right when the driver recovers."""
    uuid = nvml.devices()[0].uuid
    ask = partial(used_bytes, nvml) if "Memory" in function else nvml.own_bytes
    healthy = ask(uuid)
    fault = gpu.fault(function, code, count=3)
    assert [ask(uuid) for _ in range(3)] == [None] * 3
    (note,) = nvml.notes.take()
    assert says in note
    assert says in nvml.diagnose().says
    assert fault.hits == 3
    assert ask(uuid) == healthy
    assert says not in nvml.diagnose().says
    assert gpu.fault(function, code, count=1) and ask(uuid) is None
    assert nvml.notes.take() == ()


@pytest.mark.linux("nothing forks there", "macos")
def test_a_forked_child_opens_the_driver_again(gpu, nvml):
    """Handles are the parent's; the child makes its own."""
    uuid = nvml.devices()[0].uuid
    used = used_bytes(nvml, uuid)
    pid = os.fork()
    if pid == 0:
        inits = gpu.fault("nvmlInit", -1)
        ok = used_bytes(nvml, uuid) == used and inits.hits == 1
        os._exit(0 if ok else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_no_driver_is_ordinary(gpu):
    """Without a driver: no devices, no note, one diagnosis with its remedy."""
    program = """
from ipygpulogger.sources.nvidia.nvml import Nvml
nvml = Nvml()
print(nvml.devices(), nvml.notes.take(), nvml.diagnose().says, nvml.diagnose().remedy is not None)
"""
    env = {**os.environ, **simgpu.environment(gpu, driver=False)}
    out = subprocess.check_output([sys.executable, "-c", program], env=env, text=True)
    assert out.strip() == "() () no NVIDIA driver True"


def test_a_foreign_pynvml(monkeypatch):
    """Another module of that name, broken in its own way: no devices, one reason, nothing raised."""

    def broken():
        raise OSError("wrong library")

    monkeypatch.setitem(sys.modules, "pynvml", types.SimpleNamespace(nvmlInit=broken))
    nvml = Nvml()
    assert nvml.devices() == ()
    assert nvml.notes.take() == ("no figures of the whole GPU: pynvml fails: wrong library",)
    assert nvml.diagnose().state == "absent"
    nvml.close()


def test_a_divided_card_shows_its_slices(gpu, nvml):
    """In MIG mode the slices stand in for the card, whose own figures are those of all of them."""
    card = gpu.dev[0].uuid.decode()
    first, _, second = gpu.dev[0].mig(2432 * MB, 0, 4864 * MB)
    second.base_used = 300 * MB
    uuids = [device.uuid for device in nvml.devices()]
    assert uuids == [first.uuid.decode(), second.uuid.decode(), gpu.dev[1].uuid.decode()]
    assert nvml.memory(second.uuid.decode())[:2] == (4864 * MB, 300 * MB)
    as_cuda_writes_it = "GPU-" + second.uuid.decode().removeprefix("MIG-")
    assert nvml.memory(as_cuda_writes_it)[0] == 4864 * MB
    assert nvml.memory(card) is None
    assert nvml.device(card) is None
    assert nvml.notes.take() == ()


def test_unified_memory_is_not_in_nvml(gpu, nvml):
    """A device without memory of its own: unknown, said once."""
    gpu.dev[0].integrated = 1
    device = nvml.devices()[0]
    assert device.total_bytes is None
    assert nvml.memory(device.uuid) is None
    assert nvml.memory(device.uuid) is None
    assert len(nvml.notes.take()) == 1


def test_energy_and_load(gpu, nvml):
    """Joules, and the mean of the samples that fell into the time, all processes together; else the reason."""
    uuid = nvml.devices()[0].uuid
    gpu.dev[0].power_mw = 0
    before = nvml.energy_j(uuid)
    gpu.dev[0].energy_mj += 4200
    assert nvml.energy_j(uuid) - before == pytest.approx(4.2)
    gpu.dev[0].sample_us = 10_000
    gpu.dev[0].load([(-5_000_000, 10), (-500_000, 90)])
    assert nvml.utilization_percent(uuid, time.time() - 0.4) == 90
    assert 10 < nvml.utilization_percent(uuid, time.time() - 4) < 90
    with pytest.raises(Unavailable, match="too short"):
        nvml.utilization_percent(uuid, time.time() + 1)
    gpu.dev[0].sample_us = 0
    with pytest.raises(Unavailable, match="too short"):
        nvml.utilization_percent(uuid, time.time() - 0.4)
    with pytest.raises(Unavailable, match="does not know"):
        nvml.energy_j("GPU-of-nobody")
    for function in ("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetSamples"):
        gpu.fault(function, pynvml.NVML_ERROR_NOT_SUPPORTED)
    for ask in (nvml.energy_j, lambda uuid: nvml.utilization_percent(uuid, time.time() - 0.4)):
        with pytest.raises(Unavailable, match="does not report it"):
            ask(uuid)


OTHERS = [0]  # how often other tests of this process left the library open, in machines of their own


@pytest.fixture(autouse=True)
def others():
    machine().close()
    gc.collect()
    OTHERS[0] = pynvml._nvmlLib_refcount


def openings():
    return pynvml._nvmlLib_refcount - OTHERS[0]


def wait_until(so):
    deadline_s = time.monotonic() + 20
    while not so():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def test_a_question_in_flight_is_never_closed_under(gpu, nvml, restless):
    """Threads that ask a slow driver while another opens and closes: each answer is one, or none."""
    uuid = nvml.devices()[0].uuid
    gpu.fault("nvmlDeviceGet*", delay_us=300)
    over, answers = threading.Event(), []

    def ask():
        while not over.is_set():
            memory = nvml.memory(uuid)
            answers.append(memory and memory.used_bytes)
            answers.append(nvml.own_bytes(uuid))
            time.sleep(0.001)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    random = Random(11)
    for _ in range(100):
        for call in (nvml.close, nvml.devices):
            time.sleep(random.random() * 0.002)
            call()
    over.set()
    for thread in threads:
        thread.join()
    nvml.close()
    assert openings() == 0
    assert gpu.in_flight_at_shutdown == 0
    assert {None, 0} == set(answers)
    assert nvml.notes.take() == ()


def test_closing_waits_for_no_driver_that_hangs(gpu, nvml):
    """The library stays open for the thread that is in it, until it is closed again."""
    uuid = nvml.devices()[0].uuid
    hangs = gpu.fault("nvmlDeviceGetMemoryInfo*", delay_us=500_000, count=1)
    asking = threading.Thread(target=nvml.memory, args=[uuid])
    asking.start()
    wait_until(lambda: hangs.hits)
    nvml.close()
    assert asking.is_alive()
    assert openings() == 1
    asking.join()
    nvml.close()
    assert nvml.memory(uuid) is None
    assert openings() == gpu.in_flight_at_shutdown == 0


@pytest.mark.parametrize("at", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetName", "nvmlShutdown"])
def test_a_signal_within_pynvml_leaves_the_driver_as_it_was(gpu, nvml, monkeypatch, at):
    """What it interrupted is done again, and closed in the end; the user's own opening stays."""
    for _ in range(OTHERS[0]):
        pynvml.nvmlShutdown()
    pynvml.nvmlInit()  # the user's own
    strikes = iter([signal.SIGINT])
    real = pynvml._nvmlCheckReturn

    def struck(answer):
        caller = sys._getframe(1).f_code.co_name
        if caller.startswith(at):
            for strike in strikes:
                signal.pthread_kill(threading.main_thread().ident, strike)
        return real(answer)

    with monkeypatch.context() as patch:
        patch.setattr(pynvml, "_nvmlCheckReturn", struck)
        with pytest.raises(KeyboardInterrupt):
            nvml.devices()
            nvml.close()
    nvml.devices()
    nvml.close()
    assert pynvml.nvmlDeviceGetCount() == 2
    pynvml.nvmlShutdown()
    try:
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            pynvml.nvmlDeviceGetCount()
    finally:
        for _ in range(OTHERS[0]):
            pynvml.nvmlInit()
