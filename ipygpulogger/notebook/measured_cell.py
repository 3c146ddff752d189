"""One cell that is being measured, from begin to end, and the time between it and the cell before.

A Ctrl-C may come between any two steps. So each end may be called again, and does what is left to do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..engine.machine import importing, machine
from ..engine.scope import Scope
from ..records import CPU, DRIVER, CellRecord, DeviceHolding, Measurement, moved_between
from ..records.units import MB, rounded_mb
from ..render.headline import headline
from ..runtime.clock import this_thread
from ..runtime.errors import is_from_a_handler
from ..runtime.shell import cells_behind
from ..sources import Unavailable

if TYPE_CHECKING:
    from ..breakdown.recording import PeakRecording
    from ..owners.garbage import Freed, Garbage
    from ..owners.growth import Before, Growth
    from ..owners.out_of_memory import OomSnapshot
    from ..records import Sizes
    from ..storage.history import History
    from .cell import Cell
    from .cell_lines import CellLines
    from .live import LiveCell


_OF_THE_CELL = "execution_count", "cell_id", "source", "status", "error"


class Gap:
    """The time from the end of a cell, and of our work after it, to the beginning of the next.

    Memory that changes meanwhile is attributed to no cell: that of garbage collections, of other threads, and
    of code that a front end executes silently. What our own hooks allocate is excluded.
    """

    def __init__(self, after: Scope | None = None) -> None:
        """Begin now, after the scope of a cell that ran alone."""
        self._pid = os.getpid()
        self._own_bytes = self._context_bytes = 0  # taken by our hooks, and by the context among that
        self._context_on: int | None = None  # index of the device on which we created a context
        self._ended = None if after is None else after.held(after=True)
        if self._ended is not None:
            self._ended[CPU] = DeviceHolding(CPU, self._resident_bytes())

    @contextmanager
    def own_work(self) -> Iterator[None]:
        """Exclude the resident memory that is taken within."""
        before_bytes = self._resident_bytes()
        try:
            yield
        finally:
            self._own_bytes += self._resident_bytes() - before_bytes

    def preload(self) -> None:
        """Create the GPU context if the user has imported its framework and uses no device so far."""
        on = machine()
        if not on.frameworks.can_preload():
            return
        index, before_bytes = on.frameworks.current_index(), self._own_bytes
        with self.own_work():
            on.settling.preload()
        if index is None:
            self._context_on = on.frameworks.current_index()
            self._context_bytes = self._own_bytes - before_bytes

    def told(self, scope: Scope, before_bytes: int) -> tuple[Sizes, tuple[str, ...]]:
        """Return what was allocated or freed before a cell, by device; it began with so much resident.

        And a note about a context that we created before it, if we did.
        """
        if self._ended is None or self._pid != os.getpid():  # in a forked child: the parent's cell
            return (), self._notes(scope)
        began = {CPU: DeviceHolding(CPU, before_bytes - scope.ours_before_bytes - self._own_bytes)}
        for key, held in scope.held().items():
            began[key] = held._replace(outside_bytes=None) if self._has_our_context(held) else held
        precision_bytes = machine().ram.counter.current_precision_bytes
        return moved_between(self._ended, began, 2 * precision_bytes), self._notes(scope)

    def _notes(self, scope: Scope) -> tuple[str, ...]:
        if self._context_on is None:
            return ()
        ours = [(one.name, one.outside_bytes) for one in scope.held().values() if self._has_our_context(one)]
        sizes = [f"{rounded_mb(size_bytes)} MB ({name})" for name, size_bytes in ours if size_bytes]
        sizes += [f"{rounded_mb(self._context_bytes)} MB of RAM"] if self._context_bytes >= MB else []
        return (f"before this cell: + context {', '.join(sizes)}",) if sizes else ()

    def _has_our_context(self, held: DeviceHolding) -> bool:
        backend, _, index = held.name.partition(":")
        return backend != DRIVER and index == str(self._context_on)

    def _resident_bytes(self) -> int:
        """Return the resident memory without what late imports of ours took."""
        on = machine()
        try:
            return on.resident_bytes() - on.own_imports.bytes
        except (OSError, Unavailable):  # no file descriptors left, for example: then the gap is unknown
            self._ended = None
            return 0


@dataclass(eq=False, repr=False)
class MeasuredCell:
    """One running cell, what measures it from `begin` on, and what its record's enrichers need."""

    cell: Cell
    scope: Scope
    growth: Growth  # finds out which names account for what it consumes
    history: History  # of the cells before it
    garbage: Garbage | None = None  # decides what to collect; None where `gc_collect` is another than True
    clear_cache: bool = True  # after a collection
    gap: Gap | None = None  # the time before it; None where another cell ran then
    before: Before | None = None  # which names held memory as it began, where that is known
    live: LiveCell | None = None
    lines: CellLines | None = None
    recording: PeakRecording | None = None
    publisher: Any = None  # displays its report
    budget: str | None = None  # the option, as the cell ends
    freed: Freed | None = None  # by a full collection after it, if there was one
    oom: OomSnapshot | None = None  # the memory as an out-of-memory error left it, if that ended the cell
    reported: bool = False  # it has its record
    over: bool = False  # everything of it has ended

    _ended: bool = field(default=False, init=False)
    _ours_before_s: float = field(default=0.0, init=False)  # what our work had taken of it when it began

    def begin(self) -> None:
        """Begin to measure the cell; its clock starts last."""
        if self.live is not None:
            self.live.begin()
        if self.lines is not None:
            self.lines.start()
        if self.recording is not None:
            self.recording.begin()
        self.scope.open()
        # What tracing cost before the clock started is not in the cell's time.
        self._ours_before_s = this_thread.overhead_s

    def end(self) -> None:
        """Stop the clock and read the peaks, because the cell's code has ended."""
        # First: what tracing costs after the clock stopped is not in it either.
        ours_s = this_thread.overhead_s - self._ours_before_s
        self.scope.close()
        if not self._ended:
            self._ended = True
            self.scope.time_s = max(0.0, self.scope.time_s - ours_s)
        if self.lines is not None:
            self.lines.stop()
        for part in self.live, self.recording:
            if part is not None:
                part.end()

    def settle(self) -> None:
        """Collect garbage after the cell, if nothing else decides on that."""
        if self.garbage is not None:
            self.freed = self.garbage.settle(self.scope.time_s, starved=self.oom is not None)

    def examine(self, shell: Any) -> None:
        """Examine the memory as an out-of-memory error left it, before memory is settled."""
        with importing():
            from ..owners.referents import out_of_memory_in, ram_error_in
        error = self.cell.exception
        if (out_of_memory_in(error) or ram_error_in(error)) is not None:
            with importing():  # 10 ms, which few cells need
                from ..owners.out_of_memory import oom_snapshot
            self.oom = oom_snapshot(error, shell, machine().frameworks.imported())

    def record(self) -> CellRecord:
        """Return the figures of the cell, which has ended, as they are now."""
        cell = self.cell
        known: dict[str, Any] = {name: getattr(cell, name) for name in _OF_THE_CELL}
        known["current_gpu"] = machine().frameworks.current_index()
        known["gpulog_only"] = cell.gpulog_only and not cell.measures
        known["main_line"] = "" if cell.main_line == cell.source else cell.main_line
        return self.scope.result(CellRecord, cell.request.label or cell.label, **known)

    def drop(self) -> None:
        """End everything that has not ended yet; raise at last what kept a part from ending."""
        if self.over:
            return
        failure = None
        recording = () if self.recording is None else (self.recording.drop,)
        lines = () if self.lines is None else (self.lines.stop,)
        for end in (*recording, *lines, self.scope.close):
            try:
                end()
            except Exception as error:  # it would fail again
                if is_from_a_handler(error):
                    raise
                failure = error
        if self.live is not None:
            self.live.drop()
        self.before = self.oom = self.gap = None
        self.over = True  # last: if this is interrupted, the next call ends it
        if failure is not None:
            raise failure


def measured_statement(shell: Any, statement: str, *, reset_peaks: bool) -> str:
    """Run a statement of the user's as a cell does, without its value, and return what it used."""
    __tracebackhide__ = True
    text, count = shell.transform_cell(statement), shell.execution_count
    number = next((one for _, one in cells_behind(sys._getframe()) if one is not None), count)
    file = shell.compile.cache(text, number)  # so that a traceback shows the line
    code = shell.compile(shell.transform_ast(shell.compile.ast_parse(text, file)), file, "exec")
    scope = Scope(reset_peaks=reset_peaks).open()
    try:
        exec(code, shell.user_global_ns, shell.user_ns)  # noqa: S102
    finally:
        scope.close()
    return " · ".join(map(str, headline(scope.result(Measurement, ""))))
