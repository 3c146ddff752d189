"""The progress of a run, and what was reported of its cells."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import threading
from itertools import islice
from typing import TYPE_CHECKING, Any, TextIO

from ..records import MIME, NoteKind
from ..records.note import of_kind
from ..records.units import clipped, printable, time_text
from ..render import out_of_memory
from ..render.headline import is_quiet, memories
from ..runtime import clock
from . import streams
from .streams import (
    Columns,
    aside,
    aside_coloured,
    fitted,
    foreign,
    interrupt_held_back,
    is_terminal,
    say,
    shows_colours,
    styled,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..records import CellRecord
    from .streams import Styled

# Of the report of a cell that still runs, as `render.text.so_far` begins it.
_SO_FAR = re.compile(r".*: \d+ s so far( \||$)")
_RULE = re.compile(r"(\x1b\[[0-9;]*m)*-+(\x1b\[[0-9;]*m)*")  # above a traceback of IPython

_LAST_S = 0.2  # after a cell: no other cell begins
_INDENT = "    "
_LINE = 2000  # characters of a line that a cell printed


class Transcript:
    """The cells of one run, printed as they run, with what they print if it `shows_output`."""

    def __init__(self, progress: Progress, *, shows_output: bool) -> None:
        self._progress, self._shows_output = progress, shows_output
        self._columns = Columns(0)
        self._number, self._source, self._began_s = 0, "", 0.0
        self._begun = {"stdout": "", "stderr": ""}  # by stream: the line that the cell has not ended yet

    def begin(self, number: int, count: int, source: str) -> None:
        """Show that a cell runs, by its number from 1 and its source."""
        if self._columns.count != count:
            self._columns = Columns(count)
        self._number, self._source, self._began_s = number, source, clock.monotonic_s()
        self._progress.run(self._columns, number, source)

    def output(self, output: Any) -> None:
        """Print an output of the running cell, as nbformat represents it; of a stream the complete lines."""
        if not self._shows_output or output.output_type == "error":  # which `end` prints
            return
        if output.output_type == "stream":
            *lines, begun = (self._begun.get(output.name, "") + output.text).split("\n")
            self._begun[output.name] = _collapsed(begun) + ("\r" if begun.endswith("\r") else "")
            self._print(list(map(_collapsed, lines)), output.name)
            mark = f"{self._columns.place(self._number)} │ "
            self._progress.pend(mark + foreign(_collapsed(begun), coloured=False) if begun else "")
            return
        text = output.data.get("text/plain", "")
        if MIME not in output.data and text and not _SO_FAR.match(text):
            self._print_begun()
            self._print(text.split("\n"), "stdout")

    def end(self, record: CellRecord | None, traceback: Sequence[str]) -> None:
        """Print the line of the cell that ended, what explains a failure, and that little RAM is left."""
        self._print_begun()
        self._progress.wait("ending the kernel", after_s=_LAST_S)
        say(self._line(record))
        if traceback and (record is None or record.status == "error"):
            lines = "\n".join(traceback).strip("\n").split("\n")
            coloured = shows_colours(sys.stderr)
            begin = 1 if _RULE.fullmatch(lines[0]) else 0
            shown = [f"{_INDENT}{foreign(line, coloured=coloured)}".rstrip() for line in lines[begin:]]
            aside_coloured("\n".join([*shown, ""]))
        if record is not None and record.out_of_memory is not None:
            aside_coloured(out_of_memory.report(record.out_of_memory) + "\n")
        for note in () if record is None else of_kind(record.notes, NoteKind.LITTLE_LEFT):
            aside(f"{_INDENT}{note}")  # at once, because the next cell may be killed

    def _line(self, record: CellRecord | None) -> str:
        columns = shutil.get_terminal_size().columns if is_terminal(sys.stdout) else None
        time_s = clock.monotonic_s() - self._began_s if record is None else record.time_s
        time = time_text(time_s)
        parts = self._columns.line(self._number, time, moved(record), self._source, columns=columns)
        if record is not None and is_quiet(record):
            parts = [(words, "faint") for words, _ in parts]
        return styled(parts, coloured=shows_colours(sys.stdout))

    def _print_begun(self) -> None:
        for name, line in self._begun.items():
            if line:
                self._begun[name] = ""
                self._print([_collapsed(line)], name)
        self._progress.pend("")

    def _print(self, lines: Sequence[str], name: str) -> None:
        words = "\n".join(self._marked(line, name) for line in lines)
        if words:
            (aside_coloured if name == "stderr" else say)(words)

    def _marked(self, line: str, name: str) -> str:
        """Return a line that the cell printed, behind the mark of the cell."""
        coloured = shows_colours(getattr(sys, name))
        mark = styled([(f"{self._columns.place(self._number)} │ ", "faint")], coloured=coloured)
        return mark + foreign(clipped(line, _LINE), coloured=coloured)


def _collapsed(line: str) -> str:
    r"""Return what a terminal shows of a line that is written again and again, each time after ``\r``."""
    return line.rstrip("\r").rpartition("\r")[2]


def moved(record: CellRecord | None) -> list[Sequence[Styled]]:
    """Return how the cell failed, and each memory that moved much; if there is none, what is in use.

    That is of the first GPU, or without one of RAM.
    """
    if record is None:
        return [[("not measured", "strong")]]
    clauses = [clause.phrases for clause in memories(record)]
    much: list[Sequence[Styled]] = [phrases for phrases in clauses if phrases[0].weight == "strong"]
    if ended := record.outcome():
        return [[(ended, "failed")], *much]
    still = (phrases for phrases in clauses if phrases[0].words.startswith("RAM") != bool(record.gpus))
    return much or list(islice(still, 1))


_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_FRAME_S = 0.1
_COLUMNS = 80  # of a terminal that does not say its width
_LAST = 3  # columns that are left free, for a ^C, and as some terminals begin a new line behind the last
_HIDE, _SHOW = "\x1b[?25l", "\x1b[?25h"  # the cursor
_CLEAR_LINE, _CLEAR_LINE_ABOVE = "\r\x1b[2K", "\x1b[1A\x1b[2K"


class Progress:
    """What runs now; off a terminal, nothing is shown.

    A thread draws the line ten times a second. What this package prints meanwhile stands above it.
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
        if self._terminal is not None:
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

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Clear the line within a context."""
        with self._lock:
            self._clear()
            yield
            self._draw()

    def lines(self, columns: int) -> list[list[Styled]]:
        """Return what is shown now, on a terminal of so many columns."""
        elapsed_s = clock.monotonic_s() - self._began_s
        frame = _FRAMES[int(elapsed_s / _FRAME_S) % len(_FRAMES)]
        elapsed = f"{int(elapsed_s)} s" if elapsed_s < 100 else time_text(elapsed_s)
        if self._columns is None:
            return [fitted([(f"{frame} {self._waits_for}", "plain"), (f"  {elapsed}", "faint")], columns)]
        above: list[list[Styled]] = [fitted([(self._pending, "plain")], columns)] if self._pending else []
        return [*above, self._columns.running(self._number, elapsed, frame, self._source, columns=columns)]

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
                terminal.write(words)
                terminal.flush()
            except (OSError, ValueError):  # the terminal is gone
                self._terminal = None


def _columns_of(terminal: TextIO) -> int:
    with contextlib.suppress(OSError, ValueError):
        return os.get_terminal_size(terminal.fileno()).columns or _COLUMNS
    return _COLUMNS
