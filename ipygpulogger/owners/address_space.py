"""The address space of this process: its mappings, what of them is resident, what imported libraries brought.

The list of mappings takes 2 us a range to read, so it is read only where something has to be looked up.
"""

from __future__ import annotations

import mmap
import os
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from ..runtime.shell import OUR_PACKAGE
from ..sources.system.linux import gil_held

PAGE_BYTES = mmap.PAGESIZE
_MAPS, _PAGEMAP = "/proc/self/maps", "/proc/self/pagemap"
_FILES_IN_MEMORY = b"/dev/zero", b"/dev/shm/", b"/memfd:", b"/SYSV", b"/dev/nvidia"
_CHECKED_BYTES = 1 << 29  # as many are looked up in the page table: 5 ms
_READ_PAGES = 1 << 17  # at once, of the page table: a megabyte
PRESENT = bytes(range(128, 256))  # the highest bit of an entry's highest byte, proc_pid_pagemap(5)


class MappedRange(NamedTuple):
    """One mapped range of addresses, as a line of /proc/self/maps."""

    start: int
    end: int
    path: bytes

    @property
    def is_file(self) -> bool:
        """Whether it shows a file's content; files that live in memory are memory."""
        return self.path.startswith(b"/") and not self.path.startswith(_FILES_IN_MEMORY)


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


def of_files(addresses: Iterable[int]) -> set[int]:
    """Return which of these addresses only show a file: a model opened with mmap, a table of Arrow's."""
    addresses = set(addresses)
    mapped = mapped_ranges() if addresses else []
    found = set()
    for address in addresses:
        place = bisect_right(mapped, address, key=lambda one: one.start) - 1
        if place >= 0 and address < mapped[place].end and mapped[place].is_file:
            found.add(address)
    return found


def resident_bytes(start: int, end: int) -> int:
    """Return how many bytes of a block are resident: none of a file, all beyond 512 MB or if unknown."""
    if of_files([start]):
        return 0
    last = min(end, start + _CHECKED_BYTES)
    first_page, last_page = start // PAGE_BYTES * PAGE_BYTES, -(-last // PAGE_BYTES) * PAGE_BYTES
    pages = page_table(first_page, last_page)
    if not pages:
        return end - start
    outside = (pages[0] in PRESENT) * (start - first_page) + (pages[-1] in PRESENT) * (last_page - last)
    return _count(pages) * PAGE_BYTES - outside + end - last


def _count(pages: bytes) -> int:
    return len(pages) - len(pages.translate(None, PRESENT))


def page_table(start: int, end: int) -> bytes:
    """Return a byte for each page that begins in a range, one of `PRESENT` if it is in the page table."""
    found, first, last = [], start // PAGE_BYTES, end // PAGE_BYTES
    with suppress(OSError), Path(_PAGEMAP).open("rb", buffering=0) as pagemap:
        for page in range(first, last, _READ_PAGES):
            entries = os.pread(pagemap.fileno(), 8 * min(_READ_PAGES, last - page), 8 * page)
            found.append(entries[7::8] if sys.byteorder == "little" else entries[::8])
        return b"".join(found)
    return b""


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
    mapped_bytes = PAGE_BYTES * sum(_count(page_table(*one)) for one in ranges)  # 0 without a page table
    ranked = sorted(packages, key=lambda name: (name in sys.stdlib_module_names, -packages[name]))
    named = [name for name in ranked[:_NAMED] if packages[name] >= _NAMED_SHARE * packages.total()]
    most_bytes = packages.total() * _PER_MODULE_BYTES + _PER_MAPPED_BYTE * mapped_bytes
    return tuple(named or ranked[:1]), most_bytes
