"""The peaks of child processes, and what forked ones share.

A page that n processes share counts for each of them as 1/n of its size (Pss). Summed over a program and all
its forks that gives each page once. Without what the program itself has, it is what its forks have.

The kernel keeps one high-water mark for each process, and every scope wants its own peak. So a `PeakTracker`
does for each child what another does for this process: it folds each reading into every open scope, and it
alone resets the mark.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from ..records.units import MB
from ..sources import Unavailable
from ..sources.system import linux
from ..sources.system.child_process import ChildProcess, Descendants
from ..sources.system.forked import WALK_S_PER_BYTE, forks, sharing
from .peaks import PeakTracker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ..records import ChildUsage
    from ..sources.system.forked import Card, Sharing
    from ..sources.system.process import Process
    from .children import Children

_SMALL_BYTES = 5 * MB  # of so much that ended within the scope nothing is said, as of `!echo hi`
NEARLY_BYTES = MB  # if what children share is known as well as that, nothing is said


class SharedBounds(NamedTuple):
    """What forked children have in common, each page counted once; no upper bound if that is None."""

    lo_bytes: int
    hi_bytes: int | None

    @property
    def is_known(self) -> bool:
        """Whether the bounds are so close that nothing is said of them."""
        return self.hi_bytes is not None and self.hi_bytes - self.lo_bytes < NEARLY_BYTES


NOTHING = SharedBounds(0, 0)


def is_small(usage: ChildUsage) -> bool:
    """Return whether a child had little more than what every fork copies."""
    return max(usage.before_bytes, usage.peak.lo_bytes) < _SMALL_BYTES


def most_at_once(found: dict[ChildProcess, ChildUsage]) -> int | None:
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


def one_moved(found: dict[ChildProcess, ChildUsage]) -> int:
    """Return the most that all certainly had at once: one at its peak, and those that did not move."""
    still_bytes, moved_bytes = 0, 0
    for child in found.values():
        lo_bytes, hi_bytes = child.peak.lo_bytes, child.peak.hi_bytes
        if not child.ended and child.before_bytes == child.after_bytes == lo_bytes == hi_bytes:
            still_bytes += lo_bytes
        else:
            moved_bytes = max(moved_bytes, lo_bytes)
    return still_bytes + moved_bytes


def families(children: Iterable[ChildProcess]) -> dict[ChildProcess | None, list[ChildProcess]]:
    """Return the forked children by the program that all of them come from; None is this process."""
    found: dict[ChildProcess | None, list[ChildProcess]] = {}
    for child in children:
        if child.forked:
            root = child.parent
            while root is not None and root.forked:
                root = root.parent
            found.setdefault(root, []).append(child)
    return found


def without_program(members: Sequence[Sharing], count: int) -> SharedBounds:
    """Return bounds of what `count` forks share, without a walk of the pages of their program.

    A page of the program counts at least 1/(n+1) with n forks, one of n forks alone at least 1/n. So what
    the proportional shares of those that were walked exceed the former by bounds what is not the program's.
    """
    if count < 2:
        return NOTHING
    proportional_bytes = excess_bytes = 0.0
    for one in members:
        if one.anonymous_pss_bytes is None:
            return SharedBounds(0, None)
        private_bytes = max(0, one.private_anonymous_bytes - one.shmem_bytes)
        share_bytes = max(0, one.anonymous_pss_bytes - private_bytes)
        proportional_bytes += share_bytes
        excess_bytes += max(0.0, share_bytes - (one.anonymous_bytes - private_bytes) / (count + 1))
    return SharedBounds(0, int(min(proportional_bytes, excess_bytes * count * (count + 1) / 2)))


def with_program(members: Sequence[Sharing], program: Sharing) -> SharedBounds:
    """Return what forks share, with the pages of the program that they come from."""
    most = without_program(members, len(members))
    if most.hi_bytes is None or program.anonymous_pss_bytes is None:
        return most
    sum_bytes = program.anonymous_pss_bytes - program.anonymous_bytes
    sum_bytes += sum((one.anonymous_pss_bytes or 0) - one.private_anonymous_bytes for one in members)
    hi_bytes = min(most.hi_bytes, max(0, sum_bytes + sum(one.shmem_bytes for one in members)))
    return SharedBounds(min(max(0, sum_bytes), hi_bytes), hi_bytes)


class Families:
    """Remembers whose walks still hold, and what was found with the pages of the programs that forked."""

    def __init__(self) -> None:
        self._roots: dict[ChildProcess | None, object] = {}  # what changes with the memory of each program
        self._members: set[ChildProcess] = set()
        self._share = False  # whether the forks may share pages with each other only
        self._found: dict[ChildProcess | None, tuple[object, SharedBounds]] = {}

    def forget_stale(
        self, groups: Mapping[ChildProcess | None, Sequence[ChildProcess]], own_state: object
    ) -> bool:
        """Forget all walks if pages may be shared with others than before, without their owner having run.

        `own_state` changes with the memory of this process.
        """
        members = {child for group in groups.values() for child in group}
        nested = any(child.parent is not root for root, group in groups.items() for child in group)
        ran = members != self._members or not all(child.is_walked for child in members)
        roots = {root: own_state if root is None else root.state for root in groups}
        stale = any(self._roots.get(root, state) != state for root, state in roots.items())
        stale = stale or ((nested or self._share) and ran)
        self._roots, self._members, self._share = roots, members, nested
        if stale:
            for child in members:
                child.forget_walk()
        return stale

    def find(
        self, groups: Mapping[ChildProcess | None, Sequence[ChildProcess]], limit_s: float
    ) -> SharedBounds:
        """Return what all forks share with each other; walks of the programs' pages may take so long."""
        found, lo_bytes = {}, 0
        hi_bytes: int | None = 0
        for root, members in groups.items():
            walked = [child.shares for child in members if child.shares is not None and child.is_walked]
            shared = without_program(walked, len(members))  # the peaks of others include what they share
            if len(walked) == len(members) and not shared.is_known:
                state: object = (self._roots[root], walked)
                was = self._found.get(root)
                if was is not None and was[0] == state:
                    shared = was[1]
                elif (program := _walk(root, limit_s)) is not None:
                    limit_s -= (program.private_bytes + program.shared_bytes) * WALK_S_PER_BYTE
                    shared = with_program(walked, program)
                found[root] = state, shared
            lo_bytes += shared.lo_bytes
            hi_bytes = None if hi_bytes is None or shared.hi_bytes is None else hi_bytes + shared.hi_bytes
        self._found = found
        result = SharedBounds(lo_bytes, hi_bytes)
        self._share = self._share or lo_bytes >= NEARLY_BYTES or not result.is_known
        return result


def _walk(root: ChildProcess | None, limit_s: float) -> Sharing | None:
    """Return how much memory a process shares; None if reading it would take too long, or fails."""
    try:
        current_bytes = linux.resident_bytes() if root is None else root.current_bytes
        if current_bytes * WALK_S_PER_BYTE > limit_s:
            return None
        return sharing(linux.rollup_bytes(os.getpid() if root is None else root.pid), 0)
    except (OSError, ValueError):
        return None


_STILL_BYTES = 2**20  # the pages that this process may change before those of its forks are walked again


class ChildPeaks:
    """Every descendant of this process, with the tracker of its peaks.

    Some of them measure themselves, such as the workers of a local cluster, and reset their own marks. Here
    those are left alone, as a reset in the middle of such a measurement loses its peak. So what these
    processes need within a scope of this one is known as a lower bound only.
    """

    def __init__(self, process: Process, open_scopes: Callable[[], Iterable[Children]]) -> None:
        """Prepare; `open_scopes` returns the part of every open scope that is about children."""
        self._descendants, self._open_scopes = Descendants(process.sampler_pid), open_scopes
        self._measuring_themselves: set[int] = set()  # process ids
        self._trackers: dict[ChildProcess, PeakTracker] = {}
        self._lock = threading.RLock()
        self._families = Families()
        self._state = 0, 0  # page faults and size of this process when its forks were last walked anew

    def observe(self, opening: Children | None = None, *, reset: bool = True) -> list[ChildProcess] | None:
        """Read every descendant, and fold the reading into the open scopes; return those that live.

        A scope that opens now gets an interval of each. None where the kernel does not list children.
        """
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
                    tracker.look()
                if child.forked and child.inherited_bytes is None and child.parent is not None:
                    child.inherited_bytes = child.parent.high_bytes
                found[child] = tracker

            living = self._descendants.visit(read)
            self._take_what_was_left(living or ())
            self._trackers = {child: found[child] for child in living or ()}
            if living:
                total_bytes = sum(map(self.at_least_bytes, living))
                for scope in self._open_scopes():
                    scope.together_bytes = max(scope.together_bytes, total_bytes)
            return living

    def leave_alone(self, pid: int) -> None:
        """Leave the mark of a child to itself from now on, because it measures itself."""
        with self._lock:
            self._measuring_themselves.add(pid)
            for scope in self._open_scopes():
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
        for scope in self._open_scopes():
            if life is None:
                life = tracker.adopt()
                if not child.is_seen_from_its_start(self._earlier(child)):
                    life.mark_sampled()
            if not scope.ended:
                scope.intervals[child] = life
        return tracker

    def _earlier(self, child: ChildProcess) -> ChildProcess | None:
        """Return what had the pid of a child before it called exec, as far as that is known."""
        for one in self._trackers:
            if one.pid == child.pid:
                return one
        card = forks.cards().get(child.pid)
        return None if card is None else ChildProcess(child.pid, None, card)

    def _take_what_was_left(self, living: Iterable[ChildProcess]) -> None:
        """Read the last figures of our forks that ended since the last look, seen alive or not."""
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
                    (self._trackers.get(child) or self._tracker_of(child)).look()
            elif _is_alive(card):
                continue
            forks.forget(pid)

    def walk(self, living: Iterable[ChildProcess], limit_s: float, *, again: bool) -> SharedBounds | None:
        """Find what the forked ones share with each other, in so much time; None if none is forked.

        `again`: also of those of which it was found before, unless nothing changed since.
        """
        forked = [child for child in living if child.forked]
        if not forked:
            return None
        groups = families(forked)
        again = self._families.forget_stale(groups, self._own_state()) or again
        new = [child for child in forked if again or child.shares is None]
        for child in sorted(new, key=lambda child: child.walk_s()):
            took_s = child.walk_s()
            if took_s > limit_s:
                break
            limit_s -= took_s
            try:
                child.walk()
            except (OSError, ValueError, Unavailable):  # it ended meanwhile, or that is not allowed
                continue
        return self._families.find(groups, limit_s)

    def _own_state(self) -> object:
        """Return what changes as soon as this process may have changed more than a little of its memory."""
        try:
            faults, size_bytes = sum(linux.faults_and_mark()[0]), linux.resident_bytes()
        except (OSError, ValueError):
            return object()
        was_faults, was_bytes = self._state
        if abs(size_bytes - was_bytes) + (faults - was_faults) * linux.PAGE_BYTES > _STILL_BYTES:
            self._state = faults, size_bytes
        return self._state

    @staticmethod
    def at_least_bytes(child: ChildProcess) -> int:
        """Return what a child surely has for itself, without a walk of its pages.

        What it inherited and still shares only becomes less, unless it forks. Of files and shared memory it
        may have more in common with others than at the last walk.
        """
        if not child.forked:
            return child.current_bytes
        if child.shares is not None:
            more_bytes = max(0, child.mapped_bytes - child.shares.mapped_bytes)
            return max(0, child.current_bytes - child.shares.shared_bytes - more_bytes)
        if child.inherited_bytes is None:
            return 0
        return max(0, child.current_bytes - child.mapped_bytes - child.inherited_bytes)


def _is_alive(card: Card) -> bool:
    """Return whether the child of a card may still say something; one that was killed does not."""
    try:
        return linux.read(f"/proc/{card['pid']}/stat").rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (OSError, IndexError):
        return False
