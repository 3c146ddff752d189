"""What the CUDA driver tells without a context, and which device CUDA means, on the simulated one."""

# ruff: noqa: ARG002, ARG005 - signatures as they are

import ctypes
import subprocess
import sys

import pynvml
import pytest

from ipygpulogger.sources.nvidia import driver
from ipygpulogger.sources.nvidia.nvml import Nvml


@pytest.mark.torch
def test_nothing_is_loaded_to_ask(kernel_env):
    """Not loaded: nobody can tell. Loaded: no context, until somebody makes one."""
    program = """
import ctypes
from ipygpulogger.sources.nvidia import driver
assert driver.contexts() is None and driver.device(0) == driver.Device("cuda", 0, "cuda:0")
assert "libcuda" not in open("/proc/self/maps").read()
library = ctypes.CDLL("libcuda.so.1")
assert driver.contexts() == () and not library.cuInit(0) and driver.contexts() == ()
assert driver.device(1).uuid.startswith("GPU-") and 0 < driver.device(1).total_bytes <= 16384 * 2**20
assert driver.device(0).uuid != driver.device(1).uuid and driver.device(7).uuid is None
assert driver.contexts() == ()
assert not library.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 1)
assert driver.contexts() == (1,)
print("done")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=kernel_env, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "done", done.stderr


@pytest.mark.torch
def test_uuids_are_those_of_nvml(gpu):
    """The same spelling, so that both speak of the same device."""
    ctypes.CDLL("libcuda.so.1").cuInit(0)
    pynvml.nvmlInit()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(2)]
        told = [pynvml.nvmlDeviceGetUUID(handle) for handle in handles]
    finally:
        pynvml.nvmlShutdown()
    assert {driver.device(0).uuid, driver.device(1).uuid} == set(told)


def test_a_library_that_answers_with_errors(monkeypatch):
    """Before `cuInit`, or in a forked child, every function returns an error."""

    class Failing:
        def __getattr__(self, name):
            return lambda *args: 3

    monkeypatch.setattr(driver, "_library", Failing)
    assert driver.contexts() == ()
    assert driver.device(0) == driver.Device("cuda", 0, "cuda:0")


def test_a_slice_of_a_divided_device(monkeypatch):
    """The two versions of the question differ there, and the newer one names the slice."""

    class Divided:
        def cuDeviceGet(self, device, ordinal):
            return 0

        def cuDeviceTotalMem_v2(self, total, device):
            return 1

        def cuDeviceGetUuid(self, raw, device):
            raw[0] = 1
            return 0

        def cuDeviceGetUuid_v2(self, raw, device):
            raw[0] = 2
            return 0

    monkeypatch.setattr(driver, "_library", Divided)
    assert (driver.device(0).uuid, driver.device(0).total_bytes) == (
        "MIG-02000000-0000-0000-0000-000000000000", None,
    )  # fmt: skip


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
    found = driver.visible(nvml.devices(), ordinal)
    assert (found and found.index) == index


def test_unlike_devices_have_no_known_order(gpu, nvml, monkeypatch):
    """CUDA counts from the fastest unless told otherwise: with two kinds of cards nobody knows."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpu.dev[1].name = b"NVIDIA Other"
    assert driver.visible(nvml.devices(), 0) is None
    with monkeypatch.context() as patch:
        patch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        assert driver.visible(nvml.devices(), 1).index == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", nvml.devices()[1].uuid)
    assert driver.visible(nvml.devices(), 0).index == 1


def test_a_device_that_cannot_be_described_makes_all_uncertain(gpu, monkeypatch):
    """Without the first card in NVML, its second is not taken for CUDA's first, and none is said to be hidden."""
    gpu.fault("nvmlDeviceGetHandleByIndex*", pynvml.NVML_ERROR_UNKNOWN, dev=0)
    for chosen in (None, "0", "0,1"):
        if chosen is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
        nvml = Nvml()
        assert [
            driver.visible(nvml.devices(), 0),
            driver.visible(nvml.devices(), 1),
            driver.hidden(nvml.devices()),
        ] == [None, None, ()]
        nvml.close()
