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
from ..engine.scope import Scope
from ..lines.spent import spent
from ..owners.oom_error import failed_for_ram, out_of_memory_in
from ..records import CellRecord
from ..records.units import MB
from ..runtime.errors import why
from ..runtime.shell import current_shell
from ..runtime.signals import is_from_a_handler
from .cell_options import body_of, is_gpulog_only
from .live import place_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..breakdown.recording import PeakRecording
    from ..owners.growth import Before, Growth
    from ..owners.oom_again import RunAgain
    from ..owners.oom_autopsy import Autopsy
    from ..owners.uncollected import Mark, Uncollected
    from ..records import LineUsage
    from ..sources.ram_limit import Room
    from .between_cells import Gap
    from .cell import Cell
    from .cell_lines import CellLines
    from .cell_options import Request
    from .live import LiveCell
    from .logger import IPyGPULogger
    from .report import Reporter

_LITTLE_BYTES = 2 * MB  # of a cell that needed no more, the size of its data is not looked up


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
        recording: What records its allocations; None where they are not recorded.
        refused: The limit of RAM that made an allocation fail, if that ended the cell.
        over: Whether it was finished or dropped, and everything of it has ended.
        within: Whether the report of another cell, in which this one is nested, has its figures as well.
        publisher: IPython's, that displays its report.
        told_again: The cells that ran out of memory and were told to run again: see `owners.oom_again`.
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
    recording: PeakRecording | None = None
    refused: Room | None = None
    over: bool = False
    within: bool = False
    publisher: Any = None
    told_again: dict[str, dict[str, int | None]] = field(default_factory=dict)

    _before: Before | None = field(default=None, init=False)  # what the growth of names starts from
    _autopsy: Autopsy | None = field(default=None, init=False)
    _run_again: RunAgain | None = field(default=None, init=False)
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
        if self.uncollected is not None and self._mark is not None:
            starved = self._autopsy is not None
            self._may_leave_garbage = self.uncollected.settle(self.scope.time_s, self._mark, starved=starved)

    def examine(self, shell: Any) -> None:
        """Examine the memory as an out-of-memory error left it, before memory is settled."""
        try:
            if out_of_memory_in(self.cell.exception) is None:
                if failed_for_ram(self.cell.exception):
                    self.refused = machine().limits.refusing()
                return
            with importing():  # 10 ms, which few cells need
                from ..owners.oom_again import RunAgain
                from ..owners.oom_examine import examine
            self._run_again = RunAgain(body_of(self.cell.raw), self.told_again)
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
            record = self._with_dimensions(self._with_peak(record))
            self._told = True
            if self.told_again and record.status == "ok":
                self.told_again.pop(body_of(self.cell.raw), None)
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
        parts = [one.drop for one in (self.recording,) if one is not None]
        parts += [one.stop for one in (self.lines,) if one is not None]
        for end in (*parts, self.scope.close):
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
            verdict = self._autopsy.verdict(record.gpus, self._run_again)
            record = replace(record, out_of_memory=verdict, notes=(*record.notes, *late))
        if self.lines is not None:
            with self.reporter.explaining("what each line used"):
                lines = self.lines.result()
                record = replace(record, lines=lines, notes=(*record.notes, *self.lines.notes))
        with self.reporter.explaining():
            return self.growth.end(self._before, record, collected=collected)
        return record  # without what failed

    def _with_peak(self, record: CellRecord) -> CellRecord:
        """Return the record with what was alive at the cell's peak, if its allocations were recorded."""
        if self.recording is None:
            return record
        with self.reporter.explaining("what was alive at the peak"):
            record, card = self.recording.result(record), record.out_of_memory
            self.recording.keep_failure(self.cell.label, ended=card is not None)
            if card is not None:
                failed = {one.device: one.at_failure for one in self.recording.failures(record)}
                record = replace(record, out_of_memory=replace(card, alive=failed.get(card.device, ())))
        return record  # perhaps without what failed

    def _with_dimensions(self, record: CellRecord) -> CellRecord:
        """Return the record with how large the cell's data was, if it needed more than a little memory."""
        for usage in (record.gen, *record.gpus):
            if usage.peak.lo_bytes > usage.before_bytes + _LITTLE_BYTES:
                break
        else:
            return record
        with self.reporter.explaining("how large its data was"):
            with importing():
                from ..owners.dimensions import dimensions_of
                from ..owners.fingerprint import fingerprint
            shell = current_shell()
            found = dimensions_of(self.cell.raw, shell.user_ns, machine().frameworks.imported())
            code = fingerprint(body_of(self.cell.raw), dict(found)) if found else ""
            return replace(record, dimensions=found, code=code)
        return record  # without what failed

    def _ours_s(self) -> float:
        """Return how much of the cell's time so far went into our hooks of nested cells and our tracing."""
        return self.cell.hooks_s + spent().s


def prepared(logger: IPyGPULogger, cell: Cell, request: Request, gap: Gap | None) -> MeasuredCell:
    """Return the measurement of a cell, which has not begun.

    Args:
        logger: Whose options hold, and whose parts are used.
        cell: The cell.
        request: The options that the cell itself gives.
        gap: The time before it; None where another cell ran then.
    """
    scope = Scope(
        reset_peaks=logger.reset_peaks,
        all_devices=logger.devices == "all",
        metrics=logger.metrics,
    )
    return MeasuredCell(
        cell,
        request,
        scope,
        logger._growth,
        logger._reporter,
        uncollected=logger._uncollected if logger.gc_collect is True else None,
        clear_cache=logger.clear_cache,
        gap=gap,
        live=_live(logger, cell, scope),
        lines=_lines(logger, cell) if logger.lines or request.lines else None,
        recording=_recording(logger, request),
        told_again=logger._told_again,
    )


def _live(logger: IPyGPULogger, cell: Cell, scope: Scope) -> LiveCell | None:
    place = None if cell.nested else place_for(logger._shell, logger.report)
    if place is None:
        return None
    label = "The cell" if cell.execution_count is None else f"In [{cell.execution_count}]"
    return logger._live.cell(label, scope, place)


def _lines(logger: IPyGPULogger, cell: Cell) -> CellLines:
    with importing():
        from .cell_lines import CellLines
    return CellLines(logger._shell, cell, logger._lines_of_cells, reset_peaks=logger.reset_peaks)


def _recording(logger: IPyGPULogger, request: Request) -> PeakRecording | None:
    peak = request.peak or logger.peak
    if not peak:
        return None
    with importing():
        from ..breakdown.recording import PeakRecording
    # A report does not say what was held before; only a cell that asks for the table itself shows it.
    named = bool(request.peak)
    return PeakRecording(logger._shell, ram=True if peak == "all" else None, always_named=named)
