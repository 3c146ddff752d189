"""Many intervals over one counter, across threads, though the counter has only one peak and one reset.

When an interval opens, the tracker reads the counter, raises the peak of every open interval to the reading
("folds" it), and resets the counter. A transient of another thread between the two would be lost. Its stamp,
a count of page faults or allocations, shows whether there can be one; then the bounds are wider.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from ..records import Peak
from ..runtime.errors import is_from_a_handler, named
from ..sources import Counter, Observation, Reading, Unavailable

QUIET_TRIES = 4  # attempts to read and reset without a change of the stamp by other threads
SEGMENT_SLACK_BYTES = 2**18  # a peak this little above what is in use needs no reset, if the precision allows


T = TypeVar("T")


class WeakIdentitySet(Generic[T]):
    """Objects for as long as something else refers to them; `weakref.WeakSet` takes six times as long."""

    def __init__(self) -> None:
        self._references: set[weakref.ref[T]] = set()  # each removes itself as its object dies

    def add(self, one: T) -> None:
        """Add an object; adding it again changes nothing."""
        self._references.add(weakref.ref(one, self._references.discard))

    def discard(self, one: T) -> None:
        """Remove an object, if it is here."""
        self._references.discard(weakref.ref(one))

    def __iter__(self) -> Iterator[T]:
        """Yield the objects that are here now, whatever is added or removed meanwhile."""
        if not self._references:
            return iter(())
        # A copy is made in C, at once: another thread, or a finalizer, may change the set while we go on.
        return iter([one for reference in self._references.copy() if (one := reference()) is not None])

    def __contains__(self, one: T) -> bool:
        return weakref.ref(one) in self._references

    def __len__(self) -> int:
        return len(self._references)


class Segment(NamedTuple):
    """The peak of one series between two boundaries of an interval, as of a visit of a line, and its end."""

    lo_bytes: int
    hi_bytes: int | None
    after_bytes: int


class _Series:
    """One series of an interval: what was in use at its beginning, and the bounds of its peak."""

    def __init__(self, reading: Reading, fresh: bool) -> None:
        self.before_bytes = self.lo_bytes = self.hi_bytes = reading.current_bytes
        self.sampled = reading.peak_bytes is None
        # Without a reset the counter still holds an older peak: it bounds this interval's own, and only a
        # reading above it certainly belongs to this interval.
        self.older_peak_bytes = None if fresh else reading.peak_bytes
        if not fresh:
            self.fold(reading)

    def fold(self, reading: Reading) -> None:
        """Raise the peak to a reading of the counter, if it is higher."""
        at_least = highest = reading.current_bytes
        peak_bytes = reading.peak_bytes
        if peak_bytes is None:
            self.sampled = True
        elif peak_bytes > highest:
            highest = peak_bytes
            if self.older_peak_bytes is None or peak_bytes > self.older_peak_bytes:
                at_least = peak_bytes
        self.lo_bytes = max(self.lo_bytes, at_least)
        self.hi_bytes = max(self.hi_bytes, highest)


class Interval:
    """One interval over one counter: what was in use when it opened, and the bounds of its peak."""

    def __init__(self, observation: Observation, *, fresh: bool, precision_bytes: int) -> None:
        self.reset_elsewhere: bool = False  # whether something but the tracker may have reset the counter
        self.ended = False  # whether its peak is final
        self._precision_bytes = precision_bytes
        self._series = [_Series(reading, fresh) for reading in observation.readings]

    @property
    def before(self) -> list[int]:
        """What was in use when the interval opened, by series."""
        return [series.before_bytes for series in self._series]

    def before_bytes(self, series: int = 0) -> int:
        """Return what was in use when the interval opened."""
        return self._series[series].before_bytes

    def peak(self, series: int = 0) -> Peak:
        """Return the highest use so far."""
        one = self._series[series]
        return Peak.within(one.lo_bytes, None if one.sampled else one.hi_bytes, self._precision_bytes)

    def fold(self, observation: Observation) -> None:
        """Raise the peaks of all series to what the counter shows, where that is higher."""
        for series, reading in zip(self._series, observation.readings, strict=True):
            series.fold(reading)

    def widen(self, observation: Observation, growth_bytes: Sequence[int | None]) -> None:
        """Raise the upper bounds for what a reset may have lost: of each series, at most its growth."""
        for series, reading, growth in zip(self._series, observation.readings, growth_bytes, strict=True):
            if growth is None:
                series.sampled = True
            else:
                series.hi_bytes = max(series.hi_bytes, reading.current_bytes + growth)

    def mark_sampled(self, *, reset_elsewhere: bool = False) -> None:
        """Mark the peak as a lower bound: its counter was reset by other code, or is not read any more."""
        self.reset_elsewhere = self.reset_elsewhere or reset_elsewhere
        for series in self._series:
            series.sampled = True

    def counter_was_reset(self) -> None:
        """Note that the tracker reset the counter, so that its next peak lies within this interval."""
        for series in self._series:
            series.older_peak_bytes = None

    def next_segment(self, observation: Observation, *, fresh: bool) -> list[Segment]:
        """End the segment of each series and begin the next, `fresh` if the counter was just reset."""
        readings = observation.readings
        ended = [
            Segment(one.lo_bytes, None if one.sampled else one.hi_bytes, reading.current_bytes)
            for one, reading in zip(self._series, readings, strict=True)
        ]
        self._series = [_Series(one, fresh or one.peak_bytes == one.current_bytes) for one in readings]
        return ended


def peak_of_sum(intervals: Sequence[Interval], series: int) -> Peak:
    """Return the peak of a sum, as of two frameworks on one device.

    It lies between what all had as they opened, or the highest of them, and all their peaks together.
    """
    peaks = [interval.peak(series) for interval in intervals]
    highest_bytes = [peak.hi_bytes for peak in peaks if peak.hi_bytes is not None]
    hi_bytes = sum(highest_bytes) if len(highest_bytes) == len(peaks) else None
    before_bytes = sum(interval.before_bytes(series) for interval in intervals)
    lo_bytes = max(before_bytes, *(peak.lo_bytes for peak in peaks))
    return Peak.within(lo_bytes, hi_bytes, sum(peak.precision_bytes for peak in peaks))


class PeakTracker:
    """Follows the peaks of one counter. Nothing else may call its reset."""

    def __init__(self, counter: Counter) -> None:
        self.counter = counter
        self._open: WeakIdentitySet[Interval] = WeakIdentitySet()  # an interval ends with its last referrer
        self._lock = threading.RLock()
        self._lifetime: list[int] = []  # the highest ever read, by series
        self._since_reset: list[int] | None = None  # the highest peaks read since our last reset
        self._last: Observation | None = None  # since our last reset; the open intervals know it
        _trackers.add(self)

    def observe(self) -> Observation:
        """Read the counter, and fold the reading into the open intervals; all reading goes through here."""
        with self._lock:
            try:
                observation, last = self.counter.observe(), self._last
                if observation == last and not observation.reset_elsewhere:
                    return last
            except Unavailable:
                raise
            except BaseException as error:  # one of another distribution may fail in any way
                if is_from_a_handler(error):
                    raise
                kind = type(self.counter)
                raise Unavailable(
                    f"the counter {kind.__module__}.{kind.__qualname__} fails: {named(error)}"
                ) from error
            self._fold(observation)
            return observation

    def current_bytes(self, series: int = 0) -> int:
        """Return what is in use now."""
        return self.observe().readings[series].current_bytes

    def lifetime_peak_bytes(self, series: int = 0) -> int:
        """Return the highest peak ever read here, whatever has reset the counter since."""
        self.observe()
        return self._lifetime[series]

    def _fold(self, observation: Observation) -> None:
        """Raise the peaks to an observation, having found out whether something else reset the counter."""
        precision_bytes = self.counter.precision_bytes
        peaks = [reading.peak_bytes or 0 for reading in observation.readings]
        highest = self._since_reset or peaks
        fell = any(now + precision_bytes < before for now, before in zip(peaks, highest, strict=True))
        if fell or observation.reset_elsewhere:
            highest = peaks
            for interval in self._open:
                interval.mark_sampled(reset_elsewhere=True)
        self._since_reset = list(map(max, peaks, highest))
        now = [max(one.current_bytes, one.peak_bytes or 0) for one in observation.readings]
        self._lifetime = list(map(max, now, self._lifetime or now))
        for interval in self._open:
            interval.fold(observation)
        self._last = observation

    def open(self, *, reset: bool = True) -> Interval:
        """Open an interval; unless the counter can be reset, and is, an older peak may bound its own."""
        with self._lock:
            counter = self.counter
            if not self._open:
                counter.watch(on=True)
            observation, fresh = self.observe(), True
            for reading in observation.readings:
                fresh = fresh and reading.peak_bytes == reading.current_bytes
            if not fresh and reset and counter.peak_class == "resettable":
                try:
                    observation, fresh = self._reset(counter.reset, observation), True
                except Exception:  # this shows whether anything is left to measure
                    observation = self.observe()
            interval = Interval(observation, fresh=fresh, precision_bytes=counter.precision_bytes)
            self._open.add(interval)
            return interval

    def adopt(self, *, sure: bool = True) -> Interval:
        """Open an interval from zero over a counter that is new; it is `sure` if it was never reset."""
        with self._lock:
            if not self._open:
                self.counter.watch(on=True)
            observation = self.observe()
            zeros = tuple(
                reading._replace(current_bytes=0, peak_bytes=None if reading.peak_bytes is None else 0)
                for reading in observation.readings
            )
            unborn = observation._replace(readings=zeros)
            interval = Interval(unborn, fresh=True, precision_bytes=self.counter.precision_bytes)
            interval.fold(observation)
            if not sure:
                interval.mark_sampled()
            self._open.add(interval)
            return interval

    def fold(self, interval: Interval) -> None:
        """Read the counter for an open interval, which stays open."""
        with self._lock:
            if self._has(interval):
                self.observe()

    def close(self, interval: Interval) -> None:
        """Close an interval: its peak is final, and "sampled" if the counter cannot be read."""
        with self._lock:
            if not self._has(interval):
                return
            try:
                self.observe()
            except BaseException:
                interval.mark_sampled()
                raise
            finally:
                interval.ended = True
                self._open.discard(interval)
                if not self._open:
                    self.counter.watch(on=False)

    def _has(self, interval: Interval) -> bool:
        """Return whether an interval is open here; one that was lost, as by a fork, becomes "sampled"."""
        if interval in self._open:
            return True
        if not interval.ended:
            interval.mark_sampled()
        return False

    def next_segment(self, interval: Interval, *, reset: bool = True) -> list[Segment]:
        """End the segment of each series and begin the next, for a third of a close and an open."""
        with self._lock:
            counter, observation, fresh = self.counter, self.observe(), False
            slack_bytes = min(counter.precision_bytes, SEGMENT_SLACK_BYTES)
            above = any(
                (one.peak_bytes or 0) > one.current_bytes + slack_bytes for one in observation.readings
            )
            if above and reset and counter.peak_class == "resettable":
                try:
                    observation, fresh = self._reset_at_once(observation), True
                except Exception as error:  # without the reset, the older peak bounds the next segments
                    if is_from_a_handler(error):
                        raise
            return interval.next_segment(observation, fresh=fresh)

    def user_resets(self, reset: Callable[[], None]) -> None:
        """Reset the counter by the user's own call; the open intervals keep the peaks it had."""
        with self._lock:
            if self._open:
                self._reset(reset, self.observe())
            else:
                self._reset_counter(reset)

    def loss(self, interval: Interval) -> str:
        """Return a sentence for the user on what an interval could not see; empty if nothing."""
        said = f"Something else resets {self.counter.describe()}: peaks are then at least what was seen."
        return said if interval.reset_elsewhere else ""

    def _reset(self, reset: Callable[[], None], before: Observation) -> Observation:
        """Reset after an observation, and return the next; what may be lost between widens the open ones."""
        for _ in range(QUIET_TRIES if self._open else 0):
            earlier, before = before, self.observe()
            if before.stamp == earlier.stamp:
                break
        self._reset_counter(reset)
        return self._observe_after_reset(before)

    def _reset_at_once(self, before: Observation) -> Observation:
        """Reset after an observation that was folded, if nothing was allocated since; return the next."""
        if not before.stamp or self.counter.stamp() != before.stamp:
            return self._reset(self.counter.reset, before)
        self._reset_counter(self.counter.reset)
        return before if self.counter.stamp() == before.stamp else self._observe_after_reset(before)

    def _reset_counter(self, reset: Callable[[], None]) -> None:
        self._since_reset = self._last = None
        reset()
        for interval in self._open:
            interval.counter_was_reset()

    def _observe_after_reset(self, before: Observation) -> Observation:
        after = self.observe()
        if before.stamp and after.stamp == before.stamp:
            return after
        growth_bytes: Sequence[int | None] = [None] * len(before.readings)
        if before.stamp:
            growth_bytes = self.counter.growth_bytes(before.stamp, after.stamp)
        for interval in self._open:
            interval.widen(before, growth_bytes)
        return after


_trackers: weakref.WeakSet[PeakTracker] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # Another thread may have held a lock at the moment of the fork, and does not run in the child.
    for tracker in _trackers:
        tracker._lock = threading.RLock()
        tracker._since_reset = tracker._last = None  # the child's own counter starts again
        for interval in tracker._open:  # the parent's, whose counter does not count the child
            interval.mark_sampled()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
