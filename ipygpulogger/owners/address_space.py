"""The address space of this process: its mappings, what of them is resident, what imported libraries brought.

The list of mappings takes 2 us a range to read, so it is read only where something has to be looked up.
"""

from __future__ import annotations

import mmap
import os
import sys
from bisect import bisect_right
from collections import Counter
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from ..runtime.shell import OUR_PACKAGE, module_namespace
from ..sources.system.linux import gil_held

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

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
    readable: bool
    path: bytes

    @property
    def is_file(self) -> bool:
        """Whether it shows a file's content; files that live in memory are memory."""
        return self.path.startswith(b"/") and not self.path.startswith(_FILES_IN_MEMORY)


def mapped_ranges() -> list[MappedRange]:
    """Return the ranges that are mapped now, in order; none where they are unknown."""
    with suppress(OSError):
        return [_range_in(line) for line in gil_held().read_file(_MAPS, whole=True).splitlines()]
    return []


def _range_in(line: bytes) -> MappedRange:
    place, access, *_, path = (*line.split(None, 5), b"")[:6]
    start, end = (int(one, 16) for one in place.split(b"-"))
    return MappedRange(start, end, access.startswith(b"r"), path)


def _overlapping(mapped: list[MappedRange], start: int, end: int) -> Iterator[MappedRange]:
    """Yield which of the mapped ranges a range of addresses overlaps."""
    for place in range(max(0, bisect_right(mapped, start, key=lambda one: one.start) - 1), len(mapped)):
        if mapped[place].start >= end:
            return
        if mapped[place].end > start:
            yield mapped[place]


def shared_objects() -> dict[str, list[tuple[int, int]]]:
    """Return each mapped shared object, and the ranges of addresses (start, end) where it is."""
    found: dict[str, list[tuple[int, int]]] = {}
    for one in mapped_ranges():
        if b".so" in one.path:
            found.setdefault(os.fsdecode(one.path), []).append((one.start, one.end))
    return found


def main_heap() -> tuple[int, int] | None:
    """Return where malloc's main heap begins and ends; None where that is unknown.

    The heaps that other threads use, and large blocks, lie elsewhere.
    """
    heap = [one for one in mapped_ranges() if one.path == b"[heap]"]
    return (heap[0].start, heap[-1].end) if heap else None  # adjacent ranges, of different access or history


def of_files(addresses: Iterable[int]) -> set[int]:
    """Return which of these addresses only show a file: a model opened with mmap, a table of Arrow's."""
    addresses = set(addresses)
    mapped = mapped_ranges() if addresses else []
    return {at for at in addresses if any(one.is_file for one in _overlapping(mapped, at, at + 1))}


def resident_bytes(ranges: Sequence[tuple[int, int]]) -> list[int]:
    """Return how many bytes of each range (start, end) are resident memory; a file's pages do not count.

    Beyond the first 512 MB, and without a page table, what is mapped counts; else the ranges' length.
    """
    mapped = mapped_ranges() if ranges else []
    if not mapped:
        return [end - start for start, end in ranges]
    found, left_bytes = [], _CHECKED_BYTES
    for start, end in ranges:
        size_bytes = 0
        for one in _overlapping(mapped, start, end):
            if one.readable and not one.is_file:
                first, last = max(start, one.start), min(end, one.end)
                looked_up = min(last, first + left_bytes)
                size_bytes += _present_bytes(first, looked_up) + last - looked_up
                left_bytes -= looked_up - first
        found.append(size_bytes)
    return found


def _present_bytes(start: int, end: int) -> int:
    """Return how many bytes of a range are in the page table; all of them where there is none to read."""
    first, last = start // PAGE_BYTES * PAGE_BYTES, -(-end // PAGE_BYTES) * PAGE_BYTES
    pages = page_table(first, last)
    if not pages:
        return end - start
    outside = (pages[0] in PRESENT) * (start - first) + (pages[-1] in PRESENT) * (last - end)
    return _count(pages) * PAGE_BYTES - outside


def page_table_bytes(ranges: Iterable[tuple[int, int]]) -> int:
    """Return how many bytes of these ranges are in the page table, files included; 0 where there is none."""
    return PAGE_BYTES * sum(_count(page_table(start, end)) for start, end in ranges)


def _count(pages: bytes) -> int:
    return len(pages) - len(pages.translate(None, PRESENT))


def page_table(start: int, end: int) -> bytes:
    """Return a byte for each page of a range of addresses, one of `PRESENT` if it is in the page table.

    A page counts for the range in which it begins. Empty where there is no page table to read.
    """
    found, first, last = [], start // PAGE_BYTES, end // PAGE_BYTES
    with suppress(OSError), Path(_PAGEMAP).open("rb", buffering=0) as pagemap:
        for page in range(first, last, _READ_PAGES):
            entries = os.pread(pagemap.fileno(), 8 * min(_READ_PAGES, last - page), 8 * page)
            found.append(entries[7::8] if sys.byteorder == "little" else entries[::8])
        return b"".join(found)
    return b""


# -- the general RAM that came with imported libraries, at most
#
# It is derived from the modules that are new in `sys.modules` and the shared objects that are newly mapped.
# Measured with Python 3.11: beside the resident part of their shared objects numpy, pandas, matplotlib,
# torch._dynamo and torch._inductor take 2.4 to 3.4 times the size of their compiled files. torch takes
# another 70 MB, which its shared objects allocate as they are loaded; 90 MB of these are resident.
_PER_CODE_BYTE = 4
_PER_MAPPED_BYTE = 2
_NAMED = 3
_NAMED_SHARE = 0.1  # of the whole: a library that brought less is not named


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
    """Return the packages imported since that brought the most, and the most general RAM of all of them."""
    now = libraries()
    brought: Counter[str] = Counter()
    for name, size_bytes in _code_bytes(now.modules - before.modules):
        brought[name.partition(".")[0]] += _PER_CODE_BYTE * size_bytes
    packages = set(brought)
    for file in now.files.keys() - before.files.keys():
        folders = (folder.partition(".")[0] for folder in file.split("/"))
        owner = next((folder for folder in folders if folder in packages), "")
        brought[owner] += _PER_MAPPED_BYTE * page_table_bytes(now.files[file])
    ranked = sorted(packages, key=lambda name: (name in sys.stdlib_module_names, -brought[name]))
    named = [name for name in ranked[:_NAMED] if brought[name] >= _NAMED_SHARE * brought.total()]
    return tuple(named or ranked[:1]), brought.total()


def _code_bytes(names: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield the sizes of modules' files: compiled, or the source where the compiled file is not kept."""
    for name in names:
        module = sys.modules.get(name)
        if issubclass(type(module), ModuleType) and name.partition(".")[0] != OUR_PACKAGE:
            namespace = module_namespace(module)
            for file in (namespace.get("__cached__"), namespace.get("__file__")):
                if type(file) is str and file.endswith((".pyc", ".py")):
                    with suppress(OSError, ValueError):
                        yield name, Path(file).stat().st_size
                        break
