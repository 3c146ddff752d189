"""The recording of one measurement: begun before its scope, ended after it, and turned into rows."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from ..allocator.caching_allocator import blocks_of, live
from ..allocator.replay import Moment, Replay
from ..engine.machine import Machine, machine
from ..engine.peaks import Interval, PeakTracker
from ..engine.sampler import Measuring
from ..records import AtPeak, Measurement
from ..records.explained import KindTimeline
from ..records.units import size_text
from ..runtime import clock
from ..runtime.collector import undisturbed
from ..runtime.errors import is_from_a_handler, named
from ..sources import Device, Unavailable
from ..sources.torch.history import DeviceHistory, TorchHistory
from ..sources.torch.snapshot import EVENT_BYTES, MAX_EVENTS, Position, SnapshotFile, position
from .kinds import WORKSPACE_BYTES
from .ram import RamRecording
from .rows import Breakdown
from .timeline import placed

M = TypeVar("M", bound=Measurement)

_MOST_BYTES = MAX_EVENTS * EVENT_BYTES  # more than recording and reading take
_MANY_EVENTS = 1 << 14  # of torch's history: from here on it may explain a figure of general RAM
_LATER = "The table of {} is of the time until the code ended: a thread went on, to {} or more."
_HISTORY = "torch's memory history took general RAM while this was measured: 25 to 65 MB where it is full."


class _Watched(NamedTuple):
    """The allocator of one device while the recording lasts."""

    device: Device  # the device
    tracker: PeakTracker  # of the allocator's peaks
    interval: Interval  # from beginning to end of the recording
    since: Position  # where the allocator stood just before the interval
    still: bool  # whether nothing was allocated or freed between that and the interval


class _Peak(NamedTuple):
    """What was alive when most was allocated on a device."""

    rows: tuple[AtPeak, ...]
    timeline: KindTimeline  # in microseconds since the epoch


class DeviceRecording(Measuring):
    """What was alive on each device when most was allocated there; an open measurement, as a scope is."""

    def __init__(self, shell: Any, *, always_named: bool) -> None:
        self._always_named, self._breakdown = always_named, Breakdown(shell)
        self._machine: Machine | None = None
        self._history: TorchHistory | None = None
        # Why torch does not record its allocations. As text: an exception would keep the user's frames alive.
        self._why_not: str | None = None
        self._watched: dict[int, _Watched] = {}  # by torch's index
        self._began_s = self._ended_s = 0.0
        self._peaks: dict[int, _Peak] = {}  # by torch's index
        self.notes: list[str] = []  # what is not known, and why
        # By device, what was alive when an allocation last failed there, the largest first.
        self.at_failure: dict[str, tuple[AtPeak, ...]] = {}
        # torch's snapshot at the end, if an allocation failed and the recording was ours.
        self.failed: SnapshotFile | None = None

    def begin(self) -> None:
        """Begin to record."""
        try:
            self._machine = on = machine()
            on.enter(self)
            self._history = TorchHistory()
            with on.own_imports.importing(_MOST_BYTES):  # names of many blocks take megabytes
                try:
                    self._history.begin()
                except Unavailable as reason:
                    self._why_not = str(reason)
                    return
                self._breakdown.begin()
            for device, _ in on.devices.by_device():
                tracker = on.devices.tracker("torch", device.index)
                if tracker is not None and device.index not in self._watched:  # as `enter` may adopt it
                    self._watch(device, tracker)
            self._began_s = clock.wall_s()
        except BaseException as reason:
            self._failed(reason)
            self.drop()

    def end(self) -> None:
        """End the recording, and find out what was alive at the peak."""
        on = self._machine
        if on is None:
            return
        self._ended_s = clock.wall_s()
        try:
            # What reading leaves resident is not the user's, and what recording took is given back here.
            with undisturbed(), on.own_imports.importing(_MOST_BYTES, -_MOST_BYTES):
                try:
                    self._read_all(on)
                finally:
                    if self._history is not None:
                        self._history.end()
        except BaseException as reason:
            self._failed(reason)
        finally:
            self.drop()

    @property
    def in_use(self) -> bool:
        """Whether the allocator of any device is recorded now."""
        return bool(self._watched)

    def at_peak(self) -> tuple[AtPeak, ...]:
        """Return the rows of all devices, of each the largest first."""
        return tuple(row for _, peak in sorted(self._peaks.items()) for row in peak.rows)

    def timelines(self, time_s: float) -> tuple[KindTimeline, ...]:
        """Return by device the memory over a measurement of so many seconds."""
        began_s = self._ended_s - time_s
        return tuple(placed(peak.timeline, began_s, time_s) for _, peak in sorted(self._peaks.items()))

    def drop(self) -> None:
        """Let go of everything but the result; whatever fails, the rest is let go of. Idempotent."""
        history, self._history = self._history, None
        on, self._machine = self._machine, None
        watched, self._watched = self._watched, {}
        for one in watched.values():
            with suppress(Exception):
                one.tracker.close(one.interval)
        for step in (self._breakdown.drop, *([] if history is None else [history.end])):
            try:
                step()
            except Exception as reason:
                self._failed(reason)
        if on is not None:
            with suppress(Exception):
                on.leave(self)

    def __del__(self) -> None:
        with suppress(Exception):  # at the interpreter's exit the engine may be gone
            self.drop()

    # -- as an open measurement of the machine -----------------------------------------------------------

    def adopt(self, tracker: PeakTracker, device: Device | None, *, sure: bool) -> None:
        """Follow a device that torch began to use within the recording, from zero."""
        on = self._machine
        if on is not None and device is not None and on.devices.tracker("torch", device.index) is tracker:
            with suppress(Unavailable):
                interval = tracker.adopt(sure=sure)
                self._watched[device.index] = _Watched(device, tracker, interval, Position(), still=True)

    def close(self) -> None:
        """End it without a result."""
        self.drop()

    def _watch(self, device: Device, tracker: PeakTracker) -> None:
        try:
            since, interval = position(device.index), tracker.open()
            still = since == position(device.index)
            self._watched[device.index] = _Watched(device, tracker, interval, since, still)
        except Unavailable as reason:
            self._unknown(str(reason), device)

    def _read_all(self, on: Machine) -> None:
        history = self._history
        on.discover()  # devices first used within the recording
        if history is None or self._why_not is not None:
            devices = (device.index for device, _ in on.devices.by_device())
            if any(on.devices.tracker("torch", index) for index in devices):  # else it misses nothing
                self._unknown(str(self._why_not))
            return
        until = {index: _closed(watched) for index, watched in self._watched.items()}
        if not self._always_named:
            until = {
                i: (end, still)
                for i, (end, still) in until.items()
                if not (still and self._watched[i].still and end == self._watched[i].since)
            }
        if not until:
            return
        histories = history.read()
        if sum(len(one.events) for one in histories) > _MANY_EVENTS:
            self.notes.append(_HISTORY)
        self.failed = history.failed
        # cuBLAS's workspaces, which no name holds, would make the search for names a long one.
        self._breakdown.read_names(
            (one.index, address)
            for one in histories
            for address, block in live(blocks_of(one.end.segments)).items()
            if block["size"] != WORKSPACE_BYTES
        )
        self.notes += self._breakdown.notes
        # `read_names` walks the frames of this call, and what it read of them may stay until garbage is
        # collected: no variable of theirs shall hold the events then.
        while histories:
            index = histories[0].index
            if index in until:
                self._replay(self._watched[index], histories.pop(0), until[index][0])
            else:
                del histories[0]

    def _replay(self, watched: _Watched, history: DeviceHistory, until: Position) -> None:
        """Keep the rows of one device, or why there are none, and notes on what is not known of them."""
        replay = Replay(history, watched.since, until)
        device, peak = watched.device.id, watched.interval.peak()
        moment = replay.highest()
        if replay.agrees:
            failed = replay.failure()
            if failed is not None:
                self.at_failure[device] = self._rows(watched, failed)
        most_bytes = moment.size_bytes if peak.hi_bytes is None else peak.hi_bytes
        if replay.agrees and peak.lo_bytes <= moment.size_bytes <= most_bytes:
            if moment.size_bytes:
                rows, times_s = self._rows(watched, moment), (self._began_s, self._ended_s)
                timeline = self._breakdown.timeline(device, watched.device.index, replay, *times_s)
                self._peaks[watched.device.index] = _Peak(rows, timeline)
            return
        why = "torch's memory history does not add up to it"
        if moment.size_bytes < peak.lo_bytes and not replay.whole and watched.still:
            count = len(replay.events)
            why = f"it came before the events that torch still has, which are the last {count:,}"
        self._unknown(why, watched.device, f" ({size_text(peak.lo_bytes)})")

    def _rows(self, watched: _Watched, moment: Moment) -> tuple[AtPeak, ...]:
        return self._breakdown.rows(watched.device.id, watched.device.index, moment)

    def _unknown(self, why: str, device: Device | None = None, size: str = "") -> None:
        where = f" on {device.id}" if device is not None else ""
        self.notes.append(f"What was alive at the peak{size}{where} is not known: {why}.")

    def _failed(self, reason: BaseException) -> None:
        """Keep why nothing is known; an interrupt or the like goes on."""
        if not isinstance(reason, Exception) or is_from_a_handler(reason):
            self.drop()
            raise reason
        self._unknown(str(reason) if isinstance(reason, Unavailable) else named(reason))


def _closed(watched: _Watched) -> tuple[Position, bool]:
    """End an interval; return where the allocator stood then, and whether it stood there just before too."""
    before = position(watched.device.index)
    watched.tracker.close(watched.interval)
    after = position(watched.device.index)
    return after, before == after


class PeakRecording:
    """What was alive when memory was highest, for one measurement.

    It begins before the scope opens and ends after the scope has closed; then `result` adds the rows. None
    of its methods raises: what is unknown is a note. Recordings nest and overlap, across threads.
    """

    def __init__(self, shell: Any = None, *, ram: bool | None = None, always_named: bool = True) -> None:
        # `ram`: whether general RAM is recorded too, which slows code down; by default where no GPU is.
        # `always_named`: look at all that a device holds even if nothing was allocated or freed there.
        self._devices = DeviceRecording(shell, always_named=always_named)
        self._ram = RamRecording(shell) if ram is not False else None
        self._ram_beside_gpus = bool(ram)

    def begin(self) -> None:
        """Begin to record."""
        self._devices.begin()
        if self._ram is None:
            return
        if self._devices.in_use and not self._ram_beside_gpus:
            self._ram = None  # because memray slows training
            return
        self._ram.begin()  # last, so that what the other part allocates is not in it

    def torch_imported(self) -> None:
        """Begin with the devices again, because torch was imported just now."""
        self._devices.drop()
        self._devices = DeviceRecording(None, always_named=True)
        self._devices.begin()

    def end(self) -> None:
        """End the recording, and find out what was alive at the peak."""
        try:
            if self._ram is not None:
                self._ram.end()
        finally:
            self._devices.end()

    def result(self, measurement: M) -> M:
        """Return a measurement with what was alive at its peak."""
        devices = self._devices
        timelines = devices.timelines(measurement.time_s)
        ram, notes = ((), []) if self._ram is None else (self._ram.result(measurement), self._ram.notes)
        at_peak = (*devices.at_peak(), *ram)
        for gpu in measurement.gpus:
            rows_bytes = sum(row.size_bytes for row in at_peak if row.device == gpu.id)
            if 0 < rows_bytes < (end_bytes := gpu.allocated_bytes or 0):
                notes.append(_LATER.format(gpu.id, size_text(end_bytes)))
        return replace(
            measurement,
            at_peak=at_peak,
            peak_times_s=tuple((one.device, one.peak()[0]) for one in timelines),
            timeline=timelines,
            notes=(*measurement.notes, *devices.notes, *notes),
        )

    @property
    def at_failure(self) -> dict[str, tuple[AtPeak, ...]]:
        """By device, what was alive when an allocation last failed there, the largest first."""
        return self._devices.at_failure

    def keep_failure(self, where: str) -> None:
        """Keep torch's snapshot for ``%gpulog snapshot --failed`` if an allocation failed."""
        failed, self._devices.failed = self._devices.failed, None
        if failed is not None:
            machine().failed_snapshot = failed._replace(where=where)

    def drop(self) -> None:
        """End the recording without a result. Idempotent."""
        try:
            if self._ram is not None:
                self._ram.drop()
        finally:
            self._devices.drop()
