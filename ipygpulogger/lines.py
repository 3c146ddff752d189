"""What each line of some code used: hits, time, RAM, each GPU; the same as a scope, per line.

A line lasts from its beginning until the next line of the same frame begins, or the frame ends or yields;
the lines of functions that it calls are open meanwhile, so its figures contain theirs. At each such
boundary every counter is read once, and what it says of the time since the boundary before is folded into
the lines open then.

That costs some 50 us. So a loop that runs many lines, and a function that is called many times, are measured
for a while and then only counted; the memory of such a loop is then added up in its header.
"""

from __future__ import annotations

import ast
import linecache
import math
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from . import tracing
from .machine import machine
from .records import DeviceUsage, LineUsage, Peak, Usage
from .sources import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType

    from .devicewatch import DeviceWatch
    from .machine import Machine
    from .peaks import Interval, Lap, PeakOwner
    from .sources import Device

MEASURED = 4_000  # boundaries in one loop, or in one function outside its loops, before they are only counted
COUNTED = 2_000_000  # beginnings of lines there, before they are not even counted
_LOOPS_FROM = MEASURED // 4  # boundaries in one code object before its loops are looked for

_CO_SUSPENDS = 0x20 | 0x200  # generators and asynchronous ones: what happens while they rest is not theirs
_CO_OPTIMIZED = 0x1  # a function's
_INLINE = frozenset(("<lambda>", "<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>"))


class _Gauge:
    """One counter: RAM, or an allocator on a device."""

    __slots__ = ("current_bytes", "device", "interval", "owner", "precision_bytes")

    def __init__(self, owner: PeakOwner, interval: Interval, device: Device | None) -> None:
        self.owner, self.interval, self.device = owner, interval, device
        self.current_bytes = interval.before_bytes()
        self.precision_bytes = owner.counter.precision_bytes


class _Sum:
    """One counter in one line: over its visits so far, and over the one that is open."""

    __slots__ = ("before_bytes", "consumed_bytes", "first_bytes", "hi", "lo", "peaked_hi", "peaked_lo")

    def __init__(self, first_bytes: int) -> None:
        self.first_bytes = first_bytes
        self.consumed_bytes = self.peaked_lo = 0
        self.peaked_hi: float = 0  # infinite where nothing bounds it
        self.begin(first_bytes)

    def begin(self, now_bytes: int) -> None:
        self.before_bytes = self.lo = now_bytes
        self.hi: float = now_bytes

    def end(self, now_bytes: int) -> None:
        ends_bytes = max(self.before_bytes, now_bytes)
        self.consumed_bytes += now_bytes - self.before_bytes
        self.peaked_lo = max(self.peaked_lo, self.lo - ends_bytes)
        self.peaked_hi = max(self.peaked_hi, self.hi - ends_bytes)

    def peak(self, precision_bytes: int, *, complete: bool) -> Peak:
        ends_bytes = max(self.first_bytes, self.first_bytes + self.consumed_bytes)
        lo_bytes = ends_bytes + self.peaked_lo
        if not complete or math.isinf(self.peaked_hi):
            return Peak(lo_bytes, None, "sampled", precision_bytes)
        hi_bytes = ends_bytes + max(self.peaked_lo, int(self.peaked_hi))
        exact = hi_bytes - lo_bytes <= precision_bytes
        return Peak(lo_bytes, hi_bytes, "exact" if exact else "bounded", precision_bytes)


class _Row:
    """One line of one file."""

    __slots__ = ("complete", "hits", "holders", "running", "since_s", "sums", "time_s")

    def __init__(self) -> None:
        self.hits = self.running = self.holders = 0
        self.time_s = self.since_s = 0.0
        self.complete = True
        self.sums: list[_Sum] = []

    def start(self, now_s: float) -> None:
        """A visit of it begins, or goes on."""
        if not self.running:
            self.since_s = now_s
        self.running += 1

    def rest(self, now_s: float) -> None:
        """A visit ends, or is suspended."""
        self.running -= 1
        if not self.running:
            self.time_s += max(0.0, now_s - self.since_s)


class _Group:
    """Lines of one code object that are measured or counted together: its outermost loop, or the rest.

    Attributes:
        header: The loop's own line, which holds its memory once the lines are only counted.
    """

    __slots__ = ("beginnings", "boundaries", "first", "given_up", "header", "last", "measures")

    def __init__(self, first: int = 0, last: int = 0, header: _Row | None = None) -> None:
        self.first, self.last, self.header = first, last, header
        self.measures, self.given_up = True, False
        self.boundaries = self.beginnings = 0


class _Visit:
    """One frame: the line it is at, and what that holds open."""

    __slots__ = ("held", "offset", "row", "suspended")

    def __init__(self) -> None:
        self.row: _Row | None = None  # the line it is at
        self.held: _Row | None = None  # whose memory is measured for it: that line, or its loop's header
        self.offset = -1  # where in the bytecode the line began
        self.suspended = False


class _Code:
    """One code object that is measured: a `tracing.Follower`."""

    def __init__(self, lines: Lines, code: CodeType) -> None:
        self._lines = lines
        self.filename, self.name, self._first = code.co_filename, code.co_name, code.co_firstlineno
        self._rests = bool(code.co_flags & _CO_SUSPENDS)
        self._inline = code.co_name in _INLINE
        self._function = bool(code.co_flags & _CO_OPTIMIZED)
        self.visits: dict[int, _Visit] = {}
        self.rest = _Group()
        self.loops: list[_Group] | None = None  # None: not looked for yet
        self._rows: dict[int, tuple[_Row, _Group]] = {}

    # -- what Python tells ---------------------------------------------------------------------

    def line(self, frame: FrameType, lineno: int, now_s: float) -> bool:
        visit = self.visits.get(id(frame))
        if visit is None or visit.suspended:  # suspended, and not resumed: another frame that has its id
            visit = self.visits[id(frame)] = _Visit()
        found = self._rows.get(lineno)
        row, group = found or self._found(lineno)
        old, offset = visit.row, frame.f_lasti
        if old is row and offset > visit.offset:
            return False
        visit.offset = offset
        if not self._inline or not row.running:
            row.hits += 1
        if old is not row:
            if old is not None:
                old.rest(now_s)
            visit.row = row
            row.start(now_s)
        group.beginnings += 1
        if group.measures:
            self._count(group)
            self._lines.hold(visit, row if group.measures else self._header(group), again=True)
        else:
            row.complete = False
            header = self._header(group)
            if visit.held is not header:
                self._count(group)
                self._lines.hold(visit, self._header(group))
            if group.beginnings > COUNTED:
                return self._give_up(visit, group, now_s)
        return False

    def resumed(self, frame: FrameType, now_s: float) -> None:
        visit = self.visits.get(id(frame))
        if visit is not None and not visit.suspended:
            return  # a coroutine, whose line stayed open; or an exception is thrown into it
        lineno = frame.f_lineno
        if lineno is None:
            return
        if visit is None:
            visit = self.visits[id(frame)] = _Visit()
            visit.offset = frame.f_lasti
        visit.suspended = False
        row, group = self._rows.get(lineno) or self._found(lineno)
        visit.row = row
        row.start(now_s)
        if group.measures:
            self._count(group)
            self._lines.hold(visit, row if group.measures else self._header(group))
        else:
            row.complete = False
            if not self._rests and (header := self._header(group)):
                self._lines.hold(visit, header)

    def suspended(self, frame: FrameType, now_s: float) -> None:
        visit = self.visits.get(id(frame))
        if visit is None or visit.suspended:
            return
        self._end(visit, now_s)
        visit.suspended = True

    def over(self, frame: FrameType, now_s: float) -> None:
        visit = self.visits.get(id(frame))
        if visit is not None:
            self._end(visit, now_s)
            self.visits.pop(id(frame), None)

    def repair(self) -> None:
        self._lines.repair()

    # ------------------------------------------------------------------------------------------

    def _end(self, visit: _Visit, now_s: float) -> None:
        row, visit.row = visit.row, None
        if row is not None:
            row.rest(now_s)
        if visit.held is not None:
            self._lines.hold(visit, None)

    def _found(self, lineno: int) -> tuple[_Row, _Group]:
        row = self._lines.row(self.filename, lineno)
        found = self._rows[lineno] = row, self._group(lineno)
        return found

    def _group(self, lineno: int) -> _Group:
        loops = self.loops or ()
        return next((group for group in loops if group.first <= lineno <= group.last), self.rest)

    def _header(self, group: _Group) -> _Row | None:
        """Who holds the memory of lines that are only counted; None: the lines that called them."""
        return None if self._rests or group.boundaries > 2 * MEASURED else group.header

    def _count(self, group: _Group) -> None:
        """One more boundary; those of a loop are counted apart once there are so many that it matters."""
        group.boundaries += 1
        if self.loops is None and group.boundaries >= _LOOPS_FROM:
            self.loops = [
                _Group(first, last, self._lines.row(self.filename, first))
                for first, last in _outermost_loops(self.filename, self.name, self._first, self._function)
            ]
            self._rows = {lineno: (row, self._group(lineno)) for lineno, (row, _) in self._rows.items()}
        elif group.boundaries == MEASURED:
            group.measures = False

    def _give_up(self, visit: _Visit, group: _Group, now_s: float) -> bool:
        """Not even counted any more; a loop's time goes to its header until the frame leaves it."""
        group.given_up = True
        row, visit.row = visit.row, group.header
        if row is not None:
            row.rest(now_s)
        if group.header is not None:
            group.header.start(now_s)
        return True

    def notes(self, place: str = "", above: int = 0) -> Iterator[str]:
        """What was only counted, in sentences; with so many lines of the place above the file's."""
        for group in (self.rest, *(self.loops or ())):
            if group.measures:
                continue
            lines = sorted(lineno + above for lineno, (_, other) in self._rows.items() if other is group)
            which = f"line {lines[0]}" if len(lines) == 1 else f"lines {lines[0]}-{lines[-1]}"
            where = f"{which} of {place}" if place else which
            whose = f"line {group.first + above}" if self._header(group) is not None else "the lines that ran them"
            yield (
                f"{where} ran more than {MEASURED:,} times: from there on their memory is added up in {whose}"
            )
            if group.given_up:
                yield f"{where} ran more than {COUNTED:,} times: from there on they are not counted"


class Lines:
    """Measures lines from `start` to `stop`."""

    def __init__(
        self,
        wants: Callable[[FrameType], bool],
        *,
        on: Machine | None = None,
        reset_peaks: bool = True,
    ) -> None:
        """Prepare; nothing is measured before `start`.

        Args:
            wants: Asked once for each code object, when it first runs: is it to be measured?
            on: The machine; by default the process's own.
            reset_peaks: Reset the kernel's peak counter.
        """
        self._wants, self._reset_peaks = wants, reset_peaks
        self._machine = on or machine()
        self._names = tuple(framework.name for framework in self._machine.frameworks)
        self._lock = threading.RLock()
        self._spent, self._spent_before_s, self._overhead_s = tracing.Spent(), 0.0, 0.0
        self._codes: list[_Code] = []
        self._rows: dict[tuple[str, int], _Row] = {}
        self._gauges: list[_Gauge] = []
        self._late: deque[_Gauge] = deque()
        self._open: set[_Row] = set()
        self._notes: list[str] = []
        self._running = False

    def start(self) -> None:
        """Measure from here on. Lines that run already are open from here, and have no hit for that.

        Start it before the clock of what is measured; never raises: what is not possible becomes a note.
        """
        if self._running:
            return
        self._running = True
        self._spent = tracing.spent()
        self._spent_before_s = self._spent.s
        try:
            on = self._machine
            on.enter(self)
            self._add(_Gauge(on.ram, on.ram.open(reset=self._reset_peaks), None))
            for device, owners in on.devices():
                for owner in owners:
                    try:
                        self._add(_Gauge(owner, owner.open(), device))
                    except Unavailable as reason:
                        self.lost(str(reason))
            why_not = tracing.listen(self)
        except Exception as error:
            why_not = f"lines are not measured: {error}"
        if why_not is not None:
            self.lost(why_not)
            self.stop()

    def stop(self) -> None:
        """Measure no more; nothing of it remains in the process. Stopping again changes nothing."""
        if not self._running:
            return
        self._running = False
        self._overhead_s = self._spent.s - self._spent_before_s
        tracing.ignore(self)
        now_s = tracing.now_s()
        with self._lock:
            self._lap()
            for code in self._codes:
                for visit in code.visits.values():
                    if visit.row is not None:
                        visit.row.rest(now_s)
                        visit.row = None
                code.visits.clear()
            for row in tuple(self._open):
                self._close(row)
        for gauge in self._gauges:
            try:
                gauge.owner.close(gauge.interval)
            except Unavailable as reason:
                self.lost(str(reason))
        self._machine.leave(self)

    @property
    def overhead_s(self) -> float:
        """What tracing cost the thread that started it so far, `start` and `stop` themselves left out."""
        return self._spent.s - self._spent_before_s if self._running else self._overhead_s

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not measured as it should be, and why, in plain sentences; lines as files count them."""
        return self.notes_at(lambda _: ("", 0))

    def notes_at(self, place_of: Callable[[str], tuple[str, int]]) -> tuple[str, ...]:
        """The same with places and line numbers as `result` has them."""
        counted = (note for code in self._codes for note in code.notes(*place_of(code.filename)))
        return (*self._notes, *counted)

    def result(self, place_of: Callable[[str], tuple[str, int]]) -> tuple[LineUsage, ...]:
        """What each line used that ran since `start`, by place and number, the cell's own lines first.

        Args:
            place_of: For a file's name, the place as `LineUsage` has it, and what to add to its line numbers.
        """
        places = {filename: place_of(filename) for filename, _ in self._rows}
        found = []
        with self._lock:
            for (filename, lineno), row in self._rows.items():
                if not row.hits and not row.sums:
                    continue
                place, offset = places[filename]
                found.append(
                    LineUsage(
                        lineno + offset,
                        linecache.getline(filename, lineno).strip(),
                        row.hits,
                        row.time_s,
                        self._gen(row),
                        self._gpus(row),
                        place,
                        row.complete,
                    )
                )
        return tuple(sorted(found, key=lambda line: (line.place, line.lineno)))

    # -- what tracing asks ---------------------------------------------------------------------

    def follow(self, frame: FrameType) -> _Code | None:
        """Whether this code is to be measured."""
        if not self._wants(frame):
            return None
        code = _Code(self, frame.f_code)
        self._codes.append(code)
        return code

    def lost(self, sentence: str) -> None:
        """Something is not measured."""
        if sentence not in self._notes:
            self._notes.append(sentence)

    # -- what the machine asks of whoever measures ------------------------------------------------

    def adopt(self, owner: PeakOwner, device: Device, *, sure: bool) -> None:
        """A framework began to use a device: the lines open now began when it held nothing there.

        Args:
            owner: Of its peaks there.
            device: The device.
            sure: The user cannot have reset the peaks unseen.
        """
        try:
            interval = owner.adopt(sure=sure)
        except Unavailable as reason:
            self.lost(str(reason))
        else:
            self._late.append(_Gauge(owner, interval, device))

    def adopt_pinned(self, owner: PeakOwner) -> None:
        """Pinned memory is not told by line."""

    def orphaned(self) -> bool:
        """Whoever started it stops it."""
        return False

    def close(self) -> None:
        """As `stop`."""
        self.stop()

    def watches(self) -> list[DeviceWatch]:
        """Lines need no sampler."""
        return []

    def sampled(self, resident_bytes: int) -> None:
        """Lines need no sampler."""

    def device_sampled(self, uuid: str, used_bytes: int, other_bytes: int | None) -> None:
        """Lines need no sampler."""

    # -- what the lines ask ----------------------------------------------------------------------

    def row(self, filename: str, lineno: int) -> _Row:
        """One line of one file."""
        row = self._rows.get((filename, lineno))
        if row is None:
            row = self._rows.setdefault((filename, lineno), _Row())
        return row

    def hold(self, visit: _Visit, row: _Row | None, *, again: bool = False) -> None:
        """A boundary: from here on the memory is that of another line for this visit.

        Args:
            visit: One frame.
            row: Who holds what it uses from here on.
            again: A new beginning even if that is the same line.
        """
        with self._lock:
            self._lap()
            held = visit.held
            if held is row and not again:
                return
            if held is not None:
                visit.held = None
                held.holders -= 1
                if not held.holders:
                    self._close(held)
            if row is not None:
                visit.held = row
                row.holders += 1
                if row.holders == 1:
                    self._begin(row)

    def repair(self) -> None:
        """An exception of a signal handler passed through us: count again who is open, for whom."""
        with self._lock:
            running: dict[_Row, int] = {}
            holders: dict[_Row, int] = {}
            for code in self._codes:
                for visit in tuple(code.visits.values()):
                    if visit.row is not None:
                        running[visit.row] = running.get(visit.row, 0) + 1
                    if visit.held is not None:
                        holders[visit.held] = holders.get(visit.held, 0) + 1
            for row in tuple(self._rows.values()):
                if row.running and row not in running:
                    row.running = 1
                    row.rest(tracing.now_s())
                elif row in running and not row.running:
                    row.since_s = tracing.now_s()
                row.running = running.get(row, 0)
                row.holders = holders.get(row, 0)
                if row in self._open and not row.holders:
                    self._close(row)
                elif row.holders and row not in self._open:
                    self._begin(row)
            for row in self._open:  # a lap may have been lost
                for one in row.sums:
                    one.hi = math.inf

    def _begin(self, row: _Row) -> None:
        self._open.add(row)
        for i, gauge in enumerate(self._gauges):
            if i < len(row.sums):
                row.sums[i].begin(gauge.current_bytes)
            else:
                row.sums.append(_Sum(gauge.current_bytes))

    def _close(self, row: _Row) -> None:
        self._open.discard(row)
        for gauge, one in zip(self._gauges, row.sums, strict=False):
            one.end(gauge.current_bytes)

    def _add(self, gauge: _Gauge) -> None:
        self._gauges.append(gauge)

    def _lap(self) -> None:
        """Read every counter, and fold what it was since the last time into the open lines."""
        if any(name in sys.modules for name in self._names):
            self._machine.discover()
        while self._late:
            gauge = self._late.popleft()
            gauge.current_bytes = 0
            for row in self._open:
                row.sums.append(_Sum(0))
            self._gauges.append(gauge)
        for i, gauge in enumerate(self._gauges):
            try:
                lap = gauge.owner.lap(gauge.interval, reset=self._reset_peaks or gauge.device is not None)[0]
            except Unavailable as reason:
                self.lost(str(reason))
                for row in self._open:
                    row.sums[i].hi = math.inf
                continue
            if lap.lo_bytes == lap.hi_bytes == gauge.current_bytes == lap.after_bytes:
                continue
            gauge.current_bytes = lap.after_bytes
            hi = math.inf if lap.hi_bytes is None else lap.hi_bytes
            for row in self._open:
                one = row.sums[i]
                one.lo = max(one.lo, lap.lo_bytes)
                one.hi = max(one.hi, hi)

    # -- what comes out --------------------------------------------------------------------------

    def _gen(self, row: _Row) -> Usage:
        gauge = self._gauges[0]
        one = row.sums[0] if row.sums else _Sum(gauge.current_bytes)
        peak = one.peak(gauge.precision_bytes, complete=row.complete)
        return Usage(one.first_bytes, one.first_bytes + one.consumed_bytes, peak)

    def _gpus(self, row: _Row) -> tuple[DeviceUsage, ...]:
        devices: dict[tuple[str, int], list[tuple[_Gauge, _Sum]]] = {}
        for gauge, one in zip(self._gauges, row.sums, strict=False):
            if gauge.device is not None:
                devices.setdefault(gauge.device.key, []).append((gauge, one))
        found = []
        for _, pairs in sorted(devices.items()):
            sums = [one for _, one in pairs]
            if not any(one.consumed_bytes or one.peaked_hi for one in sums):
                continue
            both = _Sum(sum(one.first_bytes for one in sums))
            both.consumed_bytes = sum(one.consumed_bytes for one in sums)
            both.peaked_lo = max(one.peaked_lo for one in sums)
            both.peaked_hi = sum(one.peaked_hi for one in sums)
            device = pairs[0][0].device
            assert device is not None
            found.append(
                DeviceUsage(
                    both.first_bytes,
                    both.first_bytes + both.consumed_bytes,
                    both.peak(sum(gauge.precision_bytes for gauge, _ in pairs), complete=row.complete),
                    index=device.index,
                    name=device.name,
                    uuid=device.uuid,
                    backend=device.backend,
                    unified=device.unified,
                    total_bytes=device.total_bytes,
                )
            )
        return tuple(found)


class _Lines(NamedTuple):
    """From the first line of a loop to its last."""

    first: int
    last: int


_LOOPS = (ast.For, ast.While, ast.AsyncFor)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _outermost_loops(filename: str, name: str, first: int, function: bool) -> list[_Lines]:
    """The loops of one code object that stand in no other loop of it; none where there is no source."""
    source = "".join(linecache.getlines(filename))
    try:
        flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        tree = compile(source, filename, "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    scope: ast.AST | None = None if function else tree
    for node in ast.walk(tree):
        if isinstance(node, _SCOPES) and node.name == name:
            starts = [node.lineno, *(decorator.lineno for decorator in node.decorator_list)]
            if min(starts) == first:
                scope = node
    found, waiting = [], list(ast.iter_child_nodes(scope)) if scope is not None else []
    while waiting:
        node = waiting.pop()
        if isinstance(node, _LOOPS):
            found.append(_Lines(node.lineno, node.end_lineno or node.lineno))
        elif not isinstance(node, (*_SCOPES, ast.Lambda)):
            waiting.extend(ast.iter_child_nodes(node))
    return found
