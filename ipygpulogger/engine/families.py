"""What forked children share with each other and not with the program that forked them: it counts once.

A page that n processes share counts for each of them as 1/n of its size (Pss). Summed over a program and all
its forks that gives each page once. Without what the program itself has, it is what its forks have.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from ..records.units import MB
from ..sources import procfs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..sources.child_process import ChildProcess, Sharing

NEARLY_BYTES = MB  # if what children share is known as well as that, nothing is said


class Among(NamedTuple):
    """The bounds of what forked children have in common, each page counted once; no upper one if it is None.

    Attributes:
        lo_bytes: At least.
        hi_bytes: At most.
    """

    lo_bytes: int
    hi_bytes: int | None

    @property
    def is_known(self) -> bool:
        """Whether the bounds are so close that nothing is said of them."""
        return self.hi_bytes is not None and self.hi_bytes - self.lo_bytes < NEARLY_BYTES


NOTHING = Among(0, 0)


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


def without_program(members: Sequence[Sharing], count: int) -> Among:
    """Return bounds of what forks share, without a walk of the pages of the program that they come from.

    A page of the program counts at least 1/(n+1) with n forks, one of n forks alone at least 1/n. So what
    their proportional shares exceed the former by bounds what is not the program's.

    Args:
        members: Of each fork whose pages were walked.
        count: How many forks there are.
    """
    if count < 2:
        return NOTHING
    proportional_bytes = excess_bytes = 0.0
    for one in members:
        if one.anonymous_pss_bytes is None:
            return Among(0, None)
        private_bytes = max(0, one.private_anonymous_bytes - one.shmem_bytes)
        share_bytes = max(0, one.anonymous_pss_bytes - private_bytes)
        proportional_bytes += share_bytes
        excess_bytes += max(0.0, share_bytes - (one.anonymous_bytes - private_bytes) / (count + 1))
    return Among(0, int(min(proportional_bytes, excess_bytes * count * (count + 1) / 2)))


def with_program(members: Sequence[Sharing], program: Sharing) -> Among:
    """Return what forks share, with the pages of the program that they come from."""
    most = without_program(members, len(members))
    if most.hi_bytes is None or program.anonymous_pss_bytes is None:
        return most
    sum_bytes = program.anonymous_pss_bytes - program.anonymous_bytes
    sum_bytes += sum((one.anonymous_pss_bytes or 0) - one.private_anonymous_bytes for one in members)
    hi_bytes = min(most.hi_bytes, max(0, sum_bytes + sum(one.shmem_bytes for one in members)))
    return Among(min(max(0, sum_bytes), hi_bytes), hi_bytes)


class _Found(NamedTuple):
    """What was found of one family, and when.

    Attributes:
        states: What each fork shared when its pages were last walked.
        program: The state of their program.
        among: What they share.
        all_walked: Whether the pages of all of them were.
    """

    states: Mapping[ChildProcess, Sharing | None]
    program: object
    among: Among
    all_walked: bool


class Families:
    """What forks share, kept from one scope to the next for each program that they come from."""

    def __init__(self) -> None:
        """Begin with nothing known."""
        self._found: dict[ChildProcess | None, _Found] = {}

    def prepare(
        self, groups: Mapping[ChildProcess | None, Sequence[ChildProcess]], *, again: bool
    ) -> set[ChildProcess]:
        """Forget walks of those that may share their pages with others than before, without having run.

        Args:
            groups: The forks of each program.
            again: Also because others of the family ran, not only because some began or ended.

        Returns:
            Those whose walks were forgotten.
        """
        forgotten: set[ChildProcess] = set()
        for root, members in groups.items():
            was = self._found.get(root)
            if was is None or (len(members) < 2 and len(was.states) < 2):
                continue
            nested = any(child.parent is not root for child in members)
            common = nested or was.among.lo_bytes >= NEARLY_BYTES
            changed = was.states.keys() != set(members) and (common or not was.among.is_known)
            moved = again and common and not all(child.is_walked for child in members)
            if changed or moved or (root is not None and root.state != was.program):
                forgotten.update(members)
        for child in forgotten:
            child.forget_walk()
        return forgotten

    def find(
        self, groups: dict[ChildProcess | None, list[ChildProcess]], limit_s: float, stand: object
    ) -> Among:
        """Return what all forks share with each other.

        Args:
            groups: The forks of each program.
            limit_s: So long may walks of the programs' pages take.
            stand: Changes with the memory of this process.
        """
        from ..sources.child_process import WALK_S_PER_BYTE

        found = {}
        lo_bytes = 0
        hi_bytes: int | None = 0
        for root, members in groups.items():
            state = stand if root is None else root.state
            states = {child: child.shares for child in members}
            was = self._found.get(root)
            walked = [child.shares for child in members if child.shares is not None and child.is_walked]
            all_walked = len(walked) == len(members)
            among = without_program(walked, len(members))
            if not all_walked:  # the peaks of the others include whatever they share
                left_bytes = _left_bytes(was, members)
                among = Among(left_bytes, None if among.hi_bytes is None else max(left_bytes, among.hi_bytes))
            elif was is not None and was.all_walked and (was.states, was.program) == (states, state):
                among = was.among if was.among.is_known else among
            if all_walked and not among.is_known and (program := _walk(root, limit_s)) is not None:
                limit_s -= (program.private_bytes + program.shared_bytes) * WALK_S_PER_BYTE
                among = with_program(walked, program)
            found[root] = _Found(states, state, among, all_walked)
            lo_bytes += among.lo_bytes
            hi_bytes = None if hi_bytes is None or among.hi_bytes is None else hi_bytes + among.hi_bytes
        self._found = found
        return Among(lo_bytes, hi_bytes)


def _left_bytes(was: _Found | None, members: Iterable[ChildProcess]) -> int:
    """Return how much of what forks shared at the last walk they certainly still have in common."""
    if was is None or not was.states.keys() <= set(members):
        return 0
    gone_bytes = sum(
        max(0, child.shares.private_bytes + child.shares.shared_bytes - child.current_bytes)
        for child in was.states
        if child.shares is not None
    )
    return max(0, was.among.lo_bytes - gone_bytes)


def _walk(root: ChildProcess | None, limit_s: float) -> Sharing | None:
    """Return how much memory a process shares; None if reading it would take too long, or fails."""
    from ..sources.child_process import WALK_S_PER_BYTE, sharing

    try:
        current_bytes = procfs.resident_bytes() if root is None else root.current_bytes
        if current_bytes * WALK_S_PER_BYTE > limit_s:
            return None
        return sharing(procfs.rollup_bytes(os.getpid() if root is None else root.pid), 0)
    except (OSError, ValueError):
        return None
