"""The peaks of child processes: each has a counter and a tracker of its own, shared by all open scopes.

The kernel keeps one high-water mark for each process, and every scope wants its own peak. So a `PeakTracker`
does for each child what another does for this process: it folds each reading into every open scope, and it
alone resets the mark.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ..sources import Unavailable, procfs, rusage
from ..sources.children import forks
from .peaks import PeakTracker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..sources.child_process import ChildProcess
    from ..sources.process import Process
    from .children import Children
    from .families import Among, Families

_STILL_BYTES = 2**20  # the pages that this process may change before those of its forks are walked again


class ChildPeaks:
    """Every descendant of this process, with the tracker of its peaks.

    Some of them measure themselves, such as the workers of a local cluster, and reset their own marks. Here
    those are left alone, as a reset in the middle of such a measurement loses its peak. So what these
    processes need within a scope of this one is known as a lower bound only.
    """

    def __init__(self, process: Process, open_scopes: Callable[[], Iterable[Children]]) -> None:
        """Prepare; nothing is read before `look`.

        Args:
            process: Which children there are.
            open_scopes: Returns the part of every open scope that is about children.
        """
        self._descendants, self._open_scopes = process.descendants, open_scopes
        self._measuring_themselves: set[int] = set()  # process ids
        self._trackers: dict[ChildProcess, PeakTracker] = {}
        self._lock = threading.RLock()
        self._forks_seen = 0
        self._families: Families | None = None
        self._stand = 0, 0  # page faults and size of this process when its forks were last walked anew

    def look(self, opening: Children | None = None, *, reset: bool = True) -> list[ChildProcess] | None:
        """Read every descendant, and fold the reading into the open scopes.

        Args:
            opening: A scope that opens now: it gets an interval of each.
            reset: Whether it may reset their high-water marks.

        Returns:
            Those that live; None where the kernel does not list children.
        """
        with self._lock:
            found: dict[ChildProcess, PeakTracker] = {}
            new: list[ChildProcess] = []

            def read(child: ChildProcess) -> None:
                tracker = self._trackers.get(child)
                if tracker is None:
                    tracker = self._tracker_of(child)
                    new.append(child)
                if opening is not None:
                    measures_itself = child.pid in self._measuring_themselves
                    interval = tracker.open(reset=reset and not measures_itself)
                    if measures_itself:
                        interval.give_up()
                    opening.begins(child, interval)
                else:
                    tracker.look()
                found[child] = tracker

            living = self._descendants.visit(read)
            self._trackers = {child: found[child] for child in living or ()}
            if new:
                self._inherit([child for child in new if child in found])
            if living:
                total_bytes = sum(map(self.at_least_bytes, living))
                for scope in self._open_scopes():
                    scope.seen(total_bytes)
            return living

    def leave_alone(self, pid: int) -> None:
        """Leave the mark of a child to itself from now on, because it measures itself."""
        with self._lock:
            self._measuring_themselves.add(pid)
            for scope in self._open_scopes():
                for child, interval in tuple(scope.intervals.items()):
                    if child.pid == pid:
                        interval.give_up()

    def measure_again(self, pids: Iterable[int]) -> None:
        """Measure children whose marks were left alone."""
        with self._lock:
            self._measuring_themselves.difference_update(pids)

    def _tracker_of(self, child: ChildProcess) -> PeakTracker:
        """Return the tracker of a new child, which was born within every scope that is open already.

        Raises:
            Unavailable: It has ended.
        """
        tracker, life = PeakTracker(child), None
        for scope in self._open_scopes():
            life = life or tracker.adopt()
            scope.born(child, life)
        return tracker

    def walk(self, living: Iterable[ChildProcess], limit_s: float, *, again: bool) -> Among | None:
        """Find what the forked ones share, those first that take the least time, as far as there is time.

        Args:
            living: Those that live.
            limit_s: The time, with pages of 4 kB on a machine that does nothing else.
            again: Also of those of which it was found before, unless nothing changed since.

        Returns:
            What they share with each other; None if none is forked.
        """
        forked = [child for child in living if child.forked]
        if not forked:
            return None
        from .families import Families, families  # most notebooks have no child

        if self._families is None:
            self._families = Families()
        groups = families(forked)
        forgotten = self._families.prepare(groups, again=again)
        new = [child for child in forked if again or child.shares is None or child in forgotten]
        if new and self._moved_since_walk():
            for child in forked:
                child.forget_walk()
        for child in sorted(new, key=lambda child: child.walk_s()):
            took_s = child.walk_s()
            if took_s > limit_s:
                break
            limit_s -= took_s
            try:
                child.walk()
            except (OSError, ValueError, Unavailable):  # it ended meanwhile, or that is not allowed
                continue
        return self._families.find(groups, limit_s, self._stand)

    def _moved_since_walk(self) -> bool:
        """Return whether this process may have changed more than a little of what its forks share."""
        try:
            faults, size_bytes = sum(rusage.faults_and_mark()[0]), procfs.resident_bytes()
        except (OSError, ValueError):
            return True
        was_faults, was_bytes = self._stand
        if abs(size_bytes - was_bytes) + (faults - was_faults) * rusage.PAGE_BYTES <= _STILL_BYTES:
            return False
        self._stand = faults, size_bytes
        return True

    def _inherit(self, new: Iterable[ChildProcess]) -> None:
        """Note what children that were seen for the first time share at most with their parent.

        What this process had resident when it forked; without a fork by Python code it is unknown.
        """
        count, largest_bytes = forks.taken()
        direct = [child for child in new if child.parent is None and child.forked]
        if largest_bytes and 0 < len(direct) <= count - self._forks_seen:
            for child in direct:
                child.inherited_bytes = largest_bytes
        self._forks_seen = count
        for child in new:
            if child.parent is not None and child.forked:
                child.inherited_bytes = child.parent.high_bytes

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
