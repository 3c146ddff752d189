"""The general RAM behind Python's, numpy's and Arrow's objects: buffers, large strings, tables of containers.

What was allocated counts: pages of an array that were never touched count too. Memory that only shows a
file's content does not, because the system can take its pages back at any time. Small objects are not
counted.

A view of any shape counts as the memory that it is a view of. Where the object that allocated that memory
cannot be seen (ctypes, DLPack, a library's own arrays), what the view can touch counts, as far as it is
resident.
"""

from __future__ import annotations

import array
import ctypes
import functools
import itertools
import mmap
import sys
from collections import deque
from typing import TYPE_CHECKING, Any

from ..runtime.objects import bases_of, module_of
from ..sources import Holding

if TYPE_CHECKING:
    from collections.abc import Callable

DEVICE = "cpu"
CHECKED_FROM = 1 << 20  # bytes: smaller blocks are not checked for being a file's
_SMALL = 1 << 10  # bytes: smaller objects do not count
_name_of: Callable[[type], str] = vars(type)["__name__"].__get__
_basic_size_of: Callable[[type], int] = vars(type)["__basicsize__"].__get__
_pointer_at = ctypes.c_void_p.from_address
_TABLES = dict, list, tuple, set, frozenset, deque
_INSIDE = str, bytes, int  # their memory is the object itself


class Host:
    """Reads arrays as a `Framework` does, and imports none of the libraries."""

    def may_hold(self, kind: type) -> bool:
        """Return whether values of a class have memory of a kind known here."""
        return self.reader_of(kind) is not None

    def holding(self, value: Any) -> Holding | None:
        """Return the memory behind a value, which its views share; None for what has none of its own."""
        reader = self.reader_of(type(value))
        return None if reader is None else reader(value)

    def reader_of(self, kind: type) -> Callable[[Any], Holding | None] | None:
        """Return what `holding` is for values of a class; None where none of them has memory.

        That is not remembered for the class: what is keyed by a class of the user's keeps it alive, or, by
        its id, is wrong for the next class.
        """
        numpys = getattr(sys.modules.get("numpy"), "ndarray", None)
        readers = _readers(numpys, getattr(sys.modules.get("pyarrow"), "lib", None))
        for base in bases_of(kind):
            if (found := readers.get(id(base))) is not None:
                return found
        return None


@functools.lru_cache(1)
def _readers(numpys: Any, arrow: Any) -> dict[int, Callable[[Any], Holding | None]]:
    """Return the readers of values by the id of their class, of Python's and of the libraries'."""
    readers: list[tuple[Any, Callable[[Any, Any], Holding | None]]] = [
        *((kind, _table) for kind in _TABLES),
        *((kind, _inside) for kind in _INSIDE),
        *((kind, _buffer) for kind in (bytearray, array.array)),
        (memoryview, _view),
        (mmap.mmap, _mapping),
        (numpys, _ndarray),
        (getattr(arrow, "Buffer", None), _arrow_buffer),
        (getattr(arrow, "Array", None), lambda base, value: _made_of(base.buffers(value))),
        (getattr(arrow, "DictionaryArray", None), _dictionary_array),
        (getattr(arrow, "ChunkedArray", None), lambda _, value: _made_of(value.chunks)),
        (getattr(arrow, "RecordBatch", None), lambda _, value: _made_of(value.columns)),
        (getattr(arrow, "Table", None), lambda _, value: _made_of(value.columns)),
    ]
    return {id(kind): functools.partial(reader, kind) for kind, reader in readers if kind is not None}


def _made_of(parts: Any) -> Holding:
    return Holding(None, 0, DEVICE, parts)


# -- Python's own ----------------------------------------------------------------------------------


def _table(base: Any, value: Any) -> Holding | None:
    """Read a container's own table, without what it refers to."""
    size_bytes = base.__sizeof__(value)
    return Holding(("table", id(value)), size_bytes, DEVICE) if size_bytes >= _SMALL else None


def _inside(base: Any, value: Any) -> Holding | None:
    size_bytes = base.__sizeof__(value)
    if size_bytes < _SMALL:
        return None
    # A part of a string may lie elsewhere, such as its UTF-8, or all of a subclass's: its range is unknown.
    return Holding((DEVICE if base is bytes else "inside", id(value)), size_bytes, DEVICE)


def _buffer(base: Any, value: Any) -> Holding | None:
    # Without the object, which lies elsewhere: what malloc places right behind the buffer is not part of it.
    size_bytes = base.__sizeof__(value) - _basic_size_of(type(value))
    if size_bytes < _SMALL:
        return None
    address, seen_bytes = _buffer_of(value)
    if base is bytearray and seen_bytes + 1 < size_bytes:
        size_bytes = seen_bytes  # how much of the rest lies before the buffer is unknown
    return Holding((DEVICE, address) if address else ("buffer", id(value)), size_bytes, DEVICE)


def _view(_: Any, value: Any) -> Holding | None:
    return _made_of((value.obj,))


def _mapping(base: Any, value: Any) -> Holding | None:
    """Read a mapping without a file, or one whose file may live in memory, such as shared memory."""
    try:
        base.size(value)
        if base.__len__(value) < CHECKED_FROM or not sys.platform.startswith("linux"):
            return None  # where its file lives is unknown
    except OSError:  # there is no file
        pass
    except ValueError:  # it is closed
        return None
    return Holding((DEVICE, _buffer_of(value)[0] or id(value)), base.__len__(value), DEVICE, mapped=True)


def _buffer_of(value: Any) -> tuple[int | None, int]:
    """Return the address of an object's buffer, and how many bytes of it are in use."""
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
    """Read an array's memory: its own, its base's, or else what its strides can touch."""
    base = None
    if numpys.base.__get__(value) is not None:
        value, base = _bottom(numpys, value)
        if base is not None and HOST.may_hold(type(base)):
            return _made_of((base,))
    is_own = base is None and numpys.flags.__get__(value).owndata
    size_bytes = numpys.nbytes.__get__(value)
    first, extent_bytes = (0, size_bytes) if is_own else _extent(numpys, value)
    parts: Any = () if base is None else (base,)
    has_objects = numpys.dtype.__get__(value).kind == "O" and size_bytes <= extent_bytes  # each once
    if has_objects:  # which the garbage collector does not see
        parts = itertools.chain(parts, numpys.flat.__get__(value))
    if extent_bytes < _SMALL:
        return _made_of(parts) if has_objects or parts else None
    key = DEVICE, _address_of(numpys)(value) + first
    # Without the array as the owner: `ndarray.resize` refuses an array that has a weak reference.
    return Holding(key, extent_bytes, DEVICE, parts, None, True, False, None, not is_own)


@functools.cache
def _address_of(numpys: Any) -> Callable[[Any], int]:
    """Return the function that gives the address of an array's first element.

    It is the first field behind the head of an array's struct, `PyArrayObject_fields` of numpy's C API.
    Reading it there takes a tenth of the time of ``__array_interface__``, which makes a dictionary each time.
    """
    probe, first_field = numpys(1), _basic_size_of(object)

    def of_interface(value: Any) -> int:
        address: int = numpys.__array_interface__.__get__(value)["data"][0]
        return address

    def of_struct(value: Any) -> int:
        return _pointer_at(id(value) + first_field).value or 0

    return of_struct if of_struct(probe) == of_interface(probe) else of_interface


def _bottom(numpys: Any, value: Any) -> tuple[Any, Any]:
    """Return the array below all views of numpy's, and its base; None where it owns its memory."""
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
    """Return whether it is the class that numpy's `as_strided` puts between a view and its array."""
    return _name_of(kind) == "DummyArray" and str(module_of(kind)).startswith("numpy.lib")


def _extent(numpys: Any, value: Any) -> tuple[int, int]:
    """Return where the memory that an array can touch begins, from its first element, and its length.

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
    """Read a dictionary array, whose buffers are the indices alone."""
    return _made_of((*base.buffers(value), base.dictionary.__get__(value)))


HOST = Host()
