"""The peaks of child processes, and what forked ones share.

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
    from collections.abc import Iterable

    from ..sources.system.forked import Card
    from .children import Children
    from .machine import Machine

NEARLY_BYTES = MB  # if what children share is known as well as that, nothing is said
_STILL_BYTES = 2**20  # the pages that this process may change before those of its forks are walked again


class SharedBounds(NamedTuple):
    """What forked children have in common, each page counted once; no upper bound if that is None."""

    lo_bytes: int
    hi_bytes: int | None

    @property
    def is_known(self) -> bool:
        """Whether the bounds are so close that nothing is said of them."""
        return self.hi_bytes is not None and self.hi_bytes - self.lo_bytes < NEARLY_BYTES


class ChildPeaks:
    """Every descendant of this process, with the tracker of its peaks.

    Some of them measure themselves, such as the workers of a local cluster, and reset their own marks. Here
    those are left alone, as a reset in the middle of such a measurement loses its peak. So what these
    processes need within a scope of this one is known as a lower bound only.
    """

    def __init__(self, on: Machine) -> None:
        self._on, self._descendants = on, Descendants()
        self._measuring_themselves: set[int] = set()  # process ids
        self._trackers: dict[ChildProcess, PeakTracker] = {}
        self._lock = threading.RLock()
        self._own = 0, 0  # page faults and size of this process when its forks were last walked anew
        self._walked: object = None  # what changes with the memory that the forks may share
        self._shared = SharedBounds(0, 0)  # as of then

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
                total_bytes = sum(map(at_least_bytes, living))
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
                if not child.is_seen_from_its_start(self._earlier(child)):
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

    def _earlier(self, child: ChildProcess) -> ChildProcess | None:
        """Return what had the pid of a child before it called exec, as far as that is known."""
        for one in self._trackers:
            if one.pid == child.pid:
                return one
        card = forks.cards().get(child.pid)
        return None if card is None else ChildProcess(child.pid, None, card)

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
            elif _is_alive(card):
                continue
            forks.forget(pid)

    def walk(self, living: Iterable[ChildProcess], limit_s: float) -> SharedBounds:
        """Find the private memory of forks, unless nothing changed; return bounds of what they share.

        Where the time was too short for all of them and nothing changed since, the rest follows.
        """
        families: dict[ChildProcess | None, list[ChildProcess]] = {}  # by the program; None is this process
        for child in living:
            if child.forked:
                root = child.parent
                while root is not None and root.forked:
                    root = root.parent
                families.setdefault(root, []).append(child)
        if not families:
            return SharedBounds(0, 0)
        forked = [child for family in families.values() for child in family]
        still = self._own_state(), [root and root.state for root in families]
        if self._walked != (still, _walks(forked)):
            for child in forked:
                child.forget_walk()
        elif all(child.is_walked for child in forked) and (self._shared.lo_bytes or self._shared.is_known):
            return self._shared
        for child in sorted(forked, key=lambda child: child.current_bytes):
            limit_s -= child.walk_s()
            if limit_s >= 0:
                with suppress(OSError, ValueError, Unavailable):  # it ended, or that is not allowed
                    child.walk()
        each = [_shared_by(root, family, limit_s) for root, family in families.items()]
        highest_bytes = [one.hi_bytes for one in each if one.hi_bytes is not None]
        hi_bytes = sum(highest_bytes) if len(highest_bytes) == len(each) else None
        self._shared = SharedBounds(sum(one.lo_bytes for one in each), hi_bytes)
        self._walked = still, _walks(forked)  # last: after an interrupt they are walked again
        return self._shared

    def _own_state(self) -> object:
        """Return what changes as soon as this process may have changed more than a little of its memory."""
        try:
            faults, size_bytes = sum(linux.faults_and_mark()[0]), linux.resident_bytes()
        except (OSError, ValueError):
            return object()
        was_faults, was_bytes = self._own
        if abs(size_bytes - was_bytes) + (faults - was_faults) * linux.PAGE_BYTES > _STILL_BYTES:
            self._own = faults, size_bytes
        return self._own


def _walks(forked: list[ChildProcess]) -> object:
    """Return what changes with a fork: more than a little in one that was walked, anything in the others."""
    return {child: child.is_walked or child.state for child in forked}


def at_least_bytes(child: ChildProcess) -> int:
    """Return what a child surely has for itself, without a walk: what it inherited only becomes less."""
    if not child.forked:
        return child.current_bytes
    if child.shares is not None:
        more_bytes = max(0, child.mapped_bytes - child.shares.mapped_bytes)
        return max(0, child.current_bytes - child.shares.shared_bytes - more_bytes)
    return max(0, child.current_bytes - child.mapped_bytes - (child.inherited_bytes or 0))


def _shared_by(root: ChildProcess | None, family: list[ChildProcess], limit_s: float) -> SharedBounds:
    """Return bounds of what the forks of one program share with each other, but not with the program.

    A page that n processes share counts for each of them as 1/n of its size (Pss). Summed over a program and
    all its forks each page counts once: without what the program has, it is what its forks have. Where a walk
    of the program would take too long, it is at most what the forks share in proportion.
    """
    if len(family) < 2:
        return SharedBounds(0, 0)
    walked = [child.shares for child in family if child.shares is not None and child.is_walked]
    known_bytes, in_proportion_bytes = 0, 0
    for one in walked:  # the peaks of the others include what they share
        if one.anonymous_pss_bytes is None:
            return SharedBounds(0, None)
        in_proportion_bytes += one.anonymous_pss_bytes - one.private_anonymous_bytes
    shmem_bytes = sum(one.shmem_bytes for one in walked)
    with suppress(OSError, ValueError):
        current_bytes = linux.resident_bytes() if root is None else root.current_bytes
        if len(walked) == len(family) and current_bytes * WALK_S_PER_BYTE <= limit_s:
            program = sharing(linux.rollup_bytes(os.getpid() if root is None else root.pid), 0)
            in_proportion_bytes += (program.anonymous_pss_bytes or 0) - program.anonymous_bytes
            known_bytes = max(0, in_proportion_bytes)
    return SharedBounds(known_bytes, max(0, in_proportion_bytes + shmem_bytes))


def _is_alive(card: Card) -> bool:
    """Return whether the child of a card may still say something; one that was killed does not."""
    try:
        return linux.read(f"/proc/{card['pid']}/stat").rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (OSError, IndexError):
        return False
