"""The standard streams, which may be terminals, closed or broken.

The results of a command go to stdout, everything else to stderr. The reader of a pipe may close it before the
command ends, as ``| head`` does. The command then goes on, writes its files and exits as it would have.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from typing import TextIO

from ..records.units import printable
from ..runtime.errors import put

_STYLES = {"failed": "\x1b[1;31m", "faint": "\x1b[2m", "good": "\x1b[32m"}
_PLAIN = "\x1b[0m"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal that obeys escape sequences."""
    if stream is None or stream.closed or not stream.isatty():
        return False
    if os.name != "posix":  # an older console of Windows shows escape sequences as they are
        return bool(os.environ.get("WT_SESSION"))
    return os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")


def styled(text: str, style: str, stream: TextIO | None) -> str:
    """Return a text in a style, "failed", "faint" or "good", if the stream is a terminal with colours.

    The user may have asked for none (https://no-color.org).
    """
    if style and is_terminal(stream) and not os.environ.get("NO_COLOR"):
        return f"{_STYLES[style]}{text}{_PLAIN}"
    return text


def without_colours(text: str) -> str:
    """Return a text without the escape sequences that set a colour."""
    return _COLOURS.sub("", text)


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
    with contextlib.suppress(OSError):
        _print("\n".join(map(printable, lines)), sys.stderr)


def _print(words: str, stream: TextIO | None) -> None:
    if stream is None:  # closed, as by `>&-`
        return
    try:
        with _cleared():
            put(words, stream)
            stream.flush()
    except OSError as error:
        # From now on what is written goes nowhere, what is buffered included: or the interpreter would fail
        # once more when it flushes the stream at its exit.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        if not isinstance(error, BrokenPipeError):
            raise


@contextlib.contextmanager
def interrupt_held_back() -> Iterator[None]:
    """Hold a Ctrl-C back until the end of a context, which then raises it; in the main thread."""
    struck: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: struck.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if struck:
        raise KeyboardInterrupt
