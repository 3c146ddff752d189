"""Objects of the user's: their classes as the interpreter has them, frames, code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CodeType, FrameType, TracebackType
from typing import Any

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: set for every class that Python code made

# What a metaclass of the user's defines under these names is neither seen nor run.
bases_of: Callable[[Any], tuple[type, ...]] = vars(type)["__mro__"].__get__
namespace_of: Callable[[Any], Any] = vars(type)["__dict__"].__get__
module_of: Callable[[Any], Any] = vars(type)["__module__"].__get__
_flags_of: Callable[[Any], int] = vars(type)["__flags__"].__get__


def is_made_in_python(kind: type) -> bool:
    """Return whether Python code made a class; some classes of C libraries look the same."""
    return bool(_flags_of(kind) & _HEAP_TYPE)


def walk_stack(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and those that called it, the innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def walk_tb(traceback: Any) -> Iterator[TracebackType]:
    """Yield the entries of a traceback, the outermost first; none for anything that is not a traceback."""
    while isinstance(traceback, TracebackType):
        yield traceback
        traceback = traceback.tb_next


def nested_code(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and, depth first, every code object within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested_code(constant)
