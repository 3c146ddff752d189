"""The frameworks' allocators in use, and the one tracker of each one's peaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..sources import DeviceCounter
from .peaks import PeakTracker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..sources import Device
    from .devices import Devices
    from .frameworks import Frameworks


class Allocators:
    """Of each framework: its allocator on each device, and that of page-locked host memory."""

    def __init__(self, frameworks: Frameworks, devices: Devices) -> None:
        self._frameworks, self._devices = frameworks, devices
        self._trackers: dict[tuple[str, tuple[str, int]], PeakTracker] = {}  # by framework, and device
        self._pinned: dict[str, PeakTracker] = {}  # by framework

    def discover(self) -> Iterator[tuple[Device | None, PeakTracker, bool]]:
        """Create a tracker for each allocator that was initialised since the last call.

        Yields:
            The device, or None for page-locked host memory; the tracker of its peaks; whether it is certain
            that every reset of these peaks by the user was noticed.
        """
        imported = self._frameworks.imported()
        if not imported:
            return
        late = self._frameworks.hold(imported)
        for framework, counters in self._frameworks.counters(imported):
            for counter in counters:
                key = framework.name, counter.device.key
                if key not in self._trackers:
                    device = self._devices.identify(counter.device)
                    tracker = self._trackers[key] = PeakTracker(counter)
                    yield device, tracker, framework.name not in late
        for framework, pinned in self._frameworks.pinned(imported):
            if pinned is not None and framework.name not in self._pinned:
                tracker = self._pinned[framework.name] = PeakTracker(pinned)
                yield None, tracker, True

    def by_device(self) -> list[tuple[Device, list[PeakTracker]]]:
        """Return the frameworks' devices, by index, and the tracker of each allocator's peaks there."""
        found: dict[tuple[str, int], list[PeakTracker]] = {}
        for (_, key), tracker in tuple(self._trackers.items()):
            found.setdefault(key, []).append(tracker)
        return [(self._devices.known(key), trackers) for key, trackers in sorted(found.items())]

    def pinned(self) -> list[PeakTracker]:
        """Return the trackers of the peaks of page-locked host memory."""
        return list(self._pinned.values())

    def counters(self, device: Device) -> list[DeviceCounter]:
        """Return the counters of the allocators on a device."""
        wanted, trackers = device.key, tuple(self._trackers.items())
        return [_device_counter(tracker) for (_, key), tracker in trackers if key == wanted]

    def tracker(self, framework: str, index: int | None) -> PeakTracker | None:
        """Return the tracker of the peaks on a device, or of page-locked host memory (index None), if any."""
        if index is None:
            return self._pinned.get(framework)
        trackers = self._trackers.items()
        return next((tracker for (f, (_, i)), tracker in trackers if (f, i) == (framework, index)), None)


def _device_counter(tracker: PeakTracker) -> DeviceCounter:
    counter = tracker.counter
    assert isinstance(counter, DeviceCounter)
    return counter
