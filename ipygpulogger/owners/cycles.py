"""The memory that unreachable reference cycles hold, found without running the garbage collector.

As in the collector, references are counted: an object is garbage if all references to it come from garbage.
The search starts at large blocks of memory that are attributed to no name and goes up to their referrers,
level by level, until no object is left that could be reachable. What is not decided within the time budget,
or is also referred to by C code, does not count as garbage. Nothing is collected and no setting of the
collector is changed.
"""

from __future__ import annotations

import array
import gc
import sys
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from ..records import CPU
from ..records.units import MB, rounded_mb
from ..runtime import clock
from ..runtime.frames import walk_stack
from .array_readers import read, readers_of
from .user_code import module_namespace

if TYPE_CHECKING:
    from collections.abc import Container, Hashable, Iterator, Mapping, Sequence

    from .array_readers import ArrayReaders

_PIECE = 1024  # objects between two looks at the clock
_MANY = 1000  # referrers of one level: a library's machinery, no forgotten cycle

# By id: a metaclass of the user's may define `__hash__` or `__eq__`.
_NO_REFERRERS = frozenset(map(id, (type, FunctionType, BuiltinFunctionType, ModuleType, property)))
_NO_BLOCKS = _NO_REFERRERS | frozenset(map(id, (str, int, float, bool, list, set, CodeType, type(None))))
_BYTES = id(bytes)
_MAY_BE_UNTRACKED = frozenset(map(id, (dict, tuple)))  # where no item of theirs is tracked


def unreachable_bytes(
    readers: ArrayReaders, attributed: Container[Hashable], budget_s: float
) -> dict[str, int]:
    """Return the memory of blocks above 1 MB that only unreachable cycles hold, in bytes by device.

    Args:
        readers: Functions that return the memory behind a value.
        attributed: The keys of the blocks that are attributed to names.
        budget_s: The time budget; what is undecided by then does not count. With torch imported, one pass
            over all objects takes about 20 ms, and so does each level of referrers.
    """
    deadline_s = clock.monotonic_s() + budget_s
    graph = _Graph()
    blocks = _Scan(graph, readers, attributed).run(deadline_s - budget_s / 2)
    garbage = graph.unreachable(deadline_s) if blocks else set()
    found: dict[str, int] = {}
    for (_, device), (size_bytes, places) in blocks.items():
        if garbage.issuperset(places) and _nothing_else_refers([graph.nodes[place] for place in places]):
            found[device] = found.get(device, 0) + size_bytes
    return found


def garbage_notes(sizes: Mapping[str, int]) -> Iterator[str]:
    """Yield a sentence for each device with memory that waits for the garbage collector, in bytes."""
    for device, size_bytes in sizes.items():
        if size_bytes >= MB:
            where = "" if device == CPU else f" on {device}"
            yield f"up to {rounded_mb(size_bytes)} MB{where} waits for the garbage collector"


class _Graph:
    """Objects and the references between them. Nothing else of ours refers to the objects meanwhile."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self._known: dict[int, int] = {}
        self._below: list[list[int]] = []
        self._counts: list[int] = []

    def add(self, value: Any) -> int:
        """Add an object; return its index in `nodes`."""
        place = self._known.setdefault(id(value), len(self.nodes))
        if place == len(self.nodes):
            self.nodes.append(value)
            self._below.append([])
            self._counts.append(0)
        return place

    def link(self, upper: int, lower: int) -> None:
        """Note that one node refers to another."""
        self._below[upper].append(lower)
        self._counts[lower] += 1

    def unreachable(self, deadline_s: float) -> set[int]:
        """Return which of the nodes that were added so far are garbage; none where the time is up."""
        alone = _references([object()])[0]
        namespaces = {
            id(module_namespace(module))
            for module in list(sys.modules.values())
            if issubclass(type(module), ModuleType)
        }
        alive: set[int] = set()
        asked = len(self.nodes)
        level = list(range(asked))
        while level:
            if clock.monotonic_s() > deadline_s:
                return set()
            fresh = self._climb(level, namespaces)
            references = _references(self.nodes)
            held = [
                place for place in level if fresh is None or references[place] - alone != self._counts[place]
            ]
            held += [lower for upper in alive for lower in self._below[upper]]  # of links just found
            while held:
                place = held.pop()
                if place not in alive:
                    alive.add(place)
                    held += self._below[place]
            level = [place for place in fresh or () if not alive.issuperset(self._below[place])]
        return set(range(asked)) - alive

    def _climb(self, level: list[int], namespaces: set[int]) -> list[int] | None:
        """Add the referrers of a level, and return them; None where there are too many."""
        targets = tuple([self.nodes[place] for place in level])  # a referrer itself, from 3.13 on
        wanted = {id(target) for target in targets}
        referrers = gc.get_referrers(*targets)
        if len(referrers) > _MANY:
            return None
        before = len(self.nodes)
        # Up to 3.10 frames are among the referrers, and ours refer to each other only while they run.
        running = set(map(id, walk_stack(sys._getframe())))
        for one in referrers:
            if one is targets or one is self.nodes or id(one) in namespaces or id(one) in running:
                continue  # a reference without a known source keeps its object alive
            place = self.add(one)
            for lower in gc.get_referents(one):
                if id(lower) in wanted:
                    self.link(place, self._known[id(lower)])
        return list(range(before, len(self.nodes)))


def _references(nodes: list[Any]) -> list[int]:
    return list(map(sys.getrefcount, nodes))


class _Scan:
    """Adds to a graph the large blocks that no name holds, and the untracked containers above them."""

    def __init__(self, graph: _Graph, readers: ArrayReaders, attributed: Container[Hashable]) -> None:
        self._graph, self._readers, self._attributed = graph, readers, attributed
        self._kinds: dict[int, tuple[type, ArrayReaders]] = {}
        self._seen: dict[int, int | None] = {}
        self._based: set[int] = set()
        self._blocks: dict[tuple[Hashable, str], tuple[int, set[int]]] = {}

    def run(self, deadline_s: float) -> dict[tuple[Hashable, str], tuple[int, set[int]]]:
        """Return, by key and device, a block's bytes and the indices of the objects that share it."""
        for piece in _newest_first(deadline_s):
            referrers = [one for one in piece if id(type(one)) not in _NO_REFERRERS]
            for value in gc.get_referents(*referrers):
                if id(type(value)) not in _NO_BLOCKS:
                    self._visit(value)
        return self._blocks

    def _visit(self, value: Any) -> int | None:
        """Return an object's index in the graph; None for an object without such a block."""
        kind = type(value)
        if id(kind) == _BYTES and len(value) < MB:
            return None
        if id(value) in self._seen:
            return self._seen[id(value)]
        place = None
        if id(kind) not in _MAY_BE_UNTRACKED:
            place = self._block(kind, value)
        elif value and not gc.is_tracked(value):
            inner = [one for one in gc.get_referents(value) if id(type(one)) not in _NO_BLOCKS]
            places = [found for one in inner if (found := self._visit(one)) is not None]
            if places:
                place = self._graph.add(value)
                for lower in places:
                    self._graph.link(place, lower)
        self._seen[id(value)] = place
        return place

    def _block(self, kind: type, value: Any) -> int | None:
        known = self._kinds.get(id(kind))
        if known is None:
            known = self._kinds[id(kind)] = kind, readers_of(kind, self._readers)
        holding = read(value, known[1]) if known[1] else None
        if holding is None or holding.size_bytes < MB or holding.key in self._attributed:
            return None
        _, places = self._blocks.setdefault((holding.key, holding.device), (holding.size_bytes, set()))
        first = upper = self._graph.add(value)
        places.add(first)
        for under in _bases(value):  # the collector does not see these references
            lower = self._graph.add(under)
            if upper not in self._based:
                self._based.add(upper)
                self._graph.link(upper, lower)
            places.add(lower)
            upper = lower
        return first


def _newest_first(deadline_s: float) -> Iterator[list[Any]]:
    """Yield every tracked object, in pieces, the newest first: garbage is newer than the last collection."""
    for generation in range(3):
        objects = gc.get_objects(generation=generation)
        while objects and clock.monotonic_s() < deadline_s:
            yield objects[-_PIECE:]
            del objects[-_PIECE:]


def _bases(value: Any) -> Iterator[Any]:
    """Yield what a numpy array is a view of, down to the owner of the memory."""
    numpys = getattr(sys.modules.get("numpy"), "ndarray", None)
    while numpys is not None and issubclass(type(value), numpys):
        value = numpys.base.__get__(value)
        if value is not None:
            yield value


def _nothing_else_refers(values: Sequence[Any]) -> bool:
    """Return whether a block is freed with these objects: no C code refers to it besides."""
    torch = sys.modules.get("torch")
    tensors = getattr(torch, "Tensor", None)
    numpys = getattr(sys.modules.get("numpy"), "ndarray", None)
    own = bytes, bytearray, array.array, *([numpys] if numpys is not None else [])
    on_torch = [one for one in values if tensors is not None and issubclass(type(one), tensors)]
    if any(not issubclass(type(one), own) for one in values if not any(one is other for other in on_torch)):
        return False
    return not on_torch or _no_other_tensor(torch, on_torch)


def _no_other_tensor(torch: Any, tensors: Sequence[Any]) -> bool:
    base = torch._C.TensorBase
    try:
        with torch._C.DisableTorchFunction():
            storage = base.untyped_storage(tensors[0])
            count = torch._C._storage_Use_Count(storage._cdata)  # one is Python's
            return count == len(tensors) + 1 and all(base._use_count(one) == 1 for one in tensors)
    except Exception:  # an older torch, which has no such counts
        return False
