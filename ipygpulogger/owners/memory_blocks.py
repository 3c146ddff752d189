"""The memory behind objects: of Python's, numpy's and Arrow's here, of others by their frameworks' readers.

Of a large block, what is resident counts; a file's content does not. A view counts as what it is a view of,
or as itself, if it is contiguous and what allocated it cannot be seen (ctypes, DLPack, a library's arrays).
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import functools
import itertools
import mmap
import sys
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from ..engine.machine import machine
from ..runtime.objects import bases_of
from ..sources import Holding
from .address_space import Residency

ArrayReaders = Sequence[Callable[[Any], Holding | None]]

DEVICE = "cpu"
LARGE = 1 << 20  # bytes: a smaller block may be a file's, and neither its lifetime nor sharing names are kept
_SMALL = 1 << 10  # bytes: smaller objects do not count
_residency = Residency()
_PY_BUFFER = ctypes.c_size_t * 11  # as large as a `Py_buffer` of C: address, object, length, ...
_TABLES = dict, list, tuple, set, frozenset, deque
_INSIDE = str, bytes  # their memory is the object itself


def host_holding(value: Any) -> Holding | None:
    """Return the memory behind a value, which its views share, as a `Framework` does; None for no memory."""
    reader = _reader_of(type(value))
    return None if reader is None else reader(value)


def _reader_of(kind: type) -> Callable[[Any], Holding | None] | None:
    """Return what `host_holding` is for values of a class; None where none of them has memory."""
    # Not remembered: a class of the user's as a key stays alive, and its id may be the next one's.
    numpys = getattr(sys.modules.get("numpy"), "ndarray", None)
    readers = _readers(numpys, getattr(sys.modules.get("pyarrow"), "lib", None))
    return next((readers[id(base)] for base in bases_of(kind) if id(base) in readers), None)


@functools.lru_cache(1)
def _readers(numpys: Any, arrow: Any) -> dict[int, Callable[[Any], Holding | None]]:
    """Return the readers of values by the id of their class, of Python's and of the libraries'."""
    readers: list[tuple[Any, Callable[[Any, Any], Holding | None]]] = [
        *((kind, _table) for kind in _TABLES),
        *((kind, _inside) for kind in _INSIDE),
        *((kind, _buffer) for kind in (bytearray, array.array)),
        (memoryview, lambda _, value: _made_of((value.obj,))),
        (mmap.mmap, _mapping),
        (numpys, _ndarray),
        (getattr(arrow, "Buffer", None), _arrow_buffer),
        (getattr(arrow, "Array", None), lambda base, value: _made_of(base.buffers(value))),
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


def _buffer(_: Any, value: Any) -> Holding | None:
    """Read what a buffer holds, without the room that it has left."""
    address, size_bytes = _buffer_of(value)
    return Holding((DEVICE, address), size_bytes, DEVICE) if size_bytes >= _SMALL else None


def _mapping(base: Any, value: Any) -> Holding | None:
    """Read a large mapping; on Linux alone it is looked up whether it shows a file."""
    size_bytes = base.__len__(value)
    if size_bytes < LARGE or not sys.platform.startswith("linux"):
        return None
    return Holding((DEVICE, _buffer_of(value)[0]), size_bytes, DEVICE, mapped=True)


def _buffer_of(value: Any) -> tuple[int, int]:
    """Return the address of an object's buffer, and how many bytes of it are in use."""
    view = _PY_BUFFER()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(value), view, 0)
    address, _, size_bytes, *_ = view
    ctypes.pythonapi.PyBuffer_Release(view)
    return address, size_bytes


# -- numpy's and Arrow's ---------------------------------------------------------------------------


def _ndarray(numpys: Any, value: Any) -> Holding | None:
    """Read an array's memory: its own, its base's, or else the array itself, if it is contiguous."""
    while (base := numpys.base.__get__(value)) is not None and numpys in bases_of(type(base)):
        value = base
    flags = numpys.flags.__get__(value)
    parts: Any = () if base is None else (base,)
    if not (flags.owndata or flags.forc) or (base is not None and _reader_of(type(base)) is not None):
        return _made_of(parts)
    size_bytes = numpys.nbytes.__get__(value)
    has_objects = numpys.dtype.__get__(value).kind == "O"
    if has_objects:  # which the garbage collector does not see
        parts = itertools.chain(parts, numpys.flat.__get__(value))
    if size_bytes < _SMALL:
        return _made_of(parts) if has_objects or parts else None
    address = numpys.__array_interface__.__get__(value)["data"][0]
    # Without the array as the owner: `ndarray.resize` refuses an array that has a weak reference.
    return Holding((DEVICE, address), size_bytes, DEVICE, parts, mapped=not flags.owndata)


def _arrow_buffer(_: Any, value: Any) -> Holding | None:
    while value.parent is not None:
        value = value.parent
    if not value.is_cpu or value.size < _SMALL:
        return None
    return Holding((DEVICE, value.address), value.size, DEVICE, mapped=True)


def array_readers() -> ArrayReaders:
    """Return every reader of this process: `Framework.holding` of each framework, and the host's."""
    return [host_holding, *(framework.holding for framework in machine().frameworks)]


def holding_of(value: Any, readers: ArrayReaders) -> Holding | None:
    """Return the memory behind a value; None if it is not an array or owns no memory."""
    holding = read(value, readers_of(type(value), readers))
    return holding if holding is not None and holding.size_bytes else None


def read(value: Any, readers: ArrayReaders) -> Holding | None:
    """Return the memory behind a value, from the first reader that knows it."""
    for reader in readers:
        try:
            found = reader(value)
        except Exception:  # noqa: S112 - a broken array, of which nothing can be said
            continue
        if found is not None:
            return found
    return None


def readers_of(kind: type, readers: ArrayReaders) -> ArrayReaders:
    """Return the readers that may know values of a class; a framework decides that by the class alone."""
    found = []
    for reader in readers:
        may_hold = getattr(getattr(reader, "__self__", None), "may_hold", None)
        with contextlib.suppress(Exception):  # a framework in pieces
            one = _reader_of(kind) if reader is host_holding else reader
            if one is not None and (may_hold is None or may_hold(kind)):
                found.append(one)
    return found


class MemoryBlocks:
    """The blocks of memory that a walk found, each with a number."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._mapped: set[Any] = set()  # the addresses that may show a file
        self.keys: list[Hashable] = []  # by number, as the devices and the sizes in bytes
        self.devices: list[str] = []
        self.sizes: list[int] = []
        # By key, of large blocks where that is known: a weak reference that dies with the block.
        self.alive: dict[Hashable, weakref.ref[Any]] = {}
        self.whole: dict[Hashable, int] = {}  # by key, of those that are partly resident: the whole size

    def number(self, holding: Holding) -> int:
        """Return a block's number, a new one where it was not found before."""
        key, size_bytes, device = holding[:3]
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.keys)
            self.keys.append(key)
            self.devices.append(device)
            self.sizes.append(size_bytes)
            if holding.owner is not None and size_bytes >= LARGE:
                self.alive[key] = weakref.ref(holding.owner)
            if holding.mapped:
                self._mapped.add(key[1] if type(key) is tuple else None)
        elif size_bytes > self.sizes[number]:
            self.sizes[number] = size_bytes  # a smaller view at the same address was found first
        return number

    def same_memory(self) -> dict[int, int]:
        """Join blocks that overlap to the one that begins first; return, by number, which that is."""
        found: dict[int, int] = {}
        placed = sorted(
            (*key, number)
            for number, key in enumerate(self.keys)
            if type(key) is tuple and key[0] == self.devices[number] and type(key[1]) is int
        )
        on, start, end, first = "", 0, 0, -1
        for device, address, number in placed:
            if device != on or address >= end:
                on, start, end, first = device, address, address + self.sizes[number], number
            else:
                end = max(end, address + self.sizes[number])
                self.sizes[first] = end - start
                found[number] = first
        return found

    def without_memory(self) -> list[int]:
        """Count what is resident of large blocks; return those of which nothing is, or that show a file."""
        large = [(self.keys[number], number) for number, size in enumerate(self.sizes) if size >= LARGE]
        placed = {key[1]: number for key, number in large if type(key) is tuple and key[0] == DEVICE}
        resident = _residency.of({at: self.sizes[number] for at, number in placed.items()}, self._mapped)
        for address, number in placed.items():
            if resident[address] < self.sizes[number]:
                self.whole[self.keys[number]] = self.sizes[number]
                self.sizes[number] = resident[address]
        return [number for number in placed.values() if not self.sizes[number]]
