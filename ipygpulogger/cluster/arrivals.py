"""Records on their way from one process to another: packed, bounded, validated on arrival."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ..records.decode import from_json, record_from
from ..records.embed import embedded
from ..records.group import Group, Missing, place_of
from ..records.process import ProcessRecord
from ..records.units import size_text

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ..records.measurement import Measurement

_MOST_SEEN = 1 << 17  # records whose duplicates are recognized, at least
MOST_BYTES = 4096  # of a packed record; `embedded` keeps it at half of that


def packed(record: ProcessRecord) -> bytes:
    """Return a record as JSON of at most `MOST_BYTES`; what it has too much of is left out and named."""
    return json.dumps(embedded(record), separators=(",", ":")).encode()


class Arrivals:
    """The records that have arrived, each once; of very many, those that needed the most memory.

    What it makes of them does not depend on the order in which they came, nor on what came twice. One thread
    at a time may use it.
    """

    def __init__(self, most: int | None = None) -> None:
        """Begin.

        Args:
            most: How many records to keep; the others are counted. None keeps them all.
        """
        self._most = most
        self._seen: set[int] = set()  # hashes of keys
        self._seen_before: set[int] = set()  # the same of records that came earlier
        self._begin()

    def _begin(self) -> None:
        self._records: dict[Any, ProcessRecord] = {}
        self._here: set[str] = set()  # the names of the processes
        self._forget()
        self._refused = self._more = self._more_bytes = 0

    def __len__(self) -> int:
        """Return how many records have arrived, with those that were only counted."""
        return len(self._records) + self._more

    def take(self, payload: bytes) -> ProcessRecord | None:
        """Return the record that was packed, and keep it; None if it is invalid, too large or known."""
        record = unpacked(payload)
        if record is None:
            self.refuse()
            return None
        key = record.process, record.label, record.started_at
        known = hash(key)
        if known in self._seen or known in self._seen_before:
            self._settle(key, record)
            return None
        self._seen.add(known)
        if len(self._seen) > _MOST_SEEN:
            self._forget()
        self._here.add(record.process.named())
        self._records[key] = record
        if self._most is not None and len(self._records) >= 2 * self._most:
            self._keep(self._most)  # half of them at once, or each further one would sort all
        return record

    def _settle(self, key: Any, record: ProcessRecord) -> None:
        """Keep the same one of two different records of one scope, whichever came first."""
        kept = self._records.get(key)
        if kept is not None and kept != record:
            self._records[key] = min(kept, record, key=packed)

    def _forget(self) -> None:
        """Forget which records came long ago; those that may still come a second time are known."""
        self._seen_before, self._seen = self._seen, set()

    def refuse(self) -> None:
        """Count something that arrived and is not a valid record."""
        self._refused += 1

    def count_more(self, count: int, needed_bytes: int) -> None:
        """Count records that their sender left out.

        Args:
            count: How many.
            needed_bytes: What the largest of them needed, see `most_needed_bytes`.
        """
        self._more += count
        self._more_bytes = max(self._more_bytes, needed_bytes)

    def _keep(self, most: int) -> None:
        """Keep the records that needed the most, and count the others."""
        ranked = sorted(
            self._records.items(), key=lambda item: (-most_needed_bytes(item[1]), place_of(item[1]))
        )
        if left_out := ranked[most:]:
            self._records = dict(ranked[:most])
            self.count_more(len(left_out), most_needed_bytes(left_out[0][1]))

    def group(self, label: str, expected: Iterable[str] = (), why: str = "sent no record") -> Group:
        """Return what has arrived, and begin anew.

        Args:
            label: What was measured.
            expected: The names of the processes (`Process.named`) of which each was to send a record.
            why: What is said of those that did not.
        """
        if self._most is not None:
            self._keep(self._most)
        records = list(self._records.values())
        missing = [Missing(who, why) for who in expected if who not in self._here]
        notes = []
        if self._refused:
            are = "is" if self._refused == 1 else "are"
            notes.append(f"{self._refused} of what arrived {are} not valid and left out")
        if self._more:
            size = size_text(self._more_bytes)
            notes.append(f"{self._more} more, each of which needed {size} at most, are only counted")
        self._begin()
        return Group(label, records, missing, notes)


def most_needed_bytes(measured: Measurement) -> int:
    """Return what a block or task needed of the memory that it needed most of: general RAM, or a device's."""
    return max(usage.needed_bytes for usage in measured.memories().values())


def unpacked(payload: bytes) -> ProcessRecord | None:
    """Return the record that was packed; None if it is invalid or too large."""
    if len(payload) > MOST_BYTES:
        return None
    try:
        record = record_from(from_json(payload))
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, ProcessRecord) else None
