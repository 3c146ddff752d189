"""The IPython shell of this process, and the cells that run in it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from .frames import walk_stack

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_SOURCE_CHARACTERS = 120


def current_shell() -> Any:
    """Return the IPython shell of this process, or None; IPython is not imported to find out."""
    module = sys.modules.get("IPython")
    return module.get_ipython() if module else None


def cells_behind(frame: FrameType | None) -> Iterator[tuple[Any, int | None]]:
    """Yield the `ExecutionInfo` and the execution count of each cell that led to a frame, innermost first."""
    for caller in walk_stack(frame):
        if caller.f_code.co_name == "run_cell_async":
            names = caller.f_locals
            if names.get("info") is not None:
                yield names["info"], getattr(names.get("result"), "execution_count", None)


def first_line(source: str) -> str:
    """Return the first line of a cell's text, shortened."""
    lines = source.strip().splitlines()
    return lines[0][:_SOURCE_CHARACTERS] if lines else ""


def error_of(result: Any) -> BaseException | None:
    """Return the exception that ended a cell; None if it succeeded.

    Args:
        result: What IPython passes to ``post_run_cell``; None while an exception goes through IPython itself.
    """
    if result is None:
        return sys.exc_info()[1]
    return getattr(result, "error_before_exec", None) or getattr(result, "error_in_exec", None)


def was_interrupted(error: BaseException) -> bool:
    """Return whether a cell's exception is the user's interrupt.

    During `await` it reaches the cell as a cancellation of its task.
    """
    module: Any = sys.modules.get("asyncio.exceptions")  # nothing is cancelled before it is imported
    return isinstance(error, (KeyboardInterrupt, *((module.CancelledError,) if module else ())))
