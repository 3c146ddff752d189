"""One run of a function on fake tensors, and what it found."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from ..allocator.caching_allocator import fits_within
from ..runtime.errors import named
from .allocations import Allocations, Kinds
from .fake_map import FakeMap
from .fake_tensors import DeviceReporting, cuda_guard, dispatch_mode, fake_mode
from .notes import FUSED, RECURRENT, note_of_state, notes_of
from .operators import Operators, is_mixed
from .patches import patched
from .reach import Reach
from .restored import generators_restored, settings_restored
from .threads import Interrupts
from .values import EstimateError, written

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType

    from ..records import AtPeak
    from .restored import RealTensor

_MOST_AGAIN = 3


@dataclass(frozen=True)
class Run:
    """What one run of a function on fake tensors found, as torch's allocator would count it."""

    peak_bytes: int  # the highest that live tensors would take, those that were there before included
    reserved_bytes: int  # the most that the allocator would reserve for them
    # What would be alive at the peak, the largest first; they add up to `peak_bytes`.
    rows: Sequence[AtPeak] = ()
    notes: Sequence[str] = ()  # plain sentences: what is left out, and why
    held_bytes: int = 0  # how much of the peak is on the device already, in tensors of this process
    # Repeats the allocations with no more than so many bytes to reserve, and returns whether all
    # succeeded; None if that cannot be told.
    fits_within: Callable[[int], bool] | None = field(default=None, repr=False)


def run(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], device: str) -> Run:
    """Run a function on fake tensors, as if it ran on a CUDA device."""
    import torch

    all_on_device, earlier = False, ""
    with contextlib.closing(Reach(torch)) as reach:
        reach.walk(fn, args, kwargs)
        for is_last in (*(False,) * _MOST_AGAIN, True):
            one = FakeRun(torch, torch.device(device), reach, all_on_device=all_on_device)
            try:
                one.run(fn, args, kwargs)
            except Exception as error:
                if is_last or not one.is_to_run_again(error):
                    if one.operators.refusal is not None:
                        raise one.operators.refusal from error
                    one.explain(error, earlier)
                    raise
                earlier = earlier or named(error)
            else:
                if is_last or not one.is_to_run_again(None):
                    one.check()
                    break
            one.operators.failed = None  # with its traceback, in which the function's objects are
            all_on_device = all_on_device or not one.is_late
        return one.result()


class FakeRun:
    """One attempt: whatever takes part and was not known is there from the start in the next one.

    Attributes:
        is_late: Whether something took part that was not known.
    """

    def __init__(self, torch: ModuleType, device: Any, reach: Reach, *, all_on_device: bool) -> None:
        self._torch, self._device, self._reach, self._all_on_device = torch, device, reach, all_on_device
        self.allocations = Allocations()
        self._reporting = DeviceReporting(torch)
        self._mode = fake_mode(torch, self._reporting, device)
        self.operators = Operators(torch, device, self.allocations, self._reporting)
        self.operators.all_on_device = all_on_device
        self._kinds = Kinds(torch, self.allocations)
        self.has_accelerator, self._known = reach.has_accelerator, set(reach.held)
        self.operators.reads_cpu_as_device = not self.has_accelerator
        self._held_bytes, self.is_late, self._calls_modules = 0, False, False

    def is_to_run_again(self, error: Exception | None) -> bool:
        """Return whether to run again, with what took part there from the start, or all on the device."""
        self._reach.forget_released()
        found = [one for key, one in self._reach.held.items() if key not in self._known]
        self.is_late = self._reach.has_accelerator != self.has_accelerator or any(
            self._device_of(one) == self._device for one in found
        )
        if self.is_late:
            return True
        if self._all_on_device or self.has_accelerator:
            return False
        if error is not None:
            fakes = self.operators.fakes
            return self.operators.mixed or is_mixed(error) or (fakes is not None and fakes.mixed)
        return not self.operators.allocates

    def check(self) -> None:
        """Check that a model did not run elsewhere."""
        if self._calls_modules and not self.operators.touches:
            raise EstimateError(
                f"the model and its input are on the CPU, so nothing runs on {self._device}: move them there,"
                " or have no tensor on a GPU among those that the function uses"
            )

    def run(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Call the function with fake tensors; all is as it was afterwards, however it ends."""
        from torch.nn.modules.module import register_module_forward_pre_hook
        from torch.optim import optimizer

        torch, reach = self._torch, self._reach
        fakes = FakeMap(torch, reach, self._device_of, self._made)
        interrupts, threads = Interrupts(), self.operators.threads
        with interrupts.waiting(), contextlib.ExitStack() as stack:
            stack.callback(self.allocations.end)
            stack.callback(reach.restored.put_back)
            stack.enter_context(generators_restored(torch))
            stack.enter_context(settings_restored(torch))
            self._reporting.follow_autocast(stack.enter_context(cuda_guard(torch)))
            stack.callback(fakes.forget)
            stack.enter_context(patched(torch, self._device, self.operators, self._kinds.backward, fakes))
            # The engine's own thread for the device is none of this machine's.
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            stack.enter_context(self._mode)
            self.operators.fakes = fakes
            reach.mode = self._mode
            for real in list(reach.held.values()):
                fakes.of(real.tensor)
            self.allocations.before = fakes.release
            stack.enter_context(dispatch_mode(interrupts.after(self.operators)))
            for register, hook in (
                (register_module_forward_pre_hook, self._called),
                (optimizer.register_optimizer_step_pre_hook, self._steps),
                (optimizer.register_optimizer_step_post_hook, self._kinds.stepped),
            ):
                stack.callback(register(threads.only(hook, lambda *_: None)).remove)
            threads.mode = fakes.mode
            stack.enter_context(threads.mode())
            given = [fakes.given(one) for one in args]
            named = {name: fakes.given(one) for name, one in kwargs.items()}
            with interrupts.allowed():
                result = fn(*given, **named)
            self._kinds.returned(result)
            self.allocations.end()

    def _called(self, module: Any, _: Any) -> None:
        self._calls_modules = True
        known = RECURRENT if module.training or self._torch.is_grad_enabled() else RECURRENT | FUSED
        self.operators.names |= known & {kind.__name__ for kind in type(module).__mro__}
        self._reach.meet_module(module)

    def _steps(self, optimizer: Any, *_: Any) -> None:
        self._reach.meet(optimizer)

    def explain(self, error: Exception, earlier: str) -> None:
        """Add notes to an error: the operator that raised it, made-up values, how the first call ended."""
        failed, values = self.operators.failed, self.operators.values
        notes = []
        if failed is not None and failed[0] is error:
            notes.append(
                f"{failed[1]} raised it, at {written(failed[2])}, while {self._device} was estimated."
            )
        if lines := list(dict.fromkeys(map(written, (*values.floats, *values.counts)))):
            notes.append(
                "1.0 stood for values of tensors, which an estimate does not compute"
                f" ({', '.join(lines[:3])})."
            )
        if earlier and earlier != named(error):
            notes.append(f"It was called more than once to be estimated; the first call ended with {earlier}")
        for text in notes:
            if hasattr(error, "add_note"):
                error.add_note(text)
            elif error.__cause__ is None:  # before Python 3.11
                error.__cause__ = EstimateError(text)

    def _device_of(self, real: RealTensor) -> Any:
        """Return where a tensor's fake is; one without memory, on "meta", is where the others are."""
        device = real.tensor.device
        is_moved = self._all_on_device or (real.of_model and not self.has_accelerator)
        if is_moved or device.type not in ("cpu", "cuda", "meta"):
            return self._device
        if device.type == "meta":
            return self._device if self.has_accelerator else self._torch.device("cpu")
        return device

    def _made(self, fake: Any, real: RealTensor) -> None:
        if fake.fake_device == self._device:
            made = self.allocations.add(fake.untyped_storage(), None)
            made.kind, made.name = real.kind, real.name
            if real.tensor.device == self._device:
                self._held_bytes += made.size_bytes

    def result(self) -> Run:
        """Return what was found."""
        allocations, allocator = self.allocations, self.allocations.allocator
        return Run(
            allocator.peak_bytes,
            allocator.peak_reserved_bytes,
            self._kinds.rows(str(self._device)),
            (
                *notes_of(self.operators, self._torch, str(self._device), all_on_device=self._all_on_device),
                *(note_of_state(allocations.alive()) if self._kinds.steps_once else ()),
            ),
            self._held_bytes,
            partial(fits_within, tuple(allocations.events)),
        )
