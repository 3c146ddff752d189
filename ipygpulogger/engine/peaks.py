"""Many intervals over one counter, across threads, though the counter has only one peak and one reset.

Whenever an interval opens, the tracker reads the counter, raises the peak of every open interval to the
reading ("folds" it), and resets the counter. So intervals nest and overlap in any order.

Reading and resetting are two steps. A transient allocation of another thread between them is lost to the
intervals already open. To detect this, the counter's stamp is compared: an event count, such as page faults
or allocations, that changes whenever memory could have grown. If it did not change, nothing was lost. If it
did, an upper bound of what was allocated in between becomes the upper bound of the peak.

Other code may reset the counter too. Some counters detect that themselves. For any other, a peak that is
lower than before shows it, since a peak never falls without a reset. The peak until then is lost, so the
intervals that are open at that moment become "sampled".
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING

from ..runtime.errors import named
from ..runtime.living import Living
from ..runtime.signals import is_from_a_handler
from ..sources import Unavailable
from .interval import Interval

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..sources import Counter, Look, Reading
    from .interval import Lap

QUIET_TRIES = 4  # attempts to read and reset without a change of the stamp by other threads
LAP_SLACK_BYTES = 2**18  # a peak this little above what is in use needs no reset, if the granularity allows


class PeakTracker:
    """Follows the peaks of one counter. Nothing else may call its reset."""

    def __init__(self, counter: Counter) -> None:
        self.counter = counter
        self._open: Living[Interval] = Living()  # an interval ends with its last referrer
        self._lock = threading.RLock()
        self._lifetime: list[int] = []
        self._series_count = 0
        self._standing: list[int] | None = None  # each peak as last read since our last reset
        self._last: Look | None = None  # the last look since our last reset; the open intervals know it
        _trackers.add(self)

    @property
    def is_open(self) -> bool:
        """Whether any interval is open."""
        return bool(self._open)

    def look(self) -> Look:
        """Read the counter, and fold the reading into the open intervals.

        All reading goes through here, because a counter reports some things only once, such as the highest
        value that a sampler saw.

        Raises:
            Unavailable: It cannot be read now.
        """
        with self._lock:
            return self._look()

    def current_bytes(self, series: int = 0) -> int:
        """Return what is in use now.

        Raises:
            Unavailable: The counter cannot be read now.
        """
        return self.look().readings[series].current_bytes

    def last_bytes(self) -> int:
        """Return what was in use at the last look if nothing was allocated since, else what is in use now.

        Memory that was freed since still counts: this is for the second look of one hook, which frees nothing
        of the user's in between. It costs a fifth of a look.

        Raises:
            Unavailable: The counter cannot be read now.
        """
        last = self._last
        if last is None or not last.stamp or self.counter.stamp() != last.stamp:
            return self.current_bytes()
        return last.readings[0].current_bytes

    def _look(self) -> Look:
        try:
            look, last = self.counter.look(), self._last
            if look == last and not look.reset_elsewhere:
                return last
            readings = look.readings
            count = self._series_count or len(readings)
            if not count or len(readings) != count or not all(map(_is_whole, readings)):
                raise ValueError(f"not a reading: {look}")  # noqa: TRY301 - said as any other failure
        except Unavailable:
            raise
        except BaseException as error:  # one of another distribution may fail in any way
            if is_from_a_handler(error):
                raise
            kind = type(self.counter)
            raise Unavailable(
                f"the counter {kind.__module__}.{kind.__qualname__} fails: {named(error)}"
            ) from error
        self._series_count = count
        self._check_standing(look)
        self._fold(look)
        self._last = look
        return look

    def _check_standing(self, look: Look) -> None:
        """Find out whether something else reset the counter since the last look.

        Within its granularity even a peak may fall: where the exact resident size is above the stored
        high-water mark, which is not exact, Linux reports the former.
        """
        precision_bytes = self.counter.precision_bytes
        peaks = [reading.peak_bytes or 0 for reading in look.readings]
        stood = self._standing or peaks
        fell = any(now + precision_bytes < before for now, before in zip(peaks, stood, strict=True))
        if fell or look.reset_elsewhere:
            stood = peaks
            for interval in self._open:
                interval.was_reset_elsewhere()
        self._standing = list(map(max, peaks, stood))

    def _fold(self, look: Look) -> None:
        if not self._lifetime:
            self._lifetime = [0] * len(look.readings)
        for i, reading in enumerate(look.readings):
            known_bytes = reading.current_bytes, reading.seen_bytes, reading.peak_bytes or 0
            self._lifetime[i] = max(self._lifetime[i], *known_bytes)
        for interval in self._open:
            interval.fold(look)

    def _reset_counter(self, reset: Callable[[], None]) -> None:
        self._standing = self._last = None
        reset()
        for interval in self._open:
            interval.counter_was_reset()

    def open(self, *, reset: bool = True) -> Interval:
        """Open an interval.

        Args:
            reset: Reset the counter if its peak is above what is in use, so that the interval's own peak is
                exact. Without it that older peak may hide the interval's own, which is then bounded.

        Raises:
            Unavailable: The counter cannot be read now.
        """
        with self._lock:
            counter = self.counter
            if not self._open:
                counter.watch(on=True)
            look = self._look()
            fresh = all(reading.peak_bytes == reading.current_bytes for reading in look.readings)
            if not fresh and reset and counter.peak_class == "resettable":
                try:
                    look, fresh = self._reset(counter.reset, look), True
                except Exception:  # this look shows whether anything is left to measure
                    look = self._look()
            interval = Interval(look, fresh=fresh, precision_bytes=counter.precision_bytes)
            self._open.add(interval)
            return interval

    def adopt(self, *, sure: bool = True) -> Interval:
        """Open an interval, from zero, over a counter that did not exist when the scope began.

        Args:
            sure: Whether the counter has certainly not been reset since.

        Raises:
            Unavailable: The counter cannot be read now.
        """
        with self._lock:
            if not self._open:
                self.counter.watch(on=True)
            look = self._look()
            unborn = look._replace(
                readings=tuple(
                    reading._replace(current_bytes=0, peak_bytes=None if reading.peak_bytes is None else 0)
                    for reading in look.readings
                )
            )
            interval = Interval(unborn, fresh=True, precision_bytes=self.counter.precision_bytes)
            interval.fold(look)
            if not sure:
                interval.doubt(look, (None,) * len(look.readings))
            self._open.add(interval)
            return interval

    def fold(self, interval: Interval) -> None:
        """Read the counter for an open interval, which stays open.

        Raises:
            Unavailable: The counter cannot be read now.
        """
        with self._lock:
            if self._has(interval):
                self._look()

    def close(self, interval: Interval) -> None:
        """Close an interval: its peak is final. Closing it again changes nothing.

        Raises:
            Unavailable: The counter cannot be read now. The peak known so far is kept, as "sampled".
        """
        with self._lock:
            if not self._has(interval):
                return
            try:
                self._look()
            except BaseException:
                interval.give_up()
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
            interval.give_up()
        return False

    def lap(self, interval: Interval, *, reset: bool = True) -> list[Lap]:
        """Close an open interval and open it again at the same moment, at a third of what both would cost.

        The counter is reset only if its peak is more than `LAP_SLACK_BYTES` above what is in use.

        Args:
            interval: Open. From here on its figures are those of the new lap.
            reset: As in `open`.

        Returns:
            For each series, the lap that ends here.

        Raises:
            Unavailable: The counter cannot be read now. The lap goes on.
        """
        with self._lock:
            counter, look = self.counter, self._look()
            fresh = False
            if reset and counter.peak_class == "resettable" and self._stands_above(look):
                try:
                    look, fresh = self._reset_at_once(look), True
                except Exception as error:  # without the reset, the older peak bounds the next laps
                    if is_from_a_handler(error):
                        raise
            return interval.lap(look, fresh=fresh)

    def _stands_above(self, look: Look) -> bool:
        slack_bytes = min(self.counter.precision_bytes, LAP_SLACK_BYTES)
        return any(
            (reading.peak_bytes or 0) > reading.current_bytes + slack_bytes for reading in look.readings
        )

    def _reset_at_once(self, look: Look) -> Look:
        """Reset after a look that was folded, if nothing was allocated since; return the look after that."""
        counter = self.counter
        if not look.stamp or counter.stamp() != look.stamp:
            return self._reset(counter.reset, look)
        self._reset_counter(counter.reset)
        if counter.stamp() == look.stamp:
            return look
        after = self._look()
        self._doubt(look, counter.growth_bytes(look.stamp, after.stamp))
        return after

    def user_resets(self, reset: Callable[[], None]) -> None:
        """Reset the counter for the user; the open intervals keep the peaks it had.

        Args:
            reset: The user's own call.
        """
        with self._lock:
            if self._open:
                self._reset(reset, self._look())
            else:
                self._reset_counter(reset)

    def loss(self, interval: Interval) -> str:
        """Return a sentence for the user on what an interval could not see; empty if nothing."""
        if not interval.reset_elsewhere:
            return ""
        return f"Something else resets {self.counter.describe()}: peaks are then at least what was seen."

    def lifetime_peak_bytes(self, series: int = 0) -> int:
        """Return the highest peak ever read here, whatever has reset the counter since.

        Raises:
            Unavailable: The counter cannot be read now.
        """
        with self._lock:
            self._look()
            return self._lifetime[series]

    def _reset(self, reset: Callable[[], None], look: Look) -> Look:
        """Reset after a look, and return the look right after.

        What may have been lost in between widens the bounds of the open intervals.
        """
        if self._open:
            for _ in range(QUIET_TRIES):
                was, look = look, self._look()
                if look.stamp == was.stamp:
                    break
        self._reset_counter(reset)
        after = self._look()
        if not look.stamp:
            self._doubt(look, (None,) * len(look.readings))
        elif after.stamp != look.stamp:
            self._doubt(look, self.counter.growth_bytes(look.stamp, after.stamp))
        return after

    def _doubt(self, look: Look, growth_bytes: tuple[int | None, ...]) -> None:
        for interval in self._open:
            interval.doubt(look, growth_bytes)


def _is_whole(reading: Reading) -> bool:
    """Return whether the sizes of a reading are whole numbers."""
    return type(reading.current_bytes + (reading.peak_bytes or 0)) is int


_trackers: weakref.WeakSet[PeakTracker] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # Another thread may have held a lock at the moment of the fork, and does not run in the child.
    for tracker in _trackers:
        tracker._lock = threading.RLock()
        tracker._standing = tracker._last = None  # the child's own counter starts again
        for interval in tracker._open:  # the parent's, whose counter does not count the child
            interval.give_up()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
