"""One device in one scope: its memory, energy and utilization, and the figures over time.

This process's memory is what the allocators count, and what it holds outside them where the driver reports
it. The context is reported, not consumed. The peak is exact if memory outside the allocators did not change.
"""

from __future__ import annotations

from datetime import datetime

from ..records import DeviceUsage, Metric, Peak, Timeline
from ..records.units import MB
from ..sources import Device, Unavailable
from ..sources.nvidia.nvml import ENERGY_RESOLVES_S, Nvml
from .ledger import ALLOCATED, RESERVED, DeviceSnapshot
from .peaks import Interval, PeakTracker, peak_of_sum

METRICS = {"energy": "J", "utilization": "%"}  # each name, with its unit


def metric(name: str, nvml: Nvml, on: DeviceScope, began: datetime, time_s: float) -> Metric:
    """Return one of `METRICS` of a scope that ends now: a value, or the reason why there is none."""
    uuid, unit = on.device.uuid, METRICS[name]
    try:
        if name == "utilization":
            return Metric(name, nvml.utilization_percent(uuid, began.timestamp()), unit)
        if isinstance(on.energy_j, str):
            return Metric(name, None, unit, on.energy_j)
        used_j = nvml.energy_j(uuid) - on.energy_j
    except Unavailable as reason:
        return Metric(name, None, unit, str(reason))
    if time_s < ENERGY_RESOLVES_S or not used_j:
        return Metric(name, None, unit, "too short for the driver's counter")
    return Metric(name, used_j, unit)


POINTS = 62  # with the scope's two ends, at most 64 in a record
FIRST_STRIDE_S = 0.05


class TimeSeries:
    """At most `POINTS` points, each the highest of its stride, which doubles when there are more."""

    def __init__(self) -> None:
        self._stride_s = FIRST_STRIDE_S
        self._points: dict[int, tuple[float, int]] = {}  # by the number of its stride

    def add(self, time_s: float, size_bytes: int) -> None:
        """Add the figure at so many seconds since the beginning, not less than for the last sample."""
        slot = int(time_s / self._stride_s)
        if slot not in self._points or size_bytes > self._points[slot][1]:
            self._points[slot] = time_s, size_bytes
        if len(self._points) > POINTS:
            self._stride_s *= 2
            points, self._points = self._points.values(), {}
            for point in points:
                self.add(*point)

    def between(
        self, before_bytes: int | None, after_bytes: int | None, end_s: float
    ) -> tuple[tuple[float, int], ...]:
        """Return the points between the scope's two ends; nothing where nothing was sampled."""
        inner = [(min(at, end_s), size) for at, size in tuple(self._points.values()) if at > 0]
        if not inner:
            return ()
        points = (0.0, before_bytes), *inner, (end_s, after_bytes)
        return tuple((round(at, 3), size) for at, size in points if size is not None)


RISE_BYTES = 64 * MB  # a rise outside the allocators from which on the record says it


class DeviceScope:
    """One device in one scope."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.intervals: dict[PeakTracker, Interval] = {}  # over each framework's allocator on it
        self.before: DeviceSnapshot | None = None  # None if it was first used within the scope
        self.after: DeviceSnapshot | None = None  # None until its end
        self.neighbours_before_bytes: int | None = None  # held by other processes at the beginning
        # What the sampler saw in use on the whole device, and outside the allocators.
        self.highest_used_bytes: int = 0
        self.highest_other_bytes: int = 0
        self.lowest_other_bytes: int | None = None
        self.series: TimeSeries = TimeSeries()  # of the whole device
        # At the beginning, or why not. As text: an exception would keep the user's frames alive.
        self.energy_j: float | str = "first used within this scope"
        self.metrics: tuple[Metric, ...] = ()

    def inherit(self, raw: DeviceScope) -> None:
        """Take over what was seen of the same device while no framework used it yet."""
        self.neighbours_before_bytes, self.energy_j = raw.neighbours_before_bytes, raw.energy_j
        self.series, self.highest_used_bytes = raw.series, raw.highest_used_bytes

    def sampled(self, used_bytes: int, other_bytes: int | None) -> None:
        """Record a sample; see `Measuring.device_sampled`."""
        self.highest_used_bytes = max(self.highest_used_bytes, used_bytes)
        if other_bytes is not None:
            self.highest_other_bytes = max(self.highest_other_bytes, other_bytes)
            lowest_bytes = self.lowest_other_bytes
            self.lowest_other_bytes = other_bytes if lowest_bytes is None else min(lowest_bytes, other_bytes)

    def usage(
        self, after: DeviceSnapshot, allowance: tuple[int | None, int | None], timeline: Timeline
    ) -> DeviceUsage:
        """Return what the scope used of the device, given the snapshot at its end."""
        before, device, intervals = self.before, self.device, list(self.intervals.values())
        tells_reserved = bool(intervals) and all(len(interval.before) > 1 for interval in intervals)
        outside_before = before.outside if before else after.outside  # a new context is not consumed
        outside_after, unattributed_bytes = after.outside, 0
        if outside_before is None or outside_after is None:
            was, now = before and before.other, after.other
            if was is not None and now is not None and not device.unified:  # there other RAM is outside too
                unattributed_bytes = now - was
            outside_before = outside_after = 0
        before_bytes = outside_before + sum(interval.before_bytes(ALLOCATED) for interval in intervals)
        after_bytes = outside_after + (after.allocated or 0)
        peak = self._peak(after, before_bytes, after_bytes, (outside_before, outside_after))
        memory = after.memory
        rise_bytes = self._rise_bytes(after)
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
            reserved_bytes=after.reserved if tells_reserved else None,
            reserved_peak=peak_of_sum(intervals, RESERVED) if tells_reserved else None,
            pools_bytes=allowance[1],
            other_bytes=after.other,
            neighbours_bytes=after.neighbours,
            neighbours_before_bytes=self.neighbours_before_bytes,
            driver_bytes=after.driver,
            outside_bytes=outside_after - outside_before if intervals else 0,
            unattributed_bytes=unattributed_bytes,
            # Outside the allocators of a unified device is all RAM.
            unknown_rise_bytes=rise_bytes if rise_bytes > RISE_BYTES and not device.unified else 0,
            limit_bytes=allowance[0],
            context_bytes=(after.outside or 0) if before is None else 0,
            metrics=self.metrics,
            timeline=timeline,
        )

    def _other_ends_bytes(self, after: DeviceSnapshot) -> list[int]:
        ends_bytes = self.before and self.before.other, after.other
        return [size_bytes for size_bytes in ends_bytes if size_bytes is not None]

    def _rise_bytes(self, after: DeviceSnapshot) -> int:
        """Return how far memory outside the allocators was seen above both ends; negative if it was not."""
        highest_bytes = self.highest_other_bytes
        return highest_bytes - max(self._other_ends_bytes(after), default=highest_bytes)

    def _peak(
        self, after: DeviceSnapshot, before_bytes: int, after_bytes: int, outside: tuple[int, int]
    ) -> Peak:
        ends_bytes = max(before_bytes, after_bytes)
        if not self.intervals:
            return Peak.within(ends_bytes, None)
        allocated = peak_of_sum(list(self.intervals.values()), ALLOCATED)
        outside_lo_bytes = max(0, min(outside) - self._fell_bytes(after))
        lo_bytes = max(allocated.lo_bytes + outside_lo_bytes, ends_bytes)
        if allocated.hi_bytes is None or self._rose_unseen(after):
            return Peak.within(lo_bytes, None, allocated.precision_bytes)
        hi_bytes = max(allocated.hi_bytes + max(outside), ends_bytes)
        return Peak.within(lo_bytes, hi_bytes, allocated.precision_bytes)

    def _fell_bytes(self, after: DeviceSnapshot) -> int:
        """Return how far memory outside the allocators, perhaps our own, fell below both ends."""
        if self.lowest_other_bytes is None or self.device.unified:
            return 0
        fell_bytes = min(self._other_ends_bytes(after), default=0) - self.lowest_other_bytes
        return fell_bytes if fell_bytes > MB else 0

    def _rose_unseen(self, after: DeviceSnapshot) -> bool:
        """Return whether a sample was higher than the allocators and both ends can explain."""
        if not self.highest_used_bytes or after.other is None:
            return False
        explained_bytes = max(0, *self._other_ends_bytes(after)) + MB
        most_bytes = peak_of_sum(list(self.intervals.values()), RESERVED).hi_bytes
        return self._rise_bytes(after) > MB or (
            most_bytes is not None and self.highest_used_bytes > most_bytes + explained_bytes
        )
