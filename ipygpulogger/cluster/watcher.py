"""`Watch`: what `watch` returns, whichever engine it watches."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from ..engine.machine import machine
from ..engine.recorders import keep
from ..records.group import Group
from ..records.history import History
from ..records.units import printable
from ..runtime.output import say
from ..runtime.shell import current_shell

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from typing_extensions import Self


class Watch:
    """Measures what a cluster does for each cell of this notebook, until it is stopped.

    The class of an engine overrides `ended`, `_state` and `stop`. It calls `after_cell.show_after_cells` once
    it measures, and `after_cell.show_no_more` when it is stopped.

    Attributes:
        history: The `ProcessRecord`s of all cells, in one `History`.
        shows: Whether a table is shown after each cell.
    """

    def __init__(self, *, report: bool = True) -> None:
        """Prepare.

        Args:
            report: Show a table after each cell.
        """
        self.history = History()
        self.shows = report
        self._groups: list[Group] = []
        self._said: set[str] = set()
        self._left_alone: set[int] = set()  # process ids on this machine that a record came from

    @property
    def records(self) -> list[Group]:
        """A `Group` for each cell in which other processes worked; the last is ``records[-1]``."""
        if current_shell() is None:  # a script has no cells, at whose end they are collected
            self.collect(None)
        return self._groups

    def ended(self, label: str | None) -> Iterable[Group]:  # noqa: ARG002 - for the classes of the engines
        """Return what is complete since the last call, usually one group or none; it never waits for long.

        Args:
            label: What to call it, such as "In [4]"; None outside IPython.
        """
        return ()

    def collect(self, label: str | None) -> list[Group]:
        """Keep what is complete, and return it."""
        return [self.keep(group) for group in self.ended(label)]

    def keep(self, group: Group) -> Group:
        """Add the records of a cell that has ended, here and to every logger that runs.

        Returns:
            The same group, with what the loggers say of the records, such as that a budget was exceeded.
        """
        kept = Group(group.label, keep(group), group.missing, group.notes)
        self._groups.append(kept)
        self.history.extend(kept)
        here = {record.pid for record in kept if record.host == socket.gethostname()}
        for pid in here - self._left_alone - {os.getpid()}:
            self._left_alone.add(pid)
            machine().child_peaks.leave_alone(pid)
        return kept

    def let_go(self) -> None:
        """Measure the processes of this machine again, as other children, now that they no longer do."""
        machine().child_peaks.measure_again(self._left_alone)
        self._left_alone.clear()

    def say_once(self, sentence: str) -> None:
        """Print a sentence to the stream for errors, the first time that it is to be said."""
        if sentence not in self._said:
            self._said.add(sentence)
            say(printable(sentence), aside=True)

    def _state(self) -> str:
        """Return whether it measures, and how many processes: "running, 2 workers" or "stopped"."""
        return "stopped"

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._state()}, {counted(len(self.history), 'record')}>"

    def stop(self) -> None:
        """Stop measuring, here and in the other processes. Does nothing the second time."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: "1 worker", "1,000 records"."""
    return f"{count:,} {noun}{'s' * (count != 1)}"
