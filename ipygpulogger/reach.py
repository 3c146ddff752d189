"""The walk: the memory that a name reaches, without running any code of the user's.

It asks the garbage collector what an object refers to (`gc.get_referents`, in C), so no property,
`__getattr__`, `__len__` or `__repr__` of theirs is called. It goes into nothing that leads out of what a
name holds: other modules' globals, IPython's shell, library classes.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import sys
import time
from collections import deque
from types import (
    CodeType,
    FrameType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from .frames import CODE_WITH_FAST_LOCALS, is_users_module, locals_of, namespace_of_module
from .records import Owner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from .sources import Holding

    Holdings = Sequence[Callable[[Any], Holding | None]]

Kind = Literal["variable", "output", "traceback", "other"]

BUDGET_S = 1.0  # once, after a cell that failed, or when asked
_TURN = 0.4  # of the time left is one name's, until the next has its turn: a huge list starves nobody
_LOOK_AT_CLOCK = 256  # objects
_LARGE = 100_000  # items: a larger container is walked item by item instead of listed at once

_CONTAINERS: tuple[type, ...] = (dict, list, tuple, set, frozenset, deque)
# By id, for a class of the user's may have a metaclass with a `__hash__` or an `__eq__` of its own.
_PLAIN_CONTAINERS = frozenset(map(id, _CONTAINERS))
_LEAVES = frozenset(
    map(id, (int, float, complex, bool, str, bytes, bytearray, memoryview, range, slice, CodeType))
) | {id(type(None)), id(type(...)), id(type(NotImplemented))}
_C_ATTRIBUTES = frozenset(map(id, (GetSetDescriptorType, MemberDescriptorType)))
_OUR_PACKAGE = __name__.partition(".")[0]
_PYTHONS = 1 << 9  # Py_TPFLAGS_HEAPTYPE: of every class that Python code made

# C accessors, which no class of the user's can override.
_namespace_of_class: Callable[[Any], Any] = vars(type)["__dict__"].__get__
_bases_of: Callable[[Any], tuple[type, ...]] = vars(type)["__mro__"].__get__
_flags_of: Callable[[Any], int] = vars(type)["__flags__"].__get__
_module_of: Callable[[Any], Any] = vars(type)["__module__"].__get__


class Root(NamedTuple):
    """A name, and what it refers to."""

    name: str
    kind: Kind
    value: Any


class Found(NamedTuple):
    """What a walk found.

    Attributes:
        owners: By name and device, the largest first.
        complete: Everything was seen; otherwise the time was up.
    """

    owners: tuple[Owner, ...]
    complete: bool


def walk(
    roots: Iterable[Root], holdings: Holdings, *, closed: Iterable[Any] = (), budget_s: float = BUDGET_S
) -> Found:
    """Add up the arrays that each root reaches; one that several reach is the first root's.

    Args:
        roots: In the order of their claims.
        holdings: What `Framework.holding` says of a value, for each framework.
        closed: Objects not to go into.
        budget_s: After so long it stops.
    """
    return _Walk(holdings, closed, budget_s).run([_Path(root) for root in roots])


class _Path:
    """How far the walk from one root has come: iterators over what is still to be seen, the deepest last."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self.open: list[Iterator[Any]] = [iter((root.value,))]


class _Walk:
    def __init__(self, holdings: Holdings, closed: Iterable[Any], budget_s: float) -> None:
        self._holdings = holdings
        self._deadline_s = time.monotonic() + budget_s
        self._sizes: dict[tuple[str, str, Kind], int] = {}
        self._claimed: set[Any] = set()
        self._askable: dict[int, bool] = {}
        # By id. Only objects that others keep alive come in here, so no id is used twice.
        self._seen = {id(value) for value in closed}
        self._seen.update(id(namespace_of_module(module)) for module in modules())
        self._complete = True

    def run(self, paths: list[_Path]) -> Found:
        while paths and self._complete:
            paths = [path for path in paths if not self._go(path)]
        owners = [
            Owner(name, size_bytes, device, kind) for (name, device, kind), size_bytes in self._sizes.items()
        ]
        return Found(tuple(sorted(owners, key=lambda owner: -owner.size_bytes)), self._complete)

    def _go(self, path: _Path) -> bool:
        """One turn; whether the path is at its end."""
        now_s = time.monotonic()
        turn_ends_s = now_s + _TURN * (self._deadline_s - now_s)
        step = 0
        while path.open:
            if step % _LOOK_AT_CLOCK == 0 and (now_s := time.monotonic()) > turn_ends_s:
                self._complete = now_s <= self._deadline_s
                return False
            step += 1
            try:
                value = next(path.open[-1])
            except StopIteration:
                path.open.pop()
            except RuntimeError:  # another thread changed the container
                path.open.pop()
            else:
                self._visit(path, value)
        return True

    def _visit(self, path: _Path, value: Any) -> None:
        if id(type(value)) in _LEAVES or id(value) in self._seen:
            return
        self._seen.add(id(value))
        if self._may_be_asked(type(value)) and self._claim(path.root, value):
            gradient = _gradient(value)
            if gradient is not None:
                self._claim(path.root, gradient)
        children = _children(value)
        if children is not None:
            path.open.append(children)

    def _may_be_asked(self, kind: type) -> bool:
        known = self._askable.get(id(kind))  # the class lives as long as the value that is looked at
        if known is None:
            known = self._askable[id(kind)] = id(kind) not in _PLAIN_CONTAINERS and _may_be_asked(kind)
        return known

    def _claim(self, root: Root, value: Any) -> bool:
        """Whether it is an array; if nobody else has it, it is this root's."""
        holding = _asked(value, self._holdings)
        if holding is None:
            return False
        if holding.size_bytes and holding.key not in self._claimed:
            self._claimed.add(holding.key)
            key = root.name, holding.device, root.kind
            self._sizes[key] = self._sizes.get(key, 0) + holding.size_bytes
        return True


def holding_of(value: Any, holdings: Holdings) -> Holding | None:
    """What the frameworks say of a value; None for what is no array of theirs."""
    return _asked(value, holdings) if _may_be_asked(type(value)) else None


def _asked(value: Any, holdings: Holdings) -> Holding | None:
    for holding in holdings:
        with contextlib.suppress(Exception):  # a broken array, of which nothing can be said
            found = holding(value)
            if found is not None:
                return found
    return None


def _gradient(array: Any) -> Any:
    """An array's `.grad`, where it is one of the framework's own attributes and may be read quietly."""
    try:
        if not (own_attribute(array, "is_leaf") or own_attribute(array, "retains_grad")):
            return None  # torch warns whoever reads it
        return own_attribute(array, "grad")
    except Exception:  # a subclass that refuses
        return None


def own_attribute(value: Any, name: str) -> Any:
    """An attribute that a class keeps in C, read past whatever the user wrote; None for any other."""
    found, _ = _defined(type(value), name)
    return found.__get__(value) if id(type(found)) in _C_ATTRIBUTES else None


def _defined(kind: type, name: str) -> tuple[Any, type]:
    """What a class or the nearest of its bases says of a name; (None, object) if none does."""
    for base in _bases_of(kind):
        namespace = _namespace_of_class(base)
        if name in namespace:
            return namespace[name], base
    return None, object


def _may_be_asked(kind: type) -> bool:
    """Whether a framework may look at such a value without running code of the user's.

    `isinstance` reads `__class__`, and JAX's reads more. Where a class answers that with Python code
    of its own, only one that descends from a C type, as torch's tensors do, can be an array at all.
    """
    for name in ("__class__", "__getattribute__", "__getattr__"):
        found, base = _defined(kind, name)
        if base is not object and id(type(found)) not in _C_ATTRIBUTES | {id(WrapperDescriptorType)}:
            return any(not _flags_of(base) & _PYTHONS and not _is_builtin(base) for base in _bases_of(kind))
    return True


def _is_builtin(kind: type) -> bool:
    return _module_name(kind) in ("builtins", "collections")


def _children(value: Any) -> Iterator[Any] | None:
    """What an object refers to, without what leads out of it; None where nothing is to be seen."""
    kind = type(value)
    if id(kind) in _PLAIN_CONTAINERS and kind.__len__(value) <= _LARGE:
        return _seen_into(value) if value else None
    if issubclass(kind, ModuleType) or _module_name(kind).partition(".")[0] == _OUR_PACKAGE:
        return None
    if issubclass(kind, type):
        return iter(list(_namespace_of_class(value).values())) if _is_users(value) else None
    if kind is FrameType:  # of a cell's own code the variables are the user's, whoever keeps the frame
        is_function = value.f_code.co_flags & CODE_WITH_FAST_LOCALS
        return iter([one for _, one in locals_of(value)]) if is_function else None
    base = next((base for base in _CONTAINERS if issubclass(kind, base)), None)
    if base is not None and base.__len__(value) > _LARGE:  # type: ignore[attr-defined]
        return _items(base, value)
    outside = (value.__globals__, value.__builtins__) if kind is FunctionType else ()
    return iter([one for one in _seen_into(value) if not any(one is other for other in outside)])


def _seen_into(value: Any) -> Iterator[Any]:
    return iter([one for one in gc.get_referents(value) if id(type(one)) not in _LEAVES])


def _items(base: type, value: Any) -> Iterator[Any]:
    if base is dict:
        return itertools.chain(dict.values(value), dict.keys(value))
    items: Iterator[Any] = base.__iter__(value)  # type: ignore[attr-defined]
    return items


def _is_users(kind: type) -> bool:
    """Whether a class was written in the notebook or in one of the user's own modules."""
    name = _module_name(kind)
    return name == "__main__" or is_users_module(sys.modules.get(name))


def _module_name(kind: type) -> str:
    try:
        name = _module_of(kind)
    except AttributeError:
        return ""
    return name if type(name) is str else ""


def modules() -> list[ModuleType]:
    """Every module that is imported."""
    return [module for module in list(sys.modules.values()) if issubclass(type(module), ModuleType)]
