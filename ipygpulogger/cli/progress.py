"""The line on the terminal that shows which cell runs."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from ..records.units import printable


class Progress:
    """Which cell runs, for how long, and how many are left; shown on a terminal only, and if rich is there.

    Attributes:
        cell: The cell that runs, or ran last: "cell 3 of 12"; empty before the first.
    """

    def __init__(self, count: int) -> None:
        self.cell = ""
        self._count = count
        self._rich: Any = None
        if sys.stderr.isatty():
            with contextlib.suppress(ImportError):
                self._rich = _rich_progress()
                self._task = self._rich.add_task("", total=count, source="")

    def start(self, number: int, source: str) -> None:
        """Show that this cell begins, by its number from 1 and the first line of its source."""
        self.cell = f"cell {number} of {self._count}"
        if self._rich is not None:
            first = printable(source.strip().splitlines()[0])
            self._rich.reset(self._task, completed=number - 1, description=self.cell, source=first)
            self._rich.start()

    def stop(self) -> None:
        """Clear the line, until the next cell starts."""
        if self._rich is not None:
            self._rich.stop()


def _rich_progress() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    one_line = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(24),
        TimeElapsedColumn(),
        TextColumn("{task.fields[source]}", markup=False, table_column=one_line),
        console=Console(stderr=True),
        transient=True,
        expand=True,
    )
