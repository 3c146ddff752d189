"""What each allocation is for: told by the graphs of backward passes, by optimizers, and by what is left."""

from __future__ import annotations

import functools
from collections import Counter
from typing import TYPE_CHECKING, Any

from ..breakdown.graph import Graphs
from ..breakdown.held import Held
from ..breakdown.places import Place, Places
from ..breakdown.rows import Told, rows_of
from ..records.at_peak import BEFORE
from ..runtime.shell import current_shell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import ModuleType

    from ..records.at_peak import AtPeak
    from .allocations import Allocation, Allocations


class Kinds:
    """Tells what allocations are for, while a function runs and after it."""

    def __init__(self, torch: ModuleType, allocations: Allocations) -> None:
        self._torch, self._allocations = torch, allocations
        self._graphs = _Graphs(torch, allocations)
        self._parameter = torch.nn.Parameter
        self._steps: Counter[int] = Counter()  # by identity of an optimizer

    def wrapper(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function through which backward passes go, looked at as they begin and end."""

        @functools.wraps(original)
        def _engine_run_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            leaves = self._before(outputs)
            results = original(outputs, *args, **kwargs)
            for leaf in leaves:
                self._mark(self._graphs.gradient_of(leaf), "gradients")
            for one in results if isinstance(results, tuple) else ():
                self._mark(one, "gradients")
            return results

        return _engine_run_backward

    def stepped(self, optimizer: Any, *_: Any) -> None:
        """Note the state of an optimizer that has made a step."""
        self._steps[id(optimizer)] += 1
        for one in _tensors(list(optimizer.state.values()), self._torch.Tensor):
            self._mark(one, "optimizer state", always=True)

    @property
    def steps_once(self) -> bool:
        """Whether an optimizer made one step only, and did not see the state that it made."""
        return 1 in self._steps.values()

    def returned(self, result: Any) -> None:
        """Note what the graph behind a result keeps, for a backward pass that is still to come."""
        self._before([one for one in _tensors([result], self._torch.Tensor) if one.grad_fn is not None])

    def _before(self, outputs: Any) -> list[Any]:
        """Note what the graph behind tensors keeps; return the leaves that get gradients."""
        torch = self._torch
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            graph = self._graphs.walk(outputs)
            for leaf in graph.leaves:
                if isinstance(leaf, self._parameter):
                    self._mark(leaf, "parameters")
            for _, number in graph.saved:
                made = self._allocations.numbered(number)
                made.kind = made.kind or "activations"
            for leaf in graph.leaves:
                self._mark(leaf, "variables")
        return graph.leaves

    def _mark(self, tensor: Any, kind: str, *, always: bool = False) -> None:
        if isinstance(tensor, self._torch.Tensor):
            known = self._graphs.address_of(tensor)
            if known is not None:
                made = self._allocations.numbered(known[1])
                if always or not made.kind:
                    made.kind = kind

    def rows(self, device: str) -> tuple[AtPeak, ...]:
        """Return what is alive at the peak, by kind and place, the largest first."""
        alive = self._allocations.alive_at_peak()
        places = Places(current_shell())
        places.learn(one.place for one in alive if one.place is not None)
        told = [
            Told(
                Held(_kind(one), one.name),  # type: ignore[arg-type]  # one of `AtPeak`'s
                Place(BEFORE, "") if one.place is None else places.place_of(one.place),
                one.size_bytes,
                alive=True,
            )
            for one in alive
        ]
        return rows_of(device, told)


def _kind(made: Allocation) -> str:
    return made.kind or ("variables" if made.died is None else "temporaries")


class _Graphs(Graphs):
    """Graphs of fake tensors, whose memory has numbers and no addresses."""

    def __init__(self, torch: ModuleType, allocations: Allocations) -> None:
        super().__init__(torch)
        self._allocations = allocations

    def _saved_by(self, node: Any, readers: Any) -> list[Any]:
        try:
            return super()._saved_by(node, readers)
        except AttributeError:  # torch before 2.7 does not show what a node saved
            return []

    def address_of(self, value: Any) -> tuple[int, int] | None:
        """Return the number of a tensor's allocation; None if it has none on the device."""
        if not self.is_tensor(value):
            return None
        try:
            made = self._allocations.allocation_of(value.untyped_storage())
        except (RuntimeError, NotImplementedError):  # sparse
            return None
        return None if made is None else (0, made.number)


def _tensors(values: Iterable[Any], tensor: type) -> Iterator[Any]:
    """Yield the tensors in nested containers."""
    for value in values:
        if isinstance(value, tensor):
            yield value
        elif isinstance(value, dict):
            yield from _tensors(list(value.values()), tensor)
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value, tensor)
