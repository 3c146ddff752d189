"""One cell that is being measured, with its scope, live display, lines and recording, from begin to end.

A Ctrl-C may come between any two steps. So each end may be called again, and does what is left to do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..engine.machine import importing, machine
from ..owners.exceptions import failed_for_ram, out_of_memory_in
from ..records import CellRecord
from ..runtime.clock import this_thread
from ..runtime.errors import is_from_a_handler
from .cell import is_gpulog_only

if TYPE_CHECKING:
    from ..breakdown.recording import PeakRecording
    from ..engine.scope import Scope
    from ..owners.garbage import Freed, Garbage
    from ..owners.growth import Before, Growth
    from ..owners.oom_snapshot import OomSnapshot
    from ..sources.system.ram_limit import MemoryLimit
    from ..storage.history import History
    from .between_cells import Gap
    from .cell import Cell, Request
    from .cell_lines import CellLines
    from .live import LiveCell


@dataclass(eq=False)
class MeasuredCell:
    """One running cell, what measures it from `begin` on, and what its record's enrichers need."""

    cell: Cell
    request: Request  # the options that the cell itself gives
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
    within: bool = False  # the report of a cell around it has its figures as well
    publisher: Any = None  # displays its report
    advised: dict[str, dict[str, int | None]] = field(default_factory=dict)  # see `owners.oom_advice`
    budget: str | None = None  # the option, as the cell ends
    freed: Freed | None = None  # by a full collection after it, if there was one
    oom: OomSnapshot | None = None  # the memory as an out-of-memory error left it, if that ended the cell
    refused: MemoryLimit | None = None  # the limit of RAM that made an allocation fail, if that ended it
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
        self._ours_before_s = self.cell.hooks_s + this_thread.overhead.s

    def end(self) -> None:
        """Stop the clock and read the peaks, because the cell's code has ended."""
        # First: what tracing costs after the clock stopped is not in it either.
        ours_s = self.cell.hooks_s + this_thread.overhead.s - self._ours_before_s
        self.scope.close()
        if not self._ended:
            self._ended = True
            self.scope.time_s = max(0.0, self.scope.time_s - ours_s)
        if self.lines is not None:
            self.lines.stop()
        if self.live is not None:
            self.live.end()
        if self.recording is not None:
            self.recording.end()

    def settle(self) -> None:
        """Collect garbage after the cell, if nothing else decides on that."""
        if self.garbage is not None:
            self.freed = self.garbage.settle(self.scope.time_s, starved=self.oom is not None)

    def examine(self, shell: Any) -> None:
        """Examine the memory as an out-of-memory error left it, before memory is settled."""
        error = self.cell.exception
        if out_of_memory_in(error) is not None:
            with importing():  # 10 ms, which few cells need
                from ..owners.oom_snapshot import oom_snapshot
            self.oom = oom_snapshot(error, shell, machine().frameworks.imported())
        elif failed_for_ram(error):
            self.refused = machine().limits.refusing()

    def record(self) -> CellRecord:
        """Return the figures of the cell, which has ended, as they are now."""
        cell = self.cell
        return self.scope.result(
            CellRecord,
            self.request.label or cell.label,
            execution_count=cell.execution_count,
            cell_id=cell.cell_id,
            source=cell.source,
            status=cell.status,
            error=cell.error,
            current_gpu=machine().frameworks.current_index(),
            gpulog_only=is_gpulog_only(cell.raw),
        )

    def drop(self) -> None:
        """End everything that has not ended yet.

        Raises:
            Exception: The lines or the scope could not be ended, and never will be; everything else is.
        """
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
