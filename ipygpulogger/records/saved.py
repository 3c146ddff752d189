"""The records that a file holds, read one after the other.

A log (.jsonl) is read line by line, and of a line that is valid only the figures are decoded: see `scan`. The
rows of .csv and .parquet files are decoded one by one. A notebook is one JSON document, which is in memory as
a whole.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, BinaryIO

from . import formats
from .decode import ImpossibleNumberError, from_json, record_from
from .row import Row
from .scan import scan
from .units import printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

    from .cell_record import CellRecord
    from .row import Origin


def records(path: Path, problems: list[str]) -> Iterator[CellRecord]:
    """Yield the records of a file in their order; `History.load` has the rules.

    Args:
        path: The file.
        problems: Gains a sentence for each record that is left out.

    Raises:
        ValueError: The file does not hold records; says where.
        ImportError: pyarrow is not installed, and the file is .parquet.
        OSError: The file cannot be read.
    """
    for where, found in formats.read(path):
        record = _record(found, f"{path}, {where}", problems)
        if record is not None:
            yield record


class Saved:
    """The cells of a file as rows, in their order, and the records of those that are shown.

    Args:
        path: The file.

    Attributes:
        problems: A sentence for each record that was left out so far.
    """

    def __init__(self, path: Path) -> None:
        self.problems: list[str] = []
        self._path = path
        self._file: BinaryIO | None = None
        self._shown: dict[int, CellRecord] = {}
        self._open = ExitStack()

    def close(self) -> None:
        """Close the file."""
        self._open.close()

    def __iter__(self) -> Iterator[Row]:
        """Yield a row for each cell.

        Raises:
            ValueError: The file does not hold records; says where, in one line.
            ImportError: pyarrow is not installed, and the file is .parquet.
            OSError: The file cannot be read.
        """
        try:
            if self._path.suffix.lower() == ".jsonl":
                yield from self._lines()
            else:
                yield from map(Row.of, records(self._path, self.problems))
        except ValueError as error:
            raise ValueError(printable(str(error))) from None

    def record(self, origin: Origin) -> CellRecord:
        """Return the record of a row by its origin: of equal origins the same object."""
        if not isinstance(origin, int):
            return origin
        found = self._shown.get(origin)
        if found is None:
            assert self._file is not None
            self._file.seek(origin)
            found = self._shown[origin] = record_from(from_json(self._file.readline()))
        return found

    def _lines(self) -> Iterator[Row]:
        self._file = file = self._seekable()
        for number, place, line, after in formats.log_lines(file):
            row = scan(line, place)
            if row is None:
                where = f"{self._path}, line {number}"
                record = _record(formats.values_of(line, after, where), where, self.problems)
                if record is None:
                    continue
                row = Row.of(record, place)
            yield row

    def _seekable(self) -> BinaryIO:
        """Open the log; a pipe is copied first, because the cells that are shown are read again."""
        file = self._open.enter_context(self._path.open("rb"))
        if file.seekable():
            return file
        import shutil
        import tempfile

        copy = self._open.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
        shutil.copyfileobj(file, copy)
        copy.seek(0)
        return copy


def _record(found: Any, where: str, problems: list[str]) -> CellRecord | None:
    """Return the record of plain values; None, and why among the problems, if it is left out."""
    if isinstance(found, str):
        problems.append(printable(f"{where}: {found}"))
        return None
    try:
        return record_from(found)
    except ImpossibleNumberError as error:
        problems.append(printable(f"{where}: {error}; it is left out"))
        return None
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
