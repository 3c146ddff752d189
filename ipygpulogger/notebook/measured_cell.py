"""One cell that is being measured, with its scope, live display and lines, from its beginning to its end.

::

    begin     the live display, the tracing of lines, and the scope, which starts the clock last
    end       the clock stops, the peaks are read, lines and display end
    settle    garbage is collected, as far as that is worth its time
    examine   only if an exception ended the cell: the memory as an out-of-memory error left it
    finish    the record is made and reported       } the two ways
    drop      everything ends without a record      } to end

A Ctrl-C may come between any two steps. So each end may be called again: it does what is left to do, and no
record is reported twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..engine.machine import importing, machine
from ..lines.spent import spent
from ..owners.oom_error import failed_for_ram, out_of_memory_in
from ..records import CellRecord
from ..runtime.errors import why
from ..runtime.signals import is_from_a_handler
from .cell_options import is_gpulog_only

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..engine.scope import Scope
    from ..owners.growth import Before, Growth
    from ..owners.oom_autopsy import Autopsy
    from ..owners.uncollected import Mark, Uncollected
    from ..records import LineUsage
    from ..sources.ram_limit import Room
    from .between_cells import Gap
    from .cell import Cell
    from .cell_lines import CellLines
    from .cell_options import Request
    from .live import LiveCell
    from .report import Reporter


@dataclass(eq=False)
class MeasuredCell:
    """One running cell and its measurement; nothing is measured, traced or shown before `begin`.

    Attributes:
        cell: What IPython says about it.
        request: The options that the cell itself gives.
        scope: What measures it.
        growth: Finds out which names account for what it consumes.
        reporter: Warns if an explanation fails.
        uncollected: Decides which garbage to collect; None where `gc_collect` is another than True.
        clear_cache: Whether the frameworks' caches are emptied after a collection.
        gap: The time before it; None where another cell ran then.
        live: Its display while it runs; None where it is not shown.
        lines: What measures its lines; None where they are not measured.
        refused: The limit of RAM that made an allocation fail, if that ended the cell.
        over: Whether it was finished or dropped, and everything of it has ended.
        within: Whether the report of another cell, in which this one is nested, has its figures as well.
        publisher: IPython's, that displays its report.
    """

    cell: Cell
    request: Request
    scope: Scope
    growth: Growth
    reporter: Reporter
    uncollected: Uncollected | None = None
    clear_cache: bool = True
    gap: Gap | None = None
    live: LiveCell | None = None
    lines: CellLines | None = None
    refused: Room | None = None
    over: bool = False
    within: bool = False
    publisher: Any = None

    _before: Before | None = field(default=None, init=False)  # what the growth of names starts from
    _autopsy: Autopsy | None = field(default=None, init=False)
    _ours_before_s: float = field(default=0.0, init=False)  # what our work had taken of it when it began
    _mark: Mark | None = field(default=None, init=False)  # of garbage, when it began
    _may_leave_garbage: bool = field(default=False, init=False)
    _ended: bool = field(default=False, init=False)
    _told: bool = field(default=False, init=False)

    def begin(self) -> None:
        """Begin to measure the cell."""
        with self.reporter.explaining():
            # The cell that only loads the extension has no report: it does not wait for the first walk.
            if self.growth.has_walked or not is_gpulog_only(self.cell.raw):
                self._before = self.growth.begin()
        self._ours_before_s = self._ours_s()
        if self.live is not None:
            self.live.begin()
        if self.lines is not None:
            self.lines.start()
        if self.uncollected is not None:
            self._mark = self.uncollected.mark()
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

    def settle(self) -> None:
        """Collect garbage after the cell, if nothing else decides on that."""
        if self.uncollected is not None and self._mark is not None:
            self._may_leave_garbage = self.uncollected.settle(self.scope.time_s, self._mark)

    def examine(self, shell: Any) -> None:
        """Examine the memory as an out-of-memory error left it, before memory is settled."""
        try:
            if out_of_memory_in(self.cell.exception) is None:
                if failed_for_ram(self.cell.exception):
                    self.refused = machine().limits.refusing()
                return
            with importing():  # 10 ms, which few cells need
                from ..owners.oom_examine import examine
            self._autopsy = examine(self.cell.exception, shell, machine().frameworks.imported())
        except Exception as error:  # the cell's numbers are worth more than their explanation
            self.reporter.warn_once(f"ipygpulogger could not explain an error: {why(error)}")

    def finish(self, tell: Callable[[CellRecord, MeasuredCell], None], *, collected: bool) -> None:
        """Make the record, report it, and end.

        Args:
            tell: Takes the record; the live display has gone by then.
            collected: Whether garbage was collected before the record's snapshots.
        """
        if not (self.over or self._told):
            record = self._record(collected=collected)
            if self.uncollected is not None:
                with self.reporter.explaining("what waits for the garbage collector"):
                    record = self._settled(record, self.uncollected)
            self._told = True
            if self.live is not None:
                self.live.drop()
            tell(record, self)
        self.drop()

    def drop(self) -> None:
        """End everything that has not ended yet.

        Raises:
            Exception: The lines or the scope could not be ended, and never will be; everything else is.
        """
        if self.over:
            return
        failure = None
        for end in (self.scope.close,) if self.lines is None else (self.lines.stop, self.scope.close):
            try:
                end()
            except Exception as error:  # it would fail again
                if is_from_a_handler(error):
                    raise
                failure = error
        if self.live is not None:
            self.live.drop()
        self._before = self._autopsy = self.gap = None
        self.over = True  # last: if this is interrupted, the next call ends it
        if failure is not None:
            raise failure

    def indented(self, lines: Iterable[LineUsage]) -> list[LineUsage]:
        """Return these lines of the cell, each indented as in its own text."""
        return [] if self.lines is None else self.lines.indented(lines)

    def _settled(self, record: CellRecord, uncollected: Uncollected) -> CellRecord:
        """Return the record as it is once garbage of the cell's own is collected, if there may be some."""
        before, mark = self._before, self._mark
        if self._may_leave_garbage and before is not None and mark is not None:
            self._may_leave_garbage = False
            if uncollected.settle_unexplained(record, before.snapshot, mark):
                if self.clear_cache:
                    machine().settling.empty_caches()
                again = self._record(collected=True)
                notes = dict.fromkeys((*record.notes, *again.notes))
                record = replace(again, notes=tuple(notes))
        return replace(record, notes=(*record.notes, *uncollected.notes()))

    def _record(self, *, collected: bool) -> CellRecord:
        cell, scope = self.cell, self.scope
        record = scope.result(
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
        if self.gap is not None:
            between, notes = self.gap.moved(scope, record.gen.before_bytes), self.gap.notes(scope)
            if between or notes:
                record = replace(record, between=between, notes=(*notes, *record.notes))
        if self._autopsy is not None:
            late = () if self._autopsy.complete else ("There was no time to find all who hold memory.",)
            verdict = self._autopsy.verdict(record.gpus)
            record = replace(record, out_of_memory=verdict, notes=(*record.notes, *late))
        if self.lines is not None:
            with self.reporter.explaining("what each line used"):
                lines = self.lines.result()
                record = replace(record, lines=lines, notes=(*record.notes, *self.lines.notes))
        with self.reporter.explaining():
            return self.growth.end(self._before, record, collected=collected)
        return record  # without what failed

    def _ours_s(self) -> float:
        """Return how much of the cell's time so far went into our hooks of nested cells and our tracing."""
        return self.cell.hooks_s + spent().s
