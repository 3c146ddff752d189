"""One run of a function on fake tensors, and what it found."""

from __future__ import annotations

import contextlib
import gc
import sys
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from .allocations import Allocations
from .caching_allocator import fits_within
from .cuda_functions import autocast_followed, patched
from .device_guard import cuda_guard
from .fake_tensors import Answers, dispatch_mode, fake_mode
from .generators import unmoved
from .interrupts import Interrupts
from .kinds import Kinds
from .notes import note_of_state, notes_of
from .operators import Operators, is_mixed
from .reach import Reach
from .torch_settings import unchanged
from .twins import Swap, Twins
from .values import EstimateError, written
from .workspaces import Processor, Workspaces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import ModuleType

    from ..records import AtPeak


@dataclass(frozen=True)
class Run:
    """What one run of a function on fake tensors found, as torch's allocator would count it.

    Attributes:
        peak_bytes: The highest that live tensors would take, those that were there before included.
        reserved_bytes: The most that the allocator would reserve for them.
        rows: What would be alive at the peak, the largest first; they add up to `peak_bytes`.
        notes: Plain sentences: what is left out, and why.
        held_bytes: How much of the peak is on the device already, in tensors of this process.
        fits_within: Repeats the allocations with no more than so many bytes to reserve, and returns whether
            all succeeded; None if that cannot be told.
    """

    peak_bytes: int
    reserved_bytes: int
    rows: Sequence[AtPeak] = ()
    notes: Sequence[str] = ()
    held_bytes: int = 0
    fits_within: Callable[[int], bool] | None = field(default=None, repr=False)


def run(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], device: str) -> Run:
    """Run a function on fake tensors, as if it ran on a CUDA device.

    Raises:
        EstimateError: Something cannot be estimated.
        Exception: What the function raised; a note says which operator was the last.
    """
    import torch

    with _collected(), contextlib.closing(Reach(torch)) as reach:
        reach.walk(fn, args, kwargs)
        one = _One(torch, torch.device(device), reach, everything=False)
        try:
            one.run(fn, args, kwargs)
            again = one.is_elsewhere
        except Exception as error:
            if (refused := one.operators.values.refused(error)) is not None:
                raise refused from error
            if one.has_accelerator or not (one.operators.mixed or is_mixed(error)):
                one.explain(error)
                raise
            again = True
        if again:
            one = _One(torch, torch.device(device), reach, everything=True)
            try:
                one.run(fn, args, kwargs)
            except Exception as error:
                if (refused := one.operators.values.refused(error)) is not None:
                    raise refused from error
                one.explain(error)
                raise
        return one.result()


@contextlib.contextmanager
def _collected() -> Iterator[None]:
    """Collect the garbage of the import of `torch._dynamo`, 20 MB, which the first fake tensor causes."""
    is_first = "torch._dynamo" not in sys.modules
    try:
        yield
    finally:
        if is_first and "torch._dynamo" in sys.modules and gc.isenabled():
            gc.collect()


class _One:
    """One attempt."""

    def __init__(self, torch: ModuleType, device: Any, reach: Reach, *, everything: bool) -> None:
        self._torch, self._device, self._reach, self._everything = torch, device, reach, everything
        self.allocations = Allocations()
        self._answers = Answers(torch)
        self._mode = fake_mode(torch, self._answers, device)
        workspaces = Workspaces(Processor(torch, device.index), device, self.allocations)
        self.operators = Operators(torch, device, self.allocations, self._answers, workspaces)
        self.operators.everything = everything
        self._kinds = Kinds(torch, self.allocations)
        self._gradients, self._state = _gradients(reach), _state(reach)
        self.has_accelerator = any(tensor.device.type not in ("cpu", "meta") for tensor, _ in reach.tensors)
        self.operators.reads_cpu_as_device = not self.has_accelerator
        self._moved = set() if self.has_accelerator else _of_models(reach)
        self._held_bytes = 0

    @property
    def is_elsewhere(self) -> bool:
        """Whether nothing was on the device, and nothing on any other."""
        return not self.has_accelerator and not self.allocations.allocator.peak_bytes

    def run(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        twins = Twins(self._torch, self._device_of, self._made)
        swap = Swap(self._reach, twins)
        interrupts, threads = Interrupts(), self.operators.threads
        with interrupts.waiting(), contextlib.ExitStack() as stack:
            stack.callback(self.allocations.end)
            stack.enter_context(unmoved(self._torch, self._reach.generators))
            stack.enter_context(unchanged(self._torch))
            has_guard = stack.enter_context(cuda_guard(self._torch))
            stack.enter_context(patched(self._torch, self._device, self.operators, self._kinds.wrapper))
            stack.enter_context(autocast_followed(self._torch, self._answers, threads, follow=has_guard))
            # The engine's own thread for the device is none of this machine's.
            stack.enter_context(self._torch.autograd.set_multithreading_enabled(False))
            stack.enter_context(self._mode)
            stack.callback(twins.forget)
            stack.callback(swap.put_back)
            for tensor, name in self._reach.tensors:
                twins.of(tensor, name)
            swap.put_in()
            self.operators.twins = twins
            stack.enter_context(dispatch_mode(interrupts.after(self.operators)))
            given = [twins.swapped(one) for one in args]
            named = {name: twins.swapped(one) for name, one in kwargs.items()}
            twins.let_go()
            stepped = threads.only(self._kinds.stepped, lambda *_: None)
            stack.callback(register_optimizer_step_post_hook(stepped).remove)
            with interrupts.allowed():
                result = fn(*given, **named)
            self._kinds.returned(result)
            self.allocations.end()

    def explain(self, error: Exception) -> None:
        """Add a note to an error that an operator raised."""
        failed = self.operators.failed
        if failed is None or failed[0] is not error:
            return
        text = f"{failed[1]} raised it, at {written(failed[2])}, while {self._device} was estimated."
        if hasattr(error, "add_note"):
            error.add_note(text)
        elif error.__cause__ is None:  # before Python 3.11
            error.__cause__ = EstimateError(text)

    def _device_of(self, tensor: Any) -> Any:
        """Return where a tensor's twin is; one without memory, on "meta", is where the others are."""
        kind = tensor.device.type
        if self._everything or id(tensor) in self._moved or kind not in ("cpu", "cuda", "meta"):
            return self._device
        if kind == "meta":
            return self._device if self.has_accelerator else self._torch.device("cpu")
        return tensor.device

    def _made(self, twin: Any, tensor: Any, name: str) -> None:
        if twin.fake_device == self._device:
            made = self.allocations.add(twin.untyped_storage(), None)
            made.kind = "parameters" if isinstance(tensor, self._torch.nn.Parameter) else self._kind(tensor)
            made.name = name
            if tensor.device == self._device:
                self._held_bytes += made.size_bytes

    def _kind(self, tensor: Any) -> str:
        if id(tensor) in self._gradients:
            return "gradients"
        return "optimizer state" if id(tensor) in self._state else "variables"

    def result(self) -> Run:
        allocations, allocator = self.allocations, self.allocations.allocator
        return Run(
            allocator.peak_bytes,
            allocator.peak_reserved_bytes,
            self._kinds.rows(str(self._device)),
            (
                *notes_of(self.operators, self._torch, str(self._device), everything=self._everything),
                *(note_of_state(allocations.alive()) if self._kinds.steps_once else ()),
            ),
            self._held_bytes,
            partial(fits_within, tuple(allocations.events)),
        )


def _of_models(reach: Reach) -> set[int]:
    """Return the identities of the tensors that `.to(device)` would move, optimizers' state too."""
    moved = _parameters(reach)
    for module in reach.modules:
        moved += [one for one in module._buffers.values() if one is not None]
    return {id(one) for one in moved} | _gradients(reach) | _state(reach)


def _parameters(reach: Reach) -> list[Any]:
    found: list[Any] = []
    for module in reach.modules:
        found += [one for one in module._parameters.values() if one is not None]
    for optimizer in reach.optimizers:
        for group in optimizer.param_groups:
            found += group["params"]
    return found


def _gradients(reach: Reach) -> set[int]:
    """Return the identities of the gradients that are there already."""
    return {id(one.grad) for one in _parameters(reach) if one.is_leaf and one.grad is not None}


def _state(reach: Reach) -> set[int]:
    """Return the identities of the optimizers' state; numbers stay on the CPU."""
    states = [state for optimizer in reach.optimizers for state in optimizer.state.values()]
    return {id(one) for state in states for one in state.values() if getattr(one, "ndim", 0)}
