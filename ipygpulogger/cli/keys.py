"""The keys pressed on a terminal: not shown while a line on it is drawn again and again; Ctrl-C held back.

A terminal shows what is typed, such as ``^C``, where the cursor stands. Where that is a line that is drawn
again and again, parts of the line stay behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def unseen(terminal: TextIO) -> Iterator[None]:
    """Show no keys within a context; where that is impossible, as on Windows, do nothing."""
    try:
        import termios

        number = terminal.fileno()
        before = termios.tcgetattr(number)
        is_ours = os.tcgetpgrp(number) == os.getpgrp()  # else we are in the background, and would be stopped
    except (ImportError, OSError, ValueError, termios.error):
        is_ours = False
    if not is_ours:
        yield
        return
    quiet = [*before]
    quiet[3] &= ~termios.ECHO
    termios.tcsetattr(number, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error), _not_stopped():
            termios.tcsetattr(number, termios.TCSANOW, before)


@contextlib.contextmanager
def interrupt_held_back() -> Iterator[None]:
    """Hold a Ctrl-C back until the end of a context.

    Raises:
        KeyboardInterrupt: There was one.
    """
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


@contextlib.contextmanager
def _not_stopped() -> Iterator[None]:
    """Ignore, within a context, the signal that stops a background process which changes the terminal."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTTOU, before)
