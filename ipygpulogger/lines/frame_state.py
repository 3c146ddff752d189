"""The line that each frame is at: hits and time of each line, and the line that its memory is attributed to.

Reading counters takes some 40 us. So lines that run often are measured for a while and then only counted: the
memory of a cell's statement goes to its first line from then on, a function's to the lines that call it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import CO_OPTIMIZED
from types import CodeType, FrameType

from . import tracing
from .line_memory import LineMemories, LineMemory

MEASURED = 1_000  # boundaries in one code object; after that its lines are only counted
RARE = 50  # but a line with no more boundaries than this is measured all the same
_INLINE = frozenset(("<lambda>", "<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>"))


class Line:
    """One line of one file: hits, time, and its memory."""

    def __init__(self) -> None:
        self.hits = self.boundaries = 0  # how often it started, and the counters were read for it
        self.running: int = 0  # frames that are at it now
        self.time_s: float = 0.0  # for which at least one frame was at it, since then if one is
        self._since_s = 0.0
        self.skipped = False  # whether it ran without the counters being read for it
        self.memory: LineMemory = LineMemory()

    @property
    def complete(self) -> bool:
        """Whether its memory is known for each time that it ran."""
        return not (self.skipped or self.memory.cut_off)

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
        self.held: LineMemory | None = None  # that its memory is attributed to; `LineMemories` alone sets it
        self.offset = offset  # where in the bytecode the line started
        self.suspended = False


class LineTable:
    """Every line that ran in one measurement, and the code objects that they belong to."""

    def __init__(self, memory: LineMemories) -> None:
        self.memory = memory
        self._lines: dict[tuple[str, int], Line] = {}
        self._codes: list[CodeFrames] = []

    def line(self, filename: str, lineno: int) -> Line:
        """Return the one entry of a line, a new one the first time."""
        return self._lines.setdefault((filename, lineno), Line())

    def follow(self, code: CodeType) -> CodeFrames:
        """Measure the lines of a code object."""
        followed = CodeFrames(self, code)
        self._codes.append(followed)
        return followed

    def stop(self) -> None:
        """End every line that runs; `LineMemories.stop` ends their memory."""
        stopped_s = tracing.now_s()
        for code in self._codes:
            for state in tuple(code.states.values()):
                if state.line is not None:
                    state.line.leave(stopped_s)
            code.states.clear()

    def forget(self) -> None:
        """Leave out what the lines that run now have used: their ends will not be reported."""
        for code in self._codes:
            code.states.clear()
        for line in tuple(self._lines.values()):
            line.memory.cut_off |= bool(line.running or line.memory.holders)
            line.running = line.memory.holders = 0
        self.memory.forget()

    def ran(self) -> Iterator[tuple[str, int, Line]]:
        """Yield file, line number and entry of each line that ran."""
        for (filename, lineno), line in self._lines.items():
            if line.hits or line.memory.sums:
                yield filename, lineno, line

    def notes(self, place_of: Callable[[str], tuple[str, int]]) -> Iterator[str]:
        """Yield a sentence for each group of lines that were not measured every time."""
        for code in self._codes:
            yield from code.notes(*place_of(code.filename))


class CodeFrames:
    """The lines of one code object and the frames that run it: what a `TracingBackend` reports to."""

    def __init__(self, table: LineTable, code: CodeType) -> None:
        self._line_of, self._memory = table.line, table.memory
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
        continues = not self._is_function and state is None and self._memory.ended is line.memory
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
                if (
                    code.co_name.startswith("<") and not self._is_function
                ):  # IPython runs a statement as a module
                    self._first_lineno = min(self._lines)
                    self._first = self._line_of(self.filename, self._first_lineno)
            self._attribute(state, line, continues=continues)
            return
        first = self._first
        by_others = line.memory.holders > (state.held is line.memory)
        # Within a line that is measured as a whole nothing is missed.
        if line is not first and not (self._inline and by_others):
            line.skipped = True
        if state.held is not (first and first.memory):
            self._attribute(state, first)

    def _attribute(self, state: FrameState, line: Line | None, *, continues: bool = False) -> None:
        """Read the counters, and attribute what the frame uses from here on to a line; None for none."""
        if line is not None:
            line.boundaries += 1
        self._memory.hold(state, None if line is None else line.memory, continues=continues)

    def notes(self, place: str, offset: int) -> Iterator[str]:
        """Yield a sentence about the lines that were only counted; as `LineTable.notes`."""
        if self._measured:  # what is not complete has another reason
            return
        if counted := [lineno + offset for lineno, line in self._lines.items() if not line.complete]:
            first, last = min(counted), max(counted)
            lines = f"lines {first}-{last}" if last > first else f"line {first}"
            holder = f"line {self._first_lineno + offset}" if self._first else "the lines that run them"
            where, its = f" of {place}" if place else "", "its" if len(counted) == 1 else "their"
            yield (
                f"{lines}{where}: measured until {MEASURED:,} lines had run there,"
                f" from then on {its} memory is added up in {holder}"
            )
