"""The child processes of this process within one scope: what they use at its ends, and their peak."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..records import ChildrenUsage, Peak
from ..records.units import MB
from ..sources import Unavailable
from ..sources.children import children_ended

if TYPE_CHECKING:
    from ..sources.children import Ended
    from ..sources.process import Process
    from .interval import Interval
    from .peaks import PeakTracker


class Children:
    """The children as they were when a scope opened."""

    def __init__(self, process: Process, ram: PeakTracker) -> None:
        """Record their memory now.

        Args:
            process: The source that lists them.
            ram: The tracker of this process's own peaks; a forked child may share that memory.
        """
        self._process, self._ram = process, ram
        self._before = process.children(ram.lifetime_peak_bytes)
        self._ended_before = children_ended()

    def usage(self, own: Interval) -> ChildrenUsage | None:
        """Return what they used since the scope opened; None if there were none, or they cannot be listed.

        Args:
            own: This process's own memory within the scope.
        """
        before, after = self._before, self._process.children(self._ram.lifetime_peak_bytes)
        ended = children_ended(more=False)  # only those before the scope matter
        if before is None or after is None:
            return None
        record_bytes = self._ended_bytes(ended, own)
        if not (before or after) and record_bytes < MB:
            return None
        before_bytes = sum(child.own_bytes for child in before.values())
        after_bytes = sum(child.own_bytes for child in after.values())
        born_bytes = (child.peak_bytes or 0 for pid, child in after.items() if pid not in before)
        lo_bytes = max(before_bytes, after_bytes, record_bytes, *born_bytes)
        peaks_bytes = [child.peak_bytes for child in after.values()]
        if ended.stamp != self._ended_before.stamp or before.keys() - after.keys() or None in peaks_bytes:
            peak = Peak.within(lo_bytes, None)  # the peak of a child that has ended cannot be read
        else:
            peak = Peak.within(lo_bytes, max(lo_bytes, sum(filter(None, peaks_bytes))))
        at_least = any(child.at_least for child in (*before.values(), *after.values()))
        return ChildrenUsage(before_bytes, after_bytes, peak, count=len(after), at_least=at_least)

    def _ended_bytes(self, ended: Ended, own: Interval) -> int:
        """Return a lower bound of the unshared memory of the largest child that ended within the scope.

        The kernel keeps the highest peak of all children so far. It includes what a child was before its
        exec, when it was as large as this process. So only what exceeds that is certainly the child's own.
        """
        was = self._ended_before
        if ended.largest_bytes <= was.largest_bytes:
            return 0
        try:  # a child that was there before the scope may have been forked when this process was larger
            ours_bytes = self._ram.lifetime_peak_bytes() if was.more else own.peak().hi_bytes
        except Unavailable:
            return 0
        if ours_bytes is None:
            return 0
        ours_bytes += self._process.counter.precision_bytes
        if ended.largest_bytes <= ours_bytes:
            return 0
        forked = was.more or ended.forks != was.forks  # such a child may share our memory to its end
        return ended.largest_bytes - ours_bytes if forked else ended.largest_bytes
