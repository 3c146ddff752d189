"""The command ``report``: the cells of a log or of a saved notebook, ranked."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from ..records.decode import from_json
from ..render import summary
from .page import write_page
from .request import check
from .saved_run import load
from .streams import say

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

    from ..records import CellRecord


def report(options: argparse.Namespace) -> int:
    """Print the ranked cells, write the page if asked, and return the exit status 0."""
    check({"the page": options.html}, options.path, "the log")
    history = load(options.path)
    say(summary.summary(history.rank(by=options.by), options.by, history.suspects()))
    if options.html:
        write_page(options.html, options.path.stem, history, _sources(options.path, history))
    return 0


def _sources(path: Path, history: Sequence[CellRecord]) -> list[str]:
    """Return the whole source of each cell if the file is a notebook, else its first line."""
    found: dict[Any, str] = {}
    if path.suffix.lower() == ".ipynb":
        with contextlib.suppress(
            TypeError, KeyError, AttributeError
        ):  # malformed notebook cells: show the first lines
            for cell in from_json(path.read_bytes())["cells"]:
                source = "".join(cell["source"])
                found |= {("id", cell.get("id")): source, ("count", cell.get("execution_count")): source}
    return [
        (record.cell_id and found.get(("id", record.cell_id)))
        or (record.execution_count and found.get(("count", record.execution_count)))
        or record.source
        for record in history
    ]
