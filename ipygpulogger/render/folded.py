"""The figures of very many cells as two tables: how they are spread, and the cells by their first lines."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from ..records.spread import quantiles
from ..records.units import rounded_mb, shortened, time_text
from .markup import Drawn, Text, code, scrolling, small, table

if TYPE_CHECKING:
    from ..records.row import Key
    from ..records.spread import Spread
    from .markup import Cell

_LINES = 20
_HEAD = ("Median", "90 % below", "99 % below", "Most")


def spread(found: Spread, names: dict[Key, str]) -> str:
    """Return the tables.

    Args:
        found: The figures of the cells.
        names: The names of RAM and of the devices.
    """
    rows: list[list[Cell]] = [["Time", Text(""), *map(time_text, quantiles(found.time_s))]]
    for key, name in names.items():
        if key in found.memories:
            memory = found.memories[key]
            for what, figures in ("Needed", memory.needed), ("Peak", memory.peak):
                told = [f"{rounded_mb(size_bytes):,}" for size_bytes in quantiles(figures)]
                rows.append([what, Text(escape(name)), *told])
    parts = scrolling(table(["", Text(""), *_HEAD], rows, caption="How the figures are spread; MB"))
    return f"<div class=ranked>{parts}<div style=margin-top:.8rem>{_lines(found)}</div></div>"


def _lines(found: Spread) -> str:
    """Return the first lines whose cells took the most time together."""
    lines, count = found.lines(_LINES)
    rows: list[list[Cell]] = [
        [
            time_text(line.time_s),
            f"{line.cells:,}",
            f"{line.failed:,}" if line.failed else "",
            f"{rounded_mb(line.ram_bytes):,}",
            "" if line.gpu_bytes is None else f"{rounded_mb(line.gpu_bytes):,}",
            Drawn(code(shortened(line.source))),
        ]
        for line in lines
    ]
    head: list[str | Text] = ["Time", "Cells", "Failed", "RAM needed", "GPU needed", Text("Source")]
    told = scrolling(table(head, rows, caption="By first line, the most time first; needed at most, in MB"))
    return told + (small(f"and {count - len(lines):,} more first lines") if count > len(lines) else "")
