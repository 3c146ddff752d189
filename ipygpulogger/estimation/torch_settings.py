"""torch's global settings, as they were before a function ran."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

_UNREADABLE = object()
_ATTENTION = ("flash", "mem_efficient", "math", "cudnn")
_Setting = tuple["Callable[[], Any]", "Callable[[Any], Any]"]
_BACKENDS = {
    "backends.cuda.matmul": (
        "allow_tf32",
        "allow_fp16_reduced_precision_reduction",
        "allow_bf16_reduced_precision_reduction",
        "allow_fp16_accumulation",
        "fp32_precision",
    ),
    "backends.cudnn": (
        *("enabled", "benchmark", "benchmark_limit", "deterministic", "allow_tf32", "fp32_precision"),
    ),
    "backends.cudnn.conv": ("fp32_precision",),
    "backends.cudnn.rnn": ("fp32_precision",),
    "backends.mkldnn.matmul": ("fp32_precision",),
    "backends": ("fp32_precision",),
    "utils.deterministic": ("fill_uninitialized_memory",),
}


@contextlib.contextmanager
def unchanged(torch: ModuleType) -> Iterator[None]:
    """Put back each setting that was changed within."""
    settings = _settings(torch)
    before = {name: _read(get) for name, (get, _) in settings.items()}
    try:
        yield
    finally:
        for _ in range(2):  # some settings change others
            for name, (get, put) in settings.items():
                if before[name] is not _UNREADABLE and _read(get) != before[name]:
                    put(before[name])


def _read(get: Callable[[], Any]) -> Any:
    try:
        return get()
    except (AttributeError, RuntimeError):  # a setting of the old kind, where one of the new kind was set
        return _UNREADABLE


def _settings(torch: ModuleType) -> dict[str, _Setting]:
    """Return what reads each setting and what sets it, by name."""
    found: dict[str, _Setting] = {
        "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
        "default device": (lambda: _default_device(torch), torch.set_default_device),
        "deterministic algorithms": (
            lambda: (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
            ),
            lambda old: torch.use_deterministic_algorithms(old[0], warn_only=old[1]),
        ),
        "matmul precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        "anomaly mode": (
            lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
            lambda old: torch.autograd.set_detect_anomaly(*old),
        ),
        "warnings": (torch.is_warn_always_enabled, torch.set_warn_always),
        "threads": (torch.get_num_threads, torch.set_num_threads),
    }
    for kind in ("cuda", "cpu"):
        found[f"autocast of {kind}"] = _of_autocast(torch, kind)
    cuda, future = torch.backends.cuda, torch.__future__
    for name in _ATTENTION:
        if hasattr(cuda, f"{name}_sdp_enabled"):
            found[f"{name} attention"] = (
                getattr(cuda, f"{name}_sdp_enabled"),
                getattr(cuda, f"enable_{name}_sdp"),
            )
    for name in ("overwrite_module_params_on_conversion", "swap_module_params_on_conversion"):
        if hasattr(future, f"get_{name}"):
            found[name] = getattr(future, f"get_{name}"), getattr(future, f"set_{name}")
    found["cache of autocast"] = (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled)
    return found | {
        f"{path}.{name}": _attribute(torch, path, name) for path, names in _BACKENDS.items() for name in names
    }


def _default_device(torch: ModuleType) -> Any:
    """Return the device that `torch.set_default_device` was given; None if it was not called."""
    context = getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None)
    return None if context is None else context.device


def _attribute(torch: ModuleType, path: str, name: str) -> _Setting:
    def holder() -> Any:
        return functools.reduce(getattr, path.split("."), torch)

    return (lambda: getattr(holder(), name)), (lambda old: setattr(holder(), name, old))


def _of_autocast(torch: ModuleType, kind: str) -> _Setting:
    def put(old: tuple[bool, Any]) -> None:
        torch.set_autocast_enabled(kind, old[0])
        torch.set_autocast_dtype(kind, old[1])

    return (lambda: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))), put
