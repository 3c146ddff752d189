"""The command ``report``: the cells of a log or of a saved notebook, ranked."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from ..records.decode import from_json
from ..records.fold import Fold
from ..records.growing import Growing
from ..records.ranking import Ranking
from ..records.saved import Saved
from ..render import summary
from .page import write_page
from .request import check
from .saved_run import read
from .streams import say

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from pathlib import Path

    from ..records import CellRecord
    from .saved_run import Part


def report(options: argparse.Namespace) -> int:
    """Print the ranked cells, write the page if asked, and return the exit status 0."""
    check({"the page": options.html}, options.path, "the log")
    with contextlib.closing(Saved(options.path)) as saved:
        growing, fold = Growing(), Fold(saved.record, _sources(options.path))
        rankings = {by: Ranking(by) for by in {options.by, *(["peak"] if options.html else [])}}
        parts: list[Part] = [growing, *rankings.values(), *([fold] if options.html else [])]
        read(saved, options.path, parts)
        suspects = growing.suspects()
        say(summary.ranking(rankings[options.by].ranked(saved.record, suspects)))
        if options.html:
            write_page(options.html, options.path.stem, fold, rankings["peak"].ranked(saved.record, suspects))
    return 0


def _sources(path: Path) -> Callable[[CellRecord], str]:
    """Return what returns the whole source of a cell if the file is a notebook, else its first line."""
    found: dict[Any, str] = {}

    def source(record: CellRecord) -> str:
        if path.suffix.lower() == ".ipynb" and not found:
            found[None] = ""
            with contextlib.suppress(
                TypeError, KeyError, AttributeError
            ):  # malformed notebook cells: show the first lines
                for cell in from_json(path.read_bytes())["cells"]:
                    text = "".join(cell["source"])
                    found.update({("id", cell.get("id")): text, ("count", cell.get("execution_count")): text})
        return (
            (record.cell_id and found.get(("id", record.cell_id)))
            or (record.execution_count and found.get(("count", record.execution_count)))
            or record.source
        )

    return source
