"""The names of fastai's and ipyexperiments' ``utils.mem``.

Device indices are torch's, whatever `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER` are. ``gpu_mem_*`` tell
the memory of a whole device, of all processes together, in MB of 2^20 bytes, truncated; 0 without a GPU, or
with an index that does not exist. Asking creates no context and loads no framework.
"""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
import itertools
import sys
from collections.abc import Iterator
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from ..engine.machine import machine
from ..records.units import in_mb, printable, truncated_mb
from ..runtime.errors import say

if TYPE_CHECKING:
    from ..sources import DeviceMemory


class GPUMemory(NamedTuple):
    """A device's memory in MB, of all processes together: ``total == free + used``.

    Memory that the driver reserves for itself counts as used, as in fastai and ipyexperiments.
    """

    total: int
    free: int
    used: int


def b2mb(num: float) -> int:
    """Return bytes as whole MB (``2**20``), truncated toward zero."""
    return truncated_mb(num)


def gpu_mem_get(id: int | None = None) -> GPUMemory:  # noqa: A002 - fastai's name for it
    """Return the memory of the device with this index in torch; by default the current one."""
    return _in_mb(_memory(id))


def gpu_mem_get_mbs(torch_gpu_id: int | None = None) -> GPUMemory:
    """Return the memory of one device; by default the current one."""
    return gpu_mem_get(torch_gpu_id)


def gpu_mem_get_all() -> list[GPUMemory]:
    """Return the memory of each device of the machine, in the driver's order.

    Devices that `CUDA_VISIBLE_DEVICES` hides are included, unless it hides all: then the list is empty.
    """
    if machine().devices.all_hidden():
        return []
    nvml = machine().nvml
    with machine().keeping_driver():
        if devices := nvml.devices():
            return [_in_mb(nvml.memory(device.uuid)) for device in devices]
    return list(_visible())


def gpu_mem_get_total_mbs(torch_gpu_id: int | None = None) -> int:
    """Return the total memory of one device; by default the current one."""
    return gpu_mem_get(torch_gpu_id).total


def gpu_mem_get_free(torch_gpu_id: int | None = None) -> int:
    """Return the free memory of one device; by default the current one."""
    return gpu_mem_get(torch_gpu_id).free


def gpu_mem_get_used(torch_gpu_id: int | None = None) -> int:
    """Return the used memory of one device; by default the current one."""
    return gpu_mem_get(torch_gpu_id).used


gpu_mem_get_free_mbs = gpu_mem_get_free
gpu_mem_get_used_mbs = gpu_mem_get_used


def gpu_mem_get_free_no_cache() -> int:
    """Empty torch's cache, and return the free memory of the current device."""
    return _without_cache().free


def gpu_mem_get_used_no_cache() -> int:
    """Empty torch's cache, and return the used memory of the current device."""
    return _without_cache().used


def gpu_mem_get_free_no_cache_mbs(torch_gpu_id: int | None = None) -> int:
    """Collect garbage, empty torch's cache, and return the free memory of one device."""
    gc.collect()
    return _without_cache(torch_gpu_id).free


def gpu_mem_get_used_no_cache_mbs(torch_gpu_id: int | None = None) -> int:
    """Collect garbage, empty torch's cache, and return the used memory of one device."""
    gc.collect()
    return _without_cache(torch_gpu_id).used


def gpu_mem_get_used_fast(gpu_handle: Any) -> int:
    """Return the used memory of the device of a handle from ``pynvml.nvmlDeviceGetHandleByIndex``.

    Raises:
        pynvml.NVMLError: The driver cannot be asked.
    """
    with machine().keeping_driver():
        return _in_mb(machine().nvml.memory_of(gpu_handle)).used


def gpu_with_max_free_mem() -> tuple[int | None, int]:
    """Return torch's index of the first device with the most free memory, and how much that is."""
    found = list(enumerate(memory.free for memory in _visible()))
    return max(found, key=lambda one: one[1], default=(None, 0))


def get_nvml_gpu_id(torch_gpu_id: int) -> int:
    """Return NVML's index of the device with this index in torch.

    Raises:
        ValueError: There is no such device.
    """
    memory = _memory(torch_gpu_id)  # this may make the CUDA driver tell its UUID
    seen = memory and machine().nvml.device(machine().devices.uuid(torch_gpu_id))
    if seen is None:
        raise ValueError(f"torch has no device {torch_gpu_id!r} that NVML knows: see `ipygpulogger doctor`")
    return seen.index


def load_pynvml_env() -> ModuleType:
    """Return pynvml, with NVML initialised until ``pynvml.nvmlShutdown()``.

    Raises:
        pynvml.NVMLError: There is no NVIDIA driver.
    """
    pynvml = importlib.import_module("pynvml")
    pynvml.nvmlInit()
    return pynvml


def gpu_mem_allocate_mbs(n: float, fatal: bool = False) -> Any:
    """Allocate so many MB on the current device, without allocating host memory.

    The driver allocates in steps of 2 MB; torch allocates 20 MB at once for a request below 10 MB.

    Returns:
        The tensor, float32 and uninitialised. If it could not be allocated None, or with `fatal` an error.
    """
    try:
        torch = importlib.import_module("torch")
        kind = torch.accelerator.current_accelerator() or "cuda"
        return torch.empty(int(n * 2**18), dtype=torch.float32, device=kind)
    except Exception as error:
        if not fatal:
            return None
        if isinstance(error, ModuleNotFoundError):
            raise ModuleNotFoundError("this needs PyTorch: pip install torch", name="torch") from error
        raise


def gpu_mem_leave_free_mbs(n: int) -> Any:
    """Allocate memory until so many MB of the current device are free; return the tensor that holds it.

    Raises:
        AssertionError: Less is free already, or the memory could not be allocated.
    """
    preload_pytorch()
    available = gpu_mem_get_free_no_cache_mbs()
    if available <= n:
        raise AssertionError(f"already have less available mem than desired {n}MBs")
    buffer = gpu_mem_allocate_mbs(available - n)
    if buffer is None:
        raise AssertionError(f"failed to allocate {available - n}MB")
    return buffer


def preload_pytorch(device_id: int | None = None) -> None:
    """Create torch's context on a device, by default the current one; it takes about half a gigabyte there.

    Without a GPU or without torch, nothing happens.
    """
    with suppress(ModuleNotFoundError):
        torch = importlib.import_module("torch")
        if torch.cuda.is_available():
            torch.cuda.synchronize(device_id)  # that of `accelerator` initializes no device by its index
        elif torch.accelerator.is_available():
            torch.accelerator.synchronize(device_id)


def gpu_is_usable() -> bool:
    """Return whether torch can use a GPU here, without importing torch if the user has not."""
    torch = sys.modules.get("torch")
    if torch is not None:
        return bool(torch.cuda.is_available())
    with suppress(importlib.metadata.PackageNotFoundError):
        return not importlib.metadata.version("torch").endswith("+cpu") and bool(gpu_mem_get_all())
    return False


def _visible() -> Iterator[GPUMemory]:
    """Return the memory of the devices that torch can see, in its order."""
    return map(_in_mb, itertools.takewhile(bool, map(_memory, itertools.count())))


def _without_cache(index: int | None = None) -> GPUMemory:
    machine().settling.settle(gc_collect=False, clear_cache=True)
    return gpu_mem_get(index)


def _memory(index: int | None) -> DeviceMemory | None:
    if index is None:
        index = machine().frameworks.current_index() or 0
    if not isinstance(index, int) or index < 0:
        return None
    memory = machine().device_memory(index)
    if memory is None and (torch := sys.modules.get("torch")) is not None:
        with suppress(Exception):  # a device in an error state, a forked child
            torch.cuda.init()  # creates no context, but lets the CUDA driver tell the device's UUID
            memory = machine().device_memory(index)
    return memory


def _in_mb(memory: DeviceMemory | None) -> GPUMemory:
    if memory is None:
        return GPUMemory(0, 0, 0)
    total_mb, free_mb = truncated_mb(memory.total_bytes), truncated_mb(memory.free_bytes)
    return GPUMemory(total_mb, free_mb, total_mb - free_mb)


def reduce_mem_usage(df: Any) -> Any:
    """Convert the columns of a DataFrame to smaller types, in place, and print the sizes before and after.

    - Integers get the smallest type that holds all values, signed or unsigned as before.
    - float64 becomes float32 if each value stays the same to 7 digits, and each whole number exactly. If
      not, the column is left alone, and a line says so.
    - Text becomes a category; None is then NaN.

    Its sizes are those of ``df.memory_usage()``: 8 bytes for an object. The DataFrame itself is returned.
    """
    before_bytes = int(df.memory_usage().sum())
    say(f"Memory usage of dataframe is {in_mb(before_bytes):.2f} MB")
    for position, name in enumerate(df.columns):  # by position, as names need not be unique
        column = df.iloc[:, position]
        smaller = _smaller(column)
        if smaller is not None:
            df.isetitem(position, smaller)
        elif column.dtype == "float64":
            say(f"Error {printable(str(name))} Value would be a float64. Disregarding.")
    after_bytes = int(df.memory_usage().sum())
    percent = 100 * (before_bytes - after_bytes) / before_bytes if before_bytes else 0.0
    say(f"Memory usage after optimization is: {in_mb(after_bytes):.2f} MB")
    say(f"Decreased by {percent:.1f}%")
    return df


def _smaller(column: Any) -> Any:
    import numpy as np
    import pandas as pd

    dtype = column.dtype
    if isinstance(dtype, pd.StringDtype):
        return column.astype("category")
    if not isinstance(dtype, np.dtype):
        return None
    if dtype.kind in "iu":
        return pd.to_numeric(column, downcast="integer" if dtype.kind == "i" else "unsigned")
    if dtype == np.float64:
        with np.errstate(all="ignore"):
            smaller = column.astype(np.float32)
            values, rounded = column.to_numpy(), smaller.to_numpy(np.float64)
            is_whole = (values == np.round(values)) & (np.abs(values) <= 2**53)  # beyond, not each is one
            is_near = np.abs(values - rounded) <= np.abs(values) * 2.0**-24  # half of float32's last place
            same = (values == rounded) | np.isnan(values) | (is_near & ~is_whole)
        return smaller if same.all() else None
    is_text = dtype.kind == "O" and pd.api.types.infer_dtype(column, skipna=True) == "string"
    return column.astype("category") if is_text else None
