"""The command ``compare``: two runs, cell by cell."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ..records.compare import Compared
from ..records.last_runs import LastRuns
from ..records.saved import Saved
from ..render.comparison import comparison
from .request import BadRequest
from .saved_run import read
from .streams import say

if TYPE_CHECKING:
    import argparse

_LISTED = 1000  # cells: of more only those that grew most are listed


def compare(options: argparse.Namespace) -> int:
    """Print how the peak of each cell changed, and return 1 if one grew beyond the tolerance, else 0.

    Raises:
        BadRequest: A run cannot be read, or the two have no cell in common.
    """
    names: dict[str, int] = {}
    was, now = LastRuns(names), LastRuns(names)
    with contextlib.closing(Saved(options.base)) as base, contextlib.closing(Saved(options.new)) as new:
        read(base, options.base, [was])
        read(new, options.new, [now])
        compared = Compared(was, now, options.tolerance, options.floor)
        found = compared.comparison(base.record, new.record, at_most=_LISTED)
    if not (found.counts.pairs if found.counts else found.pairs):
        raise BadRequest(f"{options.base} and {options.new} have no cell in common")
    say(comparison(found))
    return 1 if found.regressed else 0
