"""Re-export the names of `fastai.utils.ipython` and `ipyexperiments.utils.ipython`.

Their star import also brought the modules ``gc``, ``os``, ``functools`` and ``traceback``.
"""
# ruff: noqa: F403, F405 - what is imported is what `__all__` names

from __future__ import annotations

import functools
import gc
import os
import traceback

from ..compat.tracebacks import *

IS_IN_COLAB: bool  # both are computed at each access, by `__getattr__`
IS_IN_IPYTHON: bool

__all__ = [
    "IS_IN_COLAB", "IS_IN_IPYTHON", "functools", "gc", "get_ref_free_exc_info", "gpu_mem_restore",
    "gpu_mem_restore_ctx", "ipython_tb_clear_frames", "ipython_tb_clear_frames_ctx", "is_in_colab",
    "is_in_ipython", "os", "traceback",
]  # fmt: skip


def __getattr__(name: str) -> bool:
    if name == "IS_IN_IPYTHON":
        return is_in_ipython()
    if name == "IS_IN_COLAB":
        return is_in_colab()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
