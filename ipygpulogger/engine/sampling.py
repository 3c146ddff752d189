"""One sample of general RAM, and of each device of the open scopes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..sources import Unavailable
from .ledger import RESERVED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..sources import Device
    from ..sources.nvml import Nvml
    from .ledger import Ledger
    from .open_scopes import Measuring
    from .peaks import PeakTracker


class _Reserved(NamedTuple):
    """What allocators have reserved at one moment, and the stamps of their counters.

    Attributes:
        size_bytes: The sum.
        stamps: None where one of them has none, or cannot be read.
    """

    size_bytes: int
    stamps: tuple[tuple[int, ...], ...] | None


def sample_ram(scopes: Iterable[Measuring], ram: PeakTracker) -> None:
    """Read resident memory, and pass it to the scopes.

    Raises:
        Unavailable: It cannot be read.
    """
    resident_bytes = ram.current_bytes()
    for scope in scopes:
        scope.sampled(resident_bytes)


def sample_device(
    scopes: Sequence[Measuring], device: Device, trackers: Sequence[PeakTracker], nvml: Nvml, ledger: Ledger
) -> None:
    """Read the memory of a device, and pass it to the scopes.

    What was outside the allocators at that moment is known only if they did not change while NVML was read.
    """
    uuid = device.uuid or ""
    before = _reserved(trackers)
    memory = nvml.memory(uuid)
    after = _reserved(trackers)
    if memory is None:
        return
    still = before == after and after.stamps is not None
    other_bytes = memory.used_bytes - after.size_bytes if still else None
    device_scopes = (
        device_scope
        for scope in scopes
        for device_scope in scope.device_scopes()
        if device_scope.device.uuid == uuid
    )
    found = None
    if other_bytes is not None and any(device_scope.asks(other_bytes) for device_scope in device_scopes):
        found = ledger.examine(device, trackers, memory)
    for scope in scopes:
        scope.device_sampled(uuid, memory.used_bytes, other_bytes, found)


def _reserved(trackers: Iterable[PeakTracker]) -> _Reserved:
    looks = []
    for tracker in trackers:
        try:
            looks.append(tracker.look())
        except Unavailable:
            return _Reserved(0, None)
    stamps = tuple(look.stamp for look in looks)
    size_bytes = sum(look.readings[RESERVED].current_bytes for look in looks)
    return _Reserved(size_bytes, stamps if all(stamps) else None)
