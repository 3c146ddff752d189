"""The one tracker of resets: many scopes over one counter.

Hardware and allocators give one peak each, and one reset for everybody. A tracker turns that into
any number of intervals that nest and overlap, across threads: whenever an interval opens it reads
the counter, folds the reading into every open interval, then resets.

Reading and resetting are two steps. Another thread's blip that rises and falls between them is lost
to the intervals already open, and a certificate tells: the counter's stamp moves whenever memory
could have grown, so an unmoved stamp proves that nothing was lost, and a moved one bounds the loss.

Something else may reset the counter, too. A counter that sees it says so, and of any other a peak that stands
below where it stood shows it, for none falls by itself. What was counted until then is lost: the intervals
open at that moment are sampled.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, NamedTuple

from ..records import Peak
from ..runtime.errors import named
from ..runtime.signals import is_from_a_handler
from ..sources import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..sources import Counter, Look, Reading

QUIET_TRIES = 4  # looks before a reset while other threads keep the stamp moving
LAP_SLACK_BYTES = 2**18  # a record this little above what is in use is left standing, if the grain allows


class Lap(NamedTuple):
    """One number over one lap of an interval.

    Attributes:
        lo_bytes: Its peak was at least this much.
        hi_bytes: And at most this much; None when nothing bounds it from above.
        after_bytes: In use at the end of the lap, and at the beginning of the next.
    """

    lo_bytes: int
    hi_bytes: int | None
    after_bytes: int


class _Series:
    """One number of one interval: where it began, and what its peak is known to be."""

    __slots__ = ("before_bytes", "hi_bytes", "lo_bytes", "record_bytes", "sampled")

    def __init__(self, reading: Reading, *, fresh: bool) -> None:
        self.before_bytes = self.lo_bytes = self.hi_bytes = reading.current_bytes
        # An older record still standing in the counter: only a peak above it is surely ours.
        self.record_bytes = None if fresh else reading.peak_bytes
        self.sampled = reading.peak_bytes is None

    def lap(self, reading: Reading, *, fresh: bool) -> Lap:
        """End here and begin anew."""
        ended = Lap(self.lo_bytes, None if self.sampled else self.hi_bytes, reading.current_bytes)
        _Series.__init__(self, reading, fresh=fresh or reading.peak_bytes == reading.current_bytes)
        return ended

    def fold(self, reading: Reading) -> None:
        at_least = max(reading.current_bytes, reading.seen_bytes)
        self.lo_bytes = max(self.lo_bytes, at_least)
        self.hi_bytes = max(self.hi_bytes, at_least)
        peak_bytes = reading.peak_bytes
        if peak_bytes is None:
            self.sampled = True
        else:
            self.hi_bytes = max(self.hi_bytes, peak_bytes)
            if self.record_bytes is None or peak_bytes > self.record_bytes:
                self.lo_bytes = max(self.lo_bytes, peak_bytes)

    def doubt(self, hi_bytes: int | None) -> None:
        """Something moved unseen: the peak is at most this much; None: nobody knows."""
        if hi_bytes is None:
            self.sampled = True
        else:
            self.hi_bytes = max(self.hi_bytes, hi_bytes)


class Interval:
    """One open interval over one counter; `PeakTracker.open` makes it.

    Attributes:
        moved: Whether anything may have come or gone.
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
        """How many numbers the counter has."""
        return len(self._series)

    def before_bytes(self, series: int = 0) -> int:
        """What was in use when the interval opened."""
        return self._series[series].before_bytes

    def peak(self, series: int = 0) -> Peak:
        """The highest use so far."""
        s = self._series[series]
        return Peak.within(s.lo_bytes, None if s.sampled else s.hi_bytes, self._precision_bytes)

    def _fold(self, look: Look) -> None:
        self.moved |= look.stamp != self._stamp
        for series, reading in zip(self._series, look.readings, strict=True):
            self.moved |= reading.current_bytes != series.before_bytes
            series.fold(reading)

    def _doubt(self, look: Look, growth_bytes: tuple[int | None, ...]) -> None:
        for series, reading, growth in zip(self._series, look.readings, growth_bytes, strict=True):
            series.doubt(None if growth is None else reading.current_bytes + growth)

    def _was_reset_elsewhere(self) -> None:
        self.reset_elsewhere = True
        for series in self._series:
            series.doubt(None)

    def _refreshed(self) -> None:
        """The counter was reset: what it says from now on is this interval's."""
        for series in self._series:
            series.record_bytes = None


def together(intervals: Sequence[Interval], series: int) -> Peak:
    """The highest that the counters of these intervals were in sum.

    Exact where at most one of them moved; else nobody knows which peaks fell together.
    """
    peaks = [interval.peak(series) for interval in intervals]
    still_bytes = [0 if interval.moved else interval.before_bytes(series) for interval in intervals]
    lo_bytes = max(
        peak.lo_bytes + sum(still_bytes) - still for peak, still in zip(peaks, still_bytes, strict=True)
    )
    precision_bytes = sum(peak.precision_bytes for peak in peaks)
    highest_bytes = [peak.hi_bytes for peak in peaks if peak.hi_bytes is not None]
    hi_bytes = sum(highest_bytes) if len(highest_bytes) == len(peaks) else None
    return Peak.within(lo_bytes, hi_bytes, precision_bytes)


class PeakTracker:
    """The tracker of one counter's peaks, and the only caller of its reset."""

    def __init__(self, counter: Counter) -> None:
        self.counter = counter
        self._open: weakref.WeakSet[Interval] = weakref.WeakSet()  # an interval nobody holds is over
        self._lock = threading.RLock()
        self._lifetime: list[int] = []
        self._series_count = 0
        self._standing: list[int] | None = None  # each peak as it was last seen, since our last reset
        _trackers.add(self)

    def look(self) -> Look:
        """Read the counter; all that is open keeps what it reports only once, such as a sampler's highest.

        Raises:
            Unavailable: It cannot be read now.
        """
        with self._lock:
            look = self._look()
            self._fold(look)
            return look

    def _look(self) -> Look:
        try:
            look = self.counter.look()
            sizes = [reading.current_bytes + (reading.peak_bytes or 0) for reading in look.readings]
            steady = sizes and len(sizes) == (self._series_count or len(sizes))
            if not steady or not all(type(size) is int for size in sizes):
                raise ValueError(f"no reading: {look}")  # noqa: TRY301 - said as any other failure
        except Unavailable:
            raise
        except BaseException as error:  # a stranger's counter may fail in any way
            if is_from_a_handler(error):
                raise
            kind = type(self.counter)
            raise Unavailable(
                f"the counter {kind.__module__}.{kind.__qualname__} fails: {named(error)}"
            ) from error
        self._series_count = len(sizes)
        self._check_standing(look)
        return look

    def _check_standing(self, look: Look) -> None:
        """See whether something else reset the counter since the last look.

        Within its grain even a peak may sink: Linux reports what is resident now, which is exact, where that
        is above the stored mark, which is not.
        """
        grain_bytes = self.counter.precision_bytes
        peaks = [reading.peak_bytes or 0 for reading in look.readings]
        stood = self._standing or peaks
        fell = any(now + grain_bytes < before for now, before in zip(peaks, stood, strict=True))
        if fell or look.reset_elsewhere:
            stood = peaks
            for interval in tuple(self._open):
                interval._was_reset_elsewhere()
        self._standing = list(map(max, peaks, stood))

    def _reset_counter(self, reset: Callable[[], None]) -> None:
        self._standing = None
        reset()

    def open(self, *, reset: bool = True) -> Interval:
        """Begin an interval.

        Args:
            reset: Reset the counter, so that the peak is exact. Without it an older record may hide
                this interval's own peak, which is then bounded.

        Raises:
            Unavailable: The counter cannot be read now.
        """
        with self._lock:
            counter = self.counter
            if not self._open:
                counter.watch(on=True)
            resets = reset and counter.peak_class == "resettable"
            if resets:
                try:
                    look = self._reset(counter.reset)
                except Exception:  # the reading below tells whether anything is left to measure
                    resets = False
            if not resets:
                look = self._look()
                self._fold(look)
            interval = Interval(look, fresh=resets, precision_bytes=counter.precision_bytes)
            self._open.add(interval)
            return interval

    def adopt(self, *, sure: bool = True) -> Interval:
        """Begin an interval over a counter that came to life after its scope began: from zero.

        Args:
            sure: Nobody can have reset it since.

        Raises:
            Unavailable: The counter cannot be read now.
        """
        with self._lock:
            if not self._open:
                self.counter.watch(on=True)
            look = self._look()
            self._fold(look)
            unborn = look._replace(
                readings=tuple(
                    reading._replace(current_bytes=0, peak_bytes=None if reading.peak_bytes is None else 0)
                    for reading in look.readings
                )
            )
            interval = Interval(unborn, fresh=True, precision_bytes=self.counter.precision_bytes)
            interval._fold(look)
            if not sure:
                interval._doubt(look, (None,) * len(look.readings))
            self._open.add(interval)
            return interval

    def fold(self, interval: Interval) -> None:
        """Bring an open interval up to date, leaving it open.

        Raises:
            Unavailable: The counter cannot be read now.
        """
        with self._lock:
            if self._has(interval):
                self._fold(self._look())

    def close(self, interval: Interval) -> None:
        """End an interval; its peak is final. Closing twice is harmless.

        Raises:
            Unavailable: The counter cannot be read now; what was known before stands, as "sampled".
        """
        with self._lock:
            if not self._has(interval):
                return
            try:
                self._fold(self._look())
            except BaseException:
                for series in interval._series:
                    series.doubt(None)
                raise
            finally:
                interval.ended = True
                self._open.discard(interval)
                if not self._open:
                    self.counter.watch(on=False)

    def _has(self, interval: Interval) -> bool:
        """Whether an interval is open here. One that is not, though it has not ended, is sampled."""
        if interval in self._open:
            return True
        if not interval.ended:
            for series in interval._series:
                series.doubt(None)
        return False

    def lap(self, interval: Interval, *, reset: bool = True) -> list[Lap]:
        """End an open interval and begin it anew at the same moment, at a third of what both would cost.

        The counter is reset only where its record stands above what is in use, by more than a little.

        Args:
            interval: Open; its own figures are those of the new lap from here on.
            reset: As of `open`.

        Returns:
            Of each series, the lap that ends here.

        Raises:
            Unavailable: The counter cannot be read now: the lap goes on.
        """
        with self._lock:
            counter, look = self.counter, self._look()
            self._fold(look)
            fresh = False
            if reset and counter.peak_class == "resettable" and self._stands_above(look):
                try:
                    look, fresh = self._reset_at_once(look), True
                except Exception as error:  # the readings stand: the old record bounds the laps to come
                    if is_from_a_handler(error):
                        raise
            laps = [
                series.lap(reading, fresh=fresh)
                for series, reading in zip(interval._series, look.readings, strict=True)
            ]
            interval._stamp, interval.moved = look.stamp, not look.stamp
            return laps

    def _stands_above(self, look: Look) -> bool:
        slack_bytes = min(self.counter.precision_bytes, LAP_SLACK_BYTES)
        return any(
            (reading.peak_bytes or 0) > reading.current_bytes + slack_bytes for reading in look.readings
        )

    def _reset_at_once(self, look: Look) -> Look:
        """Reset right after a look that was folded, if nothing came since; what stands then."""
        counter = self.counter
        if not look.stamp or counter.stamp() != look.stamp:
            return self._reset(counter.reset)
        self._reset_counter(counter.reset)
        for interval in self._open:
            interval._refreshed()
        if counter.stamp() == look.stamp:
            return look
        after = self._look()
        self._doubt(look, counter.growth_bytes(look.stamp, after.stamp))
        self._fold(after)
        return after

    def user_resets(self, reset: Callable[[], None]) -> None:
        """The user resets the same counter: the open intervals keep what it knew.

        Args:
            reset: The user's reset.
        """
        with self._lock:
            if self._open:
                self._reset(reset)
            else:
                self._reset_counter(reset)

    def loss(self, interval: Interval) -> str:
        """A sentence on what an interval could not see, for the user; empty if nothing."""
        if not interval.reset_elsewhere:
            return ""
        return f"Something else resets {self.counter.describe()}: peaks are then at least what was seen."

    def lifetime_peak_bytes(self, series: int = 0) -> int:
        """The highest ever seen here, whoever reset the counter since.

        Raises:
            Unavailable: The counter cannot be read now.
        """
        with self._lock:
            self._fold(self._look())
            return self._lifetime[series]

    def _fold(self, look: Look) -> None:
        if not self._lifetime:
            self._lifetime = [0] * len(look.readings)
        for i, reading in enumerate(look.readings):
            known_bytes = reading.current_bytes, reading.seen_bytes, reading.peak_bytes or 0
            self._lifetime[i] = max(self._lifetime[i], *known_bytes)
        for interval in tuple(self._open):
            interval._fold(look)

    def _reset(self, reset: Callable[[], None]) -> Look:
        """Fold, reset, and say what stands right after; what may have been lost becomes a bound."""
        counter = self.counter
        look = self._look()
        self._fold(look)
        if self._open:
            for _ in range(QUIET_TRIES):
                again = self._look()
                self._fold(again)
                quiet, look = again.stamp == look.stamp, again
                if quiet:
                    break
        self._reset_counter(reset)
        after = self._look()
        if self._open:
            if not look.stamp:
                self._doubt(look, (None,) * len(look.readings))
            elif after.stamp != look.stamp:
                self._doubt(look, counter.growth_bytes(look.stamp, after.stamp))
            for interval in tuple(self._open):
                interval._refreshed()
        self._fold(after)
        return after

    def _doubt(self, look: Look, growth_bytes: tuple[int | None, ...]) -> None:
        for interval in tuple(self._open):
            interval._doubt(look, growth_bytes)


_trackers: weakref.WeakSet[PeakTracker] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # Another thread may have held a lock at the moment of the fork, and is not there to let go.
    for tracker in _trackers:
        tracker._lock = threading.RLock()
        tracker._standing = None  # the child's counter begins anew
        for interval in tuple(tracker._open):  # the parent's: what happens here is not in its counter
            for series in interval._series:
                series.doubt(None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
