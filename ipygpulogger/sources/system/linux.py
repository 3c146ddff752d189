"""What Linux says of a process; `OSError` if a file cannot be read, `ValueError` if it is not as on Linux."""

from __future__ import annotations

import os
import re
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

from ...records import Heap

if TYPE_CHECKING:
    from collections.abc import Callable

try:
    import resource as resource  # noqa: PLC0414 - for others, too
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

MOST_BYTES = 65536  # of one read
_READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
_WRITE = os.O_WRONLY | getattr(os, "O_CLOEXEC", 0)


def read(path: str) -> bytes:
    """Return what the first read of a file returns, at most 64 KiB; raises `OSError`."""
    fd = os.open(path, _READ)
    try:
        return os.read(fd, MOST_BYTES)
    finally:
        os.close(fd)


def has_children() -> bool:
    """Return whether this process has any child, running or ended; none is reaped."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    except AttributeError:  # not everywhere
        pass
    return True


PAGE_BYTES = resource.getpagesize() if resource else 4096
_UNIT_BYTES = 1 if sys.platform == "darwin" else 2**10  # of ru_maxrss, getrusage(2)


def faults_and_mark() -> tuple[tuple[int, ...], int]:
    """Return this process's page faults, and its mark: at least what it had before its last `exec`."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return (usage.ru_minflt, usage.ru_majflt), usage.ru_maxrss * _UNIT_BYTES


_KIB = 2**10
_CLEAR_REFS_HIWATER = b"5"  # proc(5): reset the peak resident set size


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


def rollup_bytes(pid: int | str) -> dict[str, int]:
    """Return the sizes of a process's ``smaps_rollup`` by name; the kernel walks all its pages for it."""
    sizes = re.findall(rb"^(\w+): *(\d+) kB", read(f"/proc/{pid}/smaps_rollup"), re.MULTILINE)
    found = {name.decode(): int(size) * _KIB for name, size in sizes}
    if not {"Rss", "Private_Clean", "Private_Dirty"} <= found.keys():
        raise ValueError(f"/proc/{pid}/smaps_rollup lacks sizes")
    return found


def children_of(pid: int) -> tuple[int, ...]:
    """Return the pids of a process's children; raises `OSError`."""
    tasks = f"/proc/{pid}/task"
    for again in (True, True, False):
        try:
            lists = [read(f"{tasks}/{task}/children") for task in os.listdir(tasks)]  # noqa: PTH208 - names
            return tuple(map(int, b" ".join(lists).split()))
        except OSError:  # a thread may have ended just now, and its children are another thread's
            if not again:
                raise
    raise AssertionError


def reset_mark(pid: int | str = "self") -> None:
    """Lower a process's high-water mark to what is resident now; raises `OSError`."""
    fd = os.open(f"/proc/{pid}/clear_refs", _WRITE)
    try:
        os.write(fd, _CLEAR_REFS_HIWATER)
    finally:
        os.close(fd)


def _size_bytes(text: bytes, name: bytes) -> int:
    start = text.index(name) + len(name)
    return int(text[start : text.index(b"kB", start)]) * _KIB


# Since Linux 6.2 each CPU keeps a part of every count to itself (f1a7941243c1): a sum over what it publishes
# is approximate. From 6.17 on the resident size, but not its mark, is summed over all parts (82241a83cd15).
_PERCPU_COUNTER_KERNEL = (6, 2)
_EXACT_SIZE_KERNEL = (6, 17)
SYS_CPU = "/sys/devices/system/cpu"


def high_water_precision_bytes() -> int:
    """Return how far the kernel's stored peak may lie from the truth.

    Each of three counts is kept in batches of pages a CPU (lib/percpu_counter.c); before 6.2, a thread.
    """
    cpus = cpu_count()
    batch_pages = max(32, 2 * cpus) if _kernel() >= _PERCPU_COUNTER_KERNEL else 64
    return 3 * batch_pages * cpus * PAGE_BYTES


def resident_precision_bytes() -> int:
    """Return how far the resident size may lie from the truth; more than need be where it was corrected."""
    approximate = _PERCPU_COUNTER_KERNEL <= _kernel() < _EXACT_SIZE_KERNEL
    return high_water_precision_bytes() if approximate else 0


def largest_fault_bytes() -> int:
    """Return what one page fault can add: a huge page if the kernel has them, else 64 kB (fault-around)."""
    try:
        return int(read("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size"))
    except (OSError, ValueError):
        return 64 * 2**10


def cpu_count() -> int:
    """Return how many CPUs the kernel can bring online, after which it chooses its batches."""
    try:
        ranges = [one.split("-") for one in read(f"{SYS_CPU}/present").decode().strip().split(",")]
        return sum(int(ends[-1]) - int(ends[0]) + 1 for ends in ranges)
    except (OSError, ValueError):
        return max(1, os.sysconf("SC_NPROCESSORS_CONF"))


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

        function = ctypes.PyDLL(None).mallinfo2
    except (AttributeError, ImportError, OSError, TypeError):  # not glibc, an older one, or Windows
        return None

    class MallInfo2(ctypes.Structure):
        _fields_ = tuple((name, ctypes.c_size_t) for name in _FIELDS.split())

    function.restype = MallInfo2
    return function
