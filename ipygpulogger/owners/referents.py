"""The objects that an object or an exception refers to, found in C without running any of the user's code.

Left out is what leads out of what a name holds: modules, a function's globals and the classes of libraries.
"""

from __future__ import annotations

import builtins
import gc
import itertools
import math
import re
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from inspect import CO_OPTIMIZED
from types import (
    CodeType,
    FrameType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    ModuleType,
    TracebackType,
)
from typing import Any

from ..runtime.objects import bases_of, module_of, namespace_of, walk_tb
from ..runtime.shell import OUR_PACKAGE, is_users_module

LARGE = 1 << 14  # bytes: smaller strings and bytes are not visited
_LONG = 4096  # items: a longer container is visited in pieces, with a look at the clock after each
TICK = object()  # comes between two pieces: time to look at the clock

CONTAINERS: tuple[type, ...] = (dict, list, tuple, set, frozenset, deque)
# By id: a metaclass of the user's may define `__hash__` or `__eq__`.
PLAIN_CONTAINERS = frozenset(map(id, CONTAINERS))
_EMPTY_OR_NOT = PLAIN_CONTAINERS | {id(OrderedDict), id(defaultdict)}
_SCALARS = frozenset(map(id, (int, float, complex, bool, range, slice, CodeType))) | {
    id(type(None)),
    id(type(...)),
    id(type(NotImplemented)),
}
_SIZED = frozenset(map(id, (str, bytes)))
_HAVE_GC = 1 << 14  # Py_TPFLAGS_HAVE_GC
_flags_of: Callable[[type], int] = vars(type)["__flags__"].__get__
_C_ATTRIBUTES = frozenset(map(id, (GetSetDescriptorType, MemberDescriptorType)))


def worth_visiting(values: Iterable[Any], but: Any = None) -> list[Any]:
    """Return the values that can hold memory or lead to it, without `but`."""
    return [
        one
        for one in values
        if (kind := id(type(one))) not in _SCALARS
        and (kind not in _SIZED or one.__sizeof__() >= LARGE)
        and (kind not in _EMPTY_OR_NOT or one)
        and one is not but
    ]


def referents_of(kind: type) -> Callable[[Any], Iterable[Any]] | None:  # noqa: PLR0911 - a case each
    """Return the function that gives the referents of a value of this class; None where it has none."""
    if id(kind) in _SCALARS | _SIZED:
        return None
    # A thread or a log handler refers to ipykernel's stream, and through it to every output.
    if issubclass(kind, ModuleType) or module_name(kind).partition(".")[0] in (OUR_PACKAGE, "ipykernel"):
        return None
    if issubclass(kind, type):
        return _of_class
    if kind is FrameType:
        return _of_frame
    if kind is FunctionType:
        return _of_function
    base = next((base for base in CONTAINERS if issubclass(kind, base)), None)
    if base is None and not _flags_of(kind) & _HAVE_GC:
        return None  # a class whose values the garbage collector does not visit
    if base is None:
        left_out = None if _is_users(kind) else kind
        return lambda value: worth_visiting(gc.get_referents(value), left_out)
    return _of_plain if id(kind) in PLAIN_CONTAINERS else lambda value: _of_container(base, value)


def _of_plain(value: Any) -> Iterable[Any]:
    if len(value) > _LONG:
        return in_pieces(_items(type(value), value))
    return worth_visiting(gc.get_referents(value))


def _of_container(base: Any, value: Any) -> Iterable[Any]:
    """Return the referents of a value whose class derives from a container: its attributes too."""
    if base.__len__(value) <= _LONG:
        return worth_visiting(gc.get_referents(value))
    return itertools.chain((own_attribute(value, "__dict__"),), in_pieces(_items(base, value)))


def _of_class(value: Any) -> Iterable[Any]:
    return worth_visiting(list(namespace_of(value).values())) if _is_users(value) else ()


def _of_frame(value: Any) -> Iterable[Any]:
    """Return a function's locals; the names of a cell's own code are variables of the user's already."""
    return worth_visiting([one for _, one in locals_of(value)]) if is_function(value) else ()


def _of_function(value: Any) -> Iterable[Any]:
    outside = value.__globals__, value.__builtins__
    found = worth_visiting(gc.get_referents(value))
    return [one for one in found if one is not outside[0] and one is not outside[1]]


def _items(base: Any, value: Any) -> Iterator[Any]:
    if base is dict:
        return itertools.chain(dict.values(value), dict.keys(value))
    items: Iterator[Any] = base.__iter__(value)
    return items


def in_pieces(items: Iterator[Any]) -> Iterator[Any]:
    """Yield, of many items, those that are worth visiting, with a `TICK` after each piece."""
    while piece := list(itertools.islice(items, _LONG)):
        if not _SCALARS.issuperset(map(id, map(type, piece))):
            yield from worth_visiting(piece)
        yield TICK


def own_attribute(value: Any, name: str) -> Any:
    """Return an attribute that a class keeps in C, past any accessor of the user's; None for any other."""
    namespaces = map(namespace_of, bases_of(type(value)))
    found: Any = next((namespace[name] for namespace in namespaces if name in namespace), None)
    return found.__get__(value) if id(type(found)) in _C_ATTRIBUTES else None


def _is_users(kind: type) -> bool:
    name = module_name(kind)
    return name == "__main__" or is_users_module(sys.modules.get(name))


def module_name(kind: type) -> str:
    """Return the name of the module that a class says it was defined in."""
    try:
        name = module_of(kind)
    except AttributeError:
        return ""
    return name if type(name) is str else ""


# -- exceptions: what they hold, and which of them say that memory ran out

# Whether reading a function's `f_locals` leaves a copy of them in its frame, asked of this generator's own.
LOCALS_LEAVE_A_COPY = type(next(sys._getframe().f_locals for _ in "1")) is dict

# C accessors, which no class of the user's can override.
args_of: Callable[[Any], Any] = vars(BaseException)["args"].__get__
_cause: Callable[[Any], Any] = vars(BaseException)["__cause__"].__get__
_context: Callable[[Any], Any] = vars(BaseException)["__context__"].__get__
traceback_of: Callable[[Any], Any] = vars(BaseException)["__traceback__"].__get__


def exception_chain(error: BaseException | None) -> list[BaseException]:
    """Return an exception, its causes, its contexts and its group's exceptions, each once, itself first."""
    found: dict[int, BaseException] = {}
    waiting = [error]
    while waiting:
        error = waiting.pop(0)
        if error is None or id(error) in found:
            continue
        found[id(error)] = error
        waiting += [_cause(error), _context(error)]
        group = getattr(builtins, "BaseExceptionGroup", None)
        if group is not None and issubclass(type(error), group):
            waiting += group.exceptions.__get__(error)
    return list(found.values())


def message_of(error: BaseException) -> str:
    """Return an exception's text, without calling its `__str__`."""
    return " ".join(part for part in args_of(error) if type(part) is str)


def frames_of(error: BaseException) -> list[FrameType]:
    """Return the frames of an exception's traceback, the outermost first."""
    return unique_frames(walk_tb(traceback_of(error)))


def unique_frames(entries: Iterable[TracebackType]) -> list[FrameType]:
    """Return the frames of these traceback entries, each once."""
    return list({id(entry.tb_frame): entry.tb_frame for entry in entries}.values())


def is_function(frame: FrameType) -> bool:
    """Return whether a frame runs a function; a cell and the body of a class keep their names in a dict."""
    return bool(frame.f_code.co_flags & CO_OPTIMIZED)


def function_name(frame: FrameType) -> str:
    """Return the name of a frame's function: "step", or "Net.forward" from Python 3.11 on."""
    name = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
    return str(name).replace("<locals>.", "")


def locals_of(frame: FrameType) -> list[tuple[str, Any]]:
    """Return a frame's local variables; no copy of them is left in the frame."""
    found = frame.f_locals
    if not is_function(frame):
        return list(found.items()) if type(found) is dict else []
    pairs = list(found.items())
    if LOCALS_LEAVE_A_COPY:
        empty_if_unshared(found)
    return pairs


def empty_if_unshared(snapshot: Any) -> None:
    """Empty a frame's copy of its locals, unless the user holds it from `locals()`."""
    if type(snapshot) is dict and _references(snapshot) <= _references_of_one_holder():
        snapshot.clear()


def _references(value: Any) -> int:
    return sys.getrefcount(value)


def _references_of_one_holder() -> int:
    """Return what `_references` says, called as above, of a value with one referrer; a debugger adds some."""
    holder: list[dict[str, Any]] = [{}]
    found = holder[0]

    def ask(snapshot: Any) -> int:
        return _references(snapshot)

    return ask(found)


_CLASSES = {"OutOfMemoryError", "ResourceExhaustedError"}
FRAMEWORKS = {"torch": "torch", "cupy": "cupy", "cupy_backends": "cupy", "tensorflow": "tensorflow"}
FRAMEWORKS |= {"jaxlib": "jax", "jax": "jax", "rmm": "rmm"}  # by the first word of a class's module
_WORDS = (
    r"\b(?:CUDA|HIP|XPU|MPS|GPU|MTIA|NPU)\b.{0,40}out of memory|RESOURCE_EXHAUSTED|CUDA_ERROR_OUT_OF_MEMORY"
    r"|cudaErrorMemoryAllocation|out_of_memory: CUDA|OOM when allocating"
    r"|(?:CUBLAS|CUDNN)_STATUS_ALLOC_FAILED"
)
_OF_RAM = "can't allocate memory", "Cannot allocate memory"  # torch's words on CPU; ENOMEM, as of `fork`
_HINTS = "memory", "exhausted", "oom", "alloc_failed"  # one of them is in whatever that pattern finds


def out_of_memory_in(error: BaseException | None) -> BaseException | None:
    """Return the out-of-memory error in an exception's chain, itself or one that led to it; else None."""
    for one in exception_chain(error):
        message = message_of(one)
        small = message.lower()
        if any(base.__name__ in _CLASSES and first_word(base) in FRAMEWORKS for base in type(one).__mro__):
            return one
        if any(hint in small for hint in _HINTS) and re.search(_WORDS, message, re.IGNORECASE):
            return one
    return None


def ram_error_in(error: BaseException | None) -> BaseException | None:
    """Return the error that general RAM could not be allocated; asked where none of a device is found."""
    for one in exception_chain(error):
        is_system = isinstance(one, (RuntimeError, OSError))
        if isinstance(one, MemoryError) or (is_system and any(word in message_of(one) for word in _OF_RAM)):
            return one
    return None


def first_word(kind: type) -> str:
    """Return the top-level package that a class comes from."""
    return str(vars(kind).get("__module__", "")).partition(".")[0]


def asked_of_ram(error: BaseException) -> int | None:
    """Return the size that an allocation of numpy's had asked for; None where that is not known."""
    args = args_of(error)
    if first_word(type(error)) == "numpy" and len(args) == 2:
        dtype = getattr(sys.modules.get("numpy"), "dtype", None)
        if type(args[0]) is tuple and dtype is not None and issubclass(type(args[1]), dtype):
            return math.prod(args[0]) * int(dtype.itemsize.__get__(args[1]))
    return None
