"""The command line: ``ipygpulogger run | report | compare | doctor``.

Exit status: 0 when all went well; 1 when a cell failed, went over its budget or grew; 2 for a request
that makes no sense (one sentence on stderr, nothing written); 130 when interrupted.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import warnings
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..engine.machine import machine
from ..records import budget
from ..records.compare import compare
from ..records.decode import from_json
from ..records.history import History
from ..records.log import Log
from ..records.units import MB, printable, printable_lines, rounded_mb
from ..render import summary, text
from ..runtime import files
from ..runtime.files import BadRequest
from . import parameters
from .arguments import parse
from .run import Run, one_line, read, written

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ..records import CellRecord


_DEBUG = "IPYGPULOGGER_DEBUG"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    for stream in sys.stdout, sys.stderr:  # a cell may hold what the terminal cannot show
        with contextlib.suppress(AttributeError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    options = parse(sys.argv[1:] if arguments is None else arguments)
    try:
        status = _COMMANDS[options.command](options)
        if sys.stdout is not None:  # closed, as by `>&-`: the status still tells
            sys.stdout.flush()
    except BadRequest as problem:
        _aside(f"ipygpulogger: {problem}")
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:  # 1 would say that a cell grew
        if os.environ.get(_DEBUG):
            raise
        said = f"{type(error).__name__}: {one_line(error)}"
        _aside(f"ipygpulogger failed: {said}; {_DEBUG}=1 in the environment shows where")
        return 2
    return status


def _aside(sentence: str) -> None:
    print(printable(sentence), file=sys.stderr)


# -- doctor ----------------------------------------------------------------------------------------


def _doctor(options: argparse.Namespace) -> int:
    # This process exists for the question alone, so it may import and initialise what a cell would.
    machine().load()
    found = machine().diagnose()
    if options.json:
        print(
            json.dumps([asdict(one) for one in found], indent=2).replace("\x7f", r"\u007f")
        )  # a control, too
    else:
        print(text.diagnoses(found))
    return 0


# -- report and compare ----------------------------------------------------------------------------


def _report(options: argparse.Namespace) -> int:
    files.check({"the page": options.html}, options.path, "the log")
    history = _load(options.path)
    print(summary.summary(history.rank(by=options.by), options.by, history.suspects()))
    if options.html:
        _write_page(options.html, options.path.stem, history, _sources(options.path, history))
    return 0


def _compare(options: argparse.Namespace) -> int:
    base, new = _load(options.base), _load(options.new)
    found = compare(base, new, tolerance=options.tolerance, floor_bytes=options.floor)
    if not found.pairs:
        raise BadRequest(f"{options.base} and {options.new} have no cell in common")
    print(summary.comparison(found))
    return 1 if found.regressed else 0


def _load(path: Path) -> History:
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            history = History.load(path)
    except FileNotFoundError as error:
        raise BadRequest(f"there is no file {path}") from error
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # what reads csv, parquet and notebooks raises many kinds
        said = one_line(error)
        known = printable(str(path)) in printable(said)
        raise BadRequest(said if known else f"{path} cannot be read: {said}") from error
    if warned and not history:
        raise BadRequest(str(warned[0].message))
    if not history:
        raise BadRequest(
            f"{path} holds no record of a cell: execute the notebook with ipygpulogger run,"
            " or with %load_ext ipygpulogger in it"
        )
    for warning in warned:
        _aside(f"ipygpulogger: {warning.message}")
    return history


def _sources(path: Path, history: Sequence[CellRecord]) -> list[str]:
    """The whole text of each cell where the file is a notebook, else its first line."""
    found: dict[Any, str] = {}
    if path.suffix.lower() == ".ipynb":
        with contextlib.suppress(TypeError, KeyError, AttributeError):  # mangled, as no record is
            for cell in from_json(path.read_bytes())["cells"]:
                source = "".join(cell["source"])
                found |= {("id", cell.get("id")): source, ("count", cell.get("execution_count")): source}
    return [
        (record.cell_id and found.get(("id", record.cell_id)))
        or (record.execution_count and found.get(("count", record.execution_count)))
        or record.source
        for record in history
    ]


# -- run -------------------------------------------------------------------------------------------


def _run(options: argparse.Namespace) -> int:
    path: Path = options.notebook
    output: Path = options.output or path.with_name(f"{path.stem}.executed.ipynb")
    notebook = read(path)
    targets = {"the executed notebook": output, "the log": options.log, "the page": options.html}
    files.check(targets, path, "the notebook")
    if options.parameters_file:
        files.check(targets, options.parameters_file, "the file of parameters")
    files.check_log(options.log)
    said = list(_parameterize(notebook, options))
    with contextlib.closing(_Kept(options.log)) as kept:
        run = Run(notebook, path, kernel=options.kernel, timeout_s=options.timeout, audience=kept)
        if not run.has_code:
            said.append(f"{path} has no cell with code, so there is nothing to measure")
        for sentence in said:
            _aside(f"ipygpulogger: {sentence}")
        try:
            kept.say(run.execute())
        finally:
            if run.started:
                for sentence in _over_budget(kept.history, options.max_ram, options.max_gpu):
                    kept.say(sentence)
                if run.untold:
                    cells = "1 cell" if run.untold == 1 else f"{run.untold} cells"
                    sentence = f"{cells} left no record, for the notebook stopped the logger"
                    if options.max_ram is None and options.max_gpu is None:
                        said.append(sentence)
                        _aside(f"ipygpulogger: {sentence}")
                    else:
                        kept.say(f"{sentence}, and no budget can be judged there")
                with kept.failure(output):
                    files.write(output, written(notebook))
                    _aside(f"executed notebook: {output}")
                if options.html:
                    with kept.failure(options.html):
                        said += kept.problems
                        _write_page(options.html, path.stem, kept.history, kept.sources, said)
    return 1 if kept.problems else 0


class _Kept:
    """What a run has told so far: printed, logged, and kept for the end."""

    def __init__(self, log_path: Path | None) -> None:
        self.history = History()
        self.sources: list[str] = []
        self.problems: list[str] = []
        self._log_path = log_path
        self._log: Log | None = None

    def started(self) -> None:
        if self._log_path is None:
            return
        try:  # only now: an older log outlives a request that is refused
            self._log_path.write_text("", encoding="utf-8")
            self._log = Log(self._log_path)
        except (OSError, ValueError) as error:
            raise BadRequest(f"{self._log_path} cannot be written: {one_line(error)}") from error

    def ended(self, record: CellRecord, source: str, report: str) -> None:
        self.history.append(record)
        self.sources.append(source)
        if self._log is not None:  # first of all: who reads what is printed may have seen enough
            with self.failure(self._log_path):
                self._log.append(record)
        first, *more = source.strip().splitlines()
        told = [
            f"{record.label}: {first}{' ...' if more else ''}",
            *(report or text.report(record)).split("\n"),
        ]
        print(printable_lines([*told, ""]), flush=True)

    def say(self, problem: str | None) -> None:
        """Something that makes the run a failure; the same is not said twice."""
        if problem is not None and problem not in self.problems:
            self.problems.append(problem)
            _aside(f"ipygpulogger: {problem}")

    @contextlib.contextmanager
    def failure(self, path: Path | None) -> Iterator[None]:
        """A full disk costs one file, not what else was measured."""
        try:
            yield
        except OSError as error:
            self.say(f"{path} could not be written: {error.strerror or error}")

    def close(self) -> None:
        if self._log is not None:
            self._log.close()


def _parameterize(notebook: Any, options: argparse.Namespace) -> Iterator[str]:
    """Set the parameters; what is worth a word about that."""
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
    """Each peak that went over, and by how much; and what nobody can judge."""
    for record in records:
        for excess in budget.excesses(record, ram_bytes=ram_bytes, gpu_bytes=gpu_bytes):
            where = "in RAM" if excess.name == "RAM" else f"on {excess.name}"
            option = "--max-ram" if excess.name == "RAM" else "--max-gpu"
            at_least = "at least " if excess.at_least else ""
            yield (
                f"{summary.named(record)}: peaked at {at_least}{_told(excess.peak_bytes)} {where},"
                f" {at_least}{_told(excess.over_bytes)} over {option} {_told(excess.budget_bytes)}"
            )
        for gpu in record.gpus if gpu_bytes is not None else ():
            if not gpu.attributed:
                yield (
                    f"{summary.named(record)}: --max-gpu cannot be judged on {gpu.id}:"
                    " nobody tells which process uses how much of it"
                )


def _told(size_bytes: int) -> str:
    return f"{rounded_mb(size_bytes)} MB" if size_bytes >= MB else f"{size_bytes} bytes"


def _write_page(
    path: Path,
    title: str,
    history: History,
    sources: Sequence[str],
    said: Sequence[str] = (),
) -> None:
    from ..render.page import page

    overview = summary.summary(history.rank(by="peak"), "peak", history.suspects())
    files.write(path, page(title, history, sources=sources, overview=overview, said=said))
    _aside(f"page: {path}")


_COMMANDS = {"run": _run, "report": _report, "compare": _compare, "doctor": _doctor}
