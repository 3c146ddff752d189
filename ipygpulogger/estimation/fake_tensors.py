"""Fake tensors that are on a CUDA device for the user's code, whatever machine and build of torch this is.

A backward pass on torch's own fake tensors needs a CUDA build, and a device of this index. So C++ code is
told that they are on "meta", but for autocast while it casts, and Python code that they are on the device.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .operators import Operators


class DeviceReporting:
    """What C++ code is told about the device of a fake tensor."""

    def __init__(self, torch: ModuleType) -> None:
        self._meta, self._reads_autocast = torch.device("meta"), torch.is_autocast_enabled
        # Autograd asks the device of a result for a stream, which ends a process that has no CUDA in it.
        self._has_streams, self._is_autocast_on = bool(torch.backends.cuda.is_built()), False
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
        return self._is_autocast_on and not self._reads_autocast("cuda")

    def follow_autocast(self, is_on: bool) -> None:
        """Note whether autocast is on: torch denies it while it casts."""
        if is_on and not self._has_streams:
            build = "a CUDA build of torch only, which needs no GPU"
            raise RuntimeError(f"autocast can be estimated with {build}")
        self._is_autocast_on = is_on

    def setting_autocast(self, original: Callable[..., None], *args: Any) -> None:
        """Call `torch.set_autocast_enabled`."""
        if len(args) == 1 or args[0] == "cuda":
            self.follow_autocast(bool(args[-1]))
        original(*args)

    def recorded(self, out: Any) -> None:
        """Note a result for which autograd will ask for the device once, before autocast does."""
        self._recorded[id(out)] = weakref.ref(out)


def fake_mode(torch: ModuleType, reporting: DeviceReporting, device: Any) -> Any:
    """Return a fake mode that initialises no device."""
    from torch._subclasses import fake_tensor

    device_of, meta = torch.ops.prim.device.default, torch.device("meta")

    class Mode(fake_tensor.FakeTensorMode):  # type: ignore[misc]  # torch has no types here
        @property
        def avoid_device_init(self) -> bool:
            return True

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is device_of:
                return reporting.device(args[0])
            kwargs = kwargs or {}
            if kwargs.get("device") == meta:
                kwargs = {**kwargs, "device": device}
            return super().__torch_dispatch__(func, types, args, kwargs)

    return Mode(allow_non_fake_inputs=True)


@contextlib.contextmanager
def really(torch: ModuleType) -> Iterator[None]:
    """Have torch compute with real tensors within."""
    with torch._C.DisableTorchFunction(), torch.utils._mode_utils.no_dispatch():
        yield


def storage_of(tensor: Any) -> Any:
    """Return a tensor's storage; None for a sparse one."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


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
            with torch._C.DisableTorchFunctionSubclass():
                return handler(func, args, kwargs or {})

    return Mode()


def methods(torch: ModuleType, index: int, operators: Operators) -> dict[str, Any]:
    """Return the attributes by name that fake tensors need so that Python code sees them on their device."""
    base, item, array = torch._C.TensorBase, operators.values.item, operators.values.array

    def indexed(device: Any) -> Any:
        is_current = device.type == "cuda" and device.index is None
        means = is_current or (device.type == "cpu" and operators.reads_cpu_as_device)
        return torch.device("cuda", index) if means else device

    def cuda(tensor: Any, device: Any = None, _: bool = False, **kwargs: Any) -> Any:
        return _to(torch, indexed, tensor, "cuda" if device is None else torch.device(device), **kwargs)

    def on_cpu(tensor: Any) -> bool:
        return bool(tensor.device.type == "cpu")

    def tolist(tensor: Any) -> Any:
        return [tolist(one) for one in tensor] if tensor.dim() else item(tensor)

    return {
        "to": lambda *args, **kwargs: _to(torch, indexed, *args, **kwargs),
        "cuda": cuda,
        "cpu": lambda tensor, **how: tensor if on_cpu(tensor) else base.to(tensor, "cpu", copy=True, **how),
        "get_device": lambda tensor: -1 if on_cpu(tensor) else tensor.device.index,
        "pin_memory": lambda tensor, *_: tensor,
        "is_pinned": lambda tensor, *_: on_cpu(tensor),
        "is_cuda": property(lambda tensor: tensor.device.type == "cuda"),
        "is_cpu": property(on_cpu),
        "is_meta": property(lambda _: False),
        "item": lambda tensor: item(tensor),  # noqa: PLW0108 - a function, which a tensor binds
        "tolist": tolist,
        "record_stream": lambda *_: None,
        "data_ptr": lambda _: 0,
        "as_subclass": lambda tensor, _: tensor.view_as(tensor),
        "set_meta": lambda *_, **__: None,  # fastai's, which would replace what makes it a fake tensor
        "__deepcopy__": lambda tensor, memo: _deepcopy(torch, tensor, memo),
        "numpy": lambda tensor, **_: array(tensor),
        "__array__": lambda tensor, *_, **__: array(tensor),
        "__format__": lambda tensor, spec: format(repr(tensor) if tensor.dim() else item(tensor), spec),
    }


def _to(torch: ModuleType, indexed: Any, tensor: Any, *args: Any, copy: bool = False, **kwargs: Any) -> Any:
    """Do what `Tensor.to` does: C++ code does not know that a tensor is on the device already."""
    kwargs.pop("non_blocking", None)
    other = args[0] if args and isinstance(args[0], torch.Tensor) else kwargs.pop("other", None)
    if other is not None:
        args = other.device, other.dtype, *args[1:]
    device, dtype, _, memory_format = torch._C._nn._parse_to(*args, **kwargs)
    wanted = {} if memory_format is None else {"memory_format": memory_format}
    device, dtype = tensor.device if device is None else indexed(device), dtype or tensor.dtype
    if device == tensor.device:
        return torch._C.TensorBase.to(tensor, dtype, copy=copy, **wanted)
    return torch._C.TensorBase.to(tensor, device, dtype, copy=True, **wanted)


def _deepcopy(torch: ModuleType, tensor: Any, memo: dict[int, Any]) -> Any:
    """Do what `Tensor.__deepcopy__` does, which would copy the fake mode with the tensor's attributes."""
    if not tensor.is_leaf:
        return torch.Tensor.__deepcopy__(tensor, memo)  # raises its error
    if id(tensor) not in memo:
        with torch.no_grad():
            made = tensor.clone()
        if isinstance(tensor, torch.nn.Parameter):
            made = torch.nn.Parameter(made, requires_grad=False)
        memo[id(tensor)] = made.requires_grad_(tensor.requires_grad)
    return memo[id(tensor)]
