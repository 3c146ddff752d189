"""Which names hold which blocks at the end of a measurement, and what the blocks are for."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ..owners.attribution import GRAPH
from ..owners.roots import LAST, owners_at
from ..sources import torch_tensors as tensors
from ..sources.torch_state import module
from .graph import Graphs
from .held import Held, Values, merge, user_frames

if TYPE_CHECKING:
    from types import FrameType, ModuleType

    from ..sources import Holding
    from .graph import Address


def names_at_end(shell: Any = None, frame: FrameType | None = None) -> dict[Address, Held]:
    """Return what names hold now, by address.

    Args:
        shell: IPython's; None outside.
        frame: Of the code that ends the measurement; the variables of the user's functions that called it
            come first.
    """
    torch = module()
    if torch is None:
        return {}
    reader = _Reader(torch)
    found = owners_at(user_frames(frame), shell, [reader.holding], sys.exc_info()[1])
    held: dict[Address, Held] = {}
    for (label, _, _), blocks in found.blocks.items():
        name = label.removeprefix(f"{LAST}: ")  # "step.act", a variable of a function
        for address in map(_address, blocks):
            if address is not None and (one := reader.noted.get(address)) is not None:
                in_graph = one.kind == "variables" and name.endswith(GRAPH)
                held[address] = Held("activations", name) if in_graph else one._replace(name=name)
    return held


def _address(key: Any) -> Address | None:
    """Return a block's address from its key, such as ("cuda:0", 1024)."""
    if type(key) is not tuple or type(key[0]) is not str or type(key[1]) is not int:
        return None
    backend, _, index = key[0].partition(":")
    return (int(index), key[1]) if backend == "cuda" and index.isdigit() else None


class _Reader:
    """Reads the memory behind values for a walk, and notes what it is for."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._graphs = Graphs(torch)
        self._values = Values(torch, self._graphs)
        self.noted: dict[Address, Held] = {}

    def may_hold(self, kind: type) -> bool:
        """Return whether values of a class are tensors, nodes of graphs or optimizers."""
        return tensors.may_hold(kind, self._torch) or self._values.is_optimizer(kind)

    def holding(self, value: Any) -> Holding | None:
        """Return the memory behind a value."""
        torch, graphs = self._torch, self._graphs
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            if self._values.is_optimizer(type(value)):
                merge(self.noted, self._values.of_optimizer(value))
                return None
            if graphs.is_tensor(value):
                self._values.of_tensor(self.noted, "", value)
                return tensors.holding(value, torch)
        found = tensors.holding(value, torch)
        for part in found.parts if found is not None else ():
            if (address := graphs.address_of(part)) is not None:
                merge(self.noted, {address: Held("activations")})
        return found
