"""Each operator of the run: what it allocates, and what fake tensors cannot do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..breakdown.kinds import is_recomputed
from ..runtime.objects import walk_stack
from .allocations import GradientSums
from .fake_tensors import DeviceReporting, storage_of
from .kernels import Kernels, is_seed, kept_bytes
from .values import EstimateError, Values, is_called_by_user, library_line, user_line, written

if TYPE_CHECKING:
    from ..allocator.caching_allocator import CachingAllocator
    from ..allocator.places import Frame
    from .fake_map import FakeMap

_DATA = "the shape of its result depends on the values of a tensor"
_NO_META = "it has no implementation for fake tensors (torch.library.register_fake gives it one)"
_UNSUPPORTED = {
    "DataDependentOutputException": "its result depends on the values of tensors",
    "DynamicOutputShapeException": _DATA,
    "UnsupportedOperatorException": _NO_META,
    "UnsupportedFakeTensorException": "such tensors have no fake ones",
    "UnsupportedMutationAliasingException": _NO_META,
}
# Those whose fake implementation does not check that all tensors are on one device.
_UNCHECKED = (
    "convolution convolution_backward _embedding_bag _embedding_bag_forward_only slice_scatter"
    " diagonal_scatter"
)
GRADIENT = " with a gradient"  # of names
MORE = frozenset(("var_mean", "std_mean", "atan2", "lu_unpack"))  # what their gradients allocate inside
LESS = frozenset(
    ("cumprod", "renorm", "clamp.Tensor", "max.default", "min.default", "aminmax", "masked_fill.Tensor")
)


class Operators:
    """Handles each operator below autograd."""

    def __init__(self, torch: ModuleType, reporting: DeviceReporting, fakes: FakeMap) -> None:
        self._torch, self._fakes, self._allocations = torch, fakes, fakes.allocations
        self.reporting = reporting
        self.device: Any = fakes.device
        self.allocator: CachingAllocator = fakes.allocations.allocator
        self._fake, self._leaves = torch._subclasses.FakeTensor, torch.utils._pytree.tree_leaves
        self.names: set[str] = set()  # the operators that were called
        self._sums = GradientSums(torch, fakes.allocations)
        self._kernels = Kernels(torch, fakes.device, fakes.allocations, self.names)
        self.values: Values = Values(torch, self._fake)
        self.all_on_device: bool = fakes.all_on_device  # so is what the user's lines make on the CPU
        self.reads_cpu_as_device: bool = not fakes.has_accelerator  # where a line of the user's names the CPU
        self.allocates: bool = False  # whether an operator has allocated memory on the device
        self.touches: bool = False  # or has had a tensor there
        # The error of the last operator that raised one, its name, and the line.
        self.failed: tuple[Exception, str, Frame] | None = None
        self.started: list[Frame] = []  # lines at which a library has work done in other threads
        self.refusal: EstimateError | None = None  # the error that C++ code may have made another one of

    def __call__(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call an operator, and note what it allocated."""
        aten = self._torch.ops.aten
        if func is self._torch.ops.prim.device.default:
            return self.reporting.device(args[0])
        if "device" in kwargs:
            device = kwargs["device"]
            is_any = device is not None and device.type == "cuda" and device.index is None
            if is_any or device == self._torch.device("meta"):
                device = self.device
            means = self._means_the_device(device) and self._is_made_by_user(args, device)
            kwargs = {**kwargs, "device": self.device if means else device}
        lifts = func is aten.lift_fresh.default  # a tensor that was just made from a list or a number
        if not lifts:
            args, kwargs = self._faked(func, args), self._faked(func, kwargs)
        if func is aten._local_scalar_dense.default:
            return self.values.scalar(func, args[0])
        name = func._opname.removesuffix("_")
        both = {name, f"{name}.{func._overloadname}"}
        self.names.update(both)
        if (known := both & (MORE | LESS)) and self._differentiates(args):
            self.names.update(one + GRADIENT for one in known)
        try:
            out = func(*args, **kwargs)
            self._check_devices(func, args)
        except Exception as error:
            line = user_line()
            if why := _UNSUPPORTED.get(type(error).__name__):
                raise EstimateError(f"{func} at {written(line)} cannot be estimated: {why}") from error
            self.failed = error, str(func), line
            raise
        if lifts and self.all_on_device and is_called_by_user():
            out = out.to(self.device)
        self._sums.note(func._opname, args, out)
        self._note(func, args, kwargs, out)
        self.values.note(func, args, out)
        return out

    def _fakes_in(self, values: Any) -> list[Any]:
        return [one for one in self._leaves(values) if isinstance(one, self._fake)]

    def _differentiates(self, args: Any) -> bool:
        return self._torch.is_grad_enabled() and any(one.requires_grad for one in self._fakes_in(args))

    def _check_devices(self, func: Any, args: Any) -> None:
        """Check that the arguments of an operator are on one device, where fake tensors do not."""
        is_unchecked = func._opname in _UNCHECKED.split()
        if is_unchecked or not self.touches:
            found = {one.fake_device for one in self._fakes_in(args)}
            self.touches = self.touches or self.device in found
            if is_unchecked and len(found) > 1:
                named = " and ".join(sorted(map(str, found)))
                raise RuntimeError(f"Expected all tensors to be on the same device, but they are on {named}")

    def _means_the_device(self, device: Any) -> bool:
        if device == self._torch.device("cpu"):
            return self.reads_cpu_as_device
        return device is None and self.all_on_device

    def _is_made_by_user(self, args: Any, device: Any) -> bool:
        """Return whether a line of the user's, or one of a library with a device, makes a tensor of none."""
        has_tensors = any(isinstance(one, self._torch.Tensor) for one in self._leaves(args))
        return not has_tensors and (is_called_by_user() or bool(device and library_line()))

    def placing(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Do as `torch.tensor` or one like it, which calls no operator with the device CPU."""
        device = kwargs.get("device")
        if device is not None and self._means_the_device(self._torch.device(device)):
            kwargs["device"] = self.device if self._is_made_by_user((), device) else device
        return original(*args, **kwargs)

    def _faked(self, func: Any, values: Any) -> Any:
        """Return arguments with fakes for real tensors, which C++ code has that does not ask Python."""
        if (found := self._fakes.faked(values)) is values:
            return values
        real = filter(self._fakes.is_real, self._leaves(values))
        if self._torch.is_grad_enabled() and any(one.requires_grad for one in real):
            what = f"{func} at {written(user_line())} cannot be estimated"
            self.refusal = EstimateError(f"{what}: compiled code gave it a parameter")
            raise self.refusal
        return found

    def _note(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        if self.reporting.casts and self._differentiates(args):
            for one in self._fakes_in(out):
                if one.is_floating_point():
                    self.reporting.recorded(one)
        for one in self._made(func, args, out):
            if isinstance(one, self._fake) and one.fake_device == self.device and not is_seed(func, one):
                self._note_result(one, kept_bytes(func._opname, args))
        if func._schema.is_mutable:  # what is written to may grow, as the tensor of `out=`
            for one in self._fakes_in((args, kwargs)):
                self._allocations.grow(storage_of(one), user_line())
        self._kernels.use(func, args, kwargs, out)

    def _note_result(self, tensor: Any, least_bytes: int) -> None:
        storage = storage_of(tensor)
        if storage is None:
            self.names.add("sparse")
        elif self._allocations.allocation_of(storage) is None:
            made = self._allocations.add(storage, user_line(), least_bytes=least_bytes)
            self.allocates = True
            codes = (frame.f_code for frame in walk_stack(sys._getframe(1)))
            is_backward = self._torch._C._current_graph_task_id() >= 0
            if is_backward and is_recomputed((code.co_filename, 0, code.co_name) for code in codes):
                made.kind = "activations"

    def _made(self, func: Any, args: Any, out: Any) -> Any:
        """Return the results of an operator; on fake tensors batch norm gives one that was not wanted."""
        if isinstance(out, self._fake):
            return (out,) if func._opname != "_efficientzerotensor" else ()  # without memory
        is_unwanted = func._opname == "native_batch_norm_backward" and not args[9][0]
        return self._leaves(out[1:] if is_unwanted else out)
