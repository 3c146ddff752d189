"""How the figures of very many cells are spread: quantiles, and the cells by their first lines."""

from __future__ import annotations

import heapq
import math
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .row import Key, Memory, Row

QUANTILES = (0.5, 0.9, 0.99, 1.0)


class Lines(NamedTuple):
    """The cells with the same first line.

    Attributes:
        source: The line.
        cells: How many cells.
        failed: How many of them did not succeed.
        time_s: Their time together.
        ram_bytes: The most RAM that one of them needed.
        gpu_bytes: The most that one of them needed on a device; None where no use of a device is known.
    """

    source: str
    cells: int
    failed: int
    time_s: float
    ram_bytes: int
    gpu_bytes: int | None


@dataclass(slots=True)
class MemorySpread:
    """One memory over many cells: what each needed, and its peak, in bytes."""

    needed: array[int] = field(default_factory=lambda: array("q"))
    peak: array[int] = field(default_factory=lambda: array("q"))


class Spread:
    """The figures of all cells that were added, a number each.

    Attributes:
        time_s: The time of each cell.
        memories: RAM and each device, where the use is attributed, by `Row.key_of`.
    """

    def __init__(self) -> None:
        self.time_s = array("d")
        self.memories: dict[Key, MemorySpread] = {}
        self._numbers: dict[str, int] = {}  # of first lines
        self._count, self._failed, self._time_s = array("Q"), array("Q"), array("d")
        self._ram_bytes, self._gpu_bytes = array("q"), array("q")

    def add(self, row: Row) -> None:
        """Add the next cell."""
        self.time_s.append(row.time_s)
        self._add(row, row.gen)
        gpu_bytes = -1
        for gpu in row.gpus:
            if gpu.attributed:
                self._add(row, gpu)
                gpu_bytes = max(gpu_bytes, gpu.needed_bytes)
        number = self._numbers.setdefault(row.source, len(self._numbers))
        if number == len(self._count):
            self._count.append(0)
            self._failed.append(0)
            self._time_s.append(0.0)
            self._ram_bytes.append(0)
            self._gpu_bytes.append(-1)
        self._count[number] += 1
        self._failed[number] += not row.succeeded
        self._time_s[number] += row.time_s
        self._ram_bytes[number] = max(self._ram_bytes[number], row.gen.needed_bytes)
        self._gpu_bytes[number] = max(self._gpu_bytes[number], gpu_bytes)

    def _add(self, row: Row, memory: Memory) -> None:
        key = row.key_of(memory)
        spread = self.memories.get(key)
        if spread is None:
            spread = self.memories[key] = MemorySpread()
        spread.needed.append(memory.needed_bytes)
        spread.peak.append(memory.lo_bytes)

    def lines(self, at_most: int) -> tuple[list[Lines], int]:
        """Return the first lines whose cells took the most time, and how many such lines there are."""
        times = self._time_s
        longest = heapq.nlargest(at_most, self._numbers.items(), key=lambda item: times[item[1]])
        found = [
            Lines(
                source,
                self._count[number],
                self._failed[number],
                times[number],
                self._ram_bytes[number],
                None if self._gpu_bytes[number] < 0 else self._gpu_bytes[number],
            )
            for source, number in longest
        ]
        return found, len(self._numbers)


def quantiles(figures: Sequence[float]) -> list[float]:
    """Return the figures that `QUANTILES` of all do not exceed; there must be one figure at least."""
    ordered = sorted(figures)
    return [ordered[math.ceil(part * len(ordered)) - 1] for part in QUANTILES]
