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

import contextlib
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from ..records import DRIVER, Held, Measurement, Peak, RamUsage, Usage
from ..runtime import clock
from ..sources import Device, Unavailable
from .children import Children
from .device_scope import DeviceScope
from .interval import together
from .ledger import Allowance, DeviceSnapshot, surely_uses
from .machine import machine
from .metrics import METRICS, energy_now_j, metric
from .time_series import TimeSeries

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from ..records import DeviceUsage
    from ..runtime.calls import Call
    from .interval import Interval
    from .ledger import Shares
    from .machine import Machine
    from .peaks import PeakTracker

M = TypeVar("M", bound=Measurement)


class Scope:
    """One interval being measured: a cell, a block, a call, an epoch.

    Scopes nest and overlap in any order, across threads; each has its own peak.
    """

    def __init__(
        self,
        on: Machine | None = None,
        *,
        reset_peaks: bool = True,
        all_devices: bool = False,
        metrics: Container[str] = (),
        during: Call | None = None,
    ) -> None:
        """Prepare a scope; nothing is measured before `open`.

        Args:
            on: The machine; by default the process's own.
            reset_peaks: Reset the kernel's peak counter.
            all_devices: Tell of devices that this process does not use, too.
            metrics: What else to measure on each device: "energy", "utilization".
            during: A call that the scope must not outlive: where whoever opened it is not told of the
                call's end, the machine closes it.
        """
        self._machine = on or machine()
        self._reset_peaks, self._all_devices = reset_peaks, all_devices
        self._metrics, self._during = metrics, during
        self._end = threading.RLock()  # held by the thread that ends it
        self._ram_series = TimeSeries()
        self._device_scopes: dict[tuple[str, int], DeviceScope] = {}
        self._pinned: dict[PeakTracker, Interval] = {}
        self._notes: list[str] = []
        self._sampling = self._closed = self._over = False
        self._ram: Interval | None = None
        self._start_s = self.time_s = 0.0

    def open(self) -> Scope:
        """Take the first snapshot, begin the peaks, and start the clock."""
        on = self._machine
        try:
            on.enter(self)
            self.started_at = clock.utc_now()
            self._children = Children(on.process, on.ram)
            for device, trackers in on.allocators.by_device():
                if device.key not in self._device_scopes:  # another thread may have handed it over already
                    self._begin(device, trackers)
            self._begin_raw()
            for tracker in on.allocators.pinned():
                try:
                    self._pinned[tracker] = tracker.open()
                except Unavailable as reason:
                    self._note(reason)
            if any(device_scope.device.uuid for device_scope in self._device_scopes.values()):
                self._sampling = on.sampler.start(self)
            self._heap = on.process.heap()
            self._ram = on.ram.open(reset=self._reset_peaks)
            self._exact_before_bytes = on.process.exact_resident_bytes()
        except BaseException:
            self.close()
            raise
        self._start_s = clock.monotonic_s()
        return self

    def close(self) -> None:
        """Stop the clock, then fix the peaks. Again it changes nothing, or ends what was interrupted."""
        now_s = clock.monotonic_s()
        if self._over or not self._end.acquire(blocking=False):
            return
        try:
            self._end_peaks(now_s)
        finally:
            self._end.release()

    def __del__(self) -> None:
        try:
            self.close()  # whoever had it was interrupted, or forgot it
        except Exception:  # at the interpreter's end the engine may be gone
            pass

    @property
    def notes(self) -> tuple[str, ...]:
        """What of it could not be measured so far, and why: news that nobody else is told of."""
        return tuple(self._notes)

    def orphaned(self) -> bool:
        """Whether the call that it must not outlive is over."""
        return self._during is not None and not self._during.running()

    def result(self, kind: type[M], label: str, **more: Any) -> M:
        """Take the second snapshot and do the arithmetic; of a scope still open: so far.

        Args:
            kind: `Measurement`, or one of its kinds.
            label: What the scope is called.
            more: Further fields of that kind.
        """
        assert self._ram is not None, "open() comes first"
        if not self._closed:
            self.time_s = clock.monotonic_s() - self._start_s
            self._read_peaks(final=False)
        on, ram_peak = self._machine, self._ram.peak()
        before_bytes, after_bytes, precision_bytes = self._ram_ends(self._ram)
        gpus, pinned = self._gpus(), self._pinned_usage()
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
                timeline=self._ram_series.between(before_bytes, after_bytes, self.time_s),
                precision_bytes=precision_bytes,
            ),
            gpus=gpus,
            children=self._children.usage(self._ram),
            pinned=pinned,
            notes=(*self._notes, *on.take_notes()),
            **more,
        )

    def so_far(self, label: str) -> Measurement:
        """How the open scope stands, for a thread that watches it: a light `result` that leaves it as it is.

        Neither the children nor the driver's list of processes are asked for, and nothing is noted: where
        memory outside the allocators moved, only theirs is known.

        Args:
            label: What the scope is called.
        """
        assert self._ram is not None, "open() comes first"
        assert self._start_s, "open() comes first"
        time_s = clock.monotonic_s() - self._start_s
        intervals = [(self._machine.ram, self._ram)]
        for device_scope in self.device_scopes():
            intervals += device_scope.intervals.items()
        for tracker, interval in intervals:
            with contextlib.suppress(Unavailable):
                tracker.fold(interval)
        ram, before_bytes = self._machine.ram, self._ram.before_bytes()
        now_bytes = ram.look().readings[0].current_bytes
        if not self._sampling:  # nobody else draws the course
            self.sampled(now_bytes)
        return Measurement(
            label=label,
            started_at=self.started_at,
            time_s=time_s,
            gen=RamUsage(before_bytes, now_bytes, _with_ends(self._ram.peak(), before_bytes, now_bytes)),
            gpus=self._gpus(final=False),
        )

    def held_before(self) -> dict[str, Held]:
        """What this process held on each device when the scope began, by UUID or by name."""
        return _held((device_scope.device, device_scope.before) for device_scope in self.device_scopes())

    def held_after(self) -> dict[str, Held]:
        """The same at its end, once `result` was asked for."""
        return _held((device_scope.device, device_scope.after) for device_scope in self.device_scopes())

    def adopt(self, tracker: PeakTracker, device: Device, *, sure: bool) -> None:
        """A framework began to use a device within this scope: it held nothing there before.

        Args:
            tracker: Of its peaks there.
            device: The device.
            sure: The user cannot have reset the peaks unseen.
        """
        device_scope = self._device_scopes.get(device.key)
        if device_scope is None:
            device_scope = DeviceScope(device)
            raws = (w for w in self.device_scopes() if w.device.backend == DRIVER)
            raw = next((w for w in raws if device.uuid and w.device.uuid == device.uuid), None)
            if raw is not None:  # until now NVML alone told of it
                del self._device_scopes[_raw_key(raw.device)]
                device_scope.inherit(raw)
                if raw.before is not None and raw.before.own:
                    device_scope.before = raw.before  # this process was there already, by other means
        try:
            device_scope.intervals[tracker] = tracker.adopt(sure=sure)
        except Unavailable as reason:
            self._note(reason)
        self._device_scopes[device.key] = device_scope

    def device_scopes(self) -> list[DeviceScope]:
        """The devices of this scope."""
        return list(self._device_scopes.values())

    def adopt_pinned(self, tracker: PeakTracker) -> None:
        """A framework initialised itself within this scope: it held no pinned memory before."""
        try:
            self._pinned[tracker] = tracker.adopt()
        except Unavailable as reason:
            self._note(reason)

    def sampled(self, resident_bytes: int) -> None:
        """The sampler looked at general RAM."""
        if not self._closed and self._start_s:
            self._ram_series.add(clock.monotonic_s() - self._start_s, resident_bytes)

    def device_sampled(
        self, uuid: str, used_bytes: int, other_bytes: int | None, found: Shares | None
    ) -> None:
        """The sampler looked at a device.

        Args:
            uuid: The device.
            used_bytes: In use on the whole device.
            other_bytes: Of that, outside the frameworks' allocators; None where they moved meanwhile.
            found: Whose it is, where that jumped and the driver told.
        """
        if self._closed or not self._start_s:
            return
        for device_scope in self.device_scopes():
            if device_scope.device.uuid == uuid:
                device_scope.sampled(used_bytes, other_bytes, found)
                device_scope.series.add(clock.monotonic_s() - self._start_s, used_bytes)

    def _end_peaks(self, now_s: float) -> None:
        on = self._machine
        if not self._closed:
            self._closed, self.time_s = True, now_s - self._start_s
        try:
            self._read_peaks(final=True)
        finally:
            self._sampling = False
            on.sampler.stop(self)
            on.leave(self)
        self._over = True  # last: whoever finds it false ends it again

    def _ram_ends(self, ram: Interval) -> tuple[int, int, int]:
        """What was resident at the beginning, what is now, and how far their difference may be off."""
        on, before_bytes = self._machine, self._exact_before_bytes
        after_bytes = None if before_bytes is None else on.process.exact_resident_bytes()
        if before_bytes is not None and after_bytes is not None:
            return before_bytes, after_bytes, 0
        now_bytes = on.ram.look().readings[0].current_bytes
        return ram.before_bytes(), now_bytes, 2 * on.ram.counter.current_precision_bytes

    def _note(self, reason: Unavailable | str) -> None:
        if self._machine.notes.is_new(str(reason)):
            self._notes.append(str(reason))

    def _read_peaks(self, *, final: bool) -> None:
        on = self._machine
        if self._ram is not None:
            self._read_peak(on.ram, self._ram, final=final)
        on.discover()  # the devices first used within the scope
        for tracker, interval in self._pinned.items():
            self._read_peak(tracker, interval, final=final)
        for device_scope in self.device_scopes():
            for tracker, interval in device_scope.intervals.items():
                self._read_peak(tracker, interval, final=final)
        self._read_metrics()

    def _read_peak(self, tracker: PeakTracker, interval: Interval, *, final: bool) -> None:
        try:
            (tracker.close if final else tracker.fold)(interval)
        except Unavailable as reason:
            self._note(reason)
        if loss := tracker.loss(interval):
            self._note(loss)

    def _begin(self, device: Device, trackers: Iterable[PeakTracker] = ()) -> None:
        device_scope = DeviceScope(device)
        for tracker in trackers:
            try:
                device_scope.intervals[tracker] = tracker.open()
            except Unavailable as reason:  # then the driver's figures are all there is
                self._note(reason)
        try:
            device_scope.before = self._machine.snapshot(device, device_scope.intervals)
            device_scope.neighbours_before_bytes = device_scope.before.neighbours
        except Unavailable as reason:
            self._note(reason)
            return
        if "energy" in self._metrics:
            device_scope.energy_j = energy_now_j(self._machine.nvml, device.uuid or "")
        self._device_scopes[_raw_key(device) if device.backend == DRIVER else device.key] = device_scope

    def _begin_raw(self) -> None:
        """The devices that no framework here uses, as NVML tells."""
        known = {device_scope.device.uuid for device_scope in self._device_scopes.values()}
        for seen in self._machine.nvml.devices():
            if seen.uuid not in known:
                self._begin(Device(DRIVER, seen.index, seen.name, seen.uuid, seen.total_bytes))

    def _gpus(self, *, final: bool = True) -> tuple[DeviceUsage, ...]:
        on, usages = self._machine, []
        for device_scope in self.device_scopes():
            device = device_scope.device
            try:
                after = on.snapshot(device, tuple(device_scope.intervals), ask=final)
            except Unavailable as reason:
                if final:
                    self._note(reason)
                continue
            device_scope.after = after if final else device_scope.after
            own = after.own or (device_scope.before and device_scope.before.own)
            touched = device.backend != DRIVER or own or (after.own is None and surely_uses(device))
            if touched or self._all_devices:
                used, now = [h and h.memory and h.memory.used_bytes for h in (device_scope.before, after)]
                timeline = device_scope.series.between(used, now, self.time_s) if final else ()
                allowance = on.allowance(device) if final else Allowance(None, None)
                usages.append(device_scope.usage(after, allowance, timeline=timeline))
        return tuple(sorted(usages, key=lambda usage: (usage.backend == DRIVER, usage.index)))

    def _pinned_usage(self) -> Usage | None:
        """Page-locked host memory, where any was ever used."""
        try:
            after_bytes = sum(tracker.look().readings[0].current_bytes for tracker in self._pinned)
        except Unavailable as reason:
            self._note(reason)
            return None
        if not self._pinned:
            return None
        before_bytes = sum(interval.before_bytes() for interval in self._pinned.values())
        peak = _with_ends(together(list(self._pinned.values()), 0), before_bytes, after_bytes)
        return Usage(before_bytes, after_bytes, peak) if peak.hi_bytes != 0 else None

    def _read_metrics(self) -> None:
        nvml, wanted = self._machine.nvml, [name for name in METRICS if name in self._metrics]
        for on in self.device_scopes() if wanted else ():
            on.metrics = tuple(metric(name, nvml, on, self.started_at, self.time_s) for name in wanted)


def _held(found: Iterable[tuple[Device, DeviceSnapshot | None]]) -> dict[str, Held]:
    """By UUID, or by name where a device has none."""
    held = {}
    for device, snapshot in found:
        if snapshot is not None and (snapshot.allocated is not None or snapshot.own is not None):
            name = device.id
            held[device.uuid or name] = Held(name, snapshot.allocated or 0, snapshot.outside)
    return held


def _raw_key(device: Device) -> tuple[str, int]:
    """As `Device.key`; the slices of one card share its index."""
    return device.uuid or device.backend, device.index


def _with_ends(peak: Peak, *ends_bytes: int) -> Peak:
    """A peak includes both ends of its scope, the second of which was read later."""
    lo_bytes = max(peak.lo_bytes, *ends_bytes)
    hi_bytes = None if peak.hi_bytes is None else max(peak.hi_bytes, lo_bytes)
    return Peak(lo_bytes, hi_bytes, peak.quality, peak.precision_bytes)
