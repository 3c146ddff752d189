"""CuPy: its default memory pool on every device where the pool holds something.

A pool counts the bytes that are used and those it took from the device, but no peaks, so these are sampled.
It answers only for the calling thread's current device. Switching to a device without a context creates one
(`cudaSetDevice`, since CUDA 12). So the pool of another device is read only if both have a context.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...records import device_id
from ...runtime.errors import first_line
from ...runtime.objects import bases_of
from ..contract import (
    Device,
    DeviceCounter,
    FrameworkByDevice,
    Holding,
    Observation,
    PeakClass,
    Reading,
    Unavailable,
)
from ..nvidia import driver

if TYPE_CHECKING:
    from collections.abc import Iterator


_NO_CONTEXT = "CuPy's pool is readable only if its device and the current one have contexts"


class CuPyCounter(DeviceCounter):
    """The default pool of one device: used bytes, and the bytes that the pool took from the device."""

    peak_class: PeakClass = "sampled"

    def __init__(self, device: Device) -> None:
        self.device = device

    def observe(self) -> Observation:
        """Read what the pool uses and holds now."""
        used_bytes, total_bytes = _pool(self.device.index)
        return Observation((Reading(used_bytes, None), Reading(total_bytes, None)), ())

    def limit_bytes(self) -> int | None:
        """Return what `set_limit` or `CUPY_GPU_MEMORY_LIMIT` allows; for no limit CuPy says 0."""
        try:
            with _on(self.device.index) as cupy:
                return int(cupy.get_default_memory_pool().get_limit()) or None
        except Unavailable:
            return None


class CuPy(FrameworkByDevice):
    """CuPy in this process, once the user has imported it."""

    name = "cupy"

    def in_use(self) -> tuple[int, ...]:
        """Return the devices that have a context; none where the driver cannot be asked."""
        return driver.contexts() or () if "cupy" in sys.modules else ()

    def counter(self, device: int) -> CuPyCounter:
        """Return the counter of a device whose default pool holds something."""
        if not _pool(device)[1]:
            raise Unavailable("CuPy's pool has held nothing on this device")
        return CuPyCounter(_describe(device))

    def current_index(self) -> int | None:
        """Return the calling thread's current device; None while CuPy uses none."""
        try:
            index = int(sys.modules["cupy"].cuda.runtime.getDevice()) if self._counters else None
        except Exception:
            return None
        return index if index in self._counters else None

    def settle(self) -> None:
        """Free the pools' unused blocks, if there are any."""
        for index in self._counters:
            try:
                with _on(index) as cupy:
                    pool = cupy.get_default_memory_pool()
                    if pool.total_bytes() > pool.used_bytes():
                        pool.free_all_blocks()
            except Unavailable:
                continue

    def may_hold(self, kind: type) -> bool:
        """Return whether a class is CuPy's array or derived from it."""
        array_type = getattr(sys.modules.get("cupy"), "ndarray", None)
        return any(base is array_type for base in bases_of(kind))

    def holding(self, value: Any) -> Holding | None:
        """Return the pool's block behind an array, which its views share."""
        if not self.may_hold(type(value)):
            return None
        try:
            memory = value.data.mem
            where = device_id("cuda", int(memory.device_id))
            return Holding((where, int(memory.ptr)), int(memory.size), where)
        except Exception:
            return None


@contextlib.contextmanager
def _on(index: int) -> Iterator[Any]:
    """Yield CuPy, with this device as the current one; raises `Unavailable`."""
    cupy, contexts = sys.modules.get("cupy"), driver.contexts() or ()
    try:
        current = cupy.cuda.runtime.getDevice() if cupy is not None and contexts else None
        if cupy is None or index not in contexts or current not in contexts:
            raise Unavailable(_NO_CONTEXT)  # noqa: TRY301
        with contextlib.nullcontext() if current == index else cupy.cuda.Device(index):
            yield cupy
    except Unavailable:
        raise
    except Exception as error:
        raise Unavailable(f"CuPy gives no memory statistics: {first_line(error)}") from error


def _pool(index: int) -> tuple[int, int]:
    """Return the used bytes and all bytes of a device's default pool."""
    with _on(index) as cupy:
        pool = cupy.get_default_memory_pool()
        return int(pool.used_bytes()), int(pool.total_bytes())


def _describe(index: int) -> Device:
    with _on(index) as cupy:
        name = cupy.cuda.runtime.getDeviceProperties(index)["name"].decode(errors="replace")
    return replace(driver.device(index), name=name)
