"""The address space of this process: what is mapped, which of it are files, and what of it is resident.

Read from ``/proc/self/maps``, ``/proc/self/pagemap`` and mincore(2); where they do not exist, nothing is
known.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from bisect import bisect_right
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_PAGE_BYTES = mmap.PAGESIZE
_ASKED_BYTES = 1 << 29  # of which mincore is asked: 3 ms
_READ_PAGES = 1 << 17  # at once, of the page table: a megabyte
_RESIDENT = bytes(byte & 1 for byte in range(256))  # mincore: the other bits are reserved
_PRESENT = bytes(range(128, 256))  # the highest bit of an entry's highest byte, proc_pid_pagemap(5)
_FILES_IN_MEMORY = b"/dev/zero", b"/dev/shm/", b"/memfd:", b"/SYSV", b"/dev/nvidia"


class _Mapping(NamedTuple):
    """A line of /proc/self/maps."""

    start: int
    end: int
    readable: bool
    path: bytes

    @property
    def is_file(self) -> bool:
        """Whether it shows a file's content; files that live in memory are memory."""
        return self.path.startswith(b"/") and not self.path.startswith(_FILES_IN_MEMORY)


def _mappings(part: bytes = b"") -> list[_Mapping] | None:
    """Return all that is mapped, by address, of lines with this part; None where that is unknown."""
    try:
        lines = Path("/proc/self/maps").read_bytes().splitlines()
    except OSError:
        return None
    return [_mapping_in(line) for line in lines if part in line]


def _mapping_in(line: bytes) -> _Mapping:
    place, access, *_, path = (*line.split(None, 5), b"")[:6]
    start, end = place.split(b"-")
    return _Mapping(int(start, 16), int(end, 16), access.startswith(b"r"), path)


def shared_objects() -> dict[str, list[tuple[int, int]]]:
    """Return each mapped shared object, and the ranges of addresses (start, end) where it is."""
    found: dict[str, list[tuple[int, int]]] = {}
    for mapping in _mappings(b".so") or ():
        found.setdefault(os.fsdecode(mapping.path), []).append((mapping.start, mapping.end))
    return found


def of_files(addresses: Iterable[int]) -> set[int]:
    """Return which of these addresses only show a file: a model opened with mmap, a table of Arrow's.

    Where that is unknown, none.
    """
    addresses = set(addresses)
    if not addresses:
        return addresses
    files = [mapping for mapping in _mappings() or () if mapping.is_file]
    starts = [mapping.start for mapping in files]
    found = set()
    for address in addresses:
        at = bisect_right(starts, address) - 1
        if at >= 0 and address < files[at].end:
            found.add(address)
    return found


def resident_bytes(blocks: Sequence[Iterable[tuple[int, int]]]) -> list[int]:
    """Return how many bytes of each of these blocks are resident memory; pages of a file do not count.

    Beyond the first 512 MB of them, what is mapped counts. Where neither is known, their length.

    Args:
        blocks: The ranges of addresses (start, end) of each.
    """
    mappings = _mappings() if blocks else None
    if mappings is None:
        return [sum(end - start for start, end in ranges) for ranges in blocks]
    starts = [mapping.start for mapping in mappings]
    found, left_bytes = [], _ASKED_BYTES
    for ranges in blocks:
        size_bytes = 0
        for start, end in ranges:
            for mapping in mappings[max(0, bisect_right(starts, start) - 1) : bisect_right(starts, end)]:
                first, last = max(start, mapping.start), min(end, mapping.end)
                if first < last and mapping.readable and not mapping.is_file:
                    asked = min(last, first + left_bytes)
                    size_bytes += _in_core(first, asked) + last - asked
                    left_bytes -= asked - first
        found.append(size_bytes)
    return found


def _in_core(start: int, end: int) -> int:
    """Return how many bytes of a mapped range mincore(2) says are resident; all of them where it fails."""
    first_page, end_page = start // _PAGE_BYTES, -(-end // _PAGE_BYTES)
    told = (ctypes.c_ubyte * (end_page - first_page))()
    try:
        # Python's own library sees all of libc.
        failed = ctypes.pythonapi.mincore(
            ctypes.c_void_p(first_page * _PAGE_BYTES), ctypes.c_size_t(len(told) * _PAGE_BYTES), told
        )
    except AttributeError:
        failed = True
    if failed or not told:
        return end - start
    pages = bytes(told).translate(_RESIDENT)
    outside = pages[0] * (start - first_page * _PAGE_BYTES) + pages[-1] * (end_page * _PAGE_BYTES - end)
    return pages.count(1) * _PAGE_BYTES - outside


def page_table_bytes(ranges: Iterable[tuple[int, int]]) -> int:
    """Return how many bytes of these ranges of addresses are in the page table, a file's pages included.

    0 where there is no page table to read.
    """
    count = 0
    with suppress(OSError), Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
        for start, end in ranges:
            first, last = start // _PAGE_BYTES, end // _PAGE_BYTES
            for page in range(first, last, _READ_PAGES):
                entries = os.pread(pagemap.fileno(), 8 * min(_READ_PAGES, last - page), 8 * page)
                highest = entries[7::8] if sys.byteorder == "little" else entries[::8]
                count += len(highest) - len(highest.translate(None, _PRESENT))
    return count * _PAGE_BYTES
