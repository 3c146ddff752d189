"""The names of `fastai.utils.mem` and `ipyexperiments.utils.mem`.

``from ipygpulogger.utils.mem import *`` is all that changes. ``use_gpu`` is answered when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..device import (
    GPUMemory,
    b2mb,
    get_nvml_gpu_id,
    gpu_is_usable,
    gpu_mem_allocate_mbs,
    gpu_mem_get,
    gpu_mem_get_all,
    gpu_mem_get_free,
    gpu_mem_get_free_mbs,
    gpu_mem_get_free_no_cache,
    gpu_mem_get_free_no_cache_mbs,
    gpu_mem_get_mbs,
    gpu_mem_get_total_mbs,
    gpu_mem_get_used,
    gpu_mem_get_used_fast,
    gpu_mem_get_used_mbs,
    gpu_mem_get_used_no_cache,
    gpu_mem_get_used_no_cache_mbs,
    gpu_mem_leave_free_mbs,
    gpu_with_max_free_mem,
    preload_pytorch,
)
from ..trace import GPUMemTrace, gpu_mem_trace
from ..tracebacks import gpu_mem_restore, gpu_mem_restore_ctx

if TYPE_CHECKING:
    from types import ModuleType

pynvml: ModuleType
use_gpu: bool

__all__ = [
    "GPUMemTrace",
    "GPUMemory",
    "b2mb",
    "get_nvml_gpu_id",
    "gpu_mem_allocate_mbs",
    "gpu_mem_get",
    "gpu_mem_get_all",
    "gpu_mem_get_free",
    "gpu_mem_get_free_mbs",
    "gpu_mem_get_free_no_cache",
    "gpu_mem_get_free_no_cache_mbs",
    "gpu_mem_get_mbs",
    "gpu_mem_get_total_mbs",
    "gpu_mem_get_used",
    "gpu_mem_get_used_fast",
    "gpu_mem_get_used_mbs",
    "gpu_mem_get_used_no_cache",
    "gpu_mem_get_used_no_cache_mbs",
    "gpu_mem_leave_free_mbs",
    "gpu_mem_restore",
    "gpu_mem_restore_ctx",
    "gpu_mem_trace",
    "gpu_with_max_free_mem",
    "preload_pytorch",
    "pynvml",
    "use_gpu",
]


def __getattr__(name: str) -> Any:
    if name == "use_gpu":
        return gpu_is_usable()
    if name == "pynvml":
        import pynvml

        return pynvml
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
