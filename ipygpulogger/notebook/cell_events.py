"""IPython's events, filtered into "a real cell began" and "it ended".

What IPython 7.34 to 9.18 really does (each has a test):

- an empty cell fires ``post_run_cell`` without ``pre_run_cell``; so does the cell in which the
  callbacks are registered; the cell in which they are taken back fires only ``pre_run_cell``, and so
  does an awaited ``run_cell_async``;
- a nested `run_cell`, as `%%capture` makes it, fires both inside those of its outer cell;
- a cell on an ipykernel 7 subshell fires both on a thread of its own, interleaved with the others;
- a cell that front ends run for themselves has ``store_history=False``; so has a nested one;
- the object that ``pre_run_cell`` gets is the ``info`` of the one that ``post_run_cell`` gets, unless
  an exception went through IPython itself: then that is an equal one, or there is none;
- a nested cell's result has no execution count or a wrong one; those of the cells that run now stand,
  with their infos, in IPython's own frames.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from ..lines.tracing import spent
from ..runtime import clock, collector
from ..runtime.frames import walk_stack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from ..records import Status

_SOURCE_CHARACTERS = 120


class Cell:
    """One running cell.

    Attributes:
        info: IPython's own description of it; None once it has ended.
        ours: Whether it is to be measured; front ends' own probes are not.
        nested: Whether it runs within another, as `%%capture` makes one.
        label: "In [4]", or "nested in In [4]"; known once the cell has ended.
        execution_count: The 4 of "In [4]"; None for a nested cell.
        cell_id: The front end's name of the cell, where it sends one.
        source: The first line, shortened.
        status: "ok", "error" or "interrupted".
        error: Name of the exception type that ended the cell.
        exception: That exception, while listeners are told that the cell died of it; None before and after.
        hooks_s: How much of its time so far went into the hooks of cells nested in it.
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
        lines = self.raw.strip().splitlines()
        self.source: str = lines[0][:_SOURCE_CHARACTERS] if lines else ""
        self.status: Status = "ok"
        self.error: str | None = None
        self.exception: BaseException | None = None
        self.hooks_s = 0.0  # of what the thread spent on us, what belongs to its own beginning; negative

    def end(self, result: Any) -> None:
        """Fill in what is known only now. `result` itself is not kept: it would pin the cell's value."""
        if self._outer is None and self.execution_count is None:
            self.execution_count = getattr(result, "execution_count", None)
        outermost = self
        while outermost._outer is not None:
            outermost = outermost._outer
        number = "?" if outermost.execution_count is None else outermost.execution_count
        self.label = f"nested in In [{number}]" if self._outer else f"In [{number}]"
        self.info = self._outer = None
        if result is None:  # the exception is on its way through IPython
            error = sys.exc_info()[1]
        else:
            error = getattr(result, "error_before_exec", None) or getattr(result, "error_in_exec", None)
        if error is not None:
            # An interrupt during `await` reaches the cell as a cancellation of its task.
            interrupted = isinstance(error, (KeyboardInterrupt, asyncio.CancelledError))
            self.status, self.error = "interrupted" if interrupted else "error", type(error).__name__
            self.exception = error


class Listener(Protocol):
    """Somebody who measures cells; each step is done by all listeners before the next begins."""

    def _preload(self) -> None:
        """Do what must not happen within a cell."""

    def _settle(self) -> None:
        """Bring memory to rest; outside the measured time."""

    def _begin(self, cell: Cell) -> None:
        """The cell begins now."""

    def _end(self, cell: Cell) -> None:
        """The cell has ended now."""

    def _died(self, cell: Cell) -> None:
        """An exception ended the cell; its memory is still as that left it."""

    def _finish(self, cell: Cell) -> None:
        """Memory is at rest again: say what the cell used."""

    def _drop(self, cell: Cell) -> None:
        """The cell began, but its end will not be told."""

    def _failed(self, error: BaseException, cell: Cell | None = None) -> None:
        """One of the steps raised; the user's cell never notices, and this one is measured no further."""


class CellEvents:
    """The cells of one shell, told to any number of listeners. `of` finds the shell's own."""

    _by_shell: ClassVar[weakref.WeakKeyDictionary[Any, CellEvents]] = weakref.WeakKeyDictionary()

    def __init__(self, shell: Any) -> None:
        self._shell = weakref.ref(shell)
        self._listeners: list[Listener] = []
        self._running: dict[int, list[Cell]] = {}  # by thread, the innermost last

    @classmethod
    def of(cls, shell: Any) -> CellEvents:
        """The one of this shell."""
        return cls._by_shell.setdefault(shell, cls(shell))

    def subscribe(self, listener: Listener, *, running: bool = True) -> None:
        """From now on.

        Args:
            listener: Who is told.
            running: Take in the cell that runs already, from here to its end.
        """
        shell: Any = self._shell()
        for event, callback in self._callbacks():
            if callback not in shell.events.callbacks[event]:
                shell.events.register(event, callback)
        if listener not in self._listeners:
            self._listeners.append(listener)
        stack = self._running.setdefault(threading.get_ident(), [])
        if not stack:
            for info, count in reversed(list(cells_behind(sys._getframe()))):
                if not getattr(info, "silent", False):  # the end of a silent one is not told
                    stack.append(Cell(info, count, stack[-1] if stack else None))
        for cell in stack:
            if cell.ours and running:
                _guarded(listener, "_begin", cell)

    def unsubscribe(self, listener: Listener) -> None:
        """No longer; the cell that runs now ends untold."""
        if listener in self._listeners:
            self._listeners.remove(listener)
        shell = self._shell()
        if self._listeners or shell is None:
            return
        self._running.clear()
        collector.restore()
        for event, callback in self._callbacks():
            try:
                shell.events.unregister(event, callback)
            except ValueError:  # somebody reset the shell's events
                pass

    def _callbacks(self) -> tuple[tuple[str, Callable[..., None]], ...]:
        return ("pre_run_cell", self._pre_run_cell), ("post_run_cell", self._post_run_cell)

    def _pre_run_cell(self, info: Any = None) -> None:
        try:
            try:
                collector.begin_hook()
                self._began(info)
            finally:
                collector.end_hook()
        except BaseException:  # interrupted between two steps: IPython would print it into the cell
            pass

    def _post_run_cell(self, result: Any = None) -> None:
        try:
            try:
                collector.begin_hook()
                self._over(result)
            finally:
                collector.end_hook()
        except BaseException:  # as above; what was left undone the next event does
            pass

    def _began(self, info: Any) -> None:
        began_s, spent_s = clock.monotonic_s(), spent().s
        stack = self._running.setdefault(threading.get_ident(), [])
        here = list(cells_behind(sys._getframe()))
        nested = not getattr(info, "store_history", True)  # as `%%capture` nests
        while stack and not (stack[-1].info and (nested or any(stack[-1].info is one for one, _ in here))):
            self._drop_last(stack)  # it ended untold
        count = next((count for running, count in here if running is info), None)
        cell = Cell(info, count, stack[-1] if stack else None)
        stack.append(cell)
        if cell.ours:
            self._tell("_preload")
            self._tell("_settle")
            self._tell("_begin", cell)
            if stack[:-1]:  # the cells around it wait for us, their lines too; its own clock began last
                cell.hooks_s -= _spent(began_s, spent_s)

    def _over(self, result: Any) -> None:
        began_s, spent_s = clock.monotonic_s(), spent().s
        cell = self._ended(result)
        if cell is None:
            return
        stack = self._running[threading.get_ident()]
        try:
            if cell.ours:
                self._tell("_end", cell)
                cell.end(result)
                if cell.exception is not None:
                    try:
                        self._tell("_died", cell)
                    finally:
                        cell.exception = None
                self._tell("_settle")
                self._tell("_finish", cell)
        finally:
            self._drop_last(stack)
            if not stack:
                self._running.pop(threading.get_ident(), None)
            elif cell.ours:
                _spent(began_s, spent_s)

    def _drop_last(self, stack: list[Cell]) -> None:
        """Of the innermost cell nothing goes on from here; it is forgotten last, lest an interrupt come."""
        self._tell("_drop", stack[-1])
        stack.pop()

    def _ended(self, result: Any) -> Cell | None:
        """The cell that this event ends, the innermost of its stack then; None for an empty cell."""
        stack = self._running.get(threading.get_ident(), [])
        info = getattr(result, "info", None)
        depth = next((i for i, cell in enumerate(stack) if cell.info is info), -1)
        if depth < 0 and stack:  # an exception went through IPython: another info, or none
            raw = stack[-1].raw if result is None else getattr(info, "raw_cell", None)
            depth = next((i for i, cell in reversed(list(enumerate(stack))) if raw and cell.raw == raw), -1)
        if depth < 0:
            return None
        while len(stack) > depth + 1:
            self._drop_last(stack)  # it ended untold
        return stack[-1]

    def _tell(self, step: str, *args: Any) -> None:
        for listener in tuple(self._listeners):
            _guarded(listener, step, *args)


def _guarded(listener: Listener, step: str, *args: Cell) -> None:
    """A hook never raises, not even when the user interrupts it."""
    try:
        getattr(listener, step)(*args)
    except BaseException as error:
        try:
            listener._failed(error, *args)
        except BaseException:  # nowhere left to say it
            pass


def _spent(began_s: float, spent_s: float) -> float:
    """Take a hook's time off the thread's clock of cells and lines; what tracing took of it, it took off."""
    took_s = clock.monotonic_s() - began_s - (spent().s - spent_s)
    spent().s += took_s
    return took_s


def cells_behind(frame: FrameType | None) -> Iterator[tuple[Any, int | None]]:
    """Yield the `ExecutionInfo` and the execution count of each cell that led to a frame, innermost first."""
    for caller in walk_stack(frame):
        if caller.f_code.co_name == "run_cell_async":
            names = caller.f_locals
            if names.get("info") is not None:
                yield names["info"], getattr(names.get("result"), "execution_count", None)
