"""The proof that what was dropped is garbage, by counting references as the collector does.

What is below the dropped objects and has a reference from elsewhere is reachable, with everything below it.
"""

from __future__ import annotations

import array
import gc
import sys
from collections.abc import Hashable, Iterable, Mapping
from types import AsyncGeneratorType, CoroutineType, GeneratorType, ModuleType
from typing import TYPE_CHECKING, Any

from ..records.units import MB
from ..runtime import clock
from ..runtime.objects import bases_of, is_made_in_python, namespace_of
from ..runtime.shell import module_namespace
from .memory_blocks import ArrayReaders, holding_of

if TYPE_CHECKING:
    import weakref

    from .growth import OwnedBlock

_LOOK_AT_CLOCK = 1024  # objects
_SUSPENDED = frozenset(map(id, (GeneratorType, CoroutineType, AsyncGeneratorType)))


def garbage_below(
    roots: Iterable[weakref.ref[Any]],
    blocks: Mapping[Hashable, OwnedBlock],
    readers: ArrayReaders,
    budget_s: float,
) -> dict[Hashable, OwnedBlock]:
    """Return those of these blocks that are garbage with some objects; none where time is too short."""
    found: dict[Hashable, OwnedBlock] = {}
    objects = _garbage(roots, clock.thread_s() + budget_s)
    kinds = {id(type(one)): type(one) for one in objects}.values()
    made = (base for kind in kinds for base in bases_of(kind) if is_made_in_python(base))
    if any("__del__" in namespace_of(base) for base in made):
        return found  # it may bring back to life what it likes
    if objects and gc.get_freeze_count():  # what `gc.freeze` took away from the collector is never freed
        collected = set(map(id, gc.get_objects()))
        if any(gc.is_tracked(one) and id(one) not in collected for one in objects):
            return found
    for value in objects:
        holding = holding_of(value, readers)
        block = None if holding is None else blocks.get(holding.key)
        if block is not None and holding is not None and _is_freed_with(value):
            size_bytes = min(block.size_bytes, holding.size_bytes)
            if size_bytes >= MB:
                found[holding.key] = block._replace(size_bytes=size_bytes)
    return found


def _garbage(roots: Iterable[weakref.ref[Any]], deadline_s: float) -> list[Any]:
    """Return what is garbage of some objects and everything below them."""
    nodes = list({id(one): one for root in roots if (one := root()) is not None}.values())
    if not nodes:
        return []
    modules = (module for module in list(sys.modules.values()) if issubclass(type(module), ModuleType))
    namespaces = set(map(id, map(module_namespace, modules)))
    places = {id(one): place for place, one in enumerate(nodes)}
    counts, below = [0] * len(nodes), list[list[int]]()
    one = None
    while len(below) < len(nodes):
        if not len(below) % _LOOK_AT_CLOCK and clock.thread_s() > deadline_s:
            return []
        lower = []
        for one in _referents(nodes[len(below)]):
            place = places.get(id(one))
            if place is None:
                if issubclass(type(one), (ModuleType, type)) or id(one) in namespaces:
                    continue  # it leads to most of the process
                place = places[id(one)] = len(nodes)
                nodes.append(one)
                counts.append(0)
            counts[place] += 1
            lower.append(place)
        one = None  # a reference of ours
        below.append(lower)
    alone = next(map(sys.getrefcount, [object()]))
    now = map(sys.getrefcount, nodes)
    reached = [place for place, count in enumerate(now) if count - alone != counts[place]]
    alive = set(reached)
    while reached:
        fresh = {*below[reached.pop()]} - alive
        alive |= fresh
        reached += fresh
    return [value for place, value in enumerate(nodes) if place not in alive]


def _referents(value: Any) -> Iterable[Any]:
    """Return what the collector sees below a value, and what a numpy array is a view of."""
    if id(type(value)) in _SUSPENDED:
        # From Python 3.14 on it shows what its stack borrows from a variable, too, which no count includes.
        return {id(one): one for one in gc.get_referents(value)}.values()
    numpys = getattr(sys.modules.get("numpy"), "ndarray", None)
    if numpys is None or not issubclass(type(value), numpys):
        return gc.get_referents(value)
    base = numpys.base.__get__(value)
    return gc.get_referents(value) if base is None else [*gc.get_referents(value), base]


def _is_freed_with(value: Any) -> bool:
    """Return whether the memory behind a value is its own, so that it is freed with it."""
    kind = type(value)
    if issubclass(kind, (bytes, bytearray, array.array)):
        return True
    numpys = getattr(sys.modules.get("numpy"), "ndarray", None)
    if numpys is not None and issubclass(kind, numpys):
        return numpys.base.__get__(value) is None
    torch: Any = sys.modules.get("torch")
    tensors = getattr(torch, "Tensor", None)
    if tensors is None or not issubclass(kind, tensors):
        return False
    base = torch._C.TensorBase
    try:
        with torch._C.DisableTorchFunction():
            storage = base.untyped_storage(value)
            # One of the two is Python's, which was made for this question.
            return bool(torch._C._storage_Use_Count(storage._cdata) == 2 and base._use_count(value) == 1)
    except Exception:  # an older torch, which has no such counts
        return False
