"""Children that Python code forks while something is measured: each leaves its figures where we read them.

A card in shared memory has what the child had at its birth, and at its end: `os._exit`, with which the
workers of `multiprocessing` end too, or the end of the interpreter.
"""

from __future__ import annotations

import atexit
import mmap
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from ...runtime.clock import monotonic_s
from ...runtime.wrappers import Wrappers
from . import linux

_CARDS = 256  # for the children that were forked last
_LEFT_CARDS = 64  # of those that left their last figures; each may take a moment to end after that
_FIELDS = (
    "pid",
    "began",  # the time of its start in the kernel's clock ticks, which tells it from another one of this pid
    "birth_bytes",  # resident as it was forked
    "birth_mapped_bytes",  # the part of it that is files and shared memory
    "reset_bytes",  # its highest mark before it reset that itself, since our last reset
    "ended",  # 1 once it has left these last figures
    "mark_bytes",
    "faults",
    "mapped_bytes",
    "private_bytes",  # as in `Sharing`; 0 where it was too large to look through its pages
    "shared_bytes",
    "inherited_bytes",
)
_AT = {name: at for at, name in enumerate(_FIELDS)}
_WALK_S, _WALK_SHARE = 0.002, 0.01  # so long, or so much of its life, a child may look through its pages
WALK_S_PER_BYTE = 14e-3 / 2**30  # with pages of 4 kB (measured); huge pages take a tenth


class Sharing(NamedTuple):
    """How much of its resident memory a process shares with others; the kernel walks all pages for it."""

    private_bytes: int  # what it shares with no other process
    shared_bytes: int  # the rest
    inherited_bytes: int  # of the rest, certainly anonymous memory, as of its parent or its own forks
    proportional_bytes: int  # the rest, each page divided by the number of processes that share it (Pss)
    mapped_bytes: int  # resident files and shared memory, shared or not


def sharing(rollup: dict[str, int], mapped_bytes: int) -> Sharing:
    """Return how much a process shares, by `linux.rollup_bytes` and its resident files and shared memory."""
    private_bytes = rollup["Private_Clean"] + rollup["Private_Dirty"]
    return Sharing(
        private_bytes,
        rollup["Rss"] - private_bytes,
        max(0, rollup.get("Anonymous", 0) - private_bytes),
        max(0, rollup.get("Pss", 0) - private_bytes),
        mapped_bytes,
    )


class Card:
    """What one child tells of itself; each figure is one word, which is written at once."""

    def __init__(self) -> None:
        self._words = memoryview(mmap.mmap(-1, len(_FIELDS) * 8)).cast("Q")

    def __getitem__(self, name: str) -> int:
        return int(self._words[_AT[name]])

    def __setitem__(self, name: str, value: int) -> None:
        self._words[_AT[name]] = value


class Forks:
    """The forks by Python code of this process."""

    def __init__(self) -> None:
        self.wanted: Callable[[], bool] = bool  # whether something is measured
        self.called: Callable[[], None] = lambda: None  # before a fork while that is so
        self.count: int = 0
        self.mine: Card | None = None  # of this process, if it was forked by one that measured then
        self._forking = threading.local()  # in each thread the card for the child
        self.living: deque[Card] = deque(maxlen=_CARDS)  # of children that may still say something
        self._left: deque[Card] = deque(maxlen=_LEFT_CARDS)
        self._born_s, self._ends = 0.0, Wrappers(lambda: os)

    def before(self) -> None:
        """Prepare a card for the child, if something is measured."""
        self._forking.card = None
        with suppress(Exception):  # a fork is the user's
            if self.wanted():
                self.called()
                self._forking.card = card = Card()
                self.living.append(card)

    def in_parent(self) -> None:
        """Count one more."""
        self.count += 1

    def cards(self) -> dict[int, Card]:
        """Return the cards of children that were not forgotten, by pid."""
        return {pid: card for card in tuple(self.living) if (pid := card["pid"])}

    def forget(self, pid: int) -> None:
        """Drop the card of a child that has ended, or is about to."""
        for card in tuple(self.living):
            if card["pid"] == pid:
                with suppress(ValueError):  # another thread was faster
                    self.living.remove(card)
                    self._left.append(card)

    def has_left(self, pid: int, began: int) -> bool:
        """Return whether a process of this pid and start has left its last figures, and has yet to end."""
        left = (pid, began, 1)
        return any((card["pid"], card["began"], card["ended"]) == left for card in tuple(self._left))

    def in_child(self) -> None:
        """Begin the card of this process, which has just been forked."""
        card: Card | None = getattr(self._forking, "card", None)
        self.__init__()  # type: ignore[misc] # nothing of the parent's is ours
        if card is None:
            return
        with suppress(Exception):
            self._born_s = monotonic_s()
            card["birth_bytes"], card["birth_mapped_bytes"] = linux.resident_and_mapped_bytes()
            card["began"] = int(linux.read("/proc/self/stat").rpartition(b")")[2].split()[19])
            card["pid"] = os.getpid()
            self.mine = card
            self._ends.put_on({"_exit": self._leaving})
            atexit.register(self.leave)

    def reset_follows(self) -> None:
        """Keep the mark of this process, which is about to be reset here."""
        if self.mine is not None:
            self.mine["reset_bytes"] = max(self.mine["reset_bytes"], linux.faults_and_mark()[1])

    def leave(self) -> None:
        """Leave the last figures of this process, which is about to end."""
        card = self.mine
        if card is None or card["pid"] != os.getpid():
            return
        with suppress(BaseException):  # nothing may keep it from ending
            resident_bytes, card["mapped_bytes"] = linux.resident_and_mapped_bytes()
            limit_s = max(_WALK_S, (monotonic_s() - self._born_s) * _WALK_SHARE)
            if resident_bytes * WALK_S_PER_BYTE <= limit_s:
                shares = sharing(linux.rollup_bytes("self"), 0)
                for name in ("private_bytes", "shared_bytes", "inherited_bytes"):
                    card[name] = getattr(shares, name)
            faults, card["mark_bytes"] = linux.faults_and_mark()
            card["faults"] = sum(faults)
            card["ended"] = 1  # last: now they are complete

    def _leaving(self, end: Callable[..., Any]) -> Callable[..., Any]:
        def leave_first(*args: Any, **kwargs: Any) -> Any:
            forks.leave()
            return end(*args, **kwargs)

        return leave_first


class Starts:
    """Notices that `subprocess` or `multiprocessing` starts a program, which runs no fork hook."""

    def __init__(self, called: Callable[[], None]) -> None:
        self._called = called
        self._places = {
            Wrappers(lambda: sys.modules.get("_posixsubprocess")): ["fork_exec"],
            Wrappers(lambda: sys.modules.get("subprocess")): ["_fork_exec"],  # the same function, since 3.11
            Wrappers(lambda: os): ["posix_spawn", "system"],  # the former by `subprocess` since 3.13
        }

    def put_on(self) -> None:
        """Begin; again where `subprocess` was imported since."""
        for place, names in self._places.items():
            if not place:
                place.put_on(dict.fromkeys(names, self._calling))

    def take_off(self) -> None:
        """End."""
        for place in self._places:
            place.take_off()

    def _calling(self, start: Callable[..., Any]) -> Callable[..., Any]:
        def announced(*args: Any, **kwargs: Any) -> Any:
            with suppress(Exception):  # the start is the user's
                self._called()
            return start(*args, **kwargs)

        return announced


forks: Forks = Forks()

if sys.platform == "linux":  # elsewhere children are not listed
    os.register_at_fork(before=forks.before, after_in_parent=forks.in_parent, after_in_child=forks.in_child)
