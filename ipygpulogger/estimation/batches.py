"""The same arguments with another batch size.

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
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from .asked import shown, signature_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

_NAME = re.compile(r"(?:\w+_)?batch_?size|bsz?", re.IGNORECASE)  # as in a failed cell: `owners.oom_batch`
_MOST = 1000  # sizes; each is a run of the function
_LARGEST = 1 << 40
_NAMES = 4  # arguments that are told by name


class Arguments(NamedTuple):
    """What a function is called with."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Batched(NamedTuple):
    """What of a function's arguments a batch size replaces.

    Attributes:
        arguments: The arguments as they were given.
        size: The batch size that they have.
        number: The name or position of the int argument that is replaced; None if there is none.
        names: The arguments that hold tensors with this leading dimension.
        number_name: What the int argument is called.
    """

    arguments: Arguments
    size: int
    number: str | int | None
    names: tuple[str, ...]
    number_name: str = ""

    def described(self) -> str:
        """Return what is replaced: "the leading dimension 8 of images and labels"."""
        told = [self.number_name] if self.number is not None else []
        if self.names:
            more = len(self.names) - _NAMES
            named = [*self.names[:_NAMES], *([f"{more} more"] if more > 0 else [])]
            told.append(f"the leading dimension {self.size} of {_listed(named)}")
        return _listed(told)

    def resized(self, size: int, torch: ModuleType) -> Arguments:
        """Return the arguments with another batch size; the given ones stay as they are."""
        made: dict[int, Any] = {}  # by identity: a tensor that is given twice stays one

        def of_this_size(tensor: Any) -> Any:
            if not _is_resized(tensor, self.size, torch):
                return tensor
            if id(tensor) not in made:
                made[id(tensor)] = _empty((size, *tensor.shape[1:]), tensor, torch)
            return made[id(tensor)]

        args = [_mapped(value, of_this_size, torch) for value in self.arguments.args]
        kwargs = {name: _mapped(value, of_this_size, torch) for name, value in self.arguments.kwargs.items()}
        if isinstance(self.number, int):
            args[self.number] = size
        elif self.number is not None:
            kwargs[self.number] = size
        return Arguments(tuple(args), kwargs)


def sizes_of(batch_sizes: Any) -> tuple[int, ...]:
    """Return the batch sizes that a user gave, each once, in their order.

    Raises:
        TypeError: They are not whole numbers, or not a sequence.
        ValueError: There is none, one is not positive, or one is absurdly large.
    """
    try:
        if isinstance(batch_sizes, (str, bytes)):
            raise TypeError  # noqa: TRY301 - said as of any other value
        given = list(islice(iter(batch_sizes), _MOST + 1))
    except TypeError:
        raise TypeError(f"batch_sizes takes sizes such as [8, 16, 32], not {shown(batch_sizes)}") from None
    if not given:
        raise ValueError("batch_sizes is empty: give sizes such as [8, 16, 32], or leave it out")
    if len(given) > _MOST:
        raise ValueError(f"batch_sizes has more than {_MOST} sizes")
    found = []
    for one in given:
        try:
            if isinstance(one, bool):
                raise TypeError  # noqa: TRY301 - as above
            size = operator.index(one)
        except TypeError:
            raise TypeError(f"a batch size is a whole number, not {shown(one)}") from None
        if not 0 < size <= _LARGEST:
            raise ValueError(f"a batch size is at least 1 and no more than 2**40, not {shown(one)}")
        found.append(size)
    return tuple(dict.fromkeys(found))


def batched(fn: Callable[..., Any], arguments: Arguments, torch: ModuleType) -> Batched:
    """Return what of a function's arguments a batch size replaces.

    Raises:
        ValueError: There is nothing that it can replace.
    """
    named = list(_named(fn, arguments))
    for place, name, value in named:
        if _is_number(value) and _NAME.fullmatch(name):
            return Batched(arguments, value, place, _holding(named, value, torch), name)
    first = next(
        (tensor for _, _, value in named for tensor in _tensors(value, torch) if _has_leading(tensor, torch)),
        None,
    )
    if first is not None:
        size = int(first.shape[0])
        return Batched(arguments, size, None, _holding(named, size, torch))
    numbers = [(place, name, value) for place, name, value in named if _is_number(value)]
    if len(numbers) == 1:
        ((place, name, value),) = numbers
        return Batched(arguments, value, place, (), name)
    raise ValueError(
        "batch_sizes can only vary what fn is called with: give it a tensor, or a number named batch_size"
    )


def _named(fn: Callable[..., Any], arguments: Arguments) -> Iterator[tuple[int | str, str, Any]]:
    """Yield the position or key of each argument, the name of its parameter, and its value."""
    signature = signature_of(fn)
    parameters = () if signature is None else tuple(signature.parameters.values())
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind in positional]
    for place, value in enumerate(arguments.args):
        yield place, names[place] if place < len(names) else f"argument {place + 1}", value
    for name, value in arguments.kwargs.items():
        yield name, name, value


def _holding(named: list[tuple[int | str, str, Any]], size: int, torch: ModuleType) -> tuple[str, ...]:
    """Return the names of the arguments that hold tensors of this batch size."""
    return tuple(
        name for _, name, value in named if any(_is_resized(t, size, torch) for t in _tensors(value, torch))
    )


def _tensors(value: Any, torch: ModuleType) -> list[Any]:
    """Return the tensors in an argument, in their order."""
    found: list[Any] = []

    def collect(tensor: Any) -> Any:
        found.append(tensor)
        return tensor

    _mapped(value, collect, torch)
    return found


def _mapped(value: Any, change: Callable[[Any], Any], torch: ModuleType) -> Any:
    """Return a copy of nested containers, each tensor in them changed; anything else is the same object."""

    def one(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return change(leaf)
        if isinstance(leaf, UserDict):  # what tokenizers return
            twin = copy(leaf)
            twin.data = _mapped(leaf.data, change, torch)
            return twin
        return leaf

    return torch.utils._pytree.tree_map(one, value)


def _empty(shape: tuple[int, ...], like: Any, torch: ModuleType) -> Any:
    """Return a fake tensor of this shape, otherwise like another one."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    kwargs = {}
    if like.dim() == 4 and not like.is_contiguous() and like.is_contiguous(memory_format=torch.channels_last):
        kwargs["memory_format"] = torch.channels_last
    with FakeTensorMode():  # keeps the device, and creates no context there
        made = torch.empty(shape, dtype=like.dtype, device=like.device, **kwargs)
        return made.requires_grad_(like.requires_grad)


def _has_leading(tensor: Any, torch: ModuleType) -> bool:
    """Return whether a tensor has a first dimension that a batch size can replace."""
    is_plain = tensor.layout is torch.strided and not getattr(tensor, "is_nested", False)
    return is_plain and tensor.dim() > 0 and not isinstance(tensor, torch.nn.Parameter)


def _is_resized(tensor: Any, size: int, torch: ModuleType) -> bool:
    return _has_leading(tensor, torch) and tensor.shape[0] == size


def _is_number(value: Any) -> bool:
    return type(value) is int and value > 0


def _listed(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)
