"""The command ``run``: execute a notebook; print and log each cell, and compare it with its budget."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from ..analysis.notable import excesses
from ..engine.machine import machine
from ..records.units import MB, rounded_mb
from ..render import summary
from ..runtime.errors import write_file
from . import arguments
from .arguments import BadRequest, check, check_log
from .execution import Execution
from .progress import Progress, Transcript
from .report import Results, write_page
from .streams import aside, interrupt_held_back

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ..records import CellRecord


def run(options: argparse.Namespace) -> int:
    """Execute a notebook, and return 1 if a cell failed or exceeded its budget, else 0."""
    path: Path = options.notebook
    output: Path = options.output or path.with_name(f"{path.stem}.executed.ipynb")
    notebook = arguments.read_notebook(path)
    targets = {"the executed notebook": output, "the log": options.log, "the page": options.html}
    check(targets, path, "the notebook")
    if options.parameters_file:
        check(targets, options.parameters_file, "the file of parameters")
    check_log(options.log)
    remarks = [*_set_parameters(notebook, options)]
    with contextlib.ExitStack() as stack:
        progress = Progress()
        stack.callback(progress.close)
        progress.show("starting the kernel")
        results = Results(options.log, Transcript(progress, shows_output=options.show_output))
        execution: Execution | None = None
        try:
            execution = Execution(
                notebook,
                path,
                kernel=options.kernel,
                timeout_s=options.timeout,
                allow_errors=options.allow_errors,
            )
            if not execution.has_code:
                remarks.append(f"{path} has no cell with code, so there is nothing to measure")
            # The logger in the kernel would say it too, but what its start prints is not shown.
            news = machine().limits.new_oom_kills()
            for remark in (*filter(None, [news]), *remarks):
                aside(f"ipygpulogger: {remark}")
            problem = execution.execute(results)
            if execution.kernel_said:
                aside(*(f"    {line}" for line in execution.kernel_said))
            results.fail(problem)
        except KeyboardInterrupt:
            if execution is None or not execution.started:
                progress.stop()
                aside("ipygpulogger: interrupted before the first cell; nothing is written")
            else:
                results.fail(f"interrupted in {execution.cell}" if execution.cell else "interrupted")
            raise
        finally:
            if execution is not None and execution.started:
                with interrupt_held_back(), results.failure(output):
                    progress.show("writing the notebook")
                    remarks += _judge(execution, results, options)
                    write_file(output, arguments.installed("nbformat").writes(notebook))
                    aside(f"executed notebook: {output}")
                if options.html:
                    progress.show("making the page")
                    with results.failure(options.html):
                        remarks += results.problems
                        _write_page(options.html, path.stem, results, remarks)
    return 1 if results.problems else 0


def _write_page(page: Path, title: str, results: Results, remarks: Sequence[str]) -> None:
    texts = {id(record): text for record, text in zip(results.history, results.sources, strict=True)}
    write_page(page, title, results.history, lambda record: texts[id(record)], remarks)


def _judge(execution: Execution, results: Results, options: argparse.Namespace) -> list[str]:
    """Add what fails the run as a whole to its problems, and return remarks on the rest."""
    remarks = []
    if options.allow_errors and execution.cells_failed:
        remarks.append(f"{_cells(execution.cells_failed)} failed; the run went on, because of --allow-errors")
    for excess in _over_budget(results.history, options.max_ram, options.max_gpu):
        results.fail(excess)
    if execution.cells_without_record:
        cells = _cells(execution.cells_without_record)
        sentence = f"{cells} left no record, because the notebook stopped the logger"
        if options.max_ram is None and options.max_gpu is None:
            remarks.append(sentence)
        else:
            results.fail(f"{sentence}, and no budget can be judged there")
    for remark in remarks:
        aside(f"ipygpulogger: {remark}")
    return remarks


def _cells(count: int) -> str:
    return "1 cell" if count == 1 else f"{count} cells"


def _set_parameters(notebook: Any, options: argparse.Namespace) -> Iterator[str]:
    """Put the parameters into the notebook, and yield what the user should know about that."""
    try:
        found = arguments.read(options.parameters_file) if options.parameters_file else {}
        for name, value in options.parameters:
            found[name] = arguments.typed(value)
        if found and not arguments.inject(notebook, found):
            yield "no cell is tagged 'parameters', so the parameters stand on top"
    except ValueError as error:
        raise BadRequest(str(error)) from error


def _over_budget(
    records: Sequence[CellRecord], ram_bytes: int | None, gpu_bytes: int | None
) -> Iterator[str]:
    """Yield a sentence for each peak above its budget, and for each that cannot be compared with it."""
    for record in records:
        for excess in excesses(record, ram_bytes=ram_bytes, gpu_bytes=gpu_bytes):
            over_bytes = excess.peak_bytes - excess.budget_bytes
            where = "in RAM" if excess.name == "RAM" else f"on {excess.name}"
            option = "--max-ram" if excess.name == "RAM" else "--max-gpu"
            at_least = "at least " if excess.at_least else ""
            yield (
                f"{summary.named(record)}: peaked at {at_least}{_size(excess.peak_bytes)} {where},"
                f" {at_least}{_size(over_bytes)} over {option} {_size(excess.budget_bytes)}"
            )
        for gpu in record.gpus if gpu_bytes is not None else ():
            if not gpu.attributed:
                yield (
                    f"{summary.named(record)}: --max-gpu cannot be judged on {gpu.id}, where per-process"
                    " usage is unavailable"
                )


def _size(size_bytes: int) -> str:
    return f"{rounded_mb(size_bytes)} MB" if size_bytes >= MB else f"{size_bytes} bytes"
