"""The memory of lines: one look at every counter at each boundary, folded into the lines open just then.

A boundary is where a line begins or ends, in whatever frame or thread. A line that is open several times
(recursion, tasks, threads) is one interval, from the first opening to the last closing.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from typing import TYPE_CHECKING, Protocol

from ..records import CPU, DeviceUsage, Peak, Usage
from ..records.units import MB, rounded_mb
from ..sources import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..engine.device_scope import DeviceWatch
    from ..engine.ledger import Shares
    from ..engine.machine import Machine
    from ..engine.peaks import Interval, PeakOwner
    from ..records import Sizes
    from ..sources import Device


class _Gauge:
    """One counter: RAM, or an allocator on a device."""

    __slots__ = ("current_bytes", "device", "interval", "owner", "precision_bytes")

    def __init__(self, owner: PeakOwner, interval: Interval, device: Device | None) -> None:
        self.owner, self.interval, self.device = owner, interval, device
        self.current_bytes = interval.before_bytes()
        self.precision_bytes = owner.counter.precision_bytes


class _Sum:
    """One counter in one line: over its visits so far, and over the one that is open."""

    __slots__ = (
        "before_bytes",
        "consumed_bytes",
        "earlier",
        "first_bytes",
        "hi",
        "highest_bytes",
        "lo",
        "lowest_bytes",
        "peaked_hi",
        "peaked_lo",
    )

    def __init__(self, first_bytes: int) -> None:
        self.first_bytes = first_bytes
        self.consumed_bytes = self.peaked_lo = 0
        self.peaked_hi: float = 0  # infinite where nothing bounds it
        self.lowest_bytes = self.highest_bytes = first_bytes
        self.earlier: tuple[int, int, float] = 0, 0, 0  # consumed and peaked before the last visit
        self.begin(first_bytes)

    def begin(self, now_bytes: int) -> None:
        self.before_bytes = self.lo = now_bytes
        self.hi: float = now_bytes
        self.lowest_bytes = min(self.lowest_bytes, now_bytes)

    def end(self, now_bytes: int) -> None:
        ends_bytes = max(self.before_bytes, now_bytes)
        self.earlier = self.consumed_bytes, self.peaked_lo, self.peaked_hi
        self.consumed_bytes += now_bytes - self.before_bytes
        self.highest_bytes = max(self.highest_bytes, self.lo)
        self.peaked_lo = max(self.peaked_lo, self.lo - ends_bytes)
        self.peaked_hi = max(self.peaked_hi, self.hi - ends_bytes)

    def go_on(self, now_bytes: int) -> None:
        """The last visit was not over."""
        self.consumed_bytes, self.peaked_lo, self.peaked_hi = self.earlier
        self.lo, self.hi = max(self.lo, now_bytes), max(self.hi, now_bytes)

    def usage(self, precision_bytes: int, *, complete: bool) -> Usage:
        after_bytes = self.first_bytes + self.consumed_bytes
        ends_bytes = max(self.first_bytes, after_bytes)
        lo_bytes = ends_bytes + self.peaked_lo
        if not complete or math.isinf(self.peaked_hi):
            return Usage(self.first_bytes, after_bytes, Peak(lo_bytes, None, "sampled", precision_bytes))
        hi_bytes = ends_bytes + max(self.peaked_lo, int(self.peaked_hi))
        exact = hi_bytes - lo_bytes <= precision_bytes
        peak = Peak(lo_bytes, hi_bytes, "exact" if exact else "bounded", precision_bytes)
        return Usage(self.first_bytes, after_bytes, peak)


class Row:
    """One line of one file: how often it began, for how long it ran, and what memory it used.

    Attributes:
        running: Visits that are at it now.
        holders: Visits whose memory it is now.
        boundaries: How often its memory was read.
        complete: Whether it was read at every visit.
    """

    __slots__ = ("boundaries", "complete", "hits", "holders", "running", "since_s", "sums", "time_s")

    def __init__(self) -> None:
        self.hits = self.running = self.holders = self.boundaries = 0
        self.time_s = self.since_s = 0.0
        self.complete = True
        self.sums: list[_Sum] = []  # by gauge; shorter where later gauges had nothing to say

    def start(self, now_s: float) -> None:
        """A visit of it begins, or goes on."""
        if not self.running:
            self.since_s = now_s
        self.running += 1

    def rest(self, now_s: float) -> None:
        """A visit ends, or is suspended."""
        self.running -= 1
        if not self.running and now_s > self.since_s:  # clocks of two threads may differ
            self.time_s += now_s - self.since_s


class Holder(Protocol):
    """A frame, and the line whose memory it is using."""

    held: Row | None


class Gauges:
    """Every counter, and the lines that are open; to the machine, one more that measures."""

    def __init__(self, on: Machine, lost: Callable[[str], None], *, reset_peaks: bool) -> None:
        """Prepare.

        Args:
            on: The machine.
            lost: Is told, in a sentence, what cannot be measured.
            reset_peaks: Reset the kernel's peak counter.
        """
        self._machine, self._lost, self._reset_peaks = on, lost, reset_peaks
        self._lock = threading.RLock()
        self._gauges: list[_Gauge] = []
        self._late: deque[_Gauge] = deque()
        self._open: set[Row] = set()
        self._ended: Row | None = None  # that closed last, while none began since

    def start(self) -> None:
        """Begin to measure.

        Raises:
            Unavailable: Nobody tells this process's memory.
        """
        on = self._machine
        on.enter(self)
        self._gauges.append(_Gauge(on.ram, on.ram.open(reset=self._reset_peaks), None))
        grain_bytes = max(on.ram.counter.precision_bytes, 2 * on.ram.counter.current_precision_bytes)
        if grain_bytes > MB:
            grain_mb = rounded_mb(grain_bytes)
            self._lost(
                f"RAM of each line is within {grain_mb} MB: the kernel counts it in batches on each CPU."
            )
        for device, owners in on.allocators.by_device():
            for owner in owners:
                try:
                    self._gauges.append(_Gauge(owner, owner.open(), device))
                except Unavailable as reason:
                    self._lost(str(reason))

    def stop(self) -> None:
        """The last boundary: every line ends."""
        with self._lock:
            self._lap()
            for row in tuple(self._open):
                row.holders = 0
                self._close(row)
        for gauge in self._gauges:
            try:
                gauge.owner.close(gauge.interval)
            except Unavailable as reason:
                self._lost(str(reason))
            if loss := gauge.owner.loss(gauge.interval):
                self._lost(loss)
        self._machine.leave(self)

    def ended_last(self, row: Row) -> bool:
        """Whether this line ended, and no other began since."""
        return self._ended is row

    def hold(self, visit: Holder, row: Row | None, *, goes_on: bool = False) -> None:
        """A boundary: from here on what this visit uses is that line's, even if it was before.

        Args:
            visit: Whose memory it is.
            row: The line; None for none.
            goes_on: The line, which ended last, was not over.
        """
        with self._lock:
            self._lap()
            held, visit.held = visit.held, row
            if held is not None:
                held.holders -= 1
                if not held.holders:
                    self._close(held)
            if row is not None:
                row.boundaries += 1
                row.holders += 1
                if row.holders == 1:
                    self._begin(row, goes_on=goes_on)

    def repair(self, visits: Iterable[Holder]) -> None:
        """A boundary was cut short: count again who holds what, and call it unsure.

        Args:
            visits: All there are.
        """
        with self._lock:
            held = Counter(visit.held for visit in visits if visit.held is not None)
            for row in {*self._open, *held}:
                row.holders = held[row]
                if row not in self._open:
                    self._begin(row)
                for one in row.sums:
                    one.hi = math.inf
                if not row.holders:
                    self._close(row)

    def forget(self) -> None:
        """Nobody tells how the open lines end: this visit of them is left out."""
        with self._lock:
            for row in self._open:
                row.holders, row.complete = 0, False
            self._open.clear()

    def _begin(self, row: Row, *, goes_on: bool = False) -> None:
        self._open.add(row)
        self._ended = None
        for gauge, one in zip(self._gauges, row.sums, strict=False):
            (one.go_on if goes_on else one.begin)(gauge.current_bytes)
        row.sums += [_Sum(gauge.current_bytes) for gauge in self._gauges[len(row.sums) :]]

    def _close(self, row: Row) -> None:
        self._open.discard(row)
        self._ended = row
        for gauge, one in zip(self._gauges, row.sums, strict=False):
            one.end(gauge.current_bytes)

    def _lap(self) -> None:
        """Read every counter, and fold what it was since the last time into the open lines."""
        if self._machine.frameworks.imported():  # without a framework no device comes to life
            self._machine.discover()
        while self._late:
            gauge = self._late.popleft()
            gauge.current_bytes = 0
            self._gauges.append(gauge)
            for row in self._open:
                row.sums.append(_Sum(0))
        for i in range(len(self._gauges)):
            self._read(i)

    def _read(self, i: int) -> None:
        gauge = self._gauges[i]
        try:
            lap = gauge.owner.lap(gauge.interval, reset=self._reset_peaks or gauge.device is not None)[0]
        except Unavailable as reason:
            self._lost(str(reason))
            for row in self._open:
                row.sums[i].hi = math.inf
            return
        if lap.lo_bytes == lap.hi_bytes == gauge.current_bytes == lap.after_bytes:
            return
        gauge.current_bytes = lap.after_bytes
        hi = math.inf if lap.hi_bytes is None else lap.hi_bytes
        for row in self._open:
            one = row.sums[i]
            one.lo = max(one.lo, lap.lo_bytes)
            one.hi = max(one.hi, hi)

    # -- what comes out --------------------------------------------------------------------------

    def gen(self, row: Row) -> Usage:
        """General RAM of a line."""
        gauge = self._gauges[0]
        one = row.sums[0] if row.sums else _Sum(gauge.current_bytes)
        return one.usage(gauge.precision_bytes, complete=row.complete)

    def gpus(self, row: Row) -> tuple[DeviceUsage, ...]:
        """The devices on which a line moved anything, by index."""
        found: dict[tuple[str, int], tuple[Device, _Sum, int]] = {}
        for gauge, one in zip(self._gauges, row.sums, strict=False):
            if gauge.device is None or not (one.consumed_bytes or one.peaked_hi):
                continue
            key, precision_bytes = gauge.device.key, gauge.precision_bytes
            if key in found:  # two frameworks there: nobody knows which of their peaks fell together
                _, other, others_bytes = found[key]
                one, precision_bytes = _both(one, other), precision_bytes + others_bytes  # noqa: PLW2901
            found[key] = gauge.device, one, precision_bytes
        return tuple(
            _on_device(device, one.usage(precision_bytes, complete=row.complete))
            for _, (device, one, precision_bytes) in sorted(found.items())
        )

    def risen(self, row: Row) -> Sizes:
        """By device, from the lowest beginning of a line's visits to their highest moment."""
        found: dict[str, int] = {}
        for gauge, one in zip(self._gauges, row.sums, strict=False):
            name = CPU if gauge.device is None else "{}:{}".format(*gauge.device.key)
            found[name] = found.get(name, 0) + one.highest_bytes - one.lowest_bytes
        return tuple((name, size_bytes) for name, size_bytes in found.items() if size_bytes)

    # -- what the machine asks of whoever measures ------------------------------------------------

    def adopt(self, owner: PeakOwner, device: Device, *, sure: bool) -> None:
        """A framework began to use a device: the lines open now began when it held nothing there.

        Args:
            owner: Of its peaks there.
            device: The device.
            sure: The user cannot have reset the peaks unseen.
        """
        try:
            interval = owner.adopt(sure=sure)
        except Unavailable as reason:
            self._lost(str(reason))
        else:
            self._late.append(_Gauge(owner, interval, device))  # taken in at the next boundary

    def adopt_pinned(self, owner: PeakOwner) -> None:
        """Pinned memory is not told by line."""

    def orphaned(self) -> bool:
        """Whoever started it stops it."""
        return False

    def close(self) -> None:
        """Only the machine's orphans are closed from there."""

    def watches(self) -> list[DeviceWatch]:
        """Lines need no sampler."""
        return []

    def sampled(self, resident_bytes: int) -> None:
        """Lines need no sampler."""

    def device_sampled(
        self, uuid: str, used_bytes: int, other_bytes: int | None, found: Shares | None
    ) -> None:
        """Lines need no sampler."""


def _both(one: _Sum, other: _Sum) -> _Sum:
    both = _Sum(one.first_bytes + other.first_bytes)
    both.consumed_bytes = one.consumed_bytes + other.consumed_bytes
    both.peaked_lo = max(one.peaked_lo, other.peaked_lo)
    both.peaked_hi = one.peaked_hi + other.peaked_hi
    return both


def _on_device(device: Device, usage: Usage) -> DeviceUsage:
    return DeviceUsage(
        usage.before_bytes,
        usage.after_bytes,
        usage.peak,
        index=device.index,
        name=device.name,
        uuid=device.uuid,
        backend=device.backend,
        unified=device.unified,
        total_bytes=device.total_bytes,
    )
