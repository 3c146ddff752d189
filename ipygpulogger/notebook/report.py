"""The report of a cell, printed or displayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..analysis.notable import nearly_full
from ..engine.machine import importing, machine
from ..records import MIME
from ..records.note import WARNINGS, of_kind
from ..records.units import printable
from ..render import text
from ..runtime.errors import is_from_a_handler, say, why
from ..sources import Unavailable
from .options import SILENT, Options, Threshold

if TYPE_CHECKING:
    from ..records import CellRecord, LineUsage
    from ..storage.log import Log


NOT_KEPT = (
    "report='metadata': no front end lets a kernel write a cell's metadata;"
    " `ipygpulogger run NOTEBOOK` writes it, and `il.history` has the records."
)


def load_rich() -> None:
    """Import what a rich report needs, so that no cell waits for it or holds its memory."""
    with importing():
        from ..render import html  # noqa: F401
        from ..storage import embed  # noqa: F401


class Reporter:
    """Print and display for one logger, in the way its options say.

    Nothing here raises for a broken stream or a front end that fails: the cell and its record come first.
    """

    keeps_metadata = False  # whether `ipygpulogger run` writes the records into the cells' metadata
    announces = True  # whether it is said that there is no GPU, and that the reports start and stop

    def __init__(self, options: Options) -> None:
        self._options = options
        self._warned: set[str] = set()
        self.lacks: list[str] = []  # what the options ask for and is not there; `ipygpulogger run` says it
        self._heads = True  # whether the heads of the compact report are still to be said

    def show(self, record: CellRecord, publisher: Any, *, beside_peak: bool = False) -> None:
        """Report a cell; a rich report is the last output of the cell when the cell ends.

        Beside the peak, `show_peak` shows the whole table of what was alive then.
        """
        report, compact = self._options.report, self._options.compact
        if report in SILENT:
            return
        told = replace(record, at_peak=()) if beside_peak else record
        plain = text.report(told, compact=compact, heads=self._heads)
        self._heads = self._heads and not compact
        if report != "rich":
            self.print_text(plain)
            return
        from ..render import html  # `load_rich` imported both
        from ..storage.embed import embedded

        markup = html.report(told, compact=compact, ram_total_bytes=machine().limits.total_bytes)
        self._display({"text/plain": plain, "text/html": markup, MIME: embedded(record)}, publisher)

    def show_lines(self, lines: Sequence[LineUsage], publisher: Any) -> None:
        """Show the whole table of a cell's lines; notes about them stand in the report."""
        with importing():
            from ..render import lines as lines_table
        self._show_table(lines_table.table, lines_table.html, publisher, lines)

    def show_peak(self, record: CellRecord, publisher: Any) -> None:
        """Show the whole table of what was alive at a cell's peak; notes about it stand in the report."""
        if record.at_peak:
            with importing():
                from ..render import at_peak
            shown = record.at_peak, record.peak_times_s, record.timeline
            self._show_table(at_peak.text, at_peak.html, publisher, *shown)

    def _show_table(self, plain: Callable[..., str], rich: Callable[..., str], to: Any, *rows: Any) -> None:
        if self._options.report == "text":
            self.print_text(plain(*rows))
        elif self._options.report == "rich":
            self._display({"text/plain": plain(*rows), "text/html": rich(*rows)}, to)

    def print_text(self, report: str) -> None:
        """Print a report; why it cannot be printed is said once."""
        if reason := say(report):
            self._cannot_show(reason)

    def warn_once(self, sentence: str) -> None:
        """Print a sentence to the stream for errors, the first time that it is to be said."""
        if sentence not in self._warned:
            self._warned.add(sentence)
            say(printable(sentence), aside=True)

    def write(self, log: Log, *records: CellRecord) -> None:
        """Add records to a log; one that cannot be written hurts no cell."""
        try:
            log.append(*records, log_source=self._options.log_source)
        except Exception as error:  # the report is worth more than the log
            self.warn_once(f"ipygpulogger cannot write {log.path} and goes on trying: {why(error)}")

    def cannot_measure(self, error: BaseException) -> None:
        """Say once why a cell could not be measured."""
        reason = "interrupted" if isinstance(error, KeyboardInterrupt) else why(error)
        nothing = isinstance(error, Unavailable) and f"measures nothing for now: {error}"
        self.warn_once(f"ipygpulogger {nothing or f'could not measure a cell: {reason}'}")

    def cannot_explain(self, what: str, error: Exception) -> None:
        """Say once why something could not be done; of an unavailable figure the record speaks itself."""
        if not isinstance(error, Unavailable):
            self.warn_once(f"ipygpulogger could not {what}: {why(error)}")

    def say_that(self, changed: str) -> None:
        """Say that the reports start, stop or change, unless nothing is to be reported."""
        if self.announces and self._options.report not in SILENT:
            say(printable(f"ipygpulogger {changed}."))

    def say_what_options_lack(self, peak: object) -> None:
        """Say once what is asked for and is not there, before it is missed."""
        report, lacks = self._options.report, []
        if peak and report != "none":
            with importing():
                from ..sources.system.memray import ABSENT, installed
            in_ram = peak == "all" or machine().frameworks.current_index() is None
            self.lacks = lacks = [ABSENT] if in_ram and not installed() else []
        lacks += [NOT_KEPT] if report == "metadata" and not self.keeps_metadata else []
        for sentence in filter(machine().notes.is_new, lacks):
            say(sentence)

    def say_what_is_missing(self) -> None:
        """Say in one sentence that no cell can be measured, or that there is no GPU; and what was killed."""
        try:
            machine().ram.observe()
        except Unavailable as reason:
            self.cannot_measure(reason)
        else:
            if self.announces:
                self.say_if_no_gpu()
        if self._options.report == "none":
            return
        try:
            with importing():  # which processes were killed, such as an earlier kernel; each is said once
                if news := machine().limits.new_oom_kills():
                    say(printable(news))
        except Exception as error:
            self.cannot_explain("tell what was killed for lack of memory", error)

    def say_if_no_gpu(self) -> None:
        """Say once that there is no GPU, and why, unless nothing is to be reported."""
        seen = machine().nvml.devices()  # always: NVML's library is loaded now, not by the first cell's hook
        if self._options.report == "none" or machine().frameworks.current_index() is not None:
            return
        why_not = "" if seen else machine().nvml.diagnose().says
        if seen and machine().devices.all_hidden() and self._options.devices != "all":
            why_not = "CUDA_VISIBLE_DEVICES hides them all"
        sentence = printable(f"No GPU here ({why_not}): RAM only.")
        if why_not and machine().notes.is_new(sentence):
            say(sentence)

    def _display(self, bundle: dict[str, Any], publisher: Any) -> None:
        try:
            publisher.publish(data=bundle, metadata={})
        except Exception as error:
            if is_from_a_handler(error):
                raise
            self._cannot_show(why(error))

    def _cannot_show(self, reason: str) -> None:
        self.warn_once(f"ipygpulogger cannot show its reports and goes on measuring: {reason}")


# -- which cells have one -----------------------------------------------------------------------------------


def _moved_bytes(record: CellRecord) -> Iterator[int]:
    """Yield every amount of memory that a cell's report would speak of, but for that of other processes.

    Of a peak that is not exact the lower bound counts, as for a budget: the upper one of a counter that
    cannot be reset is the highest peak of the whole process, and would make every cell a large one.
    """
    for usage in (record.gen, *record.gpus, record.children, record.pinned):
        if usage is not None:
            yield abs(usage.consumed_bytes)
            yield usage.needed_bytes
    for gpu in record.gpus:
        yield from (gpu.context_bytes, abs(gpu.unattributed_bytes), gpu.unknown_rise_bytes)
    yield from (abs(size_bytes) for _, size_bytes in record.between)


def is_reported(record: CellRecord, quiet: Threshold | None, *, requested: bool) -> bool:
    """Return whether a cell has a report: if it asks for one, or is neither ours alone nor `quiet`."""
    if requested or record.gpulog_only:
        return requested
    if quiet is None or record.status != "ok" or of_kind(record.notes, *WARNINGS):
        return True
    is_long = quiet.time_s is not None and record.time_s >= quiet.time_s
    is_large = quiet.size_bytes is not None and max(_moved_bytes(record)) >= quiet.size_bytes
    return is_long or is_large or any(map(nearly_full, record.gpus))
