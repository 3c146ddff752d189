"""What an object refers to, asked in C: no code of the user's runs.

No property, `__getattr__`, `__len__`, `__iter__` or `__repr__` of theirs is called, however they wrote their
classes; what leads out of what a name holds (modules, a function's globals, library classes) is left out.
"""

from __future__ import annotations

import gc
import itertools
import sys
from collections import OrderedDict, defaultdict, deque
from types import (
    CodeType,
    FrameType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Any

from ..runtime.classes import bases_of, is_made_in_python, module_of, namespace_of
from .frames import CODE_WITH_FAST_LOCALS, is_users_module, locals_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

LARGE = 1 << 14  # bytes: strings, bytes and numbers below that are not looked at one by one
_LONG = 20_000  # items: a longer container is walked piece by piece, with a look at the clock after each
_PIECE = 4096
TICK = object()  # between two pieces: time to look at the clock

CONTAINERS: tuple[type, ...] = (dict, list, tuple, set, frozenset, deque)
# By id, for a class of the user's may have a metaclass with a `__hash__` or an `__eq__` of its own.
PLAIN_CONTAINERS = frozenset(map(id, CONTAINERS))
_EMPTY_OR_NOT = PLAIN_CONTAINERS | {id(OrderedDict), id(defaultdict)}
_SCALARS = frozenset(map(id, (float, complex, bool, range, slice, CodeType))) | {
    id(type(None)),
    id(type(...)),
    id(type(NotImplemented)),
}
_SIZED = frozenset(map(id, (int, str, bytes)))
_NOTHING_IN_A_LONG_ONE = _SCALARS | {id(int)}
_C_ATTRIBUTES = frozenset(map(id, (GetSetDescriptorType, MemberDescriptorType)))
_OUR_PACKAGE = __name__.partition(".")[0]


def worth_a_look(values: Iterable[Any], but: Any = None) -> list[Any]:
    """Those that could hold memory or lead to it, without one that is known."""
    return [
        one
        for one in values
        if (kind := id(type(one))) not in _SCALARS
        and (kind not in _SIZED or one.__sizeof__() >= LARGE)
        and (kind not in _EMPTY_OR_NOT or one)
        and one is not but
    ]


def referents_of(kind: type) -> Callable[[Any], Iterable[Any]] | None:  # noqa: PLR0911 - a case each
    """How to ask a value of this class what it refers to; None where nothing is to be seen."""
    if id(kind) in _SCALARS | _SIZED:
        return None
    if issubclass(kind, ModuleType) or module_name(kind).partition(".")[0] == _OUR_PACKAGE:
        return None
    if issubclass(kind, type):
        return _of_class
    if kind is FrameType:
        return _of_frame
    if kind is FunctionType:
        return _of_function
    base = next((base for base in CONTAINERS if issubclass(kind, base)), None)
    if base is None:
        return _of_object if _is_users(kind) else lambda value: worth_a_look(gc.get_referents(value), kind)
    return _of_plain if id(kind) in PLAIN_CONTAINERS else lambda value: _of_container(base, value)


def _of_object(value: Any) -> Iterable[Any]:
    return worth_a_look(gc.get_referents(value))


def _of_plain(value: Any) -> Iterable[Any]:
    if len(value) > _LONG:
        return in_pieces(_items(type(value), value))
    return worth_a_look(gc.get_referents(value))


def _of_container(base: Any, value: Any) -> Iterable[Any]:
    """Of a class derived from a container: its attributes too."""
    if base.__len__(value) <= _LONG:
        return worth_a_look(gc.get_referents(value))
    attributes = own_attribute(value, "__dict__")
    return itertools.chain((attributes,), in_pieces(_items(base, value)))


def _of_class(value: Any) -> Iterable[Any]:
    return worth_a_look(list(namespace_of(value).values())) if _is_users(value) else ()


def _of_frame(value: Any) -> Iterable[Any]:
    """Of a cell's own code the variables are the user's, whoever keeps the frame."""
    is_function = value.f_code.co_flags & CODE_WITH_FAST_LOCALS
    return worth_a_look([one for _, one in locals_of(value)]) if is_function else ()


def _of_function(value: Any) -> Iterable[Any]:
    outside = value.__globals__, value.__builtins__
    found = worth_a_look(gc.get_referents(value))
    return [one for one in found if one is not outside[0] and one is not outside[1]]


def _items(base: Any, value: Any) -> Iterator[Any]:
    if base is dict:
        return itertools.chain(dict.values(value), dict.keys(value))
    items: Iterator[Any] = base.__iter__(value)
    return items


def in_pieces(items: Iterator[Any]) -> Iterator[Any]:
    """What is worth a look of many, with a `TICK` now and then."""
    while piece := list(itertools.islice(items, _PIECE)):
        if not _NOTHING_IN_A_LONG_ONE.issuperset(map(id, map(type, piece))):
            yield from worth_a_look(piece)
        yield TICK


def own_attribute(value: Any, name: str) -> Any:
    """An attribute that a class keeps in C, read past whatever the user wrote; None for any other."""
    found, _ = _defined(type(value), name)
    return found.__get__(value) if id(type(found)) in _C_ATTRIBUTES else None


def _defined(kind: type, name: str) -> tuple[Any, type]:
    """What a class or the nearest of its bases says of a name; (None, object) if none does."""
    for base in bases_of(kind):
        namespace = namespace_of(base)
        if name in namespace:
            return namespace[name], base
    return None, object


def may_be_asked(kind: type) -> bool:
    """Whether a framework may look at such a value without running code of the user's.

    `isinstance` reads `__class__`, and JAX's reads more. Where a class answers that with Python code
    of its own, only one that descends from a C type, as torch's tensors do, can be an array at all.
    """
    for name in ("__class__", "__getattribute__", "__getattr__"):
        found, base = _defined(kind, name)
        if base is not object and id(type(found)) not in _C_ATTRIBUTES | {id(WrapperDescriptorType)}:
            return any(not is_made_in_python(base) and not _is_builtin(base) for base in bases_of(kind))
    return True


def _is_builtin(kind: type) -> bool:
    return module_name(kind) in ("builtins", "collections")


def _is_users(kind: type) -> bool:
    """Whether a class was written in the notebook or in one of the user's own modules."""
    name = module_name(kind)
    return name == "__main__" or is_users_module(sys.modules.get(name))


def module_name(kind: type) -> str:
    """Where a class says that it was written."""
    try:
        name = module_of(kind)
    except AttributeError:
        return ""
    return name if type(name) is str else ""
