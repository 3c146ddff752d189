"""Walking frames, tracebacks and code objects."""

from __future__ import annotations

from types import CodeType, TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


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
