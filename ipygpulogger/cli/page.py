"""The HTML page that ``run --html`` and ``report --html`` write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..render import summary
from ..runtime import files
from .streams import aside

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ..records.fold import Fold
    from ..records.ranking import Ranked


def write_page(path: Path, title: str, fold: Fold, ranked: Ranked | None, said: Sequence[str] = ()) -> None:
    """Write the page, whole or not at all, and say where it is.

    Args:
        path: Where.
        title: The page's heading.
        fold: The cells.
        ranked: The cells ranked by peak.
        said: Sentences about the run as a whole, shown on top.
    """
    from ..render.page import folded_page, page

    table = summary.ranking_html(ranked)
    if fold.is_whole:
        shown = fold.shown()
        text = page(title, shown, sources=list(map(fold.source, shown)), ranked=table, said=said)
    else:
        text = folded_page(title, fold, ranked=table, said=said)
    files.write(path, text)
    aside(f"page: {path}")
