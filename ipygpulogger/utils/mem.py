"""Re-export the names of `fastai.utils.mem` and `ipyexperiments.utils.mem`.

Unlike fastai's, the star import brings no other module, such as ``gc``. ``use_gpu`` is computed when read.
"""
# ruff: noqa: F403, F405 - what is imported is what `__all__` names

from __future__ import annotations

from types import ModuleType
from typing import Any

from ..compat.gpu_mem_trace import *
from ..compat.mem import *
from ..compat.tracebacks import *

pynvml: ModuleType
use_gpu: bool

__all__ = [
    "GPUMemTrace", "GPUMemory", "b2mb", "get_nvml_gpu_id", "gpu_mem_allocate_mbs", "gpu_mem_get",
    "gpu_mem_get_all", "gpu_mem_get_free", "gpu_mem_get_free_mbs", "gpu_mem_get_free_no_cache",
    "gpu_mem_get_free_no_cache_mbs", "gpu_mem_get_mbs", "gpu_mem_get_total_mbs", "gpu_mem_get_used",
    "gpu_mem_get_used_fast", "gpu_mem_get_used_mbs", "gpu_mem_get_used_no_cache",
    "gpu_mem_get_used_no_cache_mbs", "gpu_mem_leave_free_mbs", "gpu_mem_restore", "gpu_mem_restore_ctx",
    "gpu_mem_trace", "gpu_with_max_free_mem", "load_pynvml_env", "preload_pytorch", "pynvml",
    "reduce_mem_usage", "use_gpu",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "use_gpu":
        return gpu_is_usable()
    if name == "pynvml":
        import pynvml

        try:
            return load_pynvml_env()  # migrated code calls the driver at once
        except pynvml.NVMLError:
            return pynvml
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
