"""CuPy: its default memory pool on the calling thread's current device; it counts no peaks.

The current device is never changed, as switching may create a context.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ...records import device_id
from ...runtime.objects import bases_of
from .. import contract
from ..contract import Device, DeviceCounter, Holding, Observation, Reading, Unavailable, unavailable
from ..nvidia import driver


class CuPyCounter(DeviceCounter):
    """The default pool of one device: used bytes, and the bytes that the pool took from the device."""

    peak_class: contract.PeakClass = "sampled"

    def __init__(self, device: Device) -> None:
        self.device = device

    def observe(self) -> Observation:
        """Read what the pool uses and holds now."""
        used_bytes, total_bytes, _ = _pool(self.device.index)
        return Observation((Reading(used_bytes, None), Reading(total_bytes, None)), ())

    def limit_bytes(self) -> int | None:
        """Return what `set_limit` or `CUPY_GPU_MEMORY_LIMIT` allows; for no limit CuPy says 0."""
        with suppress(Unavailable):
            return _pool(self.device.index)[2] or None
        return None


class CuPy(contract.FrameworkByDevice):
    """CuPy in this process, once the user has imported it."""

    name = "cupy"

    def in_use(self) -> tuple[int, ...]:
        """Return the calling thread's current device, if it has a context."""
        return _current()

    def counter(self, device: int) -> CuPyCounter:
        """Return the counter of a device whose default pool holds something."""
        if not _pool(device)[1]:
            raise Unavailable("CuPy's pool has held nothing on this device")
        properties = sys.modules["cupy"].cuda.runtime.getDeviceProperties
        with unavailable("CuPy does not describe its device"):
            name = properties(device)["name"].decode(errors="replace")
        return CuPyCounter(replace(driver.device(device), name=name))

    def settle(self) -> None:
        """Free the unused blocks of the current device's pool, if there are any."""
        for index in self._counters:
            with suppress(Exception):
                used_bytes, total_bytes, _ = _pool(index)
                if total_bytes > used_bytes:
                    sys.modules["cupy"].get_default_memory_pool().free_all_blocks()

    def may_hold(self, kind: type) -> bool:
        """Return whether a class is CuPy's array or derived from it."""
        array_type = getattr(sys.modules.get("cupy"), "ndarray", None)
        return any(base is array_type for base in bases_of(kind))

    def holding(self, value: Any) -> Holding | None:
        """Return the pool's block behind an array, which its views share."""
        if self.may_hold(type(value)):
            with suppress(Exception):
                memory = value.data.mem
                where = device_id("cuda", int(memory.device_id))
                return Holding((where, int(memory.ptr)), int(memory.size), where)
        return None


def _current() -> tuple[int, ...]:
    return driver.current(lambda: int(sys.modules["cupy"].cuda.runtime.getDevice()))


def _pool(index: int) -> tuple[int, int, int]:
    """Return the used bytes, all bytes and the limit of the current device's default pool."""
    if _current() != (index,):
        raise Unavailable("CuPy's current device is another one")
    with unavailable("CuPy gives no memory statistics"):
        pool = sys.modules["cupy"].get_default_memory_pool()
        return int(pool.used_bytes()), int(pool.total_bytes()), int(pool.get_limit())
