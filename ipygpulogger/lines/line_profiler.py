"""What each line of some code used: hits, time, general RAM and each GPU.

A line lasts from its start until the next line of the same frame starts, or the frame ends or yields. The
lines of functions that it calls run meanwhile, so its figures contain theirs.
"""

from __future__ import annotations

import inspect
import linecache
import os
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from ..engine.machine import machine
from ..records import LineUsage
from .backends import SysMonitoring, SysSetTrace
from .frame_state import CodeFrames, LineTable
from .line_memory import LineMemories
from .tracing import TracingBackend

backend: TracingBackend = SysMonitoring() if sys.version_info >= (3, 12) else SysSetTrace()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=backend.after_fork_in_child)


def code_of(function: Any) -> CodeType | None:
    """Return the code that the user wrote, below any other decorators; None if it is not Python."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code if isinstance(code, CodeType) else None


class LineProfiler:
    """Measures lines from `start` to `stop`."""

    def __init__(self, wants: Callable[[FrameType], bool], *, reset_peaks: bool = True) -> None:
        # `wants` is called once for each code object, when it first runs: whether to measure it.
        self._wants, self._memory = wants, LineMemories(machine(), self.lost, reset_peaks=reset_peaks)
        self._table = LineTable(self._memory)
        self._lost: list[str] = []
        self._running = self._measured = False
        self.stack_was_full = False  # where a line began or ended: then no figure is sure

    def start(self) -> None:
        """Measure from here on. It never raises: what is not possible becomes a note."""
        if self._running:
            return
        self._running = True
        try:
            self._memory.start()
            self._measured = True
            why_not = backend.subscribe(self)
        except Exception as error:
            why_not = f"lines are not measured: {error}"
        if why_not is not None:
            self.lost(why_not)
            self.stop()

    def stop(self) -> None:
        """Stop measuring, and leave nothing behind. Calling it again finishes what an interrupt cut short."""
        if not self._running:
            return
        backend.unsubscribe(self)
        self._table.stop()
        self._memory.stop()
        if self.stack_was_full:
            self._measured = False
            self.lost("lines are not measured: the stack was full (RecursionError)")
        self._running = False

    def notes(self, place_of: Callable[[str], tuple[str, int]]) -> tuple[str, ...]:
        """Return what is not measured as it should be, with places and line numbers as `result` has them."""
        return *self._lost, *(self._table.notes(place_of) if self._measured else ())

    def result(self, place_of: Callable[[str], tuple[str, int]]) -> tuple[LineUsage, ...]:
        """Return what each line used; `place_of` gives a file's place, and what to add to its numbers."""
        if not self._measured:
            return ()
        found = []
        for filename, lineno, line in self._table.ran():
            place, offset = place_of(filename)
            memory, complete = line.memory, line.complete
            source = linecache.getline(filename, lineno).strip()
            gen = self._memory.gen(memory, complete=complete)
            figures = line.hits, line.time_s, gen, self._memory.gpus(memory, complete=complete)
            risen = self._memory.risen(memory)
            found.append(LineUsage(lineno + offset, source, *figures, place, complete, risen))
        return tuple(sorted(found, key=lambda line: (line.place, line.lineno)))

    # -- what the tracing back end asks and reports ------------------------------------------

    def follow(self, frame: FrameType) -> CodeFrames | None:
        """Return what to report this frame's code to; None if it is not to be measured."""
        return self._table.follow(frame.f_code) if self._wants(frame) else None

    def lost(self, sentence: str) -> None:
        """Note, once, what is not measured."""
        if sentence not in self._lost:
            self._lost.append(sentence)

    def cut_off(self, sentence: str) -> None:
        """Leave out what the lines that run now have used, and note why."""
        self.lost(sentence)
        self._table.forget()
