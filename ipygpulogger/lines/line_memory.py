"""The memory that each line used: every counter is read where a line starts or ends, in any frame and thread.

What it read since the last time belongs to all lines that were open. A line that is open in several frames at
once (recursion, tasks, threads) is one interval, from the first opening to the last closing.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from ..engine.sampler import Measuring
from ..records import CPU, DeviceUsage, Usage
from ..records.units import MB, rounded_mb
from ..records.usage import above_ends, consumed
from ..sources import Device, Unavailable

if TYPE_CHECKING:
    from ..engine.machine import Machine
    from ..engine.peaks import Interval, PeakTracker
    from ..records import Sizes
    from .line_profiler import FrameState, Line


class _Gauge:
    """One counter, RAM or an allocator on a device, and our open interval on it."""

    def __init__(self, tracker: PeakTracker, interval: Interval, device: Device | None) -> None:
        self.tracker, self.interval, self.device = tracker, interval, device
        self.current_bytes = interval.before_bytes()
        self.precision_bytes = tracker.counter.precision_bytes


class _Sum:
    """One counter over one line: all its intervals so far, and the one that is open."""

    def __init__(self, first_bytes: int) -> None:
        self.first_bytes = first_bytes
        self.consumed_bytes = self.peaked_lo = 0
        self.peaked_hi: float = 0  # infinite where nothing bounds it
        self.lowest_bytes = self.highest_bytes = first_bytes
        self.earlier: tuple[int, int, float] = 0, 0, 0  # consumed and peaked before the last interval
        self.begin(first_bytes)

    def begin(self, now_bytes: int) -> None:
        self.before_bytes = self.lo = now_bytes
        self.hi: float = now_bytes
        self.lowest_bytes = min(self.lowest_bytes, now_bytes)

    def end(self, now_bytes: int) -> None:
        before_bytes = self.before_bytes
        self.earlier = self.consumed_bytes, self.peaked_lo, self.peaked_hi
        self.consumed_bytes += consumed(before_bytes, now_bytes)
        self.highest_bytes = max(self.highest_bytes, self.lo)
        self.peaked_lo = max(self.peaked_lo, above_ends(self.lo, before_bytes, now_bytes))
        self.peaked_hi = max(self.peaked_hi, above_ends(self.hi, before_bytes, now_bytes))

    def resume(self, now_bytes: int) -> None:
        """Open the last interval again: it was not over."""
        self.consumed_bytes, self.peaked_lo, self.peaked_hi = self.earlier
        self.lo, self.hi = max(self.lo, now_bytes), max(self.hi, now_bytes)


class LineMemories(Measuring):
    """Every counter, and the lines that are open; the machine treats it as an open scope."""

    def __init__(self, on: Machine, lost: Callable[[str], None], *, reset_peaks: bool) -> None:
        # `lost`: called with a sentence for everything that cannot be measured.
        self._machine, self._lost, self._reset_peaks = on, lost, reset_peaks
        self._lock = threading.RLock()
        self._gauges: list[_Gauge] = []
        self._late: deque[_Gauge] = deque()
        self._open: set[Line] = set()
        self.ended: Line | None = None  # the line that ended last, as long as no other has started

    def start(self) -> None:
        """Open every counter; `Unavailable` where the memory of this process cannot be read."""
        on = self._machine
        on.enter(self)
        self._gauges.append(_Gauge(on.ram, on.ram.open(reset=self._reset_peaks), None))
        grain_bytes = max(on.ram.counter.precision_bytes, 2 * on.ram.counter.current_precision_bytes)
        if grain_bytes > MB:
            within = f"RAM of each line is within {rounded_mb(grain_bytes)} MB"
            self._lost(f"{within}: the kernel counts it in batches on each CPU.")
        for device, trackers in on.devices.by_device():
            for tracker in trackers:
                try:
                    self._gauges.append(_Gauge(tracker, tracker.open(), device))
                except Unavailable as reason:
                    self._lost(str(reason))

    def stop(self) -> None:
        """Read the counters for the last time, end every line, and close the counters."""
        with self._lock:
            self._read_counters()
            for line in tuple(self._open):
                line.holders = 0
                self._close(line)
        for gauge in self._gauges:
            try:
                gauge.tracker.close(gauge.interval)
            except Unavailable as reason:
                self._lost(str(reason))
            if loss := gauge.tracker.loss(gauge.interval):
                self._lost(loss)
        self._machine.leave(self)

    def hold(self, holder: FrameState, line: Line | None, *, continues: bool = False) -> None:
        """Read every counter; a frame's memory is this line's or none's from now on, or `continues` to be."""
        with self._lock:
            self._read_counters()
            held, holder.held = holder.held, line
            if held is not None:
                held.holders -= 1
                if not held.holders:
                    self._close(held)
            if line is not None:
                line.holders += 1
                if line.holders == 1:
                    self._begin(line, continues=continues)

    def forget(self) -> None:
        """Leave out the open interval of each line, which then has no holders."""
        with self._lock:
            self.ended = None
            self._open.clear()

    def _begin(self, line: Line, *, continues: bool = False) -> None:
        self.ended = None
        for gauge, one in zip(self._gauges, line.sums, strict=False):
            (one.resume if continues else one.begin)(gauge.current_bytes)
        self._fill(line)
        self._open.add(line)

    def _fill(self, line: Line) -> None:
        line.sums += [_Sum(gauge.current_bytes) for gauge in self._gauges[len(line.sums) :]]

    def _close(self, line: Line) -> None:
        self._open.discard(line)
        was_cut_off, line.cut_off = line.cut_off, True  # in case of an interrupt
        for gauge, one in zip(self._gauges, line.sums, strict=False):
            one.end(gauge.current_bytes)
        self.ended, line.cut_off = line, was_cut_off

    def _read_counters(self) -> None:
        """Read every counter, and add what it read since the last time to every open line."""
        if self._machine.frameworks.imported():  # without a framework there are no new allocators
            self._machine.discover()
        while self._late:
            gauge = self._late[0]
            gauge.current_bytes = 0
            if gauge not in self._gauges:  # as after an interrupt
                self._gauges.append(gauge)
            for line in self._open:
                self._fill(line)
            self._late.popleft()
        for i in range(len(self._gauges)):
            self._read_counter(i)

    def _read_counter(self, i: int) -> None:
        gauge = self._gauges[i]
        try:
            reset = self._reset_peaks or gauge.device is not None
            segment = gauge.tracker.next_segment(gauge.interval, reset=reset)[0]
        except Unavailable as reason:
            self._lost(str(reason))
            for line in self._open:
                line.sums[i].hi = math.inf
            return
        if segment.lo_bytes == segment.hi_bytes == gauge.current_bytes == segment.after_bytes:
            return
        gauge.current_bytes = segment.after_bytes
        hi = math.inf if segment.hi_bytes is None else segment.hi_bytes
        for line in self._open:
            one = line.sums[i]
            one.lo, one.hi = max(one.lo, segment.lo_bytes), max(one.hi, hi)

    # -- what each line used ---------------------------------------------------------------------

    def gen(self, line: Line, *, complete: bool) -> Usage:
        """Return a line's general RAM; its peak is a lower bound where not every interval was measured."""
        gauge = self._gauges[0]
        one = line.sums[0] if line.sums else _Sum(gauge.current_bytes)
        return _usage([one], gauge.precision_bytes, complete=complete)

    def gpus(self, line: Line, *, complete: bool) -> tuple[DeviceUsage, ...]:
        """Return the devices on which a line changed anything, by index."""
        found: dict[tuple[str, int], list[tuple[_Gauge, Device, _Sum]]] = {}
        for gauge, one in zip(self._gauges, line.sums, strict=False):
            if gauge.device is not None and (one.consumed_bytes or one.peaked_hi):
                found.setdefault(gauge.device.key, []).append((gauge, gauge.device, one))
        usages = []
        for _, several in sorted(found.items()):
            gauges, devices, sums = zip(*several, strict=True)
            usage = _usage(sums, sum(gauge.precision_bytes for gauge in gauges), complete=complete)
            figures = usage.before_bytes, usage.after_bytes, usage.peak
            usages.append(DeviceUsage(*figures, **asdict(devices[0])))
        return tuple(usages)

    def risen(self, line: Line) -> Sizes:
        """Return, by device, the rise from the lowest start of a line's intervals to their highest moment."""
        found: dict[str, int] = {}
        for gauge, one in zip(self._gauges, line.sums, strict=False):
            name = CPU if gauge.device is None else gauge.device.id
            found[name] = found.get(name, 0) + one.highest_bytes - one.lowest_bytes
        return tuple((name, size_bytes) for name, size_bytes in found.items() if size_bytes)

    # -- what the machine asks of a scope ---------------------------------------------------------

    def adopt(self, tracker: PeakTracker, device: Device | None, *, sure: bool) -> None:
        """Take in a device that a framework has begun to use. The open lines started with no memory there."""
        if device is None:
            return
        try:
            self._late.append(_Gauge(tracker, tracker.adopt(sure=sure), device))  # for the next boundary
        except Unavailable as reason:
            self._lost(str(reason))


def _usage(sums: Sequence[_Sum], precision_bytes: int, *, complete: bool) -> Usage:
    """Return what one counter read, or those of frameworks on one device; their peaks may not coincide."""
    peaked_hi = sum(one.peaked_hi for one in sums)
    bounded = complete and not math.isinf(peaked_hi)
    peaked = max(one.peaked_lo for one in sums), int(peaked_hi) if bounded else None
    first_bytes = sum(one.first_bytes for one in sums)
    consumed_bytes = sum(one.consumed_bytes for one in sums)
    return Usage.of_runs(first_bytes, consumed_bytes, peaked, precision_bytes)
