"""Records as JSON: the form that a notebook keeps, within two kilobytes, and back again.

The full form is `CellRecord.to_dict`; `compact` is the same without what is None or a default.
`SCHEMA` describes both.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from decimal import Decimal
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from .values import CellRecord, ChildrenUsage, DeviceUsage, Peak, RamUsage, Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LIMIT_BYTES = 2048
SCHEMA = Path(__file__).with_name("record.schema.json")

# Cut short they would be other words.
_WORDS = frozenset(("started_at", "status", "quality", "kind", "cell_id", "left_out"))
_OWN = (
    "before_bytes",
    "after_bytes",
    "used_bytes",
    "index",
    "backend",
    "attributed",
)  # beside a device's peak
# Counts, and sizes that are read from a counter; a difference of two of them may be negative.
_NEVER_NEGATIVE = frozenset(
    (
        "time_s",
        "execution_count",
        "current_gpu",
        "index",
        "count",
        "lineno",
        "hits",
        "precision_bytes",
        "total_bytes",
        "used_bytes",
        "free_bytes",
        "allocated_bytes",
        "reserved_bytes",
        "limit_bytes",
        "in_use_bytes",
        "kept_bytes",
    )
)
_BEYOND = 2**63  # bytes, seconds, or anything else that is counted: no machine has as many
_ID_BYTES = 64  # of a cell's name, where all else is cut already: nbformat allows no longer one

# -- the compact form ------------------------------------------------------------------------------


def compact(record: CellRecord, left_out: Iterable[str] = ()) -> dict[str, Any]:
    """The form that a notebook keeps: without what is None or a default, and never above two kilobytes.

    Where that is not enough the least important is left out, and ``left_out`` names what it was taken
    from: the courses get fewer points, then lines, owners, notes, ladders and the children go, long texts
    are cut, and with very many devices their figures become columns. No number is changed. What
    remains of any record: its label, count, cell, status and time, and of RAM and each device what was
    in use before and after, the peak, and the whole device's use.

    Args:
        record: Whose form it is.
        left_out: What is missing in it already.

    Returns:
        Plain values for JSON, at most `LIMIT_BYTES` with the separators "," and ":", whether a
        character beyond ASCII is written as it is or escaped.
    """
    values: dict[str, Any] = _small(record)
    values["started_at"] = record.started_at.isoformat()
    gone = dict.fromkeys((*left_out, *_texts(values, _sound)))
    for step in _STEPS:
        if gone:
            values["left_out"] = list(gone)
        if _bytes(values) <= LIMIT_BYTES:
            break
        gone |= dict.fromkeys(step(values))
    return values


def _small(value: Any) -> Any:
    """Plain values, without those that `record_from` fills in."""
    kind: Any = type(value)
    if hasattr(kind, "__dataclass_fields__"):
        kept = {
            name: _small(member)
            for name, default in _defaults(kind)
            if (member := getattr(value, name)) is not None and (default is MISSING or member != default)
        }
        if kind is Peak and value.hi_bytes == _highest(value.quality, value.lo_bytes):
            kept.pop("hi_bytes", None)
        elif kind is Peak:
            kept["hi_bytes"] = value.hi_bytes
        return kept
    return [_small(member) for member in value] if isinstance(value, tuple) else value


def _highest(quality: str, lo_bytes: int) -> int | None:
    """What bounds a peak from above where nothing else is said: an exact one bounds itself."""
    return lo_bytes if quality == "exact" else None


@cache
def _defaults(kind: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((field.name, field.default) for field in fields(kind))


def _bytes(values: Any) -> int:
    return len(json.dumps(values, separators=(",", ":")))  # all of it ASCII


def is_utf8(text: str) -> bool:
    """Whether a text can be written as UTF-8: half a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _sound(text: str) -> str:
    """Without half a surrogate pair: it has no UTF-8, and the kernel's message would not go out."""
    return text if text.isascii() else text.encode(errors="replace").decode()


# Each step changes the values and names the fields that it took something from.


def _thin(points: int) -> Callable[[dict[str, Any]], list[str]]:
    def thin(values: dict[str, Any]) -> list[str]:
        found = []
        for usage in (values["gen"], *values.get("gpus", ())):
            course = usage.get("timeline", ())
            if len(course) > points:
                found.append("timeline")
                usage["timeline"] = _thinned(course, points)
                if not points:
                    del usage["timeline"]
        return found

    return thin


def _thinned(course: list[Any], points: int) -> list[Any]:
    """Both ends, and of each part between them the highest point."""
    if not points:
        return []
    inner = course[1:-1]
    cuts = [len(inner) * i // (points - 2) for i in range(points - 1)]
    highest = [max(inner[a:b], key=lambda point: point[1]) for a, b in pairwise(cuts)]
    return [course[0], *highest, course[-1]]


def _first(name: str, count: int) -> Callable[[dict[str, Any]], list[str]]:
    """Keep this many of a list, of a death's owners too."""

    def first(values: dict[str, Any]) -> list[str]:
        found = []
        for holder, said in ((values, name), (values.get("out_of_memory", {}), "out_of_memory")):
            if len(holder.get(name, ())) > count:
                found.append(said)
                holder[name] = holder[name][:count]
                if not count and holder is values:
                    del values[name]
        return found

    return first


def _cut(room_bytes: int) -> Callable[[dict[str, Any]], list[str]]:
    """Cut every text to what fits into this much JSON."""

    def cut(text: str) -> str:
        if len(text) <= room_bytes and _bytes(text) <= room_bytes + 2:
            return text
        text = text[:room_bytes]
        while _bytes(text) > room_bytes - 1:  # two quotes, three dots
            text = text[:-1]
        return text + "..."

    return lambda values: _texts(values, cut, _WORDS)


def _texts(
    values: dict[str, Any], change: Callable[[str], str], spared: frozenset[str] = frozenset()
) -> list[str]:
    """Change all texts but those of the spared names."""
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


def _without(*names: str) -> Callable[[dict[str, Any]], list[str]]:
    return lambda values: [name for name in names if values.pop(name, None) is not None]


def _plain_ram(values: dict[str, Any]) -> list[str]:
    return ["gen" for name in ("heap_before", "heap_after") if values["gen"].pop(name, None)][:1]


def _only(*names: str) -> Callable[[dict[str, Any]], list[str]]:
    """Of each device these figures alone."""

    def only(values: dict[str, Any]) -> list[str]:
        kept = [{name: gpu[name] for name in names if name in gpu} for gpu in values.get("gpus", ())]
        if kept == values.get("gpus", kept):
            return []
        values["gpus"] = kept
        return ["gpus"]

    return only


def _columns(values: dict[str, Any]) -> list[str]:
    """The devices as columns: a list each, or one value for all of them; in the order of the devices."""
    gpus = values.pop("gpus", None)
    if gpus is None:
        return []
    columns: dict[str, Any] = {}
    defaults = dict(_defaults(DeviceUsage))
    for name in _OWN:
        columns[name] = [gpu.get(name, None if defaults[name] is MISSING else defaults[name]) for gpu in gpus]
    peaks = [gpu["peak"] for gpu in gpus]
    highest = [p.get("hi_bytes", _highest(p["quality"], p["lo_bytes"])) for p in peaks]
    columns |= {f"peak.{name}": [peak[name] for peak in peaks] for name in ("lo_bytes", "quality")}
    if highest != [_highest(p["quality"], p["lo_bytes"]) for p in peaks]:
        columns["peak.hi_bytes"] = highest
    values["gpu_columns"] = {
        name: column[0] if name != "index" and all(member == column[0] for member in column) else column
        for name, column in columns.items()
    }
    return ["gpus"]


def _short_id(values: dict[str, Any]) -> list[str]:
    """The end of a long name of a cell: its beginning is the notebook's."""
    whole = values.get("cell_id", "")
    name = whole[-_ID_BYTES:]
    while _bytes(name) > _ID_BYTES + 2:
        name = name[1:]
    if name == whole:
        return []
    values["cell_id"] = name
    return ["cell_id"]


def _fewer(values: dict[str, Any]) -> list[str]:
    """As many devices as there is room for."""
    columns = values.get("gpu_columns", {"index": ()})
    while columns["index"] and _bytes(values) > LIMIT_BYTES:
        for column in columns.values():
            if isinstance(column, list):
                column.pop()
    return []  # of the devices something is left out already


_STEPS: tuple[Callable[[dict[str, Any]], list[str]], ...] = (
    *map(_thin, (32, 16, 8)),
    _first("owners", 3),
    _cut(200),
    _thin(0),
    _plain_ram,
    _without("lines"),
    _first("notes", 3),
    _cut(100),
    _only(
        "name",
        "uuid",
        "peak",
        "total_bytes",
        "free_bytes",
        "unattributed_bytes",
        "unknown_rise_bytes",
        "context_bytes",
        *_OWN,
    ),
    _without("pinned", "children", "owners", "unexplained", "between", "notes"),
    _only("name", "peak", *_OWN),
    _first("owners", 0),
    _cut(60),
    _without("out_of_memory"),
    _columns,
    _cut(24),
    _short_id,
    _cut(8),
    _fewer,
)

# -- and back --------------------------------------------------------------------------------------


class ImpossibleNumberError(ValueError):
    """A record of a cell, one of whose numbers no machine can have measured."""


def record_from(values: Mapping[str, Any]) -> CellRecord:
    """The record that a dict of either form tells of, as read from JSON.

    What is missing is None or its default; what is unknown, of a later version, is ignored.

    Raises:
        ImpossibleNumberError: A size, a count or a time is beyond any machine, negative where it cannot be,
            no whole number or no number ("NaN"); says which.
        ValueError: It is no record; says which field is wrong.
    """
    try:
        if isinstance(values, Mapping) and "gpu_columns" in values:
            values = {**values, "gpus": _rows(values["gpu_columns"])}
        record: CellRecord = _decoder(CellRecord)(values)
    except _WrongError as wrong:
        kind = ImpossibleNumberError if isinstance(wrong, _ImpossibleError) else ValueError
        raise kind(f"this is no record of a cell: {wrong}") from None
    return record


def from_json(text: str | bytes) -> Any:
    """`json.loads`, also of whole numbers with more digits than Python converts: they stay beyond all sizes.

    Raises:
        ValueError: The text is no JSON.
        RecursionError: It is nested too deeply.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError:  # sys.get_int_max_str_digits(): 4300
        return json.loads(text, parse_int=lambda digits: int(digits[:30]))


class _WrongError(Exception):
    """Where the fault lies, and what it is."""

    def __init__(self, fault: str, path: str = "") -> None:
        super().__init__(fault, path)
        self.fault, self.path = fault, path

    def __str__(self) -> str:
        return f"{self.path.removeprefix('.') or 'it'} {self.fault}"


class _ImpossibleError(_WrongError):
    """The fault is a number that no machine can have measured."""

    def __init__(self, fault: str = "is a number that no machine can have measured", path: str = "") -> None:
        super().__init__(fault, path)


def _rows(columns: Any) -> list[dict[str, Any]]:
    """The devices, one by one, of `_columns`."""
    if not isinstance(columns, dict) or not isinstance(columns.get("index"), list):
        raise _WrongError("is no object with an index", "gpu_columns")
    rows: list[dict[str, Any]] = [{"peak": {}} for _ in columns["index"]]
    for name, column in columns.items():
        members = column if isinstance(column, list) else [column] * len(rows)
        if len(members) != len(rows):
            raise _WrongError("is of another length than the index", f"gpu_columns.{name}")
        part, _, of_peak = name.partition(".")
        for row, member in zip(rows, members, strict=True):
            if part == "peak" and of_peak:
                row["peak"][of_peak] = member
            else:
                row[name] = member
    return rows


# A decoder gives the value that a plain value stands for, or raises `_WrongError`. Those of dataclasses look
# at plain members themselves, by their exact types: a record has a hundred, and a log ten thousand records.
_Decoder = Any  # Callable[[Any], Any]


@cache
def _decoder(kind: Any) -> _Decoder:
    if is_dataclass(kind):
        return _of_dataclass(kind)
    options = get_args(kind)
    if get_origin(kind) is Literal:
        return _of_literal(options)
    if get_origin(kind) in (Union, types.UnionType):
        (inner,) = (option for option in options if option is not types.NoneType)
        decode = _decoder(inner)
        return lambda value: None if value is None else decode(value)
    if get_origin(kind) is tuple:
        if options[1] is not ...:
            return _of_pair(*map(_decoder, options))
        decode_all = _of_many(_decoder(options[0]))
        return _of_course(decode_all) if kind == Timeline else decode_all
    return {float: _float, datetime: _datetime}.get(kind) or _of_plain(kind)


def _of_dataclass(kind: Any) -> _Decoder:
    hints = get_type_hints(kind, localns={"datetime": datetime})
    members: list[tuple[Any, ...]] = [
        (
            name,
            _PLAIN.get(hints[name], ()),
            0 if name in _NEVER_NEGATIVE or (kind in _RESIDENT and name in _ENDS) else -_BEYOND,
            _decoder(hints[name]),
            _missing(kind, name, default, hints[name]),
        )
        for name, default in _defaults(kind)
    ]

    def decode(values: Any) -> Any:
        if not isinstance(values, Mapping):
            raise _WrongError("is no object")
        found = {}
        for name, plain, lowest, decode_member, default in members:
            value: Any = values.get(name, default)
            if type(value) not in plain:
                if value is MISSING:
                    raise _WrongError("is missing", f".{name}")
                if value is not default:
                    try:
                        value = decode_member(value)
                    except _WrongError as wrong:
                        raise type(wrong)(wrong.fault, f".{name}{wrong.path}") from None
            if type(value) in _NUMBERS and not lowest <= value < _BEYOND:
                raise _ImpossibleError(path=f".{name}")
            found[name] = value
        return kind(**found)

    if kind is Peak:
        return lambda values: decode(_bounded(values))
    return (lambda values: _resident(decode(values))) if kind in _RESIDENT else decode


def _resident(usage: RamUsage | ChildrenUsage) -> RamUsage | ChildrenUsage:
    if usage.peak.lo_bytes < 0:
        raise _ImpossibleError(path=".peak.lo_bytes")
    return usage


_NUMBERS = frozenset((int, float))
_RESIDENT, _ENDS = (RamUsage, ChildrenUsage), ("before_bytes", "after_bytes")  # read, and no sum of changes


_PLAIN: dict[Any, tuple[type, ...]] = {
    int: (int,),
    str: (str,),
    bool: (bool,),
    int | None: (int, types.NoneType),
    str | None: (str, types.NoneType),
}


def _missing(kind: Any, name: str, default: Any, hint: Any) -> Any:
    """What a field is that is not there."""
    if default is not MISSING:
        return default
    if kind is DeviceUsage and name == "name":  # beside many devices there was no room for it
        return ""
    return None if types.NoneType in get_args(hint) else MISSING


def _bounded(values: Any) -> Any:
    if isinstance(values, Mapping) and "hi_bytes" not in values:
        return {**values, "hi_bytes": _highest(values.get("quality", ""), values.get("lo_bytes", 0))}
    return values


def _of_plain(kind: type) -> _Decoder:
    said = {int: "a whole number", str: "a text", bool: "true or false"}[kind]

    def decode(value: Any) -> Any:
        if type(value) is not kind:
            is_number = (
                kind is int and isinstance(value, (int, float, Decimal)) and not isinstance(value, bool)
            )
            raise (_ImpossibleError if is_number else _WrongError)(f"is not {said}")
        if type(value) is int and not -_BEYOND <= value < _BEYOND:
            raise _ImpossibleError
        return value

    return decode


def _of_literal(words: tuple[str, ...]) -> _Decoder:
    def decode(value: Any) -> Any:
        if value not in words:
            raise _WrongError(f"is none of {', '.join(words)}")
        return value

    return decode


def _of_many(decode: _Decoder) -> _Decoder:
    def decode_all(values: Any) -> Any:
        if not isinstance(values, (list, tuple)):
            raise _WrongError("is no list")
        found = []
        for value in values:
            try:
                found.append(decode(value))
            except _WrongError as wrong:
                raise type(wrong)(wrong.fault, f"[{len(found)}]{wrong.path}") from None
        return tuple(found)

    return decode_all


def _of_course(decode_all: _Decoder) -> _Decoder:
    """The same at once for a course without a fault: it has more members than the rest of a record."""

    def decode(points: Any) -> Any:
        try:
            found = [
                (at, size)
                for at, size in points
                if type(at) is float and type(size) is int and abs(at) < _BEYOND and abs(size) < _BEYOND
            ]
            whole = len(found) == len(points)
        except (TypeError, ValueError):
            whole = False
        return tuple(found) if whole and type(points) in (list, tuple) else decode_all(points)

    return decode


def _of_pair(first: _Decoder, second: _Decoder) -> _Decoder:
    def decode(value: Any) -> Any:
        if not isinstance(value, (list, tuple)) or len(value) != 2:
            raise _WrongError("is no pair")
        return first(value[0]), second(value[1])

    return decode


def _float(value: Any) -> float:
    if type(value) not in _NUMBERS:
        raise _WrongError("is not a number")
    try:
        found = float(value)
    except OverflowError:
        raise _ImpossibleError from None
    if math.isnan(found):
        raise _ImpossibleError("is not a number")
    if abs(found) >= _BEYOND:
        raise _ImpossibleError
    return found


def _datetime(value: Any) -> datetime:
    try:
        found = datetime.fromisoformat(value.replace("Z", "+00:00"))  # Z: Python 3.11 and newer know it
    except (AttributeError, TypeError, ValueError):
        raise _WrongError("is not a time") from None
    if found.tzinfo is None:
        raise _WrongError("is a time without a zone")
    return found
