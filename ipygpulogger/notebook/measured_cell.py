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
    """One running cell, what measures it, and what its record's enrichers need.

    Nothing is measured, traced or shown before `begin`.

    Attributes:
        cell: What IPython says about it.
        request: The options that the cell itself gives.
        scope: What measures it.
        growth: Finds out which names account for what it consumes.
        history: The cells before it.
        garbage: Decides which garbage to collect; None where `gc_collect` is another than True.
        clear_cache: Whether the frameworks' caches are emptied after a collection.
        gap: The time before it; None where another cell ran then.
        before: Which names held memory as it began; None where that is unknown.
        live: Its display while it runs; None where it is not shown.
        lines: What measures its lines; None where they are not measured.
        recording: What records its allocations; None where they are not recorded.
        within: Whether the report of another cell, in which this one is nested, has its figures as well.
        publisher: IPython's, that displays its report.
        advised: By code, of the cells that ran out of memory and were advised to run again: see
            `owners.oom_advice`.
        budget: The option, as the cell ends.
        freed: What a full collection after it freed; None if there was none.
        oom: The memory as an out-of-memory error left it, if that ended the cell.
        refused: The limit of RAM that made an allocation fail, if that ended the cell.
        reported: Whether it has its record.
        over: Whether everything of it has ended.
    """

    cell: Cell
    request: Request
    scope: Scope
    growth: Growth
    history: History
    garbage: Garbage | None = None
    clear_cache: bool = True
    gap: Gap | None = None
    before: Before | None = None
    live: LiveCell | None = None
    lines: CellLines | None = None
    recording: PeakRecording | None = None
    within: bool = False
    publisher: Any = None
    advised: dict[str, dict[str, int | None]] = field(default_factory=dict)
    budget: str | None = None
    freed: Freed | None = None
    oom: OomSnapshot | None = None
    refused: MemoryLimit | None = None
    reported: bool = False
    over: bool = False

    _ended: bool = field(default=False, init=False)
    _ours_before_s: float = field(default=0.0, init=False)  # what our work had taken of it when it began

    def begin(self) -> None:
        """Begin to measure the cell; its clock starts last."""
        self._ours_before_s = self._ours_s()
        if self.live is not None:
            self.live.begin()
        if self.lines is not None:
            self.lines.start()
        if self.recording is not None:
            self.recording.begin()
        self.scope.open()
        self._ours_before_s = self._ours_s()  # again: what tracing cost before the clock started is not in it

    def end(self) -> None:
        """Stop the clock and read the peaks, because the cell's code has ended."""
        ours_s = self._ours_s() - self._ours_before_s  # first: nor is what it costs after the clock stopped
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

    def _ours_s(self) -> float:
        """Return how much of the cell's time so far went into our hooks of nested cells and our tracing."""
        return self.cell.hooks_s + this_thread.overhead.s
