"""The child processes of this process: their peaks, what they have in one scope, and what forked ones share.

A `PeakTracker` does for each child what another does for this process. Of another program everything counts.
A forked child counts without the pages that it shares with any other process, which its mark includes: what
was shared at both ends of the scope is subtracted. Where that is not exactly known, the peak is bounded.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..records import ChildrenUsage, ChildUsage, Peak
from ..records.units import MB
from ..sources import Unavailable
from ..sources.system.child_process import ChildProcess, Descendants
from ..sources.system.forked import Sharing, forks
from ..sources.system.process import Ended, children_ended
from .peaks import Interval, PeakTracker

if TYPE_CHECKING:
    from .machine import Machine

_NEARLY_BYTES = MB  # if what a child shared at an end is known as well as that, nothing is said
LARGEST = 4  # children that are named
_SMALL_BYTES = 5 * MB  # a child that ended with less, as of `!echo hi`, is not reported, and comes last
# Walking the pages of forked children may take so long as the scope opens; at its end a part of its time.
WALK_S = 0.005
_WALK_SHARE, _WALK_MOST_S = 0.05, 0.05
_NOTABLE_FAULTS = 4096  # children that ended are reported if they mapped so many pages together
_LEAVING_FAULTS = 256  # a child that left its figures maps no more pages than that until it ends


class ChildPeaks:
    """Every descendant of this process, with the tracker of its peaks.

    Some of them measure themselves, such as the workers of a local cluster, and reset their own marks.
    A reset from here would lose a peak of theirs, so what they need within a scope is a lower bound.
    """

    def __init__(self, on: Machine) -> None:
        self._on, self._descendants = on, Descendants()
        self._measuring_themselves: set[int] = set()  # process ids
        self._trackers: dict[ChildProcess, PeakTracker] = {}
        self._lock = threading.RLock()

    def observe(self, opening: Children | None = None, *, reset: bool = True) -> list[ChildProcess] | None:
        """Read and return every living descendant, for all open scopes; None if none are listed."""
        with self._lock:
            found: dict[ChildProcess, PeakTracker] = {}

            def read(child: ChildProcess) -> None:
                tracker = self._trackers.get(child) or self._tracker_of(child)
                if opening is not None:
                    measures_itself = child.pid in self._measuring_themselves
                    interval = opening.intervals[child] = tracker.open(reset=reset and not measures_itself)
                    if measures_itself:
                        interval.mark_sampled()
                else:
                    tracker.observe()
                if child.forked and child.inherited_bytes is None:
                    child.inherited_bytes = self._most_inherited_bytes(child)
                found[child] = tracker

            living = self._descendants.visit(read)
            self._take_what_was_left(living or ())
            self._trackers = {child: found[child] for child in living or ()}
            if living:
                total_bytes = sum(child.at_least_bytes for child in living)
                for scope in self._on.open_children():
                    scope.together_bytes = max(scope.together_bytes, total_bytes)
            return living

    def leave_alone(self, pid: int) -> None:
        """Leave the mark of a child to itself from now on, because it measures itself."""
        with self._lock:
            self._measuring_themselves.add(pid)
            for scope in self._on.open_children():
                for child, interval in tuple(scope.intervals.items()):
                    if child.pid == pid:
                        interval.mark_sampled()

    def measure_again(self, pids: Iterable[int]) -> None:
        """Measure children whose marks were left alone."""
        with self._lock:
            self._measuring_themselves.difference_update(pids)

    def _tracker_of(self, child: ChildProcess) -> PeakTracker:
        """Return the tracker of a new child, which was born within every scope that is open already."""
        tracker, life = PeakTracker(child), None
        for scope in self._on.open_children():
            if life is None:
                life = tracker.adopt()
                if not child.is_seen_from_its_start():
                    life.mark_sampled()
            if not scope.ended:
                scope.intervals[child] = life
        return tracker

    def _most_inherited_bytes(self, child: ChildProcess) -> int:
        if child.parent is not None:
            return child.parent.high_bytes
        with suppress(Unavailable):
            return self._on.ram.lifetime_peak_bytes()
        return child.high_bytes

    def _take_what_was_left(self, living: Iterable[ChildProcess]) -> None:
        """Read the last figures of our forks that ended since the last observation, seen alive or not."""
        cards = forks.cards()
        if not cards:  # a fork that failed has none
            if not living:
                forks.living.clear()
            return
        for child in {*living, *self._trackers}:
            with suppress(Unavailable):
                child.find_card()
        still = {child.pid for child in living if child.card is not None}
        known = {child.pid: child for child in self._trackers if child.card is not None}
        for pid, card in cards.items():
            if pid in still:
                continue
            child = known.get(pid) or ChildProcess(pid, None, card)
            if child.leave():
                with suppress(Unavailable):
                    (self._trackers.get(child) or self._tracker_of(child)).observe()
            elif Path(f"/proc/{pid}").exists():
                continue
            forks.forget(pid)

    def walk(self, living: Iterable[ChildProcess], limit_s: float) -> None:
        """Walk the pages of forks, small ones first, as long as that takes no longer."""
        forked = [child for child in living if child.forked]
        for child in sorted(forked, key=lambda child: child.current_bytes):
            child.is_walked = False
            limit_s -= child.walk_s()
            if limit_s >= 0:
                with suppress(OSError, ValueError, Unavailable):  # it ended, or that is not allowed
                    child.walk()


class _ChildMemory(NamedTuple):
    """What one child has at an end of the scope."""

    own_bytes: int  # without what it shares
    shares: Sharing | None = None  # None for a program of its own, and where it was not found out
    fresh: bool = True  # False if it is what it shared before, which was more rather than less


class Children:
    """The children from the opening of a scope to its end."""

    def __init__(self, on: Machine, ended_before: Ended) -> None:
        """Prepare; `ended_before` is of the moment when the scope opened."""
        self._on, self._ended_before = on, ended_before
        self.intervals: dict[ChildProcess, Interval] = {}  # of each that was seen; empty once they are final
        self.together_bytes = 0  # the most that all of them were seen to have at once
        self.ended: bool = False  # whether their peaks are final
        self._final: dict[ChildProcess, Peak] = {}  # the peaks at the end of the scope
        self._before: dict[ChildProcess, _ChildMemory] | None = {}

    def begin(self, *, reset: bool) -> None:
        """Record what those have that are there as the scope opens; `reset` their marks, if that may be."""
        living = self._on.child_peaks.observe(self, reset=reset)
        if living is None:
            self._before = None
        else:
            self._on.child_peaks.walk(living, WALK_S)
            self._before = {child: _memory_of(child) for child in living}

    def close(self) -> None:
        """Read the final peaks of those that are known: of one seen later, the whole life lies within."""
        if not self.ended:
            self._on.child_peaks.observe()
            self._final, self.ended = self._peaks(), True
            self.intervals = {}  # nothing is folded into them any more

    def _peaks(self) -> dict[ChildProcess, Peak]:
        return {child: interval.peak() for child, interval in dict(self.intervals).items()} or self._final

    def usage(self, time_s: float) -> ChildrenUsage | None:
        """Return what they used beside this process's own; None if there were none, or none are listed."""
        before, living = self._before, self._on.child_peaks.observe()
        if before is None or living is None:
            return None
        peaks = self._peaks()
        self._on.child_peaks.walk(living, min(max(WALK_S, _WALK_SHARE * time_s), _WALK_MOST_S))
        after = {child: _memory_of(child) for child in living}
        found = {
            child: _usage_of(child, peaks.get(child), before.get(child), after.get(child))
            for child in dict.fromkeys((*before, *peaks, *after))
        }
        shown = [
            usage
            for child, usage in found.items()
            if not child.left or max(usage.before_bytes, usage.peak.lo_bytes) >= _SMALL_BYTES
        ]
        faults = children_ended().faults - self._ended_before.faults
        if not (before or living or shown or faults >= _NOTABLE_FAULTS):
            return None
        # By pid, which a child that calls exec keeps.
        ended_count = len({child.pid for child in found} - {child.pid for child in after})
        before_bytes = sum(held.own_bytes for held in before.values())
        after_bytes = sum(held.own_bytes for held in after.values())
        all_seen = self._all_seen(before, found)
        lowest = (usage.peak.lo_bytes for usage in found.values())
        peak = Peak.within(max(before_bytes, after_bytes, self.together_bytes, *lowest), None)
        highest = [usage.peak.hi_bytes for usage in found.values()]
        if all_seen and None not in highest:
            hi_bytes = sum(filter(None, highest))
            precision_bytes = sum(child.precision_bytes for child in found)
            peak = Peak.within(peak.lo_bytes, max(peak.lo_bytes, hi_bytes), precision_bytes)
        forked = [held for child, held in after.items() if child.forked]
        in_proportion_bytes = sum(held.shares.proportional_bytes for held in forked if held.shares)
        return ChildrenUsage(
            before_bytes,
            after_bytes,
            peak,
            count=len(after),
            at_least=any(_is_at_least(before.get(child), after.get(child)) for child in found),
            ended=ended_count if all_seen else max(1, ended_count),
            shared_bytes=in_proportion_bytes if forked and all(held.fresh for held in forked) else None,
            largest=tuple(largest_first(shown)[:LARGEST]),
        )

    def _all_seen(self, before: Iterable[ChildProcess], found: Iterable[ChildProcess]) -> bool:
        """Return whether every child that ended was seen alive, or left its figures."""
        ended, was = children_ended(), self._ended_before
        left = [child for child in found if child.left]
        faults = ended.faults - was.faults - sum(child.faults for child in left)
        forked = {child.pid for child in found if child.forked and child.parent is None}
        forked -= {child.pid for child in before}
        return faults <= len(left) * _LEAVING_FAULTS and ended.forks - was.forks <= len(forked)


def _memory_of(child: ChildProcess) -> _ChildMemory:
    if not child.forked:
        return _ChildMemory(child.current_bytes)
    if child.shares is not None and child.is_walked:
        return _ChildMemory(child.shares.private_bytes, child.shares)
    return _ChildMemory(child.at_least_bytes, child.shares, fresh=False)


def _usage_of(
    child: ChildProcess, peak: Peak | None, before: _ChildMemory | None, after: _ChildMemory | None
) -> ChildUsage:
    """Return what one child used; it has no `peak` if it was born after the peaks were read."""
    last = after
    if child.left:  # as if it lived still
        own_bytes = child.shares.private_bytes if child.shares else 0
        last = _ChildMemory(own_bytes, shares=child.shares, fresh=child.shares is not None)
    ends_bytes = [held.own_bytes for held in (before, last) if held is not None]
    peak = peak or Peak.within(child.high_bytes, child.high_bytes)
    lo_bytes, hi_bytes = _unshared(child, peak, before, last)
    lo_bytes = max(lo_bytes, 0, *ends_bytes)
    if last is None:
        hi_bytes = None
    return ChildUsage(
        before.own_bytes if before else 0,
        after.own_bytes if after else 0,
        Peak.within(lo_bytes, hi_bytes and max(lo_bytes, hi_bytes), child.precision_bytes),
        child.name,
        child.pid,
        ended=after is None,
    )


def _unshared(
    child: ChildProcess, peak: Peak, before: _ChildMemory | None, after: _ChildMemory | None
) -> tuple[int, int | None]:
    """Return the bounds of the peak of a child; of a forked one without what it shared.

    The anonymous memory that it inherited only becomes less while it lives, unless it forks itself. The files
    and shared memory that it has in common with others are taken as at the two ends.
    """
    if not child.forked:
        return peak.lo_bytes, peak.hi_bytes
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


def _is_at_least(before: _ChildMemory | None, after: _ChildMemory | None) -> bool:
    """Return whether more than a little of a child's memory at an end may not be counted."""
    if after is not None and not after.fresh:
        return True
    if before is None or before.fresh:
        return False
    if before.shares is None or after is None or after.shares is None:
        return True
    return before.shares.shared_bytes - after.shares.shared_bytes > _NEARLY_BYTES


def largest_first(found: Iterable[ChildUsage]) -> list[ChildUsage]:
    """Return the children by what they needed; after those that needed much, by what they have."""

    def rank(one: ChildUsage) -> tuple[int, int, int]:
        needed_bytes = one.needed_bytes if one.needed_bytes >= _SMALL_BYTES else 0
        return -needed_bytes, -one.peak.lo_bytes, one.pid

    return sorted(found, key=rank)
