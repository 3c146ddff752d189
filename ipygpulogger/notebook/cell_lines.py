"""The lines of one running cell, and of functions that earlier cells defined, numbered as the user sees them.

Or of chosen functions alone, wherever they are defined.

IPython 7.34 to 9.18 removes leading empty lines before it compiles; a cell magic turns all lines into one;
``%%capture`` runs its body as a cell of its own, ``%%time`` as a file ``<timed exec>`` (each has a test).
`exec`, dataclasses and templates run code in the user's namespace too, as ``<string>`` and the like.
"""

from __future__ import annotations

import builtins
import linecache
import operator
from collections.abc import Iterable
from dataclasses import replace
from inspect import CO_NEWLOCALS
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

from ..lines.line_profiler import LineProfiler, code_of
from ..records import LineUsage
from ..runtime.objects import nested_code
from ..runtime.shell import cells_behind, is_a_cells, lines_of, place_of
from .cell import Cell, Request, options_of


def chosen(request: Request, namespace: dict[str, Any]) -> list[CodeType]:
    """Return the code of the functions that a cell names; a `ValueError` says which name has none."""
    found = []
    for name in () if isinstance(request.lines, bool) else request.lines:
        try:
            code = code_of(operator.attrgetter(name)(SimpleNamespace(**vars(builtins) | namespace)))
        except Exception:  # a property of the user's may raise anything
            why = f"there is no {name} yet; --lines={name} needs it before the cell runs"
            raise ValueError(why) from None
        if code is None:
            kinds = "functions and methods written in Python"
            raise ValueError(f"--lines measures {kinds}, and {name} is not one")
        found.append(code)
    return found


class CellLines:
    """Measure what each line uses, from `start` to `stop`."""

    def __init__(self, shell: Any, cell: Cell, *, reset_peaks: bool) -> None:
        self._shell = shell
        self._info, self._written = cell.info, lines_of(cell.raw)
        self._file: str | None = None  # of the cell's own code, once it has run
        self._above = _taken_off(self._written)
        self._files: dict[str, tuple[str, int]] = {}  # by place: its file, and the lines before that
        self._chosen = chosen(cell.request, shell.user_ns)
        self._lines = LineProfiler(self._wants, reset_peaks=reset_peaks)

    def start(self) -> None:
        """Measure from here on."""
        self._lines.start()

    def stop(self) -> None:
        """Stop measuring and tracing; stopping again changes nothing."""
        self._lines.stop()
        self._info = None

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence for each thing that could not be measured."""
        return self._lines.notes(self._place_of)

    def result(self) -> tuple[LineUsage, ...]:
        """Return what each line used, once the cell has ended."""
        found = self._lines.result(self._place_of)
        # The cell's own lines come first, then those of other cells: "In [9]" is shorter than "In [10]".
        in_order = sorted(found, key=lambda line: (len(line.place), line.place, line.lineno))
        return tuple(replace(line, source=self._text(line).strip()) for line in in_order)

    def indented(self, lines: Iterable[LineUsage]) -> list[LineUsage]:
        """Return the same lines, each indented as it is in its own text."""
        return [replace(line, source=self._text(line).rstrip()) for line in lines]

    def _text(self, line: LineUsage) -> str:
        """Return a line as the user wrote it, or as it was compiled where IPython changed that."""
        if not line.place and line.lineno <= len(self._written) and self._straight():
            return self._written[line.lineno - 1]
        file, above = self._files[line.place]
        return linecache.getline(file, line.lineno - above)

    # -- which code belongs to a cell, and to which lines of it ---------------------------------------------

    def _wants(self, frame: FrameType) -> bool:
        code, file = frame.f_code, frame.f_code.co_filename
        if self._chosen:
            return any(code is one for function in self._chosen for one in nested_code(function))
        if frame.f_globals is not self._shell.user_ns and frame.f_globals is not self._shell.user_global_ns:
            return False
        if code.co_flags & CO_NEWLOCALS or not code.co_name.startswith("<"):  # a function or a class
            return is_a_cells(self._shell, file)
        infos = [info for info, _ in cells_behind(frame)]
        if not any(info is self._info for info in infos):  # another thread's cell, or the caller of this one
            return False
        if infos[0] is self._info and is_a_cells(self._shell, file):
            self._file = file
            first = self._written[self._above]
            if first.startswith("%%") and options_of(first) is None:
                self._lines.lost("lines below another cell magic are not measured")
        return file == self._file

    def _place_of(self, file: str) -> tuple[str, int]:
        if file == self._file:
            place, above = "", self._above
        else:
            place, above = place_of(file)
            if self._files.get(place, (file, above))[0] != file:  # two files of one name
                place = file
        self._files[place] = file, above
        return place, above

    def _straight(self) -> bool:
        """Return whether the code has the lines of the text; a magic over several lines changes that."""
        source = "".join(linecache.getlines(self._file or ""))
        compiled = source.rstrip().splitlines()  # as IPython splits them
        written = "\n".join(self._written[self._above :]).splitlines()
        return len(compiled) <= 1 or len(compiled) == len(written)


def _taken_off(lines: list[str]) -> int:
    """Return how many lines come before the first that is compiled."""
    first, after = [*(i for i, line in enumerate(lines) if line.strip()), len(lines), len(lines)][:2]
    is_magic_below = after < len(lines) and lines[after].startswith("%%")
    return after if is_magic_below and options_of(lines[first]) is not None else first
