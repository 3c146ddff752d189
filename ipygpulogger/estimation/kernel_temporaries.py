"""What single operators of CUDA allocate for a moment, after their results: read from torch's code (aten/).

Each function takes an operator's arguments and yields sizes in bytes of what is there at the same time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Sizes = tuple[int, ...]
_MANY_INDICES = 3072  # of an embedding: from here on they are sorted
_SORTED = 4096  # elements that one block of threads sorts
_SORTED_AT_ONCE = 128  # rows that are fewer are sorted as one
_ROWS = 10  # of an embedding's gradient, which one thread adds up


def is_seed(func: Any, tensor: Any) -> bool:
    """Return whether a result is the state of a random generator, which is on the CPU in truth."""
    return func._opname == "_scaled_dot_product_efficient_attention" and not tensor.dim()


def _softmax_backward(gradient: Any, *_: Any) -> Iterator[Sizes]:
    yield (_size(gradient),)  # the gradient times the result


def _logsumexp(tensor: Any, dims: Any, *_: Any) -> Iterator[Sizes]:
    reduced = 1
    for dim in dims if isinstance(dims, (list, tuple)) else (dims,):
        reduced *= tensor.shape[dim]
    yield _size(tensor) // max(reduced, 1), _size(tensor)  # maxima, exponentials


def _group_norm_backward(*args: Any) -> Iterator[Sizes]:
    count, channels, groups = args[5], args[6], args[8]
    yield (4 * count * channels,) * 2 + (4 * count * groups,) * 2


def _efficient_attention_backward(*args: Any) -> Iterator[Sizes]:
    query = args[1]
    batch, heads, queries, size = query.shape
    delta_bytes = 4 * batch * heads * queries
    copied = _copied(args[0])
    if query.element_size() == 4:
        yield *copied, 4 * query.numel(), delta_bytes, delta_bytes
    tiles = _ceil(queries, 64) * _ceil(size, 64)
    yield *copied, delta_bytes, batch * heads * tiles * (64 * 64 * 4 + 16)


def _flash_attention_backward(*args: Any) -> Iterator[Sizes]:
    query, key = args[1:3]
    batch, heads, queries, size = query.shape
    rows = batch * heads * _ceil(queries, 128) * 128
    grain = 32 if size <= 128 else 64
    shared = (_size(key) // key.shape[1] * heads,) * 2 if key.shape[1] != heads else ()  # one for each head
    yield *_copied(args[0], args[4]), *shared, 4 * rows, 4 * rows * _ceil(size, grain) * grain


def _encoder_layer(source: Any, *args: Any) -> Iterator[Sizes]:
    """Yield what a layer of a transformer needs where it is one operator, besides its result."""
    heads, is_norm_first, wide, mask = args[1], args[7], args[13], args[17] if len(args) > 17 else None
    size, rows = _size(source), source.numel() // source.shape[-1]
    statistics = (4 * rows,) * 2
    first = (size,) if is_norm_first else ()
    for together in _attention(source, heads, mask):
        yield *first, *together
    hidden = rows * wide.shape[0] * source.element_size()
    yield size, *statistics
    yield *first, hidden, size
    yield size, size, *statistics


def _attention(query: Any, heads: int, mask: Any, weights_share: int = 0) -> Iterator[Sizes]:
    """Yield what attention of one projection needs: the projection, the weights, what they weigh.

    Args:
        query: The input.
        heads: How many there are.
        mask: Of the input's elements or of pairs of them, or None.
        weights_share: Which share of the weights is a result: 0 for none, else one of so many.
    """
    size, (batch, length, width) = _size(query), query.shape
    if mask is None and not weights_share and width // heads % 8 == 0:
        yield 3 * size, size
        return
    pairs = batch * heads * length * length
    weights = pairs * query.element_size()
    shared = weights // weights_share if weights_share else 0
    yield (max(5 * size - shared, 0),)
    if mask is not None:
        yield (
            max(2 * size - shared, 0),
            weights,
            weights,
            mask.numel() if mask.shape[0] == batch else pairs,
        )
    yield 3 * size, weights, *((max(size - shared, 0),) if shared else ())


def _native_attention(query: Any, *args: Any) -> Iterator[Sizes]:
    heads, mask = args[3], args[8] if len(args) > 8 else None
    averages = len(args) < 11 or args[10]
    share = (heads if averages else 1) if len(args) < 10 or args[9] else 0
    if share == 1:
        yield (4 * _size(query),)  # the weights themselves are a result
        return
    yield from _attention(query, heads, mask, share)


def _euclidean_distances(first: Any, second: Any) -> Iterator[Sizes]:
    one, other = _norms(first), _norms(second)
    joined = _size(first) + 2 * one, _size(second) + 2 * other
    yield joined
    result = one * other // first.element_size()  # which is not there yet
    yield (max(2 * one + 2 * other + _size(first) + joined[0] - result, 0),)


def _norms(tensor: Any) -> int:
    return _size(tensor) // max(int(tensor.shape[-1]), 1)


def _multinomial(weights: Any, count: int, replacement: bool = False, *_: Any) -> Iterator[Sizes]:
    yield (_size(weights),) * (3 if replacement and count > 1 else 1)


def _median(tensor: Any, *dim: Any) -> Iterator[Sizes]:
    if not dim:  # else it is selected, not sorted
        count, size = tensor.numel(), _size(tensor)
        yield size, 8 * count, 8 * count, (size + 8 * count) + 43 * count // 125


def is_long_sort(tensor: Any, dim: int = -1, *_: Any, **named: Any) -> bool:
    """Return whether more is sorted than one block of threads can: how much that takes, cub decides."""
    return bool(tensor.dim()) and tensor.shape[named.get("dim", dim)] > _SORTED


def _sort(tensor: Any, dim: int = -1, *_: Any, **named: Any) -> Iterator[Sizes]:
    if not is_long_sort(tensor, dim, **named):
        yield (8 * (tensor.shape[named.get("dim", dim)] if tensor.dim() else 1),)
        return
    count = tensor.numel()
    batches = count // tensor.shape[named.get("dim", dim)]
    unsorted = (_size(tensor),) if 1 < batches < _SORTED_AT_ONCE else ()
    yield 8 * count, *unsorted, _size(tensor) + 8 * count  # at least


def _im2col(tensor: Any, *_: Any) -> Iterator[Sizes]:
    yield (_size(tensor),)


def _col2im(columns: Any, *_: Any) -> Iterator[Sizes]:
    yield () if columns.is_contiguous() else (_size(columns),)


def _index_put(_: Any, indices: Any, values: Any, accumulate: bool = False, *__: Any) -> Iterator[Sizes]:
    if accumulate:
        count = max((one.numel() for one in indices if one is not None), default=0)
        yield *((8 * count,) * 4), 0 if values.is_contiguous() else _size(values)


def _embedding_backward(gradient: Any, indices: Any, words: int, *_: Any) -> Iterator[Sizes]:
    count = indices.numel()
    if count <= _MANY_INDICES:
        return
    parts = count // _ROWS + min(count, words)
    width = _ceil(gradient.shape[-1], 32) * 32
    yield *(8 * count,) * 4, 8 * parts, 4 * parts * width


def _copied(*tensors: Any) -> list[int]:
    """Return the sizes of those whose heads do not stand beside each other in memory."""
    return [_size(one) for one in tensors if not one.transpose(1, 2).is_contiguous()]


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)


def _size(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _soft_margin_backward(_: Any, tensor: Any, *__: Any) -> Iterator[Sizes]:
    yield (_size(tensor),) * 2


def _masked_scatter(_: Any, mask: Any, *__: Any) -> Iterator[Sizes]:
    yield (8 * mask.numel(),)  # where each element is taken from


def _scatter_reduce(
    tensor: Any, _: Any, __: Any, source: Any, reduce: str = "", **___: Any
) -> Iterator[Sizes]:
    if reduce == "mean":  # ones, how many there are of each, which of these are none
        yield _size(source), _size(tensor), tensor.numel()


def _affine_grid(_: Any, size: Any, *__: Any) -> Iterator[Sizes]:
    spread = size[0]
    for one in size[2:]:
        spread *= one
    yield (4 * spread * (len(size) - 1),)


# Operators that copy their first argument if its elements share their memory, as the gradient of a sum.
COPIES = frozenset(
    (
        *("roll", "native_layer_norm_backward", "_fused_rms_norm_backward", "_log_softmax_backward_data"),
        *("reflection_pad1d_backward", "embedding_dense_backward"),
    )
)
TEMPORARIES: dict[str, Callable[..., Iterator[Sizes]]] = {
    "_softmax_backward_data": _softmax_backward,
    "logsumexp": _logsumexp,
    "_native_multi_head_attention": _native_attention,
    "_transformer_encoder_layer_fwd": _encoder_layer,
    "_euclidean_dist": _euclidean_distances,
    "multinomial": _multinomial,
    "median": _median,
    "sort": _sort,
    "im2col": _im2col,
    "col2im": _col2im,
    "index_put": _index_put,
    "_index_put_impl_": _index_put,
    "soft_margin_loss_backward": _soft_margin_backward,
    "masked_scatter": _masked_scatter,
    "masked_scatter_": _masked_scatter,
    **dict.fromkeys(("scatter_reduce", "scatter_reduce_"), _scatter_reduce),
    "affine_grid_generator": _affine_grid,
    "native_group_norm_backward": _group_norm_backward,
    "_scaled_dot_product_efficient_attention_backward": _efficient_attention_backward,
    "_scaled_dot_product_flash_attention_backward": _flash_attention_backward,
    "embedding_dense_backward": _embedding_backward,
}
