"""A cell: what it asks for in its own text, how it ended, and IPython's events of its begin and its end.

What IPython 7.34 to 9.18 really does (each has a test): an empty cell, and one that registers the callbacks,
fires ``post_run_cell`` alone; one that removes them, or an awaited ``run_cell_async``, ``pre_run_cell``.
A nested `run_cell`, as of `%%capture`, fires both between those of its outer cell, of which it is a part; a
cell on a subshell fires them on a thread of its own. What a front end runs silently stores no history.
Both events of a cell have the same ``info``, but if an exception went through IPython itself: then it is an
equal one, or none. The right execution counts are in the frames of IPython's functions, with their infos.
"""

from __future__ import annotations

import re
import shlex
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from ..records.cell_record import main_line_of
from ..runtime import collector
from ..runtime.errors import did_you_mean
from ..runtime.shell import cells_behind, error_of, first_line, was_interrupted

if TYPE_CHECKING:
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


class Request(NamedTuple):
    """What a cell asks for."""

    lines: bool | tuple[str, ...] = False  # each of its lines is measured, or those of these functions
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
        elif name == "--lines":
            found["lines"] = tuple(value.split(","))
            if not all(part.isidentifier() for one in found["lines"] for part in one.split(".")):
                raise ValueError(f"--lines takes names such as --lines=f,Model.forward, not {value!r}")
        elif name == "--label":
            found["label"] = value if equals else next(given, "")
            if not found["label"].strip() or (not equals and found["label"] in OPTIONS):
                raise ValueError("--label takes a text")
        elif found.get("lines") is True and word.isidentifier():
            raise ValueError(f"write --lines={word}, not --lines {word}")
        else:
            near = did_you_mean(name, ("--lines", "--peak", "--label"))
            known = "the options are --lines, --lines=NAMES, --peak, --peak=all and --label TEXT"
            raise ValueError(f"unknown option {word!r}{near}; {known}")
    return Request(**found)


def options_of(first_line: str) -> str | None:
    """Return what follows ``%%gpulog`` in a line; None if the line does not begin with it."""
    if "%%gpulog" not in first_line:
        return None
    found = re.match(_ASKS, first_line.rstrip())
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
    return empty or (
        bool(code) and all(line in _LOADS or re.fullmatch(_OURS, line, re.ASCII) for line in code)
    )


def split_words(line: str) -> list[str]:
    """Split a line into words; quotes keep words together, a backslash is itself, as in Windows paths."""
    found = shlex.shlex(line, posix=True)
    found.whitespace_split, found.escape, found.commenters = True, "", ""
    return list(found)


class Cell:
    """One running cell."""

    def __init__(self, info: Any, count: int | None) -> None:
        """Take IPython's description of a cell, and its execution count, which may be unknown yet."""
        self.info: Any = info  # None once it has ended
        self.execution_count = count
        self.cell_id: str | None = getattr(info, "cell_id", None)  # the front end's, where it sends one
        self.raw = getattr(info, "raw_cell", None) or ""
        self.request: Request = request_of(self.raw)
        self.gpulog_only: bool = is_gpulog_only(self.raw)
        # %gpulog measure runs a statement of the user's, so the cell counts; its report is the statement's.
        self.measures: bool = self.gpulog_only and bool(re.search(r"gpulog +measure +[^-]", self.raw))
        body = body_of(self.raw)
        self.source: str = first_line(body)
        self.main_line: str = first_line(main_line_of(body))
        self.nested: int = 0  # cells within it that have begun and not ended
        self.status: Status = "ok"
        self.error: str | None = None  # the class of the exception that ended the cell
        self.exception: BaseException | None = None  # that, while subscribers handle that it ended the cell

    @property
    def label(self) -> str:
        """The name of the cell, such as "In [4]"."""
        return f"In [{'?' if self.execution_count is None else self.execution_count}]"

    def is_ended_by(self, result: Any) -> bool:
        """Return whether an event with this result ends the cell, and not an empty one or one within it."""
        info = getattr(result, "info", None)
        if info is self.info:
            return True
        if self.nested:
            self.nested -= 1
            return False
        # An exception went through IPython: another info, or none.
        return result is None or (self.raw != "" and getattr(info, "raw_cell", None) == self.raw)

    def end(self, result: Any) -> None:
        """Set the attributes that are known only at the end; IPython's result would keep the cell's value."""
        if self.execution_count is None:
            self.execution_count = getattr(result, "execution_count", None)
        self.info = None
        if (error := error_of(result)) is not None:
            self.status = "interrupted" if was_interrupted(error) else "error"
            self.error = type(error).__name__
            self.exception = error


def _is_stored(info: Any) -> bool:
    """Return whether a cell goes into the history; others a front end runs for itself."""
    return bool(getattr(info, "store_history", True)) and not getattr(info, "silent", False)


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
        self._running: dict[int, Cell] = {}  # by thread

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
        here = threading.get_ident()
        outermost = [one for one in cells_behind(sys._getframe()) if _is_stored(one[0])][-1:]
        if here not in self._running and outermost:
            self._running[here] = Cell(*outermost[0])
        if here in self._running and running:
            self._do("_begin", self._running[here], of=[subscriber])

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
            with suppress(ValueError):  # the shell's events were reset
                shell.events.unregister(event, callback)

    def running_here(self) -> Cell | None:
        """Return the cell that runs on this thread."""
        return self._running.get(threading.get_ident())

    def _callbacks(self) -> tuple[tuple[str, Callable[..., None]], ...]:
        return ("pre_run_cell", self._pre_run_cell), ("post_run_cell", self._post_run_cell)

    def _pre_run_cell(self, info: Any = None) -> None:
        self._handle(CellEvents._began, info)  # no bound method: making it could set off a collection

    def _post_run_cell(self, result: Any = None) -> None:
        self._handle(CellEvents._over, result)

    def _handle(self, step: Callable[[CellEvents, Any], None], event: Any) -> None:
        try:
            try:
                collector.begin_hook()
                step(self, event)
            finally:
                collector.end_hook()
        except BaseException:  # interrupted between two steps: what was left undone the next event does
            pass

    def _began(self, info: Any) -> None:
        here, running = threading.get_ident(), list(cells_behind(sys._getframe()))
        cell = self._running.get(here)
        if cell is not None:
            if any(cell.info is one for one, _ in running):
                cell.nested += 1
                return
            self._do("_drop", cell)  # its end was not reported by any event
            del self._running[here]
        if _is_stored(info):
            cell = self._running[here] = Cell(
                info, next((count for one, count in running if one is info), None)
            )
            self._do("_preload")
            self._do("_settle")
            self._do("_begin", cell)

    def _over(self, result: Any) -> None:
        here = threading.get_ident()
        cell, finished = self._running.get(here), False
        if cell is None or not cell.is_ended_by(result):
            return
        try:
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
            if not finished:
                self._do("_drop", cell)
            self._running.pop(here, None)  # last: after an interrupt it is dropped again

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
                with suppress(BaseException):  # there is nowhere left to report it
                    subscriber._failed(error, *args)
        return succeeded
