"""Records on their way from one process to another: packed, bounded, validated on arrival."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ..records.decode import from_json, record_from
from ..records.embed import embedded
from ..records.group import Group, Missing
from ..records.process import ProcessRecord

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

MOST_BYTES = 4096  # of a packed record; `embedded` keeps it at half of that


def packed(record: ProcessRecord) -> bytes:
    """Return a record as JSON of at most `MOST_BYTES`; what it has too much of is left out and named."""
    return json.dumps(embedded(record), separators=(",", ":")).encode()


class Arrivals:
    """The records that have arrived, each once."""

    def __init__(self) -> None:
        self._records: dict[Any, ProcessRecord] = {}
        self._refused = 0

    def take(self, payload: bytes) -> ProcessRecord | None:
        """Return the record that was packed, and keep it; None if it is invalid, too large or known."""
        record = unpacked(payload)
        if record is None:
            self._refused += 1
            return None
        key = record.process, record.label, record.started_at
        if key in self._records:
            return None
        self._records[key] = record
        return record

    def group(self, label: str, expected: Iterable[str] = (), why: str = "sent no record") -> Group:
        """Return what has arrived, and begin anew.

        Args:
            label: What was measured.
            expected: The names of the processes (`Process.named`) of which each was to send a record.
            why: What is said of those that did not.
        """
        records, refused = list(self._records.values()), self._refused
        self._records, self._refused = {}, 0
        here = {record.process.named() for record in records}
        missing = [Missing(who, why) for who in expected if who not in here]
        notes = [f"{refused} arrived that {'is no record' if refused == 1 else 'are no records'}"]
        return Group(label, records, missing, notes if refused else ())


def unpacked(payload: bytes) -> ProcessRecord | None:
    """Return the record that was packed; None if it is invalid or too large."""
    if len(payload) > MOST_BYTES:
        return None
    try:
        record = record_from(from_json(payload))
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, ProcessRecord) else None
