"""What grows with the session: the cost of a cell with the objects that live, and with the cells that ran."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

import psutil

from .running import Setting, added_ms, compared
from .tables import Figure, Table, figure

if TYPE_CHECKING:
    from .kernels import Kernel

SLOW_S = 3  # a slow tool gets no whole batch
AT_ONCE = 25  # cells that wait in the kernel
OBJECT_BYTES = 80  # an empty list in a list: 56, the collector's header, the reference
HOLD = """
import gc as _gc
_on = _gc.isenabled(); _gc.disable()
_alive = globals().setdefault("_alive", [])
_alive += [[] for _ in range({count} - len(_alive))]
_on and _gc.enable()
_gc.collect()
"""


def objects(setting: Setting) -> Table:
    """Milliseconds added to an empty cell while many objects live."""
    counts = (10**5, 10**6) if setting.quick else (10**5, 10**6, 10**7)
    table = Table("objects", "An empty cell while many objects live: added ms", setting.tools)
    with setting.field() as tools:
        for count in counts:
            if count * OBJECT_BYTES * len(setting.tools) > 0.7 * psutil.virtual_memory().available:
                table.remarks.append(
                    f"No column for {count:,} objects: not enough memory for all kernels at a time."
                )
                break
            tools.silently(HOLD.format(count=count))
            costs_s = tools.timed("pass", setting.few(6, 2), setting.few(3, 2))
            table.columns.append(tools.column(f"{count:,}", compared(costs_s, added_ms)))
    table.remarks.append("The objects are empty lists that were there before the cells.")
    return table


@dataclass
class Grown:
    """How far a tool has come: seconds and resident bytes at the end of each of its batches, and how many cells these had."""

    cells: list[int] = field(default_factory=list)
    took_s: list[float] = field(default_factory=list)
    resident_bytes: list[int] = field(default_factory=list)

    def kept_kb(self) -> float | None:
        """What stayed for each cell, from the end of the first batch to that of the last."""
        counted = sum(self.cells[1:])
        return (self.resident_bytes[-1] - self.resident_bytes[0]) / 1024 / counted if counted else None

    def cell_ms(self, part: slice) -> float:
        """The median of some of the batches, for one cell."""
        pairs = zip(self.took_s[part], self.cells[part], strict=True)
        return median(1000 * took_s / count for took_s, count in pairs)

    def fifth(self) -> int:
        """How many batches are the first or the last fifth."""
        return max(1, len(self.cells) // 5)


def cells(setting: Setting) -> Table:
    """Memory and time as thousands of cells run."""
    many, batch = setting.few(10_000, 400), setting.few(500, 100)
    budget_s = setting.few(20, 3)
    table = Table("cells", f"{many:,} cells, `x = 1`", setting.tools)
    grown = {tool.key: Grown() for tool in setting.tools}
    with setting.field() as tools:
        for _, tool in tools.turns(many // batch):
            if sum(grown[tool.key].took_s) < budget_s:
                tools.ask(tool, partial(_batch, tool.cell("x = 1"), batch, grown[tool.key]))
        there = {key: one for key, one in grown.items() if one.cells}
        kept_kb = {key: found for key, one in there.items() if (found := one.kept_kb()) is not None}
        first_ms = {key: one.cell_ms(slice(one.fifth())) for key, one in there.items()}
        last_ms = {key: one.cell_ms(slice(-one.fifth(), None)) for key, one in there.items()}
        table.columns += [
            tools.column("cells", {key: f"{sum(one.cells):,}" for key, one in there.items()}, ""),
            tools.column("KB a cell", _single(kept_kb)),
            tools.column("ms a cell, first", _single(first_ms), digits=2),
            tools.column("ms a cell, last", _single(last_ms), digits=2),
        ]
    table.remarks.append(
        f"Sent in batches of {batch}. First and last are the medians of the first and the last fifth of the batches; memory "
        f"grew from the end of the first batch to that of the last. A tool that took longer than {budget_s} s ran fewer cells."
    )
    return table


def _batch(cell: str, size: int, grown: Grown, kernel: Kernel) -> None:
    began_s, run = time.perf_counter(), 0
    while run < size and time.perf_counter() - began_s < SLOW_S:
        few = min(AT_ONCE, size - run)
        asked = [kernel.send(cell) for _ in range(few)]
        kernel.wait_all([identifier for identifier, _ in asked])
        run += few
    grown.took_s.append(time.perf_counter() - began_s)
    grown.cells.append(run)
    grown.resident_bytes.append(kernel.resident_bytes())


def _single(values: dict[str, float]) -> dict[str, Figure]:
    return {key: figure([value]) for key, value in values.items()}
