"""Estimate what a function would need on a GPU: `estimate`."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from ..engine.machine import machine
from ..records import device_id
from ..records.estimate import BatchEstimate, Estimate, fit
from ..records.units import clipped, printable
from ..runtime.errors import is_from_a_handler, named
from ..sources import Unavailable
from ..sources.torch import state as torch_state
from .arguments import (
    BACKEND,
    Arguments,
    Batched,
    batched,
    capacity_bytes,
    check_callable,
    device_index,
    imported_torch,
    label_of,
    sizes_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

    from .run import Run

_ERROR = 300  # characters
_CONTEXT = (
    "The capacity is what the function can have: a CUDA context takes a few hundred MB of a card besides."
)
_running = threading.RLock()  # a run puts fake tensors in the place of real ones: one at a time
_depth = [0]  # of estimates, within one another


def estimate(
    fn: Callable[..., Any],
    /,
    *args: Any,
    device: Any = "cuda:0",
    capacity: str | int | None = None,
    batch_sizes: Iterable[int] | None = None,
    **kwargs: Any,
) -> Estimate:
    """Estimate what a function would need on a GPU, and whether it fits, without a GPU and before it runs.

    The function is called with fake tensors, which have shapes and no memory: nothing is allocated on a
    device, no parameter changes, and no random generator moves. What would live is counted as torch's
    caching allocator would round it with its default settings, whatever ``PYTORCH_CUDA_ALLOC_CONF`` says.
    Python code of the function does run, with what it prints and writes, and up to four times: again where a
    run shows that it should have begun with more on the device.
    Meanwhile no other thread may use the objects that the function uses. Other threads can use torch as
    before; the function must not start any.

    Tensors are where they are, if any that the function uses is on a GPU. Otherwise models and optimizers
    are on the device, as after ``model.to(device)``, and so is what the function moves, to a device that
    was chosen as "cpu" on this machine too; a batch that it takes from a loader stays in general RAM until
    then. If it moves nothing, all of its tensors are on the device, which a note says.

    Args:
        fn: The function; a training step with its backward pass and optimizer step, for instance.
        *args: What it is called with.
        device: "cuda:0", "cuda", an index, or a `torch.device`. The machine need not have it.
        capacity: Compare with this much memory, such as "16GB" or bytes as an int, which the function has for
            itself. By default it is compared with what this process can still have on the device.
        batch_sizes: Also estimate these batch sizes. Each one replaces the leading dimension of the first
            tensor among the arguments, and of every other one that shares it; or an int argument named
            ``batch_size``, with the tensors that have this leading dimension. The same size given twice
            counts once.
        **kwargs: What it is called with. Give a function's own ``device``, ``capacity`` or ``batch_sizes``
            by `functools.partial`.

    Raises:
        TypeError: ``fn`` cannot be called like this.
        ValueError: The device or a size cannot be read, or no argument can be resized.
        RuntimeError: ``fn`` calls `estimate` itself.
        ModuleNotFoundError: PyTorch is not installed.
        Exception: What the function itself raised, with the operator that caused it.

    Example:
        ``estimate(step, batch, capacity="16GB", batch_sizes=[8, 16, 32, 64])``
    """
    arguments = Arguments(args, kwargs)
    sizes = () if batch_sizes is None else sizes_of(batch_sizes)
    given_bytes = capacity_bytes(capacity)
    check_callable(fn, arguments)
    torch = imported_torch()
    index = device_index(device, torch)
    varied = batched(fn, arguments, torch) if sizes else Batched(arguments)
    limit = MemoryLimit(given_bytes, given_bytes, note=_CONTEXT) if given_bytes else limit_of(index, torch)
    name = device_id(BACKEND, index)
    found = _run(fn, arguments, {}, name)
    available_bytes = limit.available_bytes
    if available_bytes is not None and not given_bytes:
        available_bytes += found.held_bytes
    nothing = f"No tensor of the function is on {name}, and it moves none there."
    notes = [*(found.notes if found.peak_bytes else [nothing]), *([limit.note] if limit.note else [])]

    def of_size(size: int) -> BatchEstimate:
        try:  # not every function takes every size
            one = found if size == varied.size else _run(fn, *varied.resized(size), name)
        except Exception as error:
            if is_from_a_handler(error):
                raise
            return BatchEstimate(size, None, None, None, None, clipped(printable(named(error)), _ERROR))
        fits = fit(one.peak_bytes, one.reserved_bytes, available_bytes, one.fits_within)
        return BatchEstimate(size, one.peak_bytes, one.reserved_bytes, *fits)

    return Estimate(
        label_of(fn),
        name,
        found.peak_bytes,
        found.reserved_bytes,
        tuple(found.rows),
        found.held_bytes,
        limit.capacity_bytes,
        available_bytes,
        *fit(found.peak_bytes, found.reserved_bytes, available_bytes, found.fits_within),
        unknown=limit.unknown,
        batches=tuple(map(of_size, sizes)),
        batched=varied.described,
        notes=tuple(dict.fromkeys(notes)),
    )


def _run(fn: Callable[..., Any], arguments: Arguments, sizes: dict[int, int], device: str) -> Run:
    from .run import run

    with _running:
        if _depth[0]:
            raise RuntimeError("estimate cannot be called by a function that is being estimated")
        _depth[0] = 1
        try:
            return run(fn, arguments.args, arguments.kwargs, device, sizes)
        finally:
            _depth[0] = 0


class MemoryLimit(NamedTuple):
    """The memory of a device that a function can have."""

    capacity_bytes: int | None  # the size of the device's memory; None when unknown
    # What this process can still allocate of it, cached memory included; None when unknown.
    available_bytes: int | None
    unknown: str = ""  # why it is unknown; else empty
    note: str = ""  # what has to be known about it; empty if there is nothing


def limit_of(index: int, torch: ModuleType) -> MemoryLimit:
    """Return how much memory this process can have on a CUDA device; asking creates no context there."""
    name = device_id(BACKEND, index)
    if not torch.cuda.is_initialized() and machine().devices.all_hidden():
        return MemoryLimit(None, None, "CUDA_VISIBLE_DEVICES hides every device from this process")
    try:
        memory = machine().device_memory(index)
    finally:
        machine().close()  # the driver's library, unless something is being measured
    if memory is None:
        return MemoryLimit(None, None, f"{name} is not a device of this machine, and no capacity was given")
    reserved_bytes, reusable_bytes, limit_bytes = _of_allocator(index)
    free_bytes = memory.free_bytes
    if limit_bytes is not None:
        free_bytes = min(free_bytes, max(0, limit_bytes - reserved_bytes))
    note, has_context = "", False
    with contextlib.suppress(*torch_state.TORCH_ERRORS):
        has_context = torch_state.accelerator() == BACKEND and torch_state.has_context(index)
    if reserved_bytes == 0 and not has_context:
        note = f"This process does not use {name} so far: its context will take some of what is available."
    return MemoryLimit(memory.total_bytes, free_bytes + reusable_bytes, note=note)


def _of_allocator(index: int) -> tuple[int, int, int | None]:
    """Return what torch's allocator has reserved on a device, what of that it can reuse, and its limit."""
    for framework, counters in machine().frameworks.counters():
        for counter in counters if framework.name == "torch" else ():
            if counter.device.index == index:
                try:
                    readings = counter.observe().readings
                except Unavailable:  # a pluggable allocator
                    break
                allocated_bytes, reserved_bytes = readings[0].current_bytes, readings[-1].current_bytes
                reusable_bytes = reserved_bytes - allocated_bytes - (counter.pools_bytes() or 0)
                return reserved_bytes, max(0, reusable_bytes), counter.limit_bytes()
    return 0, 0, torch_state.limit_bytes(index)
