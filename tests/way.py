"""The way of a cell: what runs within the hooks of one, counted and not timed. The benchmarks count by it too."""

from __future__ import annotations

import os
import sys
from collections import Counter
from inspect import CO_GENERATOR
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path
    from types import CodeType, FrameType


class Way:
    """Counts what a package does, by `sys.setprofile`, in the thread that counts; a generator counts once."""

    def __init__(self, package: Path) -> None:
        """Prepare to count in the package of this folder."""
        self._package = str(package) + os.sep
        self._stack: list[str] = []  # for each frame the file of the package that it is in or below
        self._generators: list[FrameType] = []  # that have begun
        self.calls: Counter[str] = Counter()  # of Python functions of the package, by file
        self.functions: set[CodeType] = set()  # the code of these
        self.all_calls = 0  # of these, and of Python functions of others below them
        self.c_calls = 0  # by any of these, of functions written in C
        self.moves = 0  # calls from one file of the package, or from outside, into another

    def event(self, frame: FrameType, event: str, _: Any) -> None:
        """Take in an event of `sys.setprofile`."""
        if event == "call":
            file, here = frame.f_code.co_filename, self._stack[-1] if self._stack else ""
            goes_on = self._goes_on(frame)
            if file.startswith(self._package):
                self.calls[file.removeprefix(self._package)] += not goes_on
                self.functions.add(frame.f_code)
                self.moves += file != here and not goes_on
                here = file
            self._stack.append(here)
            self.all_calls += bool(here) and not goes_on
        elif event == "c_call":
            self.c_calls += bool(self._stack and self._stack[-1])
        elif event == "return" and self._stack:
            self._stack.pop()

    def _goes_on(self, frame: FrameType) -> bool:
        """Return whether this is a generator that began earlier."""
        if not frame.f_code.co_flags & CO_GENERATOR:
            return False
        known = any(frame is one for one in self._generators)
        if not known:
            self._generators.append(frame)
        return known


def way_of_a_cell(shell: Any, package: Path, cell: str = "pass", cells: int = 5) -> Way:
    """Run a cell several times, and return the shortest way: at times a peak must be reset, at times it need not."""
    ways = []
    for _ in range(cells):
        way = Way(package)
        sys.setprofile(way.event)
        try:
            shell.run_cell(cell, store_history=True)
        finally:
            sys.setprofile(None)
        ways.append(way)
    return min(ways, key=lambda way: (way.all_calls, way.c_calls))
