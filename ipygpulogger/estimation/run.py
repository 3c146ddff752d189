"""One run of a function on fake tensors, and what it found."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

from ..allocator.caching_allocator import fits_within
from ..allocator.places import Frame
from ..records import AtPeak, KindTimeline
from ..records.units import MB, rounded_mb
from .allocations import Allocations, Kinds
from .fake_map import FakeMap
from .fake_tensors import DeviceReporting, dispatch_mode, fake_mode
from .kernels import WIDE
from .operators import GRADIENT, LESS, MORE, Operators
from .patches import patched
from .reach import Arguments, Reach
from .restored import Interrupts
from .values import EstimateError, listed, written

_MOST_RUNS = 4
_LINES = 3  # that a note names
_CUDNN = frozenset(("convolution", "convolution_backward", "_cudnn_rnn", "cudnn_batch_norm"))
_RECURRENT = frozenset(("LSTM", "GRU", "RNN", "LSTMCell", "GRUCell"))  # one RNNCell is counted as it is
_FUSED = frozenset(("TransformerEncoderLayer", "MultiheadAttention", WIDE))  # the first two in inference
# `nox -s operators` runs all operators on a simulated device, and finds those whose need is not known here.
_INSIDE = (
    "affine_grid_generator cdist cholesky cholesky_inverse cholesky_solve col2im count_nonzero ctc_loss dist"
    " embedding_bag euclidean_dist im2col index_reduce isin isinf ldexp log_softmax.int_out lu_unpack"
    " masked_scatter max_unpool2d median mode multinomial nanmedian"
    " native_multi_head_attention normal.Tensor_Tensor normal.Tensor_float normal.float_Tensor pdist randperm"
    " renorm scatter_reduce segment_reduce slice_scatter.out soft_margin_loss"
    " softmax.int_out sort topk triangular_solve trilinear unsafe_masked_index"
    " unsafe_masked_index_put_accumulate"
)
_FAMILIES = {"linalg_": "torch.linalg", "fft_": "torch.fft"}
_EXACT = frozenset(("linalg_vector_norm", "linalg_cross"))  # of the families
_STEPS = "_dense_backward", "_backward", "_forward"  # of one operator that users call


class Run(NamedTuple):
    """What one run of a function on fake tensors found, as torch's allocator would count it."""

    peak_bytes: int  # the highest that live tensors would take, those that were there before included
    reserved_bytes: int  # the most that the allocator would reserve for them
    # What would be alive at the peak, the largest first; they add up to `peak_bytes`.
    rows: tuple[AtPeak, ...]
    notes: Sequence[str]  # plain sentences: what is left out, and why
    held_bytes: int  # how much of the peak is on the device already, in tensors of this process
    # Repeats the allocations with no more than so many bytes to reserve, and returns whether all succeeded.
    fits_within: Callable[[int], bool]
    timeline: tuple[KindTimeline, ...]  # the memory by kind over its allocations


def run(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    device: str,
    sizes: Mapping[int, int] | None = None,
) -> Run:
    """Run a function on fake tensors, as if it ran on a CUDA device; `sizes`: see `Batched.resized`."""
    import torch

    arguments = Arguments(tuple(args), dict(kwargs))
    all_on_device = False
    with contextlib.closing(Reach(torch, sizes or {})) as reach:
        reach.walk(fn, arguments)
        for runs_left in reversed(range(_MOST_RUNS)):
            one = FakeRun(torch, torch.device(device), reach, all_on_device=all_on_device)
            try:
                one.run(fn, arguments)
            except Exception as error:
                if not (runs_left and one.is_to_run_again(error)):
                    if one.operators.refusal is not None:
                        raise one.operators.refusal from error
                    one.explain(error)
                    raise
            else:
                if not (runs_left and one.is_to_run_again(None)):
                    break
            one.operators.failed = None  # with its traceback, in which the function's objects are
            all_on_device = all_on_device or not one.is_late
        return one.result()


class FakeRun:
    """One attempt: whatever takes part and was not known is there from the start in the next one."""

    def __init__(self, torch: ModuleType, device: Any, reach: Reach, *, all_on_device: bool) -> None:
        self._torch, self._device, self._reach = torch, device, reach
        self._allocations, self._reporting = Allocations(), DeviceReporting(torch)
        self._mode = fake_mode(torch, self._reporting, device)
        self._fakes = FakeMap(torch, reach, device, self._allocations, all_on_device=all_on_device)
        self.operators: Operators = Operators(torch, self._reporting, self._fakes)
        self._kinds = Kinds(torch, self._allocations)
        self._known, self._calls_modules = set(reach.held), False
        self.is_late: bool = False  # whether something took part that was not known

    def is_to_run_again(self, error: Exception | None) -> bool:
        """Return whether to run again, with what took part there from the start, or all on the device."""
        self._reach.forget_released()
        found = [one for key, one in self._reach.held.items() if key not in self._known]
        fakes = self._fakes
        is_on_device = any(fakes.device_of(one) == self._device for one in found)
        self.is_late = is_on_device or self._reach.has_accelerator != fakes.has_accelerator
        if self.is_late:
            return True
        if fakes.all_on_device or fakes.has_accelerator or isinstance(error, EstimateError):
            return False
        return error is not None or not self.operators.allocates

    def run(self, fn: Callable[..., Any], arguments: Arguments) -> None:
        """Call the function with fake tensors; all is as it was afterwards, however it ends."""
        from torch.nn.modules.module import register_module_forward_pre_hook
        from torch.optim import optimizer

        torch, reach = self._torch, self._reach
        fakes, interrupts = self._fakes, Interrupts()
        with interrupts.waiting(), contextlib.ExitStack() as stack:
            stack.callback(self._allocations.end)
            stack.callback(reach.restored.put_back)
            stack.enter_context(torch.set_grad_enabled(torch.is_grad_enabled()))  # put back, however it ends
            self._reporting.follow_autocast(torch.is_autocast_enabled("cuda"))
            stack.callback(fakes.forget)
            only = stack.enter_context(patched(torch, self.operators, self._kinds.backward, fakes)).only
            # The engine's own thread for the device is none of this machine's.
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            stack.enter_context(self._mode)
            for real in list(reach.held.values()):
                fakes.of(real.tensor)
            self._allocations.before = fakes.release
            stack.enter_context(dispatch_mode(interrupts.after(self.operators)))
            for register, hook in (
                (register_module_forward_pre_hook, self._called),
                (optimizer.register_optimizer_step_pre_hook, self._steps_now),
                (optimizer.register_optimizer_step_post_hook, self._kinds.stepped),
            ):
                stack.callback(register(only(hook, lambda *_: None)).remove)
            stack.enter_context(fakes.mode())
            self._kinds.began = len(self._allocations.events)
            with interrupts.allowed():
                result = fn(*arguments.args, **arguments.kwargs)
            self._kinds.returned(result)
            self._allocations.end()

    def _steps_now(self, optimizer: Any, *_: Any) -> None:
        self._reach.meet(optimizer)
        self._kinds.steps_now()

    def _called(self, module: Any, _: Any) -> None:
        self._calls_modules = True
        known = _RECURRENT if module.training or self._torch.is_grad_enabled() else _RECURRENT | _FUSED
        self.operators.names |= known & {kind.__name__ for kind in type(module).__mro__}
        self._reach.meet_module(module)

    def explain(self, error: Exception) -> None:
        """Add notes to an error: the operator that raised it, made-up values."""
        failed = self.operators.failed
        notes = self._plain()
        if failed is not None and failed[0] is error:
            line = written(failed[2])
            notes.append(f"{failed[1]} raised it, at {line}, while {self._device} was estimated.")
        if lines := self.operators.values.lines:
            notes.append(f"1.0 stood for values of tensors, which an estimate does not compute{_at(lines)}.")
        for text in notes:
            if hasattr(error, "add_note"):
                error.add_note(text)
            elif error.__cause__ is None:  # before Python 3.11
                error.__cause__ = EstimateError(text)

    def _plain(self) -> list[str]:
        names = sorted(self._fakes.subclasses)
        return [f"Tensors of {listed(names)} are plain ones in an estimate."] if names else []

    def result(self) -> Run:
        """Return what was found; a model must not have run elsewhere."""
        if self._calls_modules and not self.operators.touches:
            where = f"in the function's own thread nothing runs on {self._device}"
            others = "have no tensor on a GPU among those that the function uses"
            raise EstimateError(f"{where}: move the model and its input there, or {others}")
        allocator, name = self._allocations.allocator, str(self._device)
        peaks, rows = (allocator.peak_bytes, allocator.peak_reserved_bytes), self._kinds.rows(name)
        fits = partial(fits_within, tuple(self._allocations.events))
        notes, timeline = tuple(self._notes()), self._kinds.timeline(name)
        return Run(*peaks, rows, notes, self._fakes.held_bytes, fits, timeline)

    def _notes(self) -> Iterator[str]:
        lines, started = self.operators.values.lines, self.operators.started
        if self._fakes.all_on_device:
            moves = "All tensors are on the CPU, and the function does not move them"
            yield f"{moves}: they count as on {self._device}."
        yield from self._plain()
        if lines:
            depends = "A branch, a loop or a size that depends on one may be another."
            yield f"Values of tensors are not computed: 1.0 stands for them{_at(lines)}. {depends}"
        if started:
            yield f"What other threads allocate is not counted: one is started{_at(started)}."
        yield from _of_operators(self.operators.names, has_cudnn=self._torch.backends.cudnn.enabled)
        alive = [one for one in self._allocations.all if one.died is None and one.place is not None]
        made_bytes = sum(one.size_bytes for one in alive if one.kind == "optimizer state")
        if made_bytes >= MB and 1 in self._kinds.steps.values():  # else it saw the state that it made
            cure = "to count it from the start, estimate a function that makes two steps"
            state = f"{rounded_mb(made_bytes)} MB of optimizer state"
            yield f"The call makes {state}, with which the next one begins: {cure}."


def _of_operators(names: set[str], *, has_cudnn: bool) -> Iterator[str]:
    """Yield what is not counted as it is on a device, with the operators."""
    inside = {one for name in names if (one := _inside(name))} | (names & _FUSED)
    inside |= {f"the gradient of {name}" for name in MORE if name + GRADIENT in names}
    if names & _CUDNN and has_cudnn:
        yield "The workspaces of cuDNN, which chooses them when it runs, are not part of the estimate."
    elif names & _CUDNN:
        inside.add("convolution")
    if found := sorted(names & _RECURRENT):
        have = "has" if len(found) == 1 else "have"
        others = "other tensors for the backward pass than those that are counted"
        yield f"{listed(found)} {have} kernels on CUDA that keep {others}."
    if found := sorted({name.partition(".")[0] for name in LESS if name + GRADIENT in names}):
        why = "torch computes it otherwise for fake tensors"
        yield f"The backward pass of {listed(found)} may need less than is counted: {why}."
    if "sparse" in names:
        yield "Sparse tensors are not part of the estimate."
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
    is_inside = name in _INSIDE.split() or ("_copy." in name and name.endswith("out"))
    return name.partition(".")[0] if is_inside else ""


def _at(frames: Iterable[Frame]) -> str:
    places = list(dict.fromkeys(written(frame) for frame in frames))
    more = f" and {len(places) - _LINES} more lines" if len(places) > _LINES else ""
    return f" ({', '.join(places[:_LINES])}{more})"
