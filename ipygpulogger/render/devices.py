"""The names of devices in reports: GPU, GPU1, NVML2, GPU0.1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..records import DRIVER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..records import CellRecord, DeviceUsage

    Key = tuple[str, int, str | None]  # `DeviceUsage.key`


def device_name(gpu: DeviceUsage, gpus: Sequence[DeviceUsage]) -> str:
    """Return the name of a device's row among the rows of these devices.

    The index is the framework's, or NVML's where no framework sees the device. Slices of one card share its
    index and are numbered behind it.
    """
    if len(gpus) == 1:
        return "GPU"
    hidden = gpu.backend == DRIVER and any(other.backend != DRIVER for other in gpus)
    alike = [other for other in gpus if other.id == gpu.id]
    part = f".{alike.index(gpu)}" if len(alike) > 1 else ""
    return f"{'NVML' if hidden else 'GPU'}{gpu.index}{part}"


def named_devices(records: Iterable[CellRecord]) -> dict[Key, tuple[str, DeviceUsage]]:
    """Return the devices of many cells by key: the name of each among them all, and its latest figures."""
    latest = {gpu.key: gpu for record in records for gpu in record.gpus}
    found = sorted(latest.values(), key=lambda gpu: (gpu.backend == DRIVER, gpu.backend, gpu.index))
    return {gpu.key: (device_name(gpu, found), gpu) for gpu in found}
