"""The IPython shell of this process, and the cells that run in it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from .frames import walk_stack

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


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
