"""Open, close, usage: every measurement is a `Scope`, and every scope passes through one `machine.Machine`.

The other waist of the house. A scope's life has one direction::

    machine.settle()     garbage collected, caches emptied: outside the scope
    scope.open()         snapshots, peaks, the clock last
    ...                  the user's code
    scope.close()        the clock first, then the peaks
    machine.settle()     before the second snapshot, after the peaks
    scope.result()       the second snapshot, and the arithmetic
"""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeVar

from .machine import ALLOCATED, RESERVED, machine
from .records import ChildrenUsage, DeviceUsage, Measurement, Peak, RamUsage
from .sources import Device, Unavailable
from .sources.process import children_ended
from .units import MB

if TYPE_CHECKING:
    from .machine import Holdings, Machine
    from .peaks import Interval, PeakOwner

M = TypeVar("M", bound=Measurement)


class _DeviceWatch:
    """One device in one scope."""

    def __init__(self, device: Device, owner: PeakOwner | None) -> None:
        self.device, self.owner = device, owner
        self.interval: Interval | None = None
        self.before: Holdings | None = None  # None: the device came to life within the scope
        self.highest_used_bytes = 0  # of the whole device, as the sampler saw it

    def usage(self, after: Holdings) -> DeviceUsage:
        before, device = self.before, self.device
        outside_before = before.outside if before else after.outside  # a context made here is a note
        outside_after = after.outside
        if outside_before is None or outside_after is None:
            outside_before = outside_after = 0
        before_bytes = outside_before + (self.interval.before_bytes(ALLOCATED) if self.interval else 0)
        after_bytes = outside_after + (after.allocated or 0)
        peak = self._peak(after, before_bytes, after_bytes, (outside_before, outside_after))
        return DeviceUsage(
            before_bytes,
            after_bytes,
            peak,
            index=device.index,
            name=device.name,
            uuid=device.uuid,
            total_bytes=device.total_bytes,
            used_bytes=after.device_used,
            allocated_bytes=after.allocated,
            reserved_bytes=after.reserved,
            other_bytes=after.other,
            neighbours_bytes=after.neighbours,
            context_bytes=(after.outside or 0) if before is None else 0,
        )

    def _peak(self, after: Holdings, before_bytes: int, after_bytes: int, outside: tuple[int, int]) -> Peak:
        ends_bytes = max(before_bytes, after_bytes)
        if self.interval is None:
            return Peak(max(ends_bytes, self._raw_peak_bytes(after)), None, "sampled")
        allocated = self.interval.peak(ALLOCATED)
        lo_bytes = max(allocated.lo_bytes + min(outside), ends_bytes)
        if allocated.hi_bytes is None or self._rose_unseen(after):
            return Peak(lo_bytes, None, "sampled", allocated.precision_bytes)
        hi_bytes = max(allocated.hi_bytes + max(outside), ends_bytes)
        exact = hi_bytes - lo_bytes <= allocated.precision_bytes
        return Peak(lo_bytes, hi_bytes, "exact" if exact else "bounded", allocated.precision_bytes)

    def _raw_peak_bytes(self, after: Holdings) -> int:
        """Without an allocator to ask: the highest sample, where nobody else is on the device."""
        alone = self.before is not None and self.before.neighbours == after.neighbours == 0
        return self.highest_used_bytes if alone else 0

    def _rose_unseen(self, after: Holdings) -> bool:
        """Whether a sample stood above all that the allocator and both ends can explain."""
        if not self.highest_used_bytes or after.other is None or self.interval is None:
            return False
        reserved = self.interval.peak(RESERVED)
        explained_bytes = max(after.other, (self.before and self.before.other) or 0) + (
            reserved.hi_bytes or 0
        )
        return reserved.hi_bytes is not None and self.highest_used_bytes > explained_bytes + MB


class Scope:
    """One interval being measured: a cell, a block, a call, an epoch.

    Scopes nest and overlap in any order, across threads; each has its own peak.
    """

    def __init__(
        self, on: Machine | None = None, *, reset_peaks: bool = True, all_devices: bool = False
    ) -> None:
        self._machine = on or machine()
        self._reset_peaks, self._all_devices = reset_peaks, all_devices
        self._watches: dict[object, _DeviceWatch] = {}
        self._notes: list[str] = []
        self._sampling = self._closed = False
        self._ram: Interval | None = None
        self._start_s = self.time_s = 0.0

    def open(self) -> Scope:
        """Take the first snapshot, begin the peaks, and start the clock."""
        on = self._machine
        try:
            on.enter(self)
            self.started_at = datetime.now(timezone.utc)
            self._children = on.process.children_bytes()
            self._children_ended = children_ended()
            for counter, owner in on.devices():
                if owner not in self._watches:  # another thread may have handed it over already
                    self._begin(_DeviceWatch(counter.device, owner))
            self._begin_raw()
            if any(watch.device.uuid for watch in self._watches.values()):
                self._sampling = True
                on.sampler.start()
            self._heap = on.process.heap()
            self._ram = on.ram.open(reset=self._reset_peaks)
        except BaseException:
            self._closed = True
            self._end_peaks()
            raise
        self._start_s = time.perf_counter()
        return self

    def close(self) -> None:
        """Stop the clock, then fix the peaks. Closing again changes nothing."""
        now_s = time.perf_counter()
        if self._closed:
            return
        self._closed, self.time_s = True, now_s - self._start_s
        self._end_peaks()

    def result(self, kind: type[M], label: str, **more: Any) -> M:
        """Take the second snapshot and do the arithmetic.

        Args:
            kind: `Measurement`, or one of its kinds.
            label: What the scope is called.
            more: Further fields of that kind.
        """
        assert self._ram is not None, "open() comes first"
        on, ram_peak, before_bytes = self._machine, self._ram.peak(), self._ram.before_bytes()
        after_bytes = on.ram.look().readings[0].current_bytes
        gpus = self._gpus()
        return kind(
            label=label,
            started_at=self.started_at,
            time_s=self.time_s,
            gen=RamUsage(
                before_bytes,
                after_bytes,
                _with_ends(ram_peak, before_bytes, after_bytes),
                heap_before=self._heap,
                heap_after=on.process.heap(),
            ),
            gpus=gpus,
            children=self._children_usage(),
            notes=(*self._notes, *on.nvml.take_notes()),
            **more,
        )

    def adopt(self, owner: PeakOwner, device: Device) -> None:
        """A device came to life within this scope: it held nothing before."""
        watch = _DeviceWatch(device, owner)
        try:
            watch.interval = owner.adopt()
        except Unavailable as reason:
            self._note(reason)
            return
        self._watches.pop(device.uuid, None)  # until now NVML alone told of it
        self._watches[owner] = watch

    def watches(self) -> list[_DeviceWatch]:
        """The devices of this scope."""
        return list(self._watches.values())

    def _end_peaks(self) -> None:
        on = self._machine
        try:
            self._close_peak(on.ram, self._ram)
            on.discover()
            for watch in self.watches():
                self._close_peak(watch.owner, watch.interval)
        finally:
            if self._sampling:
                self._sampling = False
                on.sampler.stop()
            on.leave(self)

    def _note(self, reason: Unavailable) -> None:
        if self._machine.first_time(str(reason)):
            self._notes.append(str(reason))

    def _close_peak(self, owner: PeakOwner | None, interval: Interval | None) -> None:
        if owner is not None and interval is not None:
            try:
                owner.close(interval)
            except Unavailable as reason:
                self._note(reason)

    def _begin(self, watch: _DeviceWatch) -> None:
        try:
            watch.before = self._machine.holdings(watch.device, watch.owner)
            if watch.owner is not None:
                watch.interval = watch.owner.open()
        except Unavailable as reason:
            self._note(reason)
            return
        self._watches[watch.owner or watch.device.uuid] = watch

    def _begin_raw(self) -> None:
        """The devices that no framework here uses, as NVML tells."""
        known = {watch.device.uuid for watch in self._watches.values()}
        for seen in self._machine.nvml.devices():
            if seen.uuid not in known:
                device = Device("nvml", seen.index, seen.name, seen.uuid, seen.total_bytes)
                self._begin(_DeviceWatch(device, None))

    def _gpus(self) -> tuple[DeviceUsage, ...]:
        usages = []
        for watch in self._watches.values():
            try:
                after = self._machine.holdings(watch.device, watch.owner)
            except Unavailable as reason:
                self._note(reason)
                continue
            touched = watch.owner is not None or after.process or (watch.before and watch.before.process)
            if touched or self._all_devices:
                usages.append(watch.usage(after))
        return tuple(sorted(usages, key=lambda usage: usage.index))

    def _children_usage(self) -> ChildrenUsage | None:
        before, after, ended = self._children, self._machine.process.children_bytes(), children_ended()
        if before is None or after is None:
            return None
        # Of those that ended within the scope, the kernel tells the largest, if none before was larger.
        record_bytes = ended.largest_bytes if ended.largest_bytes > self._children_ended.largest_bytes else 0
        if not (before or after) and record_bytes < MB:
            return None
        before_bytes = sum(current for current, _ in before.values())
        after_bytes = sum(current for current, _ in after.values())
        born_bytes = (peak for pid, (_, peak) in after.items() if pid not in before)
        lo_bytes = max(before_bytes, after_bytes, record_bytes, *born_bytes)
        if ended.stamp != self._children_ended.stamp or before.keys() - after.keys():
            peak = Peak(lo_bytes, None, "sampled")  # one that ended took its peak with it
        else:
            hi_bytes = max(lo_bytes, sum(peak for _, peak in after.values()))
            peak = Peak(lo_bytes, hi_bytes, "exact" if lo_bytes == hi_bytes else "bounded")
        return ChildrenUsage(before_bytes, after_bytes, peak, count=len(after))


def _with_ends(peak: Peak, *ends_bytes: int) -> Peak:
    """A peak includes both ends of its scope, the second of which was read later."""
    lo_bytes = max(peak.lo_bytes, *ends_bytes)
    hi_bytes = None if peak.hi_bytes is None else max(peak.hi_bytes, lo_bytes)
    return Peak(lo_bytes, hi_bytes, peak.quality, peak.precision_bytes)
