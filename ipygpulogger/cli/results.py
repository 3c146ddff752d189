"""The records of a run so far: each is printed, logged, and kept for what is written at the end."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from ..records.history import History
from ..records.log import Log
from ..runtime.errors import first_line
from .request import BadRequest
from .streams import aside

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ..records import CellRecord
    from .transcript import Transcript


class Results:
    """The audience of an execution.

    Args:
        log_path: The file of the log; None without one.
        transcript: Prints the cells.

    Attributes:
        history: The records.
        sources: The source of each record's cell.
        problems: Sentences that say why the run does not end with success.
    """

    def __init__(self, log_path: Path | None, transcript: Transcript) -> None:
        self.history = History()
        self.sources: list[str] = []
        self.problems: list[str] = []
        self._log_path, self._transcript = log_path, transcript
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

    def cell_began(self, number: int, count: int, source: str) -> None:
        """Show which cell runs."""
        self._transcript.begin(number, count, source)

    def cell_output(self, output: Any) -> None:
        """Print an output of the cell, if that was asked for."""
        with self.failure("stdout"):
            self._transcript.output(output)

    def cell_ended(self, record: CellRecord | None, source: str, traceback: Sequence[str]) -> None:
        """Log and print one cell."""
        if record is not None:
            self._keep([record], source)
        with self.failure("stdout"):
            self._transcript.end(record, traceback)

    def processes_ended(self, records: Sequence[CellRecord]) -> None:
        """Log what other processes measured; the tables of it are in the notebook."""
        self._keep(records)

    def _keep(self, records: Sequence[CellRecord], source: str | None = None) -> None:
        self.history.extend(records)
        self.sources += [record.source if source is None else source for record in records]
        if self._log is not None:
            with self.failure(self._log_path):
                self._log.append(*records)

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
