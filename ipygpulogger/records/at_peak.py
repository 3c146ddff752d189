"""One row of what was alive when memory was highest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .displayed import Displayed
from .value import Value, later

if TYPE_CHECKING:
    from collections.abc import Sequence

Kind = Literal[
    "parameters", "gradients", "optimizer state", "activations", "variables", "temporaries", "before"
]
OTHERS = "others"  # the name of a row that stands for several, which has no place
BEFORE = "before the cell"  # the place of what had been allocated when the measurement began
UNRECORDED = "not recorded"  # the place of what was allocated where torch's history is lost


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AtPeak(Displayed, Value):
    """Blocks of memory that were alive when a device's memory was highest, of one kind and from one place.

    The rows of one device add up to the peak of the framework's allocator there, those of "cpu" to the peak
    of what was asked for.

    Attributes:
        device: "cuda:0"; "cpu" for general RAM.
        kind: What the blocks held, by the first of these that is so. "parameters" of modules, "optimizer
            state" and "gradients"; "variables" are inputs and other tensors that a name held at the end or
            when a backward pass began; "activations" were kept for a backward pass, or are kept by a graph
            that is still there; "temporaries" were freed before the end, or are a library's workspace; and
            "before" was held before the measurement began, and by nothing that can be named. A cell that did
            not ask for the table and changed nothing on a device has one row of this kind, without names.
        name: The variable that holds the blocks, or the source line that allocated them. Of gradients,
            activations and temporaries it is the line, if they were allocated within the measurement.
        place: The user's line that allocated them: "In [7]:3", "train.py:41"; `BEFORE` for earlier ones,
            `UNRECORDED` where neither is known.
        size_bytes: Their size, as the allocator counts it.
        blocks: How many there were.
        resident_bytes: Of general RAM, how much resident memory rose for them, where that is known and is not
            what was asked for.
    """

    device: str
    kind: Kind
    name: str
    place: str
    size_bytes: int
    blocks: int
    resident_bytes: int | None = later(None)

    @property
    def is_sum(self) -> bool:
        """Whether the row stands for several places."""
        return self.name == OTHERS and not self.place


def folded(rows: Sequence[AtPeak], most: int) -> tuple[AtPeak, ...]:
    """Return the largest rows, and the others as one row for each device and kind; the sums stay the same.

    Args:
        rows: By device, the largest first.
        most: How many rows stay as they are.

    Returns:
        By device: the rows that stay, then those that stand for several, named `OTHERS` and without a place.
    """
    single = [row for row in rows if not row.is_sum]
    if len(single) <= most:
        return tuple(rows)
    largest = sorted(range(len(single)), key=lambda number: (-single[number].size_bytes, number))
    kept = [single[number] for number in sorted(largest[:most])]
    others: dict[tuple[str, Kind], list[AtPeak]] = {}
    for row in (*(single[number] for number in largest[most:]), *(row for row in rows if row.is_sum)):
        others.setdefault((row.device, row.kind), []).append(row)
    sums = sorted(map(_sum, others.values()), key=lambda row: -row.size_bytes)
    devices = dict.fromkeys(row.device for row in rows)
    return tuple(row for device in devices for row in (*kept, *sums) if row.device == device)


def _sum(rows: Sequence[AtPeak]) -> AtPeak:
    """Return one row for several of one device and kind; a single row is returned as it is."""
    first, *more = rows
    if not more:
        return first
    known = any(row.resident_bytes is not None for row in rows)
    sizes = (row.size_bytes if row.resident_bytes is None else row.resident_bytes for row in rows)
    return AtPeak(
        first.device,
        first.kind,
        OTHERS,
        "",
        sum(row.size_bytes for row in rows),
        sum(row.blocks for row in rows),
        sum(sizes) if known else None,
    )
