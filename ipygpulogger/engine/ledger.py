"""Who holds the memory of a device: this process's allocators, this process outside them, others, the driver.

NVML reports the memory of the whole device and, in a slow query, that of each process. This query is made
only if memory outside the allocators changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar, cast

from ..records import DRIVER
from ..records.units import MB
from ..runtime import clock
from ..sources import Device, DeviceCounter, DeviceMemory, Unavailable
from ..sources.nvidia import driver
from ..sources.nvidia.nvml import Nvml
from .peaks import QUIET_TRIES, PeakTracker

ALLOCATED = 0  # the first series of a device's counter: held by live arrays
RESERVED = -1  # the last one: what the allocator took from the device
# Per-process usage is queried again after so long even if the sum outside the allocators did not change: this
# process may have allocated what another one freed.
QUERY_AGAIN_S = 5.0
# Less than any context: beside those that it lists the driver takes 9 MB on an H200; more may be hidden ones.
_LEAST_CONTEXT_BYTES = 64 * MB

T = TypeVar("T")
AllocatorLevels = Sequence[Sequence[int]]  # what each allocator of a device holds, by series


class DeviceSnapshot(NamedTuple):
    """One device at one moment, in bytes; None where unknown."""

    allocated: int | None  # held by live arrays of all frameworks of this process
    reserved: int | None  # taken by their allocators; for one that does not report it, the allocated
    memory: DeviceMemory | None  # the whole device
    own: int | None  # held by this process, context and libraries included
    unlisted: int = 0  # in use, and held by no process that the driver lists

    @property
    def other(self) -> int | None:
        """In use outside the frameworks' allocators, by any process."""
        return None if self.memory is None else self.memory.used_bytes - (self.reserved or 0)

    @property
    def outside(self) -> int | None:
        """Held by this process outside the allocators (context, libraries, raw allocations)."""
        return None if self.own is None else self.own - (self.reserved or 0)

    @property
    def neighbours(self) -> int | None:
        """Held by other processes."""
        if self.memory is None or self.own is None:
            return None
        return max(0, self.memory.used_bytes - self.own - self.unlisted)

    @property
    def driver(self) -> int | None:
        """Reserved by the driver for itself, or used by it for contexts."""
        if self.memory is None:
            return None
        reserved = self.memory.total_bytes - self.memory.used_bytes - self.memory.free_bytes
        return reserved + self.unlisted


NOTHING = DeviceSnapshot(None, None, None, 0)  # of a device that this process certainly does not use


class _Outside(NamedTuple):
    """Memory outside a device's allocators, in bytes, as the driver last reported it; None where unknown."""

    other: int  # all of it
    own: int | None  # this process's part
    unlisted: int  # held by no process
    queried_s: float  # when per-process usage was queried


class Ledger:
    """Takes snapshots of devices, and keeps the last per-process usage of each."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._outside: dict[str | None, _Outside] = {}  # by UUID

    def take(
        self,
        device: Device,
        trackers: Collection[PeakTracker],
        levels: AllocatorLevels | None = None,
        *,
        processes: bool = True,
    ) -> DeviceSnapshot:
        """Return a snapshot, with the driver's list of processes where that is needed and allowed."""
        uuid = device.uuid
        levels = _levels(trackers) if levels is None else levels
        for _ in range(QUIET_TRIES):
            known = self._outside.get(uuid)
            snapshot = self._take(device, levels, trackers, processes=processes)
            # As much is in use outside the allocators as before: so none of them moved between the two reads.
            if known and snapshot.other == known.other and self._outside.get(uuid) is known:
                break
            earlier, levels = levels, _levels(trackers)
            if earlier == levels:
                break
            if processes:  # another thread allocated meanwhile: what the driver listed is unusable
                self._outside.pop(uuid, None)
        return snapshot

    def sample(self, uuid: str, trackers: Collection[PeakTracker]) -> tuple[int, int | None] | None:
        """Return what is in use on a device, and outside the allocators (None if these changed)."""
        before = _reserved(trackers)
        memory = self._nvml.memory(uuid)
        after = _reserved(trackers)
        if memory is None:
            return None
        return memory.used_bytes, None if after is None or after != before else memory.used_bytes - after[0]

    def close(self) -> None:
        """Forget the per-process usage."""
        self._outside.clear()

    def _take(
        self, device: Device, levels: AllocatorLevels, trackers: Collection[PeakTracker], *, processes: bool
    ) -> DeviceSnapshot:
        allocated = sum(level[ALLOCATED] for level in levels) if levels else None
        reserved = sum(level[RESERVED] for level in levels) if levels else None
        uuid = device.uuid
        memory = self._nvml.memory(uuid) if uuid else None
        if memory is None:
            if processes:
                counters = (cast("DeviceCounter", tracker.counter) for tracker in trackers)
                memory = next(iter(_known(counter.device_memory for counter in counters)), None)
            return DeviceSnapshot(allocated, reserved, memory, None)
        other, now_s = memory.used_bytes - (reserved or 0), clock.monotonic_s()
        known = self._outside.get(uuid)
        if known is None or known.other != other or (processes and now_s - known.queried_s > QUERY_AGAIN_S):
            if not processes:
                return DeviceSnapshot(allocated, reserved, memory, None)
            own = self._own(device, reserved or 0)
            others = None if own is None else self._nvml.others_bytes(uuid)
            left = 0 if own is None or others is None else memory.used_bytes - own - others
            unlisted = left if 0 < left < _LEAST_CONTEXT_BYTES else 0
            known = _Outside(other, None if own is None else own - (reserved or 0), unlisted, now_s)
            self._outside[uuid] = known
            if self._nvml.fails("processes"):  # a failure may be temporary: query again at the next snapshot
                del self._outside[uuid]
        own = None if known.own is None else known.own + (reserved or 0)
        return DeviceSnapshot(allocated, reserved, memory, own, known.unlisted)

    def _own(self, device: Device, reserved: int) -> int | None:
        """Return what the driver lists for this process, everything included."""
        if uses(device) is False:
            return 0
        own = self._nvml.own_bytes(device.uuid)
        # Less than a context: the driver lists the host's process ids, not ours.
        return None if own is not None and own <= reserved and uses(device) else own


def allowance(counters: Sequence[DeviceCounter]) -> tuple[int | None, int | None]:
    """Return the limit and the size of the private pools of a device's allocators, as in `DeviceUsage`."""
    limits = _known(counter.limit_bytes for counter in counters)
    pools = _known(counter.pools_bytes for counter in counters)
    return min(limits, default=None), sum(pools) if pools else None


def uses(device: Device) -> bool | None:
    """Return whether this process has a context on a device, whatever the driver lists; None if unknown."""
    if device.backend != DRIVER:
        return True
    contexts = driver.contexts()
    if not contexts:  # only primary contexts are listed: a library may have made another one
        return False if driver.absent() else None
    return device.uuid in {driver.device(ordinal).uuid for ordinal in contexts}


def _reserved(trackers: Iterable[PeakTracker]) -> tuple[int, list[tuple[int, ...]]] | None:
    """Return what allocators have reserved, and the stamps of their counters; None where one has no stamp."""
    try:
        observed = [tracker.observe() for tracker in trackers]
    except Unavailable:
        return None
    stamps = [one.stamp for one in observed]
    return (sum(one.readings[RESERVED].current_bytes for one in observed), stamps) if all(stamps) else None


def _levels(trackers: Iterable[PeakTracker]) -> AllocatorLevels:
    return [[reading.current_bytes for reading in tracker.observe().readings] for tracker in trackers]


def _known(reads: Iterable[Callable[[], T | None]]) -> list[T]:
    """Return the results other than None; the counter of another distribution may fail in any way."""
    found = []
    for read in reads:
        with suppress(Exception):
            found.append(read())
    return [one for one in found if one is not None]
