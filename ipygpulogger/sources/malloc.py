"""What glibc's malloc has handed out, and what it keeps resident of what was freed."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from ..records import Heap

if TYPE_CHECKING:
    from collections.abc import Callable

_FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class MallInfo2(ctypes.Structure):
    """mallinfo(3)."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _FIELDS.split())


def find_mallinfo2() -> Callable[[], MallInfo2] | None:
    """Return the C library's `mallinfo2`; None unless it is glibc 2.33 or newer."""
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):  # not glibc, an older one, or Windows
        return None
    function.restype = MallInfo2
    return function


def heap_of(info: MallInfo2) -> Heap:
    """Return the bytes in use and those that malloc keeps."""
    return Heap(info.uordblks + info.hblkhd, info.fordblks)
