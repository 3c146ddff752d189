"""One GPU from outside: how much memory it has, is free, is used; as fastai and ipyexperiments ask it.

Devices are counted as torch counts them, whatever `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER` say.
All figures are of the whole device, all processes together, in MB of 2^20 bytes, truncated. Asking creates
no context and loads no framework. Without a GPU, or for one that is not there, the figures are 0.
"""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
import importlib.util
import itertools
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from ..engine.machine import machine
from ..records.units import truncated_mb
from ..sources import DeviceMemory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

_FLOATS_A_MB = 2**18


class GPUMemory(NamedTuple):
    """A device's memory in MB, all processes together: ``total == free + used``.

    What the driver keeps for itself is used, as it is for fastai and ipyexperiments.
    """

    total: int
    free: int
    used: int


def b2mb(num: float) -> int:
    """Bytes as whole MB (``2**20``), truncated toward zero."""
    return truncated_mb(num)


def gpu_mem_get(id: int | None = None) -> GPUMemory:  # noqa: A002 - fastai's name for it
    """The memory of one device.

    Args:
        id: torch's index of it; by default the current device.
    """
    return _in_mb(_memory(id))


def gpu_mem_get_all() -> list[GPUMemory]:
    """The memory of every device of the machine, in the driver's order.

    Devices that `CUDA_VISIBLE_DEVICES` hides are among them, unless it hides all: then there is none.
    """
    nvml = machine().nvml
    if machine().devices.all_hidden():
        return []
    if devices := nvml.devices():
        return [_in_mb(nvml.memory(device.uuid)) for device in devices]
    return list(_visible())


def gpu_mem_get_free() -> int:
    """What is free on the current device."""
    return gpu_mem_get().free


def gpu_mem_get_used() -> int:
    """What is in use on the current device."""
    return gpu_mem_get().used


def gpu_mem_get_free_no_cache() -> int:
    """What is free on the current device once torch's cache is emptied."""
    return _without_cache().free


def gpu_mem_get_used_no_cache() -> int:
    """What is in use on the current device once torch's cache is emptied."""
    return _without_cache().used


def gpu_mem_get_used_fast(gpu_handle: Any) -> int:
    """What is in use on the device of a handle that ``pynvml.nvmlDeviceGetHandleByIndex`` gave.

    Raises:
        pynvml.NVMLError: The driver does not tell.
    """
    return _in_mb(machine().nvml.memory_of(gpu_handle)).used


def gpu_with_max_free_mem() -> tuple[int | None, int]:
    """The first device with the most free memory, by torch's index of it, and how much that is."""
    found = list(enumerate(memory.free for memory in _visible()))
    return max(found, key=lambda one: one[1], default=(None, 0))


def gpu_mem_get_mbs(torch_gpu_id: int | None = None) -> GPUMemory:
    """The memory of one device; by default the current one."""
    return gpu_mem_get(torch_gpu_id)


def gpu_mem_get_total_mbs(torch_gpu_id: int | None = None) -> int:
    """All the memory of one device; by default the current one."""
    return gpu_mem_get(torch_gpu_id).total


def gpu_mem_get_free_mbs(torch_gpu_id: int | None = None) -> int:
    """What is free on one device; by default the current one."""
    return gpu_mem_get(torch_gpu_id).free


def gpu_mem_get_used_mbs(torch_gpu_id: int | None = None) -> int:
    """What is in use on one device; by default the current one."""
    return gpu_mem_get(torch_gpu_id).used


def gpu_mem_get_free_no_cache_mbs(torch_gpu_id: int | None = None) -> int:
    """What is free on one device once garbage is collected and torch's cache emptied."""
    return _without_cache(torch_gpu_id, gc_collect=True).free


def gpu_mem_get_used_no_cache_mbs(torch_gpu_id: int | None = None) -> int:
    """What is in use on one device once garbage is collected and torch's cache emptied."""
    return _without_cache(torch_gpu_id, gc_collect=True).used


def get_nvml_gpu_id(torch_gpu_id: int) -> int:
    """The driver's index of a device that torch counts as this one.

    Raises:
        ValueError: There is no such device.
    """
    memory = _memory(torch_gpu_id)  # which may make it known
    seen = memory and machine().nvml.device(machine().devices.uuid(torch_gpu_id))
    if seen is None:
        raise ValueError(
            f"torch has no device {torch_gpu_id!r} here that NVML knows;"
            " `ipygpulogger doctor` in a terminal says what there is"
        )
    return seen.index


def load_pynvml_env() -> ModuleType:
    """NVML's binding, with the driver's library open until ``pynvml.nvmlShutdown()``.

    Raises:
        pynvml.NVMLError: There is no driver.
    """
    pynvml = importlib.import_module("pynvml")
    pynvml.nvmlInit()
    return pynvml


def gpu_mem_allocate_mbs(n: float, fatal: bool = False) -> Any:
    """Allocate memory on the current device, straight there and never through the host's.

    The driver hands memory out in pieces of 2 MB, and torch 20 MB at once for what is below 10.

    Args:
        n: How many MB.
        fatal: Raise what went wrong.

    Returns:
        The tensor, float32, its values whatever was there; None where there is no room for it.
    """
    try:
        torch = _imported_torch()
        kind = torch.accelerator.current_accelerator() or "cuda"
        return torch.empty(int(n * _FLOATS_A_MB), dtype=torch.float32, device=kind)
    except Exception:
        if fatal:
            raise
        return None


def gpu_mem_leave_free_mbs(n: int) -> Any:
    """Allocate all of the current device but so many MB.

    Returns:
        The tensor that takes the rest up.

    Raises:
        AssertionError: So much is not free, or the rest could not be allocated.
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
    """Create torch's context on a device, which takes some half a gigabyte of it; no tensor is made.

    Where there is no GPU, or no torch, nothing happens.

    Args:
        device_id: torch's index of it; by default the current device.
    """
    if importlib.util.find_spec("torch") is None:
        return
    torch = _imported_torch()
    if torch.cuda.is_available():
        torch.cuda.synchronize(device_id)
    elif torch.accelerator.is_available():
        torch.accelerator.synchronize(device_id)


def gpu_is_usable() -> bool:
    """Whether torch can use a GPU here; told without loading torch where the user has not."""
    torch = sys.modules.get("torch")
    if torch is not None:
        return bool(torch.cuda.is_available())
    try:
        cpu_build = importlib.metadata.version("torch").endswith("+cpu")
    except importlib.metadata.PackageNotFoundError:
        return False
    return not cpu_build and bool(gpu_mem_get_all())


def _visible() -> Iterator[GPUMemory]:
    """The devices that torch would count, in its order."""
    for index in itertools.count():
        memory = _memory(index)
        if memory is None:
            return
        yield _in_mb(memory)


def _without_cache(index: int | None = None, *, gc_collect: bool = False) -> GPUMemory:
    if gc_collect:
        gc.collect()
    machine().settling.settle(gc_collect=False, clear_cache=True)
    return gpu_mem_get(index)


def _memory(index: int | None) -> DeviceMemory | None:
    if index is None:
        index = machine().frameworks.current_index() or 0
    if not isinstance(index, int) or index < 0:
        return None
    return machine().devices.memory(index) or _told_by_torch(index)


def _told_by_torch(index: int) -> DeviceMemory | None:
    """Where NVML cannot tell which device is meant, or nothing of it: torch does, at worst for a context."""
    torch = sys.modules.get("torch")
    try:
        if torch is None or index >= torch.cuda.device_count():
            return None
        torch.cuda.init()  # no context; now the CUDA driver tells which device it is
        if (memory := machine().devices.memory(index)) is not None:
            return memory
        free_bytes, total_bytes = torch.cuda.mem_get_info(index)
    except Exception:  # a device in an error state, a forked child
        return None
    return DeviceMemory(total_bytes, total_bytes - free_bytes, free_bytes)


def _imported_torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("this needs PyTorch: pip install torch", name="torch") from error


def _in_mb(memory: DeviceMemory | None) -> GPUMemory:
    if memory is None:
        return GPUMemory(0, 0, 0)
    total_mb, free_mb = truncated_mb(memory.total_bytes), truncated_mb(memory.free_bytes)
    return GPUMemory(total_mb, free_mb, total_mb - free_mb)
