"""General RAM as Python's and numpy's own objects hold it: buffers, large strings, the tables of containers.

What is counted is what was asked for: pages of an array that were never touched count too. Memory that only
shows a file's content does not: the system takes its pages back whenever it wants them. Small objects are not
counted one by one.
"""

from __future__ import annotations

import array
import ctypes
import sys
from bisect import bisect_right
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import Holding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

DEVICE = "cpu"
_SMALL = 1 << 10  # bytes: what is smaller is not worth its row
_bases_of: Callable[[Any], tuple[type, ...]] = vars(type)["__mro__"].__get__
_basic_size_of: Callable[[type], int] = vars(type)["__basicsize__"].__get__
_TABLES = dict, list, tuple, set, frozenset, deque
_INSIDE = str, bytes, int  # their memory is the object itself


class Host:
    """Asked like a framework. It imports nothing: whoever has such objects has imported what they need."""

    def __init__(self) -> None:
        self._readers: dict[int, tuple[type, Callable[[Any], Holding | None] | None]] = {}

    def may_hold(self, kind: type) -> bool:
        """Whether values of a class have memory of a kind known here."""
        return self._reader(kind) is not None

    def holding(self, value: Any) -> Holding | None:
        """The memory behind a value, which its views share; None for what has none of its own."""
        reader = self._reader(type(value))
        return None if reader is None else reader(value)

    def _reader(self, kind: type) -> Callable[[Any], Holding | None] | None:
        known = self._readers.get(id(kind))
        if known is None or known[0] is not kind:
            known = kind, _reader_for(kind)
            if len(self._readers) < 1000:  # classes that others would let go of
                self._readers[id(kind)] = known
        return known[1]


def _reader_for(kind: type) -> Callable[[Any], Holding | None] | None:
    known = dict(_known())
    for base in _bases_of(kind):
        if id(base) in known:
            reader, found = known[id(base)], base
            return lambda value: reader(found, value)
    return None


def _known() -> Iterator[tuple[int, Callable[[Any, Any], Holding | None]]]:
    """By a class's id, who reads its values; of libraries only those that are there."""
    yield from ((id(kind), _table) for kind in _TABLES)
    yield from ((id(kind), _inside) for kind in _INSIDE)
    yield from ((id(kind), _buffer) for kind in (bytearray, array.array))
    yield id(memoryview), _view
    if (found := getattr(sys.modules.get("mmap"), "mmap", None)) is not None:
        yield id(found), _mapping
    if (found := getattr(sys.modules.get("numpy"), "ndarray", None)) is not None:
        yield id(found), _ndarray
    arrow = getattr(sys.modules.get("pyarrow"), "lib", None)
    for name, reader in (
        ("Buffer", _arrow_buffer),
        ("Array", lambda _, value: _made_of(value.buffers())),
        ("ChunkedArray", lambda _, value: _made_of(value.chunks)),
        ("RecordBatch", lambda _, value: _made_of(value.columns)),
        ("Table", lambda _, value: _made_of(value.columns)),
    ):
        if (found := getattr(arrow, name, None)) is not None:
            yield id(found), reader


def _made_of(parts: Any) -> Holding:
    return Holding(None, 0, DEVICE, parts)


# -- Python's own ----------------------------------------------------------------------------------


def _table(base: Any, value: Any) -> Holding | None:
    """A container's own table; what it refers to is others'."""
    size_bytes = base.__sizeof__(value)
    return Holding(("table", id(value)), size_bytes, DEVICE) if size_bytes >= _SMALL else None


def _inside(base: Any, value: Any) -> Holding | None:
    size_bytes = base.__sizeof__(value)
    if size_bytes < _SMALL:
        return None
    # Of a string some may lie elsewhere, as its UTF-8 or all of a subclass's: its range is not known.
    return Holding((DEVICE if base is bytes else "inside", id(value)), size_bytes, DEVICE)


def _buffer(base: Any, value: Any) -> Holding | None:
    # Without the object, which lies elsewhere: what malloc places right behind the buffer is another's.
    size_bytes = base.__sizeof__(value) - _basic_size_of(type(value))
    if size_bytes < _SMALL:
        return None
    address, seen_bytes = _look(value)
    if base is bytearray and seen_bytes + 1 < size_bytes:
        size_bytes = seen_bytes  # nobody tells how much of the rest lies before it, and where all of it ends
    return Holding((DEVICE, address) if address else ("buffer", id(value)), size_bytes, DEVICE)


def _view(_: Any, value: Any) -> Holding | None:
    return _made_of((value.obj,))


def _mapping(base: Any, value: Any) -> Holding | None:
    """Memory that no file stands behind."""
    try:
        base.size(value)
    except OSError:  # there is no file
        size_bytes = base.__len__(value)
        return Holding((DEVICE, _look(value)[0] or id(value)), size_bytes, DEVICE, mapped=True)
    except ValueError:  # it is closed
        pass
    return None


def _look(value: Any) -> tuple[int | None, int]:
    """Where an object's buffer begins, and how much of it is in use."""
    view = _Py_buffer()
    try:
        ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(value), ctypes.byref(view), 0)
    except BufferError:
        return None, 0
    address, seen_bytes = view.buf, view.len
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(view))
    return address, seen_bytes


class _Py_buffer(ctypes.Structure):  # noqa: N801 - as the C API calls it
    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_void_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


# -- numpy's and Arrow's ---------------------------------------------------------------------------


def _ndarray(numpys: Any, value: Any) -> Holding | None:
    """The array at the bottom of a view; one that stands on somebody else's memory leads there."""
    base_of = numpys.base.__get__
    under = base_of(value)
    while under is not None and numpys in _bases_of(type(under)):
        value, under = under, base_of(under)
    if under is not None and type(under).__module__ == "mmap":
        return _made_of((under,))
    size_bytes = numpys.nbytes.__get__(value)
    parts: Any = () if under is None else (under,)
    has_objects = numpys.dtype.__get__(value).kind == "O"
    if has_objects:  # which the garbage collector is not told
        parts = iter(numpys.flat.__get__(value))
    if size_bytes < _SMALL:
        return _made_of(parts) if has_objects or parts else None
    address = numpys.__array_interface__.__get__(value)["data"][0]
    owner = value if under is None else None
    return Holding((DEVICE, address), size_bytes, DEVICE, parts, mapped=under is not None, owner=owner)


def _arrow_buffer(_: Any, value: Any) -> Holding | None:
    while value.parent is not None:
        value = value.parent
    if not value.is_cpu or value.size < _SMALL:
        return None
    return Holding((DEVICE, value.address), value.size, DEVICE, mapped=True)


# -- files -----------------------------------------------------------------------------------------


def of_files(addresses: Iterable[int]) -> set[int]:
    """Which of these addresses only show a file: a model opened with mmap, a table of Arrow's.

    Where the system does not tell, none. Files that live in memory are memory.
    """
    addresses = set(addresses)
    if not addresses:
        return addresses
    try:
        maps = Path("/proc/self/maps").read_bytes()
    except OSError:
        return set()
    mapped = [_mapped(line) for line in maps.splitlines() if b" /" in line]
    starts = [start for start, end, path in mapped if not path.startswith(_IN_MEMORY)]
    ends = [end for start, end, path in mapped if not path.startswith(_IN_MEMORY)]
    found = set()
    for address in addresses:
        at = bisect_right(starts, address) - 1
        if at >= 0 and address < ends[at]:
            found.add(address)
    return found


_IN_MEMORY = b"/dev/zero", b"/dev/shm/", b"/memfd:", b"/SYSV", b"/dev/nvidia"


def _mapped(line: bytes) -> tuple[int, int, bytes]:
    place, *_, path = line.split(None, 5)
    start, end = place.split(b"-")
    return int(start, 16), int(end, 16), path


HOST = Host()
