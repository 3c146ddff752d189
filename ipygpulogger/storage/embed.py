"""A record as the JSON that a notebook output embeds: at most 16 kilobytes.

The full form is `CellRecord.to_dict`; the embedded one leaves out what is None or a default.
`SCHEMA` describes both, and `decode.record_from` reads both.
"""

from __future__ import annotations

import json
from collections.abc import Container
from dataclasses import MISSING
from pathlib import Path
from typing import Any

from ..records.cell_record import CellRecord
from ..records.usage import Peak
from ..records.value import fields_of

LIMIT_BYTES = 16384
SCHEMA = Path(__file__).with_name("record.schema.json")

_MOST_ROWS, _CHARACTERS = 12, 100  # what is left of tables and texts
_ROWS = ("at_peak", "alive")  # the tables: lists of `AtPeak`
_ID_CHARACTERS = 64  # nbformat allows no longer ids
_ESSENTIAL = (  # what stays in any case; of devices as many as fit
    *("label", "started_at", "time_s", "gen", "gpus", "execution_count", "cell_id", "source", "status"),
    *("error", "current_gpu", "gpulog_only", "process", "left_out"),
)
_SCALARS = frozenset((int, str, float, bool))


def embedded(record: CellRecord) -> dict[str, Any]:
    """Return the form that a notebook output embeds: no None, no defaults, and at most `LIMIT_BYTES`.

    If that is too much, the calls that led to rows of the peak go, then memory over time. Then the smaller
    rows are added up, texts are cut; then the largest fields, in the end devices go. ``left_out`` names the
    fields that lost something. No other number is changed.
    """
    whole, values = dict[str, Any](), dict[str, Any]()
    for without in ((), ("stacks",), ("stacks", "timeline")):
        values = _without_defaults(record, without) | {"started_at": record.started_at.isoformat()}
        whole, written = whole or values, _json(values)
        if "\\ud" not in written and len(written) <= LIMIT_BYTES:
            break  # as for nearly every cell; "\ud" is how JSON in ASCII begins a surrogate
    else:
        values = {name: _shortened(name, value) for name, value in values.items()}
    if lost := {name for name, value in whole.items() if value != values.get(name)}:
        values["left_out"] = sorted(lost)
    while len(_json(values)) > LIMIT_BYTES:
        optional = {name: len(_json(value)) for name, value in values.items() if name not in _ESSENTIAL}
        largest = max(optional, key=optional.__getitem__, default="gpus")
        if optional:
            del values[largest]
        else:
            values["gpus"].pop()
        values["left_out"] = sorted(lost := lost | {largest})
    return values


def default_hi_bytes(quality: str, lo_bytes: int) -> int | None:
    """Return the upper bound of a peak that states none: an exact peak is its own upper bound."""
    return lo_bytes if quality == "exact" else None


def _without_defaults(value: Any, without: Container[str] = ()) -> Any:
    """Return plain values without those that `decode.record_from` fills in, and without fields so named."""
    kind: Any = type(value)
    if hasattr(kind, "__dataclass_fields__"):
        kept = {
            name: member if type(member) in _SCALARS else _without_defaults(member, without)
            for name, default in fields_of(kind)
            if name not in without
            if (member := getattr(value, name)) is not None and (default is MISSING or member != default)
        }
        if kind is Peak and value.hi_bytes == default_hi_bytes(value.quality, value.lo_bytes):
            kept.pop("hi_bytes", None)
        return kept
    return [_without_defaults(member, without) for member in value] if isinstance(value, tuple) else value


def _json(values: Any) -> str:
    return json.dumps(values, separators=(",", ":"))  # pure ASCII


def _shortened(name: str, value: Any) -> Any:
    """Return the largest of many rows, a text's beginning, an id's end; other values as they are."""
    if isinstance(value, str):
        text = value.encode(errors="replace").decode()  # a kernel cannot send a lone surrogate
        if name == "cell_id":  # some front ends put the notebook's id before the cell's
            return text[-_ID_CHARACTERS:]
        return text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}..."
    if name in _ROWS and len(value) > _MOST_ROWS:
        from ..records.explained import AtPeak, folded

        value = _without_defaults(folded([AtPeak(**row) for row in value], _MOST_ROWS))
    if isinstance(value, dict):
        return {inner: _shortened(inner, member) for inner, member in value.items()}
    return [_shortened("", member) for member in value] if isinstance(value, list) else value
