"""What a run shows of its cells: a line that moves while one runs, and a line that stays of each that ended.

``[ 7/21]   12.4 s  GPU +2.4 GB → 6.4 of 16 GB    for batch in loader:``
"""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from ..records import MIME, CellRecord, NoteKind
from ..records.cell_record import main_line_of
from ..records.note import of_kind
from ..records.units import clipped, printable, time_text
from ..render import out_of_memory
from ..render.headline import is_quiet, memories
from ..runtime import clock
from . import streams
from .streams import aside, is_terminal, say, styled, without_colours

# Of the report of a cell that still runs, as `render.text.so_far` begins it.
_SO_FAR = re.compile(r".*: \d+ s so far( \||$)")

_TIME = 6  # characters, at least
_MOVED, _MOVED_AT_MOST = 30, 52  # characters: a longer one pushes its source aside
_SOURCE = 80  # characters
_LINE = 2000  # characters of a line that a cell printed


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

    def line(self, number: int, time: str, moved: Sequence[str], source: str, *, failed: bool = False) -> str:
        """Return the line of a cell; of what moved, the first clauses that there is room for."""
        self._time = max(self._time, len(time))
        shown = list(moved)
        while len(shown) > 1 and len(" · ".join(shown)) > _MOVED_AT_MOST:
            shown.pop()
        clauses = " · ".join(shown)
        if not failed:  # how a cell failed widens no column
            self._moved = max(self._moved, min(len(clauses), _MOVED_AT_MOST))
        head = f"{self.place(number)}  {time:>{self._time}}"
        return f"{head}  {clauses:<{self._moved}}  {main_line(source)}"


def main_line(text: str) -> str:
    """Return the line that says what a cell does, `printable` and not endless; empty without one."""
    return clipped(printable(main_line_of(text)), _SOURCE)


def moved(record: CellRecord | None) -> list[str]:
    """Return how the cell failed, whether it went over the notebook's own budget, and what moved much.

    If nothing did, the last is what is in use of the first GPU, or without one of RAM.
    """
    if record is None:
        return ["not measured"]
    clauses = list(memories(record))
    much = [str(clause) for clause in clauses if clause.phrases[0].weight == "strong"]
    over = ["over budget"] if of_kind(record.notes, NoteKind.OVER_BUDGET) else []
    if ended := record.outcome():
        return [printable(ended), *over, *map(printable, much)]
    still = [str(clause) for clause in clauses if str(clause).startswith("RAM") != bool(record.gpus)]
    return [*over, *(printable(clause) for clause in much or still[:1])]


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
        self._progress.show(main_line(source), f"{self._columns.place(number)} ")

    def output(self, output: Any) -> None:
        """Print an output of the running cell, as nbformat represents it; of a stream the complete lines."""
        if not self._shows_output or output.output_type == "error":  # which `end` prints
            return
        if output.output_type == "stream":
            *lines, begun = (self._begun.get(output.name, "") + output.text).split("\n")
            self._begun[output.name] = _collapsed(begun) + ("\r" if begun.endswith("\r") else "")
            self._print(lines, output.name)
            return
        text = output.data.get("text/plain", "")
        if MIME not in output.data and text and not _SO_FAR.match(text):
            self._print_begun()
            self._print(text.split("\n"), "stdout")

    def end(self, record: CellRecord | None, traceback: Sequence[str]) -> None:
        """Print the line of the cell that ended, what explains a failure, and that little RAM is left."""
        self._print_begun()
        self._progress.stop()
        say(self._line(record))
        if traceback and (record is None or record.status == "error"):
            lines = without_colours("\n".join(traceback)).strip("\n").split("\n")
            if not lines[0].strip("-"):  # the rule above a traceback of IPython
                del lines[0]
            aside(*(f"    {line}".rstrip() for line in lines), "")
        if record is not None and record.out_of_memory is not None:
            aside(*out_of_memory.report(record.out_of_memory).split("\n"), "")
        for note in () if record is None else of_kind(record.notes, NoteKind.LITTLE_LEFT):
            aside(f"    {note}")  # at once, because the next cell may be killed

    def _line(self, record: CellRecord | None) -> str:
        time_s = clock.monotonic_s() - self._began_s if record is None else record.time_s
        failed = record is not None and bool(record.outcome())
        source = self._source if record is None else record.code_line
        line = self._columns.line(self._number, time_text(time_s), moved(record), source, failed=failed)
        if is_terminal(sys.stdout):
            line = clipped(line, shutil.get_terminal_size().columns)
        quiet = record is not None and is_quiet(record)
        return styled(line, "failed" if failed else "faint" if quiet else "", sys.stdout)

    def _print_begun(self) -> None:
        for name, line in self._begun.items():
            self._begun[name] = ""
            self._print([line] if line else [], name)

    def _print(self, lines: Sequence[str], name: str) -> None:
        """Print lines of the cell, each behind its mark."""
        mark = f"{self._columns.place(self._number)} │ "
        shown = [clipped(printable(without_colours(_collapsed(line))), _LINE) for line in lines]
        if shown and name == "stderr":
            aside(*(mark + line for line in shown))
        elif shown:
            say("\n".join(mark + line for line in shown))


def _collapsed(line: str) -> str:
    r"""Return what a terminal shows of a line that is written again and again, each time after ``\r``."""
    return line.rstrip("\r").rpartition("\r")[2]


_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_FRAME_S = 0.1
_CLEAR = "\r\x1b[2K"
_CUT_OFF, _WRAPPED = "\x1b[?7l", "\x1b[?7h"  # what the terminal does with a line that is too long


class Progress:
    """A line on the terminal that says what runs, and for how long; elsewhere nothing.

    A thread draws it ten times a second. What this package prints meanwhile stands above it.
    """

    def __init__(self) -> None:
        self._terminal: TextIO | None = sys.stderr if is_terminal(sys.stderr) else None
        self._lock = threading.RLock()
        self._what = self._place = ""
        self._began_s, self._is_drawn = 0.0, False
        self._ended = threading.Event()
        if self._terminal is not None:
            streams.clear_first(self.hidden)
            threading.Thread(target=self._draw_again, daemon=True).start()

    def show(self, what: str, place: str = "") -> None:
        """Show what runs from now on, "starting the kernel" or a cell's first line; "" for nothing."""
        with self._lock:
            self._what, self._place, self._began_s = printable(what), place, clock.monotonic_s()
            self._clear()
            self._draw()

    def stop(self) -> None:
        """Clear the line until the next `show`."""
        self.show("")

    def close(self) -> None:
        """Clear the line for good."""
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

    def line(self) -> str:
        """Return what is shown now."""
        elapsed_s = clock.monotonic_s() - self._began_s
        frame = _FRAMES[int(elapsed_s / _FRAME_S) % len(_FRAMES)]
        elapsed = f"{int(elapsed_s)} s" if elapsed_s < 100 else time_text(elapsed_s)
        return f"{self._place}{frame}{elapsed:>{_TIME}}  {self._what}"

    def _draw_again(self) -> None:
        while not self._ended.wait(_FRAME_S):
            self._draw()

    def _draw(self) -> None:
        with self._lock:
            if self._what or self._place:
                self._is_drawn = True  # before a Ctrl-C may cut the rest off
                self._write(f"{_CLEAR}{_CUT_OFF}{self.line()}{_WRAPPED}")

    def _clear(self) -> None:
        if self._is_drawn:
            self._write(_CLEAR)
            self._is_drawn = False  # not before, for a Ctrl-C may cut it off

    def _write(self, words: str) -> None:
        if self._terminal is not None:
            try:
                self._terminal.write(words)
                self._terminal.flush()
            except (OSError, ValueError):  # the terminal is gone
                self._terminal = None
