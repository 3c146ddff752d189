"""General RAM: resident memory of this process, its peak, malloc's part of it, and which children it has.

What a system offers is probed, never guessed from its name: the kernel's high-water mark, which can be reset
(`high_water_mark`), or what `rss_watcher` has. Children are found on Linux only: elsewhere that means a walk
over all processes (16 ms, measured), too much for every cell.
"""

from __future__ import annotations

import errno
import sys
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from ...records import Diagnosis
from ...records.units import MB, in_mb
from ...runtime import clock
from ...runtime.errors import is_from_a_handler, named
from ..contract import UNREADABLE, Unavailable
from . import linux
from .forked import forks
from .high_water_mark import HighWaterMark
from .linux import gil_held, high_water_precision_bytes, resident_precision_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...records import Heap
    from ..contract import Counter
    from .child_process import Descendants

_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # what is used up now may be available again later
_WALK_S = 0.002  # the page tables are walked for an exact size if that takes less
_HEAP_S = 0.001  # malloc is asked for all that it keeps as long as that takes less
_WALK_S_PER_BYTE = 11e-3 / 2**30  # with pages of 4 kB (measured); huge pages take a hundredth

_T = TypeVar("_T")

_SKIPPED_FIRST = 64
_SKIPPED_MOST = 16384


class Paced(Generic[_T]):
    """A read whose cost grows with what the process holds.

    After a read that took over `limit_s` of CPU time the next 64 are skipped, and twice as many each time
    it is slow again. The first read does not count, as it may load what it needs.
    """

    def __init__(self, read: Callable[[], _T], limit_s: float) -> None:
        self._read, self._limit_s = read, limit_s
        self._to_skip = self._skipped = 0
        self._is_first = True

    def __call__(self) -> _T | None:
        """Return what the read returns; None if it is skipped."""
        if self._to_skip:
            self._to_skip -= 1
            return None
        began_s = time.thread_time()
        found = self._read()
        if self._is_first:
            self._is_first = False
        elif time.thread_time() - began_s <= self._limit_s:
            self._skipped = 0
        else:
            self._skipped = min(2 * self._skipped, _SKIPPED_MOST) or _SKIPPED_FIRST
            self._to_skip = self._skipped
        return found


class Process:
    """This process's general RAM: the best counter of this machine, malloc, children."""

    def __init__(self, counter: Counter | None = None) -> None:
        if counter is not None:
            self.counter = counter
        self._walk_s_per_byte = _WALK_S_PER_BYTE
        self._walked_bytes = Paced(linux.walked_resident_bytes, 2 * _WALK_S)
        # None from glibc before 2.33 and other libraries, and for a while after it took over 1 ms: malloc
        # counts freed chunks one by one, 80 ns each.
        self.heap: Callable[[], Heap | None] = Paced(linux.heap, _HEAP_S)

    @cached_property
    def counter(self) -> Counter:
        """The best counter of this machine, found when first asked for; raises `Unavailable`."""
        try:
            linux.resident_and_mark_bytes()
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in _PASSING:
                raise Unavailable(f"{UNREADABLE}: {error}") from error
            return _counter_of_psutil()
        if HighWaterMark.probe():
            return HighWaterMark()
        from .rss_watcher import RisingPeak  # rarely needed

        return RisingPeak(  # the reset is refused
            lambda: linux.resident_and_mark_bytes()[0],
            lambda: linux.resident_and_mark_bytes()[1],
            high_water_precision_bytes(),
            resident_precision_bytes(),
        )

    @cached_property
    def descendants(self) -> Descendants:
        """The living descendants of this process, but for the one that is ours."""
        from .child_process import Descendants  # most notebooks have none

        return Descendants(lambda: getattr(getattr(vars(self).get("counter"), "watcher", None), "pid", None))

    def close(self) -> None:
        """Leave no descriptor and no process behind; the next scope acquires them again."""
        if "counter" in vars(self):
            self.counter.close()

    def exact_resident_bytes(self) -> int | None:
        """Return the resident memory as the page tables have it, if the kernel's own count is approximate.

        None if walking them would take over 2 ms, and for a while after it did all the same.
        """
        if self.counter.current_precision_bytes <= MB:
            return None
        try:
            size_bytes = linux.resident_bytes()
            if size_bytes * self._walk_s_per_byte > _WALK_S:
                return None
            began_s = clock.monotonic_s()
            exact_bytes = self._walked_bytes()
            took_s = clock.monotonic_s() - began_s
        except (OSError, ValueError):  # before Linux 4.14, or refused
            return None
        if exact_bytes is None:
            return None
        # Limited: one slow walk, on a busy machine, should not be the last.
        self._walk_s_per_byte = min(took_s / max(1, size_bytes), 2 * _WALK_S_PER_BYTE)
        return exact_bytes

    def has_children(self) -> bool:
        """Return whether this process has any child, running or ended; one system call."""
        return gil_held().has_children()

    def diagnose(self) -> Diagnosis:
        """Say how good the figures of general RAM are on this machine."""
        try:
            counter = self.counter
        except Unavailable as reason:
            return Diagnosis("RAM", "absent", str(reason))
        if counter.peak_class == "resettable":
            within_mb = in_mb(counter.precision_bytes)
            says = f"peaks from the kernel's high-water mark, to within {within_mb:.1f} MB"
            if counter.current_precision_bytes:
                says += "; this kernel's resident size is as approximate, so consumed is within twice that"
            return Diagnosis("RAM", "exact", says)
        if counter.peak_class == "monotone":
            says = "peaks are exact where a cell sets a new record and bounded elsewhere: this system's peak"
            return Diagnosis("RAM", "bounded", f"{says} counter cannot be reset")
        says = "this system counts no peaks; a sampling process sees most of them"
        return Diagnosis("RAM", "sampled", says)


def _counter_of_psutil() -> Counter:
    from .rss_watcher import RisingPeak

    try:
        import psutil  # only here: Linux needs none, and a broken one should cost nothing there

        memory: Callable[[], Any] = psutil.Process().memory_info
        int(memory().rss)
    except Exception as error:
        if is_from_a_handler(error):
            raise
        reason = f"there is no /proc/self/status, and psutil fails: {named(error)}"
        raise Unavailable(f"{UNREADABLE}: {reason}") from error
    mark_bytes: Callable[[], int] | None = None
    if hasattr(memory(), "peak_wset"):  # Windows
        mark_bytes = lambda: int(memory().peak_wset)  # noqa: E731
    elif sys.platform == "darwin":
        mark_bytes = lambda: linux.faults_and_mark()[1]  # noqa: E731
    return RisingPeak(lambda: int(memory().rss), mark_bytes)


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
    more = gil_held().has_children() if more is None else more
    return Ended(*linux.of_ended_children(), forks.count, more)
