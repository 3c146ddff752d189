"""One interval over one counter: what was in use when it opened, and the bounds of its peak.

An interval never reads the counter itself: its `peaks.PeakTracker` opens it and passes it what it reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..records import Peak

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..sources import Observation, Reading


class Segment(NamedTuple):
    """The peak of one series between two boundaries of an interval, as of a visit of a line, and its end."""

    lo_bytes: int
    hi_bytes: int | None
    after_bytes: int


class _Series:
    """One series of an interval: what was in use at its beginning, and the bounds of its peak."""

    __slots__ = ("before_bytes", "hi_bytes", "lo_bytes", "older_peak_bytes", "sampled")

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
        current_bytes, peak_bytes, seen_bytes = reading
        at_least = highest = max(current_bytes, seen_bytes)
        if peak_bytes is None:
            self.sampled = True
        elif peak_bytes > highest:
            highest = peak_bytes
            if self.older_peak_bytes is None or peak_bytes > self.older_peak_bytes:
                at_least = peak_bytes
        self.lo_bytes = max(self.lo_bytes, at_least)
        self.hi_bytes = max(self.hi_bytes, highest)


class Interval:
    """One interval over one counter: what was in use when it opened, and the bounds of its peak.

    Only its `PeakTracker` makes it, and calls what changes it.

    Attributes:
        moved: Whether memory may have been allocated or freed since it opened.
        reset_elsewhere: Whether something other than the tracker may have reset the counter meanwhile.
        ended: Whether its peak is final.
    """

    __slots__ = ("__weakref__", "_precision_bytes", "_series", "_stamp", "ended", "moved", "reset_elsewhere")

    def __init__(self, observation: Observation, *, fresh: bool, precision_bytes: int) -> None:
        self.reset_elsewhere = self.ended = False
        self._precision_bytes = precision_bytes
        self._begin(observation, [fresh] * len(observation.readings))

    def _begin(self, observation: Observation, fresh: Sequence[bool]) -> None:
        self._stamp, self.moved = observation.stamp, not observation.stamp
        self._series = list(map(_Series, observation.readings, fresh))

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
        self.moved = self.moved or observation.stamp != self._stamp
        for series, reading in zip(self._series, observation.readings, strict=True):
            if reading.current_bytes != series.before_bytes:
                self.moved = True
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
        self._begin(observation, [fresh or r.peak_bytes == r.current_bytes for r in readings])
        return ended


def peak_of_sum(intervals: Sequence[Interval], series: int) -> Peak:
    """Return the peak of the sum of several counters, such as those of two frameworks on one device.

    If at most one of them changed, the peak is as exact as theirs. Otherwise their peaks may have been at
    different times, so the peak of the sum is bounded.
    """
    if len(intervals) == 1:
        return intervals[0].peak(series)
    peaks = [interval.peak(series) for interval in intervals]
    still_bytes = [0 if interval.moved else interval.before_bytes(series) for interval in intervals]
    lo_bytes = max(
        peak.lo_bytes + sum(still_bytes) - still for peak, still in zip(peaks, still_bytes, strict=True)
    )
    highest_bytes = [peak.hi_bytes for peak in peaks if peak.hi_bytes is not None]
    hi_bytes = sum(highest_bytes) if len(highest_bytes) == len(peaks) else None
    return Peak.within(lo_bytes, hi_bytes, sum(peak.precision_bytes for peak in peaks))
