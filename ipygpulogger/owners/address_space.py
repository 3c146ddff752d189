"""The address space of this process: its mappings, and the memory of mapped files.

Read from ``/proc/self/maps``, ``/proc/self/pagemap`` and mincore(2); without these nothing is known.
The list of mappings takes 2 us a range to read, so it is read only where something has to be looked up.
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

from ..sources.system.linux import gil_held

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_PATH = "/proc/self/maps"
_FILES_IN_MEMORY = b"/dev/zero", b"/dev/shm/", b"/memfd:", b"/SYSV", b"/dev/nvidia"


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


class AddressSpace:
    """The ranges that are mapped now."""

    def __init__(self, listing: bytes) -> None:
        self.ranges = [_range_in(line) for line in listing.splitlines()]
        self._starts = [one.start for one in self.ranges]

    def at(self, address: int) -> MappedRange | None:
        """Return the range that an address lies in."""
        found = self.at_or_after(address)
        return found if found is not None and found.start <= address else None

    def at_or_after(self, address: int) -> MappedRange | None:
        """Return the range that an address lies in, or else the next one."""
        place = max(0, bisect_right(self._starts, address) - 1)
        return next((one for one in self.ranges[place : place + 2] if address < one.end), None)


def address_space() -> AddressSpace | None:
    """Return the ranges that are mapped now; None where they are unknown."""
    try:
        return AddressSpace(gil_held().read_file(_PATH, whole=True))
    except OSError:
        return None


def _range_in(line: bytes) -> MappedRange:
    place, access, *_, path = (*line.split(None, 5), b"")[:6]
    start, end = place.split(b"-")
    return MappedRange(int(start, 16), int(end, 16), access.startswith(b"r"), path)


PAGE_BYTES = mmap.PAGESIZE
_CHECKED_BYTES = 1 << 29  # as many are looked up with mincore: 3 ms
_READ_PAGES = 1 << 17  # at once, of the page table: a megabyte
_RESIDENT = bytes(byte & 1 for byte in range(256))  # mincore: the other bits are reserved
PRESENT = bytes(range(128, 256))  # the highest bit of an entry's highest byte, proc_pid_pagemap(5)


def shared_objects() -> dict[str, list[tuple[int, int]]]:
    """Return each mapped shared object, and the ranges of addresses (start, end) where it is."""
    found: dict[str, list[tuple[int, int]]] = {}
    mapped = address_space()
    for one in () if mapped is None else mapped.ranges:
        if b".so" in one.path:
            found.setdefault(os.fsdecode(one.path), []).append((one.start, one.end))
    return found


def of_files(addresses: Iterable[int]) -> set[int]:
    """Return which of these addresses only show a file: a model opened with mmap, a table of Arrow's.

    Where that is unknown, none.
    """
    addresses = set(addresses)
    mapped = address_space() if addresses else None
    if mapped is None:
        return set()
    ranges = {address: mapped.at(address) for address in addresses}
    return {address for address, one in ranges.items() if one is not None and one.is_file}


def resident_bytes(ranges: Sequence[tuple[int, int]]) -> list[int]:
    """Return how many bytes of each range (start, end) are resident memory; a file's pages do not count.

    Beyond the first 512 MB of them, what is mapped counts. Where neither is known, their length.
    """
    if not ranges:
        return []
    found, left_bytes = [], _CHECKED_BYTES
    mapped = address_space()
    if mapped is None:
        return [end - start for start, end in ranges]
    for start, end in ranges:
        size_bytes, at = 0, start
        while at < end and (one := mapped.at_or_after(at)) is not None and one.start < end:
            first, last = max(start, one.start), min(end, one.end)
            if one.readable and not one.is_file:
                looked_up = min(last, first + left_bytes)
                size_bytes += _in_core(first, looked_up) + last - looked_up
                left_bytes -= looked_up - first
            at = one.end
        found.append(size_bytes)
    return found


def _in_core(start: int, end: int) -> int:
    """Return how many bytes of a mapped range mincore(2) says are resident; all of them where it fails."""
    first_page, end_page = start // PAGE_BYTES, -(-end // PAGE_BYTES)
    states = (ctypes.c_ubyte * (end_page - first_page))()
    try:
        # Python's own library sees all of libc.
        failed = ctypes.pythonapi.mincore(
            ctypes.c_void_p(first_page * PAGE_BYTES), ctypes.c_size_t(len(states) * PAGE_BYTES), states
        )
    except AttributeError:
        failed = True
    if failed or not states:
        return end - start
    pages = bytes(states).translate(_RESIDENT)
    outside = pages[0] * (start - first_page * PAGE_BYTES) + pages[-1] * (end_page * PAGE_BYTES - end)
    return pages.count(1) * PAGE_BYTES - outside


def page_table_bytes(ranges: Iterable[tuple[int, int]]) -> int:
    """Return how many bytes of these ranges of addresses are in the page table, a file's pages included.

    0 where there is no page table to read.
    """
    count = 0
    for start, end in ranges:
        pages = page_table(start, end)
        count += len(pages) - len(pages.translate(None, PRESENT))
    return count * PAGE_BYTES


def page_table(start: int, end: int) -> bytes:
    """Return a byte for each page of a range of addresses, one of `PRESENT` if it is in the page table.

    A page counts for the range in which it begins. Empty where there is no page table to read.
    """
    found, first, last = [], start // PAGE_BYTES, end // PAGE_BYTES
    with suppress(OSError), Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
        for page in range(first, last, _READ_PAGES):
            entries = os.pread(pagemap.fileno(), 8 * min(_READ_PAGES, last - page), 8 * page)
            found.append(entries[7::8] if sys.byteorder == "little" else entries[::8])
        return b"".join(found)
    return b""


def main_heap() -> tuple[int, int] | None:
    """Return where malloc's main heap begins and ends; None where that is unknown.

    The heaps that other threads use, and large blocks, lie elsewhere.
    """
    mapped = address_space()
    heap = [one for one in mapped.ranges if one.path == b"[heap]"] if mapped is not None else []
    return (heap[0].start, heap[-1].end) if heap else None  # adjacent ranges, of different access or history
