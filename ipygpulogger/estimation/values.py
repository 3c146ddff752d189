"""What stands for the values of tensors, of which an estimate computes none, and the line that asked."""

from __future__ import annotations

import math
import operator
import sys
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any

from ..allocator.places import Places, is_users
from ..runtime.objects import walk_stack
from ..runtime.shell import current_shell
from .fake_tensors import really

if TYPE_CHECKING:
    from types import FrameType, ModuleType

    from ..allocator.places import Frame

_FINITE = frozenset(("isnan", "isinf", "isneginf", "isposinf"))  # all are false
# What torch's own modules ask about their arguments.
_CHECKS = {"all": True, "_is_all_true": True, "any": False, "_is_any_true": False}
_SAME = frozenset(("any", "all", "clone", "view", "detach", "alias", "expand", "_to_copy"))
_OF_ONE = _SAME | {"logical_not", "_is_all_true", "_is_any_true"}  # results that follow from their argument's
_COMPARED = {name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
_MOST_READS = 10_000  # of a value by one line

_OURS = f"{__name__.rpartition('.')[0]}."
_ENGINE = "_engine_run_backward"
_CHECKING = ("torch.nn.", "torch.distributions.")
_DISPATCH = ("_ops.py", "_compile.py", "eval_frame.py", "_stats.py", "_python_dispatch.py", "_device.py")


class EstimateError(RuntimeError):
    """What cannot be estimated, with the operator and the user's line."""


def written(frame: Frame) -> str:
    """Return how a user would write a line."""
    return Places(current_shell()).place_of(frame).place


class Count:
    """An int whose value is unknown: arithmetic with it works, and deciding by it raises an error."""

    __slots__ = ("_frame", "_what")

    def __init__(self, what: str, frame: Frame) -> None:
        self._what, self._frame = what, frame

    def _same(self, *_: Any) -> Count:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = __abs__ = _same
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __round__ = _same

    def __float__(self, *_: Any) -> float:
        return 1.0

    __truediv__ = __rtruediv__ = __float__

    def __format__(self, spec: str) -> str:
        return format(1.0 if spec.endswith(("f", "e", "g", "%")) else 1, spec)

    def __repr__(self) -> str:
        return "1"

    def _decides(self, *_: Any) -> Any:
        raise unknown(self._what, self._frame)

    __bool__ = __int__ = __index__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _decides
    __hash__ = object.__hash__


def unknown(what: str, frame: Frame) -> EstimateError:
    """Return the error for a value that decides what a function does."""
    by = library_line()
    what = f"{what}, asked for by {by}" if by else what
    return EstimateError(
        f"{written(frame)} depends on the value of a tensor ({what}), which an estimate does not compute"
    )


class Values:
    """Answers for the values of fake tensors."""

    def __init__(self, torch: ModuleType, fake: Any) -> None:
        from torch.utils import _pytree

        self._torch, self._fake, self._leaves = torch, fake, _pytree.tree_leaves
        self._known: list[tuple[Any, float | bool]] = []  # reference to a storage, its value
        self.floats: Counter[Frame] = Counter()  # how often a line asked for a float
        self.counts: Counter[Frame] = Counter()  # how often a line asked for an int

    def item(self, tensor: Any) -> Any:
        """Return what stands for the value of a tensor with one element, as `Tensor.item` is called."""
        torch = self._torch
        is_int = not (tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype is torch.bool)
        is_known = getattr(tensor, "constant", None) is not None or self._value_of(tensor) is not None
        if is_int and tensor.numel() == 1 and not is_known:
            shape = f"shape {tuple(tensor.shape)}" if tensor.dim() else "one element"
            return Count(f"{tensor.dtype} of {shape}", self._read(self.counts))
        return torch._C.TensorBase.item(tensor)

    def scalar(self, func: Any, tensor: Any) -> Any:
        """Return what stands for a value that an operator needs."""
        known = self._value_of(tensor)
        if known is not None:
            return known
        if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
            raise unknown(str(func), user_line())
        self._read(self.floats)
        return 1.0

    def _read(self, lines: Counter[Frame]) -> Frame:
        """Note that a line asked for a value, and return it."""
        frame = user_line()
        lines[frame] += 1
        if lines[frame] > _MOST_READS:
            raise EstimateError(
                f"{written(frame)} has asked {_MOST_READS} times for the value of a tensor, which is always 1"
                " in an estimate: a loop that waits for another value would never end"
            )
        return frame

    def array(self, tensor: Any) -> Any:
        """Return an array of the tensor's shape, without memory."""
        import numpy as np

        if not tensor.dtype.is_floating_point:
            raise unknown("numpy", user_line())
        self._read(self.floats)
        kind = str(tensor.dtype).rpartition(".")[2]
        return np.broadcast_to(np.ones((), kind), tuple(tensor.shape))

    def note(self, func: Any, args: Any, out: Any) -> None:
        """Note a result whose value is known: gradients and losses are taken as finite."""
        name = func._opname
        if self._known and func._schema.is_mutable:
            self._forget_written(func, args, out)
        if name == "_amp_foreach_non_finite_check_and_unscale_":
            self._know(args[1], 0.0)
        elif isinstance(out, self._fake):
            value = self._follows(name, args, out)
            if value is None and out.dtype is self._torch.bool:
                value = self._truth(name, args)
            if value is not None:
                self._know(out, value)

    def _forget_written(self, func: Any, args: Any, out: Any) -> None:
        """Forget the values that an operator may have changed."""
        specs = zip(func._schema.arguments, args, strict=False)
        written = [one for spec, one in specs if spec.alias_info is not None and spec.alias_info.is_write]
        fakes = [one for one in self._leaves((written, out)) if isinstance(one, self._fake)]
        changed = {id(one.untyped_storage()) for one in fakes}
        self._known = [one for one in self._known if id(one[0]()) not in changed]

    def _follows(self, name: str, args: Any, out: Any) -> float | bool | None:
        """Return a number that was moved from the CPU, or how one that is known compares with another."""
        if out.numel() != 1 or not args or not isinstance(args[0], self._fake):
            return None
        if name == "_to_copy" and getattr(args[0], "constant", None) is not None:
            with really(self._torch):
                return args[0].constant.to(out.dtype).item()  # type: ignore[no-any-return]
        known = self._value_of(args[0])
        if known is not None and name in _COMPARED and isinstance(args[1], (int, float)):
            return bool(_COMPARED[name](known, args[1]))
        return None

    def _truth(self, name: str, args: Any) -> bool | None:
        if name in _FINITE:
            return False
        if name in ("eq", "ne") and len(args) == 2:
            same = args[0] is args[1]
            if same or (isinstance(args[1], float) and math.isinf(args[1])):
                return (name == "eq") == same
        known = self._value_of(args[0]) if args and name in _OF_ONE else None
        if known is not None:
            return bool(known) == (name != "logical_not")
        if name in _CHECKS:
            return _CHECKS[name] if is_called_by_check() else None
        if name in ("mul", "logical_and", "bitwise_and") and len(args) == 2:
            both = [self._value_of(one) for one in args]
            return all(both) if None not in both else None
        return None

    def _know(self, tensor: Any, value: float | bool) -> None:
        self._known = [one for one in self._known if one[0]() is not None]
        self._known.append((weakref.ref(tensor.untyped_storage()), value))

    def _value_of(self, tensor: Any) -> float | bool | None:
        if not self._known or not isinstance(tensor, self._fake):
            return None
        storage = tensor.untyped_storage()
        return next((value for reference, value in self._known if reference() is storage), None)


def user_line() -> Frame:
    """Return file, line and function of the user's that is running; else of the outermost code."""
    frame = None
    for frame in walk_stack(sys._getframe(1)):
        if is_users(frame.f_code.co_filename):
            break
    return ("", 0, "") if frame is None else (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


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


def is_called_by_check() -> bool:
    """Return whether a module of torch called the operator that is being dispatched, to check a value."""
    return _module_of(_caller()).startswith(_CHECKING)


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
