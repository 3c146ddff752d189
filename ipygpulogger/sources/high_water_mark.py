"""Linux: the kernel's peak of this process's resident memory, which can be reset.

Exact whatever holds the GIL, with no thread. The reset goes through `/proc/self/clear_refs`, and also
lowers `getrusage().ru_maxrss`.
"""

from __future__ import annotations

import os
import sys

from . import procfs, rusage
from .counter import Counter, Look, PeakClass, Reading, Unavailable
from .foreign_resets import ResetWatch
from .grain import high_water_precision_bytes, largest_fault_bytes, resident_precision_bytes


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
        self._resets, self._watching = ResetWatch(), False

    @classmethod
    def probe(cls) -> bool:
        """Return whether the reset is offered: it is absent on gVisor and refused after setuid.

        Nothing is reset to find out, as that would lower `ru_maxrss`, which some users read. The first
        reset shows whether it works.
        """
        try:
            procfs.resident_and_mark_bytes()
        except (OSError, ValueError):
            return False
        return os.access("/proc/self/clear_refs", os.W_OK)

    def describe(self) -> str:
        """Name the counter, as part of a sentence."""
        return "this process's high-water mark (/proc/self/clear_refs)"

    def look(self) -> Look:
        """Read the resident memory and its high-water mark, with the page faults as the stamp.

        The mark is read each time, because memory that others fill (cross-memory attach, userfaultfd)
        raises it without a page fault of this process. If `getrusage` shows it, the resident memory comes
        from a file that the kernel writes in half the time.
        """
        stamp, mark_bytes = rusage.faults_and_mark()
        try:
            known_bytes = self._peak_bytes(stamp, mark_bytes)
            if known_bytes is None:
                current_bytes, peak_bytes = procfs.resident_and_mark_bytes()
            else:
                current_bytes, peak_bytes = procfs.resident_bytes(), known_bytes
        except (OSError, ValueError) as error:
            raise Unavailable(f"/proc/self/status cannot be read: {error}") from error
        # The stored mark is approximate even where the resident size is exact (82241a83cd15).
        peak_bytes = max(peak_bytes, current_bytes)
        self._known = stamp, mark_bytes, peak_bytes
        # Called last: a reset that had no effect on this look may be reported, but none is missed.
        return Look((Reading(current_bytes, peak_bytes),), stamp, self._watching and self._resets.take())

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
        return rusage.faults_and_mark()[0]

    def reset(self) -> None:
        """Lower the high-water mark to what is resident now."""
        self._known = None
        try:
            procfs.reset_mark()
        except OSError as error:
            self.peak_class = "monotone"
            raise Unavailable(f"the kernel does not reset its peak: {error}") from error
        self._resets.take()  # this one was ours

    def watch(self, *, on: bool) -> None:
        """Watch for resets of the mark by other code while a scope is open.

        The descriptors stay until `close`. What was reported between two scopes comes with the first look.
        """
        self._watching = on
        if on:
            self._resets.start()

    def close(self) -> None:
        """Close the descriptors."""
        self._resets.close()

    def growth_bytes(self, earlier: tuple[int, ...], later: tuple[int, ...]) -> tuple[int | None, ...]:
        """Return at most one largest page per fault."""
        faults = sum(later) - sum(earlier)
        return (faults * self._fault_bytes,)
