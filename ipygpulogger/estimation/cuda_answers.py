"""The functions of `torch.cuda`, as they answer while a function is estimated: the device is there."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

    from .caching_allocator import CachingAllocator

_NAME = "estimated device"
_TOTAL_BYTES = 80 << 30


class _Quiet:
    """A stream or an event: it waits for nothing."""

    cuda_stream = device_index = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        answer = {"elapsed_time": 1.0, "is_capturing": False}.get(name, True)
        return lambda *_, **__: answer

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class _Device:
    """A device that becomes the current one within: it is already."""

    def __init__(self, device: Any) -> None:
        self.idx = device

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def answers(torch: ModuleType, index: int, allocator: CachingAllocator) -> dict[str, Any]:
    """Return the functions by name.

    Args:
        torch: The module.
        index: Of the device.
        allocator: What it has allocated.
    """
    device, uint8 = torch.device("cuda", index), torch.uint8
    properties = SimpleNamespace(
        name=_NAME, major=8, minor=0, total_memory=_TOTAL_BYTES, multi_processor_count=108, warp_size=32,
        max_threads_per_multi_processor=2048, is_integrated=False, is_multi_gpu_board=False,
    )  # fmt: skip
    numbers = {
        "memory_allocated": lambda *_: allocator.allocated_bytes,
        "max_memory_allocated": lambda *_: allocator.peak_bytes,
        "memory_reserved": lambda *_: allocator.reserved_bytes,
        "max_memory_reserved": lambda *_: allocator.peak_reserved_bytes,
        "mem_get_info": lambda *_: (_TOTAL_BYTES - allocator.reserved_bytes, _TOTAL_BYTES),
        "memory_stats": lambda *_: {},
        "memory_summary": lambda *_, **__: "",
        "empty_cache": allocator.empty_cache,
    }
    nothing = (
        *(
            "synchronize",
            "set_device",
            "ipc_collect",
            "init",
            "_lazy_init",
            "_lazy_call",
            "manual_seed",
            "seed",
        ),
        *("manual_seed_all", "seed_all", "set_rng_state", "set_rng_state_all", "reset_peak_memory_stats"),
        *("reset_max_memory_allocated", "reset_accumulated_memory_stats", "set_per_process_memory_fraction"),
    )
    return {
        **dict.fromkeys(nothing, lambda *_, **__: None),
        **numbers,
        **dict.fromkeys(("Stream", "ExternalStream", "Event"), _Quiet),
        **dict.fromkeys(("current_stream", "default_stream"), _Quiet),
        **dict.fromkeys(("device", "device_of"), _Device),
        "stream": lambda _: contextlib.nullcontext(),
        "is_available": lambda: True,
        "device_count": lambda: index + 1,
        "current_device": lambda: index,
        "is_initialized": lambda: False,
        "is_bf16_supported": lambda *_, **__: True,
        "is_current_stream_capturing": lambda: False,
        "get_device_capability": lambda *_: (8, 0),
        "get_device_name": lambda *_: _NAME,
        "get_device_properties": lambda *_: properties,
        "get_rng_state": lambda *_: torch.zeros(16, dtype=uint8),
        "get_rng_state_all": lambda: [torch.zeros(16, dtype=uint8) for _ in range(device.index + 1)],
        "initial_seed": lambda: 0,
    }


def accelerator_answers(torch: ModuleType, index: int, of_cuda: dict[str, Any]) -> dict[str, Any]:
    """Return the functions of `torch.accelerator` by name; asking it for a stream would create a context.

    Args:
        torch: The module.
        index: Of the device.
        of_cuda: The answers of `torch.cuda`, which has the same functions and others.
    """
    return {
        **of_cuda,
        "current_accelerator": lambda *_, **__: torch.device("cuda"),
        "current_device_index": lambda: index,
        "current_device_idx": lambda: index,
        **dict.fromkeys(("set_device_index", "set_device_idx", "set_stream"), lambda *_, **__: None),
    }
