"""The HTML page that ``run --html`` and ``report --html`` write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..render import summary
from ..runtime import files
from .streams import aside

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ..records.history import History


def write_page(
    path: Path, title: str, history: History, sources: Sequence[str], said: Sequence[str] = ()
) -> None:
    """Write the page, whole or not at all, and say where it is.

    Args:
        path: Where.
        title: The page's heading.
        history: The cells, in the order they ran.
        sources: The source of each cell.
        said: Sentences about the run as a whole, shown on top.
    """
    from ..render.page import page

    ranked = summary.html(history.rank(by="peak"), "peak", history.suspects())
    files.write(path, page(title, history, sources=sources, ranked=ranked, said=said))
    aside(f"page: {path}")
