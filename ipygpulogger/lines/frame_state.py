"""The line that each frame is at: hits and time of each line, and the line that its memory is attributed to.

Reading the counters at a line boundary takes some 40 us, more with devices. Lines that run very often are
therefore measured for a while and then only counted. From then on a loop's memory is attributed to its header
line as a whole. Outside a loop, in a small function that is called very often, it is attributed to the lines
that call the function.

This file decides when the counters are read and for which line. `line_memory` reads them and keeps what each
line used.
"""

from __future__ import annotations

import ast
import linecache
from collections import Counter
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, CO_OPTIMIZED
from typing import TYPE_CHECKING

from . import tracing
from .line_memory import LineMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import CodeType, FrameType

    from .line_memory import LineMemories

MEASURED = 1_000  # boundaries in one section of the code; after that its lines are only counted
RARE = 50  # but a line with no more boundaries than this is measured all the same
HELD = 3 * MEASURED  # boundaries after which not even the loop's memory as a whole is read
COUNTED = 2_000_000  # lines started in one section; after that they are not even counted
_LOOPS_FROM = MEASURED // 4  # boundaries in one code object before its loops are looked for

_LOOPS = (ast.For, ast.While, ast.AsyncFor)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_INLINE = frozenset(("<lambda>", "<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>"))


class Line:
    """One line of one file: hits, time, and its memory."""

    __slots__ = ("_since_s", "boundaries", "hits", "memory", "running", "skipped", "time_s")

    def __init__(self) -> None:
        self.hits = self.boundaries = 0  # how often it started, and the counters were read for it
        self.running = 0  # frames that are at it now
        self.time_s = self._since_s = 0.0  # for which at least one frame was at it
        self.skipped = False  # whether it ran without the counters being read for it
        self.memory = LineMemory()

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

    __slots__ = ("held", "line", "offset", "suspended")

    def __init__(self, offset: int = -1) -> None:
        self.line: Line | None = None
        self.held: LineMemory | None = None  # that its memory is attributed to; `LineMemories` alone sets it
        self.offset = offset  # where in the bytecode the line started
        self.suspended = False


class _Section:
    """Lines of one code object that are measured or counted together: an outermost loop, or all others."""

    __slots__ = ("boundaries", "first", "header", "last", "measured", "started", "uncounted")

    def __init__(self, first: int = 0, last: int = 0, header: Line | None = None) -> None:
        self.first, self.last = first, last  # the loop's lines
        # The loop's first line, which has the memory once the lines are only counted; None leaves that to
        # the lines that called this code.
        self.header = header
        self.measured, self.uncounted = True, False  # counters are read for every line; nothing is counted
        self.boundaries = self.started = 0  # how often the counters were read, and lines started


class LineTable:
    """Every line that ran in one measurement, and the code objects that they belong to."""

    def __init__(self, memory: LineMemories) -> None:
        self.memory = memory
        self._lines: dict[tuple[str, int], Line] = {}
        self._codes: list[CodeFrames] = []

    def line(self, filename: str, lineno: int) -> Line:
        """Return the one entry of a line, a new one the first time."""
        key = filename, lineno
        return self._lines.get(key) or self._lines.setdefault(key, Line())

    def follow(self, code: CodeType) -> CodeFrames:
        """Measure the lines of a code object."""
        followed = CodeFrames(self, code)
        self._codes.append(followed)
        return followed

    def stop(self) -> None:
        """End every line that runs; `LineMemories.stop` ends their memory."""
        stopped_s = tracing.now_s()
        for code in self._codes:
            code.end_all(stopped_s)

    def forget(self) -> None:
        """Forget the lines that run now: their ends will not be reported."""
        for code in self._codes:
            code.states.clear()
        for line in tuple(self._lines.values()):
            line.running = 0
        self.memory.forget()

    def repair(self) -> None:
        """Count again which frames are at which line, after an exception cut short what we did."""
        repaired_s = tracing.now_s()
        running_ids = {id(frame) for frame in tracing.running_frames()}
        for code in self._codes:
            code.forget_ended(running_ids)
        states = [state for code in self._codes for state in tuple(code.states.values())]
        running = Counter(state.line for state in states if state.line is not None)
        for line in tuple(self._lines.values()):
            count = running[line]
            if bool(line.running) != bool(count):
                line.running = not count
                (line.enter if count else line.leave)(repaired_s)
            line.running = count
        self.memory.repair(states)

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
        self.repair = table.repair
        self.filename, self._name, self._first = code.co_filename, code.co_name, code.co_firstlineno
        self._can_suspend = bool(code.co_flags & (CO_GENERATOR | CO_ASYNC_GENERATOR | CO_COROUTINE))
        # What is allocated while a generator is suspended is not attributed to it.
        self._is_generator = bool(code.co_flags & (CO_GENERATOR | CO_ASYNC_GENERATOR))
        self._is_function = bool(code.co_flags & CO_OPTIMIZED)
        self._inline = code.co_name in _INLINE or not self._is_function  # a class's body: by its first line
        self.states: dict[int, FrameState] = {}  # by the frame's id
        self._outside_loops = _Section()
        self._loops: list[_Section] | None = None  # None: not looked for yet
        self._lines: dict[int, tuple[Line, _Section]] = {}

    # -- what the tracing back end reports ---------------------------------------------------------

    def line(self, frame: FrameType, lineno: int, now_s: float) -> bool:
        """Start a line: a hit if it is a new line, or the same one by a jump back."""
        line, section = self._lines.get(lineno) or self._add(lineno)
        state, offset = self.states.get(id(frame)), frame.f_lasti
        if state is not None and state.line is line and offset > state.offset:
            return False
        # No hit: an expression with a frame of its own, on the line that runs it; nor a cell's next statement
        # on the same line, which IPython runs as a code object of its own.
        continues = not self._is_function and state is None and self._memory.ended_last(line.memory)
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
        section.started += 1
        if section.measured or line.boundaries < RARE:
            self._count(section)
            self._attribute(state, line, continues=continues)
            return False
        header = section.header
        if line is not header and not (self._inline and line.memory.held_by_others(state)):
            line.skipped = True  # within a line that is measured as a whole nothing is missed
        if state.held is not (header and header.memory):
            self._attribute_to_header(state, section)
        return section.started > COUNTED and self._stop_counting(state, section, now_s)

    def resumed(self, frame: FrameType, now_s: float) -> None:
        """Resume a line, which is not a new hit."""
        state, lineno = self.states.get(id(frame)), frame.f_lineno
        if lineno is None or (state is not None and not state.suspended):
            return  # the line of a coroutine stayed open
        if state is None:
            state = self.states[id(frame)] = FrameState(frame.f_lasti)
        state.suspended = False
        line, section = self._lines.get(lineno) or self._add(lineno)
        state.line = line
        line.enter(now_s)
        if section.measured or line.boundaries < RARE:
            self._count(section)
            self._attribute(state, line)
        elif not (self._inline and line.memory.held_by_others(state)):
            line.skipped = True

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

    def forget_ended(self, running: set[int]) -> None:
        """Forget the frames that neither run nor can be resumed, whose end was not reported."""
        for key in () if self._can_suspend else self.states.keys() - running:
            del self.states[key]

    def end_all(self, now_s: float) -> None:
        """End every line: nothing is reported any more."""
        for state in tuple(self.states.values()):
            if state.line is not None:
                state.line.leave(now_s)
        self.states.clear()

    def _end(self, state: FrameState, now_s: float) -> None:
        line, state.line = state.line, None
        if line is not None:
            line.leave(now_s)
        if state.held is not None:
            self._attribute(state, None)

    def _add(self, lineno: int) -> tuple[Line, _Section]:
        found = self._lines[lineno] = self._line_of(self.filename, lineno), self._section_of(lineno)
        return found

    def _section_of(self, lineno: int) -> _Section:
        loops = self._loops or ()
        return next((loop for loop in loops if loop.first <= lineno <= loop.last), self._outside_loops)

    def _attribute(self, state: FrameState, line: Line | None, *, continues: bool = False) -> None:
        """Read the counters, and attribute what the frame uses from here on to a line; None for none."""
        if line is None:
            self._memory.hold(state, None)
        else:
            line.boundaries += 1
            self._memory.hold(state, line.memory, continues=continues)

    def _attribute_to_header(self, state: FrameState, section: _Section) -> None:
        """Attribute what the frame uses from here on to the loop as a whole, or to no line of this code."""
        section.boundaries += 1
        if section.boundaries > HELD:
            section.header = None
        self._attribute(state, section.header)

    def _count(self, section: _Section) -> None:
        """Count one more boundary; loops get sections of their own once that matters."""
        section.boundaries += 1
        if section.boundaries >= _LOOPS_FROM and self._loops is None:
            found = outermost_loops(self.filename, self._name, self._first, is_function=self._is_function)
            self._loops = [
                _Section(first, last, None if self._is_generator else self._line_of(self.filename, first))
                for first, last in found
            ]
            self._lines = {
                lineno: (line, self._section_of(lineno)) for lineno, (line, _) in self._lines.items()
            }
        section.measured = section.boundaries < MEASURED

    def _stop_counting(self, state: FrameState, section: _Section, now_s: float) -> bool:
        """Stop counting hits too; the loop's time goes to its header until the frame leaves it."""
        section.uncounted = True
        line, state.line = state.line, section.header
        if line is not None:
            line.leave(now_s)
        if section.header is not None:
            section.header.enter(now_s)
        return True

    def notes(self, place: str, offset: int) -> Iterator[str]:
        """Yield a sentence for each section that was only counted; as `LineTable.notes`."""
        for section in (self._outside_loops, *(self._loops or ())):
            if section.measured:  # what is not complete there has another reason
                continue
            lines = {n + offset: line for n, (line, other) in self._lines.items() if other is section}
            if section.uncounted:
                yield (
                    f"{_named(list(lines), place)} ran over {COUNTED:,} times in all: after that they are not"
                    " counted, and their hits are more than shown"
                )
            counted = [lineno for lineno, line in lines.items() if not line.complete]
            if not counted:
                continue
            its = "its" if len(counted) == 1 else "their"
            holder = f"line {section.first + offset}" if section.header else "the lines that run them"
            yield (
                f"{_named(counted, place)}: measured until {MEASURED:,} lines had run there,"
                f" from then on {its} memory is added up in {holder}"
            )


def _named(linenos: Sequence[int], place: str) -> str:
    first, last = min(linenos), max(linenos)
    lines = f"lines {first}-{last}" if last > first else f"line {first}"
    return f"{lines} of {place}" if place else lines


def outermost_loops(
    filename: str, name: str, first_lineno: int, *, is_function: bool
) -> list[tuple[int, int]]:
    """Return first and last line of each outermost loop of a code object, as far as there is source."""
    source = "".join(linecache.getlines(filename))
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        tree = compile(source, filename, "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    scope: ast.AST | None = None if is_function else tree
    for node in ast.walk(tree):
        if isinstance(node, _SCOPES) and node.name == name:
            starts = (node.lineno, *(decorator.lineno for decorator in node.decorator_list))
            if min(starts) == first_lineno:
                scope = node
    found, waiting = [], list(ast.iter_child_nodes(scope)) if scope is not None else []
    while waiting:
        node = waiting.pop()
        if isinstance(node, _LOOPS):
            found.append((node.lineno, node.end_lineno or node.lineno))
        elif not isinstance(node, (*_SCOPES, ast.Lambda)):
            waiting.extend(ast.iter_child_nodes(node))
    return found
