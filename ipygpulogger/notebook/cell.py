"""One running cell, as IPython's events and frames describe it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..runtime.shell import error_of, first_line, was_interrupted
from .cell_options import body_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..records import Status


class Cell:
    """One running cell.

    Attributes:
        info: IPython's own description of it; None once it has ended.
        ours: Whether it is to be measured; code that a front end runs silently is not.
        nested: Whether it runs within another, as `%%capture` makes one.
        label: "In [4]", or "nested in In [4]"; known once the cell has ended.
        execution_count: The 4 of "In [4]"; None for a nested cell.
        cell_id: The front end's name of the cell, where it sends one.
        source: The first line after ``%%gpulog``, shortened.
        status: "ok", "error" or "interrupted".
        error: Name of the exception type that ended the cell.
        exception: That exception, while subscribers handle that it ended the cell; None before and after.
        hooks_s: The part of its time so far that our hooks for cells nested in it took.
    """

    def __init__(self, info: Any, count: int | None, outer: Cell | None) -> None:
        stored = bool(getattr(info, "store_history", True))
        self.info, self._outer = info, None if stored else outer
        self.ours: bool = self._outer.ours if self._outer else stored
        self.nested = self._outer is not None
        self.label = "?"
        self.execution_count = None if self._outer else count
        self.cell_id: str | None = getattr(info, "cell_id", None)
        self.raw = getattr(info, "raw_cell", None) or ""
        self.source = first_line(body_of(self.raw))
        self.status: Status = "ok"
        self.error: str | None = None
        self.exception: BaseException | None = None
        self.hooks_s = 0.0  # negative for the time before its own clock began

    def around(self) -> Iterator[Cell]:
        """Yield the cells in which this one is nested, the innermost first; none once it has ended."""
        cell = self._outer
        while cell is not None:
            yield cell
            cell = cell._outer

    def end(self, result: Any) -> None:
        """Set the attributes that are known only at the end.

        Args:
            result: IPython's; it is not kept, for it would keep the cell's value alive.
        """
        if self._outer is None and self.execution_count is None:
            self.execution_count = getattr(result, "execution_count", None)
        outermost = self
        while outermost._outer is not None:
            outermost = outermost._outer
        number = "?" if outermost.execution_count is None else outermost.execution_count
        self.label = f"nested in In [{number}]" if self._outer else f"In [{number}]"
        self.info = self._outer = None
        error = error_of(result)
        if error is not None:
            self.status = "interrupted" if was_interrupted(error) else "error"
            self.error = type(error).__name__
            self.exception = error
