"""One device in one scope: where it stood at the beginning, what was seen of it, and the arithmetic.

What is this process's own has three parts: the allocators' bytes, exact; what it holds outside them, as
far as the driver tells; and the context, a note. A peak is exact where nothing outside them moved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .holdings import ALLOCATED, RESERVED
from .peaks import together
from .records import DeviceUsage, Peak
from .sources import Unavailable
from .timeline import Timeline
from .units import MB

if TYPE_CHECKING:
    from .holdings import Allowance, Holdings
    from .peaks import Interval, PeakOwner
    from .records import Metric
    from .records import Timeline as Course
    from .sources import Device


class DeviceWatch:
    """One device in one scope."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.intervals: dict[PeakOwner, Interval] = {}  # of each framework's allocator on it
        self.before: Holdings | None = None  # None: the device came to life within the scope
        self.neighbours_before_bytes: int | None = None
        self.highest_used_bytes = 0  # of the whole device, as the sampler saw it
        self.highest_other_bytes = 0  # and of what stands outside the allocators
        self.timeline = Timeline()
        self.energy_j: float | Unavailable = Unavailable("first used within this scope")  # at its beginning
        self.metrics: tuple[Metric, ...] = ()

    def usage(self, after: Holdings, allowance: Allowance, timeline: Course) -> DeviceUsage:
        """What the scope used of it.

        Args:
            after: Where it stands at the end.
            allowance: What its allocators say beside their counts.
            timeline: Its course, for the record.
        """
        before, device = self.before, self.device
        outside_before = before.outside if before else after.outside  # a context made here is a note
        outside_after, unattributed_bytes = after.outside, 0
        if outside_before is None or outside_after is None:
            was, now = before and before.other, after.other
            if was is not None and now is not None and not device.unified:  # there everybody's RAM is outside
                unattributed_bytes = now - was
            outside_before = outside_after = 0
        before_bytes = outside_before + sum(i.before_bytes(ALLOCATED) for i in self.intervals.values())
        after_bytes = outside_after + (after.allocated or 0)
        peak = self._peak(after, before_bytes, after_bytes, (outside_before, outside_after))
        memory = after.memory
        return DeviceUsage(
            before_bytes,
            after_bytes,
            peak,
            index=device.index,
            name=device.name,
            uuid=device.uuid,
            backend=device.backend,
            attributed=after.allocated is not None or after.own is not None,
            unified=device.unified,
            total_bytes=memory.total_bytes if memory else device.total_bytes,
            used_bytes=memory.used_bytes if memory else None,
            free_bytes=memory.free_bytes if memory else None,
            allocated_bytes=after.allocated,
            reserved_bytes=after.reserved if self._tells_reserved() else None,
            reserved_peak=together(list(self.intervals.values()), RESERVED)
            if self._tells_reserved()
            else None,
            pools_bytes=allowance.pools_bytes,
            other_bytes=after.other,
            neighbours_bytes=after.neighbours,
            neighbours_before_bytes=self.neighbours_before_bytes,
            driver_bytes=after.driver,
            unattributed_bytes=unattributed_bytes,
            limit_bytes=allowance.limit_bytes,
            context_bytes=(after.outside or 0) if before is None else 0,
            metrics=self.metrics,
            timeline=timeline,
        )

    def _tells_reserved(self) -> bool:
        return bool(self.intervals) and all(i.series_count > 1 for i in self.intervals.values())

    def _peak(self, after: Holdings, before_bytes: int, after_bytes: int, outside: tuple[int, int]) -> Peak:
        ends_bytes = max(before_bytes, after_bytes)
        if not self.intervals:
            return Peak(max(ends_bytes, self._raw_peak_bytes(after)), None, "sampled")
        allocated = together(list(self.intervals.values()), ALLOCATED)
        lo_bytes = max(allocated.lo_bytes + min(outside), ends_bytes)
        if allocated.hi_bytes is None or self._rose_unseen(after):
            return Peak(lo_bytes, None, "sampled", allocated.precision_bytes)
        hi_bytes = max(allocated.hi_bytes + max(outside), ends_bytes)
        exact = hi_bytes - lo_bytes <= allocated.precision_bytes
        return Peak(lo_bytes, hi_bytes, "exact" if exact else "bounded", allocated.precision_bytes)

    def _raw_peak_bytes(self, after: Holdings) -> int:
        """Without an allocator to ask: the highest sample, where nobody else is on the device."""
        before = self.before
        alone = before is not None and before.neighbours == after.neighbours == 0
        return self.highest_used_bytes if alone and (after.own or (before and before.own)) else 0

    def _rose_unseen(self, after: Holdings) -> bool:
        """Whether a sample stood above all that the allocators and both ends can explain."""
        if after.other is None:
            return False
        ends_bytes = max(after.other, (self.before and self.before.other) or 0, 0) + MB
        reserved = together(list(self.intervals.values()), RESERVED)
        return self.highest_other_bytes > ends_bytes or (
            reserved.hi_bytes is not None and self.highest_used_bytes > reserved.hi_bytes + ends_bytes
        )
