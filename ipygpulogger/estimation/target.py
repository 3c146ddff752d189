"""The device that a function would run on, and how much memory the function can have there."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple

from ..engine.machine import machine
from ..records import device_id
from ..records.budget import parse
from ..records.units import clipped, printable
from ..sources import Unavailable, torch_state
from .asked import shown

if TYPE_CHECKING:
    from types import ModuleType

    from ..sources import DeviceMemory

_BACKEND = "cuda"  # whose caching allocator is simulated; torch calls ROCm's devices so as well
_LARGEST_BYTES = 1 << 60


class Room(NamedTuple):
    """The memory of a device that a function can have.

    Attributes:
        capacity_bytes: The size of the device's memory; None when unknown.
        available_bytes: What this process can still allocate of it, cached memory included; None when
            unknown.
        unknown: Why it is unknown; else empty.
        given: Whether the user gave it as a capacity.
        note: What has to be known about it; empty if there is nothing.
    """

    capacity_bytes: int | None
    available_bytes: int | None
    unknown: str = ""
    given: bool = False
    note: str = ""


def device_index(device: Any, torch: ModuleType) -> int:
    """Return the index of a CUDA device that a user named: "cuda:0", "cuda", 0, a `torch.device`.

    "cuda" is torch's current device, which is the first one as long as CUDA is not initialised. On a machine
    that has no CUDA device every index is accepted.

    Raises:
        TypeError: It is nothing that names a device.
        ValueError: The index is beyond the devices of this machine, or the device is not a CUDA device.
    """
    named = _named(device, torch)
    if named.type != _BACKEND:
        raise ValueError(_why_not(named.type))
    index = named.index if named.index is not None else torch_state.current_index() or 0
    count = _count(torch)
    if count and index >= count:
        first, last = device_id(_BACKEND, 0), device_id(_BACKEND, count - 1)
        others = f"{first} is the only one" if count == 1 else f"there are {first} to {last}"
        raise ValueError(f"there is no device {device_id(_BACKEND, index)}: {others}")
    return int(index)


def _named(device: Any, torch: ModuleType) -> Any:
    """Return the `torch.device` that a user named.

    Raises:
        TypeError: It is nothing that names a device.
        ValueError: There is no such device.
    """
    if isinstance(device, torch.device):
        return device
    if isinstance(device, str):
        try:
            made = torch.device(device)
        except (RuntimeError, ValueError):  # torch's own message lists two dozen backends
            made = None
        if made is None or f":{made.index}" != f":{device.partition(':')[2] or None}":  # 999 becomes -25
            raise ValueError(f"{shown(device)} is not a device: write one such as 'cuda:0'")
        return made
    if not isinstance(device, bool):
        try:
            index = operator.index(device)
        except TypeError:
            pass
        else:
            if not 0 <= index < 128:
                raise ValueError(f"{index} is not the index of a device: the first one is 0")
            return torch.device(_BACKEND, index)
    raise TypeError(f"device takes 'cuda:0', a torch.device or an index, not {shown(device)}")


def _why_not(kind: str) -> str:
    if kind == "cpu":
        return (
            "estimate tells what is needed on a GPU, not in general RAM: give a device such as 'cuda:0';"
            " the machine needs none"
        )
    return f"estimate knows the allocator of CUDA devices only, and {kind!r} devices have another"


def _count(torch: ModuleType) -> int:
    """Return how many devices CUDA shows this process; 0 if there is none, or that is unknown."""
    try:
        return int(torch.cuda.device_count())  # initialises nothing
    except Exception:  # a driver in an error state: the estimate does not need it
        return 0


def capacity_bytes(capacity: Any) -> int | None:
    """Return the bytes of a capacity that a user gave: "16GB", or bytes as an int; None for None.

    Raises:
        TypeError: It is neither.
        ValueError: It is not a memory size.
    """
    if capacity is None:
        return None
    if isinstance(capacity, str):
        try:
            size_bytes = parse(capacity)
        except ValueError as error:
            raise ValueError(f"capacity: {clipped(printable(str(error)), 160)}") from None
    else:
        size_bytes = _whole(capacity)
    if not 0 < size_bytes <= _LARGEST_BYTES:
        raise ValueError(f"capacity: {shown(capacity)} is not a memory size: write one such as '16GB'")
    return size_bytes


def _whole(capacity: Any) -> int:
    try:
        if not isinstance(capacity, bool):
            return operator.index(capacity)
    except TypeError:
        pass
    raise TypeError(f"capacity takes a size such as '16GB', or bytes as an int, not {shown(capacity)}")


def room_on(index: int, torch: ModuleType) -> Room:
    """Return how much memory this process can have on a CUDA device; asking creates no context there."""
    name = device_id(_BACKEND, index)
    if not torch.cuda.is_initialized() and machine().devices.all_hidden():
        return Room(None, None, "CUDA_VISIBLE_DEVICES hides every device from this process")
    memory = _memory(index)
    if memory is None:
        return Room(None, None, f"{name} is not a device of this machine, and no capacity was given")
    reserved_bytes, reusable_bytes, limit_bytes = _of_allocator(index)
    free_bytes = memory.free_bytes
    if limit_bytes is not None:
        free_bytes = min(free_bytes, max(0, limit_bytes - reserved_bytes))
    note = ""
    if reserved_bytes == 0 and not _has_context(index):
        note = f"This process does not use {name} so far: its context will take some of what is available."
    return Room(memory.total_bytes, free_bytes + reusable_bytes, note=note)


def _memory(index: int) -> DeviceMemory | None:
    try:
        return machine().device_memory(index)
    finally:
        machine().close()  # the driver's library, unless something is being measured


def _of_allocator(index: int) -> tuple[int, int, int | None]:
    """Return what torch's allocator has reserved on a device, what of that it can reuse, and its limit."""
    for framework, counters in machine().frameworks.counters():
        for counter in counters if framework.name == "torch" else ():
            if counter.device.index == index:
                try:
                    readings = counter.look().readings
                except Unavailable:  # a pluggable allocator
                    break
                allocated_bytes, reserved_bytes = readings[0].current_bytes, readings[-1].current_bytes
                reusable_bytes = reserved_bytes - allocated_bytes - (counter.pools_bytes() or 0)
                return reserved_bytes, max(0, reusable_bytes), counter.limit_bytes()
    return 0, 0, torch_state.limit_bytes(index)


def _has_context(index: int) -> bool:
    try:
        return torch_state.accelerator() == _BACKEND and torch_state.has_context(index)
    except torch_state.TORCH_ERRORS:
        return False
