"""The child processes of this process within one scope: what they use at its ends, and their peaks.

Of a program of its own everything counts. A forked child shares pages with the process that forked it, and
those count for the latter. The kernel's mark includes them. So what was shared, as found at both ends of the
scope, is subtracted from the mark. Where that is not known exactly, the peak is bounded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ..records import ChildrenUsage, ChildUsage, Peak
from ..records.units import MB
from ..sources import Unavailable
from ..sources.system.forked import forks
from ..sources.system.process import children_ended

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..sources.system.child_process import ChildProcess
    from ..sources.system.forked import Sharing
    from ..sources.system.process import Ended
    from .child_peaks import SharedBounds
    from .machine import Machine
    from .peaks import Interval

LARGEST = 4  # children that are named
_NEEDED_BYTES = 5 * MB  # those that needed so much come first
# Finding out what forked children share may take so long: as the scope opens, of those of which nothing is
# known yet; at its end, of those that changed, as long again for each, or a twentieth of the scope's time.
WALK_S = 0.005
_WALK_SHARE, _WALK_MOST_S, _SHORT_S = 0.05, 0.05, 0.05
_NEARLY_BYTES = MB  # if what a child shares is known as well as that, nothing is said
# Children that ended are reported if they mapped so many pages together, even if an earlier one was larger.
_NOTABLE_FAULTS = 4096
_LEAVING_FAULTS = 256  # a child that left its figures maps no more pages than that until it ends


class _ChildMemory(NamedTuple):
    """What one child has at an end of the scope."""

    own_bytes: int  # resident, without what it shares if it is forked
    shares: Sharing | None = None  # None for a program of its own, and where it was not found out
    fresh: bool = True  # False if it is what it shared before, which was more rather than less


class Children:
    """The children from the opening of a scope to its end.

    Attributes:
        any_before: Whether there was any child as the scope opened.
        intervals: The interval of each child that was seen; empty once they are final.
        together_bytes: The most that all of them were seen to have at once.
        ended: Whether their peaks are final.
    """

    def __init__(self, on: Machine, *, reset: bool = True) -> None:
        """Record their memory now, and begin the peaks of each; `reset` their marks, if that may be."""
        self._on = on
        self.intervals: dict[ChildProcess, Interval] = {}
        self.together_bytes, self.ended = 0, False
        self._final: dict[ChildProcess, Peak] = {}  # the peaks at the end of the scope
        self._ended_before = children_ended()
        self.any_before = bool(forks.living) or self._ended_before.more
        self._before: dict[ChildProcess, _ChildMemory] | None = {}
        self._states: dict[ChildProcess, object] = {}  # as the scope opened
        self._shared: SharedBounds | None = None  # by forked ones with each other, as the scope opened
        if self.any_before:
            living = on.child_peaks.observe(self, reset=reset)
            if living is None:
                self._before = None
            else:
                self._states = {child: child.state for child in living}
                self._before, self._shared = self._held(living, WALK_S, again=False)

    def close(self) -> None:
        """Read the final peaks of those that are known; closing again changes nothing.

        Of one that is seen later, the whole life lies within the scope.
        """
        if not self.ended and (self.intervals or self._has_any()):
            self._on.child_peaks.observe()
            self._final, self.ended = self._resident_peaks(), True
            self.intervals = {}  # nothing is folded into them any more

    def usage(self, own: Interval, time_s: float) -> ChildrenUsage | None:
        """Return what they used beside this process's own; None if there were none, or none are listed."""
        before, living = self._before, self._on.child_peaks.observe() if self._has_any() else []
        resident = self._final or (self._resident_peaks() if self.intervals else {})
        ended = children_ended(more=False)  # only those before the scope matter
        if before is None or living is None:
            return None
        record_bytes = self._ended_bytes(ended, own)
        faults = ended.faults - self._ended_before.faults
        notable = faults >= _NOTABLE_FAULTS
        if not (resident or living or notable) and record_bytes < MB:
            return None
        from .child_peaks import is_small, most_at_once, one_moved  # most notebooks have no child

        limit_s = WALK_S
        if time_s >= _SHORT_S:
            limit_s = min(max(WALK_S * (1 + len(living)), _WALK_SHARE * time_s), _WALK_MOST_S)
        after, shared = self._held(living, limit_s, again=True) if living else ({}, None)
        found = {
            child: self._one(child, resident.get(child), before.get(child), after.get(child))
            for child in dict.fromkeys((*before, *resident, *after))
        }
        shown = [usage for child, usage in found.items() if not (child.left and is_small(usage))]
        if not (before or living or shown or notable) and record_bytes < MB:
            return None
        before_bytes, after_bytes = _sum_bytes(before, self._shared), _sum_bytes(after, shared)
        gone_count = len({child.pid for child in found} - {child.pid for child in after})
        ended_count = self._ended_count(ended, before, after, found)
        left = [child for child in found if child.left]
        faults -= sum(child.faults for child in left)
        all_seen = ended_count == gone_count and faults <= len(left) * _LEAVING_FAULTS
        lo_bytes = max(before_bytes, after_bytes, record_bytes, self.together_bytes, one_moved(found))
        most_bytes = most_at_once(found) if all_seen else None
        at_least = any(_is_at_least(before.get(child), after.get(child)) for child in found)
        at_least = at_least or not (shared is None or shared.is_known)
        hi_bytes, precision_bytes = None, 0
        if most_bytes is not None and (shared is None or shared.hi_bytes is not None):
            hi_bytes = max(lo_bytes, most_bytes + self._more_bytes(after, shared))
            precision_bytes = sum(child.precision_bytes for child in found)
        forked = [held for child, held in after.items() if child.forked]
        return ChildrenUsage(
            before_bytes,
            after_bytes,
            Peak.within(lo_bytes, hi_bytes, precision_bytes),
            count=len(after),
            at_least=at_least,
            ended=ended_count if all_seen else max(1, ended_count),
            shared_bytes=_shared_bytes(forked),
            largest=self._with_gpu(_largest(shown)),
        )

    def _has_any(self) -> bool:
        """Return whether there is any child, or one that ended and left its figures."""
        return bool(forks.living) or self._on.process.has_children()

    def _more_bytes(self, after: dict[ChildProcess, _ChildMemory], shared: SharedBounds | None) -> int:
        """Return what the sum of the children's peaks has less than their peak together can have.

        What they share was subtracted from each peak, but for one that forks: its own may be shared since.
        """
        if shared is None or shared.hi_bytes is None:
            return 0
        if not all(held.fresh for held in after.values()):
            return shared.hi_bytes
        left_bytes = sum(
            held.shares.inherited_bytes
            for child, held in after.items()
            if held.shares and child.children and not self._is_idle(child)
        )
        return shared.hi_bytes - left_bytes

    def _is_idle(self, child: ChildProcess) -> bool:
        """Return whether a child mapped and freed nothing within the scope."""
        return child in self._states and self._states[child] == child.state

    def _with_gpu(self, largest: tuple[ChildUsage, ...]) -> tuple[ChildUsage, ...]:
        """Return the same children with what they hold on the devices, where the driver lists it."""
        held_bytes = self._on.ledger.held_by([child.pid for child in largest if not child.ended])
        if not held_bytes:
            return largest
        return tuple(replace(child, gpu_bytes=held_bytes.get(child.pid)) for child in largest)

    def _resident_peaks(self) -> dict[ChildProcess, Peak]:
        return {child: interval.peak() for child, interval in dict(self.intervals).items()}

    def _held(
        self, living: list[ChildProcess], limit_s: float, *, again: bool
    ) -> tuple[dict[ChildProcess, _ChildMemory], SharedBounds | None]:
        """Return what each child has now, and what the forked ones share, as far as there is time."""
        shared = self._on.child_peaks.walk(living, limit_s, again=again)
        return {child: self._held_by(child) for child in living}, shared

    def _held_by(self, child: ChildProcess) -> _ChildMemory:
        if not child.forked:
            return _ChildMemory(child.current_bytes)
        if child.shares is not None and child.is_walked:
            return _ChildMemory(child.shares.private_bytes, child.shares)
        own_bytes = self._on.child_peaks.at_least_bytes(child)
        if child.shares is None and not own_bytes:
            own_bytes = max(0, child.current_bytes - self._inherited_bytes(child))
        return _ChildMemory(own_bytes, child.shares, fresh=False)

    def _one(
        self,
        child: ChildProcess,
        resident: Peak | None,
        before: _ChildMemory | None,
        after: _ChildMemory | None,
    ) -> ChildUsage:
        """Return what one child used; it has no `resident` peak if it was born after the peaks were read."""
        last = after
        if child.left:  # as if it lived still
            own_bytes = child.shares.private_bytes if child.shares else 0
            last = _ChildMemory(own_bytes, child.shares, fresh=child.shares is not None)
        ends_bytes = [held.own_bytes for held in (before, last) if held is not None]
        if resident is None:
            resident = Peak.within(child.high_bytes, child.high_bytes)
        lo_bytes, hi_bytes = resident.lo_bytes, resident.hi_bytes
        if child.forked:
            lo_bytes, hi_bytes = self._unshared(child, resident, before, last)
        lo_bytes = max(lo_bytes, 0, *ends_bytes)
        if last is None:
            hi_bytes = None
        elif child.forked and last.fresh and after and self._is_idle(child):
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
        self, child: ChildProcess, resident: Peak, before: _ChildMemory | None, after: _ChildMemory | None
    ) -> tuple[int, int | None]:
        """Return the peak of a forked child without what it shared.

        The anonymous memory that it inherited only becomes less while it lives, unless it forks itself. The
        files and shared memory that it has in common with others are taken as at the two ends.
        """
        walked = [held.shares for held in (before, after) if held is not None and held.shares is not None]
        mapped = [shares.shared_bytes - shares.inherited_bytes for shares in walked]
        inherited = [shares.inherited_bytes for shares in walked]
        if before is None or before.shares is None:
            inherited.append(self._inherited_bytes(child))
        lo_bytes = resident.lo_bytes - max(inherited) - max(mapped, default=child.mapped_bytes)
        hi_bytes = resident.hi_bytes
        if hi_bytes is not None and after and after.shares and after.fresh and not child.children:
            hi_bytes -= after.shares.inherited_bytes
            if before is not None and before.shares is not None:
                hi_bytes -= min(mapped)
        return lo_bytes, hi_bytes

    def _inherited_bytes(self, child: ChildProcess) -> int:
        """Return the most that a forked child can have inherited."""
        if child.inherited_bytes is not None:
            return child.inherited_bytes
        try:
            return self._on.ram.lifetime_peak_bytes()
        except Unavailable:
            return child.high_bytes

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
        gone_born = len(gone - gone_before)
        born = sum(1 for child in after - before if child.parent is None)
        return len(gone_before) + max(gone_born, ended.forks - self._ended_before.forks - born)

    def _ended_bytes(self, ended: Ended, own: Interval) -> int:
        """Return a lower bound of the unshared memory of the largest child that ended within the scope.

        The kernel keeps the highest peak of all children so far. It includes what a child was before its
        exec, when it was as large as this process. So only what exceeds that is certainly the child's own.
        """
        was = self._ended_before
        if ended.largest_bytes <= was.largest_bytes:
            return 0
        try:  # a child that was there before the scope may have been forked when this process was larger
            ours_bytes = self._on.ram.lifetime_peak_bytes() if was.more else own.peak().hi_bytes
            if ours_bytes is None:
                return 0
            ours_bytes += self._on.process.counter.precision_bytes
        except Unavailable:
            return 0
        if ended.largest_bytes <= ours_bytes:
            return 0
        forked = was.more or ended.forks != was.forks  # such a child may share our memory to its end
        return ended.largest_bytes - ours_bytes if forked else ended.largest_bytes


def _sum_bytes(held: dict[ChildProcess, _ChildMemory], shared: SharedBounds | None) -> int:
    return sum(one.own_bytes for one in held.values()) + (shared.lo_bytes if shared else 0)


def _is_at_least(before: _ChildMemory | None, after: _ChildMemory | None) -> bool:
    """Return whether more than a little of a child's memory at an end may not be counted."""
    if after is not None and not after.fresh:
        return True
    if before is None or before.fresh:
        return False
    if before.shares is None or after is None or after.shares is None:
        return True
    return before.shares.shared_bytes - after.shares.shared_bytes > _NEARLY_BYTES


def _shared_bytes(forked: list[_ChildMemory]) -> int | None:
    """Return what forked children share, in proportion; None if that was not read of all of them."""
    if not forked or not all(held.fresh for held in forked):
        return None
    return sum(held.shares.proportional_bytes for held in forked if held.shares is not None)


def _largest(found: Iterable[ChildUsage]) -> tuple[ChildUsage, ...]:
    """Return the children that needed the most; after those that needed much, those that have the most."""

    def rank(one: ChildUsage) -> tuple[int, int, int]:
        needed_bytes = one.needed_bytes if one.needed_bytes >= _NEEDED_BYTES else 0
        return -needed_bytes, -one.peak.lo_bytes, one.pid

    return tuple(sorted(found, key=rank)[:LARGEST])
