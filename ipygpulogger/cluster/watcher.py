"""`watch`, and what the watches of ipyparallel, Ray and Dask have in common: collecting, keeping, showing.

After each cell a watch asks its engine for the groups that are complete, hands their records to every running
logger and displays each group once. Outside IPython nothing is displayed; ``watch.records`` has the groups.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..analysis.group import Group
from ..engine.machine import importing, machine
from ..records.cell_record import GROUP_MIME
from ..records.units import printable
from ..runtime.errors import say, why
from ..runtime.shell import cells_behind, current_shell
from ..storage.history import History
from .arrivals import Arrivals

if TYPE_CHECKING:
    from typing_extensions import Self

    from ..records.process import ProcessRecord


_WATCHES = {  # by the package that the client's class is of: the file, and the class in it
    "ipyparallel": (".ipyparallel", "IPyParallelWatch"),
    "ray": (".ray", "RayWatch"),
    "distributed": (".dask", "DaskWatch"),
}
_EVENT = "post_run_cell"
MOST = 1000  # rows of one table; of more tasks, those that needed the least are only counted

running: list[Watch] = []
_lock = threading.RLock()


def watch(client: Any, *, report: bool = True) -> Watch:
    """Measure what other processes do for each cell, and show one table for all of them.

    A client that is watched already keeps its watch.

    Args:
        client: An ``ipyparallel.Client``, the module ``ray``, or a ``distributed.Client`` of Dask.
        report: Show a table after each cell in which other processes worked.

    Returns:
        The running watch: ``records[-1]`` are the records of the last such cell, ``stop()`` ends it.

    Raises:
        TypeError: The argument is none of these.
    """
    # The engine's package, also of a client whose class is derived.
    names = [getattr(client, "__name__", None), *(base.__module__ for base in type(client).__mro__)]
    packages = (name.partition(".")[0] for name in names if isinstance(name, str))
    package = next((package for package in packages if package in _WATCHES), None)
    if package is None:
        kinds = "an ipyparallel.Client, the module ray, or a distributed.Client of Dask"
        raise TypeError(f"watch() takes {kinds}, not {client!r}")
    file, name = _WATCHES[package]
    kind: type[Watch] = getattr(import_module(file, __package__), name)
    client = kind.client_of(client)
    with _lock:
        current = watch_of(client) or kind(client, report=report)
    current.shows = report
    return current


def watch_of(client: Any) -> Watch | None:
    """Return the running watch of a client."""
    return next((found for found in running if found.client is client), None)


class Watch(ABC):
    """Measures what a cluster does for each cell of this notebook, until it is stopped.

    Attributes:
        client: The engine's client.
        history: The `ProcessRecord`s of all cells, in one `History`.
        shows: Whether a table is shown after each cell.
    """

    def __init__(self, client: Any, *, report: bool = True) -> None:
        self.client = client
        self.history: History = History()
        self.shows = report
        self.lock: threading.RLock = threading.RLock()  # of the arrivals
        self.arrivals: Arrivals = Arrivals(MOST)
        self._shell: Any = None  # whose cells are watched
        self._groups: list[Group] = []
        self._said: set[str] = set()
        self._spared: set[int] = set()  # the processes of this machine that measure themselves

    # -- what the class of an engine implements or calls ---------------------------------------------------

    @staticmethod
    def client_of(client: Any) -> Any:
        """Return the client to watch, given one of the engine's objects; a TypeError if there is none."""
        return client

    def take_arrived(self) -> None:  # noqa: B027 - records of Dask arrive by themselves
        """Put what other processes have sent into `arrivals`, without waiting for long."""

    def ended(self, label: str | None) -> Iterable[Group]:
        """Return what is complete since the last call; the label is of the cell."""
        self.take_arrived()
        with self.lock:
            arrived = self.arrivals
            if not arrived:
                return ()
            self.arrivals = Arrivals(MOST)
        return (arrived.group(label or "tasks"),)

    @abstractmethod
    def leave(self) -> None:
        """Stop measuring in the other processes; what was complete has been collected."""

    def started(self) -> None:
        """Collect after each cell from now on, beginning with the one that runs."""
        with _lock:
            running.append(self)
        self._shell = current_shell()
        if self._shell is not None:
            with importing():  # what makes HTML, now, so that no cell waits for it or holds its memory
                import_module("ipygpulogger.render.summary")
            # Behind that of a logger that was started before: the table stands below the cell's report.
            self._shell.events.register(_EVENT, self._post_run_cell)

    def spare(self, host: str, pid: int) -> None:
        """Let no cell of this notebook reset the high-water mark of a process here that measures itself."""
        if host == socket.gethostname() and pid not in (os.getpid(), *self._spared):
            self._spared.add(pid)
            machine().child_peaks.leave_alone(pid)

    def say_once(self, sentence: str) -> None:
        """Print a sentence to the stream for errors, the first time that it is to be said."""
        if sentence not in self._said:
            self._said.add(sentence)
            say(printable(sentence), aside=True)

    # -- what the user calls -------------------------------------------------------------------------------

    @property
    def records(self) -> list[Group]:
        """A `Group` for each cell in which other processes worked; the last is ``records[-1]``."""
        if current_shell() is None:  # a script has no cells, at whose end they are collected
            self.collect(None)
        return self._groups

    @property
    def is_running(self) -> bool:
        """Whether it measures."""
        return self in running

    def stop(self) -> None:
        """Stop measuring, here and in the other processes; what is complete by then is kept and shown."""
        with _lock:
            if not self.is_running:
                return
            running.remove(self)
        self._show_ended(label_here())
        if self._shell is not None:
            with suppress(ValueError):  # the shell's events were reset
                self._shell.events.unregister(_EVENT, self._post_run_cell)
            self._shell = None
        machine().child_peaks.measure_again(self._spared)
        self._spared.clear()
        self.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state, count = "running" if self.is_running else "stopped", len(self.history)
        return f"<{type(self).__name__}: {state}, {count:,} record{'s' * (count != 1)}>"

    # -- after a cell --------------------------------------------------------------------------------------

    def collect(self, label: str | None) -> list[Group]:
        """Keep what is complete, and return it."""
        return [self.keep(group) for group in self.ended(label)]

    def keep(self, group: Group) -> Group:
        """Add the records of a cell that has ended, here and to every logger; return them with its notes."""
        kept = Group(group.label, keep(group), group.missing, group.notes)
        self._groups.append(kept)
        self.history.extend(kept)
        for record in kept if self.is_running else ():
            self.spare(record.host, record.pid)
        return kept

    def _post_run_cell(self, result: Any = None) -> None:
        try:
            if getattr(getattr(result, "info", None), "store_history", True):
                label: str | None = _numbered(getattr(result, "execution_count", None))
            else:
                label = label_here()  # of the cell around it; None for a front end's silent code
            if label is not None:
                self._show_ended(label)
        except BaseException:  # interrupted: IPython would print it into the cell
            pass

    def _show_ended(self, label: str | None) -> None:
        shell = self._shell  # collecting may stop this watch
        try:
            groups = self.collect(label)
        except Exception as error:
            self.say_once(f"ipygpulogger could not collect what other processes measured: {why(error)}")
            return
        for group in groups if self.shows and shell is not None else ():
            try:
                bundle: dict[str, Any] = {"text/plain": repr(group), "text/html": group._repr_html_()}
                bundle[GROUP_MIME] = {"label": group.label, "records": len(group)}  # for `ipygpulogger run`
                shell.display_pub.publish({kind: found for kind, found in bundle.items() if found})
            except Exception as error:
                self.say_once(f"ipygpulogger cannot show its tables and goes on measuring: {why(error)}")


def keep(records: Iterable[ProcessRecord]) -> list[ProcessRecord]:
    """Hand the records of other processes to every running logger; return them with its notes."""
    given = found = list(records)
    loggers: tuple[Any, ...] = tuple(machine().scopes.loggers)
    for logger in loggers:
        pairs = zip(found, logger._keep(given), strict=True)
        found = [max(pair, key=lambda record: len(record.notes)) for pair in pairs]
    return found


def label_here() -> str | None:
    """Return what the outermost running cell is called, such as "In [4]"; None without one."""
    cells = cells_behind(sys._getframe())
    counts = [count for info, count in cells if getattr(info, "store_history", False)]
    return _numbered(counts[0]) if counts else None


def _numbered(count: int | None) -> str:
    return f"In [{'?' if count is None else count}]"
