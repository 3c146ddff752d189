"""Memory of this process that is mapped: which of it are files, and what of it is resident.

Read from `address_space`, ``/proc/self/pagemap`` and mincore(2); where they do not exist, nothing is known.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from .address_space import address_space

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PAGE_BYTES = mmap.PAGESIZE
_ASKED_BYTES = 1 << 29  # of which mincore is asked: 3 ms
_READ_PAGES = 1 << 17  # at once, of the page table: a megabyte
_RESIDENT = bytes(byte & 1 for byte in range(256))  # mincore: the other bits are reserved
PRESENT = bytes(range(128, 256))  # the highest bit of an entry's highest byte, proc_pid_pagemap(5)


def shared_objects() -> dict[str, list[tuple[int, int]]]:
    """Return each mapped shared object, and the ranges of addresses (start, end) where it is."""
    found: dict[str, list[tuple[int, int]]] = {}
    with address_space() as mapped:
        for one in () if mapped is None else mapped.shared_objects():
            found.setdefault(os.fsdecode(one.path), []).append((one.start, one.end))
    return found


def of_files(addresses: Iterable[int]) -> set[int]:
    """Return which of these addresses only show a file: a model opened with mmap, a table of Arrow's.

    Where that is unknown, none.
    """
    addresses = set(addresses)
    if not addresses:
        return addresses
    with address_space() as mapped:
        if mapped is None:
            return set()
        ranges = {address: mapped.at(address) for address in addresses}
    return {address for address, one in ranges.items() if one is not None and one.is_file}


def resident_bytes(blocks: Sequence[Iterable[tuple[int, int]]]) -> list[int]:
    """Return how many bytes of each of these blocks are resident memory; pages of a file do not count.

    Beyond the first 512 MB of them, what is mapped counts. Where neither is known, their length.

    Args:
        blocks: The ranges of addresses (start, end) of each.
    """
    if not blocks:
        return []
    found, left_bytes = [], _ASKED_BYTES
    with address_space() as mapped:
        if mapped is None:
            return [sum(end - start for start, end in ranges) for ranges in blocks]
        for ranges in blocks:
            size_bytes = 0
            for start, end in ranges:
                at = start
                while at < end and (one := mapped.at_or_after(at)) is not None and one.start < end:
                    first, last = max(start, one.start), min(end, one.end)
                    if one.readable and not one.is_file:
                        asked = min(last, first + left_bytes)
                        size_bytes += _in_core(first, asked) + last - asked
                        left_bytes -= asked - first
                    at = one.end
            found.append(size_bytes)
    return found


def _in_core(start: int, end: int) -> int:
    """Return how many bytes of a mapped range mincore(2) says are resident; all of them where it fails."""
    first_page, end_page = start // PAGE_BYTES, -(-end // PAGE_BYTES)
    told = (ctypes.c_ubyte * (end_page - first_page))()
    try:
        # Python's own library sees all of libc.
        failed = ctypes.pythonapi.mincore(
            ctypes.c_void_p(first_page * PAGE_BYTES), ctypes.c_size_t(len(told) * PAGE_BYTES), told
        )
    except AttributeError:
        failed = True
    if failed or not told:
        return end - start
    pages = bytes(told).translate(_RESIDENT)
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
    start = end = 0
    with address_space() as mapped:
        while mapped is not None and (one := mapped.at_or_after(end)) is not None:
            if one.path == b"[heap]":  # adjacent ranges, of different access or history
                start = start or one.start
            elif start:
                return start, end
            end = one.end
    return (start, end) if start else None
