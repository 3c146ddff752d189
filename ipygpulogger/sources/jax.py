"""JAX: the counters of XLA's allocator on every local accelerator device, which nobody can reset.

`Device.memory_stats()` hands out XLA's `AllocatorStats` (xla/tsl/framework/allocator.h): `bytes_in_use`
is what live arrays and running programs hold, `pool_bytes` what the allocator took from the device
(bfc_allocator.cc adds to it what each new region brought); by default three quarters of the device at
once. `bytes_reserved` is something else, and 0 on GPUs. No reset reaches Python (jax#8096), so a peak is
exact where it is a new record, and bounded otherwise.

Nothing here initialises a backend: only those that `jax._src.xla_bridge` already holds are asked.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from ..records import CPU, device_id
from . import Device, DeviceCounter, Framework, Holding, Look, PeakClass, Reading, Unavailable, driver

if TYPE_CHECKING:
    from collections.abc import Iterator

_GPUS = {"gpu", "cuda", "rocm"}  # jaxlib says "gpu" for both kinds
_SERIES = (("bytes_in_use", "peak_bytes_in_use"), ("pool_bytes", "peak_pool_bytes"))

Stats = dict[str, int]


class JaxCounter(DeviceCounter):
    """XLA's allocator of one device: bytes in use and, where it keeps a pool, the pool."""

    peak_class: PeakClass = "monotone"

    def __init__(self, device: Device, series: tuple[tuple[str, str], ...]) -> None:
        self.device = device
        self._series = series

    def look(self) -> Look:
        """The allocator's statistics; its count of allocations as the stamp."""
        stats = self._stats()
        try:
            readings = tuple(Reading(int(stats[current]), int(stats[peak])) for current, peak in self._series)
            allocations = int(stats.get("num_allocs", 0))
        except (KeyError, TypeError, ValueError) as error:
            raise Unavailable("JAX's memory statistics lack what they had before") from error
        return Look(readings, (allocations,) if allocations else ())

    def limit_bytes(self) -> int | None:
        """What `XLA_PYTHON_CLIENT_MEM_FRACTION` leaves to the allocator: three quarters by default."""
        try:
            return int(self._stats()["bytes_limit"]) or None
        except (Unavailable, KeyError, TypeError, ValueError):
            return None

    def _stats(self) -> Stats:
        # Looked up each time: a device kept here would keep its client, and so its memory, after
        # `clear_backends`.
        for device in _devices():
            if _key(device) == self.device.key:
                stats = _stats(device)
                if stats is not None:
                    return stats
        raise Unavailable("JAX gives no memory statistics of this device")


class Jax(Framework):
    """JAX in this process, once the user has initialised a backend of it."""

    name = "jax"

    def __init__(self) -> None:
        self._counters: dict[tuple[str, int], JaxCounter] = {}

    def counters(self) -> list[JaxCounter]:
        """The accelerator devices of the initialised backends that count their memory, by index."""
        for device in _devices():
            key = _key(device)
            if key is None or key in self._counters:
                continue
            stats = _stats(device)
            if stats is None:
                continue  # no statistics: the "platform" allocator, which caches nothing
            series = tuple(names for names in _SERIES if all(_told(stats, name) for name in names))
            if series[:1] == _SERIES[:1]:
                self._counters[key] = JaxCounter(_describe(device, key), series)
        return [self._counters[key] for key in sorted(self._counters)]

    def current_index(self) -> int | None:
        """The user's default device, else the first of the default backend; None while JAX uses no GPU."""
        try:
            default = sys.modules["jax"].config.jax_default_device
        except (KeyError, AttributeError):
            default = None
        for device in (default, *_devices()):
            key = None if device is None else _key(device)
            if key is not None and key in self._counters:
                return key[1]
        return None

    def may_hold(self, kind: type) -> bool:
        """JAX's own classes alone; what it asks of others runs their code."""
        array_type = getattr(sys.modules.get("jax"), "Array", None)
        bases = vars(type)["__mro__"].__get__(kind)
        return array_type is not None and any(base is array_type or _is_jaxs(base) for base in bases)

    def holding(self, value: Any) -> Holding | None:
        """The buffer behind an array on one device; None for traced, deleted and sharded arrays."""
        array_type = getattr(sys.modules.get("jax"), "Array", None)
        if array_type is None or not isinstance(value, array_type):
            return None
        try:
            (device,) = value.devices()
            size_bytes = int(value.on_device_size_in_bytes())
            # The address of an array still being computed would have to be waited for (0.8 s for a
            # matrix product on the CPU, measured); until then it is its own.
            address = value.unsafe_buffer_pointer() if value.is_ready() else ("pending", id(value))
            key = _key(device)
        except Exception:  # JAX has an error for each kind of array without memory of its own
            return None
        where = device_id(*key) if key else CPU
        return Holding((where, address), size_bytes, where)


def _is_jaxs(kind: type) -> bool:
    module = vars(type)["__dict__"].__get__(kind).get("__module__")
    return type(module) is str and module.partition(".")[0] in ("jax", "jaxlib")


# The clients that a fork left here: their threads stayed in the parent, and with them locks that they may
# hold.
_inherited: list[Any] = []


def _clients() -> list[Any]:
    backends = getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None)
    # Not JAX's own question, `backends_are_initialized`: it waits while another thread initialises.
    return list(backends.values()) if isinstance(backends, dict) else []


def _devices() -> Iterator[Any]:
    for client in _clients():
        if any(client is inherited for inherited in _inherited):
            continue
        try:
            devices = list(client.local_devices())
        except Exception:  # a client in an error state concerns no other
            devices = []
        yield from devices


def _key(device: Any) -> tuple[str, int] | None:
    """What makes it the same device to other frameworks; None for a CPU."""
    try:
        platform = str(device.platform)
        index = device.local_hardware_id
        index = int(device.id if index is None else index)
    except Exception:
        return None
    if platform == "cpu":
        return None
    return ("cuda" if platform in _GPUS else platform), index


def _stats(device: Any) -> Stats | None:
    try:
        stats = device.memory_stats()
    except Exception:
        return None
    return stats if isinstance(stats, dict) else None


def _told(stats: Stats, name: str) -> bool:
    value = stats.get(name)
    return isinstance(value, int) and value >= 0  # -1 is jaxlib's "unavailable"


def _describe(device: Any, key: tuple[str, int]) -> Device:
    backend, index = key
    facts = driver.facts(index) if backend == "cuda" else driver.Facts()
    name = getattr(device, "device_kind", None) or device_id(backend, index)
    return Device(backend, index, str(name), facts.uuid, facts.total_bytes)


def _after_fork_in_child() -> None:
    _inherited.extend(_clients())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
