"""What has to be known about an estimate, in plain sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..records.units import MB, rounded_mb
from .arguments import listed
from .values import written

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType

    from ..allocator.places import Frame
    from .allocations import Allocation
    from .operators import Operators

_LINES = 3
_CUDNN = frozenset(("convolution", "convolution_backward", "_cudnn_rnn", "cudnn_batch_norm"))

# `nox -s operators` runs all operators on a simulated device, and finds those whose need is not known here.
GRADIENT = " with a gradient"
_INSIDE = frozenset(
    (
        *("affine_grid_generator", "cdist", "cholesky", "cholesky_inverse", "cholesky_solve", "col2im"),
        *("count_nonzero", "ctc_loss", "dist", "embedding_bag", "euclidean_dist", "im2col", "index_reduce"),
        *("isin", "isinf", "ldexp", "log_softmax.int_out", "lu_unpack", "masked_scatter", "max_unpool2d"),
        *("median", "mode", "multinomial", "nanmedian", "native_multi_head_attention"),
        *("normal.Tensor_Tensor", "normal.Tensor_float", "normal.float_Tensor", "pdist", "randperm"),
        *("renorm", "safe_softmax", "scatter_reduce", "segment_reduce", "slice_scatter.out"),
        *("soft_margin_loss", "softmax.int_out", "sort", "topk", "triangular_solve", "trilinear"),
        *("unsafe_masked_index", "unsafe_masked_index_put_accumulate"),
        "wide scaled_dot_product_efficient_attention",
    )
)
_FAMILIES = {"linalg_": "torch.linalg", "fft_": "torch.fft"}
_EXACT = frozenset(("linalg_vector_norm", "linalg_cross"))  # of the families
_MORE = frozenset(("var_mean", "std_mean", "atan2", "lu_unpack"))  # what their gradients allocate inside
_LESS = frozenset(
    ("cumprod", "renorm", "clamp.Tensor", "max.default", "min.default", "aminmax", "masked_fill.Tensor")
)
DIFFERENTIATED = _MORE | _LESS
_STEPS = "_dense_backward", "_backward", "_forward"  # of one operator that users call
RECURRENT = frozenset(("LSTM", "GRU", "RNN", "LSTMCell", "GRUCell"))  # one RNNCell is counted as it is
FUSED = frozenset(("TransformerEncoderLayer", "MultiheadAttention"))  # one operator in inference on CUDA


def notes_of(operators: Operators, torch: ModuleType, device: str, *, all_on_device: bool) -> tuple[str, ...]:
    """Return what an estimate leaves out or takes for granted."""
    notes = []
    if all_on_device:
        notes.append(
            f"All tensors are on the CPU, and the function does not move them: they count as on {device}."
        )
    if operators.values.floats:
        notes.append(
            f"Values of tensors are not computed: 1.0 stands for them{_at(operators.values.floats)}."
            " A branch or a loop that depends on one may go another way."
        )
    if operators.values.counts:
        notes.append(
            f"Whole numbers from tensors are not computed: 1 is shown for them{_at(operators.values.counts)}."
        )
    if started := operators.threads.started:
        notes.append(f"What other threads allocate is not counted: one is started{_at(started)}.")
    return (*notes, *_notes_of_operators(operators.all_names, has_cudnn=torch.backends.cudnn.enabled))


def _notes_of_operators(names: set[str], *, has_cudnn: bool) -> Iterator[str]:
    """Yield what is not counted as it is on a device, with the operators."""
    if names & _CUDNN and has_cudnn:
        yield "The workspaces of cuDNN, which chooses them when it runs, are not part of the estimate."
    elif names & _CUDNN:
        yield "Without cuDNN, convolution allocates memory inside that is not counted."
    if found := sorted(names & RECURRENT):
        yield (
            f"{listed(found)} {'has' if len(found) == 1 else 'have'} kernels on CUDA that keep other tensors"
            " for the backward pass than those that are counted."
        )
    if found := sorted({name.partition(".")[0] for name in _LESS if name + GRADIENT in names}):
        yield (
            f"The backward pass of {listed(found)} may need less than is counted:"
            " torch computes it otherwise for fake tensors."
        )
    if "sparse" in names:
        yield "Sparse tensors are not part of the estimate."
    inside = {one for name in names if (one := _inside(name))} | (names & FUSED)
    inside |= {f"the gradient of {name}" for name in _MORE if name + GRADIENT in names}
    if found := sorted(inside):
        verb = "allocates" if len(found) == 1 else "allocate"
        yield f"{listed(found)} {verb} memory inside that is not counted."


def _inside(operator: str) -> str:
    """Return the name for users of an operator that allocates more than its result; empty for others."""
    name = operator.strip("_")
    for step in _STEPS:
        name = name.removesuffix(step)
    for prefix, family in _FAMILIES.items():
        if name.startswith(prefix):
            return "" if name.partition(".")[0] in _EXACT else family
    if name in _INSIDE or ("_copy." in name and name.endswith("out")):
        return name.partition(".")[0]
    return ""


def note_of_state(alive: Iterable[Allocation]) -> Iterator[str]:
    """Yield a sentence if the function made the state of an optimizer: its next call needs more."""
    made = [one.size_bytes for one in alive if one.kind == "optimizer state" and one.place is not None]
    if sum(made) >= MB:
        yield (
            f"The call makes {rounded_mb(sum(made))} MB of optimizer state, with which the next one begins:"
            " to count it from the start, estimate a function that makes two steps."
        )


def _at(frames: Iterable[Frame]) -> str:
    places = list(dict.fromkeys(written(frame) for frame in frames))
    more = f" and {len(places) - _LINES} more lines" if len(places) > _LINES else ""
    return f" ({', '.join(places[:_LINES])}{more})"
