"""The files under which IPython compiles cells: which cell one stands for, and where its lines are in that.

A cell's code has a file name that only IPython's compiler knows: ``<ipython-input-4-...>``, or one that
ipykernel makes from the cell's text, so that the same text has the same name again. Leading empty lines are
removed before the code is compiled.
"""

from __future__ import annotations

import linecache
import re
from typing import Any

_NUMBERED = re.compile(r"<ipython-input-(\d+)-")
_NEWLINE = re.compile("\r\n|\r|\n")  # as Python counts lines; `splitlines` knows more ends


def is_a_cells(shell: Any, file: str) -> bool:
    """Return whether a file name is that of a cell's code."""
    known: Any = getattr(shell.compile, "_filename_map", None)
    if known is None:  # before IPython 8
        known = getattr(linecache, "_ipython_cache", {})
    return file in known


def place_of_cell(shell: Any, file: str) -> tuple[str, int]:
    """Return a cell's label, and how many lines of its text come before the first compiled one.

    Args:
        shell: IPython's.
        file: The name of a file that `is_a_cells`.
    """
    code = "".join(linecache.getlines(file)).rstrip()
    number = _number(shell, file, code)
    if number is None:
        return "an earlier cell", 0
    inputs, compiled = shell.history_manager.input_hist_raw, lines_of(code)
    # The body of `%%capture` runs as a cell of its own, to which IPython 9 gives the number of the next one.
    for candidate in (number, number - 1):
        if 0 < candidate < len(inputs):
            written = lines_of(inputs[candidate])
            above = len(written) - len(compiled)
            if above >= 0 and _same(written[above:], compiled):
                return f"In [{candidate}]", above
    return f"In [{number}]", 0


def _same(written: list[str], compiled: list[str]) -> bool:
    """Return whether lines were compiled from these; a magic may have changed the first of several."""
    return written[1:] == compiled[1:] and (len(compiled) > 1 or written == compiled)


def lines_of(text: str) -> list[str]:
    """Return the lines of a text as Python counts them, without the empty ones at its end."""
    return _NEWLINE.split(text.rstrip())


def _number(shell: Any, file: str, compiled: str) -> int | None:
    """Return the number of the cell that was compiled under this name, of several the latest."""
    known = getattr(shell.compile, "_filename_map", {})
    if file in known:
        return int(known[file])
    if found := _NUMBERED.match(file):
        return int(found[1])
    inputs = shell.history_manager.input_hist_parsed  # ipykernel with IPython 7
    return next((n for n in reversed(range(len(inputs))) if inputs[n].rstrip() == compiled), None)
