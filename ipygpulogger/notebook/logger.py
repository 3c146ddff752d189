"""`IPyGPULogger`: measures each cell of a notebook, keeps its record, and shows its report."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

from traitlets import observe

from ..engine.machine import importing, machine
from ..engine.scope import Scope
from ..owners.garbage import Garbage
from ..owners.growth import Growth
from ..records import CellRecord, Data
from ..records.units import truncated_mb
from ..runtime.shell import current_shell
from ..storage.history import History
from .cell import Cell, CellEvents
from .enrichers import enriched, over_budget
from .live import Live, display_for
from .measured_cell import Gap, MeasuredCell
from .options import SILENT, Options, documented
from .report import Reporter, is_reported, load_rich

if TYPE_CHECKING:
    from ..records import Owner
    from ..records.process import ProcessRecord
    from ..render.owners import Freed
    from .panel import Panel


@documented
class IPyGPULogger(Options):
    """Report after every cell what it consumed, needed and uses, and how long it took.

    Args:
        {options}

    Raises:
        TypeError, ValueError: An unknown option, or a value that the option does not take.
        RuntimeError: There is no IPython shell here.

    Example:
        ``il = IPyGPULogger().start()``; after some cells ``il.data``, ``il.record``, ``il.history``.
    """

    _running = False
    _panel: Panel | None = None  # of `%gpulog panel`

    def __init__(
        self, compact: bool | None = None, gc_collect: bool | Literal["full"] | None = None, **options: Any
    ) -> None:
        """Create a logger, which measures nothing before `start`."""
        given = {"compact": compact, "gc_collect": gc_collect}
        options |= {name: value for name, value in given.items() if value is not None}
        self.check(options)
        shell = current_shell()
        if shell is None:
            why = "works inside IPython; outside it, measure a block of code with ipygpulogger.measure."
            raise RuntimeError(f"IPyGPULogger {why}")
        from .magics import GpulogMagics  # imports IPython's, which is there now

        super().__init__(parent=shell, **options)
        self._shell = shell
        me = weakref.proxy(self)  # for our own parts: a circle would be garbage of ours in the user's process
        self._magics, self._machine = GpulogMagics.of(shell), machine()
        # What the last cell left, and the time since then; setting an attribute of a logger takes longer.
        self._last: Any = SimpleNamespace(record=None, gap=None)
        self._history, self._reporter = History(), Reporter(me)
        self._cells: dict[Cell, MeasuredCell] = {}  # that run now
        self._only: int | None = None  # the thread whose next cell is the only one to be measured
        self._growth = Growth.of(shell)
        self._garbage = Garbage(shell, self._growth)
        self._live = Live(lambda so_far: over_budget(so_far, me.budget))

    @observe("peak", "report")
    def _report_differently(self, _: Any) -> None:
        if self.report == "rich":
            load_rich()
        if self._running:
            self._reporter.say_what_options_lack(self.peak)

    # -- what users call -----------------------------------------------------------------------

    def start(self) -> IPyGPULogger:
        """Start the reports, with the rest of the running cell; calling it again changes nothing.

        ``%gpulog`` then controls this logger, unless the extension is loaded, which has one of its own.
        """
        if not self._running:
            self._reporter.say_that("started")
        self._start()
        return self

    def _start(self) -> None:
        self._only = None  # first: subscribing begins the running cell, which else would end it all
        if not self._running:
            try:
                self._reporter.say_what_is_missing()
                self._reporter.say_what_options_lack(self.peak)
                self._magics.offer(self)
                self._preload()
                self._settle()
                self._subscribe(running=True)
            except BaseException:  # interrupted half way
                self._stop()
                raise

    def expect(self) -> None:
        """Measure only the next cell on this thread, which begins with ``%%gpulog``, while stopped."""
        if self._running:
            return
        try:
            self._subscribe(running=False)
            self._only = threading.get_ident()
        except Exception as error:  # the cell runs all the same
            self._failed(error)
            self._halt()

    def _subscribe(self, *, running: bool) -> None:
        self._machine = machine()  # in a forked child, another than its parent's
        self._machine.attach(self)
        if self not in self._shell.configurables:
            self._shell.configurables.append(self)  # so that %config finds it
        self._running = True
        CellEvents.of(self._shell).subscribe(self, running=running)

    def stop(self) -> None:
        """Stop the reports, without one for the running cell; calling it again changes nothing.

        No thread, hook or handle of this package remains, nor ``%gpulog``, unless the extension is loaded. If
        you interrupt this call, call it again. One thing may remain: where ``max_memory_allocated()`` would
        forget an earlier peak, our wrapper stays until your next ``reset_peak_memory_stats()``.
        """
        was_running = self._running
        self._stop()
        if was_running:
            self._reporter.say_that(f"stopped: {self._history.counted()} recorded")

    def _stop(self) -> None:
        self._magics.withdraw(self)
        self._halt()
        self._machine.failed_snapshot = None

    def _halt(self) -> None:
        """Stop measuring, and keep ``%gpulog``."""
        self._running = False
        for cell in tuple(self._cells):
            self._drop(cell)
        if self in self._shell.configurables:
            self._shell.configurables.remove(self)
        self._live.close()
        self._growth.close()
        self._garbage.close()
        self._last.gap = None
        self._machine.detach(self)
        self._machine.close()
        if self._panel is not None:
            self._panel.send({"stopped": True})
        CellEvents.of(self._shell).unsubscribe(self)  # last: until then the next cell does it again

    @property
    def running(self) -> bool:
        """Whether cells are being reported."""
        return self._running

    @property
    def record(self) -> CellRecord | None:
        """The last finished cell of this kernel, in bytes and seconds; None before the first."""
        record: CellRecord | None = self._last.record
        return record

    @property
    def data(self) -> Data:
        """The last finished cell, in whole MB and seconds; before the first, only the RAM in use now."""
        if self.record is not None:
            return self.record.data()
        return Data(0, 0, truncated_mb(machine().resident_bytes()), 0, 0, 0, 0.0)

    @property
    def history(self) -> History:
        """The records of all finished cells, and of the processes that `ipygpulogger.cluster` watches."""
        return self._history

    def owners(self) -> tuple[Owner, ...]:
        """Return which names hold memory now, the largest first, as ``%gpulog vars`` shows them."""
        from ..owners.memory_blocks import array_readers
        from ..owners.roots import owners_in

        return owners_in(self._shell, array_readers()).owners

    def free(self) -> Freed:
        """Release what the last traceback and ``Out`` still hold, as ``%gpulog free`` does.

        Afterwards ``%debug`` has no traceback to enter. Which references were dropped and how many bytes came
        back by device is returned; `str` gives the report.
        """
        from ..owners.roots import release
        from ..render.owners import Freed

        return Freed(*release(self._shell, reset_peaks=self.reset_peaks))

    @property
    def lifetime_peak_bytes(self) -> int:
        """The highest resident memory of this process, which ``getrusage().ru_maxrss`` no longer reports."""
        return machine().ram.lifetime_peak_bytes()

    def __reduce_ex__(self, _protocol: Any) -> Any:
        raise TypeError("a logger belongs to its shell and cannot be copied or pickled; its history can")

    def __repr__(self) -> str:
        state = f"{'running' if self._running else 'stopped'}, {len(self._history)} cells"
        return f"<{type(self).__name__}: {state}>"

    # -- the steps of a cell, as `CellEvents` describes them --------------------------------------

    def _preload(self) -> None:
        """Create the GPU context before the cell could, if `preload` is set."""
        gap = self._last.gap = self._last.gap or Gap()
        if self.preload:
            gap.preload()
        if self._running:  # loading does not wait for the first walk
            self._attempt("tell who holds memory", self._growth.refresh, gap.own_work)

    def _settle(self, cell: Cell | None = None) -> None:
        """Collect garbage and empty caches, as far as the options say."""
        if self.gc_collect is True:
            settle = self._cells[cell].settle if cell in self._cells else self._garbage.begin
            self._attempt("tell what garbage the cell left", settle)
        machine().settling.settle(gc_collect=self.gc_collect == "full", clear_cache=self.clear_cache)

    def _begin(self, cell: Cell) -> None:
        if not self._running:  # `stop` was interrupted
            self._halt()
            return
        if self._only is not None and not cell.request.explicit:
            if not self._cells and self._only == threading.get_ident():
                self._halt()  # another cell came than the one that is to be measured
            return
        gap, self._last.gap = None if self._cells else self._last.gap, None
        measured = self._cells[cell] = self._measured(cell, gap)
        # The cell that only loads the extension has no report: it does not wait for the first walk.
        if self._growth.has_walked or not cell.gpulog_only:
            measured.before = self._attempt("tell who holds memory", self._growth.begin)
        measured.begin()

    def _measured(self, cell: Cell, gap: Gap | None) -> MeasuredCell:
        scope = Scope(reset_peaks=self.reset_peaks, all_devices=self.devices == "all", metrics=self.metrics)
        measured = MeasuredCell(
            *(cell, scope, self._growth, self._history),
            gap=gap,
            garbage=self._garbage if self.gc_collect is True else None,
            clear_cache=self.clear_cache,
            publisher=self._shell.display_pub,
        )
        follows = self._panel is not None and self.report in SILENT  # a panel shows what no report does
        display = display_for(self._shell, "text" if follows else self.report)
        if display is not None:
            measured.live = self._live.cell(cell.label, scope, display)
        if self.lines or cell.request.lines:
            with importing():
                from .cell_lines import CellLines
            with suppress(ValueError):  # a name means nothing: the magic refuses the cell, and says why
                measured.lines = CellLines(self._shell, cell, reset_peaks=self.reset_peaks)
        if peak := cell.request.peak or self.peak:
            self._reporter.say_what_options_lack(peak)
            with importing():
                from ..breakdown.recording import PeakRecording
            # Only a cell that asks for the table shows what was held before.
            ram, named = True if peak == "all" else None, bool(cell.request.peak)
            measured.recording = PeakRecording(self._shell, ram=ram, always_named=named)
        return measured

    def _end(self, cell: Cell) -> None:
        if cell in self._cells:
            self._cells[cell].end()

    def _on_error(self, cell: Cell) -> None:
        if cell in self._cells:
            self._attempt("explain an error", self._cells[cell].examine, self._shell)

    def _finish(self, cell: Cell) -> None:
        measured = self._cells.get(cell)
        if measured is None:
            return
        if not (measured.over or measured.reported):
            measured.budget = self.budget
            record = enriched(measured, self._reporter)
            measured.reported = True  # after an interrupt, no record is there twice
            if measured.live is not None:
                measured.live.drop()
            self._sink(record, measured)
        measured.drop()
        self._forget(cell)
        if self._running and not self._cells:
            self._last.gap = Gap(after=measured.scope)

    def _drop(self, cell: Cell) -> None:
        """End the cell without a record; if it has ended already, forget it."""
        if cell in self._cells:
            try:
                self._cells[cell].drop()
            finally:
                if self._cells[cell].over:  # if not, an interrupt came: the next boundary, or `stop`, does it
                    self._forget(cell)

    def _attempt(self, what: str, step: Callable[..., Any], *args: Any) -> Any:
        """Call a function that explains a record; None if it fails, which is said once."""
        try:
            return step(*args)
        except Exception as error:
            return self._reporter.cannot_explain(what, error)

    def _forget(self, cell: Cell) -> None:
        self._cells.pop(cell, None)
        if self._running and self._only is not None and not self._cells:
            self._halt()  # the one cell to be measured is over

    def _failed(self, error: BaseException, cell: Cell | None = None) -> None:
        if cell is not None:
            with suppress(BaseException):  # it could not be opened, or not be closed
                self._drop(cell)
        self._reporter.cannot_measure(error)

    # -- where a record goes ----------------------------------------------------------------------

    def _sink(self, record: CellRecord, measured: MeasuredCell) -> None:
        """Keep the record, write it to the log, and show it."""
        request, publisher = measured.cell.request, measured.publisher
        self._last.record = record
        self._history.append(record)
        if self._panel is not None:
            self._attempt("renew the panel", self._panel.ended, record)
        if self._log is not None:
            self._reporter.write(self._log, record)
        shown: list[Callable[[], object]] = []
        if not measured.cell.measures and is_reported(record, self._threshold, requested=request.explicit):
            shown.append(partial(self._show, record, measured))
        if request.lines and measured.lines is not None:
            shown.append(partial(self._reporter.show_lines, measured.lines.indented(record.lines), publisher))
        if request.peak:
            shown.append(partial(self._reporter.show_peak, record, publisher))
        for show in shown if self.report == "text" else reversed(shown):  # a rich report comes last
            show()

    def _show(self, record: CellRecord, cell: MeasuredCell) -> None:
        self._reporter.show(record, cell.publisher, beside_peak=bool(cell.cell.request.peak))

    def _keep(self, records: Sequence[ProcessRecord]) -> list[ProcessRecord]:
        """Keep the records of other processes as a cell's own is kept; `cluster.watcher` has the contract."""
        found = [
            replace(record, notes=(*record.notes, *over_budget(record, self.budget))) for record in records
        ]
        self._history.extend(found)
        if self._log is not None:
            self._reporter.write(self._log, *found)
        return found
