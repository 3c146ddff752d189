"""The ranges of addresses that are mapped in this process, and which of them show a file's content.

Linux 6.11 and later answer for one address at a time, in a microsecond. Before that the whole list is read,
which takes 2 us a range: 0.1 s where 60,000 are mapped.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from bisect import bisect_right
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..sources.system_calls import gil_held

if TYPE_CHECKING:
    from collections.abc import Iterator

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
