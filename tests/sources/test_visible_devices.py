"""Which device CUDA means: `CUDA_VISIBLE_DEVICES` as CUDA reads it, on the simulated driver."""

import pynvml
import pytest

from ipygpulogger.sources.nvml import Nvml


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
