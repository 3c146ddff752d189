"""What Linux says of a process: `getrusage`, the files below `/proc`, their resolution, the heap.

A reader raises `OSError` where a file is absent or may not be read, and `ValueError` where it is not as Linux
writes it: gVisor shows no high-water mark, and a zombie has none.

The files are opened each time. After a fork, a descriptor that was kept open would still speak of the
parent, and a reset through it would be the parent's.

Since Linux 6.2 each CPU keeps a part of every count to itself (f1a7941243c1), so that a sum over the parts
that are published is approximate. From Linux 6.17 on the resident size, but not its high-water mark, is
summed over all parts and exact (82241a83cd15).
"""

from __future__ import annotations

import os
import re
import sys
import time
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ...records import Heap
from .system_calls import gil_held

if TYPE_CHECKING:
    from collections.abc import Callable

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

PAGE_BYTES = resource.getpagesize() if resource else 4096
_UNIT_BYTES = 1 if sys.platform == "darwin" else 2**10  # of ru_maxrss, getrusage(2)


def faults_and_mark() -> tuple[tuple[int, ...], int]:
    """Return this process's page faults so far (minor, major), and its high-water mark in bytes.

    The mark has a floor: what the process had resident before its last `exec`.
    """
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return (usage.ru_minflt, usage.ru_majflt), usage.ru_maxrss * _UNIT_BYTES


def of_ended_children() -> tuple[int, int] | None:
    """Return the page faults and the largest peak of the children that were waited for; None on Windows."""
    if resource is None:
        return None
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_minflt + usage.ru_majflt, usage.ru_maxrss * _UNIT_BYTES


_KIB = 2**10
_CLEAR_REFS_HIWATER = b"5"  # proc(5): reset the peak resident set size
_WALKED = "/smaps_rollup"  # the kernel walks the page tables for this file, which takes milliseconds a GB


def read(path: str) -> bytes:
    """Return the first 64 KiB of a file; raises `OSError`."""
    calls = gil_held()
    return calls.read_slow_file(path) if path.endswith(_WALKED) else calls.read_file(path)


def resident_and_mark_bytes(pid: int | str = "self") -> tuple[int, int]:
    """Return what a process has resident, and its high-water mark; raises `OSError` or `ValueError`."""
    status = read(f"/proc/{pid}/status")
    return _size_bytes(status, b"VmRSS:"), _size_bytes(status, b"VmHWM:")


def resident_bytes() -> int:
    """Return what this process has resident, from a file that the kernel writes faster."""
    return int(read("/proc/self/statm").split()[1]) * PAGE_BYTES


def thread_count() -> int:
    """Return how many threads this process has, whoever started them; raises `OSError`."""
    return int(read("/proc/self/stat").rpartition(b")")[2].split()[17])


def walked_resident_bytes() -> int:
    """Return what this process has resident, as Linux 4.14 and later finds it by walking the page tables."""
    return _size_bytes(read(f"/proc/self{_WALKED}"), b"\nRss:")


def rollup_bytes(pid: int | str) -> dict[str, int]:
    """Return the sizes of a process's ``smaps_rollup`` by name; the kernel walks all its pages for it."""
    sizes = re.findall(rb"^(\w+): *(\d+) kB", read(f"/proc/{pid}{_WALKED}"), re.MULTILINE)
    found = {name.decode(): int(size) * _KIB for name, size in sizes}
    if not {"Rss", "Private_Clean", "Private_Dirty"} <= found.keys():
        raise ValueError(f"/proc/{pid}{_WALKED} lacks sizes")
    return found


def children_of(pid: int) -> tuple[int, ...]:
    """Return the pids of a process's children; raises `OSError`."""
    tasks = f"/proc/{pid}/task"
    for again in (True, True, False):
        try:
            lists = [read(f"{tasks}/{task}/children") for task in gil_held().list_folder(tasks)]
            return tuple(map(int, b" ".join(lists).split()))
        except OSError:  # a thread may have ended just now, and its children are another thread's
            if not again:
                raise
    raise AssertionError


def reset_mark(pid: int | str = "self") -> None:
    """Lower a process's high-water mark to what is resident now; raises `OSError`."""
    gil_held().write_file(f"/proc/{pid}/clear_refs", _CLEAR_REFS_HIWATER)


def _size_bytes(text: bytes, name: bytes) -> int:
    start = text.index(name) + len(name)
    return int(text[start : text.index(b"kB", start)]) * _KIB


_PERCPU_COUNTER_KERNEL = (6, 2)
_EXACT_SIZE_KERNEL = (6, 17)
SYS_CPU = "/sys/devices/system/cpu"


def high_water_precision_bytes() -> int:
    """Return how far the kernel's stored peak may lie from the truth.

    Since Linux 6.2 each of the three resident counts (anonymous, file, shared) is kept in batches of
    `max(32, 2 * cpus)` pages a CPU (lib/percpu_counter.c); before, in batches of 64 pages a thread.
    """
    cpus = cpu_count()
    batch_pages = max(32, 2 * cpus) if _kernel() >= _PERCPU_COUNTER_KERNEL else 64
    return 3 * batch_pages * cpus * PAGE_BYTES


def resident_precision_bytes() -> int:
    """Return how far the resident size may lie from the truth: on Linux 6.2 to 6.16 as far as the mark.

    Some distributions ship the correction in an older kernel: there this is more than need be.
    """
    approximate = _PERCPU_COUNTER_KERNEL <= _kernel() < _EXACT_SIZE_KERNEL
    return high_water_precision_bytes() if approximate else 0


def largest_fault_bytes() -> int:
    """Return what one page fault can add: a huge page if the kernel has them, else 64 kB (fault-around)."""
    try:
        return int(read("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size"))
    except (OSError, ValueError):
        return 64 * 2**10


def cpu_count() -> int:
    """Return how many CPUs the kernel can bring online, whatever this process may run on.

    Not `os.cpu_count()`, which `PYTHON_CPU_COUNT` changes, nor the affinity: neither changes the kernel's
    batches. CPUs that are merely possible (free slots of a virtual machine) hold no part of a count.
    """
    for name in ("present", "possible"):
        try:
            ranges = read(f"{SYS_CPU}/{name}").decode().strip().split(",")
            ends = [[int(end) for end in one.split("-")] for one in ranges]
            return sum(end[-1] - end[0] + 1 for end in ends)
        except (OSError, ValueError):
            continue
    try:
        return max(1, os.sysconf("SC_NPROCESSORS_CONF"))
    except (AttributeError, OSError, ValueError):
        return os.cpu_count() or 1


def _kernel() -> tuple[int, ...]:
    numbers = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return tuple(map(int, numbers.groups())) if numbers else (0, 0)


_FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"  # mallinfo(3)


def heap() -> Heap | None:
    """Return the bytes in use and those that malloc keeps; None unless it is glibc's, of 2.33 or later."""
    mallinfo2 = _mallinfo2()
    if mallinfo2 is None:
        return None
    info = mallinfo2()
    return Heap(info.uordblks + info.hblkhd, info.fordblks)


@cache
def _mallinfo2() -> Callable[[], Any] | None:
    try:
        import ctypes  # 2 ms of loading, which a terminal's shell has not done yet

        function = ctypes.PyDLL(None).mallinfo2  # with the GIL held: see `system_calls`
    except (AttributeError, ImportError, OSError, TypeError):  # not glibc, an older one, or Windows
        return None

    class MallInfo2(ctypes.Structure):
        _fields_ = tuple((name, ctypes.c_size_t) for name in _FIELDS.split())

    function.restype = MallInfo2
    return function


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
