"""After a cell: one table of what other processes did for it, below the cell's own report.

One callback per shell serves every watch. It asks each for the groups that are complete and displays each
of them once: as HTML in a notebook, as text in a terminal, inside ``%%capture`` where a captured cell did the
work. Outside IPython, for example in a script, nothing is displayed; ``watch.records``
still has the groups.
"""

from __future__ import annotations

import sys
import weakref
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from ..engine.machine import importing
from ..engine.recorders import is_reported
from ..records.cell_record import GROUP_MIME
from ..runtime.errors import why
from ..runtime.output import say
from ..runtime.shell import cells_behind, current_shell

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..records.group import Group
    from .watcher import Watch

_EVENT = "post_run_cell"
_DISPLAYS = "ipygpulogger.render.displays"  # what turns a group into HTML


def show_after_cells(watch: Watch) -> None:
    """Show a watch's tables from now on, after each cell; without effect outside IPython."""
    shell = current_shell()
    if shell is not None:
        with importing():  # now, so that no cell waits for it or holds its memory
            import_module(_DISPLAYS)
        AfterCells.of(shell).add(watch)


def show_no_more(watch: Watch) -> None:
    """Show no further table of a watch that stops, after that of what is complete by now."""
    shown_in = [after for after in AfterCells.all() if watch in after]
    for after in shown_in:
        after.remove(watch)
    if not shown_in:  # outside IPython
        watch.collect(None)
    watch.let_go()


def label_here() -> str | None:
    """Return what the running cell is called, such as "In [4]" or "nested in In [4]"; None without one."""
    cells = list(cells_behind(sys._getframe()))
    outer = _label_of(cells)
    nested = outer is not None and not getattr(cells[0][0], "store_history", False)
    return f"nested in {outer}" if nested else outer


class AfterCells:
    """What one shell calls after each cell; `of` returns the shell's own."""

    _by_shell: ClassVar[weakref.WeakKeyDictionary[Any, AfterCells]] = weakref.WeakKeyDictionary()

    def __init__(self, shell: Any) -> None:
        self._shell = weakref.ref(shell)
        self._watches: list[Watch] = []
        self._cannot_show = False

    @classmethod
    def of(cls, shell: Any) -> AfterCells:
        """Return the one of this shell."""
        return cls._by_shell.setdefault(shell, cls(shell))

    @classmethod
    def all(cls) -> list[AfterCells]:
        """Return those of all shells."""
        return list(cls._by_shell.values())

    def __contains__(self, watch: Watch) -> bool:
        return watch in self._watches

    def add(self, watch: Watch) -> None:
        """Ask a watch after each cell, beginning with the one that runs now."""
        if watch not in self._watches:
            self._watches.append(watch)
        self._come_last()

    def remove(self, watch: Watch) -> None:
        """Ask a watch for the last time; after the last one, remove the callback too."""
        if watch in self._watches:
            self._watches.remove(watch)
            self._show_ended(watch, label_here())
        shell = self._shell()
        if not self._watches and shell is not None:
            try:
                shell.events.unregister(_EVENT, self._post_run_cell)
            except ValueError:  # it is not registered, or the shell's events were reset
                pass

    def _come_last(self) -> None:
        """Register the callback behind all others, so that the cell's own report stands above the table."""
        shell: Any = self._shell()
        callbacks = shell.events.callbacks[_EVENT]
        if not callbacks or callbacks[-1] != self._post_run_cell:
            if self._post_run_cell in callbacks:
                shell.events.unregister(_EVENT, self._post_run_cell)
            shell.events.register(_EVENT, self._post_run_cell)

    def _post_run_cell(self, result: Any = None) -> None:
        try:
            label = _label(result)
            if label is not None:
                for watch in tuple(self._watches):
                    self._show_ended(watch, label)
            if self._watches:
                self._come_last()  # from the next cell on, if another callback came in this one
        except BaseException:  # interrupted, or a watch failed: IPython would print it into the cell
            pass

    def _show_ended(self, watch: Watch, label: str | None) -> None:
        """Keep the groups that a watch has complete, and show each that the loggers do not keep quiet."""
        try:
            groups = watch.collect(label)
        except Exception as error:
            watch.say_once(f"ipygpulogger could not collect what other processes measured: {why(error)}")
            return
        for group in filter(is_reported, groups) if watch.shows else ():
            self._display(group)

    def _display(self, group: Group) -> None:
        shell: Any = self._shell()
        try:
            bundle: dict[str, Any] = {"text/plain": repr(group), "text/html": group._repr_html_()}
            bundle[GROUP_MIME] = {"label": group.label, "records": len(group)}  # for `ipygpulogger run`
            shell.display_pub.publish(data={kind: text for kind, text in bundle.items() if text}, metadata={})
        except Exception as error:
            if not self._cannot_show:
                self._cannot_show = True
                say(f"ipygpulogger cannot show its tables and goes on measuring: {why(error)}", aside=True)


def _label(result: Any) -> str | None:
    """Return what the cell that ended is called; None for one that a front end ran silently."""
    if getattr(getattr(result, "info", None), "store_history", True):
        return _numbered(getattr(result, "execution_count", None))
    outer = _label_of(cells_behind(sys._getframe()))  # the nested one has ended
    return outer and f"nested in {outer}"


def _label_of(cells: Iterable[tuple[Any, int | None]]) -> str | None:
    """Return what the outermost of nested cells is called; None without one that the user sees."""
    stored = [count for info, count in cells if getattr(info, "store_history", False)]
    return _numbered(stored[0]) if stored else None


def _numbered(count: int | None) -> str:
    return f"In [{'?' if count is None else count}]"
