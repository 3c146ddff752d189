"""The command ``compare``: two runs, cell by cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..records.compare import compare as compare_records
from ..render.comparison import comparison
from .request import BadRequest
from .saved_run import load
from .streams import say

if TYPE_CHECKING:
    import argparse


def compare(options: argparse.Namespace) -> int:
    """Print how the peak of each cell changed, and return 1 if one grew beyond the tolerance, else 0.

    Raises:
        BadRequest: A run cannot be read, or the two have no cell in common.
    """
    base, new = load(options.base), load(options.new)
    found = compare_records(base, new, tolerance=options.tolerance, floor_bytes=options.floor)
    if not found.pairs:
        raise BadRequest(f"{options.base} and {options.new} have no cell in common")
    say(comparison(found))
    return 1 if found.regressed else 0
