"""Fake tensors that are on a CUDA device for the user's code, whatever machine and build of torch this is.

torch's `FakeTensorMode` gives tensors a device that need not be there, but a backward pass on them needs a
CUDA build, and a device of this index. So C++ code is told that they are on "meta", which every build has,
and Python code that they are on the device. One part of C++ has to know the device: autocast casts what is on
CUDA only. It is told so while it casts.
"""

from __future__ import annotations

import copy
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from .operators import Operators


class Answers:
    """What C++ code is told about the device of a fake tensor.

    Attributes:
        autocast: Whether autocast is on for CUDA, and can be followed.
    """

    def __init__(self, torch: ModuleType) -> None:
        self._meta = torch.device("meta")
        self._reads_autocast = torch.is_autocast_enabled
        self.autocast = False
        self._recorded: dict[int, weakref.ref[Any]] = {}

    def device(self, tensor: Any) -> Any:
        """Return the device that C++ code sees."""
        device = tensor.fake_device
        if tensor.fake_mode.in_kernel_invocation:
            return self._meta
        if device.type == "cpu":
            return device
        # An operator on one of autocast's lists excludes autocast's key while it casts and runs.
        known = self._recorded.pop(id(tensor), None)
        is_autograd_asking = known is not None and known() is tensor
        return device if self.casts and not is_autograd_asking else self._meta

    @property
    def casts(self) -> bool:
        """Whether an operator runs for which autocast casts."""
        return self.autocast and not self._reads_autocast("cuda")

    def recorded(self, out: Any) -> None:
        """Note a result for which autograd will ask for the device once, before autocast does."""
        self._recorded[id(out)] = weakref.ref(out)


def fake_mode(torch: ModuleType, answers: Answers, device: Any) -> Any:
    """Return a fake mode that initialises no device."""
    from torch._subclasses import fake_tensor

    asked, meta = torch.ops.prim.device.default, torch.device("meta")

    class Mode(fake_tensor.FakeTensorMode):  # type: ignore[misc]  # torch has no types here
        @property
        def avoid_device_init(self) -> bool:
            return True

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is asked:
                return answers.device(args[0])
            kwargs = kwargs or {}
            if kwargs.get("device") == meta:
                kwargs = {**kwargs, "device": device}
            return super().__torch_dispatch__(func, types, args, kwargs)

    return Mode(allow_non_fake_inputs=True)


def dispatch_mode(handler: Callable[[Any, Any, Any], Any]) -> Any:
    """Return a mode that calls a function for each operator below autograd."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    implicit = torch._C.DispatchKey.CompositeImplicitAutograd

    class Mode(TorchDispatchMode):  # type: ignore[misc]  # torch has no types here
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            # Inference mode leaves out autograd, where an operator that is made of others becomes these.
            is_whole = torch.is_inference_mode_enabled() and func.namespace != "prim"
            if is_whole and func.has_kernel_for_dispatch_key(implicit):
                with self:
                    out = func.decompose(*args, **(kwargs or {}))
                if out is not NotImplemented:
                    return out
            return handler(func, args, kwargs or {})

    return Mode()


class Methods:
    """The attributes that fake tensors need so that Python code sees them on their device.

    Args:
        torch: The module.
        index: Of the device that "cuda" means.
        operators: Answers for values, and knows what the CPU means.
    """

    def __init__(self, torch: ModuleType, index: int, operators: Operators) -> None:
        self._torch, self._index, self._operators = torch, index, operators

    def all(self) -> dict[str, Any]:
        """Return them by name."""
        values = self._operators.values
        item, array = values.item, values.array

        def to(tensor: Any, *args: Any, **kwargs: Any) -> Any:  # functions: methods are not bound to a tensor
            return self._to(tensor, *args, **kwargs)

        def value(tensor: Any) -> Any:
            return item(tensor)

        def get_device(tensor: Any) -> int:
            return -1 if tensor.device.type == "cpu" else tensor.device.index

        def formatted(tensor: Any, spec: str) -> str:
            return format(repr(tensor) if tensor.dim() else item(tensor), spec)

        def tolist(tensor: Any) -> Any:
            return [tolist(one) for one in tensor] if tensor.dim() else item(tensor)

        def deepcopy(tensor: Any, memo: dict[int, Any]) -> Any:
            return self._deepcopy(tensor, memo)

        def cpu(tensor: Any, **kwargs: Any) -> Any:
            if tensor.device.type == "cpu":
                return tensor
            return self._torch._C.TensorBase.to(tensor, "cpu", copy=True, **kwargs)

        def cuda(tensor: Any, device: Any = None, _: bool = False, **kwargs: Any) -> Any:
            return self._to(tensor, "cuda" if device is None else self._torch.device(device), **kwargs)

        return {
            "to": to,
            "cuda": cuda,
            "cpu": cpu,
            "get_device": get_device,
            "pin_memory": lambda tensor, *_: tensor,
            "is_pinned": lambda tensor, *_: tensor.device.type == "cpu",
            "is_cuda": property(lambda tensor: tensor.device.type == "cuda"),
            "is_cpu": property(lambda tensor: tensor.device.type == "cpu"),
            "is_meta": property(lambda _: False),
            "item": value,
            "tolist": tolist,
            "record_stream": lambda *_: None,
            "data_ptr": lambda _: 0,
            "__deepcopy__": deepcopy,
            "numpy": lambda tensor, **_: array(tensor),
            "__array__": lambda tensor, *_, **__: array(tensor),
            "__format__": formatted,
        }

    def _deepcopy(self, tensor: Any, memo: dict[int, Any]) -> Any:
        """Do what `Tensor.__deepcopy__` does, which would copy the fake mode with the tensor's attributes."""
        torch = self._torch
        if id(tensor) in memo:
            return memo[id(tensor)]
        if not tensor.is_leaf:
            return torch.Tensor.__deepcopy__(tensor, memo)  # raises its error
        with torch.no_grad():
            made = tensor.clone()
        if isinstance(tensor, torch.nn.Parameter):  # neither its gradient nor its attributes are copied
            memo[id(tensor)] = made = torch.nn.Parameter(made, tensor.requires_grad)
            return made
        memo[id(tensor)] = made.requires_grad_(tensor.requires_grad)
        if tensor.grad is not None:
            made.grad = self._deepcopy(tensor.grad, memo)
        own = {name: value for name, value in vars(tensor).items() if name not in vars(made)}
        vars(made).update(copy.deepcopy(own, memo))
        return made

    def _to(self, tensor: Any, *args: Any, copy: bool = False, **kwargs: Any) -> Any:
        """Do what `Tensor.to` does: C++ code does not know that a tensor is on the device already."""
        torch = self._torch
        kwargs.pop("non_blocking", None)
        other = args[0] if args and isinstance(args[0], torch.Tensor) else kwargs.pop("other", None)
        if other is not None:
            args = other.device, other.dtype, *args[1:]
        if len(args) > 1 and isinstance(args[-1], bool) and isinstance(args[-2], bool):
            args, copy = args[:-1], args[-1]
        device, dtype, _, memory_format = torch._C._nn._parse_to(*args, **kwargs)
        wanted = {} if memory_format is None else {"memory_format": memory_format}
        device, dtype = tensor.device if device is None else self._indexed(device), dtype or tensor.dtype
        if device == tensor.device:
            return torch._C.TensorBase.to(tensor, dtype, copy=copy, **wanted)
        return torch._C.TensorBase.to(tensor, device, dtype, copy=True, **wanted)

    def _indexed(self, device: Any) -> Any:
        means = device.type == "cpu" and self._operators.reads_cpu_as_device
        is_current = device.type == "cuda" and device.index is None
        return self._torch.device("cuda", self._index) if is_current or means else device
