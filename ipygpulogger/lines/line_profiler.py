"""What each line of some code used: hits, time, general RAM and each GPU.

A line lasts from its start until the next line of the same frame starts, or the frame ends or yields. The
lines of functions that it calls run meanwhile, so its figures contain theirs.

Reading the counters takes some 40 us. So lines that run very often are only counted after a while: from then
on the memory of a cell's statement goes to its first line, a function's to the lines that call it.
"""

from __future__ import annotations

import inspect
import linecache
import os
import sys
from collections.abc import Callable, Iterator
from inspect import CO_OPTIMIZED
from types import CodeType, FrameType
from typing import Any

from ..engine.machine import machine
from ..records import LineUsage
from .backends import SysMonitoring, SysSetTrace
from .line_memory import LineMemories, _Sum
from .tracing import TracingBackend, now_s

backend: TracingBackend = SysMonitoring() if hasattr(sys, "monitoring") else SysSetTrace()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=backend.after_fork_in_child)

MEASURED = 1_000  # boundaries in one code object; after that its lines are only counted
RARE = 50  # but a line with no more boundaries than this is measured all the same
_INLINE = frozenset(("<lambda>", "<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>"))


class Line:
    """One line of one file: hits, time, and its memory, which `LineMemories` reads."""

    def __init__(self) -> None:
        self.holders = 0  # how many frames' memory is attributed to it now
        self.cut_off = False  # whether an interval was left out because its end was not reported
        self.sums: list[_Sum] = []  # for each counter; shorter where no later counter was read
        self.hits = self.boundaries = 0  # how often it started, and the counters were read for it
        self.running: int = 0  # frames that are at it now
        self.time_s: float = 0.0  # for which at least one frame was at it, since then if one is
        self._since_s = 0.0
        self.skipped = False  # whether it ran without the counters being read for it

    @property
    def complete(self) -> bool:
        """Whether its memory is known for each time that it ran."""
        return not (self.skipped or self.cut_off)

    def enter(self, now_s: float) -> None:
        """Count a frame that gets to this line, or resumes it."""
        if not self.running:
            self._since_s = now_s
        self.running += 1

    def leave(self, now_s: float) -> None:
        """Count off a frame that leaves this line, or is suspended at it."""
        self.running -= 1
        if not self.running and now_s > self._since_s:  # clocks of two threads may differ
            self.time_s += now_s - self._since_s


class FrameState:
    """The line that one frame is at."""

    def __init__(self, offset: int = -1) -> None:
        self.line: Line | None = None
        self.held: Line | None = None  # that its memory is attributed to; `LineMemories` alone sets it
        self.offset = offset  # where in the bytecode the line started
        self.suspended = False


class CodeFrames:
    """The lines of one code object and the frames that run it: what a `TracingBackend` reports to."""

    def __init__(self, code: CodeType, line_of: Callable[[str, int], Line], memory: LineMemories) -> None:
        self._line_of, self._memory = line_of, memory
        self.filename: str = code.co_filename
        self._is_function = bool(code.co_flags & CO_OPTIMIZED)
        self._inline = code.co_name in _INLINE or not self._is_function  # a class's body: by its first line
        self.states: dict[int, FrameState] = {}  # by the frame's id
        self._boundaries = 0  # how often the counters were read
        self._measured = True  # the counters are read for every line
        self._lines: dict[int, Line] = {}
        # Of a statement of a cell, once its lines are only counted: its first line, which has its memory.
        self._first: Line | None = None
        self._first_lineno = 0

    # -- what the tracing back end reports ---------------------------------------------------------

    def line(self, frame: FrameType, lineno: int, now_s: float) -> None:
        """Start a line: a hit if it is a new line, or the same one by a jump back."""
        line = self._lines.get(lineno) or self._add(lineno)
        state, offset = self.states.get(id(frame)), frame.f_lasti
        if state is not None and state.line is line and offset > state.offset:
            return
        # No hit: an expression with a frame of its own, on the line that runs it; nor a cell's next statement
        # on the same line, which IPython runs as a code object of its own.
        continues = not self._is_function and state is None and self._memory.ended is line
        # It is counted before anything is called: that may fail where the user's stack is full.
        line.hits += not (continues or (self._inline and line.running))
        if state is None or state.suspended:  # suspended, and not resumed: another frame that has its id
            state = self.states[id(frame)] = FrameState()
        state.offset, old = offset, state.line
        if old is not line:
            state.line = line
            if old is not None:
                old.leave(now_s)
            line.enter(now_s)
        self._count(state, line, frame.f_code, continues=continues)

    def resumed(self, frame: FrameType, now_s: float) -> None:
        """Resume a line, which is not a new hit."""
        state, lineno = self.states.get(id(frame)), frame.f_lineno
        if lineno is None or (state is not None and not state.suspended):
            return  # the line of a coroutine stayed open
        if state is None:
            state = self.states[id(frame)] = FrameState(frame.f_lasti)
        state.suspended = False
        line = self._lines.get(lineno) or self._add(lineno)
        state.line = line
        line.enter(now_s)
        self._count(state, line, frame.f_code)

    def suspended(self, frame: FrameType, now_s: float) -> None:
        """Suspend a generator's line."""
        state = self.states.get(id(frame))
        if state is not None and not state.suspended:
            self._end(state, now_s)
            state.suspended = True

    def ended(self, frame: FrameType, now_s: float) -> None:
        """End a frame, and its line with it."""
        state = self.states.get(id(frame))
        if state is not None:
            self._end(state, now_s)
            self.states.pop(id(frame), None)

    # ----------------------------------------------------------------------------------------------

    def _end(self, state: FrameState, now_s: float) -> None:
        line, state.line = state.line, None
        if line is not None:
            line.leave(now_s)
        if state.held is not None:
            self._attribute(state, None)

    def _add(self, lineno: int) -> Line:
        return self._lines.setdefault(lineno, self._line_of(self.filename, lineno))

    def _count(self, state: FrameState, line: Line, code: CodeType, *, continues: bool = False) -> None:
        """Count one more boundary, and read the counters for a line, unless it is only counted by now."""
        if self._measured or line.boundaries < RARE:
            self._boundaries += 1
            if self._measured and self._boundaries >= MEASURED:
                self._measured = False
                # IPython runs a statement as a module.
                if code.co_name.startswith("<") and not self._is_function:
                    self._first_lineno = min(self._lines)
                    self._first = self._line_of(self.filename, self._first_lineno)
            self._attribute(state, line, continues=continues)
            return
        first, by_others = self._first, line.holders > (state.held is line)
        # Within a line that is measured as a whole nothing is missed.
        if line is not first and not (self._inline and by_others):
            line.skipped = True
        if state.held is not first:
            self._attribute(state, first)

    def _attribute(self, state: FrameState, line: Line | None, *, continues: bool = False) -> None:
        """Read the counters, and attribute what the frame uses from here on to a line; None for none."""
        if line is not None:
            line.boundaries += 1
        self._memory.hold(state, line, continues=continues)

    def notes(self, place: str, offset: int) -> Iterator[str]:
        """Yield a sentence about the lines that were not measured every time."""
        if self._measured:  # what is not complete has another reason
            return
        if counted := [lineno + offset for lineno, line in self._lines.items() if not line.complete]:
            first, last = min(counted), max(counted)
            lines = f"lines {first}-{last}" if last > first else f"line {first}"
            holder = f"line {self._first_lineno + offset}" if self._first else "the lines that run them"
            where, its = f" of {place}" if place else "", "its" if len(counted) == 1 else "their"
            until = f"measured until {MEASURED:,} lines had run there"
            yield f"{lines}{where}: {until}, from then on {its} memory is added up in {holder}"


def code_of(function: Any) -> CodeType | None:
    """Return the code that the user wrote, below any other decorators; None if it is not Python."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code if isinstance(code, CodeType) else None


class LineProfiler:
    """Measures lines from `start` to `stop`."""

    def __init__(self, wants: Callable[[FrameType], bool], *, reset_peaks: bool = True) -> None:
        # `wants` is called once for each code object, when it first runs: whether to measure it.
        self._wants = wants
        self._memory = LineMemories(machine(), self.lost, reset_peaks=reset_peaks)
        self._lines: dict[tuple[str, int], Line] = {}  # by file and number, each that ran
        self._codes: list[CodeFrames] = []
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
        stopped_s = now_s()
        for code in self._codes:
            for state in tuple(code.states.values()):
                if state.line is not None:
                    state.line.leave(stopped_s)
            code.states.clear()
        self._memory.stop()
        if self.stack_was_full:
            self._measured = False
            self.lost("lines are not measured: the stack was full (RecursionError)")
        self._running = False

    def notes(self, place_of: Callable[[str], tuple[str, int]]) -> tuple[str, ...]:
        """Return what is not measured as it should be, with places and line numbers as `result` has them."""
        codes = self._codes if self._measured else ()
        return *self._lost, *(note for code in codes for note in code.notes(*place_of(code.filename)))

    def result(self, place_of: Callable[[str], tuple[str, int]]) -> tuple[LineUsage, ...]:
        """Return what each line used; `place_of` gives a file's place, and what to add to its numbers."""
        if not self._measured:
            return ()
        found = []
        for (filename, lineno), line in self._lines.items():
            if not (line.hits or line.sums):
                continue
            place, offset = place_of(filename)
            complete, risen = line.complete, self._memory.risen(line)
            source = linecache.getline(filename, lineno).strip()
            gen = self._memory.gen(line, complete=complete)
            figures = line.hits, line.time_s, gen, self._memory.gpus(line, complete=complete)
            found.append(LineUsage(lineno + offset, source, *figures, place, complete, risen))
        return tuple(sorted(found, key=lambda line: (line.place, line.lineno)))

    # -- what the tracing back end asks and reports ------------------------------------------

    def follow(self, frame: FrameType) -> CodeFrames | None:
        """Return what to report this frame's code to; None if it is not to be measured."""
        if not self._wants(frame):
            return None
        self._codes.append(CodeFrames(frame.f_code, self._line_of, self._memory))
        return self._codes[-1]

    def _line_of(self, filename: str, lineno: int) -> Line:
        return self._lines.setdefault((filename, lineno), Line())

    def lost(self, sentence: str) -> None:
        """Note, once, what is not measured."""
        if sentence not in self._lost:
            self._lost.append(sentence)

    def cut_off(self, sentence: str) -> None:
        """Leave out what the lines that run now have used, and note why."""
        self.lost(sentence)
        for code in self._codes:
            code.states.clear()
        for line in tuple(self._lines.values()):
            line.cut_off |= bool(line.running or line.holders)
            line.running = line.holders = 0
        self._memory.forget()
