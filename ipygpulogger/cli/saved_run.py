"""A run that was saved as a log or as an executed notebook."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from ..records.history import History
from ..records.units import printable
from ..runtime.errors import first_line
from .request import BadRequest
from .streams import aside

if TYPE_CHECKING:
    from pathlib import Path


def load(path: Path) -> History:
    """Read the records of a run; records that cannot be read are left out, and a sentence on stderr says so.

    Raises:
        BadRequest: The file cannot be read, or has no record of a cell.
    """
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            history = History.load(path)
    except FileNotFoundError as error:
        raise BadRequest(f"file not found: {path}") from error
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # readers of csv, parquet and notebooks raise many kinds
        reason = first_line(error)
        names_it = printable(str(path)) in printable(reason)
        raise BadRequest(reason if names_it else f"{path} cannot be read: {reason}") from error
    if warned and not history:
        raise BadRequest(str(warned[0].message))
    if not history:
        raise BadRequest(
            f"{path} holds no record of a cell: execute the notebook with ipygpulogger run,"
            " or with %load_ext ipygpulogger in it"
        )
    for warning in warned:
        aside(f"ipygpulogger: {warning.message}")
    return history
