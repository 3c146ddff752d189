"""What `estimate` is given, checked: the function, the device, the capacity, the batch sizes.

A batch size replaces, in this order of preference:

1. an int argument that is named like one (``batch_size``, ``bs``, ``bsz``, ``eval_batch_size``), and the
   leading dimension of every tensor among the arguments that equals it;
2. the leading dimension of the first tensor among the arguments, and of every other one that shares it;
3. the only int among the arguments, if none of them is a tensor.

Parameters, modules and optimizers stay as they are. A resized tensor is a fake one, so nothing is allocated.
"""

from __future__ import annotations

import inspect
import operator
import re
from collections import UserDict
from copy import copy
from functools import partial
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
    if (index := whole_number(device)) is not None:
        device = f"{BACKEND}:{index}"
    try:
        named = torch.device(device) if isinstance(device, (str, torch.device)) else None
    except (RuntimeError, ValueError):  # torch's own message lists two dozen backends
        named = None
    if named is None or str(named) != str(device):  # torch makes cuda:-25 of cuda:999
        kind = ValueError if isinstance(device, str) else TypeError
        raise kind(f"{shown(device)} is not a device: give 'cuda:0', a torch.device or an index")
    if named.type != BACKEND:
        raise ValueError(
            f"estimate knows the allocator of CUDA devices only, not {named.type!r}: give a device such as"
            " 'cuda:0'; the machine needs none"
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


def capacity_bytes(capacity: Any) -> int | None:
    """Return the bytes of a capacity that a user gave: "16GB", or bytes as an int; None for None."""
    if capacity is None:
        return None
    try:
        size_bytes = parse_size(capacity) if isinstance(capacity, str) else whole_number(capacity)
    except ValueError as error:
        raise ValueError(f"capacity: {clipped(printable(str(error)), 160)}") from None
    if size_bytes is None or not 0 < size_bytes <= _LARGEST_CAPACITY_BYTES:
        kind = TypeError if size_bytes is None else ValueError
        raise kind(f"capacity takes a size such as '16GB', or bytes as an int, not {shown(capacity)}")
    return size_bytes


def sizes_of(batch_sizes: Any) -> tuple[int, ...]:
    """Return the batch sizes that a user gave, each once, in their order."""
    try:
        given = [] if isinstance(batch_sizes, (str, bytes)) else list(islice(batch_sizes, _MOST_SIZES + 1))
    except TypeError:
        given = []
    sizes = [size for one in given if (size := whole_number(one)) is not None]
    if not 0 < len(sizes) == len(given) <= _MOST_SIZES:
        raise TypeError(f"batch_sizes takes whole numbers such as [8, 16, 32], not {shown(batch_sizes)}")
    if not 0 < min(sizes) <= max(sizes) <= _LARGEST_SIZE:
        raise ValueError(f"a batch size is at least 1 and no more than 2**40, not as in {shown(batch_sizes)}")
    return tuple(dict.fromkeys(sizes))


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
    plain = inspect.isroutine(fn) or isinstance(fn, (type, partial))
    if any(is_one(fn if plain else type(fn).__call__) for is_one in _LATER):
        raise TypeError(
            f"{label_of(fn)} is a coroutine function or a generator function:"
            " give estimate a function that runs when it is called"
        )
    if (signature := _signature_of(fn)) is None:
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
    while isinstance(fn, partial):
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
    size: int = 0  # the batch size that they have
    # The key or position of the int argument that is replaced; None if there is none.
    place: str | int | None = None
    described: str = ""  # what is replaced: "the leading dimension 8 of images and labels"

    def resized(self, size: int, torch: ModuleType) -> Arguments:
        """Return the arguments with another batch size; the given ones stay as they are."""
        from torch._subclasses.fake_tensor import FakeTensorMode

        made: dict[int, Any] = {}  # by identity: a tensor that is given twice stays one

        def of_this_size(tensor: Any) -> Any:
            if not _has_batch(tensor, torch, self.size):
                return tensor
            if id(tensor) not in made:
                with FakeTensorMode():  # keeps the device, and creates no context there
                    shape = size, *tensor.shape[1:]
                    fake = torch.empty(shape, dtype=tensor.dtype, device=tensor.device)
                    made[id(tensor)] = fake.requires_grad_(tensor.requires_grad)
            return made[id(tensor)]

        args = [_mapped(one, of_this_size, torch) for one in self.arguments.args]
        kwargs = {name: _mapped(one, of_this_size, torch) for name, one in self.arguments.kwargs.items()}
        if self.place is not None:
            holder: Any = args if isinstance(self.place, int) else kwargs
            holder[self.place] = size
        return Arguments(tuple(args), kwargs)


def batched(fn: Callable[..., Any], arguments: Arguments, torch: ModuleType) -> Batched:
    """Return what of a function's arguments a batch size replaces."""
    named = list(named_arguments(fn, arguments))
    tensors: list[tuple[str, Any]] = []
    for _, name, value in named:

        def note(one: Any, name: str = name) -> Any:
            tensors.append((name, one))
            return one  # containers are built anew, and some check what they are given

        _mapped(value, note, torch)
    numbers = [one for one in named if type(one[2]) is int and one[2] > 0]
    number = next((one for one in numbers if _NAME.fullmatch(one[1])), None)
    first = [one for _, one in tensors if _has_batch(one, torch)][:1]
    if number is None and not first and len(numbers) == 1:
        number = numbers[0]
    if number is None and not first:
        raise ValueError(
            "batch_sizes can only vary what fn is called with: give it a tensor, or a number named batch_size"
        )
    place, label, size = (None, "", int(first[0].shape[0])) if number is None else number
    names = list(dict.fromkeys(name for name, one in tensors if _has_batch(one, torch, size)))
    more = [f"{len(names) - _NAMES} more"] if len(names) > _NAMES else []
    holders = f"the leading dimension {size} of {listed([*names[:_NAMES], *more])}" if names else ""
    return Batched(arguments, size, place, listed([one for one in (label, holders) if one]))


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


def _has_batch(tensor: Any, torch: ModuleType, size: int | None = None) -> bool:
    """Return whether a tensor has a first dimension, of this size, that a batch size can replace."""
    is_plain = tensor.layout is torch.strided and not getattr(tensor, "is_nested", False)
    is_one = is_plain and tensor.dim() > 0 and not isinstance(tensor, torch.nn.Parameter)
    return is_one and size in (None, tensor.shape[0])


def listed(words: list[str]) -> str:
    """Return words as a sentence has them: "a", "a and b", "a, b and c"."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
