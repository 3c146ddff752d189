"""Reference cycles that wait for the garbage collector: what memory they hold, found without collecting.

As the collector does, we count references: an object is garbage if all references to it come from garbage.
From large blocks of memory that no name reaches the search goes up, level by level, to all that refer to
them, until nobody is left who could be alive. What is not decided in time, or is also held by something that
only C code sees, is not called garbage. Nothing is collected and no setting of the collector's is touched.
"""

from __future__ import annotations

import array
import gc
import sys
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from ..records.units import MB
from ..runtime import clock
from ..runtime.frames import walk_stack
from .frames import namespace_of_module
from .walk import asked, who_knows

if TYPE_CHECKING:
    from collections.abc import Container, Hashable, Iterator, Sequence

    from .walk import Holdings

_BUDGET_S = 0.2  # in a process that has torch, a look at all objects takes about 20 ms, and each level one
_PIECE = 1024  # objects between two looks at the clock
_MANY = 1000  # who refer to one level: a library's machinery, no forgotten cycle

# By id, for a class of the user's may have a metaclass with a `__hash__` or an `__eq__` of its own.
_NO_HOLDERS = frozenset(map(id, (type, FunctionType, BuiltinFunctionType, ModuleType, property)))
_NO_BLOCKS = _NO_HOLDERS | frozenset(map(id, (str, int, float, bool, list, set, CodeType, type(None))))
_BYTES = id(bytes)
_UNTRACKED = frozenset(map(id, (dict, tuple)))  # where nothing in them is known to the collector


def waiting(holdings: Holdings, claimed: Container[Hashable], budget_s: float = _BUDGET_S) -> dict[str, int]:
    """The memory of blocks above 1 MB that only unreachable cycles hold, in bytes by device.

    Args:
        holdings: What `Framework.holding` says of a value, for each framework.
        claimed: The keys of the blocks that names hold.
        budget_s: After so long it stops; what is undecided by then does not count.
    """
    deadline_s = clock.monotonic_s() + budget_s
    graph = _Graph()
    blocks = _Scan(graph, holdings, claimed).run(deadline_s - budget_s / 2)
    garbage = graph.unreachable(deadline_s) if blocks else set()
    found: dict[str, int] = {}
    for (_, device), (size_bytes, places) in blocks.items():
        if garbage.issuperset(places) and _is_all_theirs([graph.nodes[place] for place in places]):
            found[device] = found.get(device, 0) + size_bytes
    return found


class _Graph:
    """Objects and the references between them. Nothing else of ours refers to them while it counts."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self._known: dict[int, int] = {}
        self._below: list[list[int]] = []
        self._counts: list[int] = []

    def add(self, value: Any) -> int:
        """Its place in `nodes`."""
        place = self._known.setdefault(id(value), len(self.nodes))
        if place == len(self.nodes):
            self.nodes.append(value)
            self._below.append([])
            self._counts.append(0)
        return place

    def link(self, upper: int, lower: int) -> None:
        """One refers to the other."""
        self._below[upper].append(lower)
        self._counts[lower] += 1

    def unreachable(self, deadline_s: float) -> set[int]:
        """Which of the nodes that are here now are garbage."""
        alone = _references([object()])[0]
        namespaces = {
            id(namespace_of_module(module))
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
        """Add all who refer to these; None where they are too many."""
        targets = tuple([self.nodes[place] for place in level])  # itself among those found, from 3.13 on
        wanted = {id(target) for target in targets}
        referrers = gc.get_referrers(*targets)
        if len(referrers) > _MANY:
            return None
        before = len(self.nodes)
        # Up to 3.10 frames are among the referrers, and ours refer to each other only while they run.
        running = set(map(id, walk_stack(sys._getframe())))
        for one in referrers:
            if one is targets or one is self.nodes or id(one) in namespaces or id(one) in running:
                continue  # a reference that stays unexplained is one from somebody alive
            place = self.add(one)
            for lower in gc.get_referents(one):
                if id(lower) in wanted:
                    self.link(place, self._known[id(lower)])
        return list(range(before, len(self.nodes)))


def _references(nodes: list[Any]) -> list[int]:
    return list(map(sys.getrefcount, nodes))


class _Scan:
    """Puts large blocks that no name holds into a graph, with what the collector does not know above them."""

    def __init__(self, graph: _Graph, holdings: Holdings, claimed: Container[Hashable]) -> None:
        self._graph, self._holdings, self._claimed = graph, holdings, claimed
        self._kinds: dict[int, tuple[type, Holdings]] = {}
        self._seen: dict[int, int | None] = {}
        self._based: set[int] = set()
        self._blocks: dict[tuple[Hashable, str], tuple[int, set[int]]] = {}

    def run(self, deadline_s: float) -> dict[tuple[Hashable, str], tuple[int, set[int]]]:
        """By key and device, the bytes and the places of all that stand on them."""
        for piece in _newest_first(deadline_s):
            holders = [one for one in piece if id(type(one)) not in _NO_HOLDERS]
            for value in gc.get_referents(*holders):
                if id(type(value)) not in _NO_BLOCKS:
                    self._visit(value)
        return self._blocks

    def _visit(self, value: Any) -> int | None:
        """Its place in the graph, if it is such a block or holds one unknown to the collector."""
        kind = type(value)
        if id(kind) == _BYTES and len(value) < MB:
            return None
        if id(value) in self._seen:
            return self._seen[id(value)]
        place = None
        if id(kind) not in _UNTRACKED:
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
            known = self._kinds[id(kind)] = kind, who_knows(kind, self._holdings)
        holding = asked(value, known[1]) if known[1] else None
        if holding is None or holding.size_bytes < MB or holding.key in self._claimed:
            return None
        _, places = self._blocks.setdefault((holding.key, holding.device), (holding.size_bytes, set()))
        first = upper = self._graph.add(value)
        places.add(first)
        for under in _bases(value):  # of which the collector is told nothing
            lower = self._graph.add(under)
            if upper not in self._based:
                self._based.add(upper)
                self._graph.link(upper, lower)
            places.add(lower)
            upper = lower
        return first


def _newest_first(deadline_s: float) -> Iterator[list[Any]]:
    """All that the collector knows: garbage is newer than the last full collection."""
    for generation in range(3):
        objects = gc.get_objects(generation=generation)
        while objects and clock.monotonic_s() < deadline_s:
            yield objects[-_PIECE:]
            del objects[-_PIECE:]


def _bases(value: Any) -> Iterator[Any]:
    """What an array of numpy's is a view of, down to the owner of its memory."""
    numpys = getattr(sys.modules.get("numpy"), "ndarray", None)
    while numpys is not None and issubclass(type(value), numpys):
        value = numpys.base.__get__(value)
        if value is not None:
            yield value


def _is_all_theirs(values: Sequence[Any]) -> bool:
    """Whether a block's memory goes with these objects: nothing in C stands on it besides."""
    torch = sys.modules.get("torch")
    tensors = getattr(torch, "Tensor", None)
    numpys = getattr(sys.modules.get("numpy"), "ndarray", None)
    own = bytes, bytearray, array.array, *([numpys] if numpys is not None else [])
    on_torch = [one for one in values if tensors is not None and issubclass(type(one), tensors)]
    if any(not issubclass(type(one), own) for one in values if not any(one is other for other in on_torch)):
        return False
    return not on_torch or _is_tensors_alone(torch, on_torch)


def _is_tensors_alone(torch: Any, tensors: Sequence[Any]) -> bool:
    base = torch._C.TensorBase
    try:
        with torch._C.DisableTorchFunction():
            storage = base.untyped_storage(tensors[0])
            count = torch._C._storage_Use_Count(storage._cdata)  # one is Python's
            return count == len(tensors) + 1 and all(base._use_count(one) == 1 for one in tensors)
    except Exception:  # an older torch, which does not tell
        return False
