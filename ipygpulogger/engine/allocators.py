"""The frameworks' allocators in use, and the one owner of each one's peaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..sources import DeviceCounter
from .peaks import PeakOwner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..sources import Device
    from .devices import Devices
    from .frameworks import Frameworks


class Allocators:
    """Of each framework: its allocator on each device, and that of page-locked host memory."""

    def __init__(self, frameworks: Frameworks, devices: Devices) -> None:
        self._frameworks, self._devices = frameworks, devices
        self._owners: dict[tuple[str, tuple[str, int]], PeakOwner] = {}  # by framework, and device
        self._pinned: dict[str, PeakOwner] = {}  # by framework

    def discover(self) -> Iterator[tuple[Device | None, PeakOwner, bool]]:
        """Take in the allocators that came to life since the last call.

        Yields:
            The device, or None for page-locked host memory; the owner of its peaks; whether the user
            cannot have reset them unseen.
        """
        if not self._frameworks.imported():
            return
        late = self._frameworks.hold()
        for framework, counters in self._frameworks.counters():
            for counter in counters:
                key = framework.name, counter.device.key
                if key not in self._owners:
                    device = self._devices.identify(counter.device)
                    owner = self._owners[key] = PeakOwner(counter)
                    yield device, owner, framework.name not in late
        for framework, pinned in self._frameworks.ask(lambda framework: framework.pinned()):
            if pinned is not None and framework.name not in self._pinned:
                owner = self._pinned[framework.name] = PeakOwner(pinned)
                yield None, owner, True

    def by_device(self) -> list[tuple[Device, list[PeakOwner]]]:
        """Return the frameworks' devices, by index, and the owner of each allocator's peaks there."""
        found: dict[tuple[str, int], list[PeakOwner]] = {}
        for (_, key), owner in tuple(self._owners.items()):
            found.setdefault(key, []).append(owner)
        return [(self._devices.known(key), owners) for key, owners in sorted(found.items())]

    def pinned(self) -> list[PeakOwner]:
        """Return the owners of the peaks of page-locked host memory."""
        return list(self._pinned.values())

    def counters(self, device: Device) -> list[DeviceCounter]:
        """Return the counters of the allocators on a device."""
        owners = tuple(self._owners.items())
        return [_device_counter(owner) for (_, key), owner in owners if key == device.key]

    def owner(self, framework: str, index: int | None) -> PeakOwner | None:
        """Return the owner of the peaks on a device, or of page-locked host memory (index None), if any."""
        if index is None:
            return self._pinned.get(framework)
        owners = self._owners.items()
        return next((owner for (name, (_, i)), owner in owners if (name, i) == (framework, index)), None)


def _device_counter(owner: PeakOwner) -> DeviceCounter:
    counter = owner.counter
    assert isinstance(counter, DeviceCounter)
    return counter
