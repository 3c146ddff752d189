"""General RAM: resident memory of this process, its peak, malloc's part of it, and which children it has.

What a system offers is probed, never guessed from its name:

- Linux: the kernel's high-water mark, which can be reset (`high_water_mark`).
- Where the reset is refused, and on macOS and Windows: a peak that only rises.
- Where nothing counts peaks (gVisor): a sampling process alone (`rss_watcher`).

Children are found on Linux only. Elsewhere finding them means a walk over all processes (16 ms, measured),
too much for every cell.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from ...records import Diagnosis
from ...records.units import MB, in_mb
from ...runtime import clock
from ...runtime.errors import is_from_a_handler, named
from ..contract import UNREADABLE, Unavailable
from . import linux
from .forked import forks
from .high_water_mark import HighWaterMark, RisingPeak
from .linux import gil_held, high_water_precision_bytes, resident_precision_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...records import Heap
    from ..contract import Counter
    from .child_process import ChildProcess
    from .rss_watcher import RssWatcher

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
        self._watcher: RssWatcher | None = None  # only where the counter needs it
        self._counter = counter
        self._choosing = threading.Lock()
        self.descendants = Descendants(lambda: None if self._watcher is None else self._watcher.pid)
        self._walk_s_per_byte = _WALK_S_PER_BYTE
        self._walked_bytes = Paced(linux.walked_resident_bytes, 2 * _WALK_S)
        self._heap = Paced(linux.heap, _HEAP_S)

    @property
    def counter(self) -> Counter:
        """The best counter of this machine, found when first asked for; raises `Unavailable`."""
        if self._counter is None:
            with self._choosing:
                self._counter = self._counter or self._best_counter()
        return self._counter

    def _best_counter(self) -> Counter:
        try:
            linux.resident_and_mark_bytes()
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in _PASSING:
                raise Unavailable(f"{UNREADABLE}: {error}") from error
            return self._counter_of_psutil()
        if HighWaterMark.probe():
            return HighWaterMark()
        return self._rising(  # the reset is refused
            lambda: linux.resident_and_mark_bytes()[0],
            lambda: linux.resident_and_mark_bytes()[1],
            high_water_precision_bytes(),
            resident_precision_bytes(),
        )

    def _counter_of_psutil(self) -> Counter:
        memory = _psutils_memory()

        def rss_bytes() -> int:
            return int(memory().rss)

        if hasattr(memory(), "peak_wset"):  # Windows
            return self._rising(rss_bytes, lambda: int(memory().peak_wset))
        if sys.platform == "darwin":
            return self._rising(rss_bytes, lambda: linux.faults_and_mark()[1])
        return self._rising(rss_bytes, None)

    def _rising(
        self,
        resident_bytes: Callable[[], int],
        mark_bytes: Callable[[], int] | None,
        *precisions_bytes: int,
    ) -> Counter:
        from .rss_watcher import RssWatcher  # rarely needed

        self._watcher = RssWatcher()  # not started unless the counter needs it
        return RisingPeak(resident_bytes, mark_bytes, self._watcher, *precisions_bytes)

    def close(self) -> None:
        """Leave no descriptor and no process behind; the next scope acquires them again."""
        if self._counter is not None:
            self._counter.close()

    def exact_resident_bytes(self) -> int | None:
        """Return the resident memory as the page tables have it, if the kernel's own count is approximate.

        None if that count is good to a megabyte, if walking the page tables would take over 2 ms, and for a
        while after it did all the same, as where very many ranges are mapped.
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

    def heap(self) -> Heap | None:
        """Return what malloc handed out and what it keeps; None unless it is glibc's, of 2.33 or later.

        None as well for a while after it took over 1 ms: malloc counts freed chunks one by one, 80 ns each.
        """
        return self._heap()

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
            return Diagnosis(
                "RAM",
                "bounded",
                "peaks are exact where a cell sets a new record and bounded elsewhere:"
                " this system's peak counter cannot be reset",
            )
        return Diagnosis(
            "RAM", "sampled", "this system counts no peaks; a sampling process sees most of them"
        )


def _psutils_memory() -> Callable[[], Any]:
    """Return the function of psutil that reads the memory of this process; raises `Unavailable`."""
    try:
        import psutil  # only here: Linux needs none, and a broken one should cost nothing there

        memory: Callable[[], Any] = psutil.Process().memory_info
        int(memory().rss)
    except Exception as error:
        if is_from_a_handler(error):
            raise
        reason = f"there is no /proc/self/status, and psutil fails: {named(error)}"
        raise Unavailable(f"{UNREADABLE}: {reason}") from error
    return memory


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
