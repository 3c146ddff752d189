"""What exceptions hold, and which of them say that memory ran out.

No framework is imported for it. It is used after every cell that failed, so it is quick to load.
"""

from __future__ import annotations

import builtins
import re
import sys
from functools import cache
from inspect import CO_OPTIMIZED
from typing import TYPE_CHECKING, Any

from ..runtime.objects import walk_tb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType, TracebackType

LOCALS_LEAVE_A_COPY = sys.version_info < (3, 13)  # reading `f_locals` leaves a copy of them in the frame

# C accessors, which no class of the user's can override.
args_of: Callable[[Any], Any] = vars(BaseException)["args"].__get__
_cause: Callable[[Any], Any] = vars(BaseException)["__cause__"].__get__
_context: Callable[[Any], Any] = vars(BaseException)["__context__"].__get__
traceback_of: Callable[[Any], Any] = vars(BaseException)["__traceback__"].__get__


def exception_chain(error: BaseException | None) -> list[BaseException]:
    """Return an exception, its causes, its contexts and its group's exceptions, each once, itself first."""
    found: list[BaseException] = []
    visited: set[int] = set()
    waiting = [error]
    while waiting:
        error = waiting.pop(0)
        if error is None or id(error) in visited:
            continue
        visited.add(id(error))
        found.append(error)
        waiting += [_cause(error), _context(error)]
        group = getattr(builtins, "BaseExceptionGroup", None)
        if group is not None and issubclass(type(error), group):
            waiting += group.exceptions.__get__(error)
    return found


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
    return next((one for one in exception_chain(error) if _is_out_of_memory(one)), None)


def failed_for_ram(error: BaseException | None) -> bool:
    """Return whether general RAM could not be allocated; asked of errors without one of a device."""
    return any(
        isinstance(one, MemoryError)
        or (isinstance(one, (RuntimeError, OSError)) and any(word in message_of(one) for word in _OF_RAM))
        for one in exception_chain(error)
    )


def _is_out_of_memory(error: BaseException) -> bool:
    by_class = any(
        base.__name__ in _CLASSES and first_word(base) in FRAMEWORKS for base in type(error).__mro__
    )
    if by_class:
        return True
    message = message_of(error)
    small = message.lower()
    return any(hint in small for hint in _HINTS) and _words().search(message) is not None


@cache
def _words() -> re.Pattern[str]:
    return re.compile(_WORDS, re.IGNORECASE)


def first_word(kind: type) -> str:
    """Return the top-level package that a class comes from."""
    return str(vars(kind).get("__module__", "")).partition(".")[0]
