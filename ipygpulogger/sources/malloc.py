"""What glibc's malloc has handed out, and what it keeps resident of what was freed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..records import Heap

if TYPE_CHECKING:
    from collections.abc import Callable

_FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"  # mallinfo(3)

_found: list[Callable[[], Any] | None] = []  # `mallinfo2`, once it was looked for


def heap() -> Heap | None:
    """Return the bytes in use and those that malloc keeps; None unless it is glibc's, of 2.33 or later."""
    if not _found:
        _found.append(_find_mallinfo2())
    if (mallinfo2 := _found[0]) is None:
        return None
    info = mallinfo2()
    return Heap(info.uordblks + info.hblkhd, info.fordblks)


def _find_mallinfo2() -> Callable[[], Any] | None:
    try:
        import ctypes  # 2 ms of loading, which a terminal's shell has not done yet

        function = ctypes.PyDLL(None).mallinfo2  # with the GIL held: see `system_calls`
    except (AttributeError, ImportError, OSError, TypeError):  # not glibc, an older one, or Windows
        return None

    class MallInfo2(ctypes.Structure):
        _fields_ = tuple((name, ctypes.c_size_t) for name in _FIELDS.split())

    function.restype = MallInfo2
    return function
