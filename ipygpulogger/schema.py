"""Records as JSON: the form that a notebook keeps, within two kilobytes, and back again."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .records import CellRecord


def compact(record: CellRecord) -> dict[str, Any]:
    """The form that a notebook keeps: `CellRecord.to_dict` without what is None or a default."""
    return _small(record) | {"started_at": record.started_at.isoformat()}


def _small(value: Any) -> Any:
    if is_dataclass(value):
        members = ((name, getattr(value, name), default) for name, default in _members(type(value)))
        return {
            name: _small(member)
            for name, member, default in members
            if member is not None and (default is MISSING or member != default)
        }
    if isinstance(value, tuple):
        return [_small(member) for member in value]
    return value


@cache
def _members(kind: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((field.name, field.default) for field in fields(kind))
