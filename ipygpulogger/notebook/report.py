"""The report of a cell, printed or displayed."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from ..engine.machine import importing, machine
from ..records import MIME
from ..records.units import printable
from ..render import text
from ..runtime.errors import is_from_a_handler, say, why
from ..sources import Unavailable
from .enrichers import over_budget

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from ..records import CellRecord, LineUsage
    from ..records.process import ProcessRecord
    from ..storage.history import History
    from ..storage.log import Log
    from .options import Options


_RICH = f"{__package__.rpartition('.')[0]}.render.html"  # whether a rich report was loaded
_NOTHING_MEASURED = "ipygpulogger measures nothing for now"
_shells_warned: WeakSet[Any] = WeakSet()  # the shells whose users know that there is none


class Reporter:
    """Print and display for one logger, in the way its options say.

    Nothing here raises for a broken stream or a front end that fails: the cell and its record come first.
    """

    names_devices = True  # whether it is said that there is no GPU

    def __init__(self, options: Options) -> None:
        self._options = options
        self._warned: set[str] = set()

    def load(self) -> None:
        """Import what the rich report needs, so that no cell waits for it or holds its memory."""
        if self._options.report == "rich" and _RICH not in sys.modules:
            with importing():
                from ..render import html  # noqa: F401 - for `bundle`
                from ..storage import embed  # noqa: F401

    def show(
        self, record: CellRecord, publisher: Any, *, within: bool = False, beside_peak: bool = False
    ) -> None:
        """Report a cell; a rich report is the last output of the cell when the cell ends.

        Args:
            record: The cell's.
            publisher: Displays a rich report.
            within: The report of a cell around it has its figures as well. A rich report would only cut that
                cell's output in two, or be captured by ``%%capture``. So it is displayed only if the cell
                failed, because IPython then calls the cell around it successful.
            beside_peak: `show_peak` shows the whole table of what was alive at the peak.
        """
        report, compact = self._options.report, self._options.compact
        if report == "none" or (within and report == "rich" and record.status == "ok"):
            return
        plain = text.report(record, compact=compact, timelines=True, beside_peak=beside_peak)
        if report == "text":
            self.print_text(plain)
            return
        from ..render import html  # `load` imported both
        from ..storage.embed import embedded

        total_bytes = machine().limits.total_bytes
        markup = html.report(record, compact=compact, ram_total_bytes=total_bytes, beside_peak=beside_peak)
        self._display({"text/plain": plain, "text/html": markup, MIME: embedded(record)}, publisher)

    def show_lines(self, lines: Sequence[LineUsage], publisher: Any) -> None:
        """Show the whole table of a cell's lines; notes about them stand in the report."""
        with importing():
            from ..render import lines as lines_table
        self._show_table(lines_table.table(lines), lambda: lines_table.html(lines), publisher)

    def show_peak(self, record: CellRecord, publisher: Any) -> None:
        """Show the whole table of what was alive at a cell's peak; notes about it stand in the report."""
        if not record.at_peak:
            return
        with importing():
            from ..render import at_peak
        rows = record.at_peak, record.peak_times_s
        self._show_table(at_peak.text(*rows), lambda: at_peak.html(*rows), publisher)

    def _show_table(self, plain: str, markup: Callable[[], str], publisher: Any) -> None:
        """Show a table below or above the report, in the way of the report."""
        if self._options.report == "text":
            self.print_text(plain)
        elif self._options.report == "rich":
            self._display({"text/plain": plain, "text/html": markup()}, publisher)

    def print_text(self, report: str) -> None:
        """Print a report; why it cannot be printed is said once."""
        if reason := say(report):
            self._cannot_show(reason)

    def warn_once(self, sentence: str) -> None:
        """Print a sentence to the stream for errors, the first time that it is to be said."""
        if sentence not in self._warned:
            self._warned.add(sentence)
            say(printable(sentence), aside=True)

    def keep(
        self,
        records: Sequence[ProcessRecord],
        history: History,
        log: Log | None,
        budget_since: datetime | None,
    ) -> list[ProcessRecord]:
        """Keep the records of other processes, which have just ended, as a cell's own is kept.

        Returns:
            The same records, with what the history and the budget say of them as notes; a budget does not
            hold for what began before it was set.
        """
        found = history.marked_all(records)
        for i, record in enumerate(found):
            if budget_since is None or record.started_at < budget_since:
                continue
            if over := over_budget(record, self._options.budget):
                found[i] = replace(record, notes=(*record.notes, *over))
        history.extend(found)
        self.write(log, *found)
        return found

    def write(self, log: Log | None, *records: CellRecord) -> None:
        """Add records to a log, if there is one; a log that cannot be written hurts no cell."""
        if log is None:
            return
        try:
            lost = log.append(*records)
        except Exception as error:  # the report is worth more than the log
            self.warn_once(f"ipygpulogger cannot write {log.path} and goes on trying: {why(error)}")
        else:
            if lost:
                cells = "1 cell is" if lost == 1 else f"{lost} cells are"
                self.warn_once(f"ipygpulogger writes {log.path} again; {cells} missing in it.")

    def cannot_measure(self, error: BaseException) -> None:
        """Say once why a cell could not be measured."""
        if isinstance(error, Unavailable):
            self.warn_once(f"{_NOTHING_MEASURED}: {error}")
            return
        reason = "interrupted" if isinstance(error, KeyboardInterrupt) else why(error)
        self.warn_once(f"ipygpulogger could not measure a cell: {reason}")

    def cannot_explain(self, what: str, error: Exception) -> None:
        """Say once why something could not be done; of an unavailable figure the record speaks itself."""
        if not isinstance(error, Unavailable):
            self.warn_once(f"ipygpulogger could not {what}: {why(error)}")

    def say_what_is_missing(self) -> None:
        """Say in one sentence that no cell can be measured, or that there is no GPU; and what was killed."""
        try:
            machine().ram.look()
        except Unavailable as reason:
            self.cannot_measure(reason)
        else:
            if self.names_devices:
                self.say_if_no_gpu()
        if self._options.report == "none":
            return
        try:
            with importing():  # which processes were killed, such as an earlier kernel; each is said once
                news = machine().limits.new_oom_kills()
        except Exception as error:
            self.cannot_explain("tell what was killed for lack of memory", error)
        else:
            if news:
                say(printable(news))

    def say_if_no_gpu(self) -> None:
        """Say once per shell that there is no GPU, and why, unless nothing is to be reported."""
        seen = machine().nvml.devices()  # always: NVML's library is loaded now, not by the first cell's hook
        shell, silent = self._options.parent, self._options.report == "none"
        if silent or shell in _shells_warned or machine().frameworks.current_index() is not None:
            return
        if not seen:
            why_not = machine().nvml.diagnose().says
        elif machine().devices.all_hidden() and self._options.devices != "all":
            why_not = "CUDA_VISIBLE_DEVICES hides them all"
        else:
            return
        if not say(printable(f"No GPU here ({why_not}): RAM only.")):
            _shells_warned.add(shell)

    def _display(self, bundle: dict[str, Any], publisher: Any) -> None:
        try:
            publisher.publish(data=bundle, metadata={})
        except Exception as error:
            if is_from_a_handler(error):
                raise
            self._cannot_show(why(error))

    def _cannot_show(self, reason: str) -> None:
        self.warn_once(f"ipygpulogger cannot show its reports and goes on measuring: {reason}")


def publisher_of(shell: Any, *, nested: bool) -> Any:
    """Return what displays the report of a cell that begins: within ``%%capture`` the shell's publisher."""
    publisher = shell.display_pub
    if nested:
        from IPython.core.displaypub import CapturingDisplayPublisher

        if isinstance(publisher, CapturingDisplayPublisher):
            own = (one for one in shell.configurables if isinstance(one, shell.display_pub_class))
            return next(own, publisher)
    return publisher
