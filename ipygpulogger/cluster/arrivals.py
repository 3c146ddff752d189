"""Records on their way from one process to another: packed, validated on arrival, collected into a group."""

from __future__ import annotations

import heapq
import itertools
import json
from contextlib import suppress

from ..analysis.group import Group
from ..records.process import ProcessRecord
from ..records.units import size_text
from ..storage.decode import from_json, record_from
from ..storage.embed import LIMIT_BYTES, embedded

MOST_BYTES = 2 * LIMIT_BYTES  # of a packed record; `embedded` keeps it at half of that


def packed(record: ProcessRecord) -> bytes:
    """Return a record as JSON of at most `MOST_BYTES`; what it has too much of is left out and named."""
    return json.dumps(embedded(record), separators=(",", ":")).encode()


def unpacked(payload: bytes) -> ProcessRecord | None:
    """Return the record that was packed; None if it is invalid or too large."""
    with suppress(ValueError, RecursionError):
        record = record_from(from_json(payload)) if len(payload) <= MOST_BYTES else None
        return record if isinstance(record, ProcessRecord) else None
    return None


class Arrivals:
    """The records that have arrived, of more than `most` those that needed the most memory."""

    # One thread at a time may use it.
    def __init__(self, most: int | None = None) -> None:
        self._most, self._numbers = most, itertools.count()
        self._records: list[tuple[int, int, ProcessRecord]] = []  # a heap: what it needed, its number, itself
        self._more = self._more_bytes = 0  # how many were left out, and what the largest of them needed
        self.refused: int = 0  # how much was no valid record
        self.unsent: int = 0  # how many tasks will send none

    def __bool__(self) -> bool:
        return bool(self._records or self.unsent)

    def take(self, payload: bytes) -> ProcessRecord | None:
        """Return the record that was packed, and keep it; None if it is invalid or too large."""
        record = unpacked(payload)
        if record is None:
            self.refused += 1
            return None
        needed_bytes = max(usage.needed_bytes for usage in record.memories().values())  # of RAM, or a device
        entry = needed_bytes, next(self._numbers), record
        if self._most is None or len(self._records) < self._most:
            heapq.heappush(self._records, entry)
        else:
            self._more_bytes = max(self._more_bytes, heapq.heappushpop(self._records, entry)[0])
            self._more += 1
        return record

    def group(self, label: str) -> Group:
        """Return what has arrived."""
        notes = []
        if self.refused:
            are = "is" if self.refused == 1 else "are"
            notes.append(f"{self.refused} of what arrived {are} not valid and left out")
        if self._more:
            size = size_text(self._more_bytes)
            notes.append(f"{self._more} more, each of which needed {size} at most, are only counted")
        if self.unsent:
            notes.append(f"{self.unsent} more tasks ended, whose records did not arrive")
        return Group(label, [record for _, _, record in self._records], notes=notes)
