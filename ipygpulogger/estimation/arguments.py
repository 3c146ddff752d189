"""What `estimate` is given, checked: the function, the device, the capacity, the batch sizes.

A batch size replaces, in this order of preference:

1. an int argument that is named like one (``batch_size``, ``bs``, ``bsz``, ``eval_batch_size``), and the
   leading dimension of every tensor among the arguments that equals it;
2. the leading dimension of the first tensor among the arguments, and of every other one that shares it;
3. the only int among the arguments, if none of them is a tensor.

Parameters, modules and optimizers stay as they are. A resized tensor is a fake one, so nothing is allocated.
"""

from __future__ import annotations

import functools
import inspect
import operator
import re
from collections import UserDict
from copy import copy
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from ..records import device_id
from ..records.units import clipped, parse_size, printable, shortened
from ..sources.torch import state as torch_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

BACKEND = "cuda"  # whose caching allocator is simulated; torch calls ROCm's devices so as well
_LARGEST_CAPACITY_BYTES = 1 << 60
_MOST_SIZES = 1000  # each is a run of the function
_LARGEST_SIZE = 1 << 40
_NAME = re.compile(r"(?:\w+_)?batch_?size|bsz?", re.IGNORECASE)  # as in `owners.out_of_memory`
_LATER = inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction
_NAMES = 4  # arguments that are described by name
_OWN = frozenset(("device", "capacity", "batch_sizes"))  # the parameters of `estimate`


class Arguments(NamedTuple):
    """What a function is called with."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def imported_torch() -> ModuleType:
    """Return torch."""
    try:
        return import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError("estimate needs PyTorch: pip install torch", name="torch") from None


def device_index(device: Any, torch: ModuleType) -> int:
    """Return the index of a CUDA device that a user named: "cuda:0", "cuda", 0, a `torch.device`.

    "cuda" is torch's current device, which is the first one as long as CUDA is not initialised. On a machine
    that has no CUDA device every index is accepted.
    """
    named = _device_named(device, torch)
    if named.type == "cpu":
        raise ValueError(
            "estimate tells what is needed on a GPU, not in general RAM: give a device such as 'cuda:0';"
            " the machine needs none"
        )
    if named.type != BACKEND:
        raise ValueError(
            f"estimate knows the allocator of CUDA devices only, and {named.type!r} devices have another"
        )
    index = named.index if named.index is not None else torch_state.current_index() or 0
    try:
        count = int(torch.cuda.device_count())  # initialises nothing
    except Exception:  # a driver in an error state: the estimate does not need it
        count = 0
    if count and index >= count:
        first, last = device_id(BACKEND, 0), device_id(BACKEND, count - 1)
        others = f"{first} is the only one" if count == 1 else f"there are {first} to {last}"
        raise ValueError(f"{device_id(BACKEND, index)} does not exist: {others}")
    return int(index)


def _device_named(device: Any, torch: ModuleType) -> Any:
    if isinstance(device, torch.device):
        return device
    if isinstance(device, str):
        try:
            made = torch.device(device)
        except (RuntimeError, ValueError):  # torch's own message lists two dozen backends
            made = None
        if str(made) != device:  # torch makes cuda:-25 of cuda:999
            raise ValueError(f"{shown(device)} is not a device: write one such as 'cuda:0'")
        return made
    index = whole_number(device)
    if index is None:
        raise TypeError(f"device takes 'cuda:0', a torch.device or an index, not {shown(device)}")
    if not 0 <= index < 128:
        raise ValueError(f"{index} is not the index of a device: the first one is 0")
    return torch.device(BACKEND, index)


def capacity_bytes(capacity: Any) -> int | None:
    """Return the bytes of a capacity that a user gave: "16GB", or bytes as an int; None for None."""
    if capacity is None:
        return None
    size_bytes = whole_number(capacity)
    if isinstance(capacity, str):
        try:
            size_bytes = parse_size(capacity)
        except ValueError as error:
            raise ValueError(f"capacity: {clipped(printable(str(error)), 160)}") from None
    if size_bytes is None:
        raise TypeError(f"capacity takes a size such as '16GB', or bytes as an int, not {shown(capacity)}")
    if not 0 < size_bytes <= _LARGEST_CAPACITY_BYTES:
        raise ValueError(f"capacity: {shown(capacity)} is not a memory size: write one such as '16GB'")
    return size_bytes


def sizes_of(batch_sizes: Any) -> tuple[int, ...]:
    """Return the batch sizes that a user gave, each once, in their order."""
    try:
        given = [] if isinstance(batch_sizes, (str, bytes)) else list(islice(batch_sizes, _MOST_SIZES + 1))
    except TypeError:
        given = []
    sizes = list(map(whole_number, given))
    if not 0 < len(sizes) <= _MOST_SIZES or None in sizes:
        raise TypeError(f"batch_sizes takes whole numbers such as [8, 16, 32], not {shown(batch_sizes)}")
    found = dict.fromkeys(size for size in sizes if size is not None)
    if not 0 < min(found) <= max(found) <= _LARGEST_SIZE:
        raise ValueError(f"a batch size is at least 1 and no more than 2**40, not as in {shown(batch_sizes)}")
    return tuple(found)


def whole_number(value: Any) -> int | None:
    """Return a value as an int; None if it is not a whole number, which a bool is not meant to be."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def check_callable(fn: Any, arguments: Arguments) -> None:
    """Check that a function can be called with these arguments."""
    if not callable(fn):
        raise TypeError(
            f"estimate takes a function and its arguments, not {shown(fn)}:"
            " write estimate(step, batch), not estimate(step(batch))"
        )
    plain = inspect.isroutine(fn) or isinstance(fn, (type, functools.partial))
    code = fn if plain else type(fn).__call__
    if any(is_one(code) for is_one in _LATER):
        raise TypeError(
            f"{label_of(fn)} is a coroutine function or a generator function:"
            " give estimate a function that runs when it is called"
        )
    signature = _signature_of(fn)
    if signature is None:
        return
    try:
        signature.bind(*arguments.args, **arguments.kwargs)
    except TypeError as error:
        taken = ", ".join(name for name in signature.parameters if name in _OWN)
        why = f"; its own {taken} can be given by functools.partial" if taken else ""
        raise TypeError(
            f"{label_of(fn)} cannot be called with the arguments that estimate was given: {error}{why}"
        ) from None


def named_arguments(fn: Callable[..., Any], arguments: Arguments) -> Iterator[tuple[int | str, str, Any]]:
    """Yield the position or key of each argument, the name of its parameter, and its value."""
    signature = _signature_of(fn)
    parameters = () if signature is None else signature.parameters.values()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind in positional]
    for place, value in enumerate(arguments.args):
        yield place, names[place] if place < len(names) else f"argument {place + 1}", value
    for name, value in arguments.kwargs.items():
        yield name, name, value


def _signature_of(fn: Any) -> inspect.Signature | None:
    """Return the signature of a function, for a module that of its ``forward``; None if unknown."""
    forward = None if inspect.isroutine(fn) or isinstance(fn, type) else getattr(fn, "forward", None)
    try:
        return inspect.signature(forward if callable(forward) else fn)
    except (TypeError, ValueError):
        return None


def label_of(fn: Any) -> str:
    """Return the name of a function: "step", "Linear" for a module, that of the function in a partial."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    names = ["__name__"] if inspect.isbuiltin(fn) else ["__qualname__", "__name__"]
    name = next(filter(None, (getattr(fn, one, None) for one in names)), type(fn).__qualname__)
    return shortened(str(name).rpartition("<locals>.")[2])


def shown(value: Any) -> str:
    """Return a value as an error shows it."""
    try:
        return clipped(printable(repr(value)), 60)
    except Exception:  # a `repr` of the user's
        return f"a {type(value).__name__}"


class Batched(NamedTuple):
    """What of a function's arguments a batch size replaces."""

    arguments: Arguments  # the arguments as they were given
    size: int  # the batch size that they have
    # The name or position of the int argument that is replaced; None if there is none.
    number: str | int | None
    names: tuple[str, ...]  # the arguments that hold tensors with this leading dimension
    number_name: str = ""  # what the int argument is called

    def described(self) -> str:
        """Return what is replaced: "the leading dimension 8 of images and labels"."""
        replaced = [self.number_name] if self.number is not None else []
        if self.names:
            more = len(self.names) - _NAMES
            named = [*self.names[:_NAMES], *([f"{more} more"] if more > 0 else [])]
            replaced.append(f"the leading dimension {self.size} of {listed(named)}")
        return listed(replaced)

    def resized(self, size: int, torch: ModuleType) -> Arguments:
        """Return the arguments with another batch size; the given ones stay as they are."""
        made: dict[int, Any] = {}  # by identity: a tensor that is given twice stays one

        def of_this_size(tensor: Any) -> Any:
            if not _has_size(tensor, self.size, torch):
                return tensor
            if id(tensor) not in made:
                made[id(tensor)] = _empty((size, *tensor.shape[1:]), tensor, torch)
            return made[id(tensor)]

        args, kwargs = _mapped(list(self.arguments.args), of_this_size, torch), {}
        for name, value in self.arguments.kwargs.items():
            kwargs[name] = _mapped(value, of_this_size, torch)
        if isinstance(self.number, int):
            args[self.number] = size
        elif self.number is not None:
            kwargs[self.number] = size
        return Arguments(tuple(args), kwargs)


def batched(fn: Callable[..., Any], arguments: Arguments, torch: ModuleType) -> Batched:
    """Return what of a function's arguments a batch size replaces."""
    named = list(named_arguments(fn, arguments))
    tensors = [(name, one) for _, name, value in named for one in _tensors(value, torch)]
    numbers = [(place, name, value) for place, name, value in named if type(value) is int and value > 0]

    def holding(size: int) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for name, one in tensors if _has_size(one, size, torch)))

    for place, name, value in numbers:
        if _NAME.fullmatch(name):
            return Batched(arguments, value, place, holding(value), name)
    first = next((one for _, one in tensors if _has_batch(one, torch)), None)
    if first is not None:
        size = int(first.shape[0])
        return Batched(arguments, size, None, holding(size))
    if len(numbers) == 1:
        ((place, name, value),) = numbers
        return Batched(arguments, value, place, (), name)
    raise ValueError(
        "batch_sizes can only vary what fn is called with: give it a tensor, or a number named batch_size"
    )


def _tensors(value: Any, torch: ModuleType) -> list[Any]:
    """Return the tensors in an argument, in their order."""
    found: list[Any] = []
    _mapped(value, lambda one: found.append(one) or one, torch)  # type: ignore[func-returns-value]
    return found


def _mapped(value: Any, change: Callable[[Any], Any], torch: ModuleType) -> Any:
    """Return a copy of nested containers, each tensor in them changed; anything else is the same object."""

    def one(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return change(leaf)
        if isinstance(leaf, UserDict):  # what tokenizers return
            changed = copy(leaf)
            changed.data = _mapped(leaf.data, change, torch)
            return changed
        return leaf

    return torch.utils._pytree.tree_map(one, value)


def _empty(shape: tuple[int, ...], like: Any, torch: ModuleType) -> Any:
    """Return a fake tensor of this shape, otherwise like another one."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():  # keeps the device, and creates no context there
        made = torch.empty(shape, dtype=like.dtype, device=like.device)
        return made.requires_grad_(like.requires_grad)


def _has_batch(tensor: Any, torch: ModuleType) -> bool:
    """Return whether a tensor has a first dimension that a batch size can replace."""
    is_plain = tensor.layout is torch.strided and not getattr(tensor, "is_nested", False)
    return is_plain and tensor.dim() > 0 and not isinstance(tensor, torch.nn.Parameter)


def _has_size(tensor: Any, size: int, torch: ModuleType) -> bool:
    return _has_batch(tensor, torch) and tensor.shape[0] == size


def listed(words: list[str]) -> str:
    """Return words as a sentence has them: "a", "a and b", "a, b and c"."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
