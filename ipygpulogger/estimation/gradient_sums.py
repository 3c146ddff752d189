"""Gradients that the autograd engine adds up: into the first one, if nothing else holds that.

The engine never adds in place to a tensor of a subclass (`can_accumulate_inplace` in torch/csrc/autograd/
input_buffer.cpp), and fake tensors are of one. So its sums are recognised, and the sum takes the place of
what it would have been added to.
"""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType, ModuleType

    from .allocations import Allocations

_ENGINE = "_engine_run_backward"
_ZEROS = frozenset(("new_zeros", "zeros", "zeros_like"))
_FILL = frozenset(("index_put", "scatter", "scatter_add", "index_add", "index_fill", "put"))
# What the engine writes to a tensor that it has just made, by what made it: zeros are filled, and
# `binary_cross_entropy_with_logits` has its gradient computed in place.
_NEXT = {
    **dict.fromkeys(_ZEROS, _FILL),
    "sigmoid": frozenset(("sub",)),
    "add": frozenset(("sub",)),
    "sub": frozenset(("mul",)),
    "mul": frozenset(("mul", "sub")),
}
_BEGINS = _ZEROS | {"sigmoid", "add"}
_DISPATCH = frozenset(
    ("__torch_dispatch__", "__call__", "_written_in_place", "handled", "_fn", "inner", "wrapper")
)


class Sums:
    """Recognises the engine's sums of gradients."""

    def __init__(self, torch: ModuleType, allocations: Allocations) -> None:
        self._torch, self._allocations = torch, allocations
        self._least: tuple[int, ...] | None = None
        self._fresh: list[tuple[weakref.ref[Any], str]] = []  # storages, what made them

    def made(self, name: str, args: tuple[Any, ...], out: Any, *, kept: bool) -> None:
        """Note the result of an operator if the engine may write to it next.

        Args:
            name: Of the operator.
            args: Its arguments.
            out: Its result.
            kept: Whether it has taken the place of its first argument.
        """
        begins = name in _BEGINS and (name != "add" or not isinstance(args[1], self._torch.Tensor))
        if (kept and name in _NEXT) or (begins and self._is_of_the_engine(sys._getframe(3))):
            self._fresh = [one for one in self._fresh if one[0]() is not None]
            self._fresh.append((weakref.ref(out.untyped_storage()), name))

    def filled(self, name: str, args: tuple[Any, ...]) -> Any:
        """Return the storage of what the engine has just made and writes to in place; None if it does not.

        For a tensor of a subclass it makes a new tensor (`areAnyTensorSubclassLike` in FunctionsManual.cpp).
        """
        if not self._fresh or not args or not isinstance(args[0], self._torch.Tensor):
            return None
        storage = args[0].untyped_storage()
        made_by = next((by for one, by in self._fresh if one() is storage), "")
        if name not in _NEXT.get(made_by, ()) or self._allocations.allocation_of(storage) is None:
            return None
        return storage if self._is_of_the_engine(sys._getframe(3)) else None

    def in_place(self, args: tuple[Any, ...]) -> Any:
        """Return the storage that a sum would be written to; None if it is a new one.

        Args:
            args: What is added.
        """
        if len(args) != 2 or not all(isinstance(one, self._torch.Tensor) for one in args):
            return None
        if not self._is_of_the_engine(sys._getframe(3)):
            return None
        first = args[0]
        storage = first.untyped_storage()
        is_known = self._allocations.allocation_of(storage) is not None
        return storage if is_known and self._is_alone(first, storage) else None

    def _is_alone(self, tensor: Any, storage: Any) -> bool:
        """Return whether the engine alone holds a gradient, which fills its storage."""
        if tensor.numel() * tensor.element_size() != storage.nbytes() or 0 in tensor.stride():
            return False
        holders = self._holders(tensor, storage)
        # As few as there can be: how many these are depends on the versions of Python and torch.
        self._least = holders if self._least is None else tuple(map(min, holders, self._least))
        return holders == self._least

    def _holders(self, tensor: Any, storage: Any) -> tuple[int, ...]:
        """Return how often a tensor is held in C++, its storage, and the tensor in Python."""
        shared = self._torch._C._storage_Use_Count(storage._cdata)
        return tensor._use_count(), shared, sys.getrefcount(tensor)

    def _is_of_the_engine(self, frame: FrameType | None) -> bool:
        """Return whether the engine itself calls an operator, and no code that it runs."""
        if self._torch._C._current_graph_task_id() < 0 or self._torch.is_grad_enabled():
            return False
        while frame is not None and frame.f_code.co_name in _DISPATCH:
            frame = frame.f_back
        return frame is not None and frame.f_code.co_name == _ENGINE
