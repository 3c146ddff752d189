"""The records of one process among those of many: memory over time can be drawn of one alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .cell_record import process_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .cell_record import CellRecord
    from .process import Process


class OneProcess:
    """Which process is drawn, of the records asked about so far: the notebook's kernel, else the first one.

    Attributes:
        process: The process; None for the kernel, and before the first record.
    """

    def __init__(self) -> None:
        self.process: Process | None = None
        self._asked = False

    def takes(self, process: Process | None) -> bool:
        """Return whether a record of a process is drawn; None is the kernel."""
        if not self._asked:
            self._asked, self.process = True, process
        if self.process is None or process is None:
            return self.process is process
        return (self.process.host, self.process.pid) == (process.host, process.pid)

    def gives_way(self, process: Process | None) -> bool:
        """Return whether this is the first record of the kernel: it takes the place of those before."""
        if process is not None or self.process is None:
            return False
        self.process = None
        return True


def of_one_process(records: Iterable[CellRecord]) -> tuple[list[CellRecord], str]:
    """Return the records of the kernel or, without one, of the first process, and that process's name."""
    one = OneProcess()
    found: list[CellRecord] = []
    for record in records:
        process = process_of(record)
        if one.gives_way(process):
            found.clear()
        if one.takes(process):
            found.append(record)
    return found, "" if one.process is None else one.process.named()
