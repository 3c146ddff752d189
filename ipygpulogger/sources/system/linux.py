"""What Linux says of a process; `OSError` where a file cannot be read, `ValueError` where it is not Linux's.

A call of `os` releases the GIL, and a busy thread then keeps it for 5 ms. So what cannot wait is called
through `ctypes.PyDLL` (`gil_held`); what may wait or take long belongs to `os`.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from ...records import Heap

try:
    import resource as resource  # noqa: PLC0414 - for others, too
except ImportError:  # Windows
    resource: None = None  # type: ignore[no-redef]

_MOST_BYTES = MOST_PAGES = 65536  # of one read, and whose residency is asked for at once
_READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
_WRITE = os.O_WRONLY | getattr(os, "O_CLOEXEC", 0)


class Calls:
    """The calls by `os`, which releases the GIL. Each raises `OSError` if it fails."""

    _open: Callable[[str, int], int] = staticmethod(os.open)
    _write: Callable[[int, bytes], int] = staticmethod(os.write)
    _close: Callable[[int], object] = staticmethod(os.close)

    def read_file(self, path: str, *, whole: bool = False) -> bytes:
        """Return what the first read of a file returns, at most 64 KiB, or the `whole` of it."""
        fd = self._open(path, _READ)
        try:
            text = more = self.read(fd)
            while whole and more:
                more = self.read(fd)
                text = (text or b"") + (more or b"")
        finally:
            self._close(fd)
        if text is None:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)
        return text

    def write_file(self, path: str, text: bytes) -> None:
        """Write to a file that exists; raises `OSError`."""
        fd = self._open(path, _WRITE)
        try:
            self._write(fd, text)
        finally:
            self._close(fd)

    def read(self, fd: int) -> bytes | None:
        """Return what can be read at once; None if nothing can, from a descriptor that does not block."""
        try:
            return os.read(fd, _MOST_BYTES)
        except BlockingIOError:
            return None

    def has_children(self) -> bool:
        """Return whether this process has any child, running or ended; none is reaped."""
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except (AttributeError, ChildProcessError):  # the former on systems that do not list children either
            return False
        return True

    def resident_pages(self, start: int, size_bytes: int) -> bytes:  # noqa: ARG002 - the other class knows
        """Return a byte for each of at most `MOST_PAGES` pages, 1 if resident; empty if that is unknown."""
        return b""


class _HeldCalls(Calls):
    """The calls by the C library, through `ctypes` and with the GIL held."""

    def __init__(self) -> None:
        import ctypes  # 2 ms of loading, which a terminal's shell has not done yet

        self._c = c = ctypes.PyDLL(None, use_errno=True)
        number, address, size = ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t
        self._errno, self._close = ctypes.get_errno, c.close
        self._buffer = ctypes.c_char * _MOST_BYTES
        self._buffers: list[Any] = []  # unused ones; `append` and `pop` are atomic
        c.open.argtypes, c.close.argtypes = (ctypes.c_char_p, number), (number,)
        c.read.argtypes, c.write.argtypes = (number, address, size), (number, ctypes.c_char_p, size)
        c.waitid.argtypes, c.mincore.argtypes = (number, number, address, number), (address, size, address)
        c.read.restype = c.write.restype = ctypes.c_ssize_t

    def _open(self, path: str, flags: int) -> int:
        fd = int(self._c.open(path.encode(), flags))
        return fd if fd >= 0 else self._fail(path)

    def _write(self, fd: int, text: bytes) -> int:
        count = int(self._c.write(fd, text, len(text)))
        return count if count >= 0 else self._fail()

    def has_children(self) -> bool:
        found = self._c.waitid(os.P_ALL, 0, None, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return found == 0 or self._errno() != errno.ECHILD

    def read(self, fd: int) -> bytes | None:
        buffer = self._take()
        count = self._c.read(fd, buffer, _MOST_BYTES)
        if count < 0 and self._errno() != errno.EAGAIN:
            self._fail()
        text = bytes(buffer[:count]) if count >= 0 else None
        self._buffers.append(buffer)
        return text

    def resident_pages(self, start: int, size_bytes: int) -> bytes:
        buffer = self._take()
        is_known = self._c.mincore(start, size_bytes, buffer) == 0
        pages = bytes(buffer[: -(-size_bytes // PAGE_BYTES)]) if is_known else b""
        self._buffers.append(buffer)
        return pages

    def _take(self) -> Any:
        try:
            return self._buffers.pop()
        except IndexError:
            return self._buffer()

    def _fail(self, *path: str) -> NoReturn:
        """Raise why the last call failed. No signal interrupts calls for files in memory."""
        number = self._errno()
        raise OSError(number, os.strerror(number), *path)


@cache
def gil_held() -> Calls:
    """Return system calls that hold the GIL; those of `os` off Linux and where ctypes does not work."""
    try:
        return _HeldCalls() if sys.platform == "linux" else Calls()
    except (AttributeError, ImportError, OSError):  # an interpreter without ctypes, or linked statically
        return Calls()


PAGE_BYTES = resource.getpagesize() if resource else 4096
_UNIT_BYTES = 1 if sys.platform == "darwin" else 2**10  # of ru_maxrss, getrusage(2)


def faults_and_mark() -> tuple[tuple[int, ...], int]:
    """Return this process's page faults, and its mark: at least what it had before its last `exec`."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return (usage.ru_minflt, usage.ru_majflt), usage.ru_maxrss * _UNIT_BYTES


_KIB = 2**10
_CLEAR_REFS_HIWATER = b"5"  # proc(5): reset the peak resident set size
_WALKED = "/smaps_rollup"  # the kernel walks the page tables for this file, which takes milliseconds a GB


def read(path: str) -> bytes:
    """Return the first 64 KiB of a file; raises `OSError`."""
    return Path(path).read_bytes() if path.endswith(_WALKED) else gil_held().read_file(path)


def resident_and_mark_bytes(pid: int | str = "self") -> tuple[int, int]:
    """Return what a process has resident, and its high-water mark; raises `OSError` or `ValueError`."""
    status = read(f"/proc/{pid}/status")
    return _size_bytes(status, b"VmRSS:"), _size_bytes(status, b"VmHWM:")


def resident_bytes() -> int:
    """Return what this process has resident, from a file that the kernel writes faster."""
    return _possible(int(b"".join(read("/proc/self/statm").split()[1:2])) * PAGE_BYTES)


def resident_and_mapped_bytes() -> tuple[int, int]:
    """Return what this process has resident, and the part of it that is files and shared memory."""
    _, resident, mapped, *_ = read("/proc/self/statm").split()
    return int(resident) * PAGE_BYTES, int(mapped) * PAGE_BYTES


def thread_count() -> int:
    """Return the number of threads of this process, those of C libraries included; raises as the above."""
    return int(b"".join(read("/proc/self/stat").rpartition(b")")[2].split()[17:18]))


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
        with suppress(OSError) if again else nullcontext():  # a thread ended: its children are another's now
            lists = [read(f"{tasks}/{task}/children") for task in os.listdir(tasks)]  # noqa: PTH208 - names
            return tuple(map(int, b" ".join(lists).split()))
    raise AssertionError


def reset_mark(pid: int | str = "self") -> None:
    """Lower a process's high-water mark to what is resident now; raises `OSError`."""
    gil_held().write_file(f"/proc/{pid}/clear_refs", _CLEAR_REFS_HIWATER)


def _size_bytes(text: bytes, name: bytes) -> int:
    start = text.index(name) + len(name)
    return _possible(int(text[start : text.index(b"kB", start)]) * _KIB)


def _possible(size_bytes: int) -> int:
    if not 0 <= size_bytes < 1 << 53:
        raise ValueError(f"no machine has {size_bytes} bytes")
    return size_bytes


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
    with suppress(OSError, ValueError):
        return int(read("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size"))
    return 64 * 2**10


def cpu_count() -> int:
    """Return how many CPUs the kernel can bring online, after which it chooses its batches."""
    with suppress(OSError, ValueError):
        ranges = [one.split("-") for one in read(f"{SYS_CPU}/present").decode().strip().split(",")]
        return sum(int(ends[-1]) - int(ends[0]) + 1 for ends in ranges)
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
        import ctypes  # late: see above

        function = ctypes.PyDLL(None).mallinfo2  # with the GIL held: see above
    except (AttributeError, ImportError, OSError, TypeError):  # not glibc, an older one, or Windows
        return None

    class MallInfo2(ctypes.Structure):
        _fields_ = tuple((name, ctypes.c_size_t) for name in _FIELDS.split())

    function.restype = MallInfo2
    return function
