"""What CUDA answers and does while a function is estimated, as if the device were there.

The functions of `torch.cuda`; operators that are made of others which depend on the device: C++ code does not
know that fake tensors are on CUDA, so it would take the way of another one.
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from ..allocator.caching_allocator import CachingAllocator

_NAME = "estimated device"
_TOTAL_BYTES = 80 << 30
_NOTHING = (  # functions that do nothing
    "synchronize set_device set_device_index set_device_idx set_stream ipc_collect init _lazy_init _lazy_call"
    " manual_seed seed manual_seed_all seed_all set_rng_state set_rng_state_all reset_max_memory_allocated"
    " reset_accumulated_memory_stats set_per_process_memory_fraction reset_peak_memory_stats"
)


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


def answers(torch: ModuleType, index: int, allocator: CachingAllocator) -> dict[Any, dict[str, Any]]:
    """Return the functions of `torch.cuda` and `torch.accelerator` by name, for the device of an index."""
    properties = SimpleNamespace(
        name=_NAME, major=8, minor=0, total_memory=_TOTAL_BYTES, multi_processor_count=108, warp_size=32,
        max_threads_per_multi_processor=2048, is_integrated=False, is_multi_gpu_board=False,
        L2_cache_size=40 << 20, shared_memory_per_block=48 << 10, shared_memory_per_block_optin=163 << 10,
        shared_memory_per_multiprocessor=164 << 10, regs_per_multiprocessor=65536, max_threads_per_block=1024,
        clock_rate=1410000, memory_clock_rate=1215000, memory_bus_width=5120, gcnArchName=_NAME, uuid=_NAME,
        pci_bus_id=0, pci_device_id=0, pci_domain_id=0,
    )  # fmt: skip
    constants: dict[str, Any] = {
        **dict.fromkeys(("is_available", "is_bf16_supported"), True),
        **dict.fromkeys(("is_initialized", "is_current_stream_capturing"), False),
        **dict.fromkeys(("current_device", "current_device_index", "current_device_idx"), index),
        **dict.fromkeys(_NOTHING.split()),
        "device_count": index + 1,
        "get_device_capability": (8, 0),
        "get_device_name": _NAME,
        "get_device_properties": properties,
        "initial_seed": 0,
        "memory_stats": {},
        "memory_summary": "",
        "current_accelerator": torch.device("cuda"),
    }
    functions: dict[str, Any] = {
        **{name: lambda *_, answer=answer, **__: answer for name, answer in constants.items()},
        "memory_allocated": lambda *_: allocator.allocated_bytes,
        "max_memory_allocated": lambda *_: allocator.peak_bytes,
        "memory_reserved": lambda *_: allocator.reserved_bytes,
        "max_memory_reserved": lambda *_: allocator.peak_reserved_bytes,
        "mem_get_info": lambda *_: (_TOTAL_BYTES - allocator.reserved_bytes, _TOTAL_BYTES),
        "empty_cache": allocator.empty_cache,
        **dict.fromkeys(("Stream", "ExternalStream", "Event", "current_stream", "default_stream"), _Quiet),
        **dict.fromkeys(("device", "device_of"), _Device),
        "stream": lambda _: contextlib.nullcontext(),
        "get_rng_state": lambda *_: torch.zeros(16, dtype=torch.uint8),
        "get_rng_state_all": lambda: [torch.zeros(16, dtype=torch.uint8) for _ in range(index + 1)],
    }
    return {module: functions for module in (torch.cuda, getattr(torch, "accelerator", None)) if module}


def dropout(
    torch: ModuleType,
    original: Callable[..., Any],
    input: Any,  # noqa: A002 - torch's own name
    p: float,
    train: bool,
) -> Any:
    """Do what dropout does on CUDA: its mask has one byte for each element."""
    if train and 0 < p < 1 and input.is_cuda and input.numel():
        return torch.native_dropout(input, p, True)[0]
    return original(input, p, train)


def one_hot(original: Callable[..., Any], tensor: Any, num_classes: int = -1) -> Any:
    """Do what `one_hot` does on CUDA: ones are written into zeros."""
    if not tensor.is_cuda or num_classes < 1:
        return original(tensor, num_classes)
    return tensor.new_zeros((*tensor.shape, num_classes)).scatter_(-1, tensor.unsqueeze(-1), 1)


def linear(
    torch: ModuleType,
    original: Callable[..., Any],
    input: Any,  # noqa: A002 - as above
    weight: Any,
    bias: Any = None,
) -> Any:
    """Do what the linear layer of plain tensors does: of three dimensions, the bias is added in place."""
    if bias is None or input.dim() < 3 or input.is_contiguous() or not input.is_cuda:
        return original(input, weight, bias)
    return torch.matmul(input, weight.t()).add_(bias)


def scaled_dot_product_attention(  # noqa: PLR0913, PLR0917 - torch's own parameters
    torch: ModuleType,
    original: Callable[..., Any],
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Do what attention does on CUDA: a kernel that does not keep the weights, where one can."""
    aten = torch.ops.aten
    arguments = query, key, value, attn_mask, dropout_p, is_causal
    if not query.is_cuda or query.dim() != 4:
        return original(*arguments, scale=scale, enable_gqa=enable_gqa)
    query, key, value = _cast(torch, query, key, value)
    if _is_flash(torch, query, value, attn_mask):
        return _flash(torch, (query, key, value), dropout_p, is_causal, scale)
    if not enable_gqa and _is_efficient(torch, query):
        saves = torch.is_grad_enabled() and any(one.requires_grad for one in (query, key, value))
        if attn_mask is not None:
            attn_mask = _mask(torch, attn_mask, query, key)
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, attn_mask, saves, dropout_p, is_causal, scale=scale
        )[0]
    arguments = query, key, value, attn_mask, dropout_p, is_causal
    return aten._scaled_dot_product_attention_math(*arguments, scale=scale, enable_gqa=enable_gqa)[0]


def _cast(torch: ModuleType, *tensors: Any) -> Any:
    """Return the tensors as autocast casts them; it has attention on its list."""
    if not torch.is_autocast_enabled("cuda"):
        return tensors
    kind = torch.get_autocast_dtype("cuda")
    return tuple(one.to(kind) if one.is_floating_point() else one for one in tensors)


def _is_flash(torch: ModuleType, query: Any, value: Any, mask: Any) -> bool:
    is_half = query.dtype in (torch.float16, torch.bfloat16)
    is_enabled = torch.backends.cuda.flash_sdp_enabled()
    return is_enabled and is_half and mask is None and query.shape[-1] == value.shape[-1] <= 256


def _is_efficient(torch: ModuleType, query: Any) -> bool:
    is_kind = query.dtype in (torch.float32, torch.float16, torch.bfloat16)
    needs = 4 if query.dtype is torch.float32 else 8  # elements of 16 bytes
    is_enabled = torch.backends.cuda.mem_efficient_sdp_enabled()
    return is_enabled and is_kind and query.shape[-1] % needs == 0


def _flash(torch: ModuleType, inputs: Any, p: float, causal: bool, scale: float | None) -> Any:
    size = inputs[0].shape[-1]
    scale = size**-0.5 if scale is None else scale
    if size % 8:
        pad = (0, 8 - size % 8)
        inputs = [torch.nn.functional.pad(one, pad) for one in inputs]
    out = torch.ops.aten._scaled_dot_product_flash_attention(*inputs, p, causal, scale=scale)[0]
    return out[..., :size]


def _mask(torch: ModuleType, mask: Any, query: Any, key: Any) -> Any:
    """Return a mask as the kernel takes it: numbers that are added, for every head."""
    if mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def none_on_a_device(original: Callable[..., Any], mode: Any, func: Any, flat: Any, *rest: Any) -> Any:
    """Call `run_fallback_kernel` for the CPU alone: on a device it would allocate real tensors there."""
    from torch._subclasses import fake_tensor

    if all(one.fake_device.type == "cpu" for one in flat if isinstance(one, fake_tensor.FakeTensor)):
        return original(mode, func, flat, *rest)
    if not func._schema.returns:  # it writes to its arguments: the kernels of fused optimizers
        return None
    raise fake_tensor.UnsupportedOperatorException(func)
