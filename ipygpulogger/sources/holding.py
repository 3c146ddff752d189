"""What one array holds: its block of memory, and what else it keeps alive; its shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable


class Holding(NamedTuple):
    """The memory behind one array.

    Attributes:
        key: Identifies the block: equal for all arrays that share it, unique among live arrays.
            (device, address) if the address is known, so that a block inside another one is recognised.
        size_bytes: The size of the whole block, however small the array's view of it. 0 if the array has
            no memory of its own. Of a borrowed block: from the first to the last byte that the view can
            touch.
        device: "cpu", "cuda:0", ...
        parts: Objects that it keeps alive and the garbage collector does not see, such as a gradient.
        graph: The autograd graph that it keeps alive.
        counted: Whether everything that it keeps alive can be read.
        mapped: Whether the block may be a mapped file, whose pages are not the process's own memory.
        owner: An object that lives exactly as long as the block and takes weak references; None if there
            is none.
        borrowed: Whether something else allocated the memory, and the size of that block is unknown.
    """

    key: Hashable
    size_bytes: int
    device: str
    parts: Iterable[Any] = ()
    graph: Any = None
    counted: bool = True
    mapped: bool = False
    owner: Any = None
    borrowed: bool = False


class Dimensions(NamedTuple):
    """The shape of an array, and the size of each of its elements."""

    shape: tuple[int, ...]
    item_bytes: int
