"""Records from JSON, checked against the types of their fields.

Decoders are made from the type hints of the record classes, one per class. msgspec has no rule for numbers
that no machine can have measured, NaN among them; with that rule added it decodes no faster.
"""

from __future__ import annotations

import json
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, is_dataclass, replace
from datetime import datetime
from decimal import Decimal
from functools import cache, partial
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ..records import explained
from ..records.cell_record import CellRecord
from ..records.note import Note
from ..records.process import ProcessRecord
from ..records.usage import Peak, RamUsage
from ..records.value import fields_of
from .embed import default_hi_bytes

# What type hints name. A class in a dict stays what it is while a test freezes time, which replaces those
# that modules name.
NAMES: dict[str, Any] = {**vars(explained), "datetime": datetime}
# Counts, and sizes that are read from a counter; the difference of two sizes may be negative.
_NEVER_NEGATIVE = re.compile(
    "time_s|execution_count|current_gpu|index|count|lineno|hits|precision_bytes|total_bytes|used_bytes"
    "|free_bytes|allocated_bytes|reserved_bytes|limit_bytes|ended|shared_bytes|blocks"
    "|in_use_bytes|kept_bytes|pid|rank|library_frames"
)
# Whose sizes at both ends are read from a counter as well.
_RESIDENT = (RamUsage, explained.ChildrenUsage, explained.ChildUsage)
_ENDS = ("before_bytes", "after_bytes")
_BEYOND = 2**63  # bytes, seconds or anything else that is counted: no machine has as many
_NUMBERS = frozenset((int, float))
_NOUNS: dict[type, str] = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


class WrongRecordError(ValueError):
    """Values are not a record: which one is wrong, and in which way."""

    def __init__(self, path: str, fault: str = "is a number that no machine can have measured") -> None:
        super().__init__(f"not a valid cell record: {path.removeprefix('.') or 'it'} {fault}")


class ImpossibleNumberError(WrongRecordError):
    """A record of a cell has a number that no machine can have measured."""


def types_of(kind: Any) -> dict[str, Any]:
    """Return the type of each field of a class of records, by name."""
    return get_type_hints(kind, localns=NAMES)


def record_from(values: Mapping[str, Any]) -> CellRecord:
    """Return the record that plain values of either form describe, a `ProcessRecord` if they name a process.

    A missing field is None or its default. An unknown field, of a later version, is ignored.

    Raises:
        ImpossibleNumberError: A size, a count or a time is beyond any machine, negative where it cannot be,
            not a whole number or not a number ("NaN"); says which field.
        ValueError: The values are not a record; says which field is wrong.
    """
    has_process = isinstance(values, Mapping) and values.get("process") is not None
    record: CellRecord = _decoder(ProcessRecord if has_process else CellRecord)(values, "")
    return replace(record, notes=tuple(map(Note.read, record.notes))) if record.notes else record


def from_json(text: str | bytes) -> Any:
    """Return what `json.loads` does, with a whole number of more digits than Python converts cut to 30.

    Such a number costs its record alone, as it remains larger than any size. It raises as `json.loads` does.
    """
    try:
        return json.loads(text)
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except ValueError:  # sys.get_int_max_str_digits(): 4300
        return json.loads(text, parse_int=lambda digits: int(digits[:30]))


# A decoder returns the value that a plain value stands for, or raises `WrongRecordError` with its path.
_Decoder = Any  # Callable[[Any, str], Any]


@cache
def _decoder(kind: Any) -> _Decoder:
    if is_dataclass(kind):
        return _of_dataclass(kind)
    options = get_args(kind)
    if get_origin(kind) is Literal:
        return partial(_literal, options)
    if get_origin(kind) in (Union, types.UnionType):
        (inner,) = (option for option in options if option is not types.NoneType)
        decode = _decoder(inner)
        return lambda value, path: None if value is None else decode(value, path)
    if get_origin(kind) is tuple:
        if options[1] is not ...:
            return partial(_several, tuple(map(_decoder, options)))
        return partial(_many, _decoder(options[0]))
    return _datetime if kind is NAMES["datetime"] else partial(_plain, kind)


def _of_dataclass(kind: Any) -> _Decoder:
    hints = types_of(kind)
    members: list[tuple[Any, ...]] = [
        (
            name,
            0 if _NEVER_NEGATIVE.fullmatch(name) or (kind in _RESIDENT and name in _ENDS) else -_BEYOND,
            _decoder(hints[name]),
            None if default is MISSING and types.NoneType in get_args(hints[name]) else default,
        )
        for name, default in fields_of(kind)
    ]

    def decode(values: Any, path: str) -> Any:
        if not isinstance(values, Mapping):
            raise WrongRecordError(path, "is not an object")
        if kind is Peak and "hi_bytes" not in values:
            hi_bytes = default_hi_bytes(values.get("quality", ""), values.get("lo_bytes", 0))
            values = {**values, "hi_bytes": hi_bytes}
        found = {}
        for name, lowest, decode_member, default in members:
            value: Any = values.get(name, default)
            if value is MISSING:
                raise WrongRecordError(f"{path}.{name}", "is missing")
            if value is not default:
                value = decode_member(value, f"{path}.{name}")
            if type(value) in _NUMBERS and value < lowest:
                raise ImpossibleNumberError(f"{path}.{name}")
            found[name] = value
        # Resident memory is never negative; the peak of a device, a sum of changes, may be.
        if kind in _RESIDENT and found["peak"].lo_bytes < 0:
            raise ImpossibleNumberError(f"{path}.peak.lo_bytes")
        return kind(**found)

    return decode


def _plain(kind: Any, value: Any, path: str) -> Any:
    if type(value) is not kind and not (kind is float and type(value) is int):
        is_number = isinstance(value, (int, float, Decimal)) and not isinstance(value, bool)
        wrong = ImpossibleNumberError if kind is int and is_number else WrongRecordError
        raise wrong(path, f"is not {_NOUNS[kind]}")
    if kind in _NUMBERS and not -_BEYOND <= value < _BEYOND:  # nor is "NaN"
        raise ImpossibleNumberError(path)
    return kind(value)


def _literal(words: tuple[str, ...], value: Any, path: str) -> Any:
    if value not in words:
        raise WrongRecordError(path, f"is none of {', '.join(words)}")
    return value


def _many(decode: _Decoder, values: Any, path: str) -> Any:
    if not isinstance(values, (list, tuple)):
        raise WrongRecordError(path, "is not a list")
    return tuple(decode(value, f"{path}[{at}]") for at, value in enumerate(values))


def _several(decoders: Sequence[_Decoder], values: Any, path: str) -> Any:
    if not isinstance(values, (list, tuple)) or len(values) != len(decoders):
        raise WrongRecordError(path, "is not a pair" if len(decoders) == 2 else "is not three values")
    return tuple(decode(value, path) for decode, value in zip(decoders, values, strict=True))


def _datetime(value: Any, path: str) -> datetime:
    try:
        found = datetime.fromisoformat(value.replace("Z", "+00:00"))  # Python 3.10 does not know the Z
    except (AttributeError, TypeError, ValueError):
        raise WrongRecordError(path, "is not a time") from None
    if found.tzinfo is None:
        raise WrongRecordError(path, "is a time without a zone")
    return found
