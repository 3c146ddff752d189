"""A cell, the options that it sets for itself, and whether it contains only our own magics."""

from __future__ import annotations

import re
import shlex
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..runtime.shell import error_of, first_line, was_interrupted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..records import Status

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
    """Return what the options after ``%%gpulog`` ask for.

    Raises:
        ValueError: There are no such options.
    """
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


def request_of(source: str) -> Request | None:
    """Return what a cell asks for, from its text as the user wrote it; None if nothing, or nothing valid."""
    if "%%gpulog" not in source:  # as nearly all
        return None
    options, _ = _split(source)
    try:
        return None if options is None else request_in(options)
    except ValueError:  # the magic will fail, and say why
        return None


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

        Code that a front end runs silently is no cell of ours, unless it is nested in one, as by `%%capture`.
        """
        stored = bool(getattr(info, "store_history", True))
        self.info, self._outer = info, None if stored else outer  # both None once it has ended
        self.ours: bool = self._outer.ours if self._outer else stored  # it is to be measured
        self.nested = self._outer is not None
        self.label = "?"  # "In [4]", or "nested in In [4]", once the cell was named
        self.execution_count = None if self._outer else count
        self.cell_id: str | None = getattr(info, "cell_id", None)  # the front end's, where it sends one
        self.raw = getattr(info, "raw_cell", None) or ""
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
