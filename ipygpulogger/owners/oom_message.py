"""The figures in the message of an out-of-memory error."""

from __future__ import annotations

import re
from math import prod
from typing import NamedTuple

_SIZE = r"(?P<number>\d[\d,]*(?:\.\d+)?)\s*(?P<unit>bytes|[KMGT]i?B)\b"
_ASKED = re.compile(rf"(?:tr(?:ied|ying) to allocate|out of memory allocating)\s+{_SIZE}", re.IGNORECASE)
_FREE = re.compile(rf"of which {_SIZE} is free")
_LIVE = re.compile(rf"(?:Of the allocated memory|allocated so far:) {_SIZE}")
_CACHED = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated")
_ALLOWED = re.compile(rf"{_SIZE} allowed|limit set to: {_SIZE.replace('P<', 'P<limit_')}")
_NEIGHBOUR = re.compile(rf"Process (?P<pid>\d+) has {_SIZE} memory in use")
_INDEX = re.compile(r"\bGPU[ _:](\d+)|\b(?:cuda|xpu|hip|mps):(\d+)")
_SHAPE = re.compile(r"allocating tensor with shape\[(\d+(?:,\d+)*)\] and type (\w+)")
_SETTING = re.compile(r"(PYTORCH_\w*ALLOC_CONF)=expandable_segments")
_TYPE_BYTES = {"half": 2, "bfloat16": 2, "double": 8, "int64": 8, "complex64": 8, "complex128": 16}
_TYPE_BYTES |= {"int8": 1, "uint8": 1, "bool": 1, "int16": 2, "uint16": 2}  # of TensorFlow; others have 4


class Said(NamedTuple):
    """The figures in an error's message; None where it has none.

    Attributes:
        asked_bytes: What was requested.
        rounding_bytes: The rounding error of that: two decimals of a GiB are 5 MB.
        device_index: The framework's index of the device.
        free_bytes: Free on the device.
        live_bytes: Held by the framework's arrays.
        cached_bytes: Held by its allocator, unused.
        allowed_bytes: The most that the framework may reserve.
        neighbours: (process, bytes) of other processes that the message names.
        setting: The environment variable that switches on expandable segments.
    """

    asked_bytes: int | None = None
    rounding_bytes: int = 0
    device_index: int | None = None
    free_bytes: int | None = None
    live_bytes: int | None = None
    cached_bytes: int | None = None
    allowed_bytes: int | None = None
    neighbours: tuple[tuple[int, int], ...] = ()
    setting: str | None = None


def read(message: str) -> Said:
    """Read the figures in a message of torch, JAX, CuPy or TensorFlow."""
    asked = _ASKED.search(message)
    shape = _SHAPE.search(message)
    index = _INDEX.search(message)
    setting = _SETTING.search(message)
    asked_bytes = _bytes_of(asked)
    if asked is None and shape:
        asked_bytes = prod(map(int, shape[1].split(","))) * _TYPE_BYTES.get(shape[2], 4)
    return Said(
        asked_bytes,
        _rounding_bytes(asked),
        int(index[1] or index[2]) if index else None,
        _bytes_of(_FREE.search(message)),
        _bytes_of(_LIVE.search(message)),
        _bytes_of(_CACHED.search(message)),
        _bytes_of(_ALLOWED.search(message)),
        tuple((int(found["pid"]), _bytes_of(found) or 0) for found in _NEIGHBOUR.finditer(message)),
        setting[1] if setting else None,
    )


def _bytes_of(found: re.Match[str] | None) -> int | None:
    if found is None:
        return None
    group = found.groupdict()
    number, unit = group["number"] or group["limit_number"], group["unit"] or group["limit_unit"]
    return round(float(number.replace(",", "")) * _unit_bytes(unit))


def _rounding_bytes(found: re.Match[str] | None) -> int:
    decimals = found["number"].partition(".")[2] if found else ""
    return round(_unit_bytes(found["unit"]) / 10 ** len(decimals) / 2) if found and decimals else 0


def _unit_bytes(unit: str) -> int:
    return int(1024 ** " KMGT".index(unit[0].upper())) if unit.lower() != "bytes" else 1
