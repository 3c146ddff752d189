"""The living descendants of this process, each a counter: its resident memory and its high-water mark.

Resetting the mark of another process also lowers its `ru_maxrss`, and that of its parent's `RUSAGE_CHILDREN`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from ..contract import Observation, Reading, Unavailable, unavailable
from . import linux
from .forked import WALK_S_PER_BYTE, Card, Sharing, forks, sharing
from .process import Mark

_FORK_NO_EXEC = 0x40  # of a process's flags, proc_pid_stat(5): forked, and no exec since (PF_FORKNOEXEC)
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100  # a second
_STILL_BYTES = 2**21  # what a program maps and gives back as it starts
_EXEC_WITHIN_S = 2  # a process that calls exec after vfork does so at once


class _Stat(NamedTuple):
    """What ``/proc/<pid>/stat`` says, but for its time."""

    name: bytes  # of the program or thread, at most 15 bytes
    forked: bool  # whether it was forked and has not called exec since
    faults: tuple[int, int]  # minor and major page faults so far
    # When it started, in clock ticks, whether it is forked, and the addresses of its code and stack, which
    # another exec changes; the same numbers for all without permission.
    identity: tuple[Any, ...]


class ChildProcess(Mark):
    """One descendant of this process, for as long as it lives and runs the same program."""

    def __init__(self, pid: int, parent: ChildProcess | None, card: Card | None = None) -> None:
        super().__init__(pid)
        self.pid = pid
        self.parent = parent  # a descendant; None if that is this process
        self.card = card  # the page it shares with us, if this process forked it while something was measured
        self.left: bool = False  # whether it has ended, and its figures are those that it left on that card
        self.name: str = ""  # as the kernel knows it: the program, or what the process calls itself
        self.forked: bool = False  # and no exec since: it shares pages with its parent
        self.current_bytes: int = 0
        self.mapped_bytes: int = 0  # the part of it that is files and shared memory
        self.high_bytes: int = 0  # the highest mark that was ever read
        self.inherited_bytes: int | None = None  # the most that it can share since its fork, if known
        self.shares: Sharing | None = None  # what it shared when its pages were last walked
        self.is_walked: bool = False  # for the scope that begins or ends just now
        self.children: tuple[int, ...] = ()
        self._stat: _Stat | None = None
        self._reset_faults: tuple[int, int] | None = None  # before the last reset
        self._separate = False  # its memory is certainly not its parent's

    def describe(self) -> str:
        """Name the counter, as part of a sentence."""
        return f"the high-water mark of the child process {self.pid}"

    def observe(self) -> Observation:
        """Read the resident memory and its high-water mark, with the page faults as the stamp.

        A process that ended or called exec, which loses the mark, is `Unavailable`.
        """
        if self.left:
            return self._last_observation()
        was = self._stat
        with unavailable(f"the child process {self.pid} cannot be read"):
            stat = _read_stat(self.pid)
            self.find_card(stat)
            if self._watching and self.card is None:
                self._resets.start()
            sizes = linux.read(f"/proc/{self.pid}/statm")
            if was is not None and stat.identity != was.identity:
                raise Unavailable(f"{self.pid} is another process now, or runs another program")
            self._check_separate(stat, sizes)
            current_bytes, high_bytes = linux.resident_and_mark_bytes(self.pid)
            mapped_bytes = int(b"".join(sizes.split()[2:3])) * linux.PAGE_BYTES
        self._stat = stat
        self.name, self.forked = stat.name.decode(errors="replace"), stat.forked
        self.current_bytes, self.mapped_bytes = current_bytes, mapped_bytes
        reset_bytes = 0 if self.card is None else self.card["reset_bytes"]  # read after the mark
        peak_bytes = max(high_bytes, current_bytes, reset_bytes)
        if stat.faults == self._reset_faults and peak_bytes <= current_bytes + self.precision_bytes:
            peak_bytes = current_bytes  # nothing was mapped since the reset: the mark is merely approximate
        self.high_bytes = max(peak_bytes, self.high_bytes)
        was_reset = self.card is None and self._resets.take()
        return Observation((Reading(current_bytes, peak_bytes),), stat.faults, was_reset)

    def find_card(self, stat: _Stat | None = None) -> None:
        """Take the card of this process; it is `Unavailable` if its last figures were taken already."""
        stat = stat or self._stat
        if self.card is not None or self.parent is not None or not (stat and stat.forked):
            return
        if forks.has_left(self.pid, int(stat.identity[0])):
            raise Unavailable(f"the child process {self.pid} has left its last figures")
        card = forks.cards().get(self.pid)
        if card is not None and card["began"] == int(stat.identity[0]):
            self.card = card
            self.inherited_bytes = card["birth_bytes"] - card["birth_mapped_bytes"]

    def watch(self, *, on: bool) -> None:
        """Watch from now on for resets of the mark by other code; a child with a card tells them itself."""
        self._watching = on

    def is_seen_from_its_start(self) -> bool:
        """Return whether it reports its own figures, or its mark covers all mapped until first observed.

        Otherwise it may have had more before, when it called exec or reset the mark.
        """
        return self.card is not None or self.faults * linux.PAGE_BYTES <= self.high_bytes + _STILL_BYTES

    @property
    def faults(self) -> int:
        """How often a page was mapped until the last observation, or until it left its figures."""
        if self.card is not None and self.card["ended"]:
            return self.card["faults"]
        return sum(self._stat.faults) if self._stat else 0

    def leave(self) -> bool:
        """Take the figures that it left at its end, if it did, as those of the next and last observation."""
        card = self.card
        if card is None or not card["ended"]:
            return False
        self.inherited_bytes = card["birth_bytes"] - card["birth_mapped_bytes"]
        self.mapped_bytes, self.children = card["mapped_bytes"], ()
        self.forked = self.left = True
        self.name = self.name or linux.read("/proc/self/comm").strip().decode(errors="replace")
        if card["shared_bytes"]:
            self.shares = Sharing(
                card["private_bytes"], card["shared_bytes"], card["inherited_bytes"], 0, self.mapped_bytes
            )
        return True

    def _last_observation(self) -> Observation:
        assert self.card is not None
        peak_bytes = max(self.card["mark_bytes"], self.card["reset_bytes"])
        self.high_bytes = max(self.high_bytes, peak_bytes)
        return Observation((Reading(0, peak_bytes),), (self.card["faults"], 0))

    def _check_separate(self, stat: _Stat, sizes: bytes) -> None:
        """Refuse a process on its way from vfork to exec, which still has the memory of its parent."""
        if not stat.forked:
            self._separate = True
        elif not self._separate:
            began_s = int(stat.identity[0]) / _TICKS
            if time.clock_gettime(time.CLOCK_BOOTTIME) - began_s < _EXEC_WITHIN_S:
                parents = linux.read(f"/proc/{'self' if self.parent is None else self.parent.pid}/statm")
                if _is_same_memory(sizes, parents, linux.read(f"/proc/{self.pid}/statm")):
                    raise Unavailable(f"the child process {self.pid} has no memory of its own yet")
            self._separate = True

    def reset(self) -> None:
        """Lower the high-water mark to what is resident now; that of another user's process only rises."""
        self._reset_faults = None
        with unavailable(f"{self.describe()} cannot be reset"):
            faults = _read_stat(self.pid).faults
            linux.reset_mark(self.pid)
            if self.card is not None:
                self.card["reset_bytes"] = 0
            self._resets.take()  # this one was ours
        self._reset_faults = faults

    def list_children(self) -> tuple[int, ...]:
        """Return the pids of its children."""
        with suppress(OSError, ValueError):  # it ended meanwhile
            self.children = linux.children_of(self.pid)
        return self.children

    @property
    def at_least_bytes(self) -> int:
        """What it surely has for itself, without a walk, since what it inherited only becomes less."""
        if not self.forked:
            return self.current_bytes
        if self.shares is not None:
            more_bytes = max(0, self.mapped_bytes - self.shares.mapped_bytes)
            return max(0, self.current_bytes - self.shares.shared_bytes - more_bytes)
        return max(0, self.current_bytes - self.mapped_bytes - (self.inherited_bytes or 0))

    def walk_s(self) -> float:
        """Return about how long a walk of its pages would take."""
        return self.current_bytes * WALK_S_PER_BYTE

    def walk(self) -> None:
        """Find what it shares now."""
        self.shares = sharing(linux.rollup_bytes(self.pid), self.mapped_bytes)
        self.is_walked = True


def _is_same_memory(sizes: bytes, parents: bytes, again: bytes) -> bool:
    """Return whether two processes have one address space, by their ``statm``, the first one's read twice."""
    if sizes == again:  # else they change as they are read
        return sizes == parents  # a fork begins with the same addresses, but without the pages of files
    size, resident, parents_size, parents_resident = map(int, again.split()[:2] + parents.split()[:2])
    return size == parents_size and abs(resident - parents_resident) * linux.PAGE_BYTES < 2**20


def _read_stat(pid: int) -> _Stat:
    """Read proc_pid_stat(5); a ValueError if it has ended or calls exec just now."""
    head, _, tail = linux.read(f"/proc/{pid}/stat").rpartition(b")")
    fields = tail.split()
    if len(fields) < 26:
        raise ValueError(f"/proc/{pid}/stat is too short")
    if fields[0] in (b"Z", b"X"):
        raise ValueError("it has ended")
    if fields[23] == b"0":  # within exec: the addresses of the code are not set yet
        raise ValueError("it is just loading its program")
    forked = bool(int(fields[6]) & _FORK_NO_EXEC)
    return _Stat(
        head.partition(b"(")[2],
        forked,
        (int(fields[7]), int(fields[9])),
        (fields[19], forked, fields[23], fields[25]),
    )


class Descendants:
    """The living descendants of this process."""

    def __init__(self) -> None:
        self._known: dict[int, ChildProcess] = {}

    def visit(self, read: Callable[[ChildProcess], object]) -> list[ChildProcess] | None:
        """Read every descendant, parents first, and return those that live; None if the kernel lists none."""
        found: dict[int, ChildProcess] = {}
        if linux.gil_held().has_children():
            try:
                self._find(found, read)
                if self._known.keys() - found.keys():
                    # The children of those that ended may have another parent now. And the kernel may leave
                    # out one that lives while another one ends.
                    self._find(found, read)
            except (OSError, ValueError):
                return None
        self._known = found
        return list(found.values())

    def _find(self, found: dict[int, ChildProcess], read: Callable[[ChildProcess], object]) -> None:
        waiting: list[tuple[ChildProcess | None, tuple[int, ...]]] = [(None, linux.children_of(os.getpid()))]
        seen: set[int] = set()
        while waiting:
            parent, pids = waiting.pop()
            for pid in pids:
                if pid in seen:
                    continue
                seen.add(pid)
                child = found.get(pid) or self._read(pid, parent, read)
                if child is not None:
                    child.parent, found[pid] = parent, child
                    waiting.append((child, child.list_children()))

    def _read(
        self, pid: int, parent: ChildProcess | None, read: Callable[[ChildProcess], object]
    ) -> ChildProcess | None:
        """Return a process that was read; None if it ended meanwhile."""
        for known in (self._known.get(pid), None):  # its pid may be another one's now, or it called exec
            child = known or ChildProcess(pid, parent)
            with suppress(Unavailable):
                read(child)
                return child
        return None
