"""General RAM: resident memory of this process, its peak, malloc's part of it, and what ended children had.

The kernel's high-water mark is exact whatever holds the GIL; its reset, a write to
``/proc/<pid>/clear_refs``, also lowers `ru_maxrss`. Where the mark cannot be reset, a peak only rises (macOS,
Windows), or there is none (gVisor).
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, cached_property
from typing import Any, NamedTuple

from ...records import Diagnosis, Heap
from ...records.units import MB, in_mb
from ...runtime.errors import named
from ..contract import UNREADABLE, Counter, Observation, PeakClass, Reading, Unavailable, unavailable
from . import linux
from .forked import forks
from .linux import gil_held, high_water_precision_bytes, largest_fault_bytes, resident_precision_bytes

_IN_MODIFY = 2
_EVENT_BYTES = 16  # a report without a name, which begins with the number of the watch


class _Reports:
    """The one descriptor through which the kernel reports to all watches; a user may have 128 of them."""

    def __init__(self) -> None:
        self.fd, self.pid = -1, 0
        self.written: dict[int, bool] = {}  # by number of the watch: whether that file was written to

    def add(self, path: str) -> int:
        """Return the number of a new watch; negative where the kernel offers none."""
        if self.pid != os.getpid():  # in a forked child it would read its parent's reports
            _close(self.fd)
            self.__init__()  # type: ignore[misc]
        self.pid, libc = os.getpid(), _libc()
        if self.fd < 0:
            self.fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        number = int(libc.inotify_add_watch(self.fd, path.encode(), _IN_MODIFY)) if self.fd >= 0 else -1
        if number >= 0:
            self.written[number] = False
        return number

    def take(self, number: int) -> bool:
        """Return whether a file was written to since the last call."""
        try:
            while found := gil_held().read(self.fd):
                for at in range(0, len(found), _EVENT_BYTES):
                    written = int.from_bytes(found[at : at + 4], "little", signed=True)
                    if written in self.written:
                        self.written[written] = True
        except OSError:  # closed by code that closes every descriptor
            return False
        was, self.written[number] = self.written.get(number, False), False
        return was

    def remove(self, number: int) -> None:
        """End a watch; the descriptor is closed with the last one."""
        if self.written.pop(number, None) is not None:
            _libc().inotify_rm_watch(self.fd, number)
        if not self.written:
            _close(self.fd)
            self.fd = -1


_reports = _Reports()


class ResetWatch:
    """A watch on that file: `take` returns whether anything wrote to it since the last call."""

    def __init__(self, pid: int | str = "self") -> None:
        self._path = f"/proc/{pid}/clear_refs"
        self._fd, self._number, self._pid = -1, -1, 0

    def start(self) -> None:
        """Begin to watch; if the kernel offers no watch, `take` never reports anything."""
        if self._number >= 0 and self._pid == os.getpid():
            return
        self.close()
        with suppress(AttributeError, ImportError, OSError, TypeError):  # no inotify, or no descriptor left
            # While it is held open, others find this same file under its name.
            self._fd = os.open(self._path, os.O_PATH | os.O_CLOEXEC)
            self._number, self._pid = _reports.add(self._path), os.getpid()
        if self._number < 0:
            self.close()

    def take(self) -> bool:
        """Return whether anything wrote to the file since the last call."""
        return self._number >= 0 and self._pid == os.getpid() and _reports.take(self._number)

    def close(self) -> None:
        """End the watch."""
        fd, number, self._fd, self._number = self._fd, self._number, -1, -1
        if number >= 0 and self._pid == _reports.pid == os.getpid():
            _reports.remove(number)
        _close(fd)

    def __del__(self) -> None:
        self.close()


@cache  # or each watch would leave a class behind as garbage
def _libc() -> Any:
    import ctypes  # 2 ms of loading, which a terminal's shell has not done yet

    return ctypes.CDLL(None)


def _close(fd: int) -> None:
    with suppress(OSError):  # -1, or closed by code that closes every descriptor
        os.close(fd)


class Mark(Counter):
    """The kernel's high-water mark of a process, and the watch for resets by other code."""

    peak_class: PeakClass = "resettable"

    def __init__(self, pid: int | str = "self") -> None:
        self.precision_bytes: int = high_water_precision_bytes()
        self.current_precision_bytes: int = resident_precision_bytes()
        self._fault_bytes = largest_fault_bytes()
        self._resets, self._watching = ResetWatch(pid), False

    def growth_bytes(self, earlier: tuple[int, ...], later: tuple[int, ...]) -> tuple[int | None, ...]:
        """Return at most one largest page per fault."""
        return ((sum(later) - sum(earlier)) * self._fault_bytes,)


class HighWaterMark(Mark):
    """The kernel's high-water mark of this process."""

    # The lowest that `getrusage` ever reported, from early on, as most processes only grow.
    _lowest_mark_bytes = linux.faults_and_mark()[1] if linux.resource else 0

    @classmethod
    def probe(cls) -> bool:
        """Return whether the reset is offered: it is absent on gVisor and refused after setuid."""
        return os.access("/proc/self/clear_refs", os.W_OK)

    def describe(self) -> str:
        """Name the counter, as part of a sentence."""
        return "this process's high-water mark (/proc/self/clear_refs)"

    def observe(self) -> Observation:
        """Read the resident memory and its high-water mark, with the page faults as the stamp.

        The mark is read each time: memory that others fill (cross-memory attach, userfaultfd) raises it
        without a page fault of this process. `getrusage` reports it, or what the process had resident before
        its `exec` if that is more. So above the lowest that was ever reported it is the mark. Then the
        resident memory comes from a file that the kernel writes in a third of the time.
        """
        try:
            stamp, mark_bytes = linux.faults_and_mark()
            if mark_bytes > self._lowest_mark_bytes:
                current_bytes = linux.resident_bytes()
            else:
                self._lowest_mark_bytes = mark_bytes
                current_bytes, mark_bytes = linux.resident_and_mark_bytes()
        except (OSError, ValueError) as error:
            raise Unavailable(f"/proc/self/status cannot be read: {error}") from error
        # The stored mark is approximate even where the resident size is exact (82241a83cd15).
        reading = Reading(current_bytes, max(mark_bytes, current_bytes))
        # Called last: a reset that had no effect on this observation may be reported, but none is missed.
        return Observation((reading,), stamp, self._watching and self._resets.take())

    def stamp(self) -> tuple[int, ...]:
        """Return the page faults, which take one system call."""
        return linux.faults_and_mark()[0]

    def reset(self) -> None:
        """Lower the high-water mark to what is resident now."""
        forks.reset_follows()
        try:
            linux.reset_mark()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):  # there may be enough later
                self.peak_class: PeakClass = "monotone"
            raise Unavailable(f"the kernel does not reset its peak: {error}") from error
        self._resets.take()  # this one was ours

    def watch(self, *, on: bool) -> None:
        """Watch for resets by other code while a scope is open; the descriptors stay until `close`."""
        self._watching = on
        if on:
            self._resets.start()

    def close(self) -> None:
        """Close the descriptors."""
        self._resets.close()


class RisingPeak(Counter):
    """A peak that only rises, or no peak at all (None): the engine samples it while a scope lasts."""

    def __init__(
        self,
        read: Callable[[], tuple[int, int | None]],
        precision_bytes: int = 0,
        current_precision_bytes: int = 0,
    ) -> None:
        self.peak_class: PeakClass = "sampled" if read()[1] is None else "monotone"
        self.precision_bytes: int = precision_bytes
        self.current_precision_bytes: int = current_precision_bytes
        self._read = read  # the resident memory, and the peak

    def observe(self) -> Observation:
        """Read the resident memory, and the peak if there is one."""
        with unavailable(UNREADABLE, named):  # psutil may be broken in any way
            current_bytes, peak_bytes = self._read()
        peak_bytes = None if peak_bytes is None else max(peak_bytes, current_bytes)
        return Observation((Reading(current_bytes, peak_bytes),), stamp=())


# The page tables are walked for an exact size up to here: 11 ms a GB with pages of 4 kB (measured).
_WALK_BYTES = 180 * MB
_HEAP_S = 0.001  # malloc is asked for all that it keeps as long as that takes less

_SKIPPED_FIRST = 64
_SKIPPED_MOST = 16384


class Paced:
    """A read whose cost grows with what the process holds.

    After a read that took over `limit_s` of CPU time the next 64 are skipped, and twice as many each time
    it is slow again. The first read does not count, as it may load what it needs.
    """

    def __init__(self, read: Callable[[], Heap | None], limit_s: float) -> None:
        self._read, self._limit_s = read, limit_s
        self._to_skip = self._skipped = 0
        self._is_first = True

    def __call__(self) -> Heap | None:
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
        # None from glibc before 2.33 and other libraries, and for a while after it took over 1 ms: malloc
        # counts freed chunks one by one, 80 ns each.
        self.heap: Callable[[], Heap | None] = Paced(linux.heap, _HEAP_S)

    @cached_property
    def counter(self) -> Counter:
        """The best counter of this machine, found when first asked for; raises `Unavailable`."""
        try:
            linux.resident_and_mark_bytes()
        except (FileNotFoundError, ValueError):
            return _counter_of_psutil()
        except OSError as error:  # what is used up now, such as descriptors, may be available again later
            raise Unavailable(f"{UNREADABLE}: {error}") from error
        if HighWaterMark.probe():
            return HighWaterMark()
        read = linux.resident_and_mark_bytes  # the reset is refused
        return RisingPeak(read, high_water_precision_bytes(), resident_precision_bytes())

    def close(self) -> None:
        """Leave no descriptor behind; the next scope acquires them again."""
        if "counter" in vars(self):
            self.counter.close()

    def exact_resident_bytes(self) -> int | None:
        """Return the resident memory by the page tables; None if known, or if a walk would take over 2 ms."""
        if self.counter.current_precision_bytes > MB:
            with suppress(OSError, ValueError):  # refused
                if linux.resident_bytes() <= _WALK_BYTES:
                    return linux.rollup_bytes("self")["Rss"]
        return None

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
        says = "this system counts no peaks; samples show those of long cells"
        return Diagnosis("RAM", "sampled", says)


def _counter_of_psutil() -> Counter:
    with unavailable(f"{UNREADABLE}: there is no /proc/self/status, and psutil fails", named):
        import psutil  # only here: Linux needs none, and a broken one should cost nothing there

        memory: Callable[[], Any] = psutil.Process().memory_info
        # Of Windows. The second name is that of psutil before 8, and a deprecated alias in it.
        mark = next((name for name in ("peak_rss", "peak_wset") if hasattr(memory(), name)), "")

        def read() -> tuple[int, int | None]:
            now = memory()
            if mark:
                return int(now.rss), int(getattr(now, mark))
            return int(now.rss), linux.faults_and_mark()[1] if sys.platform == "darwin" else None

        return RisingPeak(read)


class Ended(NamedTuple):
    """What is known of the children that ended and were waited for."""

    faults: int  # the page faults of all of them
    forks: int  # how often Python code of this process forked, which subprocess does not


def children_ended() -> Ended:
    """Return what is known of the children that ended; nothing on Windows."""
    if linux.resource is None:
        return Ended(0, 0)
    usage = linux.resource.getrusage(linux.resource.RUSAGE_CHILDREN)
    return Ended(usage.ru_minflt + usage.ru_majflt, forks.count)
