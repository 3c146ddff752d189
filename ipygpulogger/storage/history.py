"""The records of a notebook's cells, in the order they finished: ranked, saved, loaded."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..analysis import leaks
from ..records.cell_record import CellRecord, process_of
from ..records.note import Note, NoteKind
from ..records.units import cells_text
from ..records.value import Sequenced

if TYPE_CHECKING:
    import os

    import pandas as pd


class History(Sequenced[CellRecord]):
    """The finished cells, a sequence of `CellRecord`: ranked, searched for leaks, saved and loaded.

    Example:
        ``history = History.load("run.jsonl")``, or ``il.history`` of a logger. Then
        ``history.rank("time")[:3]``, ``history.suspects()``, ``history.to_pandas()`` or
        ``history.save("run.csv")``.
    """

    def __init__(self, records: Sequence[CellRecord] = ()) -> None:
        self._records: list[CellRecord] = list(records)

    def append(self, record: CellRecord) -> None:
        """Add the record of a cell that has finished."""
        self._records.append(record)

    def extend(self, records: Iterable[CellRecord]) -> None:
        """Add the records of several processes."""
        self._records.extend(records)

    def __repr__(self) -> str:
        return f"<History: {self.counted()}>"

    def counted(self) -> str:
        """Return how many there are: "3 cells", "3 cells and 12 records of other processes"."""
        others = sum(process_of(record) is not None for record in self)
        return cells_text(len(self) - others, others)

    def rank(self, by: str = "needed") -> list[CellRecord]:
        """Return the records, the highest first, without cells of this package's own magics.

        Args:
            by: "needed": how far memory rose above what was in use before the cell, on the device where
                that is the most; where it is less than 1 MB, or equal, the same of RAM. "consumed": the most
                that RAM or any one device grew by. "highest": as "needed", of the highest in use itself;
                of cells with the same MB the one that needed more. "time": the longest first.

        Raises:
            ValueError: Another word.
        """
        from ..analysis import ranking  # here and below: what few sessions need

        return ranking.rank(self, by)

    def suspects(self) -> list[tuple[CellRecord, ...]]:
        """Return the cells that may leak.

        A cell is a suspect when at least its last three runs each consumed more than 1 MB of RAM or of one
        device, and each left more than 1 MB more in use there than the run before. RAM that malloc merely
        keeps is not counted.

        Two runs are of the same cell when they have the same id by the front end and the same first line;
        where the front end sends no ids, as in a terminal, the same code but for its numbers and comments,
        and no magic such as ``%%time`` before it. Records of other processes are left out.

        Returns:
            For each cell its last runs, oldest first, as many as grew.
        """
        return leaks.suspects(self)

    def marked(self, record: CellRecord) -> CellRecord:
        """Return a record that is about to be appended, with a note if it makes its cell a suspect."""
        cell = leaks.identity(record) if record.grown() else None
        if cell is None:
            return record
        runs = leaks.growing_runs([*(one for one in self if leaks.identity(one) == cell), record])
        if len(runs) < leaks.RUNS:
            return record
        names = ", ".join(leaks.growing_names(runs))
        note = f"grew in each of its last {len(runs)} runs{names and ': '}{names}"
        return replace(record, notes=(*record.notes, Note(NoteKind.GREW, note)))

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return plain values for JSON, one dict per cell: bytes, seconds, ISO 8601 times."""
        return [record.to_dict() for record in self]

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per cell; nested figures become columns such as ``gen.peak.lo_bytes``.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("to_pandas() needs pandas: pip install 'ipygpulogger[pandas]'") from error
        from . import formats

        rows, columns = formats.flat(self)
        return pd.DataFrame(rows, columns=columns)

    def save(self, path: str | os.PathLike[str], *, log_source: bool = False) -> None:
        """Write the records to a .jsonl, .csv or .parquet file, replacing an older one whole or not at all.

        The columns of .csv and .parquet are those of `to_pandas`, with lists as JSON. `log_source` adds code.

        Raises:
            ValueError: The file name ends otherwise.
            ImportError: pyarrow is not installed, and the file is .parquet.
            OSError: The file cannot be written.
        """
        from . import formats

        formats.save(Path(path), self, log_source=log_source)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> History:
        """Read what `save` wrote, a log, or the records that a saved notebook (.ipynb) keeps of its cells.

        Two things are left out, each with a warning: a line that a killed kernel or a full disk cut short,
        and a record with a number that no machine can have measured.

        Raises:
            ValueError: The file name ends otherwise, or the file does not hold records; says where.
            ImportError: pyarrow is not installed, and the file is .parquet.
            OSError: The file cannot be read.
        """
        from . import log

        problems: list[str] = []
        records = log.load(Path(path), problems)
        for problem in problems:
            warnings.warn(problem, stacklevel=2)
        return cls(records)
