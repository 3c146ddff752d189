"""A file that gains a line of JSON with every cell, and the records that a file holds."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from ..records.cell_record import CellRecord
from ..records.units import printable
from ..runtime.collector import undisturbed
from ..runtime.errors import unfit
from . import formats
from .decode import ImpossibleNumberError, record_from
from .formats import json_line, without_source


class Log:
    """A log that grows by one line per cell. An existing log is continued: it may show why its kernel died.

    What is added is one write to the end of the file, which is opened for that write only. So a killed kernel
    loses at most the running cell, several writers do not mix their lines, and a file that was moved or
    removed is created again. `History.load` leaves a partial line out.

    Raises:
        ValueError: Nothing can be written there.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: Path = Path(path).expanduser().absolute()  # for cells may change the working directory
        if why_not := unfit(self.path):
            raise ValueError(printable(f"{path} {why_not}"))
        if not self.path.parent.is_dir():
            parent, name = self.path.parent, self.path.name
            raise ValueError(printable(f"there is no folder {parent} to write {name} into"))
        if not os.access(self.path if self.path.exists() else self.path.parent, os.W_OK):
            raise ValueError(printable(f"{path} may not be written"))

    def append(self, *records: CellRecord, log_source: bool = False) -> None:
        """Add records, with the lines of code that they have if `log_source` asks for them.

        Raises:
            OSError: A record cannot be written. It is lost, and so are those behind it.
        """
        lines = "".join(map(json_line, records if log_source else map(without_source, records))).encode()
        if why_not := unfit(self.path):
            raise OSError(errno.EINVAL, why_not, str(self.path))
        with self.path.open("ab+", buffering=0) as file:
            if os.fstat(file.fileno()).st_size:
                file.seek(-1, os.SEEK_END)
                lines = lines if file.read(1) == b"\n" else b"\n" + lines
            if file.write(lines) < len(lines):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))


def load(path: Path, problems: list[str]) -> list[CellRecord]:
    """Return the records of a file in their order; `History.load` has the rules, and what is raised."""
    found = []
    try:
        with undisturbed():  # a load makes many objects and no garbage, and collections cost time
            for where, values in formats.read(path):
                if isinstance(values, str):
                    problems.append(printable(f"{path}, {where}: {values}"))
                    continue
                try:
                    found.append(record_from(values))
                except ImpossibleNumberError as error:
                    problems.append(printable(f"{path}, {where}: {error}; it is left out"))
                except ValueError as error:
                    raise ValueError(f"{path}, {where}: {error}") from None
    except ValueError as error:
        raise ValueError(printable(str(error))) from None
    return found
