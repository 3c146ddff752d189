"""A record as the JSON that a notebook output embeds: never more than two kilobytes.

The full form is `CellRecord.to_dict`; the embedded one leaves out what is None or a default.
`SCHEMA` describes both, and `decode.record_from` reads both.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .device_usage import DeviceUsage
from .usage import Peak

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .cell_record import CellRecord

LIMIT_BYTES = 2048
SCHEMA = Path(__file__).with_name("record.schema.json")

_NEVER_CUT = frozenset(("started_at", "status", "quality", "kind", "cell_id", "left_out"))
_ESSENTIAL = ("before_bytes", "after_bytes", "used_bytes", "index", "backend", "attributed")  # and the peak
_ID_BYTES = 64  # of a cell id, once everything else is cut; nbformat allows no longer one

_SCALARS = frozenset((int, str, float, bool))
_SURROGATE = "\\ud"  # how JSON in ASCII writes a lone surrogate, or half of a character beyond U+FFFF

_Step = (
    Any  # Callable[[dict[str, Any]], list[str]]: changes the values, names the fields it took something from
)


def embedded(record: CellRecord, left_out: Iterable[str] = ()) -> dict[str, Any]:
    """Return the form that a notebook output embeds: no None, no defaults, and at most two kilobytes.

    If that is too much, the least important is left out first, and ``left_out`` names the fields that lost
    something: time series lose points; of what was alive at the peak the smaller rows are added up; then
    lines, owners, notes, ladders and children are removed; long texts are cut; with very many devices the
    figures become columns. No other number is changed. What every form keeps: label, count, cell, status and
    time; for RAM and each device the memory before and after and the peak; and the use of the whole device.

    Args:
        record: The record.
        left_out: The fields that have lost something already.

    Returns:
        Plain values for JSON. Written with the separators "," and ":" they take at most `LIMIT_BYTES`,
        whether or not characters beyond ASCII are escaped.
    """
    values: dict[str, Any] = _without_defaults(record)
    values["started_at"] = record.started_at.isoformat()
    shortened, written = dict.fromkeys(left_out), _json(values)
    if not shortened and _SURROGATE not in written and len(written) <= LIMIT_BYTES:
        return values  # as for nearly every cell
    shortened |= dict.fromkeys(_change_texts(values, _without_surrogates))
    for step in _STEPS:
        if shortened:
            values["left_out"] = list(shortened)
        if _json_bytes(values) <= LIMIT_BYTES:
            break
        shortened |= dict.fromkeys(step(values))
    return values


@cache
def defaults(kind: Any) -> tuple[tuple[str, Any], ...]:
    """Return the fields of a dataclass with their defaults, `dataclasses.MISSING` for a required field."""
    return tuple((field.name, field.default) for field in fields(kind))


def default_hi_bytes(quality: str, lo_bytes: int) -> int | None:
    """Return the upper bound of a peak that states none: an exact peak is its own upper bound."""
    return lo_bytes if quality == "exact" else None


def _without_defaults(value: Any) -> Any:
    """Return plain values without those that `decode.record_from` fills in."""
    kind: Any = type(value)
    if hasattr(kind, "__dataclass_fields__"):
        kept = {
            name: member if type(member) in _SCALARS else _without_defaults(member)
            for name, default in defaults(kind)
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


def _json_bytes(values: Any) -> int:
    return len(_json(values))


def _without_surrogates(text: str) -> str:
    """Return a text that has a UTF-8 encoding: the kernel cannot send a lone surrogate."""
    return text if text.isascii() else text.encode(errors="replace").decode()


# -- the steps, each of which takes something from the values ----------------------------------------


def _thin(points: int) -> _Step:
    """Keep at most this many points of each time series."""

    def thin(values: dict[str, Any]) -> list[str]:
        found = []
        for usage in (values["gen"], *values.get("gpus", ())):
            timeline = usage.get("timeline", ())
            if len(timeline) > points:
                found.append("timeline")
                usage["timeline"] = _thinned(timeline, points)
                if not points:
                    del usage["timeline"]
        return found

    return thin


def _thinned(timeline: list[Any], points: int) -> list[Any]:
    """Return both ends, and the highest point of each equal part between them."""
    if not points:
        return []
    inner = timeline[1:-1]
    cuts = [len(inner) * i // (points - 2) for i in range(points - 1)]
    highest = [max(inner[a:b], key=lambda point: point[1]) for a, b in pairwise(cuts)]
    return [timeline[0], *highest, timeline[-1]]


def _first(name: str, count: int) -> _Step:
    """Keep the first members of a list, of the list in ``out_of_memory`` too."""

    def first(values: dict[str, Any]) -> list[str]:
        found = []
        for holder, field in ((values, name), (values.get("out_of_memory", {}), "out_of_memory")):
            if len(holder.get(name, ())) > count:
                found.append(field)
                holder[name] = holder[name][:count]
                if not count and holder is values:
                    del values[name]
        return found

    return first


def _fold(count: int) -> _Step:
    """Keep the largest rows of what was alive at the peak, and the others as one for each device and kind."""

    def fold(values: dict[str, Any]) -> list[str]:
        found = []
        for holder, name, field in (
            (values, "at_peak", "at_peak"),
            (values.get("out_of_memory", {}), "alive", "out_of_memory"),
        ):
            rows = holder.get(name, ())
            if len(rows) > count:
                from .at_peak import AtPeak, folded

                holder[name] = _without_defaults(folded([AtPeak(**row) for row in rows], count))
                found += [field] if holder[name] != rows else []
        return found

    return fold


def _cut(room_bytes: int) -> _Step:
    """Cut every text to what fits into this much JSON."""

    def cut(text: str) -> str:
        if len(text) <= room_bytes and _json_bytes(text) <= room_bytes + 2:
            return text
        text = text[:room_bytes]
        while _json_bytes(text) > room_bytes - 1:  # with two quotes, and without three dots
            text = text[:-1]
        return text + "..."

    return lambda values: _change_texts(values, cut, _NEVER_CUT)


def _change_texts(
    values: dict[str, Any], change: Callable[[str], str], spared: frozenset[str] = frozenset()
) -> list[str]:
    """Change all texts but those in the spared fields; return the fields that did change."""
    changed = _changed(values, change, spared)
    found = [name for name in values if changed[name] != values[name]]
    values.update(changed)
    return found


def _changed(value: Any, change: Callable[[str], str], spared: frozenset[str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_changed(member, change, spared) for member in value]
    if isinstance(value, dict):
        return {name: m if name in spared else _changed(m, change, spared) for name, m in value.items()}
    return value


def _without(*names: str) -> _Step:
    """Remove these fields."""
    return lambda values: [name for name in names if values.pop(name, None) is not None]


def _without_heap(values: dict[str, Any]) -> list[str]:
    """Remove malloc's share of general RAM."""
    return ["gen" for name in ("heap_before", "heap_after") if values["gen"].pop(name, None)][:1]


def _without_largest(values: dict[str, Any]) -> list[str]:
    """Remove the child processes one by one; their sum stays."""
    return ["children"] if values.get("children", {}).pop("largest", None) else []


def _only(*names: str) -> _Step:
    """Keep only these figures of each device."""

    def only(values: dict[str, Any]) -> list[str]:
        kept = [{name: gpu[name] for name in names if name in gpu} for gpu in values.get("gpus", ())]
        if kept == values.get("gpus", kept):
            return []
        values["gpus"] = kept
        return ["gpus"]

    return only


def _as_columns(values: dict[str, Any]) -> list[str]:
    """Write the devices as columns: for each figure a list by device, or one value if all are equal."""
    gpus = values.pop("gpus", None)
    if gpus is None:
        return []
    columns: dict[str, Any] = {}
    default = dict(defaults(DeviceUsage))
    for name in _ESSENTIAL:
        columns[name] = [gpu.get(name, None if default[name] is MISSING else default[name]) for gpu in gpus]
    peaks = [gpu["peak"] for gpu in gpus]
    usual = [default_hi_bytes(p["quality"], p["lo_bytes"]) for p in peaks]
    highest = [p.get("hi_bytes", hi_bytes) for p, hi_bytes in zip(peaks, usual, strict=True)]
    columns |= {f"peak.{name}": [peak[name] for peak in peaks] for name in ("lo_bytes", "quality")}
    if highest != usual:
        columns["peak.hi_bytes"] = highest
    values["gpu_columns"] = {
        name: column[0] if name != "index" and all(member == column[0] for member in column) else column
        for name, column in columns.items()
    }
    return ["gpus"]


def _short_id(values: dict[str, Any]) -> list[str]:
    """Keep the end of a long cell id: some front ends put the notebook's id before the cell's."""
    whole = values.get("cell_id", "")
    kept = whole[-_ID_BYTES:]
    while _json_bytes(kept) > _ID_BYTES + 2:
        kept = kept[1:]
    if kept == whole:
        return []
    values["cell_id"] = kept
    return ["cell_id"]


def _fewer(values: dict[str, Any]) -> list[str]:
    """Keep as many devices as there is room for; ``left_out`` names them already."""
    columns = values.get("gpu_columns", {"index": ()})
    while columns["index"] and _json_bytes(values) > LIMIT_BYTES:
        for column in columns.values():
            if isinstance(column, list):
                column.pop()
    return []


_STEPS: tuple[_Step, ...] = (
    *map(_thin, (32, 16, 8)),
    _fold(12),
    _first("owners", 3),
    _cut(200),
    _thin(0),
    _fold(6),
    _without_heap,
    _without("lines"),
    _fold(3),
    _without_largest,
    _first("notes", 3),
    _cut(100),
    _fold(0),
    _first("alive", 0),
    _only(
        "name",
        "uuid",
        "peak",
        "total_bytes",
        "free_bytes",
        "unattributed_bytes",
        "unknown_rise_bytes",
        "context_bytes",
        *_ESSENTIAL,
    ),
    _without("at_peak", "peak_times_s"),
    _without("pinned", "children", "owners", "unexplained", "between", "notes", "dimensions", "code"),
    _only("name", "peak", *_ESSENTIAL),
    _first("owners", 0),
    _cut(60),
    _without("out_of_memory"),
    _as_columns,
    _cut(24),
    _short_id,
    _cut(8),
    _fewer,
)
