"""A file that gains the record of each cell as the cell ends, one line of JSON each."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

from .formats import json_line
from .units import printable

if TYPE_CHECKING:
    from .cell_record import CellRecord

_ADD = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)


class Log:
    """A log that grows by one line per cell. An existing log is continued: it may show why its kernel died.

    Each record is one write to the end of the file, which is opened for that write only. So a killed kernel
    loses at most the running cell, several writers do not mix their lines, and a file that was moved or
    removed is created again. A partial line, left by a full disk or a power cut, is followed by an empty
    line, and `History.load` leaves it out.

    Args:
        path: The file; "~" is the user's home.

    Attributes:
        path: The absolute path.
        lost: How many records were lost since the last one that was written.

    Raises:
        ValueError: Nothing can be written there.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser().absolute()  # cells may change the working directory
        self.lost = 0
        if self.path.is_dir():
            raise ValueError(printable(f"{path} is a folder; name a file"))
        if not self.path.parent.is_dir():
            parent, name = self.path.parent, self.path.name
            raise ValueError(printable(f"there is no folder {parent} to write {name} into"))
        if not os.access(self.path if self.path.exists() else self.path.parent, os.W_OK):
            raise ValueError(printable(f"{path} may not be written"))

    def append(self, record: CellRecord) -> int:
        """Add a record.

        Returns:
            How many records were lost between the last one that was written and this one.

        Raises:
            OSError: The record cannot be written and is lost; the next one is tried again.
        """
        self.lost += 1  # until it is written
        self._add(json_line(record).encode())
        lost, self.lost = self.lost - 1, 0
        return lost

    def close(self) -> None:
        """End the log. Nothing needs to be closed: the file is open only while a record is written."""

    def _add(self, line: bytes) -> None:
        fd = os.open(self.path, _ADD, 0o666)
        try:
            if os.fstat(fd).st_size:
                os.lseek(fd, -1, os.SEEK_END)
                if os.read(fd, 1) != b"\n":
                    line = b"\n\n" + line
            if os.write(fd, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        finally:
            os.close(fd)
