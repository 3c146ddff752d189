"""The figures of a record, read from its line in a log without decoding the whole line.

A pattern, made from the type hints of the record classes as the decoders are, matches a line that
`formats.json_line` writes if every value on it is of its type and within its range. Such a line is valid, and
groups of the pattern have the figures: this takes a tenth of the time of `decode.record_from`. A line that
the pattern does not match may be valid all the same. It has to be decoded, which also says what is wrong.
"""

from __future__ import annotations

import json
import re
import types
from dataclasses import MISSING, is_dataclass
from datetime import datetime
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin

from .cell_record import CellRecord
from .decode import may_be_negative
from .device_usage import DeviceUsage
from .embed import defaults
from .hints import types_of
from .process import Process
from .row import RAM, Memory, Row
from .usage import Quality, consumed
from .value import later_fields

# With at most 18 digits a number is below 2**63, which `decode` demands.
_NATURAL = r"(?:0|[1-9]\d{0,17})"
_INTEGER = r"(?:0|-?[1-9]\d{0,17})"
_FLOAT = r"(?:0|[1-9]\d{0,17})(?:\.\d+)?(?:e-\d\d)?"
_TEXT = r'"[ !#-\[\]-\x7f]*(?:\\(?:["\\/bfnrt]|u[0-9a-f]{4})[ !#-\[\]-\x7f]*)*"'
_TIME = r'"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{6})?[+-]\d\d:\d\d"'
_PLAIN = {str: _TEXT, bool: "(?:true|false)", datetime: _TIME}

# The groups of each part, in the order of the fields.
_PEAK = ("peak.lo_bytes", "peak.hi_bytes", "peak.quality", "peak.precision_bytes")
_USAGE = ("before_bytes", "after_bytes", *_PEAK)
_KEPT = ("heap_before.kept_bytes", "heap_after.kept_bytes")
_FIRST = ("label", "started_at", "time_s", *(f"gen.{name}" for name in (*_USAGE, *_KEPT)))
_DEVICE = (*_USAGE, "index", "uuid", "backend", "attributed", "used_bytes")
_LAST = ("execution_count", "cell_id", "source", "status", "gpulog_only", "code")
_PROCESS = ("host", "pid", "rank", "worker", "task")
_QUALITIES: dict[bytes, Quality] = {f'"{word}"'.encode(): word for word in get_args(Quality)}
_KEYS_KEPT = 1000
_BRACKET = ord("]")


def scan(line: bytes, place: int) -> Row | None:
    """Return the figures of a record; None if only `decode.record_from` can tell whether it is one.

    Args:
        line: The line of the log, with or without its line end.
        place: Where it begins in the file.
    """
    first, device, last = _parts()
    head = first.match(line)
    if head is None:
        return None
    at = head.end()
    gpus = []
    while line[at] != _BRACKET:
        found = device.match(line, at)
        if found is None:
            return None
        at = found.end()
        *figures, index, uuid, backend, attributed, used = found.groups()
        used_bytes = None if used == b"null" else int(used)
        gpus.append(
            Memory(_key(backend, index, uuid), *_figures(*figures), attributed == b"true", used_bytes)
        )
    tail = last.match(line, at)
    if tail is None:
        return None
    label, began, time_s, *figures, was_kept, kept = head.groups()
    count, cell_id, source, status, ours, code, *where = tail.groups()
    process = None if where[0] is None else _process(*where)
    try:
        started_at = datetime.fromisoformat(began[1:-1].decode())
    except ValueError:  # the 30th of February
        return None
    newly_kept_bytes = consumed(int(was_kept), int(kept)) if was_kept and kept else 0
    return Row(
        place,
        started_at,
        float(time_s),
        Memory(RAM, *_figures(*figures), newly_kept_bytes=newly_kept_bytes),
        tuple(gpus),
        None if count == b"null" else int(count),
        None if cell_id == b"null" else _text(cell_id),
        _text(source),
        status == b'"ok"',
        ours == b"true",
        process,
        "" if code is None else _text(code),
        "" if process is None or process.task is not None else _text(label),
    )


def _figures(  # noqa: PLR0913, PLR0917 - the groups
    before: bytes, after: bytes, lo: bytes, hi: bytes, quality: bytes, precision: bytes
) -> tuple[int, int, int, int | None, Quality, int]:
    """Return the figures that every memory has, as `Memory` takes them."""
    hi_bytes = None if hi == b"null" else int(hi)
    return int(before), int(after), int(lo), hi_bytes, _QUALITIES[quality], int(precision)


def _text(found: bytes) -> str:
    return str(json.loads(found)) if b"\\" in found else found[1:-1].decode()


_keys: dict[tuple[bytes, bytes, bytes], tuple[str, int, str | None]] = {}


def _key(backend: bytes, index: bytes, uuid: bytes) -> tuple[str, int, str | None]:
    """Return `DeviceUsage.key`; every cell of a log has the same few devices."""
    found = _keys.get((backend, index, uuid))
    if found is None:
        if len(_keys) >= _KEYS_KEPT:
            _keys.clear()
        known = None if uuid == b"null" else _text(uuid)
        found = _keys[backend, index, uuid] = (_text(backend), int(index), known)
    return found


_processes: dict[tuple[bytes, ...], Process] = {}


def _process(*where: bytes) -> Process:
    """Return the process that a line names; a log has the same ones again and again."""
    found = _processes.get(where)
    if found is None:
        if len(_processes) >= _KEYS_KEPT:
            _processes.clear()
        host, pid, rank, worker, task = where
        found = _processes[where] = Process(
            _text(host),
            int(pid),
            None if rank == b"null" else int(rank),
            None if worker == b"null" else _text(worker),
            None if task == b"null" else _text(task),
        )
    return found


# -- the pattern -----------------------------------------------------------------------------------------


@cache
def _parts() -> tuple[re.Pattern[bytes], re.Pattern[bytes], re.Pattern[bytes]]:
    """Return the line up to its devices, a device, and the line after them."""
    fields = _fields(CellRecord, {*_FIRST, *_LAST})
    at = [name for name, _ in defaults(CellRecord)].index("gpus")
    device = _of(DeviceUsage, set(_DEVICE))
    process = rf'(?:, "process": {_of(Process, set(_PROCESS))})?'
    return (
        re.compile((r"\{" + "".join(fields[:at]) + r', "gpus": \[(?=[]{])').encode()),
        re.compile(f"(?:, )?{device}(?=[],])".encode()),
        re.compile((r"\]" + "".join(fields[at + 1 :]) + process + r"\}\n?\Z").encode()),
    )


def _fields(kind: Any, groups: set[str]) -> list[str]:
    """Return the pattern of each field of a dataclass; one with a default may be missing.

    Args:
        kind: The dataclass.
        groups: Which fields the pattern has groups for, by path.
    """
    hints, missing = types_of(kind), dict(later_fields(kind))
    found: list[str] = []
    for name, default in defaults(kind):
        below = {path.removeprefix(f"{name}.") for path in groups if path.startswith(f"{name}.")}
        signed = may_be_negative(kind, name) and name != "lo_bytes"  # of RAM it must not; it never is, nearly
        pattern = _of(hints[name], below, signed=signed)
        if name in groups:
            pattern = f"({pattern})"
        pattern = f'{", " if found else ""}"{name}": {pattern}'
        needed = default is MISSING or (name in groups and name not in missing)
        found.append(pattern if needed else f"(?:{pattern})?")
    return found


def _of(hint: Any, groups: set[str], *, signed: bool = True) -> str:
    """Return the pattern of a value of a type."""
    options = get_args(hint)
    if is_dataclass(hint):
        return r"\{" + "".join(_fields(hint, groups)) + r"\}"
    if get_origin(hint) is Literal:
        return f'"(?:{"|".join(map(re.escape, options))})"'
    if get_origin(hint) in (Union, types.UnionType):
        (inner,) = (option for option in options if option is not types.NoneType)
        return f"(?:null|{_of(inner, groups, signed=signed)})"
    if get_origin(hint) is tuple:
        members = [_of(option, set()) for option in options if option is not ...]
        whole = (
            ", ".join(members) if len(members) == len(options) else f"(?:{members[0]}(?:, {members[0]})*)?"
        )
        return rf"\[{whole}\]"
    signs = {int: (_NATURAL, _INTEGER), float: (_FLOAT, f"-?{_FLOAT}")}
    return signs[hint][signed] if hint in signs else _PLAIN[hint]
