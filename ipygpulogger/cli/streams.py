"""The terminal: colours, columns, streams that may be broken.

``[ 7/21]   12.4 s  GPU +2.4 GB → 6.4 of 16 GB    for batch in loader:``

The results of a command go to stdout, everything else to stderr. The reader of a pipe may close it before the
command ends, as ``| head`` does. The command then goes on, writes its files and exits as it would have.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import unicodedata
from typing import TYPE_CHECKING, TextIO

from ..records.units import clipped, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    Styled = tuple[str, str]  # words and their weight

_STYLES = {"strong": "\x1b[1m", "failed": "\x1b[1;31m", "faint": "\x1b[2m"}
_PLAIN = "\x1b[0m"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal that obeys escape sequences."""
    if stream is None or stream.closed or not stream.isatty():
        return False
    if os.name != "posix":  # an older console of Windows shows escape sequences as they are
        return bool(os.environ.get("WT_SESSION"))
    return os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")


def shows_colours(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal, and the user has not asked for none (https://no-color.org)."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def styled(parts: Iterable[Styled], *, coloured: bool) -> str:
    """Return phrases as one text, each in the style of its weight if colours may be used."""
    return "".join(
        f"{_STYLES[weight]}{words}{_PLAIN}" if coloured and weight in _STYLES and words.strip() else words
        for words, weight in parts
    )


def foreign(line: str, *, coloured: bool) -> str:
    """Return a line that a cell printed, `printable`; of its escape sequences only colours may be kept."""
    if "\x1b" not in line:
        return printable(line)
    words = map(printable, _COLOURS.split(line))
    if not coloured:
        return "".join(words)
    colours = [*_COLOURS.findall(line), _PLAIN]
    return "".join(word + colour for word, colour in zip(words, colours, strict=True))


_TIME = 6  # characters, at least
_MOVED, _MOVED_AT_MOST = 30, 52  # characters: a longer one pushes its source aside
_SOURCE = 80  # characters, where no terminal limits them


class Columns:
    """The columns that the lines of one run, of so many cells, have in common.

    A column begins narrow, and is then as wide as the widest that it has held.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._time, self._moved = _TIME, _MOVED

    def place(self, number: int) -> str:
        """Return the place of a cell by its number from 1: "[ 7/21]"."""
        return f"[{number:>{len(str(self.count))}}/{self.count}]"

    def line(
        self, number: int, time: str, moved: Sequence[Sequence[Styled]], source: str, *, columns: int | None
    ) -> list[Styled]:
        """Return the line of a cell, as phrases with their weights."""
        self._time = max(self._time, len(time))
        head = f"{self.place(number)}  {time:>{self._time}}  "
        at_most = _MOVED_AT_MOST if columns is None else max(_MOVED, min(columns // 2, _MOVED_AT_MOST))
        shown = list(moved)
        while len(shown) > 1 and _width(_joined(shown)) > at_most:
            shown.pop()
        clauses = _joined(shown)
        self._moved = max(self._moved, min(_width(clauses), at_most))
        gap = " " * (max(0, self._moved - _width(clauses)) + 2)
        return fitted([(head, "plain"), *clauses, (gap, "plain"), (first_line(source), "plain")], columns)

    def running(self, number: int, time: str, mark: str, source: str, *, columns: int) -> list[Styled]:
        """Return the line of a cell that runs, in the same columns, with a mark of one character.

        A bar shows how many cells are done; a narrow terminal has none.
        """
        parts: list[Styled] = [(f"{self.place(number)} {mark}{time:>{self._time}}  ", "plain")]
        if columns >= 2 * _MOVED:
            done = round(_MOVED * (number - 1) / self.count)
            gap = " " * (self._moved - _MOVED + 2)
            parts += [("━" * done, "plain"), ("╌" * (_MOVED - done), "faint"), (gap, "plain")]
        return fitted([*parts, (first_line(source), "faint")], columns)


def first_line(source: str) -> str:
    """Return the first line of a cell's source, `printable` and not endless; empty without one."""
    lines = source.strip().splitlines()
    return clipped(printable(lines[0]), _SOURCE) if lines else ""


def fitted(parts: Sequence[Styled], columns: int | None) -> list[Styled]:
    """Return phrases, cut off with an ellipsis where they exceed this many columns of a terminal."""
    if columns is None or _width(parts) <= columns:
        return list(parts)
    found: list[Styled] = []
    columns -= 1
    for words, weight in parts:
        kept = 0
        while kept < len(words) and (wide := width(words[kept])) <= columns:
            columns -= wide
            kept += 1
        found.append((words[:kept], weight))
        if kept < len(words):
            found.append(("…", weight))
            break
    return found


def width(words: str) -> int:
    """Return how many columns of a terminal a text takes; a wide character takes two."""
    if words.isascii():
        return len(words)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in words
    )


def _width(parts: Sequence[Styled]) -> int:
    return sum(width(words) for words, _ in parts)


def _joined(clauses: Sequence[Sequence[Styled]]) -> list[Styled]:
    """Return clauses as one, with a dot between two of them."""
    parts: list[Styled] = []
    for phrases in clauses:
        parts += [(" · ", "faint")] if parts else []
        for position, (words, weight) in enumerate(phrases):
            parts.append((f"{' ' if position else ''}{printable(words)}", weight))
    return parts


_cleared: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext


def clear_first(cleared: Callable[[], contextlib.AbstractContextManager[None]] | None) -> None:
    """Print within this context from now on: it clears a line that moves on the terminal."""
    global _cleared  # noqa: PLW0603 - a process has one terminal
    _cleared = cleared or contextlib.nullcontext


def say(words: str) -> None:
    """Print lines to stdout, as part of the result; they must be `printable` already."""
    _print(words, sys.stdout)


def aside(*lines: str) -> None:
    """Print lines to stderr, each made `printable`; where that is impossible, do nothing."""
    aside_coloured("\n".join(map(printable, lines)))


def aside_coloured(words: str) -> None:
    """Print lines to stderr as they are, so they must not contain control characters but for colours."""
    with contextlib.suppress(OSError):
        _print(words, sys.stderr)


def _print(words: str, stream: TextIO | None) -> None:
    if stream is None:  # closed, as by `>&-`
        return
    try:
        with _cleared():
            print(words, file=stream, flush=True)
    except OSError as error:
        _discard(stream)  # or the interpreter fails once more when it flushes the stream at its exit
        if not isinstance(error, BrokenPipeError):
            raise


def _discard(stream: TextIO) -> None:
    """Send what is written to a stream from now on to nowhere, what it has buffered included."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


@contextlib.contextmanager
def interrupt_held_back() -> Iterator[None]:
    """Hold a Ctrl-C back until the end of a context, which then raises it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    struck: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: struck.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if struck:
        raise KeyboardInterrupt
