"""The address space of this process: its mappings, what of them is resident, what imported libraries brought.

The list of mappings takes 2 us a range to read, so it is read only where something has to be looked up.
"""

from __future__ import annotations

import itertools
import mmap
import os
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Container, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from ..runtime import clock
from ..runtime.shell import OUR_PACKAGE
from ..sources.system.linux import MOST_PAGES, gil_held

PAGE_BYTES = mmap.PAGESIZE
_MAPS = "/proc/self/maps"
_SHARED = b"/dev/zero", b"/dev/shm/", b"/memfd:", b"/SYSV"
_PRESENT = bytes(range(128, 256))  # the highest bit of an entry's highest byte, proc_pid_pagemap(5)
_BUDGET_S = 0.004  # for finding out what is resident of all blocks
_MOST_BYTES = MOST_PAGES * PAGE_BYTES  # whose residency is asked for at once: 0.02 to 0.2 ms


class MappedRange(NamedTuple):
    """One mapped range of addresses, as a line of /proc/self/maps."""

    start: int
    end: int
    path: bytes

    @property
    def is_file(self) -> bool:
        """Whether it shows a file's content; files that live in memory, and a driver's, are memory."""
        return self.path.startswith(b"/") and not self.path.startswith((*_SHARED, b"/dev/nvidia"))

    @property
    def has_pages(self) -> bool:
        """Whether the kernel knows which of its pages are resident; of a driver's memory it does not."""
        return not self.path or self.path.startswith((b"[", *_SHARED))


def mapped_ranges() -> list[MappedRange]:
    """Return the ranges that are mapped now, in order; none where they are unknown."""
    found = []
    with suppress(OSError, ValueError):
        for line in gil_held().read_file(_MAPS, whole=True).splitlines():
            place, *_, path = (*line.split(None, 5), b"")[:6]
            start, end = (int(one, 16) for one in place.split(b"-"))
            found.append(MappedRange(start, end, path))
    return found


def shared_objects() -> dict[str, list[tuple[int, int]]]:
    """Return each mapped shared object, and the ranges of addresses (start, end) where it is."""
    found: dict[str, list[tuple[int, int]]] = {}
    for one in mapped_ranges():
        if b".so" in one.path:
            found.setdefault(os.fsdecode(one.path), []).append((one.start, one.end))
    return found


def ranges_at(addresses: Collection[int]) -> dict[int, MappedRange]:
    """Return the range that each of these addresses is in, where it is known."""
    mapped, found = mapped_ranges() if addresses else [], {}
    for address in addresses:
        place = bisect_right(mapped, address, key=lambda one: one.start) - 1
        if place >= 0 and address < mapped[place].end:
            found[address] = mapped[place]
    return found


def resident_bytes(start: int, end: int) -> int:
    """Return how many bytes of mapped memory are resident, as mincore(2) says; all if that is unknown."""
    found_bytes = 0
    for first in range(start // PAGE_BYTES * PAGE_BYTES, end, _MOST_BYTES):
        last = min(end, first + _MOST_BYTES)
        pages = gil_held().resident_pages(first, last - first)
        if not pages:
            return end - start
        outside = pages[0] * max(0, start - first) + pages[-1] * (-last % PAGE_BYTES)
        found_bytes += pages.count(1) * PAGE_BYTES - outside
    return found_bytes


class Residency:
    """How much of large blocks is resident. Of one that was full the last time, a few pages are looked at."""

    def __init__(self) -> None:
        # By address, at the last time: the size, and what was resident.
        self._seen: dict[int, tuple[int, int]] = {}

    def of(self, sizes: Mapping[int, int], mapped: Container[int]) -> dict[int, int]:
        """Return how many bytes of each block are resident, by address; none of a block that shows a file.

        Of very many blocks not all are looked at again: for the others the figure of the last time stands in.

        Args:
            sizes: By address, in bytes.
            mapped: The addresses of those that may show a file.
        """
        late_s, seen = clock.thread_s() + _BUDGET_S, dict[int, tuple[int, int]]()
        known = {at: was for at, was in self._seen.items() if was[0] == sizes.get(at)}
        for start, size_bytes in sizes.items():
            was = known.get(start)
            was_full = size_bytes > _MOST_BYTES and was == (size_bytes, size_bytes)
            in_time = clock.thread_s() <= late_s
            if was is None or (in_time and not (was_full and _may_be_full(start, size_bytes))):
                was = size_bytes, resident_bytes(start, start + size_bytes)
            seen[start] = was
        found = {start: resident for start, (_, resident) in seen.items()}
        fresh = [start for start in seen.keys() - known.keys() if start in mapped or not found[start]]
        for start, where in ranges_at(fresh).items():
            if where.is_file or not (found[start] or where.has_pages):
                found[start] = 0 if where.is_file else sizes[start]
                del seen[start]  # so that its range is looked up again
        self._seen = seen
        return found


def _may_be_full(start: int, size_bytes: int) -> bool:
    """Return whether eight pages of it are resident: not so if it was freed, and another has its address."""
    return all(resident_bytes(at, at + 1) for at in range(start + size_bytes - 1, start, -size_bytes // 8))


def _in_page_table(start: int, end: int) -> int:
    """Return how many bytes of a file this process has read; `resident_bytes` counts others' reads, too."""
    with suppress(OSError), Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
        entries = os.pread(pagemap.fileno(), 8 * (end - start) // PAGE_BYTES, 8 * start // PAGE_BYTES)
        highest = entries[7 if sys.byteorder == "little" else 0 :: 8]
        return PAGE_BYTES * (len(highest) - len(highest.translate(None, _PRESENT)))
    return 0


# -- the general RAM that came with imported libraries, at most
#
# No counter tells how much of the heap is theirs. Measured with Python 3.11, beside twice the resident part
# of their shared objects: sympy takes 67 KB a module, torch._dynamo 64, torch and matplotlib 49, others less.
_PER_MODULE_BYTES = 96 << 10
_PER_MAPPED_BYTE = 2
_NAMED = 3
_NAMED_SHARE = 0.1  # of all modules: a library that brought fewer is not named


class LibrariesNow(NamedTuple):
    """The libraries of the process at one moment."""

    modules: frozenset[str]  # their names in `sys.modules`
    # the shared objects that are mapped, and where; none where that is unknown
    files: dict[str, list[tuple[int, int]]]


def libraries() -> LibrariesNow:
    """Return the libraries of this process now; read again only when modules came or went."""
    return _libraries(len(sys.modules))


@lru_cache(1)
def _libraries(_modules: int) -> LibrariesNow:
    names = (name for name in list(sys.modules) if type(name) is str)
    return LibrariesNow(frozenset(names), shared_objects())


def libraries_since(before: LibrariesNow) -> tuple[tuple[str, ...], int]:
    """Return the packages of most modules imported since, and the most general RAM of all together."""
    now = libraries()
    packages = Counter(name.partition(".")[0] for name in now.modules - before.modules)
    del packages[OUR_PACKAGE]
    ranges = [one for file in now.files.keys() - before.files.keys() for one in now.files[file]]
    mapped_bytes = sum(itertools.starmap(_in_page_table, ranges))
    ranked = sorted(packages, key=lambda name: (name in sys.stdlib_module_names, -packages[name]))
    named = [name for name in ranked[:_NAMED] if packages[name] >= _NAMED_SHARE * packages.total()]
    most_bytes = packages.total() * _PER_MODULE_BYTES + _PER_MAPPED_BYTE * mapped_bytes
    return tuple(named or ranked[:1]), most_bytes
