"""The NVML source on the simulated driver: right, or absent with one plain reason."""

import os
import subprocess
import sys
import textwrap
import time
import types
from functools import partial

import pynvml
import pytest
import simgpu

from ipygpulogger.sources import Unavailable
from ipygpulogger.sources.nvml import Nvml

MB = 2**20

FAULTS = [
    (pynvml.NVML_ERROR_NO_PERMISSION, "no permission"),
    (pynvml.NVML_ERROR_NOT_SUPPORTED, "NVML says"),
    (pynvml.NVML_ERROR_GPU_IS_LOST, "NVML says"),
    (pynvml.NVML_ERROR_TIMEOUT, "NVML says"),
    (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "differ"),
    (pynvml.NVML_ERROR_UNKNOWN, "NVML says"),
]


@pytest.fixture
def nvml(gpu):
    source = Nvml()
    yield source
    source.close()


def used_bytes(nvml, uuid):
    memory = nvml.memory(uuid)
    return None if memory is None else memory.used_bytes


def test_devices_and_their_memory(gpu, nvml):
    """Every device by UUID; used as nvidia-smi shows it, without the driver's own reserve."""
    first, second = nvml.devices()
    assert (first.index, second.index) == (0, 1)
    assert first.uuid == gpu.dev[0].uuid.decode()
    assert first.total_bytes == gpu.dev[0].total
    quiet = used_bytes(nvml, second.uuid)
    gpu.dev[1].base_used = 777 * MB
    assert used_bytes(nvml, second.uuid) - quiet == 777 * MB


def test_nothing_is_opened_before_the_first_question():
    """A new source has not touched the driver, nor imported its binding."""
    program = "import sys, ipygpulogger.sources.nvml as m; m.Nvml(); print('pynvml' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "False"


def test_an_old_driver_gets_the_old_question(gpu, nvml):
    """Without the second version of the memory query the first is used, for that device always."""
    uuid = nvml.devices()[0].uuid
    with_v2 = used_bytes(nvml, uuid)
    nvml.close()
    gpu.fault("nvmlDeviceGetMemoryInfo_v2", pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    old = Nvml()
    assert used_bytes(old, uuid) == with_v2 + gpu.dev[0].reserved  # v1 counts the reserve as used
    assert old.take_notes() == ()
    old.close()


def test_our_own_part(gpu, nvml):
    """0 when listed processes are others; ours when we are there; None where the driver hides sizes."""
    uuid = nvml.devices()[0].uuid
    assert nvml.processes(uuid).own == 0
    gpu.dev[0].add_process(1, 300 * MB)  # pid 1 exists everywhere
    assert nvml.processes(uuid).own == 0
    gpu.dev[0].add_process(os.getpid(), 120 * MB)
    assert nvml.processes(uuid) == (120 * MB, 300 * MB)
    gpu.proc_mem_na = 1  # WSL
    assert nvml.processes(uuid) == (None, None)


def test_host_pids_are_not_mistaken(gpu, nvml):
    """In a container the driver lists the host's pids: that is unknown, not 0."""
    uuid = nvml.devices()[0].uuid
    gpu.dev[0].add_process(os.getpid(), 120 * MB)
    gpu.pid_offset = 5_000_000
    assert nvml.processes(uuid).own is None


@pytest.mark.parametrize(("code", "says"), FAULTS)
@pytest.mark.parametrize("function", ["nvmlDeviceGetMemoryInfo*", "nvmlDeviceGetComputeRunningProcesses*"])
def test_every_fault_costs_one_figure(gpu, nvml, code, says, function):
    """A failing question is None and said once; it is asked again, and right when the driver recovers."""
    uuid = nvml.devices()[0].uuid
    ask = partial(used_bytes, nvml) if "Memory" in function else lambda uuid: nvml.processes(uuid).own
    healthy = ask(uuid)
    fault = gpu.fault(function, code, count=3)
    assert [ask(uuid) for _ in range(3)] == [None] * 3
    (note,) = nvml.take_notes()
    assert says in note
    assert fault.hits == 3
    assert ask(uuid) == healthy
    assert nvml.take_notes() == ()


@pytest.mark.parametrize(("code", "says"), FAULTS)
def test_a_driver_that_does_not_open(gpu, code, says):
    """No devices, one reason, and the doctor knows it; the next process may be luckier."""
    gpu.fault("nvmlInit", code)
    nvml = Nvml()
    assert nvml.devices() == ()
    assert used_bytes(nvml, "GPU-x") is None
    assert nvml.processes("GPU-x").own is None
    (note,) = nvml.take_notes()
    assert says in note
    assert nvml.diagnose().state == "absent"
    assert says in nvml.diagnose().says


@pytest.mark.parametrize(
    "function",
    ["nvmlDeviceGetCount*", "nvmlDeviceGetHandleByIndex*", "nvmlDeviceGetUUID", "nvmlDeviceGetName"],
)
def test_faults_while_looking_for_devices(gpu, function):
    """A device that cannot be described is left out; nothing raises."""
    gpu.fault(function, pynvml.NVML_ERROR_UNKNOWN)
    nvml = Nvml()
    assert nvml.devices() == ()
    assert nvml.take_notes()
    nvml.close()


def test_one_lost_card_does_not_blind_the_other(gpu, nvml):
    """Device 0 falls off the bus: device 1 still answers."""
    first, second = nvml.devices()
    gpu.dev[0].lost = 1
    assert used_bytes(nvml, first.uuid) is None
    assert used_bytes(nvml, second.uuid) is not None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
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
    program = textwrap.dedent(
        """
        from ipygpulogger.sources.nvml import Nvml
        nvml = Nvml()
        print(nvml.devices(), nvml.take_notes(), nvml.diagnose().says, nvml.diagnose().remedy is not None)
        """
    )
    env = {**os.environ, **simgpu.environment(gpu, driver=False)}
    out = subprocess.check_output([sys.executable, "-c", program], env=env, text=True)
    assert out.strip() == "() () no NVIDIA driver True"


def test_a_driver_that_recovers_is_not_blamed(gpu, nvml):
    """After a passing fault the doctor's word is good again; the same fault is not said twice."""
    uuid = nvml.devices()[0].uuid
    for _ in range(2):
        fault = gpu.fault("nvmlDeviceGetMemoryInfo*", pynvml.NVML_ERROR_GPU_IS_LOST, count=1)
        assert used_bytes(nvml, uuid) is None
        assert fault.hits == 1
        assert "GPU is lost" in nvml.diagnose().says
        assert used_bytes(nvml, uuid) is not None
        assert "GPU is lost" not in nvml.diagnose().says
    assert len(nvml.take_notes()) == 1


def test_a_foreign_pynvml(monkeypatch):
    """Another module of that name, broken in its own way: no devices, one reason, nothing raised."""

    def broken():
        raise OSError("wrong library")

    monkeypatch.setitem(sys.modules, "pynvml", types.SimpleNamespace(nvmlInit=broken))
    nvml = Nvml()
    assert nvml.devices() == ()
    assert nvml.take_notes() == ("no figures of the whole GPU: pynvml fails: wrong library",)
    assert nvml.diagnose().state == "absent"
    nvml.close()


# -- which device CUDA means ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("visible", "ordinal", "index"),
    [
        (None, 0, 0),
        (None, 1, 1),
        (None, 2, None),
        ("1", 0, 1),
        ("1,0", 1, 0),
        (" 1 , 0 ", 0, 1),
        ("", 0, None),
        ("-1", 0, None),
        ("0,7,1", 0, 0),
        ("0,7,1", 1, None),  # what follows an entry that is no device does not count
        ("{1}", 0, 1),
        ("{1:.12},{0}", 0, None),  # the beginning of both devices' UUIDs: none
    ],
)
def test_the_device_that_cuda_means(gpu, nvml, monkeypatch, visible, ordinal, index):
    """CUDA_VISIBLE_DEVICES by index and by UUID, as CUDA reads it; unknown is None."""
    devices = nvml.devices()
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        uuids = [device.uuid for device in devices]
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible.format(*uuids))
    found = nvml.visible(ordinal)
    assert (found and found.index) == index


def test_unlike_devices_have_no_known_order(gpu, nvml, monkeypatch):
    """CUDA counts from the fastest unless told otherwise: with two kinds of cards nobody knows."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpu.dev[1].name = b"NVIDIA Other"
    assert nvml.visible(0) is None
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert nvml.visible(1).index == 1
    monkeypatch.delenv("CUDA_DEVICE_ORDER")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", nvml.devices()[1].uuid)
    assert nvml.visible(0).index == 1


def test_a_device_that_cannot_be_described_moves_no_other(gpu, monkeypatch):
    """Without the first card in NVML, CUDA's second is still the second, and its first is nobody."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpu.fault("nvmlDeviceGetHandleByIndex*", pynvml.NVML_ERROR_UNKNOWN, dev=0)
    nvml = Nvml()
    assert nvml.visible(0) is None
    assert nvml.visible(1).index == 1
    nvml.close()


# -- divided and unified devices ------------------------------------------------------------------


def test_a_divided_card_shows_its_slices(gpu, nvml):
    """In MIG mode the slices stand in for the card, whose own figures are those of all of them."""
    card = gpu.dev[0].uuid.decode()
    first, _, second = gpu.dev[0].mig(2432 * MB, 0, 4864 * MB)
    second.base_used = 300 * MB
    uuids = [device.uuid for device in nvml.devices()]
    assert uuids == [first.uuid.decode(), second.uuid.decode(), gpu.dev[1].uuid.decode()]
    assert nvml.memory(second.uuid.decode())[:2] == (4864 * MB, 300 * MB)
    assert (
        nvml.memory("GPU-" + second.uuid.decode().removeprefix("MIG-"))[0] == 4864 * MB
    )  # as CUDA writes it
    assert nvml.memory(card) is None
    assert nvml.device(card) is None
    assert nvml.take_notes() == ()


def test_unified_memory_is_not_in_nvml(gpu, nvml):
    """A device without memory of its own: unknown, said once."""
    gpu.dev[0].integrated = 1
    device = nvml.devices()[0]
    assert device.total_bytes is None
    assert nvml.memory(device.uuid) is None
    assert nvml.memory(device.uuid) is None
    assert len(nvml.take_notes()) == 1


# -- energy and load ------------------------------------------------------------------------------


def test_energy(gpu, nvml):
    """Joules, all processes together; a driver that does not count them says why."""
    uuid = nvml.devices()[0].uuid
    gpu.dev[0].power_mw = 0
    before = nvml.energy_j(uuid)
    gpu.dev[0].energy_mj += 4200
    assert nvml.energy_j(uuid) - before == pytest.approx(4.2)
    gpu.fault("nvmlDeviceGetTotalEnergyConsumption", pynvml.NVML_ERROR_NOT_SUPPORTED)
    with pytest.raises(Unavailable, match="does not tell"):
        nvml.energy_j(uuid)
    with pytest.raises(Unavailable, match="does not know"):
        nvml.energy_j("GPU-of-nobody")


def test_utilization_is_the_mean_of_what_fell_into_the_time(gpu, nvml):
    """Half a second at 90 %, before it at 10 %: 90, and nothing where no sample fell."""
    uuid = nvml.devices()[0].uuid
    gpu.dev[0].sample_us = 10_000
    gpu.dev[0].load([(-5_000_000, 10), (-500_000, 90)])
    assert nvml.utilization_percent(uuid, time.time() - 0.4) == 90
    assert 45 < nvml.utilization_percent(uuid, time.time() - 0.9) < 55
    with pytest.raises(Unavailable, match="too short"):
        nvml.utilization_percent(uuid, time.time() + 1)
    gpu.dev[0].sample_us = 0
    with pytest.raises(Unavailable, match="too short"):
        nvml.utilization_percent(uuid, time.time() - 0.4)
    gpu.fault("nvmlDeviceGetSamples", pynvml.NVML_ERROR_NOT_SUPPORTED)
    with pytest.raises(Unavailable, match="does not tell"):
        nvml.utilization_percent(uuid, time.time() - 0.4)
