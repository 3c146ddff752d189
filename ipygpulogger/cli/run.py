"""The command ``run``: execute a notebook; print and log each cell, and compare it with its budget."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..analysis.notable import excesses
from ..analysis.ranking import outer
from ..engine.machine import machine
from ..records import CellRecord
from ..records.note import NoteKind, of_kind
from ..records.units import MB, cells_text, rounded_mb, shortened, time_text
from ..render import summary
from ..runtime.errors import write_file
from . import arguments
from .arguments import check
from .execution import Execution, Terminated
from .progress import Progress, Transcript
from .report import Results, write_page
from .streams import aside, interrupt_held_back, say

_LABELS = 5  # that one sentence lists


def run(options: argparse.Namespace) -> int:
    """Execute a notebook, and return 1 if a cell failed or exceeded its budget, else 0."""
    path: Path = options.program
    notebook = arguments.read_notebook(path)
    output: Path = options.output or path.with_name(f"{path.stem}.executed.ipynb")
    targets = {"the executed notebook": output, "the log": options.log, "the page": options.html}
    check(targets, path, "the notebook")
    if options.parameters_file:
        check(targets, options.parameters_file, "the file of parameters")
    remarks = [*_set_parameters(notebook, options)]
    with contextlib.closing(Progress()) as progress:
        progress.show("starting the kernel")
        results = Results(options.log, log_source=options.log_source)
        execution: Execution | None = None
        try:
            execution = Execution(notebook, path, options)
            if not execution.has_code:
                remarks.append(f"{path} has no cell with code, so there is nothing to measure")
            # The logger in the kernel would say it too, but what its start prints is not shown.
            news = machine().limits.new_oom_kills()
            for remark in (*filter(None, [news]), *remarks):
                aside(f"ipygpulogger: {remark}")
            transcript = Transcript(progress, shows_output=options.show_output)
            results.fail(execution.execute(results, transcript))
        except KeyboardInterrupt as stopped:
            ended = "terminated" if isinstance(stopped, Terminated) else "interrupted"
            if execution is None or not execution.started:
                progress.stop()
                aside(f"ipygpulogger: {ended} before the first cell; nothing is written")
            else:
                results.fail(f"{ended} in {execution.cell}" if execution.cell else ended)
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
                        said = [*remarks, *results.problems]
                        write_page(options.html, path.stem, results.history, results.source, said)
                _conclude(results)
    return 1 if results.problems else 0


def _judge(execution: Execution, results: Results, options: argparse.Namespace) -> list[str]:
    """Add what fails the run as a whole to its problems, and return remarks on the rest."""
    remarks = []
    if options.allow_errors and execution.cells_failed:
        failed = f"{cells_text(execution.cells_failed, 0)} failed"
        remarks.append(f"{failed}; the run went on, because of --allow-errors")
    judge(results, options)
    if execution.cells_without_record:
        cells = cells_text(execution.cells_without_record, 0)
        sentence = f"{cells} left no record, because the notebook stopped the logger"
        if options.max_ram is None and options.max_gpu is None:
            remarks.append(sentence)
        else:
            results.fail(f"{sentence}, and no budget can be judged there")
    for remark in remarks:
        aside(f"ipygpulogger: {remark}")
    return remarks


def _conclude(results: Results) -> None:
    """Print the totals of the run, the cells that failed and those that went over a budget, on one line."""
    records = results.history
    if records:
        cells, highest = outer(records), summary.highest(records)
        parts = [f"{cells_text(len(cells), 0)} in {time_text(sum(record.time_s for record in cells))}"]
        parts += [f"highest {one.name} {one.size}, raised by {shortened(one.by.title())}" for one in highest]
        failed = [record for record in records if record.outcome()]
        over = [one for one in records if one in results.over or of_kind(one.notes, NoteKind.OVER_BUDGET)]
        named = {"failed": failed, "over budget": over}
        parts += [f"{what}: {_few(found)}" for what, found in named.items() if found]
        with results.failure("stdout"):
            say(" · ".join(parts))


def _few(records: Sequence[CellRecord]) -> str:
    labels = list(dict.fromkeys(shortened(record.title()) for record in records))
    more = f" and {len(labels) - _LABELS} more" if len(labels) > _LABELS else ""
    return f"{', '.join(labels[:_LABELS])}{more}"


def _set_parameters(notebook: Any, options: argparse.Namespace) -> Iterator[str]:
    """Put the parameters into the notebook, and yield what the user should know about that."""
    found = arguments.read(options.parameters_file) if options.parameters_file else {}
    found |= {name: arguments.typed(value) for name, value in options.parameters}
    known = arguments.default_parameters(notebook)
    if found and not arguments.inject(notebook, found):
        yield "no cell is tagged 'parameters', so the parameters stand on top"
    elif known and (unknown := [name for name in found if name not in known]):
        yield f"the notebook's cell of parameters does not set {', '.join(unknown)}"


def judge(results: Results, options: argparse.Namespace) -> None:
    """Let each cell that went above a budget fail the run; at last, say which ones only began above it."""
    still: dict[str, list[CellRecord]] = {}
    for record in results.history:
        for excess in excesses(record, ram_bytes=options.max_ram, gpu_bytes=options.max_gpu):
            where, option = ("in RAM", "ram") if excess.name == "RAM" else (f"on {excess.name}", "gpu")
            budget, least = f"--max-{option} {_size(excess.budget_bytes)}", "at least " * excess.at_least
            if not excess.is_own:
                still.setdefault(f"{budget} {where}", []).append(record)
                continue
            began_bytes = excess.began_bytes - excess.budget_bytes
            began = f"; it began {_size(began_bytes)} over" if began_bytes > 0 else ""
            highest = f"highest {least}{_size(excess.peak_bytes)} {where}"
            over = f"{least}{_size(excess.peak_bytes - excess.budget_bytes)} over {budget}{began}"
            results.fail(f"{summary.named(record).rstrip(':')}: {highest}, {over}")
            results.over.append(record)
        for gpu in record.gpus if options.max_gpu is not None else ():
            if not gpu.attributed:
                why = f"on {gpu.id}, where per-process usage is unavailable"
                results.fail(f"{summary.named(record)}: --max-gpu cannot be judged {why}")
    for budget, found in still.items():
        results.fail(f"still over {budget}, as when they began: {_few(found)}")
    if options.max_gpu is not None and not any(record.gpus for record in results.history):
        aside("ipygpulogger: no GPU was used, so there was nothing for --max-gpu to judge")


def _size(size_bytes: int) -> str:
    return f"{rounded_mb(size_bytes)} MB" if size_bytes >= MB else f"{size_bytes} bytes"
