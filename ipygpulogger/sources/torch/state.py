"""What torch has initialised and compiles, and whether each other thread has gone on.

Only its core in C is asked, which is there with torch. Importing the compiler takes seconds.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from math import inf
from types import CodeType, ModuleType
from typing import Any

from ...runtime.clock import monotonic_s
from ..system.linux import read

# What torch raises for a device in an error state, a pluggable allocator, a build without CUDA.
TORCH_ERRORS = (RuntimeError, AttributeError, AssertionError)


def module() -> Any:
    """Return torch, if the user has imported it; else None."""
    return sys.modules.get("torch")


def accelerator() -> str | None:
    """Return the type of accelerator that is initialised: "cuda", "xpu", "mps", ...; None without one."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    try:
        if torch.cuda.is_initialized():
            return "cuda"
        if not torch._C._accelerator_isAllocatorInitialized():
            return None
        return str(torch.accelerator.current_accelerator().type)
    except TORCH_ERRORS:
        return None  # still being imported, or a build without accelerators


def devices(backend: str) -> Any:
    """Return torch's module of functions for devices of such a type."""
    return module().cuda if backend == "cuda" else module().accelerator


def caches() -> bool:
    """Return whether torch's allocator on CUDA devices caches; without that it counts nothing."""
    ask = getattr(getattr(module(), "_C", None), "_cuda_cudaCachingAllocator_is_enabled", None)
    if ask is None:  # an older torch
        return not any(f"PYTORCH_NO_{kind}_MEMORY_CACHING" in os.environ for kind in ("CUDA", "HIP"))
    return bool(ask())


def current_index() -> int | None:
    """Return the index of torch's current device; None while nothing is initialised."""
    backend = accelerator()
    if backend is None:
        return None
    ask = "current_device" if backend == "cuda" else "current_device_index"
    with suppress(*TORCH_ERRORS):
        return int(getattr(devices(backend), ask)())
    return None


def mem_get_info(index: int) -> tuple[int, int]:
    """Return free and total bytes of a device, as the driver reports them to torch; raises `TORCH_ERRORS`."""
    backend = accelerator()
    if backend is None:
        raise RuntimeError("torch uses no device")
    ask = module().cuda.mem_get_info if backend == "cuda" else module().accelerator.memory.get_memory_info
    return ask(index)  # type: ignore[no-any-return]


def limit_bytes(index: int) -> int | None:
    """Return what `set_per_process_memory_fraction` allows; None without a limit, or if it is unknown."""
    torch = module()
    ask = getattr(getattr(torch, "_C", None), "_cuda_getMemoryFraction", None)
    if ask is None or accelerator() != "cuda":
        return None
    with suppress(*TORCH_ERRORS):
        with torch.cuda.device(index):  # torch 2.6 leaves the device asked about as the current one
            fraction = ask(index)
        return int(fraction * mem_get_info(index)[1]) if fraction < 1 else None
    return None


def set_compiler(torch: ModuleType) -> Callable[[Any], Any]:
    """Return the function that sets what compiles this thread's frames, and returns what did before."""
    found: Callable[[Any], Any] = getattr(_core(torch), "set_eval_frame", lambda _: None)
    return found


def leave_alone(torch: ModuleType, function: Callable[..., Any]) -> bool:
    """Let the compiler run a function as it is, but for what it calls; return whether that is possible."""
    core = _core(torch)
    code: CodeType = function.__code__
    try:
        if hasattr(core, "skip_code"):  # torch 2.6
            core.skip_code(code)
        else:
            action = core._FrameAction
            core.set_code_exec_strategy(code, core._FrameExecStrategy(action.SKIP, action.DEFAULT))
    except (AttributeError, TypeError):
        return False
    return True


def _core(torch: ModuleType) -> Any:
    return getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)


_TASKS = "/proc/self/task"
_RUNS = b"RDTt"  # proc_pid_stat(5); in other states a thread waits within a system call
_AT_LEAST_S = 50e-6
_LOOKS_EACH_S = 0.0005
_UNKNOWN_S = 0.01  # where the system does not tell


def let_others_go_on(limit_s: float) -> None:
    """Return once every other thread, also of C++, has run for a while or waits within a system call."""
    end_s, own = monotonic_s() + limit_s, str(threading.get_native_id())
    try:
        _ran_s(own)
        others = [task for task in os.listdir(_TASKS) if task != own]  # noqa: PTH208 - names
    except (OSError, ValueError, IndexError):
        if threading.active_count() > 1:
            time.sleep(_UNKNOWN_S)
        return
    goal_s = {task: ran_s + _AT_LEAST_S for task in others if (ran_s := _running_s(task)) < inf}
    while goal_s and monotonic_s() < end_s:
        time.sleep(_LOOKS_EACH_S)
        goal_s = {task: goal for task, goal in goal_s.items() if _running_s(task) < goal}


def _running_s(task: str) -> float:
    """Return for how long a thread has run; infinite if it has ended, or waits within a system call."""
    with suppress(OSError, ValueError, IndexError):
        if read(f"{_TASKS}/{task}/stat").rpartition(b")")[2].split()[0] in _RUNS:
            return _ran_s(task)
    return inf


def _ran_s(task: str) -> float:
    return int(read(f"{_TASKS}/{task}/schedstat").split()[0]) / 1e9
