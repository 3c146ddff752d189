"""The kernel's peak of resident memory, which Linux can reset; elsewhere one that only rises, or none.

Exact whatever holds the GIL, with no thread. The reset goes through `/proc/self/clear_refs`, and also
lowers `getrusage().ru_maxrss`.

A peak that only rises (macOS, Windows, Linux where the reset is refused) is exact if a scope set a new
record, and a bound otherwise; the sampling process raises the lower bound. Where nothing counts peaks
(gVisor), the samples are all there is.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from ...runtime.errors import is_from_a_handler, named
from ..contract import UNREADABLE, Counter, Observation, PeakClass, Reading, Unavailable
from . import linux
from .forked import forks
from .linux import high_water_precision_bytes, largest_fault_bytes, resident_precision_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from .rss_watcher import RssWatcher


class HighWaterMark(Counter):
    """The kernel's high-water mark of this process."""

    peak_class: PeakClass = "resettable"

    def __init__(self) -> None:
        self.precision_bytes = high_water_precision_bytes()
        self.current_precision_bytes = resident_precision_bytes()
        self._fault_bytes = largest_fault_bytes()
        # At the last look: the page faults, the mark as `getrusage` reports it, and the peak.
        self._known: tuple[tuple[int, ...], int, int] | None = None
        self._lowest_mark_bytes = sys.maxsize  # that `getrusage` ever reported

    @classmethod
    def probe(cls) -> bool:
        """Return whether the reset is offered: it is absent on gVisor and refused after setuid.

        Nothing is reset to find out, as that would lower `ru_maxrss`, which some users read. The first
        reset shows whether it works.
        """
        try:
            linux.resident_and_mark_bytes()
        except (OSError, ValueError):
            return False
        return os.access("/proc/self/clear_refs", os.W_OK)

    def describe(self) -> str:
        """Name the counter, as part of a sentence."""
        return "this process's high-water mark (/proc/self/clear_refs)"

    def look(self) -> Observation:
        """Read the resident memory and its high-water mark, with the page faults as the stamp.

        The mark is read each time, because memory that others fill (cross-memory attach, userfaultfd)
        raises it without a page fault of this process. If `getrusage` shows it, the resident memory comes
        from a file that the kernel writes in half the time.
        """
        try:
            stamp, mark_bytes, current_bytes = linux.faults_mark_and_resident()
            peak_bytes = self._peak_bytes(stamp, mark_bytes)
            if peak_bytes is None:
                current_bytes, peak_bytes = linux.resident_and_mark_bytes()
        except (OSError, ValueError) as error:
            raise Unavailable(f"/proc/self/status cannot be read: {error}") from error
        # The stored mark is approximate even where the resident size is exact (82241a83cd15).
        peak_bytes = max(peak_bytes, current_bytes)
        self._known = stamp, mark_bytes, peak_bytes
        return Observation((Reading(current_bytes, peak_bytes),), stamp)

    def _peak_bytes(self, stamp: tuple[int, ...], mark_bytes: int) -> int | None:
        """Return the peak as far as `getrusage` shows it; None if it does not.

        It reports the mark, or what the process had resident before its `exec` where that is more. So it
        reports the mark if that is above the lowest that it ever reported, which is not below that floor.
        """
        if mark_bytes > self._lowest_mark_bytes:
            return mark_bytes
        self._lowest_mark_bytes = mark_bytes
        if self._known is None:
            return None
        known_stamp, known_mark_bytes, peak_bytes = self._known
        # Otherwise the mark may lie below the floor, and rise unseen.
        shown = known_mark_bytes <= peak_bytes + self.precision_bytes
        return peak_bytes if shown and (known_stamp, known_mark_bytes) == (stamp, mark_bytes) else None

    def stamp(self) -> tuple[int, ...]:
        """Return the page faults, which take one system call."""
        return linux.faults_and_mark()[0]

    def reset(self) -> None:
        """Lower the high-water mark to what is resident now."""
        self._known = None
        forks.reset_follows()
        try:
            linux.reset_mark()
        except OSError as error:
            self.peak_class = "monotone"
            raise Unavailable(f"the kernel does not reset its peak: {error}") from error

    def growth_bytes(self, earlier: tuple[int, ...], later: tuple[int, ...]) -> tuple[int | None, ...]:
        """Return at most one largest page per fault."""
        faults = sum(later) - sum(earlier)
        return (faults * self._fault_bytes,)


class RisingPeak(Counter):
    """A peak that only rises, or no peak at all (None), with the samples of another process."""

    def __init__(
        self,
        current: Callable[[], int],
        peak: Callable[[], int] | None,
        watcher: RssWatcher | None = None,
        precision_bytes: int = 0,
        current_precision_bytes: int = 0,
    ) -> None:
        self.peak_class: PeakClass = "monotone" if peak else "sampled"
        self.precision_bytes, self.current_precision_bytes = precision_bytes, current_precision_bytes
        self._current, self._peak, self._watcher = current, peak, watcher

    def look(self) -> Observation:
        """Read the resident memory, the peak if there is one, and the highest sample."""
        try:
            current_bytes = self._current()
            peak_bytes = max(self._peak(), current_bytes) if self._peak else None
        except Exception as error:  # psutil may be broken in any way
            if is_from_a_handler(error):
                raise
            raise Unavailable(f"{UNREADABLE}: {named(error)}") from error
        seen_bytes = self._watcher.highest_bytes() if self._watcher else 0
        return Observation((Reading(current_bytes, peak_bytes, seen_bytes),), stamp=())

    def watch(self, *, on: bool) -> None:
        """Wake the sampling process or let it sleep."""
        if self._watcher:
            self._watcher.watch(on=on)

    def close(self) -> None:
        """End the sampling process."""
        if self._watcher:
            self._watcher.close()
