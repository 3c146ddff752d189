"""The allocations of a run, as torch's caching allocator would serve them, and what they are for."""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ..allocator.caching_allocator import Block, CachingAllocator
from ..allocator.graph import Graphs
from ..allocator.places import Frame, Place, Places
from ..breakdown.names import Label
from ..breakdown.rows import LabelledBlock, rows_of
from ..breakdown.timeline import Phase, by_kind, phases
from ..records.explained import BEFORE, AtPeak, Kind, KindTimeline
from ..runtime.shell import current_shell
from .fake_tensors import storage_of
from .values import is_called_by_engine

_FILL = frozenset(("index_put", "scatter", "scatter_add", "index_add", "index_fill", "put"))
# What the engine writes to a tensor that it has just made, by what made it: zeros are filled, and
# `binary_cross_entropy_with_logits` has its gradient computed in place.
_NEXT = {
    **dict.fromkeys(("new_zeros", "zeros", "zeros_like"), _FILL),
    "sigmoid": frozenset(("sub",)),
    "logit": frozenset(("mul",)),
    "add": frozenset(("sub",)),
    "sub": frozenset(("mul",)),
    "mul": frozenset(("mul", "sub")),
}
_IN_PLACE = frozenset(("add",)).union(*_NEXT.values())


@dataclass(slots=True, eq=False)
class Allocation:
    """One allocation."""

    number: int  # its place among the allocations
    requested_bytes: int
    place: Frame | None  # the user's line that requested it; None for what was there before
    born: int  # the event that allocated it
    block: Block | None  # None if it takes no memory
    size_bytes: int  # of its block
    kind: str = ""  # a kind of `AtPeak`; empty while it is not known
    name: str = ""  # what holds it; empty if nothing that has a name
    died: int | None = None  # the event that freed it; None while it is alive


class Allocations:
    """Follows the storages of fake tensors: each is a block until nothing holds it any more."""

    def __init__(self) -> None:
        # Called before the peak may rise, to free what nothing holds any more.
        self.before: Callable[[], None] = lambda: None
        self.allocator: CachingAllocator = CachingAllocator()
        # In their order: the number of an allocation, and its requested bytes; -1 where it is freed.
        self.events: list[tuple[int, int]] = []
        self.all: list[Allocation] = []  # by number
        self.at_peak_event: int = -1  # when the most was allocated, for the first time
        self._by_storage: dict[int, tuple[Any, Allocation]] = {}
        self._is_over = False

    def allocation_of(self, storage: Any) -> Allocation | None:
        """Return the allocation behind a storage; None if it has none here."""
        known = self._by_storage.get(id(storage))
        return known[1] if known is not None and known[0]() is storage else None

    def add(self, storage: Any, place: Frame | None, *, least_bytes: int = 0) -> Allocation:
        """Note a new storage, whose block is at least so large."""
        made = self.allocate(max(storage.nbytes(), least_bytes), place)
        self._follow(storage, made)
        return made

    def move(self, old: Any, new: Any) -> None:
        """Have a new storage take the block of another one, which nothing will use any more."""
        self._follow(new, self._by_storage.pop(id(old))[1])

    def grow(self, storage: Any, place: Frame | None) -> None:
        """Note that a storage has been resized: the new memory is there before the old one is freed."""
        known = self.allocation_of(storage)
        if known is not None and storage.nbytes() > known.requested_bytes:
            del self._by_storage[id(storage)]
            self.add(storage, place)
            self.free(known)

    def _follow(self, storage: Any, made: Allocation) -> None:
        key = id(storage)

        def gone(reference: Any) -> None:
            known = self._by_storage.get(key)
            if known is not None and known[0] is reference:
                del self._by_storage[key]
                self.free(made)

        self._by_storage[key] = weakref.ref(storage, gone), made

    def allocate(self, requested_bytes: int, place: Frame | None) -> Allocation:
        """Note an allocation."""
        allocator = self.allocator
        if allocator.allocated_bytes + requested_bytes > allocator.peak_bytes:
            self.before()
        earlier_bytes = allocator.peak_bytes
        block = allocator.allocate(requested_bytes)
        size_bytes = 0 if block is None else block.size_bytes
        made = Allocation(len(self.all), requested_bytes, place, len(self.events), block, size_bytes)
        self.all.append(made)
        self.events.append((made.number, requested_bytes))
        if allocator.peak_bytes > earlier_bytes:
            self.at_peak_event = made.born
        return made

    def free(self, *allocations: Allocation) -> None:
        """Note that allocations are freed, the last one first."""
        for made in reversed(allocations):
            if made.died is None and not self._is_over:
                made.died = len(self.events)
                self.events.append((made.number, -1))
                self.allocator.free(made.block)

    def end(self) -> None:
        """Stop noting what is freed: the function has returned."""
        self._is_over = True


class Kinds(Graphs):
    """Finds the kinds of allocations, while a function runs and after it, from graphs of fake tensors."""

    # The memory of these has numbers, and no addresses.
    def __init__(self, torch: ModuleType, allocations: Allocations) -> None:
        super().__init__(torch)
        self.allocations = allocations
        self._leaves = torch.utils._pytree.tree_leaves
        self.steps: Counter[int] = Counter()  # by identity of an optimizer, how many it made
        self.began = 0  # how many events there were when the function began
        self._spans: list[Phase] = []  # passes and steps, in numbers of allocations
        self._step_began = 0

    def backward(self, original: Callable[..., Any], outputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a backward pass, looked at as it begins and ends."""
        leaves, is_inner = self._before(outputs), self._torch._C._current_graph_task_id() >= 0
        began = len(self.allocations.all)
        results = original(outputs, *args, **kwargs)
        if not is_inner:
            self._spans.append(("backward", began, len(self.allocations.all)))
        for one in (*map(self.gradient_of, leaves), *(results if isinstance(results, tuple) else ())):
            self._mark(one, "gradients")
        return results

    def steps_now(self) -> None:
        """Note that an optimizer begins a step."""
        self._step_began = len(self.allocations.all)

    def stepped(self, optimizer: Any, *_: Any) -> None:
        """Note the state of an optimizer that has made a step."""
        self.steps[id(optimizer)] += 1
        if self._torch._C._current_graph_task_id() < 0:
            self._spans.append(("step", self._step_began, len(self.allocations.all)))
        for one in self._leaves(list(optimizer.state.values())):
            self._mark(one, "optimizer state", always=True)

    def returned(self, result: Any) -> None:
        """Note what the graph behind a result keeps, for a backward pass that is still to come."""
        tensors = [one for one in self._leaves(result) if self.is_tensor(one)]
        self._before([one for one in tensors if one.grad_fn is not None])

    def _before(self, outputs: Any) -> list[Any]:
        """Note what the graph behind tensors keeps; return the leaves that get gradients."""
        with self._torch._C.DisableTorchFunction(), self._torch._C._DisableTorchDispatch():
            graph = self.walk(outputs)
            for leaf in filter(self.is_parameter, graph.leaves):
                self._mark(leaf, "parameters")
            for _, number in graph.saved:
                made = self.allocations.all[number]
                made.kind = made.kind or "activations"
            for leaf in graph.leaves:
                self._mark(leaf, "variables")
        return graph.leaves

    def _mark(self, tensor: Any, kind: str, *, always: bool = False) -> None:
        if (known := self.address_of(tensor)) is not None:
            made = self.allocations.all[known[1]]
            if always or not made.kind:
                made.kind = kind

    def is_parameter(self, tensor: Any) -> bool:
        """Return whether a tensor is a module's parameter: a fake one is by an attribute, not its type."""
        return isinstance(tensor, self._parameter)

    def address_of(self, value: Any) -> tuple[int, int] | None:
        """Return the number of a tensor's allocation; None if it has none on the device."""
        if not self.is_tensor(value):
            return None
        made = self.allocations.allocation_of(storage_of(value))
        return None if made is None else (0, made.number)

    def rows(self, device: str) -> tuple[AtPeak, ...]:
        """Return what is alive at the peak, by kind and place, the largest first."""
        at = self.allocations.at_peak_event
        places = Places(current_shell())
        blocks = []
        for one in self.allocations.all:
            if one.size_bytes and one.born <= at and (one.died is None or one.died > at):
                place = Place(BEFORE, "") if one.place is None else places.place_of(one.place)
                label = Label(_kind_of(one), one.name)
                blocks.append(LabelledBlock.of(label, place, one.size_bytes, alive=True))
        return rows_of(device, blocks)

    def timeline(self, device: str) -> tuple[KindTimeline, ...]:
        """Return the memory by kind from the function's beginning on; empty if it takes none."""
        every, first, count = self.allocations.all, self.began - 1, 0
        totals, numbers = [0], [0.0]
        for number, requested_bytes in self.allocations.events:
            size_bytes, is_made = every[number].size_bytes, requested_bytes >= 0
            count += is_made
            totals.append(totals[-1] + (size_bytes if is_made else -size_bytes))
            numbers.append(count if is_made else count + 0.5)  # what is freed goes before the next one
        numbers = [number - int(numbers[self.began]) for number in numbers]
        before = count - int(numbers[-1])
        if not any(totals := totals[self.began :]):
            return ()
        lives = ((one.size_bytes, one.born, one.died or sys.maxsize, one) for one in every)
        kinds, points = by_kind(numbers[self.began :], totals, lives, _kind_of, first)
        points = (*points, (numbers[-1] // 1 + 0.9, points[-1][1]))
        made = [one.number + 1 - before for one in every if one.kind == "activations" and one.born > first]
        spans = [(name, begin - before, end - before) for name, begin, end in self._spans]
        shown = phases(spans, made, 0.0, points[-1][0])
        return (KindTimeline(device, kinds, points, shown, "allocations"),)


def _kind_of(one: Allocation) -> Kind:
    return one.kind or ("temporaries" if one.died else "variables")  # type: ignore[return-value]


class GradientSums:
    """Results that torch's engine writes in place: they take the memory of what they are added to."""

    # The engine never writes in place to a tensor of a subclass, as fake tensors are: see
    # `can_accumulate_inplace` (input_buffer.cpp) and `areAnyTensorSubclassLike` (FunctionsManual.cpp).
    def __init__(self, torch: ModuleType, allocations: Allocations) -> None:
        self._torch = torch
        self.allocations = allocations
        self._least: tuple[int, ...] | None = None
        self._fresh: list[tuple[weakref.ref[Any], str]] = []  # storages of the engine's, what made them

    def note(self, name: str, args: tuple[Any, ...], out: Any) -> None:
        """Note the result of an operator; it takes the memory that it would be written to."""
        torch = self._torch
        is_backward = torch._C._current_graph_task_id() >= 0 and not torch.is_grad_enabled()
        if not ((name in _NEXT or name in _IN_PLACE) and is_backward and is_called_by_engine()):
            return
        first = args[0] if args else None
        if isinstance(first, torch.Tensor) and name in _IN_PLACE:
            storage = first.untyped_storage()
            is_sum = name == "add" and len(args) == 2 and isinstance(args[1], torch.Tensor)
            maker = next((maker for one, maker in self._fresh if one() is storage), "")
            is_on_device = self.allocations.allocation_of(storage) is not None
            if is_on_device and (self._is_alone(first, storage) if is_sum else name in _NEXT.get(maker, ())):
                self.allocations.move(storage, out.untyped_storage())
            elif is_sum or name not in ("add", "logit", "sigmoid"):
                return
        if name in _NEXT:
            self._fresh = [one for one in self._fresh if one[0]() is not None]
            self._fresh.append((weakref.ref(out.untyped_storage()), name))

    def _is_alone(self, tensor: Any, storage: Any) -> bool:
        """Return whether the engine alone holds a gradient, which fills its storage."""
        if tensor.numel() * tensor.element_size() != storage.nbytes() or 0 in tensor.stride():
            return False
        shared = self._torch._C._storage_Use_Count(storage._cdata)
        holders = tensor._use_count(), shared, sys.getrefcount(tensor)
        # As few as there can be: how many these are depends on the versions of Python and torch.
        self._least = holders if self._least is None else tuple(map(min, holders, self._least))
        return holders == self._least
