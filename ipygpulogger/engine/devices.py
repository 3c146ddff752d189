"""The frameworks' allocators in use, and their devices matched with NVML's.

A framework numbers the devices that `CUDA_VISIBLE_DEVICES` shows, NVML all devices of the machine. Nothing is
initialised to find out which is which.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from operator import methodcaller
from typing import cast

from ..sources import Counter, Device, DeviceCounter, DeviceMemory, Framework
from ..sources.nvidia import driver
from ..sources.nvidia.nvml import Nvml
from .frameworks import Frameworks
from .peaks import PeakTracker


class Devices:
    """The allocators of each framework, and the devices of this machine as frameworks and NVML know them."""

    def __init__(self, nvml: Nvml, frameworks: Frameworks) -> None:
        self._nvml, self._frameworks = nvml, frameworks
        self._identified: dict[tuple[str, int], Device] = {}  # by `Device.key`
        self._trackers: dict[tuple[str, tuple[str, int]], PeakTracker] = {}  # by framework, and device
        self.pinned: dict[str, PeakTracker] = {}  # of page-locked host memory, by framework

    def discover(self, imported: list[Framework]) -> Iterator[tuple[Device | None, PeakTracker, bool]]:
        """Yield device (None: pinned), tracker, and whether no reset was unseen, of each new allocator."""
        late = self._frameworks.hold(imported)
        for framework, counters in self._frameworks.counters(imported):
            for counter in counters:
                key = framework.name, counter.device.key
                if key not in self._trackers:
                    device = self._identify(counter.device)
                    tracker = self._trackers[key] = PeakTracker(counter)
                    yield device, tracker, framework.name not in late
        answers: list[tuple[Framework, Counter | None]] = self._frameworks.ask(
            methodcaller("pinned"), imported
        )
        for framework, pinned in answers:
            if pinned is not None and framework.name not in self.pinned:
                tracker = self.pinned[framework.name] = PeakTracker(pinned)
                yield None, tracker, True

    def by_device(self) -> list[tuple[Device, list[PeakTracker]]]:
        """Return the frameworks' devices, by index, and the tracker of each allocator's peaks there."""
        if not self._trackers:
            return []
        found: dict[tuple[str, int], list[PeakTracker]] = {}
        for (_, key), tracker in tuple(self._trackers.items()):
            found.setdefault(key, []).append(tracker)
        return [(self._identified[key], trackers) for key, trackers in sorted(found.items())]

    def counters(self, device: Device) -> list[DeviceCounter]:
        """Return the counters of the allocators on a device."""
        wanted, trackers = device.key, tuple(self._trackers.items())
        return [cast("DeviceCounter", tracker.counter) for (_, key), tracker in trackers if key == wanted]

    def tracker(self, framework: str, index: int | None) -> PeakTracker | None:
        """Return the tracker of the peaks on a device, or of page-locked host memory (index None), if any."""
        if index is None:
            return self.pinned.get(framework)
        trackers = self._trackers.items()
        return next((tracker for (f, (_, i)), tracker in trackers if (f, i) == (framework, index)), None)

    def _identify(self, device: Device) -> Device:
        """Return the same device, completed by what other frameworks and NVML report of it."""
        known = self._identified.get(device.key)
        if known is not None and known.uuid is not None:
            return known
        seen = self._nvml.device(device.uuid)
        if seen is None and device.backend == "cuda":
            if device.uuid is None:
                seen = driver.visible(self._nvml.devices(), device.index)
            else:  # older CUDA: the card's UUID for a slice
                seen = self._nvml.device(driver.device(device.index).uuid)
        if seen is not None:
            total_bytes = seen.total_bytes or device.total_bytes
            device = replace(device, uuid=seen.uuid, name=device.name or seen.name, total_bytes=total_bytes)
        self._identified[device.key] = device
        return device

    def uuid(self, index: int) -> str | None:
        """Return the UUID of the device with this index in the frameworks; None where it is unknown."""
        counters = self._counters(index)
        known = self._identify(counters[0].device).uuid if counters else driver.device(index).uuid
        if known is not None:
            return known
        seen = driver.visible(self._nvml.devices(), index)
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
        """Return whether CUDA certainly hides a device; once it is initialised, its own list decides."""
        shown = driver.count()
        if shown is None:
            return any(device.uuid == uuid for device in driver.hidden(self._nvml.devices()))
        uuids = [driver.device(ordinal).uuid for ordinal in range(shown)]
        if None in uuids or (uuid or "").startswith("MIG-"):  # older CUDA: the card's UUID for a slice
            return not shown
        return uuid not in uuids

    def _counters(self, index: int) -> list[DeviceCounter]:
        answers = self._frameworks.counters()
        return [counter for _, counters in answers for counter in counters if counter.device.index == index]
