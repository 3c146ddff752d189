"""The command ``run``: execute a notebook; print and log each cell, and compare it with its budget."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from ..records import budget
from ..records.history import History
from ..records.log import Log
from ..records.units import MB, printable_lines, rounded_mb
from ..render import summary, text
from ..runtime import files
from ..runtime.errors import first_line
from . import notebook_file, parameters
from .execution import Execution
from .page import write_page
from .request import BadRequest, check, check_log
from .streams import aside, say

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ..records import CellRecord


def run(options: argparse.Namespace) -> int:
    """Execute a notebook, and return 1 if a cell failed or exceeded its budget, else 0.

    Raises:
        BadRequest: The notebook, a parameter, a file to be written or the kernel cannot be used.
    """
    path: Path = options.notebook
    output: Path = options.output or path.with_name(f"{path.stem}.executed.ipynb")
    notebook = notebook_file.read(path)
    targets = {"the executed notebook": output, "the log": options.log, "the page": options.html}
    check(targets, path, "the notebook")
    if options.parameters_file:
        check(targets, options.parameters_file, "the file of parameters")
    check_log(options.log)
    remarks = list(_set_parameters(notebook, options))
    with contextlib.closing(_Results(options.log)) as results:
        execution = Execution(
            notebook, path, kernel=options.kernel, timeout_s=options.timeout, audience=results
        )
        if not execution.has_code:
            remarks.append(f"{path} has no cell with code, so there is nothing to measure")
        for remark in remarks:
            aside(f"ipygpulogger: {remark}")
        try:
            results.fail(execution.execute())
        finally:
            if execution.started:
                for excess in _over_budget(results.history, options.max_ram, options.max_gpu):
                    results.fail(excess)
                if execution.cells_without_record:
                    count = execution.cells_without_record
                    cells = "1 cell" if count == 1 else f"{count} cells"
                    sentence = f"{cells} left no record, because the notebook stopped the logger"
                    if options.max_ram is None and options.max_gpu is None:
                        remarks.append(sentence)
                        aside(f"ipygpulogger: {sentence}")
                    else:
                        results.fail(f"{sentence}, and no budget can be judged there")
                with results.failure(output):
                    files.write(output, notebook_file.text_of(notebook))
                    aside(f"executed notebook: {output}")
                if options.html:
                    with results.failure(options.html):
                        remarks += results.problems
                        write_page(options.html, path.stem, results.history, results.sources, remarks)
    return 1 if results.problems else 0


class _Results:
    """The records of a run so far: each is printed, logged, and kept for what is written at the end."""

    def __init__(self, log_path: Path | None) -> None:
        self.history = History()
        self.sources: list[str] = []
        self.problems: list[str] = []
        self._log_path = log_path
        self._log: Log | None = None

    def started(self) -> None:
        """Begin the log; before this moment a refused request leaves an older log as it is."""
        if self._log_path is None:
            return
        try:
            self._log_path.write_text("", encoding="utf-8")
            self._log = Log(self._log_path)
        except (OSError, ValueError) as error:
            raise BadRequest(f"{self._log_path} cannot be written: {first_line(error)}") from error

    def ended(self, record: CellRecord, source: str, report: str) -> None:
        """Log and print one cell."""
        self.history.append(record)
        self.sources.append(source)
        if self._log is not None:
            with self.failure(self._log_path):
                self._log.append(record)
        first, *more = source.strip().splitlines()
        heading = f"{record.label}: {first}{' ...' if more else ''}"
        with self.failure("stdout"):
            say(printable_lines([heading, *(report or text.report(record)).split("\n"), ""]))

    def fail(self, problem: str | None) -> None:
        """Print a problem, once, and let the run end with a failing exit status; do nothing for None."""
        if problem is not None and problem not in self.problems:
            self.problems.append(problem)
            aside(f"ipygpulogger: {problem}")

    @contextlib.contextmanager
    def failure(self, path: Path | str | None) -> Iterator[None]:
        """Turn an error of writing a file into a problem, so that the other files are written."""
        try:
            yield
        except OSError as error:
            self.fail(f"{path} could not be written: {error.strerror or error}")

    def close(self) -> None:
        """Close the log."""
        if self._log is not None:
            self._log.close()


def _set_parameters(notebook: Any, options: argparse.Namespace) -> Iterator[str]:
    """Put the parameters into the notebook, and yield what the user should know about that."""
    try:
        found = parameters.read(options.parameters_file) if options.parameters_file else {}
        for name, value in options.parameters:
            found[name] = parameters.typed(value)
        if found and not parameters.inject(notebook, found):
            yield "no cell is tagged 'parameters', so the parameters stand on top"
    except ValueError as error:
        raise BadRequest(str(error)) from error


def _over_budget(
    records: Sequence[CellRecord], ram_bytes: int | None, gpu_bytes: int | None
) -> Iterator[str]:
    """Yield a sentence for each peak above its budget, and for each that cannot be compared with it."""
    for record in records:
        for excess in budget.excesses(record, ram_bytes=ram_bytes, gpu_bytes=gpu_bytes):
            where = "in RAM" if excess.name == "RAM" else f"on {excess.name}"
            option = "--max-ram" if excess.name == "RAM" else "--max-gpu"
            at_least = "at least " if excess.at_least else ""
            yield (
                f"{summary.named(record)}: peaked at {at_least}{_size(excess.peak_bytes)} {where},"
                f" {at_least}{_size(excess.over_bytes)} over {option} {_size(excess.budget_bytes)}"
            )
        for gpu in record.gpus if gpu_bytes is not None else ():
            if not gpu.attributed:
                yield (
                    f"{summary.named(record)}: --max-gpu cannot be judged on {gpu.id}, where per-process"
                    " usage is unavailable"
                )


def _size(size_bytes: int) -> str:
    return f"{rounded_mb(size_bytes)} MB" if size_bytes >= MB else f"{size_bytes} bytes"
