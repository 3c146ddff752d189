"""What kernels of CUDA allocate besides their results: the workspace of cuBLAS, parts of sums, copies.

Read from torch's code (aten/) and measured with torch 2.13; `nox -s operators` compares all operators.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..breakdown.kinds import CUBLAS, workspaces
from ..records.units import MB
from .reductions import A100, reduction_bytes
from .values import user_line

if TYPE_CHECKING:
    from .allocations import Allocation, Allocations

Sizes = tuple[int, ...]  # what is there at the same time
_OWN_WORKSPACE = (2, 14)  # the version from which on cuBLAS has its own, which torch does not allocate
_ONE_WORKSPACE = (2, 12)  # from here on cuBLASLt shares that of cuBLAS, and later devices have Hopper's size
_OF_BIASES_BYTES = MB  # of its own before that (`CUBLASLT_WORKSPACE_SIZE`); before 2.9 for a moment only
_WITH_BIAS = frozenset(("addmm", "_addmm_activation"))
_FACTORS = {"mm": 0, "bmm": 0, "mv": 0, "addmm": 1, "baddbmm": 1, "addmv": 1}  # where the first matrix is
_OTHERS_WITH_CUBLAS = (
    "dot vdot _addmm_activation _scaled_mm addbmm linear"
    " _linear_cross_entropy_batch_chunked _linear_cross_entropy_batch_chunked_no_reduction"
)
_REDUCES = {  # bytes of what is reduced, for each element of the result; 0: as wide as sums are
    **dict.fromkeys(("sum", "mean", "nansum", "linalg_vector_norm", "norm", "prod"), 0),
    **dict.fromkeys(("any", "all"), 1),
    **dict.fromkeys(("var", "std", "var_mean", "std_mean", "argmax", "argmin"), 16),
    "logsumexp": 4,
}
_NOT_CAST = frozenset(("argmax", "argmin", "any", "all"))  # before they reduce
_PLACES = {  # of the reduction among a loss's arguments
    **dict.fromkeys(("mse_loss", "smooth_l1_loss", "huber_loss"), 2),
    "binary_cross_entropy": 3,
    "binary_cross_entropy_with_logits": 4,
}
# These reduce into the tensor of the values, whose memory stays with the result.
_KEEPS_VALUES = frozenset(("mse_loss", "smooth_l1_loss", "binary_cross_entropy"))
# What copies its gradient if the gradient's elements share their memory: it reads it from many places.
_COPIES = re.compile(
    r"\w*(pool|upsample|reflection_pad|layer_norm|rms_norm|log_softmax|embedding)\w*_backward"
)
_WIDE_HEAD = 64  # elements: how much a kernel takes for the gradients of wider ones is not known
WIDE = "wide scaled_dot_product_efficient_attention"  # as a note has it
_MANY_INDICES = 3072  # of an embedding: from here on they are sorted
_ROWS = 10  # of an embedding's gradient, which one thread adds up


class Kernels:
    """Notes what kernels allocate besides their results."""

    def __init__(self, torch: ModuleType, device: Any, allocations: Allocations, names: set[str]) -> None:
        version = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))
        # Whether the thread of backward passes is one of its own, with its own handle of cuBLAS, and in which
        # threads a workspace is still to be allocated.
        self._has_thread: bool = torch._C._is_multithreading_enabled()
        self._without_workspace = {False, True} if version < _OWN_WORKSPACE else set[bool]()
        self._of_biases_bytes = _OF_BIASES_BYTES if (2, 9) <= version < _ONE_WORKSPACE else 0
        self._backward_pass: Callable[[], int] = torch._C._current_graph_task_id
        self._device = device
        # Asking must not initialise CUDA.
        real = torch.cuda.get_device_properties(device) if torch.cuda.is_initialized() else None
        capability, self._multiprocessors = (8, 0), A100
        if real is not None:
            self._multiprocessors = real.multi_processor_count, real.max_threads_per_multi_processor
            capability = real.major, real.minor
        self._has_large: bool = capability >= (9, 0) and (capability == (9, 0) or version >= _ONE_WORKSPACE)
        self._uses_cublas = {*_FACTORS, *_OTHERS_WITH_CUBLAS.split()}
        self._allocations, self._names = allocations, names

    def use(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Note what an operator needs that has just allocated its result."""
        name = func._opname.removesuffix("_")
        first = out[0] if isinstance(out, tuple) else out
        if getattr(first, "fake_device", None) != self._device:
            return
        if name in self._uses_cublas:
            self._use_cublas(name, args, out)
        if name == "_scaled_dot_product_efficient_attention_backward" and args[1].shape[-1] > _WIDE_HEAD:
            self._names.add(WIDE)
        copied = (_size(args[0]),) if _COPIES.match(name) and _is_expanded(args[0]) else ()
        for together in self._temporaries(name, func, args, kwargs, first) or [()]:
            if copied or together:
                self._allocations.free(*self._allocate(*copied, *together))

    def _allocate(self, *sizes_bytes: int) -> list[Allocation]:
        line = user_line()
        return [self._allocations.allocate(size_bytes, line) for size_bytes in sizes_bytes]

    def _temporaries(self, name: str, func: Any, args: Any, kwargs: Any, out: Any) -> list[Sizes]:
        if name in _REDUCES:
            names = (one.name for one in func._schema.arguments)
            dims = {**dict(zip(names, args, strict=False)), **kwargs}.get("dim")
            return [self._of_reduction(name, args[0], out, (dims,) if isinstance(dims, int) else dims or ())]
        if name in _PLACES:
            return [self._of_loss(name, args, out)]
        return list(_TEMPORARIES[name](out, *args)) if name in _TEMPORARIES else []

    def _of_reduction(self, name: str, tensor: Any, out: Any, dims: Any) -> Sizes:
        """Return partial results, and before them the input as it is added up."""
        size, wide = tensor.element_size(), _REDUCES[name]
        before: Sizes = ()
        if name == "logsumexp":
            before = (_size(tensor) // max(tensor.numel() // max(out.numel(), 1), 1), _size(tensor))
        elif size < 8 and out.element_size() == 8 and name not in _NOT_CAST:
            wide, before = 8, (8 * tensor.numel(),)
        wide = wide or {8: 8, 16: 16}.get(size, 4)
        return (*before, *reduction_bytes(self._multiprocessors, tensor, out, wide, dims))

    def _of_loss(self, name: str, args: Any, out: Any) -> Sizes:
        """Return the values of the elements while they are reduced to one."""
        values, is_reduced = _size(args[0]), _is_reduced(name, args)
        partial = reduction_bytes(self._multiprocessors, args[0], out, 4) if is_reduced else ()
        if name == "binary_cross_entropy_with_logits":
            weighted = (_size(args[3]),) if len(args) > 3 and args[3] is not None else ()
            return (values,) * (1 + is_reduced) + weighted + partial
        if not is_reduced:
            return ()
        return (4 if name == "binary_cross_entropy" else values, *partial)

    def _use_cublas(self, name: str, args: Any, out: Any) -> None:
        at = _FACTORS.get(name)
        factors = () if at is None else args[at : at + 2]
        if factors and not all(one.numel() for one in (out, *factors)):
            return
        copied = self._allocate(*[_size(one) for one in factors if not _has_blas_strides(one)])
        in_thread = self._has_thread and self._backward_pass() >= 0
        if in_thread in self._without_workspace:
            self._without_workspace.remove(in_thread)
            (made,) = self._allocate((max if self._has_large else min)(workspaces()))
            made.kind, made.name = "temporaries", CUBLAS
        if self._of_biases_bytes and name in _WITH_BIAS and args[0].dim() == 1:
            self._allocate(self._of_biases_bytes)
            self._of_biases_bytes = 0
        self._allocations.free(*copied)


def is_seed(func: Any, tensor: Any) -> bool:
    """Return whether a result is the state of a random generator, which is on the CPU in truth."""
    return func._opname == "_scaled_dot_product_efficient_attention" and not tensor.dim()


def kept_bytes(name: str, args: Any) -> int:
    """Return how much stays allocated with a result; 0 where that is its own size."""
    return _size(args[0]) if name in _KEEPS_VALUES and _is_reduced(name, args) else 0


def _is_reduced(name: str, args: Any) -> bool:
    """Return whether a loss is one number: it is by default, and 0 is torch's number of "none"."""
    return len(args) <= _PLACES[name] or args[_PLACES[name]] != 0


def _scan(out: Any, tensor: Any, *_: Any) -> Iterator[Sizes]:
    if tensor.element_size() < out.element_size():
        yield (tensor.numel() * out.element_size(),)  # it is cast before


def _roll(_: Any, tensor: Any, __: Any, dims: Any = ()) -> Iterator[Sizes]:
    yield (_size(tensor),) * max(len(dims) - 1, not tensor.is_contiguous())  # one dimension after the other


def _index_put(_: Any, __: Any, indices: Any, values: Any, accumulate: bool = False, *___: Any) -> Any:
    if accumulate:
        count = max((one.numel() for one in indices if one is not None), default=0)
        yield *((8 * count,) * 4), 0 if values.is_contiguous() else _size(values)


def _group_norm_backward(_: Any, *args: Any) -> Iterator[Sizes]:
    count, channels, groups = args[5], args[6], args[8]
    yield (4 * count * channels,) * 2 + (4 * count * groups,) * 2


def _embedding_backward(_: Any, gradient: Any, indices: Any, words: int, *__: Any) -> Iterator[Sizes]:
    count = indices.numel()
    if count > _MANY_INDICES:
        parts = count // _ROWS + min(count, words)
        yield *(8 * count,) * 4, 8 * parts, 4 * parts * _ceil(gradient.shape[-1], 32) * 32


def _efficient_attention_backward(_: Any, gradient: Any, query: Any, *__: Any) -> Iterator[Sizes]:
    batch, heads, queries, size = query.shape
    delta_bytes = 4 * batch * heads * queries
    copied = _copied(gradient)
    if query.element_size() == 4:
        yield *copied, 4 * query.numel(), delta_bytes, delta_bytes
    tiles = _ceil(queries, 64) * _ceil(size, 64)
    yield *copied, delta_bytes, batch * heads * tiles * (64 * 64 * 4 + 16)


def _flash_attention_backward(_: Any, *args: Any) -> Iterator[Sizes]:
    query, key = args[1:3]
    batch, heads, queries, size = query.shape
    rows = batch * heads * _ceil(queries, 128) * 128
    grain = 32 if size <= 128 else 64
    shared = (_size(key) // key.shape[1] * heads,) * 2 if key.shape[1] != heads else ()  # one for each head
    yield *_copied(args[0], args[4]), *shared, 4 * rows, 4 * rows * _ceil(size, grain) * grain


_TEMPORARIES: dict[str, Callable[..., Iterator[Sizes]]] = {  # of an operator's result and arguments
    "_softmax_backward_data": lambda _, gradient, *__: iter([(_size(gradient),)]),
    # Which elements are -inf, which rows are nothing else, and one zero.
    "_safe_softmax": lambda _, one, dim, *__: iter([(one.numel(), one.numel() // one.shape[dim], 4)]),
    "cumsum": _scan,
    "cumprod": _scan,
    "roll": _roll,
    "index_put": _index_put,
    "_index_put_impl": _index_put,
    "_scaled_dot_product_efficient_attention_backward": _efficient_attention_backward,
    "_scaled_dot_product_flash_attention_backward": _flash_attention_backward,
    "native_group_norm_backward": _group_norm_backward,
    "embedding_dense_backward": _embedding_backward,
}


def _copied(*tensors: Any) -> list[int]:
    """Return the sizes of those whose heads do not stand beside each other in memory."""
    return [_size(one) for one in tensors if not one.transpose(1, 2).is_contiguous()]


def _has_blas_strides(tensor: Any) -> bool:
    """Return whether cuBLAS takes a matrix as it is (`prepare_matrix_for_cublas` in cuda/Blas.cpp)."""
    if tensor.dim() < 2:
        return not _is_expanded(tensor)
    (rows, columns), (down, across) = tensor.shape[-2:], tensor.stride()[-2:]
    is_plain = (across == 1 and down >= max(1, columns)) or (down == 1 and across >= max(1, rows))
    return is_plain or bool(tensor.is_contiguous())


def _is_expanded(tensor: Any) -> bool:
    """Return whether elements of a tensor share their memory."""
    return any(size > 1 and not step for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)


def _size(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


# -- operators that are others on CUDA


def dropout(torch: ModuleType, original: Any, input: Any, p: float, train: bool) -> Any:  # noqa: A002
    """Do what dropout does on CUDA: its mask has one byte for each element."""
    if train and 0 < p < 1 and input.is_cuda and input.numel():
        return torch.native_dropout(input, p, True)[0]
    return original(input, p, train)


def one_hot(original: Callable[..., Any], tensor: Any, num_classes: int = -1) -> Any:
    """Do what `one_hot` does on CUDA: ones are written into zeros."""
    if not tensor.is_cuda or num_classes < 1:
        return original(tensor, num_classes)
    return tensor.new_zeros((*tensor.shape, num_classes)).scatter_(-1, tensor.unsqueeze(-1), 1)


def linear(torch: ModuleType, original: Any, input: Any, weight: Any, bias: Any = None) -> Any:  # noqa: A002
    """Do what the linear layer of plain tensors does: of three dimensions, the bias is added in place."""
    if bias is None or input.dim() < 3 or input.is_contiguous() or not input.is_cuda:
        return original(input, weight, bias)
    return torch.matmul(input, weight.t()).add_(bias)


def attention(  # noqa: PLR0913, PLR0917 - torch's own parameters
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
    aten, how = torch.ops.aten, {"scale": scale, "enable_gqa": enable_gqa}
    if not query.is_cuda or query.dim() != 4:
        return original(query, key, value, attn_mask, dropout_p, is_causal, **how)
    inputs: Any = (query, key, value)
    if torch.is_autocast_enabled("cuda"):  # which has attention on its list, and leaves what is inside alone
        kind = torch.get_autocast_dtype("cuda")
        query, key, value, attn_mask = (
            one.to(kind) if one is not None and one.is_floating_point() and one.element_size() < 8 else one
            for one in (*inputs, attn_mask)
        )
        more = dropout_p, is_causal, scale, enable_gqa
        with torch.autocast("cuda", enabled=False):
            return attention(torch, original, query, key, value, attn_mask, *more)
    size, is_half = query.shape[-1], query.dtype in (torch.float16, torch.bfloat16)
    is_dense = all(one is None or one.stride(-1) == 1 for one in (*inputs, attn_mask))
    is_square = not is_causal or query.shape[2] == key.shape[2]
    fits_flash = is_half and is_dense and is_square and attn_mask is None and size == value.shape[-1] <= 256
    if fits_flash and torch.backends.cuda.flash_sdp_enabled():
        how = {"scale": size**-0.5 if scale is None else scale}
        if size % 8:
            inputs = [torch.nn.functional.pad(one, (0, 8 - size % 8)) for one in inputs]
        return aten._scaled_dot_product_flash_attention(*inputs, dropout_p, is_causal, **how)[0][..., :size]
    fits_efficient = torch.backends.cuda.mem_efficient_sdp_enabled() and is_dense and not enable_gqa
    grain = 8 if is_half else 4  # elements of 16 bytes
    if not (fits_efficient and (is_half or query.dtype is torch.float32) and size % grain == 0):
        is_plain = attn_mask is None or attn_mask.is_floating_point()
        if not (dropout_p and is_plain) or is_half or is_causal or enable_gqa:
            return aten._scaled_dot_product_attention_math(*inputs, attn_mask, dropout_p, is_causal, **how)[0]
        factor = (size**-0.5 if scale is None else scale) ** 0.5
        weights = (query * factor) @ (key.transpose(-2, -1) * factor)
        weights = torch._safe_softmax(weights if attn_mask is None else weights.add_(attn_mask), -1)
        return torch.native_dropout(weights, dropout_p, True)[0] @ value
    saves = torch.is_grad_enabled() and any(one.requires_grad for one in inputs)
    if attn_mask is not None:  # the kernel takes numbers that are added, for every head
        if attn_mask.dtype is torch.bool:
            zeros = torch.zeros_like(attn_mask, dtype=query.dtype)
            attn_mask = zeros.masked_fill_(attn_mask.logical_not(), float("-inf"))
        if any(step % 8 for step in attn_mask.stride()[:-1]):  # copied to rows that begin at 8 elements
            columns = attn_mask.shape[-1]
            attn_mask = torch.nn.functional.pad(attn_mask, (0, 8 - columns % 8))[..., :columns]
        attn_mask = attn_mask.expand(*query.shape[:3], key.shape[2])
    rest = attn_mask, saves, dropout_p, is_causal
    return aten._scaled_dot_product_efficient_attention(*inputs, *rest, scale=scale)[0]


def none_on_a_device(original: Callable[..., Any], mode: Any, func: Any, flat: Any, *rest: Any) -> Any:
    """Call `run_fallback_kernel` for the CPU alone: on a device it would allocate real tensors there."""
    from torch._subclasses import fake_tensor

    if all(one.fake_device.type == "cpu" for one in flat if isinstance(one, fake_tensor.FakeTensor)):
        return original(mode, func, flat, *rest)
    if not func._schema.returns:  # it writes to its arguments: the kernels of fused optimizers
        return None
    raise fake_tensor.UnsupportedOperatorException(func)
