"""JAX: XLA's counters of bytes in use and in its pool, by device; JAX offers no reset (jax#8096).

Only initialised backends are asked. In a forked child those of the parent are not: a lock that one of their
threads held is never released.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ...records import CPU, device_id
from ...runtime.objects import bases_of, namespace_of
from .. import contract
from ..contract import Device, DeviceCounter, Holding, Observation, Reading, Unavailable, unavailable
from ..nvidia import driver

_GPUS = {"gpu", "cuda", "rocm"}  # jaxlib says "gpu" for CUDA and ROCm
_SERIES = (("bytes_in_use", "peak_bytes_in_use"), ("pool_bytes", "peak_pool_bytes"))

Stats = dict[str, int]


class JaxCounter(DeviceCounter):
    """XLA's allocator of one device: bytes in use and, if it keeps a pool, the size of the pool."""

    peak_class: contract.PeakClass = "monotone"

    def __init__(self, device: Device, series: tuple[tuple[str, str], ...]) -> None:
        self.device = device
        self._series = series

    def observe(self) -> Observation:
        """Read the allocator's statistics, with its count of allocations as the stamp."""
        # Looked up each time: keeping a device would keep its client alive, with all its memory, after
        # `clear_backends`.
        _, stats = _read(self.device.key)
        with unavailable("some of JAX's memory statistics are missing now"):
            readings = tuple(Reading(int(stats[current]), int(stats[peak])) for current, peak in self._series)
            allocations = int(stats.get("num_allocs", 0))
        return Observation(readings, (allocations,) if allocations else ())

    def limit_bytes(self) -> int | None:
        """Return what `XLA_PYTHON_CLIENT_MEM_FRACTION` allows: three quarters of the device by default."""
        with suppress(Unavailable, KeyError, TypeError, ValueError):
            return int(_read(self.device.key)[1]["bytes_limit"]) or None
        return None


class Jax(contract.FrameworkByDevice):
    """JAX in this process, once the user has initialised a backend of it."""

    name = "jax"

    def in_use(self) -> list[tuple[str, int]]:
        """Return backend and index of each device of an initialised backend, but for CPUs."""
        return [key for device in _devices() if (key := _key(device)) is not None]

    def counter(self, device: tuple[str, int]) -> JaxCounter:
        """Return the counter of a device whose allocator counts its memory; "platform", say, does not."""
        found, stats = _read(device)
        series = tuple(names for names in _SERIES if all(_counts(stats, name) for name in names))
        if series[:1] != _SERIES[:1]:
            raise Unavailable("JAX gives no memory statistics of this device")
        return JaxCounter(_describe(found, device), series)

    def after_fork_in_child(self) -> None:
        """Leave the parent's clients alone."""
        _inherited.extend(_clients())

    def current_index(self) -> int | None:
        """Return the user's default device, else the default backend's first; None while JAX uses no GPU."""
        default = getattr(getattr(sys.modules.get("jax"), "config", None), "jax_default_device", None)
        keys = map(_key, (default, *_devices()))
        return next((key[1] for key in keys if key in self._counters and key is not None), None)

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


_inherited: list[Any] = []  # a fork's parent's clients


def _clients() -> list[Any]:
    backends = getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None)
    # Not JAX's own `backends_are_initialized`: it waits while another thread initialises one.
    return list(backends.values()) if isinstance(backends, dict) else []


def _devices() -> Iterator[Any]:
    for client in _clients():
        if not any(client is one for one in _inherited):
            with suppress(Exception):  # a client in an error state: the others can still be asked
                yield from client.local_devices()


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


def _read(key: tuple[str, int]) -> tuple[Any, Stats]:
    """Return the device with these backend and index, and its statistics; raises `Unavailable`."""
    try:
        device = next(device for device in _devices() if _key(device) == key)
        stats = device.memory_stats()
    except Exception:
        stats = None
    if not isinstance(stats, dict):
        raise Unavailable("JAX gives no memory statistics of this device")
    return device, stats


def _counts(stats: Stats, name: str) -> bool:
    value = stats.get(name)
    return isinstance(value, int) and value >= 0  # -1 is jaxlib's "unavailable"


def _describe(device: Any, key: tuple[str, int]) -> Device:
    backend, index = key
    known = driver.device(index) if backend == "cuda" else Device(backend, index, device_id(backend, index))
    return replace(known, name=str(getattr(device, "device_kind", None) or known.name))
