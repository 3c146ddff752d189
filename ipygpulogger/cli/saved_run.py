"""A run that was saved as a log or as an executed notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ..records.units import printable
from ..runtime.errors import first_line
from .request import BadRequest
from .streams import aside

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ..records.row import Row
    from ..records.saved import Saved

_PROBLEMS = 1000  # that are said one by one


class Part(Protocol):
    """What gathers an answer from the cells of a run, one after the other."""

    def add(self, row: Row, /) -> None:
        """Add the next cell."""


def read(saved: Saved, path: Path, parts: Sequence[Part]) -> None:
    """Read the cells of a run; those that cannot be read are left out, and a sentence on stderr says so.

    Args:
        saved: The file.
        path: Its path.
        parts: What gains each cell.

    Raises:
        BadRequest: The file cannot be read, or has no record of a cell.
    """
    count = 0
    add = [part.add for part in parts]
    for row in _rows(saved, path):
        count += 1
        for gather in add:
            gather(row)
    if saved.problems and not count:
        raise BadRequest(saved.problems[0])
    if not count:
        raise BadRequest(
            f"{path} holds no record of a cell: execute the notebook with ipygpulogger run,"
            " or with %load_ext ipygpulogger in it"
        )
    for problem in saved.problems[:_PROBLEMS]:
        aside(f"ipygpulogger: {problem}")
    if len(saved.problems) > _PROBLEMS:
        aside(f"ipygpulogger: {path}: {len(saved.problems) - _PROBLEMS:,} more records are left out")


def _rows(saved: Saved, path: Path) -> Iterator[Row]:
    try:
        yield from saved
    except FileNotFoundError as error:
        raise BadRequest(f"file not found: {path}") from error
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # readers of csv, parquet and notebooks raise many kinds
        reason = first_line(error)
        names_it = printable(str(path)) in printable(reason)
        raise BadRequest(reason if names_it else f"{path} cannot be read: {reason}") from error
