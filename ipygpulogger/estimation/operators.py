"""Each operator of the run: what it allocates, and what fake tensors cannot do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .fake_tensors import dispatch_mode
from .gradient_sums import Sums
from .kernel_temporaries import is_seed
from .losses import kept_bytes
from .own_threads import OwnThreads
from .user_lines import is_called_by_user, is_recomputed, user_line
from .values import EstimateError, Values, written

if TYPE_CHECKING:
    from types import ModuleType

    from ..breakdown.places import Frame
    from .allocations import Allocations
    from .fake_tensors import Answers
    from .twins import Twins
    from .workspaces import Workspaces

_DATA = "the shape of its result depends on the values of a tensor"
_NO_META = "it has no implementation for fake tensors (torch.library.register_fake gives it one)"
_UNSUPPORTED = {
    "DataDependentOutputException": "its result depends on the values of tensors",
    "DynamicOutputShapeException": _DATA,
    "UnsupportedOperatorException": _NO_META,
    "UnsupportedFakeTensorException": "such tensors have no fake ones",
    "UnsupportedMutationAliasingException": _NO_META,
}
_DEVICES = "different devices", "same device", "two devices"


def is_mixed(error: Exception) -> bool:
    """Return whether an operator failed for tensors on several devices."""
    return "DeviceMismatch" in type(error).__name__ or any(words in str(error) for words in _DEVICES)


def storage_of(tensor: Any) -> Any:
    """Return a tensor's storage; None for a sparse one."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


class Operators:
    """Handles each operator below autograd.

    Attributes:
        allocator: The model of torch's.
        values: Answers for the values of tensors.
        mixed: Whether an operator found tensors on several devices.
        failed: The error of the last operator that raised one, its name, and the line.
        names: The operators that were called.
        threads: Those in which the function runs.
        reads_cpu_as_device: Whether a line of the user's that names the CPU means the device.
        everything: Whether tensors that the user's lines make on the CPU are on the device.
    """

    def __init__(
        self,
        torch: ModuleType,
        device: Any,
        allocations: Allocations,
        answers: Answers,
        workspaces: Workspaces,
    ) -> None:
        from torch._subclasses.fake_tensor import FakeTensor
        from torch.utils import _pytree

        self._torch, self._device, self._allocations, self._answers = torch, device, allocations, answers
        self._fake, self._leaves, self._map = FakeTensor, _pytree.tree_leaves, _pytree.tree_map_only
        self._asked, self._meta = torch.ops.prim.device.default, torch.device("meta")
        self._cpu = torch.device("cpu")
        self._add, self._sums = torch.ops.aten.add.Tensor, Sums(torch, allocations)
        self._scalar = torch.ops.aten._local_scalar_dense.default
        self.everything, self._lift = False, torch.ops.aten.lift_fresh.default
        self.twins: Twins | None = None
        self._workspaces, self.allocator = workspaces, allocations.allocator
        self.values = Values(torch, FakeTensor)
        self.mixed = False
        self.failed: tuple[Exception, str, Frame] | None = None
        self.names: set[str] = set()
        self.reads_cpu_as_device = False
        self.threads = OwnThreads()

    def swapping(self, original: Any) -> Any:
        """Return `torch.utils.swap_tensors` for twins, which are made later."""

        def swap_tensors(one: Any, other: Any) -> None:
            (original if self.twins is None else self.twins.swapping(original))(one, other)

        return swap_tensors

    @property
    def all_names(self) -> set[str]:
        """The operators that were called, and those that are known in part for their arguments."""
        return self.names | self._workspaces.partly

    def __call__(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call an operator, and note what it allocated."""
        if func is self._asked:
            return self._answers.device(args[0])
        if "device" in kwargs:
            kwargs = {**kwargs, "device": self._placed(kwargs["device"])}
            if self._means_the_device(kwargs["device"]) and self._is_made_by_user(args):
                kwargs["device"] = self._device
        if func is not self._lift:  # of a tensor that was just made from a list or a number
            args, kwargs = self._faked(args), self._faked(kwargs)
        if func is self._scalar:
            return self._value(func, args)
        if (out := self._decomposed(func, args, kwargs)) is not NotImplemented:
            return out
        self.names.add(func._opname)
        try:
            out = func(*args, **kwargs)
        except Exception as error:
            self._explain(func, error)
            raise
        if self.everything and func is self._lift and is_called_by_user():
            out = out.to(self._device)
        self._written_in_place(func, args, out)
        self._note(func, args, kwargs, out)
        self.values.note(func, args, out)
        return out

    def _decomposed(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run the parts of an operator that is made of others: in inference mode it arrives whole."""
        if not self._torch.is_inference_mode_enabled() or func is self._lift:
            return NotImplemented
        with dispatch_mode(self):
            return func.decompose(*args, **kwargs)

    def _written_in_place(self, func: Any, args: Any, out: Any) -> None:
        """Let a result of the engine take the memory that it would be written to."""
        sums = self._sums
        kept = sums.in_place(args) if func is self._add else sums.filled(func._opname, args)
        if kept is not None:
            self._allocations.move(kept, out.untyped_storage())
        sums.made(func._opname, args, out, kept=kept is not None)

    def _means_the_device(self, device: Any) -> bool:
        if device == self._cpu:
            return self.reads_cpu_as_device
        return device is None and self.everything

    def _is_made_by_user(self, args: Any) -> bool:
        """Return whether a line of the user's makes a new tensor, of nothing that is one."""
        return is_called_by_user() and not any(
            isinstance(one, self._torch.Tensor) for one in self._leaves(args)
        )

    def _placed(self, device: Any) -> Any:
        if device is None:
            return None
        if device == self._meta or (device.type == "cuda" and device.index is None):
            return self._device
        return device

    def _faked(self, values: Any) -> Any:
        """Return arguments with twins for real tensors, which nothing that was looked through holds."""
        if all(
            not isinstance(one, self._torch.Tensor) or isinstance(one, self._fake)
            for one in self._leaves(values)
        ):
            return values
        twins = self.twins
        if twins is None:
            return values
        return self._map(
            self._torch.Tensor, lambda one: one if isinstance(one, self._fake) else twins.of(one), values
        )

    def _value(self, func: Any, args: Any) -> Any:
        tensor = args[0]
        if getattr(tensor, "constant", None) is not None:
            with self._torch.utils._mode_utils.no_dispatch():
                return tensor.constant.item()
        return self.values.scalar(func, tensor)

    def _explain(self, func: Any, error: Exception) -> None:
        kind = type(error).__name__
        if kind in _UNSUPPORTED:
            raise EstimateError(
                f"{func} at {written(user_line())} cannot be estimated: {_UNSUPPORTED[kind]}"
            ) from error
        if is_mixed(error):
            self.mixed = True
            return
        self.failed = error, str(func), user_line()

    def _answer_autograd(self, args: Any, out: Any) -> None:
        """Have autograd see "meta" as the device of the results that it records."""
        inputs = [one for one in self._leaves(args) if isinstance(one, self._fake)]
        if self._torch.is_grad_enabled() and any(one.requires_grad for one in inputs):
            for one in self._leaves(out):
                if isinstance(one, self._fake) and one.is_floating_point():
                    self._answers.recorded(one)

    def _note(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        if self._answers.casts:
            self._answer_autograd(args, out)
        for one in self._made(func, args, out):
            if isinstance(one, self._fake) and one.fake_device == self._device and not is_seed(func, one):
                storage = storage_of(one)
                if storage is None:
                    self.names.add("sparse")
                elif self._allocations.allocation_of(storage) is None:
                    least_bytes = kept_bytes(func._opname, args)
                    made = self._allocations.add(storage, user_line(), least_bytes=least_bytes)
                    if self._torch._C._current_graph_task_id() >= 0 and is_recomputed():
                        made.kind = "activations"
        if func._opname == "resize_":
            self._allocations.grow(args[0].untyped_storage(), user_line())
        self._workspaces.use(func, args, kwargs, out)

    def _made(self, func: Any, args: Any, out: Any) -> Any:
        """Return the results of an operator; on fake tensors batch norm gives one that was not asked for."""
        if isinstance(out, self._fake):
            return (out,)
        wanted = args[9] if func._opname == "native_batch_norm_backward" else None
        return self._leaves(out if wanted is None or wanted[0] else out[1:])
