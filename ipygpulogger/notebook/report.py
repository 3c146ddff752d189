"""Print and display for a logger: the reports of cells, and once each, the reasons for what failed."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from ..engine.machine import importing, machine
from ..records.budget import OVER, excesses, parse
from ..records.units import MB, printable, rounded_mb, size_text
from ..render import text
from ..runtime.errors import why
from ..runtime.output import say
from ..runtime.signals import is_from_a_handler
from ..sources import Unavailable
from ..sources.ram_limit import least

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from ..records import CellRecord, LineUsage, Measurement
    from ..records.history import History
    from ..records.log import Log
    from ..records.process import ProcessRecord
    from ..sources.ram_limit import Room
    from .options import Options

_RICH = f"{__package__}.rich_report"
_NOTHING_MEASURED = "ipygpulogger measures nothing for now"
_SMALL_BYTES = 5 * MB  # a cell that needs less is not compared with the limits
_told_of_no_gpu: WeakSet[Any] = WeakSet()  # the shells whose users know that there is none


class Reporter:
    """Print and display for one logger, in the way its options say.

    Nothing here raises for a broken stream or a front end that fails: the cell and its record come first.

    Args:
        options: The logger's.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._said: set[str] = set()
        self._judged: str | None = None  # the last budget that was compared with the limits

    def load(self) -> None:
        """Import what the rich report needs, so that no cell waits for it or holds its memory."""
        if self._options.report == "rich" and _RICH not in sys.modules:
            with importing():
                from . import rich_report  # noqa: F401 - for `show`

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
        if self._options.report == "none":
            return
        if within and self._options.report == "rich" and record.status == "ok":
            return
        compact = self._options.compact
        plain = text.report(record, compact=compact, timelines=True, beside_peak=beside_peak)
        if self._options.report == "text":
            self.print_text(plain)
        else:
            from .rich_report import bundle

            self._display(bundle(record, plain, compact=compact, beside_peak=beside_peak), publisher)

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
        told = record.at_peak, record.peak_times_s
        self._show_table(at_peak.text(*told), lambda: at_peak.html(*told), publisher)

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
        if sentence not in self._said:
            self._said.add(sentence)
            say(printable(sentence), aside=True)

    def keep(
        self,
        records: Sequence[ProcessRecord],
        history: History,
        log: Log | None,
        budget_since: datetime | None,
    ) -> list[ProcessRecord]:
        """Keep the records of other processes as a cell's own is kept.

        Args:
            records: Of what has just ended.
            history: The logger's.
            log: The logger's.
            budget_since: When the budget was set, which does not hold for what began earlier.

        Returns:
            The same records, with what the history and the budget say of them as notes.
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

    def explaining(self, what: str = "who holds memory") -> Explaining:
        """Guard code that explains a record: if it fails, say so once, and leave the record as it is."""
        return Explaining(self, what)

    def say_what_is_missing(self) -> None:
        """Say in one sentence that no cell can be measured, or that there is no GPU; and what was killed."""
        try:
            machine().ram.look()
        except Unavailable as reason:
            self.cannot_measure(reason)
        else:
            self.say_if_no_gpu()
        with self.explaining("what was killed for lack of memory"):
            self._say_what_was_killed()

    def _say_what_was_killed(self) -> None:
        """Say that processes were killed for lack of memory, such as an earlier kernel; each is said once."""
        if self._options.report == "none":
            return
        with importing():
            news = machine().limits.news_of_kills()
        if news:
            say(printable(news))

    def say_if_out_of_reach(self, measurement: Measurement, budget: str) -> None:
        """Say once that a budget is more RAM than there is; where there is a GPU, it is meant for that."""
        if budget == self._judged or _is_on_gpu(measurement):
            return
        self._judged = budget
        if machine().nvml.devices():
            return
        lowest = machine().limits.lowest()
        if lowest is not None and parse(budget) > lowest.limit_bytes:
            self.warn_once(f"ipygpulogger: the budget {budget} is more RAM than there is: {lowest.whole}")

    def say_if_no_gpu(self) -> None:
        """Say once per shell that there is no GPU, and why, unless nothing is to be reported."""
        seen = machine().nvml.devices()  # always: NVML's library is loaded now, not by the first cell's hook
        shell, silent = self._options.parent, self._options.report == "none"
        if silent or shell in _told_of_no_gpu or machine().frameworks.current_index() is not None:
            return
        if not seen:
            why_not = machine().nvml.diagnose().says
        elif machine().devices.all_hidden() and self._options.devices != "all":
            why_not = "CUDA_VISIBLE_DEVICES hides them all"
        else:
            return
        if not say(printable(f"No GPU here ({why_not}): RAM only.")):
            _told_of_no_gpu.add(shell)

    def _display(self, bundle: dict[str, Any], publisher: Any) -> None:
        try:
            publisher.publish(data=bundle, metadata={})
        except Exception as error:
            if is_from_a_handler(error):
                raise
            self._cannot_show(why(error))

    def _cannot_show(self, reason: str) -> None:
        self.warn_once(f"ipygpulogger cannot show its reports and goes on measuring: {reason}")


class Explaining:
    """The context of code that explains a record; a class, as a generator would take four times as long.

    Args:
        reporter: Says that the code failed.
        what: What it explains.
    """

    __slots__ = ("_reporter", "_what")

    def __init__(self, reporter: Reporter, what: str) -> None:
        self._reporter, self._what = reporter, what

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        """End; only errors that end a program go on. Of an unavailable figure the record speaks itself."""
        if error is None or not isinstance(error, Exception):
            return False
        if not isinstance(error, Unavailable):
            self._reporter.warn_once(f"ipygpulogger could not tell {self._what}: {why(error)}")
        return True


def publisher_of(shell: Any, *, nested: bool) -> Any:
    """Return what displays the report of a cell that begins.

    A nested cell may run within ``%%capture``, which captures what the user displays. Then the shell's own
    publisher displays the report.

    Args:
        shell: IPython's shell.
        nested: Whether the cell runs within another.
    """
    publisher = shell.display_pub
    if nested:
        from IPython.core.displaypub import CapturingDisplayPublisher

        if isinstance(publisher, CapturingDisplayPublisher):
            own = (one for one in shell.configurables if isinstance(one, shell.display_pub_class))
            return next(own, publisher)
    return publisher


def over_budget(measurement: Measurement, budget: str | None) -> tuple[str, ...]:
    """Return a sentence for each device on which a measurement went over its budget.

    Args:
        measurement: Of a cell, which may still run.
        budget: A size such as "10GB": on each GPU, or of RAM where no GPU was used. None allows anything.
    """
    if not budget:
        return ()
    allowed_bytes = parse(budget)
    on_gpu = _is_on_gpu(measurement)
    found = excesses(
        measurement,
        ram_bytes=None if on_gpu else allowed_bytes,
        gpu_bytes=allowed_bytes if on_gpu else None,
    )
    return tuple(
        f"{OVER} {over.name}: peak {'at least ' if over.at_least else ''}"
        f"{rounded_mb(over.peak_bytes)} of {rounded_mb(over.budget_bytes)} MB"
        for over in found
    )


def _is_on_gpu(measurement: Measurement) -> bool:
    return any(gpu.peak.lo_bytes for gpu in measurement.gpus)


def little_left(measurement: Measurement, seen: Room | None, refused: Room | None = None) -> tuple[str, ...]:
    """Return a sentence if little RAM is left under a limit, or was at the peak; or less than a cell needs.

    Child processes live under the same limit, so what they needed counts, too.

    Args:
        measurement: Of a cell that has ended.
        seen: The limit under which the least was left while the cell ran, if that was little.
        refused: The one that made an allocation of the cell fail, which therefore consumed nothing.
    """
    if refused is not None:
        return (f"{refused.title}: {refused}; the cell failed for lack of it",)
    usages = [usage for usage in (measurement.gen, measurement.children) if usage is not None]
    need_bytes = sum(usage.needed_bytes for usage in usages)
    if need_bytes < _SMALL_BYTES and seen is None:
        return ()
    transient_bytes = sum(usage.peaked_bytes for usage in usages)
    room = machine().limits.short(need_bytes, transient_bytes)
    if room is not None and room.left_bytes is not None:
        if room.left_bytes < need_bytes:
            return (f"{room.title}: {room}; this cell needs {size_text(need_bytes)}",)
        if room.is_scarce:
            return (f"{room.title}: {room}",)
        room = room.with_left(room.left_bytes - transient_bytes)
    lowest = least(filter(None, (room, seen)))
    return () if lowest is None else (f"{lowest.title} at the peak: {lowest}",)
