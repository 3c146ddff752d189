"""Child processes: memory of their own, and what the largest of those that ended needed.

Linux only. Elsewhere finding children means a walk over all processes (16 ms, measured), too much for every
cell.
"""

from __future__ import annotations

import functools
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from . import procfs, rusage
from .counter import Unavailable
from .system_calls import gil_held

if TYPE_CHECKING:
    from collections.abc import Callable

_FORK_NO_EXEC = 0x40  # of a process's flags, proc_pid_stat(5): forked, and no exec since (PF_FORKNOEXEC)
# Telling what forked children share walks their pages, 14 ms a GB (measured). Of all of them together, so
# much is walked.
_WALKED_BYTES = 256 << 20
_CPUCLOCK_SCHED = 2  # of the kernel's posix-timers.h: the clock of a process's scheduled time


class Child(NamedTuple):
    """The resident memory of one descendant that it does not share with the process that forked it.

    Attributes:
        own_bytes: Now.
        peak_bytes: The highest since its exec. None for a forked process without an exec: its high-water
            mark includes what it shares.
        at_least: Whether it is forked and too large to walk. Then `own_bytes` is a lower bound: what
            exceeds all that its parent ever had resident.
    """

    own_bytes: int
    peak_bytes: int | None
    at_least: bool = False


class Ended(NamedTuple):
    """What the kernel remembers of the children that ended and were waited for.

    Attributes:
        stamp: A count that changes when one is waited for.
        largest_bytes: The highest that any of them ever had resident. That includes what a child was
            before its exec: after a fork a copy of this process, after a vfork this process itself with
            its high-water mark.
        forks: How often Python code of this process forked, which subprocess does not.
        more: Whether there are children that were not waited for.
    """

    stamp: int
    largest_bytes: int
    forks: int
    more: bool


_forks = [0]


def _after_fork_in_parent() -> None:
    _forks[0] += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_parent=_after_fork_in_parent)


def children_ended(*, more: bool | None = None) -> Ended:
    """Return what the kernel remembers of the children that ended.

    Args:
        more: Whether there are children that were not waited for; None to ask the kernel.
    """
    usage = rusage.of_ended_children()
    if usage is None:
        return Ended(0, 0, 0, more=False)
    return Ended(*usage, _forks[0], more=gil_held().has_children() if more is None else more)


class _Facts(NamedTuple):
    """What was read of one process.

    Attributes:
        parent: Its parent's pid; 0 for this process.
        ran_ns: The CPU time that it had used; None if that is unknown.
        sizes: Its sizes, as the kernel writes them.
        current_bytes: What it had resident.
        high_bytes: Its high-water mark.
        forked: Whether it was forked and has not called exec since.
        children: The pids of its own.
        private_bytes: What it shares with no other process; None if that was not read.
    """

    parent: int
    ran_ns: int | None
    sizes: bytes
    current_bytes: int
    high_bytes: int
    forked: bool
    children: tuple[int, ...] = ()
    private_bytes: int | None = None


class Descendants:
    """The living descendants of this process; those that did not run since the last look are not read again.

    A process that used no CPU time has the peak and the children that it had. If its resident memory is the
    same too, no other file of it is read: all of them take 40 us, and most of that is its status (measured).
    """

    def __init__(self) -> None:
        self._known: dict[int, _Facts] = {}

    def look(self, peak_bytes: Callable[[], int], leave_out: int | None) -> dict[int, Child] | None:
        """Return the resident memory of every descendant now, by pid; None if it is unknown.

        Args:
            peak_bytes: Returns the most that this process ever had resident, and so could share at a fork.
            leave_out: The pid of a child that is ours rather than the user's.
        """
        if not gil_held().has_children():
            self._known = {}
            return {}
        try:
            own = _children_of(os.getpid())
        except OSError:  # the kernel does not list children
            return None
        before, self._known = self._known, self._read(own, leave_out, lists=True)
        if before.keys() - self._known.keys():  # the children of those that ended may have another parent now
            self._known = self._read(own, leave_out, lists=False)
        return self._measured(self._known, functools.cache(peak_bytes))

    def _read(self, own: tuple[int, ...], leave_out: int | None, *, lists: bool) -> dict[int, _Facts]:
        """Read every descendant.

        Args:
            own: The children of this process.
            leave_out: A child that is left out, and so is what descends from it.
            lists: Whether a process that did not run has the children that it had.
        """
        found: dict[int, _Facts] = {}
        waiting = [(0, own)]
        while waiting:
            parent, pids = waiting.pop()
            for pid in pids:
                if pid == leave_out or pid in found:
                    continue
                try:
                    facts = self._facts(pid, parent)
                except (OSError, ValueError):  # it ended meanwhile, or is a zombie
                    continue
                if not lists or facts is not self._known.get(pid):
                    with suppress(OSError):  # it ended meanwhile
                        facts = facts._replace(children=_children_of(pid))
                found[pid] = facts
                if facts.children:
                    waiting.append((pid, facts.children))
        return found

    def _facts(self, pid: int, parent: int) -> _Facts:
        """Return what is known of a process if it did not change; otherwise read it.

        Raises:
            OSError: It ended meanwhile.
            ValueError: It is a zombie, or the kernel shows no high-water mark or no flags.
        """
        ran_ns = _ran_ns(pid)  # before the rest: it may run while that is read
        sizes = procfs.read(f"/proc/{pid}/statm")
        known = self._known.get(pid)
        if known is not None and ran_ns is not None and known[:3] == (parent, ran_ns, sizes):
            return known
        current_bytes, high_bytes = procfs.resident_and_mark_bytes(pid)
        return _Facts(parent, ran_ns, sizes, current_bytes, high_bytes, not _has_own_program(pid))

    def _measured(self, found: dict[int, _Facts], peak_bytes: Callable[[], int]) -> dict[int, Child]:
        """Return what each process holds for itself; forked ones are walked as far as that is cheap."""
        forked_bytes = sum(facts.current_bytes for facts in found.values() if facts.forked)
        walked_bytes = 0
        children = {}
        for pid, facts in list(found.items()):
            current_bytes = facts.current_bytes
            try:
                if not facts.forked:
                    children[pid] = Child(current_bytes, facts.high_bytes)
                elif walked_bytes + current_bytes <= _WALKED_BYTES:
                    walked_bytes += current_bytes
                    private_bytes = facts.private_bytes
                    # What it shares may have become its own meanwhile. Where some are not walked at all, what
                    # is known will do, as a lower bound.
                    if private_bytes is None or forked_bytes <= _WALKED_BYTES:
                        private_bytes = procfs.private_bytes(pid)
                        found[pid] = facts._replace(private_bytes=private_bytes)
                    children[pid] = Child(private_bytes, None)
                else:
                    most_bytes = found[facts.parent].high_bytes if facts.parent else peak_bytes()
                    children[pid] = Child(max(0, current_bytes - most_bytes), None, at_least=True)
            except (OSError, Unavailable):  # it ended meanwhile
                continue
        return children


def _ran_ns(pid: int) -> int | None:
    """Return the CPU time that all threads of a process have used; None where that cannot be read.

    Read from the clock that clock_getcpuclockid(3) returns for it, which takes a microsecond. The kernel
    counts a running thread's time at its next tick, within 10 ms.
    """
    try:
        return time.clock_gettime_ns(~pid << 3 | _CPUCLOCK_SCHED)
    except (AttributeError, OSError):
        return None


def _children_of(pid: int) -> tuple[int, ...]:
    """Return the pids of a process's children.

    Raises:
        OSError: It ended, or the kernel does not list children.
    """
    tasks = f"/proc/{pid}/task"
    lists = [procfs.read(f"{tasks}/{task}/children") for task in gil_held().list_folder(tasks)]
    return tuple(map(int, b" ".join(lists).split()))


def _has_own_program(pid: int) -> bool:
    """Return whether a process called exec since it was forked; until then it shares its parent's pages.

    Raises:
        OSError: It ended meanwhile.
        ValueError: The kernel reports no flags.
    """
    fields = procfs.read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if len(fields) < 7:
        raise ValueError(f"/proc/{pid}/stat is too short")
    return not int(fields[6]) & _FORK_NO_EXEC
