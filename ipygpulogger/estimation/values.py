"""What stands for the values of tensors, of which an estimate computes none, and the line that asked."""

from __future__ import annotations

import math
import operator
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

from ..allocator.places import Frame, Places, is_users
from ..runtime.objects import walk_stack
from ..runtime.shell import current_shell
from .fake_tensors import really, storage_of

_FINITE = frozenset(("isnan", "isinf", "isneginf", "isposinf"))  # all are false
# What torch's own modules ask about their arguments.
_CHECKS = {"all": True, "_is_all_true": True, "any": False, "_is_any_true": False}
# Operators whose result follows from arguments whose elements all have one value.
_FOLLOWS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(_CHECKS, lambda value, *_: bool(value)),
    **dict.fromkeys(("clone", "view", "detach", "alias", "expand", "_to_copy"), lambda value, *_: value),
    **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge", "mul")},
    "logical_and": lambda one, other: bool(one and other),
    "bitwise_and": operator.and_,
    "logical_not": operator.not_,
}
_MOST_READS = 10_000  # of a value by one line

_OURS = f"{__name__.rpartition('.')[0]}."
_ENGINE = "_engine_run_backward"
_CHECKING = ("torch.nn.", "torch.distributions.")  # modules that check values
_DISPATCH = ("_ops.py", "_compile.py", "eval_frame.py", "_stats.py", "_python_dispatch.py", "_device.py")


class EstimateError(RuntimeError):
    """What cannot be estimated, with the operator and the user's line."""


def written(frame: Frame) -> str:
    """Return how a user would write a line."""
    return Places(current_shell()).place_of(frame).place


def listed(words: list[str]) -> str:
    """Return words as a sentence has them: "a", "a and b", "a, b and c"."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


class _Count(float):
    """What stands for a whole number: a float, which is written as a whole number and may be counted up."""

    def __format__(self, spec: str) -> str:
        return format(1, spec)

    def __add__(self, other: Any) -> Any:
        return self if isinstance(other, (int, _Count)) else super().__add__(other)

    __radd__ = __add__


def unknown(what: str, frame: Frame) -> EstimateError:
    """Return the error for a value that decides what a function does."""
    asked = f", asked for by {by}" if (by := library_line()) else ""
    what = f"{written(frame)} depends on the value of a tensor ({what}{asked})"
    return EstimateError(f"{what}, which an estimate does not compute")


class Values:
    """Answers for the values of fake tensors."""

    def __init__(self, torch: ModuleType, fake: Any) -> None:
        self._torch, self._fake, self._leaves = torch, fake, torch.utils._pytree.tree_leaves
        # By storage of a tensor, the value that all of its elements have.
        self._known: weakref.WeakKeyDictionary[Any, float | bool] = weakref.WeakKeyDictionary()
        self.lines: Counter[Frame] = Counter()  # how often a line asked for a value

    def item(self, tensor: Any) -> Any:
        """Return what stands for the value of a tensor with one element, as `Tensor.item` is called."""
        kind = tensor.dtype
        is_int = not (kind.is_floating_point or kind.is_complex or kind is self._torch.bool)
        if is_int and tensor.numel() == 1 and self._value_of(tensor) is None:
            return _Count(self._read())  # what takes it as a size or an index fails
        return self._torch._C.TensorBase.item(tensor)

    def scalar(self, func: Any, tensor: Any) -> Any:
        """Return what stands for a value that an operator needs."""
        if (known := self._value_of(tensor)) is not None:
            return known
        if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
            raise unknown(str(func), user_line())
        return self._read()

    def _read(self) -> float:
        """Note that a line asked for a value, and return what stands for it."""
        frame = user_line()
        self.lines[frame] += 1
        if self.lines[frame] > _MOST_READS:
            asked = f"{written(frame)} has asked {_MOST_READS} times for the value of a tensor"
            why = "which is always 1 in an estimate: a loop that waits for another value would never end"
            raise EstimateError(f"{asked}, {why}")
        return 1.0

    def array(self, tensor: Any) -> Any:
        """Return an array of the tensor's shape, without memory."""
        import numpy as np

        if not tensor.dtype.is_floating_point:
            raise unknown("numpy", user_line())
        kind = str(tensor.dtype).rpartition(".")[2]
        return np.broadcast_to(np.array(self._read(), kind), tuple(tensor.shape))

    def note(self, func: Any, args: Any, out: Any) -> None:
        """Note a result whose value is known: gradients and losses are taken as finite."""
        name = func._opname
        if self._known and func._schema.is_mutable:
            tensors = [one for one in self._leaves((args, out)) if isinstance(one, self._fake)]
            for storage in filter(None, map(storage_of, tensors)):
                self._known.pop(storage, None)
        if name == "_amp_foreach_non_finite_check_and_unscale_":
            self._known[storage_of(args[1])] = 0.0
        elif isinstance(out, self._fake) and (value := self._result(name, args, out)) is not None:
            self._known[storage_of(out)] = value

    def _result(self, name: str, args: Any, out: Any) -> float | bool | None:
        """Return the value of all elements of a result; None if it is not known."""
        if name in _FINITE:
            return False
        if name in ("eq", "ne") and len(args) == 2:
            same = args[0] is args[1]
            if same or (isinstance(args[1], float) and math.isinf(args[1])):
                return (name == "eq") == same
        if name in _FOLLOWS and (name != "_to_copy" or out.dtype is args[0].dtype):
            values = [self._value_of(one) if isinstance(one, self._torch.Tensor) else one for one in args]
            if None not in values:
                return _FOLLOWS[name](*values)  # type: ignore[no-any-return]
        return _CHECKS[name] if name in _CHECKS and _module_of(_caller()).startswith(_CHECKING) else None

    def _value_of(self, tensor: Any) -> float | bool | None:
        constant = getattr(tensor, "constant", None)
        if constant is not None and constant.numel():  # one without elements has no value
            with really(self._torch):
                return constant.item()  # type: ignore[no-any-return]
        storage = storage_of(tensor) if self._known else None
        return None if storage is None else self._known.get(storage)


def user_line() -> Frame:
    """Return file, line and function of the user's that is running; else of the outermost code."""
    for frame in walk_stack(sys._getframe(1)):
        if is_users(frame.f_code.co_filename):
            break
    return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name


def library_line() -> str:
    """Return the line of a library that asked for a value, as "lightning.pytorch.utilities.data:105"."""
    caller = _caller()
    name = _module_of(caller)
    if caller is None or name.partition(".")[0] == "torch" or is_users(caller.f_code.co_filename):
        return ""
    return f"{name}:{caller.f_lineno}"


def is_called_by_user() -> bool:
    """Return whether a line of the user's itself called the operator, or the function, that runs now."""
    caller = _caller()
    return caller is not None and is_users(caller.f_code.co_filename)


def is_called_by_engine() -> bool:
    """Return whether the engine of a backward pass called the operator that is being dispatched itself."""
    caller = _caller()
    return caller is not None and caller.f_code.co_name == _ENGINE


def _caller() -> FrameType | None:
    """Return the frame that called the operator that is being dispatched, Python's own modules left out."""
    for one in walk_stack(sys._getframe(1)):
        module = _module_of(one)
        is_between = module.startswith(_OURS) or module.partition(".")[0] in sys.stdlib_module_names
        if not (is_between or one.f_code.co_filename.endswith(_DISPATCH)):
            return one
    return None


def _module_of(frame: FrameType | None) -> str:
    return "" if frame is None else str(frame.f_globals.get("__name__", ""))
