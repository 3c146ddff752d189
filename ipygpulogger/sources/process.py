"""General RAM: resident memory of this process, its peak, malloc's part of it, and its children.

What a platform offers is probed, never guessed from its name:

- Linux: the kernel's high-water mark, reset through ``/proc/self/clear_refs``. Exact, whatever holds
  the GIL, with no thread. Resetting it also lowers ``getrusage().ru_maxrss``.
- Where the reset is refused, and on macOS and Windows: a peak that only rises. Exact where a scope
  set a new record, a bound elsewhere; a sampling process raises the lower bound.
- Where nothing counts peaks (gVisor): the sampling process alone.

Files under ``/proc/self`` are opened for each look: a descriptor kept open would still speak of the
parent after a fork, and the reset through it would be the parent's.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ..records import Diagnosis, Heap
from ..records.units import MB, in_mb
from ..runtime import clock
from ..runtime.errors import named
from ..runtime.signals import is_from_a_handler
from . import Counter, Look, PeakClass, Reading, Unavailable
from .foreign_resets import ResetWatch
from .rss_watcher import RssWatcher

if TYPE_CHECKING:
    from collections.abc import Callable

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_UNREADABLE = "the memory of this process cannot be read"
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # not for good: what is out now may be there again
_KIB = 2**10
_PAGE_BYTES = resource.getpagesize() if resource else 4096
_CLEAR_REFS_HIWATER = b"5"  # proc(5): reset the peak resident set size
_FORK_NO_EXEC = 0x40  # of a process's flags, proc_pid_stat(5): forked, and no exec since (PF_FORKNOEXEC)
# Of forked children: telling what they share walks their pages, 14 ms a GB (measured).
_WALKED_BYTES = 256 << 20
_PERCPU_COUNTER_KERNEL = (6, 2)  # from here on each CPU keeps a part of every count (f1a7941243c1)
_EXACT_SIZE_KERNEL = (6, 17)  # from here on the resident size, not its mark, is summed exactly (82241a83cd15)
_SYS_CPU = "/sys/devices/system/cpu"
_WALK_S = 0.002  # the page tables are walked for an exact size where that takes less
_WALK_S_PER_BYTE = 11e-3 / 2**30  # with pages of 4 kB (measured); huge pages take a hundredth


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 65536)
    finally:
        os.close(fd)


def _resident_bytes(pid: int | str = "self") -> tuple[int, int]:
    """What a process has resident, and its high-water mark.

    Raises:
        OSError: There is no such process, or nobody tells.
        ValueError: The kernel shows no high-water mark (gVisor), or the process is a zombie.
    """
    status = _read(f"/proc/{pid}/status")
    marks = []
    for name in (b"VmRSS:", b"VmHWM:"):
        start = status.index(name) + len(name)
        marks.append(int(status[start : status.index(b"kB", start)]) * _KIB)
    return marks[0], marks[1]


def _reset_high_water() -> None:
    fd = os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, _CLEAR_REFS_HIWATER)
    finally:
        os.close(fd)


def _faults_and_mark() -> tuple[tuple[int, ...], int]:
    """This process's page faults so far, and its high-water mark as ``getrusage`` reports it.

    The mark has a floor: what the process had resident before its last ``exec``.
    """
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return (usage.ru_minflt, usage.ru_majflt), usage.ru_maxrss * _KIB


def _largest_fault_bytes() -> int:
    """What one page fault can add: a huge page where the kernel has them, else 64 kB (fault-around)."""
    try:
        return int(_read("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size"))
    except (OSError, ValueError):
        return 64 * _KIB


def _kernel() -> tuple[int, ...]:
    numbers = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return tuple(map(int, numbers.groups())) if numbers else (0, 0)


def _cpu_count() -> int:
    """The CPUs that the kernel can have online, whatever this process may run on.

    Not ``os.cpu_count()``, which ``PYTHON_CPU_COUNT`` changes, nor the affinity: both leave the kernel's
    batches alone. CPUs that are merely possible (free slots of a virtual machine) hold no part of a count.
    """
    for name in ("present", "possible"):
        try:
            ranges = _read(f"{_SYS_CPU}/{name}").decode().strip().split(",")
            ends = [[int(end) for end in one.split("-")] for one in ranges]
            return sum(end[-1] - end[0] + 1 for end in ends)
        except (OSError, ValueError):
            continue
    try:
        return max(1, os.sysconf("SC_NPROCESSORS_CONF"))
    except (AttributeError, OSError, ValueError):
        return os.cpu_count() or 1


def _high_water_precision_bytes() -> int:
    """How far the kernel's stored peak may lie from the truth.

    Since Linux 6.2 each of the three resident counts (anonymous, file, shared) is kept in batches of
    ``max(32, 2 * cpus)`` pages a CPU (lib/percpu_counter.c); before, in 64 pages a thread.
    """
    cpus = _cpu_count()
    batch_pages = max(32, 2 * cpus) if _kernel() >= _PERCPU_COUNTER_KERNEL else 64
    return 3 * batch_pages * cpus * _PAGE_BYTES


def _current_precision_bytes() -> int:
    """How far the resident size may lie from the truth: as far as the mark on Linux 6.2 to 6.16, else 0.

    Some distributions ship the correction in an older kernel; there this is more than it need be.
    """
    approximate = _PERCPU_COUNTER_KERNEL <= _kernel() < _EXACT_SIZE_KERNEL
    return _high_water_precision_bytes() if approximate else 0


class HighWaterMark(Counter):
    """Linux: the kernel's own peak of this process, which can be reset."""

    peak_class: PeakClass = "resettable"

    def __init__(self) -> None:
        self.precision_bytes = _high_water_precision_bytes()
        self.current_precision_bytes = _current_precision_bytes()
        self._fault_bytes = _largest_fault_bytes()
        # Of the last look: the page faults, the mark as getrusage and as the longer file report it.
        self._known: tuple[tuple[int, ...], int, int] | None = None
        self._resets = ResetWatch()

    @classmethod
    def probe(cls) -> bool:
        """Whether the reset is offered: it is absent on gVisor and refused after setuid.

        Only asked, not tried: trying lowers ``ru_maxrss``, which some users read. The first reset
        is the trial.
        """
        try:
            _resident_bytes()
        except (OSError, ValueError):
            return False
        return os.access("/proc/self/clear_refs", os.W_OK)

    def describe(self) -> str:
        """What it is, for a sentence."""
        return "this process's high-water mark (/proc/self/clear_refs)"

    def look(self) -> Look:
        """Resident memory and its high-water mark; page faults as the stamp.

        The mark is read each time, because memory that others fill (cross-memory attach, userfaultfd)
        raises it without a fault of this process. Where ``getrusage`` shows that it stands where it stood,
        a shorter file gives what is left to know.
        """
        stamp, mark_bytes = _faults_and_mark()
        try:
            if self._known is not None and self._stands(*self._known, stamp, mark_bytes):
                current_bytes = int(_read("/proc/self/statm").split()[1]) * _PAGE_BYTES
                peak_bytes = self._known[2]
            else:
                current_bytes, peak_bytes = _resident_bytes()
        except (OSError, ValueError) as error:
            raise Unavailable(f"/proc/self/status cannot be read: {error}") from error
        # The stored mark is approximate while the resident size is not (82241a83cd15).
        peak_bytes = max(peak_bytes, current_bytes)
        self._known = stamp, mark_bytes, peak_bytes
        # Asked last: a reset that came in between is rather reported in vain than missed.
        return Look((Reading(current_bytes, peak_bytes),), stamp, self._resets.take())

    def _stands(
        self,
        known_stamp: tuple[int, ...],
        known_mark_bytes: int,
        peak_bytes: int,
        stamp: tuple[int, ...],
        mark_bytes: int,
    ) -> bool:
        """Whether the mark is surely what it was; below its floor getrusage would not show that it rises."""
        shows = known_mark_bytes <= peak_bytes + self.precision_bytes
        return shows and known_stamp == stamp and known_mark_bytes == mark_bytes

    def stamp(self) -> tuple[int, ...]:
        """Page faults, which one system call tells."""
        return _faults_and_mark()[0]

    def reset(self) -> None:
        """Lower the high-water mark to what is resident now."""
        self._known = None
        try:
            _reset_high_water()
        except OSError as error:
            self.peak_class = "monotone"
            raise Unavailable(f"the kernel does not reset its peak: {error}") from error
        self._resets.take()  # this one was ours

    def watch(self, *, on: bool) -> None:
        """Notice from the first scope on who else resets the mark, until `close`."""
        if on:
            self._resets.start()
            self._resets.take()

    def close(self) -> None:
        """Give the descriptors back."""
        self._resets.close()

    def growth_bytes(self, earlier: tuple[int, ...], later: tuple[int, ...]) -> tuple[int | None, ...]:
        """At most one largest page a fault."""
        faults = sum(later) - sum(earlier)
        return (faults * self._fault_bytes,)


def _psutils_memory() -> Callable[[], Any]:
    """How psutil tells the memory of this process.

    Raises:
        Unavailable: It does not; the text says why.
    """
    try:
        import psutil  # only here: Linux needs none, and a broken one shall cost nothing there

        memory: Callable[[], Any] = psutil.Process().memory_info
        int(memory().rss)
    except Exception as error:
        if is_from_a_handler(error):
            raise
        reason = f"there is no /proc/self/status, and psutil fails: {named(error)}"
        raise Unavailable(f"{_UNREADABLE}: {reason}") from error
    return memory


class RisingPeak(Counter):
    """A peak that only rises, or none at all, helped by a sampling process."""

    def __init__(
        self,
        current: Callable[[], int],
        peak: Callable[[], int] | None,
        watcher: RssWatcher | None = None,
        precision_bytes: int = 0,
        current_precision_bytes: int = 0,
    ) -> None:
        self.peak_class: PeakClass = "monotone" if peak else "sampled"
        self.precision_bytes, self.current_precision_bytes = precision_bytes, current_precision_bytes
        self._current, self._peak, self._watcher = current, peak, watcher

    def look(self) -> Look:
        """Resident memory, the rising peak where there is one, and the highest sample."""
        try:
            current_bytes = self._current()
            peak_bytes = max(self._peak(), current_bytes) if self._peak else None
        except Exception as error:  # psutil may be broken in any way
            if is_from_a_handler(error):
                raise
            raise Unavailable(f"{_UNREADABLE}: {named(error)}") from error
        seen_bytes = self._watcher.highest_bytes() if self._watcher else 0
        return Look((Reading(current_bytes, peak_bytes, seen_bytes),), stamp=())

    def watch(self, *, on: bool) -> None:
        """Wake the sampling process or let it sleep."""
        if self._watcher:
            self._watcher.watch(on=on)

    def close(self) -> None:
        """End the sampling process."""
        if self._watcher:
            self._watcher.close()


class Process:
    """This process's general RAM: the best counter of this machine, malloc, children."""

    def __init__(self, counter: Counter | None = None) -> None:
        self._watcher = RssWatcher()  # sleeps, unstarted, unless the counter needs it
        self._counter = counter
        self._choosing = threading.Lock()
        self._mallinfo2 = _find_mallinfo2()
        self._walk_s_per_byte = _WALK_S_PER_BYTE

    @property
    def counter(self) -> Counter:
        """The best counter of this machine, found at the first question.

        Raises:
            Unavailable: There is none just now; the next question looks again.
        """
        if self._counter is None:
            with self._choosing:
                self._counter = self._counter or self._best_counter()
        return self._counter

    def _best_counter(self) -> Counter:
        watcher = self._watcher
        try:
            _resident_bytes()
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in _PASSING:
                raise Unavailable(f"{_UNREADABLE}: {error}") from error
        else:
            if HighWaterMark.probe():
                return HighWaterMark()
            return RisingPeak(  # the reset is refused
                lambda: _resident_bytes()[0],
                lambda: _resident_bytes()[1],
                watcher,
                _high_water_precision_bytes(),
                _current_precision_bytes(),
            )
        memory = _psutils_memory()

        def rss_bytes() -> int:
            return int(memory().rss)

        if hasattr(memory(), "peak_wset"):  # Windows
            return RisingPeak(rss_bytes, lambda: int(memory().peak_wset), watcher)
        if sys.platform == "darwin" and resource is not None:
            return RisingPeak(rss_bytes, lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, watcher)
        return RisingPeak(rss_bytes, None, watcher)

    def close(self) -> None:
        """Leave no descriptor and no process behind; the next scope begins anew."""
        if self._counter is not None:
            self._counter.close()

    def exact_resident_bytes(self) -> int | None:
        """Resident memory as the page tables have it, where the kernel's own count is notably approximate.

        None where that count is good enough, and where walking the page tables would take over 2 ms.
        """
        if self.counter.current_precision_bytes <= MB:
            return None
        try:
            size_bytes = int(_read("/proc/self/statm").split()[1]) * _PAGE_BYTES
            if size_bytes * self._walk_s_per_byte > _WALK_S:
                return None
            began_s = clock.monotonic_s()
            rollup = _read("/proc/self/smaps_rollup")
            took_s = clock.monotonic_s() - began_s
            start = rollup.index(b"\nRss:") + len(b"\nRss:")
            exact_bytes = int(rollup[start : rollup.index(b"kB", start)]) * _KIB
        except (OSError, ValueError):  # before Linux 4.14, or refused
            return None
        # One slow walk, on a busy machine, shall not be the last.
        self._walk_s_per_byte = min(took_s / max(1, size_bytes), 2 * _WALK_S_PER_BYTE)
        return exact_bytes

    def heap(self) -> Heap | None:
        """What malloc handed out and what it keeps; None where glibc does not tell (it does since 2.33)."""
        if self._mallinfo2 is None:
            return None
        info = self._mallinfo2()
        return Heap(info.uordblks + info.hblkhd, info.fordblks)

    def children(self, peak_bytes: Callable[[], int]) -> dict[int, Child] | None:
        """Resident memory of every descendant now, by pid, without our own sampling process.

        Linux only: elsewhere finding children means a walk over all processes (16 ms, measured), too
        much for every cell. None where it is unknown.

        Args:
            peak_bytes: Tells the most that this process ever had resident, and so could share at a fork.
        """
        found: dict[int, Child] = {}
        walked_bytes = 0
        waiting = [(os.getpid(), peak_bytes)] if _has_children() else []
        while waiting:
            parent, most_bytes = waiting.pop()
            try:
                tasks = f"/proc/{parent}/task"
                lists = (_read(f"{tasks}/{task}/children") for task in os.listdir(tasks))  # noqa: PTH208
                pids = [int(pid) for pid in b" ".join(lists).split()]
            except OSError:
                if parent == os.getpid():  # the kernel does not list children
                    return None
                continue  # it ended meanwhile
            for pid in pids:
                if pid == self._watcher.pid:
                    continue
                try:
                    current_bytes, high_bytes = _resident_bytes(pid)
                    if _has_own_program(pid):
                        child = Child(current_bytes, high_bytes)
                    elif walked_bytes + current_bytes <= _WALKED_BYTES:
                        walked_bytes += current_bytes
                        child = Child(_private_bytes(pid), None)
                    else:
                        child = Child(max(0, current_bytes - most_bytes()), None, at_least=True)
                except (OSError, ValueError, Unavailable):  # it ended meanwhile, or is a zombie
                    continue
                found[pid] = child
                waiting.append((pid, partial(int, high_bytes)))
        return found

    def diagnose(self) -> Diagnosis:
        """What general RAM's figures are worth on this machine."""
        try:
            counter = self.counter
        except Unavailable as reason:
            return Diagnosis("general RAM", "absent", str(reason))
        if counter.peak_class == "resettable":
            says = (
                f"peaks from the kernel's high-water mark, to within {in_mb(counter.precision_bytes):.1f} MB"
            )
            if counter.current_precision_bytes:
                says += "; this kernel's resident size is as approximate, so consumed is within twice that"
            return Diagnosis("general RAM", "exact", says)
        if counter.peak_class == "monotone":
            return Diagnosis(
                "general RAM",
                "bounded",
                "peaks are exact where a cell sets a new record and bounded elsewhere:"
                " this system's peak counter cannot be reset",
            )
        return Diagnosis(
            "general RAM", "sampled", "this system counts no peaks; a sampling process sees most of them"
        )


class _MallInfo2(ctypes.Structure):
    """mallinfo(3)."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


def _find_mallinfo2() -> Callable[[], _MallInfo2] | None:
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):  # not glibc, an older one, or Windows
        return None
    function.restype = _MallInfo2
    return function


def _has_children() -> bool:
    """Whether this process has any child at all, dead or alive; a microsecond, and nobody is reaped."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    except AttributeError:  # not everywhere
        pass
    return True


def _has_own_program(pid: int) -> bool:
    """Whether a process has called exec since it was forked: until then it shares its parent's pages.

    Raises:
        OSError: It ended meanwhile.
        ValueError: The kernel tells no flags.
    """
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if len(fields) < 7:
        raise ValueError(f"/proc/{pid}/stat is too short")
    return not int(fields[6]) & _FORK_NO_EXEC


def _private_bytes(pid: int) -> int:
    """The resident memory of a process that no other process shares; reading it walks all of its pages."""
    sizes = re.findall(
        rb"^Private_(?:Clean|Dirty): *(\d+) kB", _read(f"/proc/{pid}/smaps_rollup"), re.MULTILINE
    )
    return sum(map(int, sizes)) * _KIB


class Child(NamedTuple):
    """The resident memory of one descendant that it does not share with the process that forked it.

    Attributes:
        own_bytes: Now.
        peak_bytes: The highest since its exec; None for a forked process without one: its high-water mark
            contains what it shares.
        at_least: It is forked and too large to look through: `own_bytes` is what exceeds all that its
            parent ever had resident, and so is a lower bound.
    """

    own_bytes: int
    peak_bytes: int | None
    at_least: bool = False


class Ended(NamedTuple):
    """What the kernel remembers of the children that ended and were waited for.

    Attributes:
        stamp: A count that moves when one is waited for.
        largest_bytes: The highest that any of them ever had resident. It contains what a child was before
            its exec: after a fork a copy of us, after a vfork our own memory with its high-water mark.
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


def children_ended() -> Ended:
    """What the kernel remembers of them."""
    if resource is None:
        return Ended(0, 0, 0, more=False)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    unit = 1 if sys.platform == "darwin" else _KIB
    return Ended(usage.ru_minflt + usage.ru_majflt, usage.ru_maxrss * unit, _forks[0], more=_has_children())
