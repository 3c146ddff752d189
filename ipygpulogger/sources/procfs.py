"""The files of Linux about a process's memory, below `/proc`.

They are opened for each look. After a fork, a descriptor that was kept open would still speak of the
parent, and a reset through it would be the parent's.
"""

from __future__ import annotations

import re

from . import rusage
from .system_calls import gil_held

_KIB = 2**10
_CLEAR_REFS_HIWATER = b"5"  # proc(5): reset the peak resident set size
_WALKED = "/smaps_rollup"  # the kernel walks the page tables for this file, which takes milliseconds a GB


def read(path: str) -> bytes:
    """Return the first 64 KiB of a file.

    Raises:
        OSError: It cannot be read.
    """
    calls = gil_held()
    return calls.read_slow_file(path) if path.endswith(_WALKED) else calls.read_file(path)


def resident_and_mark_bytes(pid: int | str = "self") -> tuple[int, int]:
    """Return what a process has resident, and its high-water mark.

    Raises:
        OSError: There is no such process, or the system has no such file.
        ValueError: The kernel shows no high-water mark (gVisor), or the process is a zombie.
    """
    status = read(f"/proc/{pid}/status")
    return _size_bytes(status, b"VmRSS:"), _size_bytes(status, b"VmHWM:")


def resident_bytes() -> int:
    """Return what this process has resident, from a file that the kernel writes faster.

    Raises:
        OSError: It cannot be read.
        ValueError: It is not as Linux writes it.
    """
    return int(read("/proc/self/statm").split()[1]) * rusage.PAGE_BYTES


def walked_resident_bytes() -> int:
    """Return what this process has resident, as the kernel finds it by walking the page tables.

    Raises:
        OSError: The file does not exist before Linux 4.14, or may not be read.
        ValueError: It is not as Linux writes it.
    """
    return _size_bytes(read(f"/proc/self{_WALKED}"), b"\nRss:")


def rollup_bytes(pid: int) -> dict[str, int]:
    """Return the sizes of a process's ``smaps_rollup`` by name; the kernel walks all its pages for it.

    Raises:
        OSError: It ended, or the file does not exist before Linux 4.14, or may not be read.
        ValueError: It is not as Linux writes it.
    """
    sizes = re.findall(rb"^(\w+): *(\d+) kB", read(f"/proc/{pid}{_WALKED}"), re.MULTILINE)
    found = {name.decode(): int(size) * _KIB for name, size in sizes}
    if not {"Rss", "Private_Clean", "Private_Dirty"} <= found.keys():
        raise ValueError(f"/proc/{pid}{_WALKED} lacks sizes")
    return found


def children_of(pid: int) -> tuple[int, ...]:
    """Return the pids of a process's children.

    Raises:
        OSError: It ended, or the kernel does not list children.
    """
    tasks = f"/proc/{pid}/task"
    lists = [read(f"{tasks}/{task}/children") for task in gil_held().list_folder(tasks)]
    return tuple(map(int, b" ".join(lists).split()))


def reset_mark(pid: int | str = "self") -> None:
    """Lower a process's high-water mark to what is resident now.

    Raises:
        OSError: The process has ended, or reading it is not permitted.
    """
    gil_held().write_file(f"/proc/{pid}/clear_refs", _CLEAR_REFS_HIWATER)


def _size_bytes(text: bytes, name: bytes) -> int:
    start = text.index(name) + len(name)
    return int(text[start : text.index(b"kB", start)]) * _KIB
