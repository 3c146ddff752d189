"""What `estimate` is given, checked: the function, the device, the capacity, the batch sizes.

No tensor is resized for another batch size: its fake one has it. Parameters and modules stay as they are.
"""

from __future__ import annotations

import contextlib
import inspect
import operator
import re
from collections import UserDict
from functools import partial
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from ..records.units import clipped, parse_size, printable, shortened
from ..sources.torch import state as torch_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

BACKEND = "cuda"  # whose caching allocator is simulated; torch calls ROCm's devices so as well
_LARGEST_CAPACITY_BYTES = 1 << 60
_MOST_SIZES = 1000  # each is a run of the function
_LARGEST_SIZE = 1 << 40
_NAME = re.compile(r"(?:\w+_)?batch_?size|bsz?", re.IGNORECASE)  # as in `owners.out_of_memory`
_LATER = inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction


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

    "cuda" is torch's current device, which is the first one as long as CUDA is not initialised. The machine
    need not have it.
    """
    if (index := whole_number(device)) is not None:
        device = f"{BACKEND}:{index}"
    named = None
    with contextlib.suppress(RuntimeError, TypeError, ValueError):
        named = torch.device(device)
    if named is None or str(named) != str(device):  # torch makes cuda:-25 of cuda:999
        raise ValueError(f"{shown(device)} is not a device: give 'cuda:0', a torch.device or an index")
    if named.type != BACKEND:
        raise ValueError(
            f"estimate knows the allocator of CUDA devices only, not {named.type!r}: give a device such as"
            " 'cuda:0'; the machine needs none"
        )
    return int(named.index if named.index is not None else torch_state.current_index() or 0)


def capacity_bytes(capacity: Any) -> int | None:
    """Return the bytes of a capacity that a user gave: "16GB", or bytes as an int; None for None."""
    if capacity is None:
        return None
    size_bytes = None
    with contextlib.suppress(ValueError):
        size_bytes = parse_size(capacity) if isinstance(capacity, str) else whole_number(capacity)
    if size_bytes is None or not 0 < size_bytes <= _LARGEST_CAPACITY_BYTES:
        raise ValueError(f"capacity takes a size such as '16GB', or bytes as an int, not {shown(capacity)}")
    return size_bytes


def sizes_of(batch_sizes: Any) -> tuple[int, ...]:
    """Return the batch sizes that a user gave, each once, in their order."""
    given: list[Any] = []
    with contextlib.suppress(TypeError):
        given = [*islice(batch_sizes, _MOST_SIZES + 1)]
    sizes = [size for one in given if 0 < (size := whole_number(one) or 0) <= _LARGEST_SIZE]
    if not 0 < len(sizes) == len(given) <= _MOST_SIZES:
        raise ValueError(f"batch_sizes takes whole numbers such as [8, 16, 32], not {shown(batch_sizes)}")
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
    try:
        if (signature := _signature_of(fn)) is not None:
            signature.bind(*arguments.args, **arguments.kwargs)
    except TypeError as error:
        raise TypeError(
            f"{label_of(fn)} cannot be called with the arguments that estimate was given: {error}"
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
    """Return which arguments of a function change with the batch size.

    1. If an int argument is named like a batch size: it, and the tensors whose first dimension equals it.
    2. Otherwise the first dimension of the first tensor, and of all tensors whose first dimension is equal.
    3. Without tensors: the int argument, if there is only one.
    """
    named = list(named_arguments(fn, arguments))
    leaves = [(name, leaf) for _, name, value in named for leaf in _leaves(value, torch)]
    tensors = [(name, leaf) for name, leaf in leaves if _has_batch(leaf, torch)]
    numbers = [one for one in named if type(one[2]) is int and one[2] > 0]
    number = next((one for one in numbers if _NAME.fullmatch(one[1])), None)
    if number is None and not tensors and len(numbers) == 1:
        number = numbers[0]
    if number is None and not tensors:
        raise ValueError(
            "batch_sizes can only vary what fn is called with: give it a tensor, or a number named batch_size"
        )
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
    if not isinstance(value, torch.Tensor) or isinstance(value, torch.nn.Parameter):
        return False
    return value.layout is torch.strided and not value.is_nested and value.dim() > 0


def listed(words: list[str]) -> str:
    """Return words as a sentence has them: "a", "a and b", "a, b and c"."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
