"""What has to be known about an estimate, in plain sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..records.units import MB, rounded_mb
from .values import written

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType

    from ..breakdown.places import Frame
    from .allocations import Allocation
    from .operators import Operators

_LINES = 3
_CUDNN = frozenset(("convolution", "convolution_backward", "_cudnn_rnn", "cudnn_batch_norm"))

_ALLOCATE_INSIDE = {  # operators, by the names that users know
    **{name: name for name in ("topk", "mode", "nanmedian", "a long sort")},
    "_trilinear": "bilinear",
    **dict.fromkeys(("_pdist_forward", "_pdist_backward"), "pdist"),
    **dict.fromkeys(("_embedding_bag_backward", "_embedding_bag_dense_backward"), "embedding_bag"),
    **dict.fromkeys(("_cdist_backward",), "cdist"),
    **dict.fromkeys(("_ctc_loss", "_ctc_loss_backward"), "ctc_loss"),
    **dict.fromkeys(("_fft_r2c", "_fft_c2r", "_fft_c2c"), "torch.fft"),
    **dict.fromkeys(
        (
            *("_linalg_svd", "linalg_qr", "linalg_inv_ex", "_linalg_eigh", "linalg_cholesky_ex"),
            *("_linalg_solve_ex", "linalg_lu_factor_ex", "linalg_lstsq", "_linalg_det"),
        ),
        "torch.linalg",
    ),
}


_OTHERWISE = frozenset(("cumprod", "renorm"))
_RECURRENT = frozenset(("LSTM", "GRU", "RNN", "LSTMCell", "GRUCell"))  # one RNNCell is counted as it is


def notes_of(operators: Operators, torch: ModuleType, device: str, *, everything: bool) -> tuple[str, ...]:
    """Return what an estimate leaves out or takes for granted."""
    notes = []
    if everything:
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
    if found := sorted(names & _RECURRENT):
        yield (
            f"{_listed(found)} {'has' if len(found) == 1 else 'have'} kernels on CUDA that keep other tensors"
            " for the backward pass than those that are counted."
        )
    if found := sorted(names & _OTHERWISE):
        yield (
            f"The backward pass of {_listed(found)} may need less than is counted:"
            " torch computes it otherwise for fake tensors."
        )
    if "sparse" in names:
        yield "Sparse tensors are not part of the estimate."
    if found := sorted({_ALLOCATE_INSIDE[name] for name in names & _ALLOCATE_INSIDE.keys()}):
        verb = "allocates" if len(found) == 1 else "allocate"
        yield f"{_listed(found)} {verb} memory inside that is not counted."


def note_of_state(alive: Iterable[Allocation]) -> Iterator[str]:
    """Yield a sentence if the function made the state of an optimizer: its next call needs more."""
    made = [one.size_bytes for one in alive if one.kind == "optimizer state" and one.place is not None]
    if sum(made) >= MB:
        yield (
            f"The call makes {rounded_mb(sum(made))} MB of optimizer state, with which the next one begins:"
            " to count it from the start, estimate a function that makes two steps."
        )


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _at(frames: Iterable[Frame]) -> str:
    places = list(dict.fromkeys(written(frame) for frame in frames))
    more = f" and {len(places) - _LINES} more lines" if len(places) > _LINES else ""
    return f" ({', '.join(places[:_LINES])}{more})"
