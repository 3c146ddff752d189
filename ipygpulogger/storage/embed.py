"""A record as the JSON that a notebook output embeds: at most 16 kilobytes.

The full form is `CellRecord.to_dict`; the embedded one leaves out what is None or a default.
`SCHEMA` describes both, and `decode.record_from` reads both.
"""

from __future__ import annotations

import json
from dataclasses import MISSING
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..records.usage import Peak
from ..records.value import fields_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..records.cell_record import CellRecord

LIMIT_BYTES = 16384
SCHEMA = Path(__file__).with_name("record.schema.json")

_ROWS, _MEMBERS, _CHARACTERS = 12, 6, 100  # what is left of tables, lists and texts
_ID_CHARACTERS = 64  # nbformat allows no longer ids
# What stays in any case, of a record and of each of its devices.
_ESSENTIAL = (
    *("label", "started_at", "time_s", "gen", "gpus", "execution_count", "cell_id", "source", "status"),
    *("error", "current_gpu", "gpulog_only", "process"),
)
_OF_A_DEVICE = (
    *("before_bytes", "after_bytes", "peak", "index", "name", "uuid", "backend", "attributed", "unified"),
    *("total_bytes", "used_bytes", "free_bytes"),
)
_SCALARS = frozenset((int, str, float, bool))


def embedded(record: CellRecord, left_out: Iterable[str] = ()) -> dict[str, Any]:
    """Return the form that a notebook output embeds: no None, no defaults, and at most `LIMIT_BYTES`.

    If that is too much, the least important is left out first, and ``left_out`` names the fields that lost
    something: time series go; of long lists the first members stay, and of what was alive at the
    peak the smaller rows are added up; long texts are cut; then only what a report cannot do without stays,
    of as many devices as fit. No other number is changed. ``left_out`` names those that lost some before.
    """
    values: dict[str, Any] = _without_defaults(record)
    values["started_at"] = record.started_at.isoformat()
    lost, written = set(left_out), _json(values)
    if not lost and "\\ud" not in written and len(written) <= LIMIT_BYTES:
        return values  # as for nearly every cell; "\ud" is how JSON in ASCII begins a surrogate
    for step in (_without_surrogates, _without_series, _shorten, _cut, _bare):
        changed = {name: step(name, value) for name, value in values.items() if name != "left_out"}
        lost |= {name for name, value in changed.items() if value != values[name]}
        values = {name: value for name, value in changed.items() if value is not None}
        values |= {"left_out": sorted(lost)} if lost else {}
        if len(_json(values)) <= LIMIT_BYTES:
            return values
    values["left_out"] = sorted({*lost, "gpus"})
    while values.get("gpus") and len(_json(values)) > LIMIT_BYTES:
        values["gpus"].pop()
    return values


def default_hi_bytes(quality: str, lo_bytes: int) -> int | None:
    """Return the upper bound of a peak that states none: an exact peak is its own upper bound."""
    return lo_bytes if quality == "exact" else None


def _without_defaults(value: Any) -> Any:
    """Return plain values without those that `decode.record_from` fills in."""
    kind: Any = type(value)
    if hasattr(kind, "__dataclass_fields__"):
        kept = {
            name: member if type(member) in _SCALARS else _without_defaults(member)
            for name, default, _ in fields_of(kind)
            if (member := getattr(value, name)) is not None and (default is MISSING or member != default)
        }
        if kind is Peak and value.hi_bytes == default_hi_bytes(value.quality, value.lo_bytes):
            kept.pop("hi_bytes", None)
        elif kind is Peak:
            kept["hi_bytes"] = value.hi_bytes
        return kept
    return [_without_defaults(member) for member in value] if isinstance(value, tuple) else value


def _json(values: Any) -> str:
    return json.dumps(values, separators=(",", ":"))  # pure ASCII


# -- the steps: each returns what is left of a field, None for nothing -------------------------------------


def _without_surrogates(_: str, value: Any) -> Any:
    """Return texts that have a UTF-8 encoding: a kernel cannot send a lone surrogate."""
    return _changed(value, lambda text: text.encode(errors="replace").decode())


def _without_series(_: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_without_series("", member) for member in value]
    if isinstance(value, dict):
        return {name: member for name, member in value.items() if name != "timeline"}
    return value


def _shorten(name: str, value: Any) -> Any:
    """Return the first members of lists; what was alive at the peak keeps its largest rows and all sums."""
    if name in ("at_peak", "alive") and len(value) > _ROWS:
        from ..records.explained import AtPeak, folded

        return _without_defaults(folded([AtPeak(**row) for row in value], _ROWS))
    if name in ("gen", "gpus", "at_peak", "alive") or not isinstance(value, (list, dict)):
        return value
    if isinstance(value, dict):
        return {inner: _shorten(inner, member) for inner, member in value.items()}
    return value[:_MEMBERS]


def _cut(name: str, value: Any) -> Any:
    """Return shorter texts; of an id the end, as some front ends put the notebook's id before the cell's."""
    if name == "cell_id":
        return value[-_ID_CHARACTERS:]
    return _changed(value, lambda text: text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}...")


def _bare(name: str, value: Any) -> Any:
    """Return only what a report cannot do without."""
    if name == "gen":
        return {inner: value[inner] for inner in ("before_bytes", "after_bytes", "peak")}
    if name == "gpus":
        return [{inner: gpu[inner] for inner in gpu if inner in _OF_A_DEVICE} for gpu in value]
    return value if name in _ESSENTIAL else None


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_changed(member, change) for member in value]
    if isinstance(value, dict):
        return {name: _changed(member, change) for name, member in value.items()}
    return value
