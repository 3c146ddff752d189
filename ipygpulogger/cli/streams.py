"""Writing to stdout and stderr, in characters that they can encode, and also when their reader is gone.

The results of a command go to stdout, everything else to stderr. The reader of a pipe may close it before the
command ends, as ``| head`` does. The command then goes on, writes its files and exits as it would have.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

from ..records.units import printable

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

_ASCII = {"→": "->", "…": "...", "≥": ">=", "±": "+-", "│": "|", "·": "-", "\u2212": "-", "━": "#", "╌": "."}
_ASCII |= dict(zip("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "|/-\\|/-\\|/", strict=True))
_cleared: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext


def clear_first(cleared: Callable[[], contextlib.AbstractContextManager[None]] | None) -> None:
    """Print within this context from now on: it clears a line that moves on the terminal."""
    global _cleared  # noqa: PLW0603 - a process has one terminal
    _cleared = cleared or contextlib.nullcontext


def say(words: str) -> None:
    """Print lines to stdout, as part of the result; they must be `printable` already.

    Raises:
        OSError: They cannot be written, for another reason than that the reader is gone.
    """
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
            print(encodable(words, stream), file=stream, flush=True)
    except OSError as error:
        _discard(stream)  # or the interpreter fails once more when it flushes the stream at its exit
        if not isinstance(error, BrokenPipeError):
            raise


def encodable(words: str, stream: TextIO) -> str:
    """Return the words with our own signs in ASCII where the stream's encoding lacks them."""
    for sign, plain in _ASCII.items():
        if sign in words:
            try:
                sign.encode(stream.encoding or "utf-8")
            except UnicodeEncodeError:
                words = words.replace(sign, plain)
    return words


def _discard(stream: TextIO) -> None:
    """Send what is written to a stream from now on to nowhere, what it has buffered included."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
