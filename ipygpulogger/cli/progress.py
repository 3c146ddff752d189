"""The line at the bottom of a terminal that shows what runs, and for how long."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING, TextIO

from ..records.units import printable, time_text
from ..runtime import clock
from . import streams
from .colours import is_terminal, shows_colours, styled
from .columns import fitted
from .keys import interrupt_held_back, unseen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .colours import Styled
    from .columns import Columns

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_FRAME_S = 0.1
_COLUMNS = 80  # of a terminal that does not say its width
_LAST = 1  # column that is left free, because some terminals begin a new line behind it
_HIDE, _SHOW = "\x1b[?25l", "\x1b[?25h"  # the cursor
_CLEAR_LINE, _CLEAR_LINE_ABOVE = "\r\x1b[2K", "\x1b[1A\x1b[2K"


class Progress:
    """What runs now; off a terminal, nothing is shown.

    A thread draws the line ten times a second. What this package prints meanwhile stands above it. Keys that
    are pressed are not shown until `close`.
    """

    def __init__(self) -> None:
        self._terminal: TextIO | None = sys.stderr if is_terminal(sys.stderr) else None
        self._is_coloured = shows_colours(sys.stderr)
        self._lock = threading.RLock()
        self._is_shown = False
        self._drawn = 0  # lines
        self._began_s = self._after_s = 0.0
        self._waits_for = ""
        self._columns: Columns | None = None
        self._number, self._source, self._pending = 0, "", ""
        self._ended = threading.Event()
        self._keys = contextlib.ExitStack()
        if self._terminal is not None:
            self._keys.enter_context(unseen(self._terminal))
            threading.Thread(target=self._draw_again, daemon=True).start()

    def wait(self, what: str, *, after_s: float = 0) -> None:
        """Show what is being waited for, "starting the kernel"; before so many seconds, nothing."""
        with self._lock:
            self._columns, self._waits_for = None, printable(what)
            self._show(after_s)

    def run(self, columns: Columns, number: int, source: str) -> None:
        """Show that a cell runs, by its number from 1 and the first line of its source."""
        with self._lock:
            self._columns, self._number, self._source, self._pending = columns, number, source, ""
            self._show(0)

    def pend(self, line: str) -> None:
        """Show, above the line, one that the cell has begun to print; it must be `printable` already."""
        self._pending = line

    def stop(self) -> None:
        """Clear the line; the next call of `wait` or `run` shows it again."""
        with self._lock:
            self._is_shown = False
            self._clear()

    def close(self) -> None:
        """Clear the line for good."""
        with interrupt_held_back():
            self._ended.set()
            self.stop()
            streams.clear_first(None)
            self._keys.close()

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Clear the line within a context."""
        with self._lock:
            self._clear()
            yield
            self._draw()

    def lines(self, room: int) -> list[list[Styled]]:
        """Return what is shown now, on a terminal with room for so many columns."""
        elapsed_s = clock.monotonic_s() - self._began_s
        frame = _FRAMES[int(elapsed_s / _FRAME_S) % len(_FRAMES)]
        elapsed = f"{int(elapsed_s)} s" if elapsed_s < 100 else time_text(elapsed_s)
        if self._columns is None:
            return [fitted([(f"{frame} {self._waits_for}", "plain"), (f"  {elapsed}", "faint")], room)]
        above: list[list[Styled]] = [fitted([(self._pending, "plain")], room)] if self._pending else []
        return [*above, self._columns.running(self._number, elapsed, frame, self._source, room=room)]

    def _show(self, after_s: float) -> None:
        self._began_s, self._is_shown = clock.monotonic_s(), True
        self._after_s = after_s
        self._clear()
        streams.clear_first(self.hidden if self._terminal is not None else None)
        self._draw()

    def _draw_again(self) -> None:
        while not self._ended.wait(_FRAME_S):
            self._draw()

    def _draw(self) -> None:
        with self._lock:
            is_time = clock.monotonic_s() - self._began_s >= self._after_s
            if self._is_shown and is_time and self._terminal is not None:
                lines = self.lines(_columns_of(self._terminal) - _LAST)
                words = "\r\n".join(styled(line, coloured=self._is_coloured) for line in lines)
                erasure, self._drawn = self._erasure(), len(lines)  # before a Ctrl-C may cut the rest off
                self._write(f"{_HIDE}{erasure}{words}")

    def _clear(self) -> None:
        if self._drawn:
            self._write(f"{self._erasure()}{_SHOW}")
            self._drawn = 0  # not before, for a Ctrl-C may cut it off

    def _erasure(self) -> str:
        return _CLEAR_LINE + _CLEAR_LINE_ABOVE * (self._drawn - 1)

    def _write(self, words: str) -> None:
        terminal = self._terminal
        if terminal is not None:
            try:
                terminal.write(streams.encodable(words, terminal))
                terminal.flush()
            except (OSError, ValueError):  # the terminal is gone
                self._terminal = None


def _columns_of(terminal: TextIO) -> int:
    with contextlib.suppress(OSError, ValueError):
        return os.get_terminal_size(terminal.fileno()).columns or _COLUMNS
    return _COLUMNS
