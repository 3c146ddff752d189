"""A scope is one measurement: a cell, a block, a call, an epoch. Every measurement of the package is one.

Settle, `open`, the user's code, `close`, settle again, `result`: the clock starts last and stops first, and
the peaks are read before anything is settled.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ..records import DRIVER, DeviceHolding, Measurement, Peak, RamUsage, Usage
from ..runtime import clock
from ..sources import Device, Unavailable
from ..sources.system.forked import forks
from ..sources.system.process import children_ended
from .device_scope import METRICS, DeviceScope, TimeSeries, metric
from .ledger import NOTHING, uses
from .machine import Machine, machine
from .peaks import Interval, PeakTracker, peak_of_sum
from .sampler import Measuring

if TYPE_CHECKING:
    from ..records import ChildrenUsage, DeviceUsage
    from ..runtime.wrappers import Call
    from .children import Children

M = TypeVar("M", bound=Measurement)


class Scope(Measuring):
    """One measurement. Scopes nest and overlap in any order, across threads; each has its own peak."""

    sees_children = True

    def __init__(
        self,
        on: Machine | None = None,
        *,
        reset_peaks: bool = True,
        all_devices: bool = False,
        metrics: Container[str] = (),
        during: Call | None = None,
    ) -> None:
        """Prepare; `during` is a call that the scope must not outlive, if no event comes at its end."""
        self._machine = on or machine()
        self._reset_peaks, self._all_devices = reset_peaks, all_devices
        self._metrics, self._during = metrics, during
        self._ram_series: TimeSeries | None = None  # None while nothing was sampled
        self._device_scopes: dict[tuple[str, int], DeviceScope] = {}
        self._pinned: dict[PeakTracker, Interval] = {}
        self._notes: list[str] = []
        self._sampling = self._closed = self._over = self._has_children = False
        self._children: dict[None, Children] = {}  # empty until there is any
        self._ram: Interval | None = None
        self.time_s: float = 0.0
        self._start_s = 0.0
        self.ours_before_bytes: int = 0  # see `OwnImports`
        self._imports_in_peak_bytes = 0

    def open(self) -> Scope:
        """Take the first snapshot, open the peaks' intervals, and start the clock."""
        on = self._machine
        try:
            self._ended_before = children_ended()
            listed = on.enter(self)
            self.started_at: datetime = clock.utc_now()
            if forks.living or on.process.has_children():
                self.with_children().begin(reset=self._reset_peaks)
                on.sampler.start(self)
            for device, trackers in on.devices.by_device():
                if device.key not in self._device_scopes:  # since `enter` another thread may `adopt` it
                    self._begin(device, trackers)
            self._begin_raw(listed)
            for tracker in tuple(on.devices.pinned.values()):
                self._begin_interval(self._pinned, tracker, tracker.open)
            if self._device_scopes and any(one.device.uuid for one in self._device_scopes.values()):
                self._sampling = on.sampler.start(self)
            self._heap = on.process.heap()
            if on.own_imports.limits:
                on.own_imports.count()
            self.ours_before_bytes = on.own_imports.bytes
            self._ram = on.ram.open(reset=self._reset_peaks)
            if on.samples_ram:
                on.sampler.start(self)
            self._exact_before_bytes = on.process.exact_resident_bytes()
        except BaseException:
            self.close()
            raise
        self._start_s = clock.monotonic_s()
        return self

    def close(self) -> None:
        """Stop the clock, then read the final peaks; again, it does what an interrupt left to do."""
        now_s = clock.monotonic_s()
        if self._over:
            return
        if not self._closed:
            self._closed, self.time_s = True, now_s - self._start_s
        try:
            self._read_peaks(final=True)
        finally:
            self._sampling = False
            self._machine.sampler.stop(self)
            self._machine.leave(self)
        self._over = True  # last: after an interrupt above, the next `close` does all of it again

    def __del__(self) -> None:
        try:
            if not self._over:
                self.close()  # the caller was interrupted, or forgot it
        except Exception:  # at the interpreter's exit the engine may be gone
            pass

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be measured so far, and why; without what an earlier scope has reported."""
        return tuple(self._notes)

    def orphaned(self) -> bool:
        """Return whether the call that it must not outlive has ended."""
        return self._during is not None and not self._during.running()

    def may_show(self, needed_bytes: int) -> bool:
        """Return whether the `result` of a closed scope may show that so much was needed; it takes less."""
        ram = self._ram
        if not needed_bytes or ram is None or self._exact_before_bytes is not None:
            return True
        peak, unused = ram.peak(), map(self._is_unused, self._device_scopes.values())
        return peak.hi_bytes is None or peak.lo_bytes - ram.before_bytes() >= needed_bytes or not all(unused)

    def result(self, kind: type[M], label: str, **more: Any) -> M:
        """Return a record, with `more` fields of its kind; of a scope still open, the figures so far."""
        assert self._ram is not None, "open() comes first"
        if not self._closed:
            self.time_s = clock.monotonic_s() - self._start_s
            self._read_peaks(final=False)
        on = self._machine
        before_bytes, after_bytes, precision_bytes = self._ram_ends(self._ram)
        gpus, pinned = self._gpus(), self._pinned_usage()
        series = self._ram_series
        gen = RamUsage(
            before_bytes,
            after_bytes,
            _with_ends(self._ram.peak(), before_bytes, after_bytes, less_bytes=self._imports_in_peak_bytes),
            heap_before=self._heap,
            heap_after=on.process.heap(),
            timeline=series.between(before_bytes, after_bytes, self.time_s) if series else (),
            precision_bytes=precision_bytes,
        )
        more |= {"gen": gen, "gpus": gpus, "children": self._children_usage(), "pinned": pinned}
        more["notes"] = *self._notes, *on.take_notes()
        return kind(label=label, started_at=self.started_at, time_s=self.time_s, **more)

    def sample(self) -> int:
        """Return the resident memory, and record it where nothing else feeds the time series."""
        now_bytes = self._machine.ram.current_bytes()
        if not self._sampling:
            self.sampled(now_bytes)
        return now_bytes

    def so_far(self, label: str) -> Measurement:
        """Return the figures so far, in any thread: no children, processes or notes."""
        assert self._ram is not None and self._start_s, "open() comes first"  # noqa: PT018 - one
        time_s = clock.monotonic_s() - self._start_s
        before_bytes, now_bytes = self._ram.before_bytes(), self.sample()
        return Measurement(
            label=label,
            started_at=self.started_at,
            time_s=time_s,
            gen=RamUsage(before_bytes, now_bytes, _with_ends(self._ram.peak(), before_bytes, now_bytes)),
            gpus=self._gpus(final=False),
        )

    def held(self, *, after: bool = False) -> dict[str, DeviceHolding]:
        """Return what this process held where that is known, by UUID or id, as the scope began or ended."""
        held = {}
        for one in tuple(self._device_scopes.values()):
            device, snapshot = one.device, one.after if after else one.before
            if snapshot is not None and (snapshot.allocated is not None or snapshot.own is not None):
                allocated_bytes = snapshot.allocated or 0
                held[device.uuid or device.id] = DeviceHolding(device.id, allocated_bytes, snapshot.outside)
        return held

    def adopt(self, tracker: PeakTracker, device: Device | None, *, sure: bool) -> None:
        """Measure a device from zero; see `Measuring`."""
        begin = partial(tracker.adopt, sure=sure)
        if device is None:
            self._begin_interval(self._pinned, tracker, begin)
            return
        device_scope = self._device_scopes.get(device.key)
        if device_scope is None:
            device_scope = DeviceScope(device)
            raws = (w for w in self.device_scopes() if w.device.backend == DRIVER)
            raw = next((w for w in raws if device.uuid and w.device.uuid == device.uuid), None)
            if raw is not None:  # until now only NVML knew of it
                del self._device_scopes[_raw_key(raw.device)]
                device_scope.inherit(raw)
                if raw.before is not None and raw.before.own:
                    device_scope.before = raw.before  # this process was there already, without a framework
        self._begin_interval(device_scope.intervals, tracker, begin)
        self._device_scopes[device.key] = device_scope

    def with_children(self) -> Children:
        """Return its part that is about child processes; see `Measuring`."""
        if not self._children:
            with self._machine.own_imports.importing():
                from .children import Children
            # At once: several threads may be the first, and a finalizer that runs within a lock would wait.
            self._children.setdefault(None, Children(self._machine, self._ended_before))
        return self._children[None]

    def _children_usage(self) -> ChildrenUsage | None:
        if not self._has_children and children_ended() == self._ended_before:
            return None
        return self.with_children().usage(self.time_s)

    def device_scopes(self) -> list[DeviceScope]:
        """Return the part of this scope on each device."""
        return list(self._device_scopes.values())

    def sampled(self, resident_bytes: int) -> None:
        """Record a sample of general RAM."""
        if not self._closed and self._start_s:
            self._ram_series = self._ram_series or TimeSeries()
            self._ram_series.add(clock.monotonic_s() - self._start_s, resident_bytes)

    def device_sampled(self, uuid: str, used_bytes: int, other_bytes: int | None) -> None:
        """Record a sample of a device; see `Measuring`."""
        if self._closed or not self._start_s:
            return
        for device_scope in self.device_scopes():
            if device_scope.device.uuid == uuid:
                device_scope.sampled(used_bytes, other_bytes)
                device_scope.series.add(clock.monotonic_s() - self._start_s, used_bytes)

    def _ram_ends(self, ram: Interval) -> tuple[int, int, int]:
        """Return what was resident at the beginning, what is now, and the precision of their difference."""
        on, before_bytes = self._machine, self._exact_before_bytes
        if on.own_imports.limits:
            on.own_imports.count()
        late_bytes = on.own_imports.bytes - self.ours_before_bytes
        after_bytes = None if before_bytes is None else on.process.exact_resident_bytes()
        if before_bytes is not None and after_bytes is not None:
            return before_bytes, after_bytes - late_bytes, 0
        tracker = on.ram
        now_bytes = tracker.current_bytes() - late_bytes
        return ram.before_bytes(), now_bytes, 2 * tracker.counter.current_precision_bytes

    def _note(self, reason: Unavailable | str) -> None:
        if self._machine.notes.is_new(str(reason)):
            self._notes.append(str(reason))

    def _read_peaks(self, *, final: bool) -> None:
        on = self._machine
        if self._ram is not None:
            self._read_peak(on.ram, self._ram, final=final)
            self._imports_in_peak_bytes = on.own_imports.bytes - self.ours_before_bytes
            self._has_children = bool(self._children or forks.living) or on.process.has_children()
            if final and self._has_children:
                self.with_children().close()
        on.discover()  # devices first used within the scope
        for tracker, interval in self._pinned.items():
            self._read_peak(tracker, interval, final=final)
        wanted = [name for name in METRICS if name in self._metrics] if self._metrics else []
        for one in tuple(self._device_scopes.values()):
            found = [self._read_peak(*pair, final=final) for pair in one.intervals.items()]
            if final and not all(found):  # one cannot be read any more: go on with the driver's figures
                one.intervals.clear()
                one.before = one.before and one.before._replace(allocated=None, reserved=None)
            one.metrics = tuple(metric(name, on.nvml, one, self.started_at, self.time_s) for name in wanted)

    def _read_peak(self, tracker: PeakTracker, interval: Interval, *, final: bool) -> bool:
        known = True
        try:
            (tracker.close if final else tracker.fold)(interval)
        except Unavailable as reason:
            self._note(reason)
            known = False
        if interval.reset_elsewhere:
            self._note(tracker.loss(interval))
        return known

    def _begin_interval(
        self, into: dict[PeakTracker, Interval], tracker: PeakTracker, begin: Callable[[], Interval]
    ) -> None:
        try:
            into[tracker] = begin()
        except Unavailable as reason:  # of a device only the driver's figures are left
            self._note(reason)

    def _begin(self, device: Device, trackers: Iterable[PeakTracker] = ()) -> None:
        device_scope = DeviceScope(device)
        for tracker in trackers:
            self._begin_interval(device_scope.intervals, tracker, tracker.open)
        try:
            levels = [interval.before for interval in device_scope.intervals.values()]
            device_scope.before = self._machine.ledger.take(device, tuple(device_scope.intervals), levels)
            device_scope.neighbours_before_bytes = device_scope.before.neighbours
        except Unavailable as reason:
            self._note(reason)
            return
        if "energy" in self._metrics:
            try:
                device_scope.energy_j = self._machine.nvml.energy_j(device.uuid)
            except Unavailable as reason:
                device_scope.energy_j = str(reason)
        self._device_scopes[_raw_key(device) if device.backend == DRIVER else device.key] = device_scope

    def _begin_raw(self, listed: Iterable[Device]) -> None:
        """Open the devices that NVML lists and that no framework of this process uses."""
        known = [one.device.uuid for one in self._device_scopes.values()] if self._device_scopes else ()
        for seen in listed:
            if seen.uuid not in known:
                self._begin(seen)

    def _gpus(self, *, final: bool = True) -> tuple[DeviceUsage, ...]:
        on, usages, found = self._machine, [], list(self._device_scopes.values())
        if not found:
            return ()
        for device_scope in found:
            device, before = device_scope.device, device_scope.before
            if final and self._is_unused(device_scope):
                device_scope.after = NOTHING
                continue
            try:
                after = on.ledger.take(device, tuple(device_scope.intervals), processes=final)
            except Unavailable as reason:
                if final:
                    self._note(reason)
                continue
            device_scope.after = after if final else device_scope.after
            own = after.own or (before and before.own)
            touched = device.backend != DRIVER or own or (after.own is None and uses(device))
            if touched or self._all_devices:
                used, now = [h and h.memory and h.memory.used_bytes for h in (before, after)]
                timeline = device_scope.series.between(used, now, self.time_s) if final else ()
                allowance = on.allowance(device) if final else (None, None)
                usages.append(device_scope.usage(after, allowance, timeline))
        return tuple(sorted(usages, key=lambda usage: (usage.backend == DRIVER, usage.index)))

    def _is_unused(self, one: DeviceScope) -> bool:
        """Return whether this process certainly leaves a device alone that only NVML listed."""
        was_used = self._all_devices or (one.before and one.before.own)
        return not was_used and uses(one.device) is False

    def _pinned_usage(self) -> Usage | None:
        """Return the usage of page-locked host memory; None where none was ever used."""
        if not self._pinned:
            return None
        intervals = list(self._pinned.values())
        peak = peak_of_sum(intervals, 0)
        if peak.hi_bytes == 0:
            return None
        try:
            after_bytes = sum(tracker.current_bytes() for tracker in self._pinned)
        except Unavailable as reason:
            self._note(reason)
            return None
        before_bytes = sum(interval.before_bytes() for interval in intervals)
        return Usage(before_bytes, after_bytes, _with_ends(peak, before_bytes, after_bytes))


def measured_now(*, reset_peaks: bool = True, all_devices: bool = True) -> Measurement:
    """Return what is in use now, by a scope that is closed as soon as it is open."""
    scope = Scope(reset_peaks=reset_peaks, all_devices=all_devices).open()
    scope.close()
    return scope.result(Measurement, "now")


def _raw_key(device: Device) -> tuple[str, int]:
    """Return what `Device.key` is for other devices; here the slices of one card share its index."""
    return device.uuid or device.backend, device.index


def _with_ends(peak: Peak, *ends_bytes: int, less_bytes: int = 0) -> Peak:
    """Return a peak without what our imports took, and with both ends; the second was read after it."""
    lo_bytes = max(peak.lo_bytes - less_bytes, *ends_bytes)
    hi_bytes = None if peak.hi_bytes is None else max(peak.hi_bytes - less_bytes, lo_bytes)
    return Peak.within(lo_bytes, hi_bytes, peak.precision_bytes)
