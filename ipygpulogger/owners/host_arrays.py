"""General RAM as Python's and numpy's own objects hold it: buffers, large strings, the tables of containers.

What is counted is what was asked for: pages of an array that were never touched count too. Memory that only
shows a file's content does not: the system takes its pages back whenever it wants them. Small objects are not
counted one by one.

A view, however it is shaped, counts as the memory it stands on. Where the object that allocated that memory
cannot be seen (ctypes, DLPack, a library's own arrays), what the view can touch counts, as far as it is
resident.
"""

from __future__ import annotations

import array
import ctypes
import itertools
import mmap
import sys
from bisect import bisect_right
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..runtime.classes import bases_of, module_of
from ..sources import Holding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

DEVICE = "cpu"
ASKED_FROM = 1 << 20  # bytes: of smaller blocks the system is not asked whether they show a file
_SMALL = 1 << 10  # bytes: what is smaller is not worth its row
_name_of: Callable[[type], str] = vars(type)["__name__"].__get__
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
    for base in bases_of(kind):
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
    yield id(mmap.mmap), _mapping
    if (found := getattr(sys.modules.get("numpy"), "ndarray", None)) is not None:
        yield id(found), _ndarray
    arrow = getattr(sys.modules.get("pyarrow"), "lib", None)
    for name, reader in (
        ("Buffer", _arrow_buffer),
        ("Array", lambda base, value: _made_of(base.buffers(value))),
        ("DictionaryArray", _dictionary_array),
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
    """Memory that no file stands behind, or one that may live in memory, as shared memory does."""
    try:
        base.size(value)
        if base.__len__(value) < ASKED_FROM or not sys.platform.startswith("linux"):
            return None  # nobody will tell where its file lives
    except OSError:  # there is no file
        pass
    except ValueError:  # it is closed
        return None
    return Holding((DEVICE, _look(value)[0] or id(value)), base.__len__(value), DEVICE, mapped=True)


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
    """The memory that an array stands on: its own, its base's, or else what its strides can touch."""
    value, base = _bottom(numpys, value)
    if base is not None and HOST.may_hold(type(base)):
        return _made_of((base,))
    is_own = base is None and numpys.flags.__get__(value).owndata
    size_bytes = numpys.nbytes.__get__(value)
    first, extent_bytes = (0, size_bytes) if is_own else _extent(numpys, value)
    parts: Any = () if base is None else (base,)
    has_objects = numpys.dtype.__get__(value).kind == "O" and size_bytes <= extent_bytes  # each once
    if has_objects:  # which the garbage collector is not told
        parts = itertools.chain(parts, numpys.flat.__get__(value))
    if extent_bytes < _SMALL:
        return _made_of(parts) if has_objects or parts else None
    address = numpys.__array_interface__.__get__(value)["data"][0] + first
    owner = value if is_own else None
    return Holding((DEVICE, address), extent_bytes, DEVICE, parts, owner=owner, borrowed=not is_own)


def _bottom(numpys: Any, value: Any) -> tuple[Any, Any]:
    """The array below all views of numpy's, and what that one stands on, if not on memory of its own."""
    base_of = numpys.base.__get__
    base = base_of(value)
    while base is not None:
        if numpys in bases_of(type(base)):
            value, base = base, base_of(base)
        elif type(base) is memoryview:
            base = base.obj
        elif _is_dummy(type(base)):
            base = base.base
        else:
            break
    return value, base


def _is_dummy(kind: type) -> bool:
    """Whether it is the class that numpy's `as_strided` puts between a view and its array."""
    return _name_of(kind) == "DummyArray" and str(module_of(kind)).startswith("numpy.lib")


def _extent(numpys: Any, value: Any) -> tuple[int, int]:
    """Where the memory that an array can touch begins, counted from its first element, and its length.

    Strides may be 0, negative, or shorter than an element: windows and broadcasts overlap.
    """
    shape, strides = numpys.shape.__get__(value), numpys.strides.__get__(value)
    if 0 in shape:
        return 0, 0
    steps = [(length - 1) * stride for length, stride in zip(shape, strides, strict=True)]
    first = sum(step for step in steps if step < 0)
    last = sum(step for step in steps if step > 0)
    return first, last - first + numpys.itemsize.__get__(value)


def _arrow_buffer(_: Any, value: Any) -> Holding | None:
    while value.parent is not None:
        value = value.parent
    if not value.is_cpu or value.size < _SMALL:
        return None
    return Holding((DEVICE, value.address), value.size, DEVICE, mapped=True)


def _dictionary_array(base: Any, value: Any) -> Holding:
    """Its buffers are the indices alone."""
    return _made_of((*base.buffers(value), base.dictionary.__get__(value)))


# -- the system's own view: files, and what is resident ----------------------------------------------


def of_files(addresses: Iterable[int]) -> set[int]:
    """Which of these addresses only show a file: a model opened with mmap, a table of Arrow's.

    Where the system does not tell, none. Files that live in memory are memory.
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
    """Of each of these blocks, how much is resident, without what only shows a file.

    Beyond the first 512 MB of them what is mapped counts, and where the system tells neither, their length.

    Args:
        blocks: The ranges of addresses (start, end) of each.
    """
    mappings = _mappings() if blocks else None
    if mappings is None:
        return [sum(end - start for start, end in ranges) for ranges in blocks]
    starts = [mapping.start for mapping in mappings]
    found, left_bytes = [], _LOOKED_AT
    for ranges in blocks:
        size_bytes = 0
        for start, end in ranges:
            for mapping in mappings[max(0, bisect_right(starts, start) - 1) : bisect_right(starts, end)]:
                first, last = max(start, mapping.start), min(end, mapping.end)
                if first < last and mapping.readable and not mapping.is_file:
                    looked_at = min(last, first + left_bytes)
                    size_bytes += _in_core(first, looked_at) + last - looked_at
                    left_bytes -= looked_at - first
        found.append(size_bytes)
    return found


_LOOKED_AT = 1 << 29  # bytes: 3 ms


def _in_core(start: int, end: int) -> int:
    """What mincore(2) says of a range that is mapped; all of it where it says nothing."""
    first_page, end_page = start // _PAGE, -(-end // _PAGE)
    told = (ctypes.c_ubyte * (end_page - first_page))()
    try:
        # Python's own library sees all of libc.
        failed = ctypes.pythonapi.mincore(
            ctypes.c_void_p(first_page * _PAGE), ctypes.c_size_t(len(told) * _PAGE), told
        )
    except AttributeError:
        failed = True
    if failed or not told:
        return end - start
    pages = bytes(told).translate(_RESIDENT)
    outside = pages[0] * (start - first_page * _PAGE) + pages[-1] * (end_page * _PAGE - end)
    return pages.count(1) * _PAGE - outside


_PAGE = mmap.PAGESIZE
_RESIDENT = bytes(byte & 1 for byte in range(256))  # the other bits are reserved


class _Mapping(NamedTuple):
    """A line of /proc/self/maps."""

    start: int
    end: int
    readable: bool
    is_file: bool


def _mappings() -> list[_Mapping] | None:
    """All that is mapped, by address; None where the system does not tell."""
    try:
        return list(map(_mapping_in, Path("/proc/self/maps").read_bytes().splitlines()))
    except OSError:
        return None


def _mapping_in(line: bytes) -> _Mapping:
    place, access, *_, path = (*line.split(None, 5), b"")[:6]
    start, end = place.split(b"-")
    is_file = path.startswith(b"/") and not path.startswith(_IN_MEMORY)
    return _Mapping(int(start, 16), int(end, 16), access.startswith(b"r"), is_file)


_IN_MEMORY = b"/dev/zero", b"/dev/shm/", b"/memfd:", b"/SYSV", b"/dev/nvidia"

HOST = Host()
