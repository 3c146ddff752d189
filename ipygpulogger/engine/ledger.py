"""Who holds what on a device: this process's allocators, what it holds outside them, others, the driver.

The allocators count; NVML tells of the whole device and, slowly, of each process. That slow question is
asked only where something outside the allocators moved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ..records import DRIVER
from ..runtime import clock
from ..sources import Unavailable, driver
from .peaks import QUIET_TRIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ..sources import Device, DeviceCounter, DeviceMemory
    from ..sources.nvml import Nvml
    from .peaks import PeakTracker

ALLOCATED = 0  # the first series of a device's counter; the last is what its allocator took from it
RESERVED = -1
ASK_AGAIN_S = 5.0  # so long a neighbour's loss may be our gain unseen, where the two cancel out

T = TypeVar("T")


class DeviceSnapshot(NamedTuple):
    """One device at one boundary, in bytes; None where unknown.

    Attributes:
        allocated: Live, by all frameworks of this process together.
        reserved: Taken from the device by them; allocated alone where a framework does not tell.
        memory: The whole device.
        own: This process, everything included.
        listed: All other processes that the driver lists.
    """

    allocated: int | None
    reserved: int | None
    memory: DeviceMemory | None
    own: int | None
    listed: int | None

    @property
    def other(self) -> int | None:
        """In use outside the frameworks' allocators, whoever holds it."""
        return None if self.memory is None else self.memory.used_bytes - (self.reserved or 0)

    @property
    def outside(self) -> int | None:
        """Held by this process outside its allocators: context, libraries, raw allocations."""
        return None if self.own is None else self.own - (self.reserved or 0)

    @property
    def neighbours(self) -> int | None:
        """Held by other processes."""
        if self.memory is None or self.own is None:
            return None
        if self.memory.driver_in_used:  # what is left over may be the driver's
            return self.listed
        return max(0, self.memory.used_bytes - self.own)

    @property
    def unlisted(self) -> int | None:
        """In use outside the allocators by nobody whom the driver lists: its own, other tenants'."""
        if self.other is None or self.outside is None or self.listed is None:
            return None
        return max(0, self.other - self.outside - self.listed)

    @property
    def driver(self) -> int | None:
        """What the driver keeps for itself."""
        if self.memory is None:
            return None
        if not self.memory.driver_in_used:
            return self.memory.total_bytes - self.memory.used_bytes - self.memory.free_bytes
        if self.own is None or self.listed is None:
            return None
        return max(0, self.memory.used_bytes - self.own - self.listed)


class Shares(NamedTuple):
    """Who holds a device's memory outside the allocators at one moment, at least, in bytes.

    Attributes:
        outside: This process.
        own: The same with what its allocators have handed out.
        listed: All other processes that the driver lists; None where it does not tell.
    """

    outside: int
    own: int
    listed: int | None


class Allowance(NamedTuple):
    """What is said of an allocator beside its counts; see `records.DeviceUsage`."""

    limit_bytes: int | None
    pools_bytes: int | None


class _Outside(NamedTuple):
    """What stands outside a device's allocators, as last asked.

    Attributes:
        other: All of it, in bytes.
        own: This process's part; None where unknown.
        listed: What all other processes hold; None where unknown.
        asked_s: When.
    """

    other: int
    own: int | None
    listed: int | None
    asked_s: float


class Ledger:
    """Keeps what the driver said last of each device's processes."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._outside: dict[str, _Outside] = {}  # by UUID

    def take(
        self, device: Device, trackers: Sequence[PeakTracker], counters: Sequence[DeviceCounter]
    ) -> DeviceSnapshot:
        """One device now.

        Args:
            device: The device.
            trackers: Of the frameworks' allocators on it that count.
            counters: Of all of them, which may tell of the whole device where NVML does not.

        Raises:
            Unavailable: An allocator does not tell.
        """
        stand = _held(trackers)
        for _ in range(QUIET_TRIES):
            snapshot = self._take(device, stand, counters)
            was, stand = stand, _held(trackers)
            if was == stand:
                break
            self._outside.pop(device.uuid or "", None)  # another thread moved meanwhile: it fits neither
        return snapshot

    def glance(
        self, device: Device, trackers: Sequence[PeakTracker], counters: Sequence[DeviceCounter]
    ) -> DeviceSnapshot:
        """As `take` without a call of CUDA or a slow question, so that any thread may look at any time.

        What this process holds outside its allocators is unknown where that moved.

        Raises:
            Unavailable: An allocator does not tell.
        """
        stand = _held(trackers)
        for _ in range(QUIET_TRIES):
            snapshot = self._take(device, stand, counters, ask=False)
            was, stand = stand, _held(trackers)
            if was == stand:
                break
        return snapshot

    def examine(self, device: Device, trackers: Sequence[PeakTracker], memory: DeviceMemory) -> Shares | None:
        """Whose the memory outside the allocators is just now: one slow question, for any thread.

        Allocators may move while the driver answers. Then what they hold counts as nothing. Nothing of the
        answer is kept.

        Args:
            device: The device.
            trackers: Of the frameworks' allocators on it that count.
            memory: The whole device a moment ago.

        Returns:
            None where nobody tells.
        """
        try:
            looks = [tracker.look() for tracker in trackers]
            reserved = sum(look.readings[RESERVED].current_bytes for look in looks)
            own, listed = self._processes(device, reserved)
            later = [tracker.look() for tracker in trackers]
        except Unavailable:
            return None
        if own is None:
            return None
        if not own and listed is None:  # this process cannot be there: all of it is others'
            return Shares(0, 0, memory.used_bytes)
        if all(look.stamp and look.stamp == now.stamp for look, now in zip(looks, later, strict=True)):
            allocated = sum(look.readings[ALLOCATED].current_bytes for look in looks)
            return Shares(own - reserved, own - reserved + allocated, listed)
        peaks = [look.readings[RESERVED].peak_bytes for look in later]
        if None in peaks:
            return None
        outside = max(0, own - sum(filter(None, peaks)))
        return Shares(outside, outside, listed)

    def close(self) -> None:
        """Forget what was said."""
        self._outside.clear()

    def _take(
        self,
        device: Device,
        looks: Sequence[Sequence[int]],
        counters: Sequence[DeviceCounter],
        *,
        ask: bool = True,
    ) -> DeviceSnapshot:
        allocated = sum(look[ALLOCATED] for look in looks) if looks else None
        reserved = sum(look[RESERVED] for look in looks) if looks else None
        memory = self._nvml.memory(device.uuid) if device.uuid else None
        if memory is None:
            answers = _answers(counter.device_memory for counter in counters) if ask else []
            memory = next(iter(answers), None)
            return DeviceSnapshot(allocated, reserved, memory, None, None)
        uuid, other = device.uuid or "", memory.used_bytes - (reserved or 0)
        known, now_s = self._outside.get(uuid), clock.monotonic_s()
        if not ask and (known is None or known.other != other):
            return DeviceSnapshot(allocated, reserved, memory, None, None)
        if known is None or known.other != other or (ask and now_s - known.asked_s > ASK_AGAIN_S):
            own, listed = self._processes(device, reserved or 0)
            outside = None if own is None else own - (reserved or 0)
            known = self._outside[uuid] = _Outside(other, outside, listed, now_s)
            if self._nvml.fails("processes"):  # which may pass while nothing moves
                del self._outside[uuid]
        own = None if known.own is None else known.own + (reserved or 0)
        return DeviceSnapshot(allocated, reserved, memory, own, known.listed)

    def _processes(self, device: Device, reserved: int) -> tuple[int | None, int | None]:
        """What the driver says of this process, everything included, and of all others it lists."""
        own, listed = self._nvml.processes(device.uuid or "") if _may_use(device) else (0, None)
        if own is not None and own <= reserved and surely_uses(device):
            return None, None  # with a context it is more than that: this is not about us
        return own, listed


def allowance(counters: Sequence[DeviceCounter]) -> Allowance:
    """What the allocators on a device say beside their counts."""
    limits = _answers(counter.limit_bytes for counter in counters)
    pools = _answers(counter.pools_bytes for counter in counters)
    return Allowance(min(limits, default=None), sum(pools) if pools else None)


def surely_uses(device: Device) -> bool:
    """Whether this process has a context there, whatever the driver's list of processes says."""
    if device.backend != DRIVER:
        return True
    return device.uuid in {driver.facts(ordinal).uuid for ordinal in driver.contexts() or ()}


def _may_use(device: Device) -> bool:
    """Whether this process may hold memory there: on a shared machine most cards are others' alone."""
    if device.backend != DRIVER:
        return True
    if not driver.contexts():  # contexts of a library's own making are no primary ones
        return not driver.absent()
    return surely_uses(device)


def _held(trackers: Sequence[PeakTracker]) -> list[list[int]]:
    """What each allocator holds now, in its series."""
    return [[reading.current_bytes for reading in tracker.look().readings] for tracker in trackers]


def _answers(questions: Iterable[Callable[[], T | None]]) -> list[T]:
    """What is told; a stranger's counter may fail in any way."""
    answers = []
    for question in questions:
        try:
            answer = question()
        except KeyboardInterrupt:
            raise
        except BaseException:
            answer = None
        if answer is not None:
            answers.append(answer)
    return answers
