"""The fake tensors of the user's real ones: what torch is to do with a real tensor is done to its fake."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .fake_tensors import really, storage_of
from .values import EstimateError, user_line, written

if TYPE_CHECKING:
    from .allocations import Allocations
    from .reach import Reach, RealTensor

_NOT_METHODS = frozenset(("__new__", "__init__", "__torch_dispatch__", "__torch_function__", "__class__"))


class FakeMap:
    """The fakes of real tensors: views of one storage have fakes that share one, tied weights one fake."""

    # A fake is alive for as long as the real tensor would be.
    def __init__(
        self, torch: ModuleType, reach: Reach, device: Any, allocations: Allocations, *, all_on_device: bool
    ) -> None:
        self._torch, self._reach = torch, reach
        self.device = device
        self.allocations = allocations
        self.all_on_device = all_on_device
        self.has_accelerator: bool = reach.has_accelerator
        pytree, self._fake = torch.utils._pytree, torch._subclasses.FakeTensor
        self._leaves, self._map = pytree.tree_leaves, pytree.tree_map_only
        self._weak: Callable[[Any], Callable[[], Any]] = torch.utils.weak.TensorWeakRef
        self._of_fake: dict[int, RealTensor] = {}  # by identity of the fake
        self._loose: list[RealTensor] = []  # those that the function may let go of
        self._storages: dict[Any, Callable[[], Any]] = {}  # by storage and device: a fake that has it
        self._nodes: dict[int, Any] = {}  # by identity of a fake: what accumulates its gradient
        self.is_real: Callable[[Any], bool] = reach.is_real  # whether it is a tensor that has a fake
        self.held_bytes: int = 0  # of fakes whose real tensors are on the device already
        self.subclasses: set[str] = set()  # the names of those whose fakes are plain ones

    def of(self, tensor: Any) -> Any:
        """Return a tensor's fake; fake modes must be on."""
        real = self._reach.of(tensor)
        if (fake := real.fake()) is not None:
            return fake
        # The nodes are not made in inference mode.
        with self._torch._C.DisableTorchFunction(), self._torch.inference_mode(mode=False):
            return self._new(real)

    def device_of(self, real: RealTensor) -> Any:
        """Return where a tensor's fake is; one without memory, on "meta", is where the others are."""
        device = real.tensor.device
        is_moved = self.all_on_device or (real.of_model and not self.has_accelerator)
        if is_moved or device.type not in ("cpu", "cuda", "meta"):
            return self.device
        if device.type == "meta":
            return self.device if self.has_accelerator else self._torch.device("cpu")
        return device

    def faked(self, values: Any) -> Any:
        """Return values with fakes in the place of real tensors."""
        if not any(map(self.is_real, self._leaves(values))):
            return values
        return self._map(self._torch.Tensor, lambda one: self.of(one) if self.is_real(one) else one, values)

    def real(self, value: Any) -> Any:
        """Return the real tensor for its fake, and anything else as it is."""
        known = self._of_fake.get(id(value))
        return known.tensor if known is not None and known.fake() is value else value

    def _new(self, real: RealTensor) -> Any:
        torch, tensor = self._torch, real.tensor
        if torch.nn.parameter.is_lazy(tensor):
            raise EstimateError("a lazy module has no parameters yet: call it once before it is estimated")
        self._note_kind(type(tensor))
        with torch.no_grad():
            fake = self._with_storage(real, self.device_of(real))
        if isinstance(tensor, torch.nn.Parameter):
            fake = torch.nn.Parameter(fake, requires_grad=False)
        fake.requires_grad_(tensor.requires_grad)
        self._note_device(fake)
        if tensor.is_leaf and tensor.grad is not None and real.size is None:
            fake.grad = self.of(tensor.grad)
            self._reach.of(tensor.grad).kept = None
        if not tensor.is_leaf:  # the graph behind it stays; this one may be changed in place as the real one
            fake = fake.view_as(fake)
        real.fake, real.kept = self._weak(fake), fake
        self._of_fake[id(fake)] = real
        if (key := _key(real)[0]) is not None:
            self._storages[key, fake.fake_device] = real.fake
        if not real.of_model:
            self._loose.append(real)
        # The hooks of a tensor are called for its fake, with the tensor if it is what they are given.
        for hook in (getattr(tensor, "_backward_hooks", None) or {}).values():
            fake.register_hook(hook)
        for hook in (getattr(tensor, "_post_accumulate_grad_hooks", None) or {}).values():
            fake.register_post_accumulate_grad_hook(lambda one, hook=hook: hook(self.real(one)))
        return fake

    def _note_kind(self, kind: type) -> None:
        """Note a subclass of `torch.Tensor`, of which only one that leaves operators to torch has a fake."""
        torch = self._torch
        if kind is torch.Tensor or issubclass(kind, torch.nn.Parameter):
            return
        if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:  # type: ignore[attr-defined]
            line = written(user_line())
            raise EstimateError(f"{line} cannot be estimated: {kind.__name__} handles operators itself")
        self.subclasses.add(kind.__name__)

    def _with_storage(self, real: RealTensor, device: Any) -> Any:
        torch, tensor = self._torch, real.tensor
        size, stride, offset = tuple(tensor.size()), tuple(tensor.stride()), tensor.storage_offset()
        key, nbytes = _key(real)

        def within(other: Any) -> Any:
            empty = torch.empty(0, dtype=tensor.dtype, device=device)
            return empty.set_(other.untyped_storage(), offset, size, stride)

        if (other := self._storages.get((key, device), lambda: None)()) is not None:  # none without a key
            return within(other)
        spanned = 1 + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
        if real.size is not None:
            fake = torch.empty((real.size, *size[1:]), dtype=tensor.dtype, device=device)
        elif offset == 0 and (0 if 0 in size else spanned) * tensor.element_size() == nbytes:
            fake = torch.empty_strided(size, stride, dtype=tensor.dtype, device=device)
        else:
            fake = within(torch.empty(nbytes, dtype=torch.uint8, device=device))
        if tensor.device.type == "cpu" and device.type == "cpu" and tensor.numel() == fake.numel() == 1:
            with really(torch):  # a real copy, not one more fake tensor
                fake.constant = tensor.detach().clone()
        if device == self.device:
            made = self.allocations.add(fake.untyped_storage(), None)
            made.kind, made.name = real.kind, real.name
            self.held_bytes += made.size_bytes if tensor.device == device else 0
        return fake

    def _note_device(self, fake: Any) -> None:
        """Have autograd note the device now: later it would note the one that autocast sees."""
        if fake.is_leaf and fake.requires_grad and fake.dtype.is_floating_point:
            self._nodes[id(fake)] = self._torch.autograd.graph.get_gradient_edge(fake).node

    def release(self) -> None:
        """Let go of the fakes of tensors that nothing but an estimate holds any more."""
        with self._torch._C.DisableTorchFunction():
            for real in [one for one in self._loose if one.is_released()]:
                self._loose.remove(real)
                real.kept = None

    def forget(self) -> None:
        """Let go of the real tensors: they are the user's to free, without a garbage collector."""
        for real in self._of_fake.values():
            real.fake, real.kept = lambda: None, None
        for held in (self._of_fake, self._loose, self._storages, self._nodes):
            held.clear()

    def swapping(self, original: Callable[[Any, Any], None], one: Any, other: Any) -> None:
        """Swap two tensors, as `Module.to` replaces the memory of parameters."""
        fake, new = self.faked(one), self.faked(other)
        if fake.untyped_storage()._cdata == new.untyped_storage()._cdata:  # it stays where it is
            return
        known = self._nodes.pop(id(fake), None)  # the node holds what its parameter was before
        original(fake, new)
        if known is not None:
            self._note_device(fake)

    def meeting(self, original: Callable[..., Any], module: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a method that changes a module, which is looked through before."""
        self._reach.meet_module(module)
        return original(module, *args, **kwargs)

    def engine(self, backward: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a backward pass: functions of torch that were called have left the mode."""
        with self.mode():
            return self.mapping(backward, original, *args, **kwargs)

    def mapping(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function of torch's C++ code, which does not ask Python first, with fakes."""
        return original(*self.faked(args), **self.faked(kwargs))

    def mode(self) -> Any:
        """Return a mode in which each function of torch that is given a real tensor takes its fake."""
        from torch.overrides import TorchFunctionMode

        fakes, own = self, self._own_methods()

        class Mode(TorchFunctionMode):  # type: ignore[misc]  # torch has no types here
            def __torch_function__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
                is_own = func in own and fakes.is_real(args[0])  # of a fake one, it is the original
                args, kwargs = fakes.faked(args), fakes.faked(kwargs or {})
                if is_own:
                    with self:
                        return fakes.real(own[func](*args, **kwargs))
                return fakes.real(func(*args, **kwargs))

        return Mode()

    def _own_methods(self) -> dict[Any, Callable[..., Any]]:
        """Return what is another function, or another attribute, for fake tensors."""
        own: dict[Any, Callable[..., Any]] = {}
        for name, new in vars(self._fake).items():
            old: Any = getattr(self._torch.Tensor, name, None)
            if isinstance(new, property) and new.fget is not None and hasattr(old, "__get__"):
                own[old.__get__] = new.fget
            elif callable(new) and callable(old) and name not in _NOT_METHODS:
                own[old] = new
        return own


def _key(real: RealTensor) -> tuple[Any, int]:
    """Return what identifies a tensor's storage, None where nothing does, and its size in bytes."""
    storage = storage_of(real.tensor) if real.size is None else None
    if storage is None:
        return None, real.tensor.numel() * real.tensor.element_size()
    return storage._cdata, storage.nbytes()
