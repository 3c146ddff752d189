"""The address space of this process: its mappings, and the memory of mapped files.

Linux 6.11 and later answer for one address at a time, in a microsecond. Before that the whole list is read,
which takes 2 us a range: 0.1 s where 60,000 are mapped.

Read from `address_space`, ``/proc/self/pagemap`` and mincore(2); where they do not exist, nothing is known.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
import sys
from bisect import bisect_right
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..sources.system.system_calls import gil_held

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_PATH = "/proc/self/maps"
_FILES_IN_MEMORY = b"/dev/zero", b"/dev/shm/", b"/memfd:", b"/SYSV", b"/dev/nvidia"
# From linux/fs.h: PROCMAP_QUERY is _IOWR('f', 17, struct procmap_query).
_READABLE, _EXECUTABLE, _OR_NEXT = 0x01, 0x04, 0x10
_NAME_BYTES = 8192
_Name = ctypes.c_char * _NAME_BYTES  # kept: made anew for each buffer, the class would be garbage


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


class AddressSpace(Protocol):
    """The mapped ranges."""

    def at(self, address: int) -> MappedRange | None:
        """Return the range that an address lies in."""

    def at_or_after(self, address: int) -> MappedRange | None:
        """Return the range that an address lies in, or else the next one."""

    def shared_objects(self) -> Iterator[MappedRange]:
        """Yield the ranges of mapped shared objects."""


@contextmanager
def address_space() -> Iterator[AddressSpace | None]:
    """Yield the ranges that are mapped now; None where they are unknown."""
    try:
        fd = gil_held().open_file(_PATH)
    except (AttributeError, OSError):
        yield None
        return
    try:
        queried = _Queried(fd)
        yield queried if queried.works() else _Listed(fd)
    finally:
        gil_held().close(fd)


class _Query(ctypes.Structure):
    """The kernel's struct procmap_query."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("size", "query_flags", "query_addr", "vma_start", "vma_end")),
        *((name, ctypes.c_uint64) for name in ("vma_flags", "vma_page_size", "vma_offset", "inode")),
        *((name, ctypes.c_uint32) for name in ("dev_major", "dev_minor", "vma_name_size", "build_id_size")),
        *((name, ctypes.c_uint64) for name in ("vma_name_addr", "build_id_addr")),
    )


_PROCMAP_QUERY = 3 << 30 | ctypes.sizeof(_Query) << 16 | ord("f") << 8 | 17


class _Queried:
    """Asks the kernel for each range, with the GIL held."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._name = _Name()

    def works(self) -> bool:
        """Return whether the kernel answers."""
        try:
            return self.at_or_after(0) is not None
        except (AttributeError, OSError):
            return False

    def at(self, address: int) -> MappedRange | None:
        return self._ask(address, 0)

    def at_or_after(self, address: int) -> MappedRange | None:
        return self._ask(address, _OR_NEXT)

    def shared_objects(self) -> Iterator[MappedRange]:
        """Yield them: the code of each, and what is mapped of the same file right before and behind it."""
        address = 0
        while (code := self._ask(address, _EXECUTABLE | _OR_NEXT)) is not None:
            address = code.end
            if b".so" not in code.path:
                continue
            before, part = [], code
            while (lower := self.at(part.start - 1)) is not None and lower.path == code.path:
                before.append(lower)
                part = lower
            yield from reversed(before)
            yield code
            while (upper := self.at(address)) is not None and upper.path == code.path:
                yield upper
                address = upper.end

    def _ask(self, address: int, flags: int) -> MappedRange | None:
        query = _Query(ctypes.sizeof(_Query), flags, address)
        query.vma_name_size, query.vma_name_addr = _NAME_BYTES, ctypes.addressof(self._name)
        if _ioctl()(self._fd, _PROCMAP_QUERY, ctypes.byref(query)) != 0:
            number = ctypes.get_errno()
            if number == errno.ENOENT:
                return None
            raise OSError(number, os.strerror(number), _PATH)
        path = self._name.value if query.vma_name_size else b""
        return MappedRange(query.vma_start, query.vma_end, bool(query.vma_flags & _READABLE), path)


@functools.cache
def _ioctl() -> Any:
    function = ctypes.PyDLL(None, use_errno=True).ioctl
    function.argtypes = ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p
    return function


class _Listed:
    """Has read the whole list."""

    def __init__(self, fd: int) -> None:
        with os.fdopen(os.dup(fd), "rb") as file:
            self._ranges = [_range_in(line) for line in file.read().splitlines()]
        self._starts = [one.start for one in self._ranges]

    def at(self, address: int) -> MappedRange | None:
        found = self.at_or_after(address)
        return found if found is not None and found.start <= address else None

    def at_or_after(self, address: int) -> MappedRange | None:
        place = max(0, bisect_right(self._starts, address) - 1)
        return next((one for one in self._ranges[place : place + 2] if address < one.end), None)

    def shared_objects(self) -> Iterator[MappedRange]:
        return (one for one in self._ranges if b".so" in one.path)


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
    found, left_bytes = [], _CHECKED_BYTES
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
    start = end = 0
    with address_space() as mapped:
        while mapped is not None and (one := mapped.at_or_after(end)) is not None:
            if one.path == b"[heap]":  # adjacent ranges, of different access or history
                start = start or one.start
            elif start:
                return start, end
            end = one.end
    return (start, end) if start else None
