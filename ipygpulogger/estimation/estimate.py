"""Estimate what a function would need on a GPU: `estimate`."""

from __future__ import annotations

import contextlib
import inspect
import operator
import re
import threading
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from ..engine.machine import machine
from ..records import device_id
from ..records.estimate import BatchEstimate, Estimate, fit
from ..records.units import clipped, parse_size, printable, shortened
from ..runtime.errors import is_from_a_handler, named
from ..sources.torch import state as torch_state
from .reach import Arguments, named_arguments
from .values import listed

if TYPE_CHECKING:
    from .run import Run

BACKEND = "cuda"  # whose caching allocator is simulated; torch calls ROCm's devices so as well
_NAME = re.compile(r"(?:\w+_)?batch_?size|bsz?", re.IGNORECASE)  # as in `owners.dimensions`
_LATER = inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction
_ERROR = 300  # characters
_CONTEXT = "A CUDA context takes a few hundred MB besides."
_running = threading.Lock()  # a run puts fake tensors in the place of real ones: one at a time


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

    The function is called with fake tensors, which have shapes and no memory. Nothing is allocated on a
    device, no parameter changes, and no random generator moves. Sizes are rounded as torch's caching
    allocator does with its default settings, whatever ``PYTORCH_CUDA_ALLOC_CONF`` says.

    The function's Python code does run, with what it prints and writes. It may run up to four times, until
    it is known which tensors belong on the device. Meanwhile no other thread may use the objects that the
    function uses. Other threads can use torch as before; the function must not start any.

    If any tensor that the function uses is on a GPU, all tensors count where they are. Otherwise models and
    optimizers count as on the device, as after ``model.to(device)``. So does what the function moves there.
    Where this machine has no GPU, "cpu" in your code means the device too: code that chooses its device
    chooses that here. A batch from a loader stays in general RAM until it is moved. If the function moves
    nothing, all of its tensors count as on the device, and a note says so.

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
        RuntimeError: ``fn`` calls `estimate` itself, or another thread does.
        ModuleNotFoundError: PyTorch is not installed.
        Exception: What the function itself raised, with the operator that caused it.

    Example:
        ``estimate(step, batch, capacity="16GB", batch_sizes=[8, 16, 32, 64])``
    """
    arguments = Arguments(args, kwargs)
    sizes = () if batch_sizes is None else sizes_of(batch_sizes)
    given_bytes = capacity_bytes(capacity)
    check_callable(fn)
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

    needs = found.peak_bytes, found.reserved_bytes, found.rows, found.held_bytes
    fits = fit(found.peak_bytes, found.reserved_bytes, available_bytes, found.fits_within)
    room = limit.capacity_bytes, available_bytes, *fits, limit.unknown
    more = tuple(map(of_size, sizes)), varied.described, tuple(dict.fromkeys(notes)), found.timeline
    figures = *needs, *room, *more
    return Estimate(label_of(fn), name, *figures)


def _run(fn: Callable[..., Any], arguments: Arguments, sizes: dict[int, int], device: str) -> Run:
    from .run import run

    if _running.locked():
        raise RuntimeError("one function at a time is estimated, and none by a function that is")
    with _running:
        return run(fn, arguments.args, arguments.kwargs, device, sizes)


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
    with contextlib.closing(machine()) as on:  # the driver's library, unless something is being measured
        memory = on.device_memory(index)
    if memory is None:
        return MemoryLimit(None, None, f"{name} is not a device of this machine, and no capacity was given")
    reserved_bytes = reusable_bytes = 0
    with contextlib.suppress(*torch_state.TORCH_ERRORS):  # a pluggable allocator does not say
        reserved_bytes = torch.cuda.memory_reserved(index)
        reusable_bytes = reserved_bytes - torch.cuda.memory_allocated(index)
    free_bytes, limit_bytes = memory.free_bytes, torch_state.limit_bytes(index)
    if limit_bytes is not None:
        free_bytes = min(free_bytes, max(0, limit_bytes - reserved_bytes))
    note = "" if torch.cuda.is_initialized() else _CONTEXT
    return MemoryLimit(memory.total_bytes, free_bytes + reusable_bytes, note=note)


# -- what it is given, checked
#
# No tensor is resized for another batch size: its fake one has it. Parameters and modules stay as they are.


def imported_torch() -> ModuleType:
    """Return torch."""
    try:
        return import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError("estimate needs PyTorch: pip install torch", name="torch") from None


def device_index(device: Any, torch: ModuleType) -> int:
    """Return the index of a CUDA device that a user named, which the machine need not have."""
    # "cuda" is torch's current device, which is the first one as long as CUDA is not initialised.
    if (index := whole_number(device)) is not None:
        device = f"{BACKEND}:{index}"
    named = None
    with contextlib.suppress(RuntimeError, TypeError, ValueError):
        named = torch.device(device)
    # torch makes cuda:-25 of cuda:999.
    if named is None or str(named) != str(device) or named.type != BACKEND:
        raise ValueError(f"{shown(device)} is not a CUDA device: give 'cuda:0', a torch.device or an index")
    return int(named.index if named.index is not None else torch_state.current_index() or 0)


def capacity_bytes(capacity: Any) -> int | None:
    """Return the bytes of a capacity that a user gave: "16GB", or bytes as an int; None for None."""
    if capacity is None:
        return None
    size_bytes = None
    with contextlib.suppress(ValueError):
        size_bytes = parse_size(capacity) if isinstance(capacity, str) else whole_number(capacity)
    if size_bytes is None or size_bytes <= 0:
        raise ValueError(f"capacity takes a size such as '16GB', or bytes as an int, not {shown(capacity)}")
    return size_bytes


def sizes_of(batch_sizes: Any) -> tuple[int, ...]:
    """Return the batch sizes that a user gave, each once, in their order."""
    sizes: list[int] = []
    with contextlib.suppress(TypeError):
        sizes = [whole_number(one) or 0 for one in batch_sizes]
    if min(sizes, default=0) <= 0:
        raise ValueError(f"batch_sizes takes whole numbers such as [8, 16, 32], not {shown(batch_sizes)}")
    return tuple(dict.fromkeys(sizes))


def whole_number(value: Any) -> int | None:
    """Return a value as an int; None if it is not a whole number, which a bool is not meant to be."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def check_callable(fn: Any) -> None:
    """Check that a function runs when it is called."""
    if not callable(fn):
        cure = "write estimate(step, batch), not estimate(step(batch))"
        raise TypeError(f"estimate takes a function and its arguments, not {shown(fn)}: {cure}")
    plain = inspect.isroutine(fn) or isinstance(fn, (type, partial))
    if any(is_one(fn if plain else type(fn).__call__) for is_one in _LATER):
        cure = "give estimate a function that runs when it is called"
        raise TypeError(f"{label_of(fn)} is a coroutine function or a generator function: {cure}")


def label_of(fn: Any) -> str:
    """Return the name of a function: "step", "Linear" for a module, that of the function in a partial."""
    while isinstance(fn, partial):
        fn = fn.func
    name = None if inspect.isbuiltin(fn) else getattr(fn, "__qualname__", None)
    name = name or getattr(fn, "__name__", None) or type(fn).__qualname__
    return shortened(str(name).rpartition("<locals>.")[2])


def shown(value: Any) -> str:
    """Return a value as an error shows it."""
    return clipped(printable(repr(value)), 60)


class Batched(NamedTuple):
    """What of a function's arguments a batch size replaces."""

    arguments: Arguments  # the arguments as they were given
    size: int = 0  # the batch size that they have
    # The key or position of the int argument that is replaced; None if there is none.
    place: str | int | None = None
    tensors: Sequence[Any] = ()  # whose leading dimension is replaced
    described: str = ""  # what is replaced: "the leading dimension 8 of images and labels"

    def resized(self, size: int) -> tuple[Arguments, dict[int, int]]:
        """Return the arguments with another batch size, and by identity of a tensor its leading dimension."""
        args, kwargs = list(self.arguments.args), dict(self.arguments.kwargs)
        if self.place is not None:
            holder: Any = args if isinstance(self.place, int) else kwargs
            holder[self.place] = size
        return Arguments(tuple(args), kwargs), {id(one): size for one in self.tensors}


def batched(fn: Callable[..., Any], arguments: Arguments, torch: ModuleType) -> Batched:
    """Return which arguments of a function change with the batch size."""
    # 1. If an int argument is named like a batch size: it, and the tensors whose first dimension equals it.
    # 2. Otherwise the first dimension of the first tensor, and of all tensors whose first dimension is equal.
    named = list(named_arguments(fn, arguments))
    leaves = [(name, leaf) for _, name, value in named for leaf in _leaves(value, torch)]
    tensors = [(name, leaf) for name, leaf in leaves if _has_batch(leaf, torch)]
    numbers = (one for one in named if type(one[2]) is int and one[2] > 0)
    number = next((one for one in numbers if _NAME.fullmatch(one[1])), None)
    if number is None and not tensors:
        what = "batch_sizes can only vary what fn is called with"
        raise ValueError(f"{what}: give it a tensor, or a number named batch_size")
    place, label, size = (None, "", int(tensors[0][1].shape[0])) if number is None else number
    replaced = [(name, one) for name, one in tensors if one.shape[0] == size]
    names = list(dict.fromkeys(name for name, _ in replaced))
    holders = f"the leading dimension {size} of {listed(names)}" if names else ""
    described = listed([one for one in (label, holders) if one])
    return Batched(arguments, size, place, [one for _, one in replaced], described)


def _leaves(value: Any, torch: ModuleType) -> Iterator[Any]:
    """Yield what nested containers hold, those included that tokenizers return."""
    for leaf in torch.utils._pytree.tree_leaves(value):
        yield from _leaves(leaf.data, torch) if isinstance(leaf, UserDict) else (leaf,)


def _has_batch(value: Any, torch: ModuleType) -> bool:
    """Return whether a value is a tensor with a first dimension that a batch size can replace."""
    is_data = isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter)
    return is_data and value.layout is torch.strided and not value.is_nested and value.dim() > 0
