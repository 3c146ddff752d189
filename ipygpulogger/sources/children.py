"""Child processes: memory of their own, and what the largest of those that ended needed.

Linux only. Elsewhere finding children means a walk over all processes (16 ms, measured), too much for every
cell.
"""

from __future__ import annotations

import os
from functools import partial
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


def descendants(peak_bytes: Callable[[], int], leave_out: int | None) -> dict[int, Child] | None:
    """Return the resident memory of every descendant now, by pid; None if it is unknown.

    Args:
        peak_bytes: Returns the most that this process ever had resident, and so could share at a fork.
        leave_out: The pid of a child that is ours rather than the user's.
    """
    found: dict[int, Child] = {}
    walked_bytes = 0
    waiting = [(os.getpid(), peak_bytes)] if gil_held().has_children() else []
    while waiting:
        parent, most_bytes = waiting.pop()
        try:
            tasks = f"/proc/{parent}/task"
            lists = (procfs.read(f"{tasks}/{task}/children") for task in os.listdir(tasks))  # noqa: PTH208
            pids = [int(pid) for pid in b" ".join(lists).split()]
        except OSError:
            if parent == os.getpid():  # the kernel does not list children
                return None
            continue  # it ended meanwhile
        for pid in pids:
            if pid == leave_out:
                continue
            try:
                current_bytes, high_bytes = procfs.resident_and_mark_bytes(pid)
                if _has_own_program(pid):
                    child = Child(current_bytes, high_bytes)
                elif walked_bytes + current_bytes <= _WALKED_BYTES:
                    walked_bytes += current_bytes
                    child = Child(procfs.private_bytes(pid), None)
                else:
                    child = Child(max(0, current_bytes - most_bytes()), None, at_least=True)
            except (OSError, ValueError, Unavailable):  # it ended meanwhile, or is a zombie
                continue
            found[pid] = child
            waiting.append((pid, partial(int, high_bytes)))
    return found


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
