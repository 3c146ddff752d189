"""One quick walk of an autograd graph: the tensors that its nodes saved, and the leaves that get gradients.

Only `_raw_saved_*` is read: the others run the user's unpack hooks, and recompute what was checkpointed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, NamedTuple

from ..runtime.objects import bases_of, is_made_in_python
from ..sources.torch import tensors

Address = tuple[int, int]  # the index of a device, and an address there


class Graph(NamedTuple):
    """What a walk found."""

    saved: set[Address]  # the addresses of the tensors that nodes saved for the backward pass
    leaves: list[Any]  # the tensors whose gradients the pass accumulates
    # Not all that was saved is among them: hooks packed it (on the CPU, to be computed again), or this
    # version of torch does not show it.
    packed: bool = False


class Graphs:
    """Walks graphs; remembers for each class of torch's own nodes how the tensors that it saved are read."""

    def __init__(self, torch: ModuleType) -> None:
        c = torch._C
        self._torch, self._tensor, self._parameter = torch, c.TensorBase, torch.nn.Parameter
        self._saved = c._autograd.SavedTensor
        self._readable = hasattr(self._saved, "data")  # not in torch 2.6
        self._address: Callable[[Any], int] = c._data_address
        self._device: Callable[[Any], int] = c.TensorBase.get_device
        self._gradient_node: Callable[[Any], Any] = c.TensorBase.grad_fn.__get__
        self._gradient: Callable[[Any], Any] = c.TensorBase.grad.__get__
        self._retains: Callable[[Any], bool] = c.TensorBase.retains_grad.__get__
        self._readers: dict[type, tuple[list[Any], Any, Any]] = {}

    def walk(self, outputs: Iterable[Any]) -> Graph:
        """Walk the graph behind outputs: tensors, or edges of a graph."""
        found, packed = Graph(set(), []), not self._readable
        pending = self._first_nodes(outputs, found.leaves)
        seen = {id(node): node for node in pending}  # kept, so that no id is used twice
        known, address_of, saved_by = self._readers, self.address_of, self._saved_by
        add, leaves = found.saved.add, found.leaves
        while pending:
            node = pending.pop()
            readers, variable, following = known.get(type(node)) or self._learn(type(node))
            if readers:
                for value in saved_by(node, readers):
                    address = address_of(value)
                    if address is not None:
                        add(address)
                    elif self.is_tensor(value):
                        found.saved.update(self.addresses_of(value))
                    else:
                        packed = True
            if variable is not None:
                leaves.append(variable(node))
            if following is not None:
                for one, _ in following(node):
                    if one is not None and id(one) not in seen:
                        seen[id(one)] = one
                        pending.append(one)
        return found._replace(packed=packed)

    def _first_nodes(self, outputs: Iterable[Any], leaves: list[Any]) -> list[Any]:
        nodes = []
        for output in outputs:
            node = self._gradient_node(output) if self.is_tensor(output) else getattr(output, "node", None)
            if node is not None:
                nodes.append(node)
            elif self.is_tensor(output):
                leaves.append(output)  # its own gradient
        return nodes

    def is_tensor(self, value: Any) -> bool:
        """Return whether a value is a tensor, whatever its class says about itself."""
        return issubclass(type(value), self._tensor)

    def is_parameter(self, tensor: Any) -> bool:
        """Return whether a tensor is a module's parameter."""
        return issubclass(type(tensor), self._parameter)

    def address_of(self, value: Any) -> Address | None:
        """Return where a tensor's memory is; None if it has none on a device."""
        if not issubclass(type(value), self._tensor):
            return None
        try:
            device = self._device(value)
            address = self._address(value) if device >= 0 else 0
        except (RuntimeError, AttributeError):  # a wrapper, a sparse or fake tensor
            return None
        return (device, address) if address else None

    def addresses_of(self, value: Any) -> list[Address]:
        """Return where a tensor's memory is, or that of its parts: of a sparse one, of a wrapper."""
        if (address := self.address_of(value)) is not None:
            return [address]
        if type(value) not in (self._torch.Tensor, self._parameter):
            inner = attributes_of(value) if self.is_tensor(value) else []
        else:
            parts = getattr(tensors.holding(value, self._torch), "parts", ())
            gradient = self.gradient_of(value) if parts else None
            inner = [part for part in parts if part is not gradient]
        return [found for one in inner if (found := self.address_of(one)) is not None]

    def gradient_of(self, tensor: Any) -> Any:
        """Return a tensor's gradient, without the warning that torch gives for some."""
        if self._gradient_node(tensor) is None or self._retains(tensor):
            return self._gradient(tensor)
        return None

    def _saved_by(self, node: Any, readers: list[Any]) -> list[Any]:
        """Return what one node keeps: tensors, and what the hooks of saved tensors packed."""
        found: list[Any] = []
        kind = self._saved
        for reader in readers:
            try:
                saved = reader(node)
                for one in saved if type(saved) in (tuple, list) else (saved,):
                    value = one.data if type(one) is kind else one
                    # None: nothing was needed of this factor; or hooks packed it as that.
                    if value is not None or (type(one) is kind and one.unpack_hook is not None):
                        found.append(value)
            except RuntimeError:  # released by an earlier backward pass
                continue
        return found

    def _learn(self, kind: type) -> Any:
        """Look up how to read nodes of a class. One of the user's is not kept: it would stay alive."""
        readers, variable, following = tensors.node_readers(kind)
        readers = readers if self._readable else []
        if is_made_in_python(kind):  # a Function of the user's: `ctx.mask = mask`
            return [*readers, attributes_of], variable, following
        how = self._readers[kind] = readers, variable, following
        return how


def attributes_of(value: Any) -> list[Any]:
    """Return the tensors among an object's attributes: a wrapper's, or set on a Python function's context."""
    try:
        found = list(object.__getattribute__(value, "__dict__").values())
    except AttributeError:
        return []
    return [one for one in found if any(base.__name__ == "TensorBase" for base in bases_of(type(one)))]
