"""What torch does on CUDA where an operator is made of others that depend on the device.

C++ code does not know that fake tensors are on CUDA, so it would take the way of another device.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from .operators import Operators

RECURRENT = {
    "lstm": "LSTM",
    "gru": "GRU",
    "rnn_tanh": "RNN",
    "rnn_relu": "RNN",
    "lstm_cell": "LSTMCell",
    "gru_cell": "GRUCell",
    "rnn_tanh_cell": "RNNCell",
}


def dropout(torch: ModuleType, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return dropout as it is on CUDA: its mask has one byte for each element."""

    @functools.wraps(original)
    def dropout(input: Any, p: float, train: bool) -> Any:  # noqa: A002 - torch's own name
        if train and 0 < p < 1 and input.is_cuda and input.numel():
            return torch.native_dropout(input, p, True)[0]
        return original(input, p, train)

    return dropout


def one_hot(_: ModuleType, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return `one_hot` as it is on CUDA: ones are written into zeros."""

    @functools.wraps(original)
    def one_hot(tensor: Any, num_classes: int = -1) -> Any:
        if not tensor.is_cuda or num_classes < 1:
            return original(tensor, num_classes)
        return tensor.new_zeros((*tensor.shape, num_classes)).scatter_(-1, tensor.unsqueeze(-1), 1)

    return one_hot


def recurrent(operators: Operators, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of a recurrent module, whose name is noted: its kernels are not known here."""

    @functools.wraps(original)
    def noted(inputs: Any, *args: Any) -> Any:
        if inputs.is_cuda:
            operators.names.add(name)
        return original(inputs, *args)

    return noted


def linear(torch: ModuleType, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the linear layer of plain tensors: of three dimensions or more, the bias is added in place."""

    @functools.wraps(original)
    def linear(input: Any, weight: Any, bias: Any = None) -> Any:  # noqa: A002 - torch's own name
        if bias is None or input.dim() < 3 or input.is_contiguous() or not input.is_cuda:
            return original(input, weight, bias)
        return torch.matmul(input, weight.t()).add_(bias)

    return linear


def scaled_dot_product_attention(torch: ModuleType, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return attention as it is on CUDA: by a kernel that does not keep the weights, where one can."""
    aten = torch.ops.aten

    @functools.wraps(original)
    def scaled_dot_product_attention(  # noqa: PLR0913, PLR0917 - torch's own parameters
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        arguments = query, key, value, attn_mask, dropout_p, is_causal
        if not query.is_cuda or query.dim() != 4:
            return original(*arguments, scale=scale, enable_gqa=enable_gqa)
        query, key, value = _cast(torch, query, key, value)
        if _is_flash(torch, query, value, attn_mask):
            return _flash(torch, (query, key, value), dropout_p, is_causal, scale)
        if not enable_gqa and _is_efficient(torch, query, attn_mask):
            saves = torch.is_grad_enabled() and any(one.requires_grad for one in (query, key, value))
            if attn_mask is not None:
                attn_mask = _mask(torch, attn_mask, query, key)
            return aten._scaled_dot_product_efficient_attention(
                query, key, value, attn_mask, saves, dropout_p, is_causal, scale=scale
            )[0]
        arguments = query, key, value, attn_mask, dropout_p, is_causal
        return aten._scaled_dot_product_attention_math(*arguments, scale=scale, enable_gqa=enable_gqa)[0]

    return scaled_dot_product_attention


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


def _is_efficient(torch: ModuleType, query: Any, mask: Any) -> bool:
    is_kind = query.dtype in (torch.float32, torch.float16, torch.bfloat16)
    needs = 4 if query.dtype is torch.float32 else 8  # elements of 16 bytes
    is_enabled = torch.backends.cuda.mem_efficient_sdp_enabled()
    needs_gradient = mask is not None and mask.requires_grad
    return is_enabled and is_kind and query.shape[-1] % needs == 0 and not needs_gradient


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
