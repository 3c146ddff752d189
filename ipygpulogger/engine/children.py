"""The child processes of this process within one scope: what they use at its ends, and their peaks.

Of a program of its own everything counts. A forked child shares pages with the process that forked it, and
those count for the latter. The kernel's mark includes them. So what was shared, as found at both ends of the
scope, is subtracted from the mark. Where that is not known exactly, the peak is bounded.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ..records import ChildrenUsage, ChildUsage, Peak
from ..records.units import MB
from ..sources import Unavailable
from ..sources.system.process import children_ended
from .child_peaks import NEARLY_BYTES, SharedBounds, at_least_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..sources.system.child_process import ChildProcess
    from ..sources.system.forked import Sharing
    from ..sources.system.process import Ended
    from .machine import Machine
    from .peaks import Interval

LARGEST = 4  # children that are named
_NEEDED_BYTES = 5 * MB  # those that needed so much come first
_SMALL_BYTES = 5 * MB  # of so much that ended within the scope nothing is said, as of `!echo hi`
# Finding out what forked children share may take so long as the scope opens; at its end a part of its time.
WALK_S = 0.005
_WALK_SHARE, _WALK_MOST_S = 0.05, 0.05
# Children that ended are reported if they mapped so many pages together, even if an earlier one was larger.
_NOTABLE_FAULTS = 4096
_LEAVING_FAULTS = 256  # a child that left its figures maps no more pages than that until it ends


class _Held(NamedTuple):
    """What one child has at an end of the scope."""

    own_bytes: int  # resident, without what it shares if it is forked
    state: object = None  # which changes when pages of its own are mapped or freed
    shares: Sharing | None = None  # None for a program of its own, and where it was not found out
    fresh: bool = True  # False if it is what it shared before, which was more rather than less


class Children:
    """The children from the opening of a scope to its end.

    Attributes:
        intervals: The interval of each child that was seen; empty once they are final.
        together_bytes: The most that all of them were seen to have at once.
        ended: Whether their peaks are final.
    """

    def __init__(self, on: Machine, ended_before: Ended) -> None:
        """Prepare; `ended_before` is of the moment when the scope opened."""
        self._on, self._ended_before = on, ended_before
        self.intervals: dict[ChildProcess, Interval] = {}
        self.together_bytes, self.ended = 0, False
        self._final: dict[ChildProcess, Peak] = {}  # the peaks at the end of the scope
        self._before: dict[ChildProcess, _Held] | None = {}
        self._shared = SharedBounds(0, 0)  # by forked ones with each other, as the scope opened

    def begin(self, *, reset: bool) -> None:
        """Record what those have that are there as the scope opens; `reset` their marks, if that may be."""
        living = self._on.child_peaks.observe(self, reset=reset)
        if living is None:
            self._before = None
        else:
            self._shared = self._on.child_peaks.walk(living, WALK_S)
            self._before = {child: _held_by(child) for child in living}

    def close(self) -> None:
        """Read the final peaks of those that are known: of one seen later, the whole life lies within."""
        if not self.ended:
            self._on.child_peaks.observe()
            self._final, self.ended = self._peaks(), True
            self.intervals = {}  # nothing is folded into them any more

    def _peaks(self) -> dict[ChildProcess, Peak]:
        """Return the peaks so far, or the final ones."""
        return {child: interval.peak() for child, interval in dict(self.intervals).items()} or self._final

    def usage(self, own: Interval, time_s: float) -> ChildrenUsage | None:
        """Return what they used beside this process's own; None if there were none, or none are listed."""
        before, living = self._before, self._on.child_peaks.observe()
        if before is None or living is None:
            return None
        peaks = self._peaks()
        shared = self._on.child_peaks.walk(living, min(max(WALK_S, _WALK_SHARE * time_s), _WALK_MOST_S))
        after = {child: _held_by(child) for child in living}
        found = {
            child: _usage_of(child, peaks.get(child), before.get(child), after.get(child))
            for child in dict.fromkeys((*before, *peaks, *after))
        }
        ended = children_ended(more=False)  # only those before the scope matter
        faults = ended.faults - self._ended_before.faults
        largest_bytes = self._ended_bytes(ended, own)
        shown = [usage for child, usage in found.items() if not (child.left and _is_small(usage))]
        if not (before or living or shown or faults >= _NOTABLE_FAULTS or largest_bytes >= MB):
            return None
        ended_count = self._ended_count(ended, before, after, found)
        left = [child for child in found if child.left]
        all_seen = ended_count == len({child.pid for child in found} - {child.pid for child in after})
        all_seen &= faults - sum(child.faults for child in left) <= len(left) * _LEAVING_FAULTS
        before_bytes = sum(held.own_bytes for held in before.values()) + self._shared.lo_bytes
        after_bytes = sum(held.own_bytes for held in after.values()) + shared.lo_bytes
        lo_bytes = max(before_bytes, after_bytes, largest_bytes, self.together_bytes, _one_moved(found))
        peak, most_bytes = Peak.within(lo_bytes, None), _most_at_once(found)
        if all_seen and most_bytes is not None and shared.hi_bytes is not None:
            precision_bytes = sum(child.precision_bytes for child in found)
            peak = Peak.within(lo_bytes, max(lo_bytes, most_bytes + shared.hi_bytes), precision_bytes)
        forked = [held for child, held in after.items() if child.forked]
        in_proportion_bytes = sum(held.shares.proportional_bytes for held in forked if held.shares)
        at_least = any(_is_at_least(before.get(child), after.get(child)) for child in found)
        named = largest_first(shown)[:LARGEST]
        gpu_bytes = self._on.ledger.held_by([child.pid for child in named if not child.ended])
        return ChildrenUsage(
            before_bytes,
            after_bytes,
            peak,
            count=len(after),
            at_least=at_least or not shared.is_known,
            ended=ended_count if all_seen else max(1, ended_count),
            shared_bytes=in_proportion_bytes if forked and all(held.fresh for held in forked) else None,
            largest=tuple(replace(child, gpu_bytes=gpu_bytes.get(child.pid)) for child in named),
        )

    def _ended_count(
        self,
        ended: Ended,
        before: Iterable[ChildProcess],
        after: Iterable[ChildProcess],
        found: Iterable[ChildProcess],
    ) -> int:
        """Return how many children certainly ended: of those that were seen, and that Python code forked."""
        before, after = set(before), set(after)
        living = {child.pid for child in after}  # one that called exec is another object
        gone = {child.pid for child in (*before, *found)} - living
        gone_before = {child.pid for child in before} & gone
        born = sum(1 for child in after - before if child.parent is None)
        forked = ended.forks - self._ended_before.forks - born
        return len(gone_before) + max(len(gone - gone_before), forked)

    def _ended_bytes(self, ended: Ended, own: Interval) -> int:
        """Return a lower bound of the unshared memory of the largest child that ended within the scope.

        The kernel keeps the highest peak of all children so far. It includes what a child was before its
        exec, when it was as large as this process. So only what exceeds that is certainly the child's own.
        """
        was = self._ended_before
        if ended.largest_bytes <= was.largest_bytes:
            return 0
        with suppress(Unavailable):
            # One that was there before the scope may have been forked when this process was larger.
            ours_bytes = self._on.ram.lifetime_peak_bytes() if was.more else own.peak().hi_bytes
            if ours_bytes is not None:
                above_bytes = ended.largest_bytes - ours_bytes - self._on.process.counter.precision_bytes
                forked = was.more or ended.forks != was.forks  # such a child may share our memory to its end
                return max(0, above_bytes) if forked or above_bytes <= 0 else ended.largest_bytes
        return 0


def _held_by(child: ChildProcess) -> _Held:
    if not child.forked:
        return _Held(child.current_bytes, child.state)
    if child.shares is not None and child.is_walked:
        return _Held(child.shares.private_bytes, child.state, child.shares)
    return _Held(at_least_bytes(child), child.state, child.shares, fresh=False)


def _usage_of(
    child: ChildProcess, peak: Peak | None, before: _Held | None, after: _Held | None
) -> ChildUsage:
    """Return what one child used; it has no `peak` if it was born after the peaks were read."""
    last = after
    if child.left:  # as if it lived still
        own_bytes = child.shares.private_bytes if child.shares else 0
        last = _Held(own_bytes, shares=child.shares, fresh=child.shares is not None)
    ends_bytes = [held.own_bytes for held in (before, last) if held is not None]
    peak = peak or Peak.within(child.high_bytes, child.high_bytes)
    lo_bytes, hi_bytes = (
        _unshared(child, peak, before, last) if child.forked else (peak.lo_bytes, peak.hi_bytes)
    )
    lo_bytes = max(lo_bytes, 0, *ends_bytes)
    if last is None:
        hi_bytes = None
    elif child.forked and last.fresh and before and before.state == last.state:  # it was idle
        lo_bytes = hi_bytes = max(ends_bytes)
    return ChildUsage(
        before.own_bytes if before else 0,
        after.own_bytes if after else 0,
        Peak.within(lo_bytes, hi_bytes and max(lo_bytes, hi_bytes), child.precision_bytes),
        child.name,
        child.pid,
        ended=after is None,
    )


def _unshared(
    child: ChildProcess, peak: Peak, before: _Held | None, after: _Held | None
) -> tuple[int, int | None]:
    """Return the bounds of the peak of a forked child without what it shared.

    The anonymous memory that it inherited only becomes less while it lives, unless it forks itself. The files
    and shared memory that it has in common with others are taken as at the two ends.
    """
    walked = [held.shares for held in (before, after) if held is not None and held.shares is not None]
    mapped = [shares.shared_bytes - shares.inherited_bytes for shares in walked]
    inherited = [shares.inherited_bytes for shares in walked]
    if before is None or before.shares is None:
        inherited.append(child.inherited_bytes or 0)
    lo_bytes = peak.lo_bytes - max(inherited) - max(mapped, default=child.mapped_bytes)
    hi_bytes = peak.hi_bytes
    if hi_bytes is not None and after and after.shares and after.fresh and not child.children:
        hi_bytes -= after.shares.inherited_bytes
        if before is not None and before.shares is not None:
            hi_bytes -= min(mapped)
    return lo_bytes, hi_bytes


def _is_small(usage: ChildUsage) -> bool:
    """Return whether a child had little more than what every fork copies."""
    return max(usage.before_bytes, usage.peak.lo_bytes) < _SMALL_BYTES


def _most_at_once(found: dict[ChildProcess, ChildUsage]) -> int | None:
    """Return the most that all can have had at once: the peaks of those that lived together, if known."""
    most_bytes = 0
    for newest in found:  # most of them live just after one is born
        at_ns, sum_bytes = newest.life_ns[0], 0
        for child, usage in found.items():
            born_ns, left_ns = child.life_ns
            if usage.peak.hi_bytes is None:
                return None
            if born_ns <= at_ns and (left_ns is None or left_ns >= at_ns):
                sum_bytes += usage.peak.hi_bytes
        most_bytes = max(most_bytes, sum_bytes)
    return most_bytes


def _one_moved(found: dict[ChildProcess, ChildUsage]) -> int:
    """Return the most that all certainly had at once: one at its peak, and those that did not move."""
    still_bytes, moved_bytes = 0, 0
    for child in found.values():
        lo_bytes, hi_bytes = child.peak.lo_bytes, child.peak.hi_bytes
        if not child.ended and child.before_bytes == child.after_bytes == lo_bytes == hi_bytes:
            still_bytes += lo_bytes
        else:
            moved_bytes = max(moved_bytes, lo_bytes)
    return still_bytes + moved_bytes


def _is_at_least(before: _Held | None, after: _Held | None) -> bool:
    """Return whether more than a little of a child's memory at an end may not be counted."""
    if after is not None and not after.fresh:
        return True
    if before is None or before.fresh:
        return False
    if before.shares is None or after is None or after.shares is None:
        return True
    return before.shares.shared_bytes - after.shares.shared_bytes > NEARLY_BYTES


def largest_first(found: Iterable[ChildUsage]) -> list[ChildUsage]:
    """Return the children by what they needed; after those that needed much, by what they have."""

    def rank(one: ChildUsage) -> tuple[int, int, int]:
        needed_bytes = one.needed_bytes if one.needed_bytes >= _NEEDED_BYTES else 0
        return -needed_bytes, -one.peak.lo_bytes, one.pid

    return sorted(found, key=rank)
