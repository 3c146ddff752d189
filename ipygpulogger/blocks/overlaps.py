"""What runs at the same time in one process, whose memory nothing can tell apart."""

from __future__ import annotations

import os
import threading
from functools import cache
from typing import TYPE_CHECKING

from ..records.measurement import SHARED
from ..runtime.living import Living

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


class Overlapping:
    """Something that runs.

    Attributes:
        others: How many others ran meanwhile.
    """

    others = 0


class Overlaps:
    """Counts, for each of those that run in this process, the others that ran meanwhile; for any thread.

    They are held weakly: one that never ends, because an interrupt cut it short, ends with its last referrer.
    A copy, as a worker gets of a function that is measured, is that of its own process.
    """

    def __init__(self, noun: str) -> None:
        """Prepare; `overlaps_of` gives the one of this process."""
        self._noun = noun
        self._forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        # Reentrant: the garbage collector may run while it is held, and end a generator that is measured.
        self._lock = threading.RLock()
        self._running: Living[Overlapping] = Living()

    def begin(self, one: Overlapping, around: Collection[Overlapping] = ()) -> None:
        """Note that one begins.

        Args:
            one: What begins.
            around: Those that enclose it: it is a part of them, and does not count as another.
        """
        with self._lock:
            for other in self._running:
                if other not in around:
                    other.others += 1
                    one.others += 1
            self._running.add(one)

    def end(self, one: Overlapping) -> tuple[str, ...]:
        """Note that it ended, and return what its record says of the others: a note, or nothing."""
        with self._lock:
            self._running.discard(one)
        if not one.others:
            return ()
        return (f"{SHARED}{one.others} other {self._noun}{'s' * (one.others > 1)} of its process",)

    def __reduce__(self) -> tuple[Callable[[str], Overlaps], tuple[str]]:
        return overlaps_of, (self._noun,)


@cache
def overlaps_of(noun: str) -> Overlaps:
    """Return what counts the overlaps of one kind in this process; the noun is what each is called."""
    return Overlaps(noun)


BLOCKS = overlaps_of("block")
