"""What an error says; errors of a user's signal handler; what is printed and written where that may fail."""

from __future__ import annotations

import _thread
import codecs
import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TextIO

from .objects import walk_tb

# Signs of ours where the encoding of a stream lacks them, as those of Windows' consoles do.
_PLAIN_SIGNS = {"≥": ">=", "→": "->", "…": "...", "±": "+-", "△": "^", "✕": "x", "▼": "v", "·": "|", "│": "|"}
_PLAIN_SIGNS |= zip("\u2212━･●■█▓▚▒░▁▂▃▄▅▆▇⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "--**##@%+.___####|/-\\|/-\\|/", strict=True)
IN_PLAIN_SIGNS = "ipygpulogger"  # what a stream does with characters that it lacks: others by number


def _plain(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end]
    return "".join(_PLAIN_SIGNS.get(c) or ascii(c)[1:-1] for c in lacking), error.end


codecs.register_error(IN_PLAIN_SIGNS, _plain)


def named(error: BaseException) -> str:
    """Return the class of an error and its message, if it has one: "ValueError: no number"."""
    name, message = type(error).__name__, str(error)
    return f"{name}: {message}" if message else name


def first_line(error: BaseException) -> str:
    """Return the first line of the message; the name of the class where there is no message."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the question whether the nearest of the known words is meant; empty where none is near."""
    from difflib import get_close_matches  # few sessions need it

    return "".join(f" (did you mean {one!r}?)" for one in get_close_matches(word, list(known), 1))


def why(error: BaseException) -> str:
    """Return what the system says of a failed call ("No space left on device"), or the error as `named`."""
    return getattr(error, "strerror", None) or named(error)


def is_from_a_handler(error: BaseException) -> bool:
    """Return whether a signal handler raised this error: then what it interrupted has not failed."""
    if isinstance(error, KeyboardInterrupt):
        return True
    handlers = {id(getattr(signal.getsignal(number), "__code__", None)) for number in signal.valid_signals()}
    return any(id(link.tb_frame.f_code) in handlers for link in walk_tb(error.__traceback__))


def call_uninterrupted(call: Callable[[], None]) -> None:
    """Make a call that a signal handler cannot cut in two; an error of the handler's is raised after it.

    Signal handlers run in the main thread, so another one makes the call, unless one raised before that.
    """
    if threading.current_thread() is not threading.main_thread():
        call()
        return
    taken = threading.Lock()  # by the thread that makes the call, or by this one if it is interrupted before
    done = threading.Event()
    errors: list[BaseException] = []

    def run() -> None:
        if taken.acquire(blocking=False):
            try:
                call()
            except BaseException as error:  # raised below, in the caller's thread
                errors.append(error)
            done.set()

    try:
        try:
            _thread.start_new_thread(run, ())
        except (RuntimeError, MemoryError) as error:
            if is_from_a_handler(error):
                raise
            run()  # no further thread can be started
        done.wait()
    finally:
        if not taken.acquire(blocking=False):
            done.wait()
    if errors:
        raise errors.pop()


def _in_plain_signs(words: str, error: Exception) -> str:
    if not isinstance(error, UnicodeEncodeError):
        return words
    return words.encode(error.encoding, IN_PLAIN_SIGNS).decode(error.encoding)


def put(words: str, stream: TextIO | None = None) -> None:
    """Print a text, with other signs where the stream's encoding lacks some."""
    try:
        print(words, file=stream)
    except UnicodeEncodeError as error:
        print(_in_plain_signs(words, error), file=stream)


def say(words: str, *, aside: bool = False) -> str | None:
    """Print what the user did not ask for, `aside` to stderr; return why it could not be written, or None."""
    stream = sys.stderr if aside else sys.stdout
    if stream is None:  # `print` would use stdout in its place
        return None
    try:
        print(words, file=stream)
    except Exception as error:  # the stream may be of any class
        if is_from_a_handler(error):
            raise
        plain = _in_plain_signs(words, error)
        return why(error) if plain == words else say(plain, aside=aside)
    return None


def unfit(path: Path) -> str:
    """Return why no file can be written there, a link to one or to nothing among it; empty if one can."""
    is_link = path.is_symlink() and (path.is_file() or not path.exists())  # ``/dev/stdout`` is one to a pipe
    return "is a folder; name a file" if path.is_dir() else "is a link; name the file itself" * is_link


def write_file(path: Path, content: str | bytes) -> None:
    r"""Write a file whole or not at all (`OSError`); into anything else, such as a pipe, just write.

    No link is followed: a symbolic one is refused, the other names of a file keep what they have.
    A lone surrogate, which UTF-8 cannot encode, is written as ``\ud800``, as in JSON.
    """
    if why_not := unfit(path):
        raise OSError(errno.EINVAL, why_not, str(path))
    written = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    if path.exists() and not path.is_file():
        path.write_bytes(written)
        return
    temporary = path.with_name(f".ipygpulogger.{os.urandom(8).hex()}")
    try:
        with temporary.open("xb") as file:
            file.write(written)
        temporary.replace(path)
    except BaseException as error:  # also an interrupt: no temporary file is left behind
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename, error.filename2 = str(path), None
        raise
