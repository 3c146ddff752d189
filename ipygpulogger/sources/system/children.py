"""Child processes: which there are, and what the kernel remembers of those that ended.

Linux only. Elsewhere finding children means a walk over all processes (16 ms, measured), too much for every
cell.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from ..contract import Unavailable
from . import linux
from .forked import forks
from .system_calls import gil_held

if TYPE_CHECKING:
    from collections.abc import Callable

    from .child_process import ChildProcess


class Ended(NamedTuple):
    """What the kernel remembers of the children that ended and were waited for."""

    faults: int  # the page faults of all of them
    # The highest that any of them ever had resident. That includes what a child was before its exec:
    # after a fork a copy of this process, after a vfork this process itself with its high-water mark
    largest_bytes: int
    forks: int  # how often Python code of this process forked, which subprocess does not
    more: bool  # whether there are children that were not waited for


def children_ended(*, more: bool | None = None) -> Ended:
    """Return what the kernel remembers of the children that ended; it is asked for `more` if that is None."""
    usage = linux.of_ended_children()
    if usage is None:
        return Ended(0, 0, 0, more=False)
    return Ended(*usage, forks.count, more=gil_held().has_children() if more is None else more)


class Descendants:
    """The living descendants of this process."""

    def __init__(self, leave_out: Callable[[], int | None] = lambda: None) -> None:
        self._leave_out = leave_out  # returns the pid of a child that is ours rather than the user's
        self._known: dict[int, ChildProcess] = {}

    def visit(self, read: Callable[[ChildProcess], object]) -> list[ChildProcess] | None:
        """Read every descendant, parents first, and return those that live; None if the kernel lists none.

        A process is the same object in each visit while it lives and runs the same program. `read` raises
        `Unavailable` if it has ended.
        """
        if not gil_held().has_children():
            self._known = {}
            return []
        try:
            own = linux.children_of(os.getpid())
        except OSError:
            return None
        found: dict[int, ChildProcess] = {}
        self._find(own, found, read, again=False)
        if self._known.keys() - found.keys():
            # The children of those that ended may have another parent now. And the kernel may leave out one
            # that lives while another one ends.
            with suppress(OSError):
                own = linux.children_of(os.getpid())
            self._find(own, found, read, again=True)
        self._known = found
        return list(found.values())

    def _find(
        self,
        own: tuple[int, ...],
        found: dict[int, ChildProcess],
        read: Callable[[ChildProcess], object],
        *,
        again: bool,
    ) -> None:
        """Add every descendant that is not found yet, and that of a process that did not run if `again`."""
        waiting: list[tuple[ChildProcess | None, tuple[int, ...]]] = [(None, own)]
        seen = {self._leave_out()}
        while waiting:
            parent, pids = waiting.pop()
            for pid in pids:
                if pid in seen:
                    continue
                seen.add(pid)
                child = found.get(pid) or self._read(pid, parent, read)
                if child is None:
                    continue
                child.parent, found[pid] = parent, child
                if children := child.list_children(again=again):
                    waiting.append((child, children))

    def _read(
        self, pid: int, parent: ChildProcess | None, read: Callable[[ChildProcess], object]
    ) -> ChildProcess | None:
        """Return a process that was read; None if it ended meanwhile."""
        known = self._known.get(pid)
        if known is not None:
            with suppress(Unavailable):
                read(known)
                return known
        from .child_process import ChildProcess  # most notebooks have none

        child = ChildProcess(pid, parent)  # or its pid is another one's now, or it called exec
        try:
            read(child)
        except Unavailable:
            return None
        return child
