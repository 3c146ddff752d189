"""What changed between two measurements: memory that was freed, and how much changed between two cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .device_usage import CPU, DRIVER, Sizes
from .units import MB

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .measurement import Measurement


class Held(NamedTuple):
    """What this process holds on one device at one moment.

    Attributes:
        name: The device id, as in `Owner.device`.
        inside_bytes: Resident memory, or what live arrays hold on an accelerator.
        outside_bytes: On an accelerator, what the process holds outside the frameworks' allocators; None
            when unknown.
    """

    name: str
    inside_bytes: int
    outside_bytes: int | None = None


def held_bytes(now: Measurement) -> dict[str, int | None]:
    """Return by device id what this process holds: live arrays and resident memory; None when unknown."""
    found = {gpu.id: gpu.allocated_bytes for gpu in now.gpus if gpu.backend != DRIVER}
    return {**found, CPU: now.gen.after_bytes}


def came_back(before: Measurement, after: Measurement) -> dict[str, tuple[int, ...]]:
    """Return how much memory was freed between two measurements, in bytes.

    Returns:
        By device id, "RAM" last: the change of this process's own memory, and then, where known, of the
        whole device's.
    """
    found: dict[str, tuple[int, ...]] = {}
    later = {gpu.key: gpu for gpu in after.gpus}
    for gpu in before.gpus:
        left = later.get(gpu.key)
        if left is None or gpu.allocated_bytes is None or left.allocated_bytes is None:
            continue
        sizes = [(gpu.allocated_bytes, left.allocated_bytes), (gpu.used_bytes, left.used_bytes)]
        known = (was - now for was, now in sizes if was is not None and now is not None)
        found[gpu.id] = tuple(known)
    found["RAM"] = (before.gen.after_bytes - after.gen.after_bytes,)
    return found


def moved_between(ended: Mapping[str, Held], began: Mapping[str, Held], grain_bytes: int) -> Sizes:
    """Return how much memory changed from the end of one scope to the beginning of the next, by device id.

    A device that only the second scope has held no array at the end of the first. What was held outside the
    allocators there is unknown and left out. Changes of at most 1 MB are left out too.

    Args:
        ended: What was held at the end of the first scope, by any key that identifies a device.
        began: What was held at the beginning of the second, by the same keys.
        grain_bytes: The possible error of a difference of two resident sizes.
    """
    found = []
    for key, now in began.items():
        was = ended.get(key, Held(now.name, 0))
        moved_bytes = now.inside_bytes - was.inside_bytes
        if now.outside_bytes is not None and was.outside_bytes is not None:
            moved_bytes += now.outside_bytes - was.outside_bytes
        if abs(moved_bytes) > max(MB, grain_bytes if now.name == CPU else 0):
            found.append((now.name, moved_bytes))
    return tuple(found)
