"""JAX: the counters of XLA's allocator on every local accelerator device, which cannot be reset.

`Device.memory_stats()` returns XLA's `AllocatorStats` (xla/tsl/framework/allocator.h). `bytes_in_use` is
what live arrays and running programs hold. `pool_bytes` is what the allocator took from the device
(bfc_allocator.cc adds each new region to it): by default three quarters of the device at once.
`bytes_reserved` is something else, and 0 on GPUs. JAX offers no reset (jax#8096), so a peak is exact if the
scope set a new record, and bounded otherwise.

Nothing here initialises a backend: only those that `jax._src.xla_bridge` already holds are asked.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ..records import CPU, device_id
from ..runtime.classes import bases_of, namespace_of
from . import driver
from .counter import Look, PeakClass, Reading, Unavailable
from .device import Device, DeviceCounter
from .framework import Framework
from .holding import Holding
from .inherited import is_inherited, jax_clients

if TYPE_CHECKING:
    from collections.abc import Iterator

_GPUS = {"gpu", "cuda", "rocm"}  # jaxlib says "gpu" for CUDA and ROCm
_SERIES = (("bytes_in_use", "peak_bytes_in_use"), ("pool_bytes", "peak_pool_bytes"))

Stats = dict[str, int]


class JaxCounter(DeviceCounter):
    """XLA's allocator of one device: bytes in use and, if it keeps a pool, the size of the pool."""

    peak_class: PeakClass = "monotone"

    def __init__(self, device: Device, series: tuple[tuple[str, str], ...]) -> None:
        self.device = device
        self._series = series

    def look(self) -> Look:
        """Read the allocator's statistics, with its count of allocations as the stamp."""
        stats = self._stats()
        try:
            readings = tuple(Reading(int(stats[current]), int(stats[peak])) for current, peak in self._series)
            allocations = int(stats.get("num_allocs", 0))
        except (KeyError, TypeError, ValueError) as error:
            raise Unavailable("some of JAX's memory statistics are missing now") from error
        return Look(readings, (allocations,) if allocations else ())

    def limit_bytes(self) -> int | None:
        """Return what `XLA_PYTHON_CLIENT_MEM_FRACTION` allows: three quarters of the device by default."""
        try:
            return int(self._stats()["bytes_limit"]) or None
        except (Unavailable, KeyError, TypeError, ValueError):
            return None

    def _stats(self) -> Stats:
        # Looked up each time: keeping a device would keep its client alive, with all its memory, after
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
        """Return the devices of initialised backends that count their memory, by index."""
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
        """Return the user's default device, else the default backend's first; None while JAX uses no GPU."""
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
        """Return whether a class is JAX's own: asking JAX about any other would run code of that class."""
        array_type = getattr(sys.modules.get("jax"), "Array", None)
        return array_type is not None and any(base is array_type or _is_jaxs(base) for base in bases_of(kind))

    def holding(self, value: Any) -> Holding | None:
        """Return the buffer behind an array on one device; None if it is traced, deleted or sharded."""
        array_type = getattr(sys.modules.get("jax"), "Array", None)
        if array_type is None or not isinstance(value, array_type):
            return None
        try:
            (device,) = value.devices()
            size_bytes = int(value.on_device_size_in_bytes())
            # Asking for the address waits until the array is computed (0.8 s for a matrix product on the
            # CPU, measured). Until then the array counts as a block of its own.
            address = value.unsafe_buffer_pointer() if value.is_ready() else ("pending", id(value))
            key = _key(device)
        except Exception:  # JAX has an error for each kind of array without memory of its own
            return None
        where = device_id(*key) if key else CPU
        return Holding((where, address), size_bytes, where)


def _is_jaxs(kind: type) -> bool:
    module = namespace_of(kind).get("__module__")
    return type(module) is str and module.partition(".")[0] in ("jax", "jaxlib")


def _devices() -> Iterator[Any]:
    for client in jax_clients():
        if is_inherited(client):
            continue
        try:
            devices = list(client.local_devices())
        except Exception:  # a client in an error state: the others can still be asked
            devices = []
        yield from devices


def _key(device: Any) -> tuple[str, int] | None:
    """Return a device's backend and index, as in every framework; None for a CPU."""
    try:
        platform = str(device.platform)
        index = device.local_hardware_id
        index = int(device.id if index is None else index)
    except Exception:
        return None
    if platform == CPU:
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
