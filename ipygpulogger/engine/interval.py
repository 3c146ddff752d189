"""One interval over one counter: what was in use when it opened, and the bounds of its peak.

An interval never reads the counter itself. `peaks.PeakTracker` opens it and passes every reading of the
counter to `fold`, which raises the peak. Where a reset may have lost a peak, `doubt` raises the upper bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..records import Peak

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..sources import Look, Reading


class Lap(NamedTuple):
    """One series over one lap: the part of an interval between two boundaries, such as one visit of a line.

    Attributes:
        lo_bytes: The lower bound of its peak.
        hi_bytes: The upper bound; None where there is none.
        after_bytes: In use at the end of the lap, and at the beginning of the next.
    """

    lo_bytes: int
    hi_bytes: int | None
    after_bytes: int


class _Series:
    """One series of an interval: what was in use at its beginning, and the bounds of its peak."""

    __slots__ = ("before_bytes", "hi_bytes", "lo_bytes", "record_bytes", "sampled")

    def __init__(self, reading: Reading, *, fresh: bool) -> None:
        self.before_bytes = self.lo_bytes = self.hi_bytes = reading.current_bytes
        self.sampled = reading.peak_bytes is None
        # Without a reset the counter still holds an older peak: it bounds this interval's own, and only a
        # reading above it certainly belongs to this interval.
        self.record_bytes = None if fresh else reading.peak_bytes
        if not fresh:
            self.fold(reading)

    def lap(self, reading: Reading, *, fresh: bool) -> Lap:
        """End the lap with this reading, begin the next one with it, and return the ended one."""
        ended = Lap(self.lo_bytes, None if self.sampled else self.hi_bytes, reading.current_bytes)
        _Series.__init__(self, reading, fresh=fresh or reading.peak_bytes == reading.current_bytes)
        return ended

    def fold(self, reading: Reading) -> None:
        """Raise the peak to a reading of the counter, if it is higher."""
        current_bytes, peak_bytes, seen_bytes = reading
        at_least = highest = max(current_bytes, seen_bytes)
        if peak_bytes is None:
            self.sampled = True
        elif peak_bytes > highest:
            highest = peak_bytes
            if self.record_bytes is None or peak_bytes > self.record_bytes:
                at_least = peak_bytes
        self.lo_bytes = max(self.lo_bytes, at_least)
        self.hi_bytes = max(self.hi_bytes, highest)

    def doubt(self, hi_bytes: int | None) -> None:
        """Raise the upper bound for what may have been missed; None removes it."""
        if hi_bytes is None:
            self.sampled = True
        else:
            self.hi_bytes = max(self.hi_bytes, hi_bytes)


class Interval:
    """One interval over one counter. Only its `PeakTracker` makes it and calls what changes it.

    Attributes:
        moved: Whether memory may have been allocated or freed since it opened.
        reset_elsewhere: Whether something other than the tracker may have reset the counter meanwhile.
        ended: Whether its peak is final.
    """

    __slots__ = ("__weakref__", "_precision_bytes", "_series", "_stamp", "ended", "moved", "reset_elsewhere")

    def __init__(self, look: Look, *, fresh: bool, precision_bytes: int) -> None:
        self.reset_elsewhere = self.ended = False
        self.moved = not look.stamp
        self._stamp = look.stamp
        self._series = tuple(_Series(reading, fresh=fresh) for reading in look.readings)
        self._precision_bytes = precision_bytes

    @property
    def series_count(self) -> int:
        """The number of series that the counter has."""
        return len(self._series)

    def before_bytes(self, series: int = 0) -> int:
        """Return what was in use when the interval opened."""
        return self._series[series].before_bytes

    def held_before(self) -> list[int]:
        """Return what was in use when the interval opened, by series."""
        return [series.before_bytes for series in self._series]

    def peak(self, series: int = 0) -> Peak:
        """Return the highest use so far."""
        s = self._series[series]
        return Peak.within(s.lo_bytes, None if s.sampled else s.hi_bytes, self._precision_bytes)

    def fold(self, look: Look) -> None:
        """Raise the peaks of all series to a look at the counter, where it is higher."""
        if look.stamp != self._stamp:
            self.moved = True
        for series, reading in zip(self._series, look.readings, strict=True):
            if reading.current_bytes != series.before_bytes:
                self.moved = True
            series.fold(reading)

    def doubt(self, look: Look, growth_bytes: Sequence[int | None]) -> None:
        """Raise the upper bounds for what a reset may have lost.

        Args:
            look: The last one before the reset.
            growth_bytes: For each series, an upper bound of what was allocated since; None if unknown.
        """
        for series, reading, growth in zip(self._series, look.readings, growth_bytes, strict=True):
            series.doubt(None if growth is None else reading.current_bytes + growth)

    def was_reset_elsewhere(self) -> None:
        """Mark the peak as "sampled": something else reset the counter, and its peak until then is lost."""
        self.reset_elsewhere = True
        self.give_up()

    def give_up(self) -> None:
        """Mark the peak as "sampled": from now on the counter is no longer read for it."""
        for series in self._series:
            series.doubt(None)

    def counter_was_reset(self) -> None:
        """Note that the tracker reset the counter, so that its next peak lies within this interval."""
        for series in self._series:
            series.record_bytes = None

    def lap(self, look: Look, *, fresh: bool) -> list[Lap]:
        """End the lap of each series with this look, begin the next ones with it, and return the ended ones.

        Args:
            look: At the counter, now.
            fresh: The counter was reset just before.
        """
        laps = [
            series.lap(reading, fresh=fresh)
            for series, reading in zip(self._series, look.readings, strict=True)
        ]
        self._stamp, self.moved = look.stamp, not look.stamp
        return laps


def together(intervals: Sequence[Interval], series: int) -> Peak:
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
    precision_bytes = sum(peak.precision_bytes for peak in peaks)
    highest_bytes = [peak.hi_bytes for peak in peaks if peak.hi_bytes is not None]
    hi_bytes = sum(highest_bytes) if len(highest_bytes) == len(peaks) else None
    return Peak.within(lo_bytes, hi_bytes, precision_bytes)
