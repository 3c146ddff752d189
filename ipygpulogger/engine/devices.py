"""Match the devices of the frameworks with those of NVML, by UUID.

A framework numbers the devices that `CUDA_VISIBLE_DEVICES` shows, NVML all devices of the machine. Nothing is
initialised to find out which is which.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..sources import driver

if TYPE_CHECKING:
    from ..sources import Device, DeviceCounter, DeviceMemory
    from ..sources.nvml import Nvml
    from .frameworks import Frameworks


class Devices:
    """The devices of this machine, as the frameworks and as NVML know them."""

    def __init__(self, nvml: Nvml, frameworks: Frameworks) -> None:
        self._nvml, self._frameworks = nvml, frameworks
        self._known: dict[tuple[str, int], Device] = {}  # by `Device.key`

    def identify(self, device: Device) -> Device:
        """Return the same device, completed by what other frameworks and NVML report of it."""
        known = self._known.get(device.key)
        if known is None or known.uuid is None:
            seen = self._nvml.device(device.uuid)
            if seen is None and device.backend == "cuda":
                seen = (
                    self._nvml.visible(device.index)
                    if device.uuid is None
                    else self._nvml.device(
                        driver.facts(device.index).uuid
                    )  # older CUDA: the card's UUID for a slice
                )
            if seen is not None:
                total_bytes = seen.total_bytes or device.total_bytes
                device = replace(
                    device, uuid=seen.uuid, name=device.name or seen.name, total_bytes=total_bytes
                )
            self._known[device.key] = device
        return self._known[device.key]

    def known(self, key: tuple[str, int]) -> Device:
        """Return the device that was identified under a `Device.key`."""
        return self._known[key]

    def uuid(self, index: int) -> str | None:
        """Return the UUID of the device with this index in the frameworks; None where it is unknown.

        It may be called while no scope is open.
        """
        counters = self._counters(index)
        known = self.identify(counters[0].device).uuid if counters else driver.facts(index).uuid
        if known is not None:
            return known
        seen = self._nvml.visible(index)
        return None if seen is None else seen.uuid

    def memory(self, index: int) -> DeviceMemory | None:
        """Return the memory of a whole device, all processes together; None where it is unknown."""
        self._nvml.devices()  # opens the driver's library, if it is not open
        uuid = self.uuid(index)
        memory = self._nvml.memory(uuid) if uuid else None
        return memory or next((m for c in self._counters(index) if (m := c.device_memory())), None)

    def all_hidden(self) -> bool:
        """Return whether CUDA shows this process no device, though the machine has some."""
        devices = self._nvml.devices()
        return bool(devices) and all(self.is_hidden(device.uuid) for device in devices)

    def is_hidden(self, uuid: str | None) -> bool:
        """Return whether CUDA certainly hides a device from this process.

        Once CUDA is initialised, its own list decides, not `CUDA_VISIBLE_DEVICES`.
        """
        shown = driver.count()
        if shown is None:
            return any(device.uuid == uuid for device in self._nvml.hidden())
        uuids = [driver.facts(ordinal).uuid for ordinal in range(shown)]
        if None in uuids or (uuid or "").startswith("MIG-"):  # older CUDA: the card's UUID for a slice
            return not shown
        return uuid not in uuids

    def _counters(self, index: int) -> list[DeviceCounter]:
        """Return the frameworks' counters on the device with this index."""
        answers = self._frameworks.counters()
        return [counter for _, counters in answers for counter in counters if counter.device.index == index]
