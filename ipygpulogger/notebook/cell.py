"""A cell: what it asks for in its own text, how it ended, and IPython's events of its begin and its end.

What IPython 7.34 to 9.18 really does (each has a test): an empty cell, and one that registers the callbacks,
fires ``post_run_cell`` alone; one that removes them, or an awaited ``run_cell_async``, ``pre_run_cell``.
A nested `run_cell`, as of `%%capture`, fires both between those of its outer cell; a cell on a subshell fires
them on a thread of its own. Nested cells, and those that a front end runs silently, store no history.
Both events of a cell have the same ``info``, but if an exception went through IPython itself: then it is an
equal one, or none. The right execution counts are in the frames of IPython's functions, with their infos.
"""

from __future__ import annotations

import re
import shlex
import sys
import threading
import weakref
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from ..runtime import clock, collector
from ..runtime.clock import this_thread
from ..runtime.shell import cells_behind, error_of, first_line, was_interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..records import Status
    from .logger import IPyGPULogger

OPTIONS = ("--lines", "--peak", "--peak=all", "--label")
_ASKS = r"\s*(?:>>> ?|In \[\d+\]: ?)?%%gpulog(?P<options>[ \t].*)?$"  # IPython takes prompts off
_OURS = (  # a line of our own magics; under automagic they need no %
    r"(?:\w+ *= *)?%gpulog(?![\w.]).*"
    r"|gpulog(?: +-?-?[a-z].*)?"
    r"|%{0,2}gpulog\?\??|\?\??%{0,2}gpulog"  # help
    r"|%?(?:re|un)?load_ext +ipygpulogger"
    r"|%?config +IPyGPULogger(?:\.\w.*)?"
)
_LOADS = {"%load_ext ipygpulogger", "%reload_ext ipygpulogger"}  # of those, what every notebook has


@cache
def _compiled(pattern: str, flags: re.RegexFlag = re.ASCII) -> re.Pattern[str]:
    """Compile a pattern when a cell needs it: few do, and it takes longer than all else in this file."""
    return re.compile(pattern, flags)


class Request(NamedTuple):
    """What a cell asks for."""

    lines: bool = False  # each of its lines is measured
    label: str | None = None  # what it is called; None for "In [4]"
    explicit: bool = True  # it begins with ``%%gpulog``; if not, it asks for nothing
    peak: bool | Literal["all"] = False  # tell what was alive at its peak; "all": in RAM too beside a GPU


def request_in(options: str) -> Request:
    """Return what the options after ``%%gpulog`` ask for; a `ValueError` says what is not understood."""
    found: dict[str, Any] = {}
    try:
        given = iter(split_words(options))
    except ValueError as error:
        raise ValueError(f"{error}: {options.strip()}") from error
    for word in given:
        name, equals, value = word.partition("=")
        if word in ("--lines", "--peak", "--peak=all"):
            found[name[2:]] = value or True
        elif name == "--label":
            found["label"] = value if equals else next(given, "")
            if not found["label"].strip() or (not equals and found["label"] in OPTIONS):
                raise ValueError("--label takes a text")
        else:
            raise ValueError(
                f"there is no option {word!r}; it takes --lines, --peak, --peak=all and --label TEXT"
            )
    return Request(**found)


def options_of(first_line: str) -> str | None:
    """Return what follows ``%%gpulog`` in a line; None if the line does not begin with it."""
    if "%%gpulog" not in first_line:
        return None
    found = _compiled(_ASKS, re.UNICODE).match(first_line.rstrip())
    return found and (found["options"] or "")


def request_of(source: str) -> Request:
    """Return what a cell asks for, from its text as the user wrote it; nothing if that is not valid."""
    options = _split(source)[0] if "%%gpulog" in source else None  # of nearly all cells
    try:
        return Request(explicit=False) if options is None else request_in(options)
    except ValueError:  # the magic will fail, and say why
        return Request(explicit=False)


def body_of(source: str) -> str:
    """Return a cell's text without its own line ``%%gpulog``; all of it if there is nothing else."""
    return _split(source)[1] if "%%gpulog" in source else source


def _split(source: str) -> tuple[str | None, str]:
    """Return the options of a cell's ``%%gpulog``, and the text below; None, and the text, without these."""
    first, _, body = source.lstrip().partition("\n")
    options = options_of(first) if body.strip() else None
    return options, source if options is None else body


def is_gpulog_only(source: str) -> bool:
    """Return whether a cell's text, as the user wrote it, holds only our own magics and comments."""
    if "gpulog" not in source and "GPULog" not in source:
        return False
    code = [line for line in map(str.strip, source.splitlines()) if line and not line.startswith("#")]
    empty = len(code) == 1 and options_of(code[0]) is not None  # %%gpulog with nothing to measure
    return empty or (bool(code) and all(line in _LOADS or _compiled(_OURS).fullmatch(line) for line in code))


def split_words(line: str) -> list[str]:
    """Split a line into words; quotes keep words together, a backslash is itself, as in Windows paths."""
    found = shlex.shlex(line, posix=True)
    found.whitespace_split, found.escape, found.commenters = True, "", ""
    return list(found)


class Cell:
    """One running cell."""

    def __init__(self, info: Any, count: int | None, outer: Cell | None) -> None:
        """Take IPython's description of a cell, its execution count, and the cell that runs already.

        What is run without being stored is not measured, unless a measured cell runs it, as `%%capture` does.
        """
        stored = bool(getattr(info, "store_history", True))
        self.info, self._outer = info, None if stored else outer  # both None once it has ended
        self.ours: bool = self._outer.ours if self._outer else stored  # it is to be measured
        self.nested = self._outer is not None
        self.label = "?"  # "In [4]", or "nested in In [4]", once the cell was named
        self.execution_count = None if self._outer else count
        self.cell_id: str | None = getattr(info, "cell_id", None)  # the front end's, where it sends one
        self.raw = getattr(info, "raw_cell", None) or ""
        self.request = request_of(self.raw)
        self.gpulog_only = is_gpulog_only(self.raw)
        self.source = first_line(body_of(self.raw))
        self.status: Status = "ok"
        self.error: str | None = None  # the class of the exception that ended the cell
        self.exception: BaseException | None = None  # that, while subscribers handle that it ended the cell
        self.hooks_s = 0.0  # of its time our hooks of nested cells; negative before its own clock began

    def around(self) -> Iterator[Cell]:
        """Yield the cells in which this one is nested, the innermost first; none once it has ended."""
        cell = self._outer
        while cell is not None:
            yield cell
            cell = cell._outer

    def name(self) -> None:
        """Set the label."""
        outermost = [self, *self.around()][-1] if self.nested else self
        number = "?" if outermost.execution_count is None else outermost.execution_count
        self.label = f"nested in In [{number}]" if self._outer else f"In [{number}]"

    def end(self, result: Any) -> None:
        """Set the attributes that are known only at the end; IPython's result would keep the cell's value."""
        if self._outer is None and self.execution_count is None:
            self.execution_count = getattr(result, "execution_count", None)
        self.name()
        self.info = self._outer = None
        error = error_of(result)
        if error is not None:
            self.status = "interrupted" if was_interrupted(error) else "error"
            self.error = type(error).__name__
            self.exception = error


class CellEvents:
    """Passes the events of one shell's cells to loggers; `of` returns the shell's own.

    Each step is done by all of them before the next begins: `_preload`, what must not happen within a cell;
    `_settle`, before a cell or after it; `_begin`; `_end`, its code has ended; `_on_error`, memory is as an
    exception left it; `_finish`, report it. `_drop` forgets a cell. `_failed` handles an error of a step: the
    user's cell continues, and is not measured any further.
    """

    _by_shell: ClassVar[weakref.WeakKeyDictionary[Any, CellEvents]] = weakref.WeakKeyDictionary()

    def __init__(self, shell: Any) -> None:
        self._shell = weakref.ref(shell)
        self._subscribers: list[IPyGPULogger] = []
        self._running: dict[int, list[Cell]] = {}  # by thread, the innermost last

    @classmethod
    def of(cls, shell: Any) -> CellEvents:
        """Return the one of this shell."""
        return cls._by_shell.setdefault(shell, cls(shell))

    def subscribe(self, subscriber: IPyGPULogger, *, running: bool = True) -> None:
        """Send the events of every cell from now on; also of the one that is `running` already, or not."""
        shell: Any = self._shell()
        for event, callback in self._callbacks():
            if callback not in shell.events.callbacks[event]:
                shell.events.register(event, callback)
        if subscriber not in self._subscribers:
            self._subscribers.append(subscriber)
        stack = self._running.setdefault(threading.get_ident(), [])
        if not stack:
            for info, count in reversed(list(cells_behind(sys._getframe()))):
                if not getattr(info, "silent", False):  # IPython fires no event at the end of a silent one
                    stack.append(Cell(info, count, stack[-1] if stack else None))
        for cell in stack:
            if cell.ours and running:
                self._do("_begin", cell, of=[subscriber])

    def unsubscribe(self, subscriber: IPyGPULogger) -> None:
        """Send a subscriber no more events, not even the end of the cell that runs now."""
        if subscriber in self._subscribers:
            self._subscribers.remove(subscriber)
        shell = self._shell()
        if self._subscribers or shell is None:
            return
        self._running.clear()
        collector.restore()
        for event, callback in self._callbacks():
            try:
                shell.events.unregister(event, callback)
            except ValueError:  # the shell's events were reset
                pass

    def running_here(self) -> Cell | None:
        """Return the outermost cell that runs on this thread, with the label that it will have."""
        cell = next((one for one in self._running.get(threading.get_ident(), []) if one.ours), None)
        if cell is not None:
            cell.name()
        return cell

    def _callbacks(self) -> tuple[tuple[str, Callable[..., None]], ...]:
        return ("pre_run_cell", self._pre_run_cell), ("post_run_cell", self._post_run_cell)

    def _pre_run_cell(self, info: Any = None) -> None:
        try:
            try:
                collector.begin_hook()  # first: before it even a bound method could set off a collection
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
        began_s, spent_s = clock.monotonic_s(), this_thread.overhead.s
        stack = self._running.setdefault(threading.get_ident(), [])
        here = list(cells_behind(sys._getframe()))
        nested = not getattr(info, "store_history", True)  # as `%%capture` nests
        while stack and not (stack[-1].info and (nested or any(stack[-1].info is one for one, _ in here))):
            self._drop_last(stack)  # its end was not reported by any event
        counts = [count for running, count in here if running is info]
        cell = Cell(info, counts[0] if counts else None, stack[-1] if stack else None)
        stack.append(cell)
        if cell.ours:
            self._do("_preload")
            self._do("_settle")
            self._do("_begin", cell)
            if stack[:-1]:  # the cells around it wait for us, their lines too; its own clock began last
                cell.hooks_s -= _exclude(began_s, spent_s)

    def _over(self, result: Any) -> None:
        began_s, spent_s = clock.monotonic_s(), this_thread.overhead.s
        cell = self._ended(result)
        if cell is None:
            return
        stack, finished = self._running[threading.get_ident()], False
        try:
            if cell.ours:
                self._do("_end", cell)
                cell.end(result)
                if cell.exception is not None:
                    try:
                        self._do("_on_error", cell)
                    finally:
                        cell.exception = None
                self._do("_settle", cell)
                finished = self._do("_finish", cell)
        finally:
            if finished:
                stack.pop()
            else:
                self._drop_last(stack)
            if not stack:
                self._running.pop(threading.get_ident(), None)
            elif cell.ours:
                _exclude(began_s, spent_s)

    def _drop_last(self, stack: list[Cell]) -> None:
        """Drop the innermost cell. It leaves the stack last: after an interrupt it is dropped again."""
        self._do("_drop", stack[-1])
        stack.pop()

    def _ended(self, result: Any) -> Cell | None:
        """Return the cell that this event ends, by then the innermost; None for an empty cell."""
        stack = self._running.get(threading.get_ident(), [])
        info = getattr(result, "info", None)
        if stack and stack[-1].info is info:
            return stack[-1]
        depth = next((i for i, cell in enumerate(stack) if cell.info is info), -1)
        if depth < 0 and stack:  # an exception went through IPython: another info, or none
            raw = stack[-1].raw if result is None else getattr(info, "raw_cell", None)
            depth = next((i for i, cell in reversed(list(enumerate(stack))) if raw and cell.raw == raw), -1)
        if depth < 0:
            return None
        while len(stack) > depth + 1:
            self._drop_last(stack)  # its end was not reported by any event
        return stack[-1]

    def _do(self, step: str, *args: Any, of: Sequence[IPyGPULogger] = ()) -> bool:
        """Do one step of each subscriber, or of some, and return whether none failed.

        It never raises, not even if the user interrupts it.
        """
        succeeded = True
        for subscriber in of or tuple(self._subscribers):
            try:
                getattr(subscriber, step)(*args)
            except BaseException as error:
                succeeded = False
                try:
                    subscriber._failed(error, *args)
                except BaseException:  # there is nowhere left to report it
                    pass
        return succeeded


def _exclude(began_s: float, spent_s: float) -> float:
    """Exclude a hook's time from this thread's running cells and lines, and return the seconds.

    It began then, when so much was excluded already; tracing excludes its own part of the hook itself.
    """
    took_s = clock.monotonic_s() - began_s - (this_thread.overhead.s - spent_s)
    this_thread.overhead.s += took_s
    return took_s
