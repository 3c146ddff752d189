"""What ``run`` prints of each cell: its line, the traceback if it failed, and on request what it printed."""

from __future__ import annotations

import re
import shutil
import sys
from typing import TYPE_CHECKING, Any

from ..records import MIME
from ..records.budget import LEFT
from ..records.units import clipped, time_text
from ..render import out_of_memory
from ..render.headline import is_quiet, memories
from ..render.text import outcome
from ..runtime import clock
from .colours import foreign, is_terminal, shows_colours, styled
from .columns import Columns
from .streams import aside, aside_coloured, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..records import CellRecord
    from .colours import Styled
    from .progress import Progress

# Of the report of a cell that still runs, as `render.text.so_far` begins it.
_SO_FAR = re.compile(r".*: \d+ s so far( \||$)")
_MOVES = re.compile("([\r\b])")
_RULE = re.compile(r"(\x1b\[[0-9;]*m)*-+(\x1b\[[0-9;]*m)*")  # above a traceback of IPython

_LAST_S = 0.2  # after a cell: no other cell begins
_INDENT = "    "
_LINE = 2000  # characters of a line that a cell printed


class Transcript:
    """The cells of one run, printed as they run.

    Args:
        progress: The line of the terminal that shows which cell runs.
        shows_output: Whether to print what the cells print.
    """

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
        """Print the line of the cell that ended, what explains a failure, and that little RAM is left.

        Args:
            record: Its record; None if it left none.
            traceback: The lines of its traceback, as IPython formats them; empty if it did not fail.
        """
        self._print_begun()
        self._progress.wait("ending the kernel", after_s=_LAST_S)
        say(self._line(record))
        if traceback and (record is None or record.status == "error"):
            lines = "\n".join(traceback).strip("\n").split("\n")
            coloured = shows_colours(sys.stderr)
            begin = 1 if _RULE.fullmatch(lines[0]) else 0
            told = [f"{_INDENT}{foreign(line, coloured=coloured)}".rstrip() for line in lines[begin:]]
            aside_coloured("\n".join([*told, ""]))
        if record is not None and record.out_of_memory is not None:
            aside_coloured(out_of_memory.report(record.out_of_memory) + "\n")
        for note in () if record is None else record.notes:
            if note.startswith(LEFT):  # said at once, because the next cell may be killed
                aside(f"{_INDENT}{note}")

    def _line(self, record: CellRecord | None) -> str:
        room = shutil.get_terminal_size().columns if is_terminal(sys.stdout) else None
        time_s = clock.monotonic_s() - self._began_s if record is None else record.time_s
        time = time_text(time_s)
        parts = self._columns.line(self._number, time, moved(record), self._source, room=room)
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
    r"""Return what a terminal would show of a line with ``\r`` and ``\b`` in it."""
    if not _MOVES.search(line):
        return line
    shown: list[str] = []
    column = 0
    for part in _MOVES.split(line):
        if part == "\r":
            column = 0
        elif part == "\b":
            column = max(0, column - 1)
        else:
            shown[column : column + len(part)] = part
            column += len(part)
    return "".join(shown)


def moved(record: CellRecord | None) -> list[Sequence[Styled]]:
    """Return how the cell failed, and each memory that moved much; if there is none, what is in use.

    That is of the first GPU, or without one of RAM.
    """
    if record is None:
        return [[("not measured", "strong")]]
    clauses = [clause.phrases for clause in memories(record)]
    if much := [phrases for phrases in clauses if phrases[0].weight == "strong"]:
        shown = much
    else:
        shown = [phrases for phrases in clauses if phrases[0].words.startswith("RAM") != bool(record.gpus)][
            :1
        ]
    if ended := outcome(record):
        return [[(ended, "failed")], *much]
    return list(shown)
