"""Records on their way from one process to another: packed, validated on arrival, collected into a group."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Generic, TypeVar

from ..analysis.group import Group, Missing, place_of
from ..records.process import ProcessRecord
from ..records.units import size_text
from ..storage.decode import from_json, record_from
from ..storage.embed import LIMIT_BYTES, embedded

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..records.measurement import Measurement

T = TypeVar("T")

MOST_BYTES = 2 * LIMIT_BYTES  # of a packed record; `embedded` keeps it at half of that


def packed(record: ProcessRecord) -> bytes:
    """Return a record as JSON of at most `MOST_BYTES`; what it has too much of is left out and named."""
    return json.dumps(embedded(record), separators=(",", ":")).encode()


def unpacked(payload: bytes) -> ProcessRecord | None:
    """Return the record that was packed; None if it is invalid or too large."""
    if len(payload) > MOST_BYTES:
        return None
    try:
        record = record_from(from_json(payload))
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, ProcessRecord) else None


def most_needed_bytes(measured: Measurement) -> int:
    """Return what a block or task needed of the memory that it needed most of: general RAM, or a device's."""
    return max(usage.needed_bytes for usage in measured.memories().values())


class Largest(Generic[T]):
    """Of very many items those that needed the most memory; the others are only counted.

    It holds `most` of them, up to twice as many until `keep` is called; None keeps all. `place` decides which
    comes first of two that needed the same.
    """

    def __init__(self, most: int | None, place: Callable[[T], Any] = lambda _: None) -> None:
        self._most, self._place = most, place
        self._items: list[tuple[int, T]] = []
        self.more = self.more_bytes = 0  # how many were left out, and what the largest of them needed

    def __len__(self) -> int:
        """Return how many items there were, with those that are only counted."""
        return len(self._items) + self.more

    def add(self, needed_bytes: int, item: T) -> None:
        """Add an item."""
        self._items.append((needed_bytes, item))
        if self._most is not None and len(self._items) >= 2 * self._most:
            self.keep(self._most)  # half of them at once, or each further one would sort all

    def keep(self, most: int | None) -> list[T]:
        """Keep at most so many items, count the others, and return what is kept."""
        if most is not None and len(self._items) > most:
            self._items.sort(key=lambda item: (-item[0], self._place(item[1])))
            self.count(len(self._items) - most, self._items[most][0])
            del self._items[most:]
        return [item for _, item in self._items]

    def count(self, more: int, more_bytes: int) -> None:
        """Count items that were left out, of which the largest needed so much."""
        self.more += more
        self.more_bytes = max(self.more_bytes, more_bytes)


class Arrivals:
    """The records that have arrived; of more than `most`, those that needed the most memory.

    What it makes of them does not depend on the order in which they came. One thread at a time may use it.

    Attributes:
        missing: The processes that will send no record.
        unsent: The number of tasks of which no record will come.
        refused: The number of what arrived and is not a valid record.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self.records: Largest[ProcessRecord] = Largest(most, place_of)
        self.missing: list[Missing] = []
        self.refused = self.unsent = 0

    def __bool__(self) -> bool:
        return bool(len(self.records) or self.missing or self.unsent)

    def take(self, payload: bytes) -> ProcessRecord | None:
        """Return the record that was packed, and keep it; None if it is invalid or too large."""
        record = unpacked(payload)
        if record is None:
            self.refused += 1
        else:
            self.records.add(most_needed_bytes(record), record)
        return record

    def group(self, label: str, unsent: str = "{} more tasks ended, whose records did not arrive") -> Group:
        """Return what has arrived; `unsent` tells of tasks whose records will not come."""
        records, notes = self.records.keep(self._most), []
        if self.refused:
            are = "is" if self.refused == 1 else "are"
            notes.append(f"{self.refused} of what arrived {are} not valid and left out")
        if more := self.records.more:
            size = size_text(self.records.more_bytes)
            notes.append(f"{more} more, each of which needed {size} at most, are only counted")
        if self.unsent:
            notes.append(unsent.format(self.unsent))
        return Group(label, records, self.missing, notes)
