"""Fake twins in place of the user's tensors while a function is estimated, and all as it was afterwards."""

from __future__ import annotations

import functools
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from .reach import Reach

_MISSING = object()


class Twins:
    """The fake twins of real tensors: views of one storage have twins that share one, tied weights one twin.

    Args:
        torch: The module.
        device_of: Returns the device of a tensor's twin.
        made: Told of each twin's storage: the twin, the real tensor, and its name.
    """

    def __init__(
        self,
        torch: ModuleType,
        device_of: Callable[[Any], Any],
        made: Callable[[Any, Any, str], None],
    ) -> None:
        from torch.utils.weak import TensorWeakRef

        self._torch, self._device_of, self._made = torch, device_of, made
        self._twins: dict[int, tuple[Any, Callable[[], Any]]] = {}  # by identity: the tensor, its twin
        # By the storage's key: the tensor, and a twin that has its storage.
        self._storages: dict[Any, tuple[Any, Callable[[], Any]]] = {}
        self._kept: list[Any] = []  # the twins that nothing else holds
        self._weak: Callable[[Any], Callable[[], Any]] = TensorWeakRef
        self._nodes: dict[
            int, Any
        ] = {}  # by identity of a twin: keeps the node that accumulates its gradient

    def of(self, tensor: Any, name: str = "") -> Any:
        """Return a tensor's twin; fake modes must be on."""
        known = self._known(tensor)
        if known is not None:
            return known
        if self._torch.is_inference_mode_enabled():  # the nodes are not made in it
            with self._torch.inference_mode(mode=False):
                return self._new(tensor, name)
        return self._new(tensor, name)

    def _known(self, tensor: Any) -> Any:
        known = self._twins.get(id(tensor))
        return None if known is None else known[1]()

    def _remember(self, tensor: Any, twin: Any) -> None:
        self._twins[id(tensor)] = tensor, self._weak(twin)
        self._kept.append(twin)

    def let_go(self) -> None:
        """Leave the twins to what holds them now: each is freed when the function lets go of it."""
        self._kept.clear()

    def _new(self, tensor: Any, name: str) -> Any:
        torch = self._torch
        with torch.no_grad():
            twin = self._with_storage(tensor, self._device_of(tensor), name)
        if isinstance(tensor, torch.nn.Parameter):
            twin = torch.nn.Parameter(twin, requires_grad=tensor.requires_grad)
        elif tensor.requires_grad:
            twin.requires_grad_()
        self._remember(tensor, twin)
        self._note_device(twin)
        if tensor.is_leaf and tensor.grad is not None:
            twin.grad = self.of(tensor.grad, name)
        if not tensor.is_leaf:  # the graph behind it stays; this one may be changed in place as the real one
            twin = twin.view_as(twin)
            self._remember(tensor, twin)
        self._copy_attributes(tensor, twin)
        return twin

    def _note_device(self, twin: Any) -> None:
        """Have autograd note the device now: later it would note the one that autocast sees."""
        if twin.is_leaf and twin.requires_grad and twin.dtype.is_floating_point:
            self._nodes[id(twin)] = self._torch.autograd.graph.get_gradient_edge(twin).node

    def swapping(self, original: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        """Return `torch.utils.swap_tensors`, by which `Module.to` replaces the memory of parameters.

        The node that accumulates a gradient holds what its parameter was before.
        """

        @functools.wraps(original)
        def swap_tensors(twin: Any, other: Any) -> None:
            known = self._nodes.pop(id(twin), None) is not None
            original(twin, other)
            if known:
                self._note_device(twin)

        return swap_tensors

    def forget(self) -> None:
        """Let go of the real tensors: they are the user's to free, without a garbage collector."""
        for held in (self._twins, self._storages, self._kept, self._nodes):
            held.clear()

    def _with_storage(self, tensor: Any, device: Any, name: str) -> Any:
        torch = self._torch
        size, stride, offset = tuple(tensor.size()), tuple(tensor.stride()), tensor.storage_offset()
        key, nbytes = _key(tensor)
        known = self._storages.get((key, device)) if key is not None else None
        if known is not None and (other := known[1]()) is not None:
            return torch.empty(0, dtype=tensor.dtype, device=device).set_(
                other.untyped_storage(), offset, size, stride
            )
        itemsize = tensor.element_size()
        if offset == 0 and _extent(size, stride) * itemsize == nbytes:
            twin = torch.empty_strided(size, stride, dtype=tensor.dtype, device=device)
            whole = twin
        else:
            whole = torch.empty(nbytes, dtype=torch.uint8, device=device)
            twin = torch.empty(0, dtype=tensor.dtype, device=device).set_(
                whole.untyped_storage(), offset, size, stride
            )
        if key is not None:
            self._storages[key, device] = tensor, self._weak(twin)
            self._kept.append(twin)
        if tensor.device.type == "cpu" and device.type == "cpu" and tensor.numel() == 1:
            with torch.utils._mode_utils.no_dispatch():  # a real copy, not one more fake tensor
                twin.constant = tensor.detach().clone() if not hasattr(tensor, "fake_mode") else None
        self._made(twin, tensor, name)
        return twin

    def _copy_attributes(self, tensor: Any, twin: Any) -> None:
        for name, value in getattr(tensor, "__dict__", {}).items():
            if name not in twin.__dict__ and not name.startswith("_backward_hooks"):
                twin.__dict__[name] = self.swapped(value)
        for hook in (getattr(tensor, "_backward_hooks", None) or {}).values():
            twin.register_hook(hook)
        for hook in (getattr(tensor, "_post_accumulate_grad_hooks", None) or {}).values():
            twin.register_post_accumulate_grad_hook(hook)

    def swapped(self, value: Any) -> Any:
        """Return a value with twins for the tensors in it, containers that cannot be changed made anew."""
        if isinstance(value, self._torch.Tensor):
            known = self._known(value)
            return value if known is None else known
        if isinstance(value, tuple):
            ones = [self.swapped(one) for one in value]
            if all(new is old for new, old in zip(ones, value, strict=True)):
                return value
            return type(value)(*ones) if hasattr(value, "_fields") else type(value)(ones)
        if isinstance(value, frozenset):
            return frozenset(self.swapped(one) for one in value)
        if type(value) is functools.partial:
            parts = value.func, value.args, value.keywords
            func, args, keywords = self.swapped(parts[0]), self.swapped(parts[1]), dict(parts[2])
            keywords = {name: self.swapped(one) for name, one in keywords.items()}
            return functools.partial(func, *args, **keywords)
        return value


class Swap:
    """Puts twins in place of tensors wherever a function reaches them, and everything back."""

    def __init__(self, reach: Reach, twins: Twins) -> None:
        self._reach, self._twins = reach, twins
        self._undo: list[Callable[[], None]] = []

    def put_in(self) -> None:
        """Replace each tensor that is reached by its twin."""
        reach, swapped = self._reach, self._twins.swapped
        for namespace, name in reach.globals:
            self._replace_global(namespace, name)
        for cell in reach.cells:
            self._replace_content(cell)
        for owner, descriptor in reach.slots:
            old = descriptor.__get__(owner)
            if (new := swapped(old)) is not old:
                descriptor.__set__(owner, new)
                self._undo.append(functools.partial(descriptor.__set__, owner, old))
        for function in reach.functions:
            self._replace_defaults(function)
        for one in reach.lists:
            self._replace(one, list(one), [swapped(value) for value in one], _fill_list)
        for one in reach.sets:
            self._replace(one, list(one), [swapped(value) for value in one], _fill_set)
        for one in reach.dicts:
            items = list(dict.items(one))
            new = [(swapped(key), swapped(value)) for key, value in items]
            self._replace(one, items, new, _fill_dict)

    def _replace(
        self, holder: Any, old: list[Any], new: list[Any], fill: Callable[[Any, list[Any]], None]
    ) -> None:
        self._undo.append(functools.partial(fill, holder, old))
        if any(not _same(a, b) for a, b in zip(old, new, strict=True)):
            fill(holder, new)

    def _replace_global(self, namespace: dict[str, Any], name: str) -> None:
        old = namespace.get(name, _MISSING)
        self._undo.append(functools.partial(_set_back, namespace, name, old))
        if old is not _MISSING and (new := self._twins.swapped(old)) is not old:
            namespace[name] = new

    def _replace_content(self, cell: Any) -> None:
        try:
            old = cell.cell_contents
        except ValueError:  # empty
            old = _MISSING
        self._undo.append(functools.partial(_set_cell, cell, old))
        if old is not _MISSING and (new := self._twins.swapped(old)) is not old:
            cell.cell_contents = new

    def _replace_defaults(self, function: Any) -> None:
        old = function.__defaults__
        if old and (new := self._twins.swapped(old)) is not old:
            function.__defaults__ = new
            self._undo.append(functools.partial(setattr, function, "__defaults__", old))

    def put_back(self) -> None:
        """Put everything back as it was, whatever the function changed."""
        while self._undo:
            self._undo[-1]()
            self._undo.pop()


def _same(a: Any, b: Any) -> bool:
    if type(a) is tuple and type(b) is tuple and len(a) == len(b) == 2:
        return a is b or (a[0] is b[0] and a[1] is b[1])
    return a is b


def _key(tensor: Any) -> tuple[Any, int]:
    """Return what identifies a tensor's storage, None where nothing does, and its size in bytes."""
    try:
        storage = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse, or a wrapper
        return None, tensor.numel() * tensor.element_size()
    return storage._cdata, storage.nbytes()


def _extent(size: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Return how many elements of a storage a tensor spans."""
    if 0 in size:
        return 0
    return 1 + sum((length - 1) * step for length, step in zip(size, stride, strict=True))


def _set_back(namespace: dict[str, Any], name: str, old: Any) -> None:
    if old is _MISSING:
        namespace.pop(name, None)
    elif namespace.get(name, _MISSING) is not old:
        namespace[name] = old


def _set_cell(cell: Any, old: Any) -> None:
    if old is not _MISSING:
        cell.cell_contents = old
    else:
        try:
            del cell.cell_contents
        except ValueError:
            return


def _fill_list(holder: Any, values: list[Any]) -> None:
    if len(holder) != len(values) or any(a is not b for a, b in zip(holder, values, strict=True)):
        if isinstance(holder, list):
            list.__setitem__(holder, slice(None), values)
        else:
            holder.clear()
            holder.extend(values)


def _fill_set(holder: set[Any], values: list[Any]) -> None:
    if len(holder) != len(values) or {id(one) for one in holder} != {id(one) for one in values}:
        set.clear(holder)
        set.update(holder, values)


def _fill_dict(holder: dict[Any, Any], items: list[tuple[Any, Any]]) -> None:
    now = list(dict.items(holder))
    if len(now) == len(items) and all(map(_same, now, items)):
        return
    if isinstance(holder, OrderedDict):
        OrderedDict.clear(holder)
        for key, value in items:
            OrderedDict.__setitem__(holder, key, value)
    else:
        dict.clear(holder)
        dict.update(holder, items)
