"""How memory changed since the previous cell, and which names grew in a cell, as sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..records import CPU, CellRecord
from ..records.units import MB, rounded_mb, shortened

if TYPE_CHECKING:
    from ..records import Measurement, Owner

_NAMED = 8  # owners
_UNEXPLAINED_BYTES, _UNEXPLAINED = 5 * MB, 0.05
_SHARED = 3  # other names of one owner


def between(measurement: Measurement) -> str:
    """Return how much memory changed since the previous cell; empty if it did not."""
    moved = measurement.between if isinstance(measurement, CellRecord) else ()
    said = [
        f"{'' if device == CPU else f'{device} '}{rounded_mb(size_bytes):+} MB"
        for device, size_bytes in moved
    ]
    return f"between cells: {', '.join(said)}" if said else ""


def grew(measurement: Measurement) -> str:
    """Return the names that account for what a cell consumed, and what they leave unexplained."""
    if not isinstance(measurement, CellRecord) or not (measurement.owners or measurement.unexplained):
        return ""
    named, rest = _names(measurement), _rest(measurement)
    says = "; ".join([*([", ".join(named)] if named else []), *rest])
    if says:
        says = f"grew: {says}{'' if measurement.owners_complete else ' (search cut short)'}"
    return "; ".join(filter(None, [says, *_loaded(measurement)]))


def beyond_names(measurement: Measurement) -> str:
    """Return what `grew` says beside the names: what they leave unexplained, and loaded libraries."""
    if not isinstance(measurement, CellRecord):
        return ""
    cut = [] if measurement.owners_complete else ["the search for names was cut short"]
    return "; ".join([*_rest(measurement), *_loaded(measurement), *cut])


def _notable(record: CellRecord) -> list[Owner]:
    return [owner for owner in record.owners if rounded_mb(owner.size_bytes)]


def _names(record: CellRecord) -> list[str]:
    owners = [owner for owner in _notable(record) if not owner.is_libraries]
    named = [_grew(owner) for owner in owners[:_NAMED]]
    for device in dict.fromkeys(owner.device for owner in owners[_NAMED:]):
        more = [owner for owner in owners[_NAMED:] if owner.device == device]
        size_bytes = sum(owner.size_bytes for owner in more)
        named.append(f"{sum(map(_count, more))} more {_sized(size_bytes, device)}")
    return named


def _loaded(record: CellRecord) -> list[str]:
    return [
        f"{shortened(owner.name)} {_sized(owner.size_bytes, owner.device)}"
        for owner in _notable(record)
        if owner.is_libraries and owner.size_bytes > _worth_telling_bytes(record, owner.device)
    ]


def _rest(record: CellRecord) -> list[str]:
    unexplained = dict(record.unexplained)
    rest = [
        f"{_sized(size_bytes, device)} unexplained"
        for device, size_bytes in unexplained.items()
        if size_bytes > _worth_telling_bytes(record, device)
    ]
    old = [
        f"{_sized(-size_bytes, device)} of that took no new memory"
        for device, size_bytes in unexplained.items()
        if size_bytes < 0
    ]
    return [*rest, *old]


def _worth_telling_bytes(record: CellRecord, device: str) -> float:
    """Return the threshold above which unexplained memory is reported: 5 MB, and 5 % of what was consumed."""
    usage = record.memories().get(device)
    return max(_UNEXPLAINED_BYTES, _UNEXPLAINED * usage.consumed_bytes if usage else 0)


def _count(owner: Owner) -> int:
    """Return how many names an owner stands for: a record sums the smallest up as "24 smaller names"."""
    count, _, rest = owner.name.partition(" ")
    many = owner.kind == "other" and rest == "smaller names" and count.isdecimal()
    return int(count) if many else 1


def _grew(owner: Owner) -> str:
    shared = [shortened(name) for name in owner.shared[:_SHARED]]
    if len(owner.shared) > _SHARED:
        shared.append(f"{len(owner.shared) - _SHARED} more")
    also = f" (also {', '.join(shared)})" if shared else ""
    return f"{shortened(owner.name)} {_sized(owner.size_bytes, owner.device)}{also}"


def _sized(size_bytes: int, device: str) -> str:
    return f"{rounded_mb(size_bytes)} MB" + ("" if device == CPU else f" ({device})")
