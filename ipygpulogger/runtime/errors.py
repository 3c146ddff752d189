"""What an error says; errors of the user's signal handlers, which run between any two instructions."""

from __future__ import annotations

import _thread
import signal
import threading
from typing import TYPE_CHECKING

from .objects import walk_tb

if TYPE_CHECKING:
    from collections.abc import Callable


def named(error: BaseException) -> str:
    """Return the class of an error and its message, if it has one: "ValueError: no number"."""
    name, message = type(error).__name__, str(error)
    return f"{name}: {message}" if message else name


def first_line(error: BaseException) -> str:
    """Return the first line of the message; the name of the class where there is no message."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


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

    In the main thread the call is made by another one, as Python runs signal handlers in the main thread
    alone. If a handler raises an error before the call has begun, it is not made. What it raises is raised.
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
        except RuntimeError as error:
            if is_from_a_handler(error):
                raise
            run()  # no further thread can be started
        done.wait()
    finally:
        if not taken.acquire(blocking=False):
            done.wait()
    if errors:
        raise errors.pop()
