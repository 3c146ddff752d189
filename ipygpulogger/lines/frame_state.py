"""Which line each frame is at: hits and time of lines, and whose memory is measured.

A boundary costs some 40 us, on devices more. So lines that run again and again are measured for a while and
then only counted; what they use is then added up in the header of the outermost loop around them. Outside a
loop, in a small function called very often, it is left to the lines that call it.
"""

from __future__ import annotations

import ast
import linecache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import CodeType, FrameType

    from .line_memory import Gauges, Row

MEASURED = 1_000  # boundaries in one loop, or outside any in one function; then its lines are counted only
RARE = 50  # but a line that began no more often than this is measured all the same
HELD = 3 * MEASURED  # boundaries before not even the loop's memory as a whole is read
COUNTED = 2_000_000  # beginnings of lines there before they are not even counted
_LOOPS_FROM = MEASURED // 4  # boundaries in one code object before its loops are looked for

_CO_OPTIMIZED, _CO_COROUTINE = 0x1, 0x80  # a function's
_CO_SUSPENDS = 0x20 | 0x200  # a generator's, asynchronous or not
_INLINE = frozenset(("<lambda>", "<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>"))


class Rows(NamedTuple):
    """What the frames of a measurement have in common.

    Attributes:
        row: The one row of a file's line.
        gauges: The counters.
        repair: What to do after an exception of a signal handler passed through us.
    """

    row: Callable[[str, int], Row]
    gauges: Gauges
    repair: Callable[[], None]


class _Group:
    """Lines of one code object that are measured or counted together: its outermost loop, or the rest.

    Attributes:
        header: The loop's own line, which holds its memory once the lines are counted only; None where the
            lines do that which run this code.
    """

    __slots__ = ("beginnings", "boundaries", "first", "given_up", "header", "last", "measures")

    def __init__(self, first: int = 0, last: int = 0, header: Row | None = None) -> None:
        self.first, self.last, self.header = first, last, header
        self.measures, self.given_up = True, False
        self.boundaries = self.beginnings = 0


class Visit:
    """One frame: the line it is at, and what that holds open."""

    __slots__ = ("held", "offset", "row", "suspended")

    def __init__(self, offset: int = -1) -> None:
        self.row: Row | None = None  # the line it is at
        self.held: Row | None = None  # whose memory is measured for it: that line, or its loop's header
        self.offset = offset  # where in the bytecode the line began
        self.suspended = False


class Code:
    """One code object that is measured, and the frames that run it: a `tracing.Follower`."""

    def __init__(self, rows: Rows, code: CodeType) -> None:
        self._row_of, self._gauges, self._repair = rows
        self.filename, self._name, self._first = code.co_filename, code.co_name, code.co_firstlineno
        self._suspends = bool(code.co_flags & (_CO_SUSPENDS | _CO_COROUTINE))
        self._rests = bool(code.co_flags & _CO_SUSPENDS)  # what happens while it rests is not its own
        self._function = bool(code.co_flags & _CO_OPTIMIZED)
        self._inline = code.co_name in _INLINE or not self._function  # a class's body: by its first line
        self.visits: dict[int, Visit] = {}  # by the frame's id
        self._rest = _Group()
        self._loops: list[_Group] | None = None  # None: not looked for yet
        self._rows: dict[int, tuple[Row, _Group]] = {}

    # -- what Python tells ---------------------------------------------------------------------

    def line(self, frame: FrameType, lineno: int, now_s: float) -> bool:
        """A new line, or the same again by a jump back to or before where it began, is a hit."""
        row, group = self._rows.get(lineno) or self._found(lineno)
        visit, offset = self.visits.get(id(frame)), frame.f_lasti
        if visit is not None and visit.row is row and offset > visit.offset:
            return False
        # Of an expression with a frame of its own, on the line that runs it, nobody sees a hit; nor of a
        # cell's next statement on the same line, which IPython runs as code of its own.
        goes_on = not self._function and visit is None and self._gauges.ended_last(row)
        # It is counted before anything is called: that may fail where the user's stack is full.
        row.hits += not (goes_on or (self._inline and row.running))
        if visit is None or visit.suspended:  # suspended, and not resumed: another frame that has its id
            visit = self.visits[id(frame)] = Visit()
        visit.offset, old = offset, visit.row
        if old is not row:
            visit.row = row
            if old is not None:
                old.rest(now_s)
            row.start(now_s)
        group.beginnings += 1
        if group.measures or row.boundaries < RARE:
            self._count(group)
            self._gauges.hold(visit, row, goes_on=goes_on)
            return False
        if row is not group.header and not (self._inline and row.holders > (visit.held is row)):
            row.complete = False  # but within its own line, which is measured as a whole, nothing is missed
        if visit.held is not group.header:
            self._leave(visit, group)
        return group.beginnings > COUNTED and self._give_up(visit, group, now_s)

    def resumed(self, frame: FrameType, now_s: float) -> None:
        """The line goes on: no hit."""
        visit, lineno = self.visits.get(id(frame)), frame.f_lineno
        if lineno is None or (visit is not None and not visit.suspended):
            return  # of a coroutine the line stayed open
        if visit is None:
            visit = self.visits[id(frame)] = Visit(frame.f_lasti)
        visit.suspended = False
        row, group = self._rows.get(lineno) or self._found(lineno)
        visit.row = row
        row.start(now_s)
        if group.measures or row.boundaries < RARE:
            self._count(group)
            self._gauges.hold(visit, row)
        elif not (self._inline and row.holders):
            row.complete = False

    def suspended(self, frame: FrameType, now_s: float) -> None:
        """A generator yields: the line rests."""
        visit = self.visits.get(id(frame))
        if visit is not None and not visit.suspended:
            self._end(visit, now_s)
            visit.suspended = True

    def over(self, frame: FrameType, now_s: float) -> None:
        """The frame ends, and its line with it."""
        visit = self.visits.get(id(frame))
        if visit is not None:
            self._end(visit, now_s)
            self.visits.pop(id(frame), None)

    def repair(self) -> None:
        """An exception of a signal handler passed through us."""
        self._repair()

    # ------------------------------------------------------------------------------------------

    def bury(self, running: set[int]) -> None:
        """Of some frames the end was not told: forget those that neither run nor can go on.

        Args:
            running: The ids of the frames that run.
        """
        for key in () if self._suspends else self.visits.keys() - running:
            del self.visits[key]

    def end_all(self, now_s: float) -> None:
        """Nothing is told any more."""
        for visit in tuple(self.visits.values()):
            if visit.row is not None:
                visit.row.rest(now_s)
        self.visits.clear()

    def _end(self, visit: Visit, now_s: float) -> None:
        row, visit.row = visit.row, None
        if row is not None:
            row.rest(now_s)
        if visit.held is not None:
            self._gauges.hold(visit, None)

    def _found(self, lineno: int) -> tuple[Row, _Group]:
        found = self._rows[lineno] = self._row_of(self.filename, lineno), self._group(lineno)
        return found

    def _group(self, lineno: int) -> _Group:
        loops = self._loops or ()
        return next((group for group in loops if group.first <= lineno <= group.last), self._rest)

    def _leave(self, visit: Visit, group: _Group) -> None:
        """From here on the memory is the loop's as a whole, or nobody's of this code."""
        group.boundaries += 1
        if group.boundaries > HELD:
            group.header = None
        self._gauges.hold(visit, group.header)

    def _count(self, group: _Group) -> None:
        """One more boundary; those of a loop are counted apart once there are so many that it matters."""
        group.boundaries += 1
        if group.boundaries >= _LOOPS_FROM and self._loops is None:
            self._loops = [
                _Group(first, last, None if self._rests else self._row_of(self.filename, first))
                for first, last in _outermost_loops(self.filename, self._name, self._first, self._function)
            ]
            self._rows = {lineno: (row, self._group(lineno)) for lineno, (row, _) in self._rows.items()}
        group.measures = group.boundaries < MEASURED

    def _give_up(self, visit: Visit, group: _Group, now_s: float) -> bool:
        """Not even counted any more; a loop's time goes to its header until the frame leaves it."""
        group.given_up = True
        row, visit.row = visit.row, group.header
        if row is not None:
            row.rest(now_s)
        if group.header is not None:
            group.header.start(now_s)
        return True

    def notes(self, place: str, offset: int) -> Iterator[str]:
        """What was counted only, in sentences.

        Args:
            place: As `LineUsage` has it.
            offset: What to add to line numbers.
        """
        for group in (self._rest, *(self._loops or ())):
            if group.measures:  # what is not complete there has another reason
                continue
            if group.given_up:
                every = [lineno + offset for lineno, (_, other) in self._rows.items() if other is group]
                yield (
                    f"{_which(every, place)} ran over {COUNTED:,} times in all: after that they are not"
                    " counted, and their hits are more than shown"
                )
            lines = [
                lineno + offset
                for lineno, (row, other) in self._rows.items()
                if other is group and not row.complete
            ]
            if not lines:
                continue
            whose = f"line {group.first + offset}" if group.header else "the lines that run them"
            which = _which(lines, place)
            its = "its" if len(lines) == 1 else "their"
            yield (
                f"{which}: measured until {MEASURED:,} lines had run there, from then on {its} memory is"
                f" added up in {whose}"
            )


def _which(lines: Sequence[int], place: str) -> str:
    first, last = min(lines), max(lines)
    which = f"lines {first}-{last}" if last > first else f"line {first}"
    return f"{which} of {place}" if place else which


_LOOPS = (ast.For, ast.While, ast.AsyncFor)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _outermost_loops(filename: str, name: str, first: int, function: bool) -> list[tuple[int, int]]:
    """First and last line of the loops of a code object that stand in no other loop of it.

    None are found without source, nor in a lambda or an expression.
    """
    source = "".join(linecache.getlines(filename))
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        tree = compile(source, filename, "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    scope: ast.AST | None = None if function else tree
    for node in ast.walk(tree):
        if isinstance(node, _SCOPES) and node.name == name:
            starts = (node.lineno, *(decorator.lineno for decorator in node.decorator_list))
            if min(starts) == first:
                scope = node
    found, waiting = [], list(ast.iter_child_nodes(scope)) if scope is not None else []
    while waiting:
        node = waiting.pop()
        if isinstance(node, _LOOPS):
            found.append((node.lineno, node.end_lineno or node.lineno))
        elif not isinstance(node, (*_SCOPES, ast.Lambda)):
            waiting.extend(ast.iter_child_nodes(node))
    return found
