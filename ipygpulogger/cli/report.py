"""`report`, `compare` and `doctor`: what a log or a saved notebook says, and what this machine offers."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ..analysis.compare import compare as compare_runs
from ..engine.machine import machine
from ..records import CellRecord
from ..records.units import printable
from ..render import summary
from ..render.growth import diagnoses
from ..runtime.errors import first_line, write_file
from ..storage.history import History
from ..storage.log import Log, load
from .arguments import BadRequest, check
from .streams import aside, say


def read(path: Path) -> History:
    """Return the cells of a run; those that cannot be read are left out, and a sentence on stderr says so."""
    problems: list[str] = []
    try:
        found = History(load(path, problems))
    except Exception as error:  # readers of csv, parquet and notebooks raise many kinds
        reason = getattr(error, "strerror", None) or first_line(error)
        names_it = printable(str(path)) in printable(reason)
        raise BadRequest(reason if names_it else f"{path} cannot be read: {reason}") from error
    if not found:
        if problems:
            raise BadRequest(f"{problems[0]}; no record is left")
        cure = "execute the notebook with ipygpulogger run, or with %load_ext ipygpulogger in it"
        raise BadRequest(f"{path} holds no record of a cell: {cure}")
    for problem in problems:
        aside(f"ipygpulogger: {problem}")
    return found


class Results:
    """The results of an execution: the records, the source of each one's cell, and what went wrong."""

    def __init__(self, log_path: Path | None, *, log_source: bool = False) -> None:
        if log_source and log_path is None:
            raise BadRequest("--log-source belongs to --log: name the log with --log FILE.jsonl")
        self.history: History = History()
        self._sources: dict[int, str] = {}  # of the cells of records, by `id`
        self.over: list[CellRecord] = []  # that went above a budget by their own need
        self.problems: list[str] = []  # sentences that say why the run does not end with success
        self._log_path, self._log_source = log_path, log_source
        self._log: Log | None = None

    def started(self) -> None:
        """Begin the log; before this moment a refused request leaves an older log as it is."""
        try:
            if self._log_path is not None:
                self._log = Log(self._log_path)
                write_file(self._log_path, "")
        except (OSError, ValueError) as error:
            raise BadRequest(f"{self._log_path} cannot be written: {first_line(error)}") from error

    def keep(self, records: Sequence[CellRecord], source: str | None = None) -> None:
        """Keep and log records: of a cell with this source, or of other processes."""
        self.history.extend(records)
        if source is not None:
            self._sources |= {id(record): source for record in records}
        if self._log is not None:
            with self.failure(self._log_path):
                self._log.append(*records, log_source=self._log_source)

    def source(self, record: CellRecord) -> str:
        """Return the text of a record's cell."""
        return self._sources.get(id(record), record.source)

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


def write_page(
    path: Path, title: str, cells: History, source: Callable[[CellRecord], str], said: Sequence[str] = ()
) -> None:
    """Write the page, whole or not at all, and say where it is."""
    from ..render.page import page

    write_file(path, page(title, cells, source=source, ranked=summary.html(cells), said=said))
    aside(f"page: {path}")


def report(options: argparse.Namespace) -> int:
    """Print the ranked cells, write the page if asked, and return the exit status 0."""
    check({"the page": options.html}, options.path, "the log")
    cells = read(options.path)
    say(summary.summary(cells, options.by))
    if options.path.suffix != ".ipynb" and not any(one.source or one.main_line for one in cells):
        aside("This log has no code; with run's --log-source, or the option log_source, it has.")
    if options.html:
        try:
            write_page(options.html, options.path.stem, cells, lambda one: one.source or "# not in this log")
        except OSError as error:
            raise BadRequest(f"{options.html} could not be written: {error.strerror or error}") from error
    return 0


def compare(options: argparse.Namespace) -> int:
    """Print which cells changed, and return 1 if one went higher than tolerated or fails now, else 0."""
    base, new = read(options.base), read(options.new)
    found = compare_runs(base, new, tolerance=options.tolerance, floor_bytes=options.floor)
    if not found.pairs:
        raise BadRequest(f"{options.base} and {options.new} have no cell in common")
    say(summary.comparison(found, unchanged=options.all))
    return 1 if found.regressed or found.failed or found.unexplained else 0


def doctor(options: argparse.Namespace) -> int:
    """Print the diagnosis of each source of figures, or verify figures, and return the exit status."""
    if options.verify:
        from .verify import verify

        return verify(options)
    for name in ("quick", "estimate"):
        if getattr(options, name):
            raise BadRequest(f"--{name} belongs to --verify: ipygpulogger doctor --verify --{name}")
    machine().load()  # imports frameworks and creates contexts: this process exists for nothing else
    found = machine().diagnose()
    say(json.dumps([one._asdict() for one in found], indent=2) if options.json else diagnoses(found))
    return 0
