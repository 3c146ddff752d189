"""Memory as an out-of-memory error left it: what its message says, what was counted, and who held it.

Taken before the failed cell's memory is settled. It keeps only numbers and names, so that no memory of the
user's is kept alive.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from ..records import device_id
from ..records.units import MB
from ..runtime.shell import is_shell_code, is_users_file
from ..sources import Unavailable
from .dimensions import is_a_batch_size, names_in
from .exceptions import (
    FRAMEWORKS,
    exception_chain,
    first_word,
    frames_of,
    locals_of,
    message_of,
    out_of_memory_in,
)
from .roots import owners_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

    from ..records import Owner
    from ..sources import DeviceCounter, Framework

_SIZE = r"(?P<number>\d[\d,]*(?:\.\d+)?)\s*(?P<unit>bytes|[KMGT]i?B)\b"
_ASKED = re.compile(rf"(?:tr(?:ied|ying) to allocate|out of memory allocating)\s+{_SIZE}", re.IGNORECASE)
_FREE = re.compile(rf"of which {_SIZE} is free")
_LIVE = re.compile(rf"(?:Of the allocated memory|allocated so far:) {_SIZE}")
_CACHED = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated")
_LIMIT = re.compile(rf"{_SIZE} allowed|limit set to: {_SIZE.replace('P<', 'P<limit_')}")
_NEIGHBOUR = re.compile(rf"Process (?P<pid>\d+) has {_SIZE} memory in use")
_INDEX = re.compile(r"\bGPU[ _:](\d+)|\b(?:cuda|xpu|hip|mps):(\d+)")
_SHAPE = re.compile(r"allocating tensor with shape\[(\d+(?:,\d+)*)\] and type (\w+)")
_SETTING = re.compile(r"(PYTORCH_\w*ALLOC_CONF)=expandable_segments")
_TYPE_BYTES = {"half": 2, "bfloat16": 2, "double": 8, "int64": 8, "complex64": 8, "complex128": 16}
_TYPE_BYTES |= {"int8": 1, "uint8": 1, "bool": 1, "int16": 2, "uint16": 2}  # of TensorFlow; others have 4
_SAME_BYTES = 6 * MB  # a figure that differs by more than a message's rounding has changed since


class OomMessage(NamedTuple):
    """The figures in an error's message; None where it has none."""

    requested_bytes: int | None = None  # what was requested
    rounding_bytes: int = 0  # the rounding error of that: two decimals of a GiB are 5 MB
    device_index: int | None = None  # the framework's index of the device
    free_bytes: int | None = None  # free on the device
    live_bytes: int | None = None  # held by the framework's arrays
    cached_bytes: int | None = None  # held by its allocator, unused
    limit_bytes: int | None = None  # the most that the framework may reserve
    neighbours: tuple[tuple[int, int], ...] = ()  # (process, bytes) of other processes that the message names
    setting: str | None = None  # the environment variable that switches on expandable segments


def read_message(message: str) -> OomMessage:
    """Read the figures in a message of torch, JAX, CuPy or TensorFlow."""
    requested, shape = _ASKED.search(message), _SHAPE.search(message)
    index, setting = _INDEX.search(message), _SETTING.search(message)
    requested_bytes = _bytes_of(requested)
    if requested is None and shape:
        requested_bytes = prod(map(int, shape[1].split(","))) * _TYPE_BYTES.get(shape[2], 4)
    return OomMessage(
        requested_bytes,
        _rounding_bytes(requested),
        int(index[1] or index[2]) if index else None,
        _bytes_of(_FREE.search(message)),
        _bytes_of(_LIVE.search(message)),
        _bytes_of(_CACHED.search(message)),
        _bytes_of(_LIMIT.search(message)),
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


class Batch(NamedTuple):
    """A number that the memory of the failed code probably grows with."""

    name: str  # the variable, "batch_size"
    size: int


@dataclass(frozen=True)
class OomSnapshot:
    """One device right after an allocation on it failed, in bytes; None where unknown."""

    device: str  # "cuda:0"
    message: OomMessage  # what the message of the error says
    allocated_bytes: int | None  # held by live arrays, as counted after the error
    reserved_bytes: int | None  # held by the framework's allocator, as counted after the error
    unused_in_pieces: int | None  # the part of these that is unused, in pieces between live arrays
    device_free_bytes: int | None  # free on the device, as counted after the error
    limit_bytes: int | None  # the most that the framework may reserve
    owners: tuple[Owner, ...]  # the names that the device's arrays are attributed to, the largest first
    complete: bool  # whether the time budget was enough to find all of them
    batch: Batch | None  # the batch size of the failed code

    @property
    def free_bytes(self) -> int | None:
        """Free on the device when the allocation failed."""
        return _at_the_error(self.device_free_bytes, self.message.free_bytes)

    @property
    def live_bytes(self) -> int | None:
        """Held by live arrays when the allocation failed."""
        return _at_the_error(self.allocated_bytes, self.message.live_bytes)

    @property
    def cached_bytes(self) -> int | None:
        """Held by the framework's allocator, unused, when the allocation failed."""
        if self.allocated_bytes is None or self.reserved_bytes is None:
            return self.message.cached_bytes
        return _at_the_error(self.reserved_bytes - self.allocated_bytes, self.message.cached_bytes)

    @property
    def fragmented_bytes(self) -> int | None:
        """The part of the cached bytes that is in pieces between live arrays."""
        if self.unused_in_pieces is None or self.cached_bytes is None:
            return self.unused_in_pieces
        return min(self.unused_in_pieces, self.cached_bytes)

    @property
    def available_bytes(self) -> int | None:
        """What the framework could still have reserved on the device when the allocation failed."""
        if self.free_bytes is None or self.limit_bytes is None:
            return self.free_bytes
        reserved_bytes = (self.live_bytes or 0) + (self.cached_bytes or 0)
        return min(self.free_bytes, max(0, self.limit_bytes - reserved_bytes))

    @property
    def hidden_bytes(self) -> int:
        """Held only by the last traceback and by `Out`."""
        return self.held_bytes("traceback") + self.held_bytes("output")

    def held_bytes(self, kind: str) -> int:
        """Held by owners of a kind."""
        return sum(owner.size_bytes for owner in self.owners if owner.kind == kind)


def _at_the_error(counted: int | None, said: int | None) -> int | None:
    """Return a figure at the error: as counted, unless memory has changed since; then the message's."""
    if counted is None or said is None:
        return said if counted is None else counted
    return counted if abs(counted - said) <= _SAME_BYTES else said


def oom_snapshot(
    error: BaseException | None, shell: Any, frameworks: Sequence[Framework]
) -> OomSnapshot | None:
    """Return the memory that an out-of-memory error left; None if the error is of another kind."""
    cause = out_of_memory_in(error)
    if cause is None:
        return None
    message = read_message(message_of(cause))
    counter = _counter(cause, message, frameworks)
    device = counter.device.id if counter else device_id("gpu", message.device_index or 0)
    found = owners_in(shell, [framework.holding for framework in frameworks], error)
    allocated_bytes, reserved_bytes = _allocator(counter)
    memory = counter.device_memory() if counter else None
    return OomSnapshot(
        device,
        message,
        allocated_bytes,
        reserved_bytes,
        counter.fragmented_bytes() if counter else None,
        memory.free_bytes if memory else None,
        message.limit_bytes or (counter.limit_bytes() if counter else None),
        tuple(owner for owner in found.owners if owner.device == device),
        found.complete,
        find_batch(error, shell),
    )


def _counter(
    cause: BaseException, message: OomMessage, frameworks: Sequence[Framework]
) -> DeviceCounter | None:
    """Return the counter of the device that ran out, if possible of the framework that raised the error."""
    names = {FRAMEWORKS.get(first_word(base)) for base in type(cause).__mro__}
    for framework in sorted(frameworks, key=lambda framework: framework.name not in names):
        index = framework.current_index() if message.device_index is None else message.device_index
        for counter in framework.counters():
            if counter.device.index == index:
                return counter
    return None


def _allocator(counter: DeviceCounter | None) -> tuple[int | None, int | None]:
    """Return the allocated and the reserved bytes; where only one is known, nothing is cached."""
    try:
        readings = counter.look().readings if counter else ()
    except Unavailable:
        readings = ()
    if not readings:
        return None, None
    return readings[0].current_bytes, readings[min(1, len(readings) - 1)].current_bytes


def find_batch(error: BaseException | None, shell: Any) -> Batch | None:
    """Return the variable nearest to the error that is named like a batch size."""
    users = [
        frame
        for one in exception_chain(error)
        for frame in reversed(frames_of(one))
        if not is_shell_code(frame)
        and (frame.f_globals is shell.user_ns or is_users_file(frame.f_code.co_filename))
    ]
    for names in _namespaces(users):
        for name, value in names:
            if type(value) is int and value > 0 and type(name) is str and is_a_batch_size(name):
                return Batch(name, value)
    return None


def _namespaces(frames: list[FrameType]) -> Iterator[list[tuple[Any, Any]]]:
    """Yield the names that each frame sees: its locals, those in its objects and dicts, its globals."""
    for frame in frames:
        names = locals_of(frame)
        yield names
        yield from (names_in(value) for _, value in names)
    for names in {id(frame.f_globals): list(frame.f_globals.items()) for frame in frames}.values():
        yield names
        yield from (names_in(value) for name, value in names if name[:1] != "_")
