"""The allocations of a run, as torch's caching allocator would serve them, and what they are for."""

from __future__ import annotations

import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any

from ..allocator.caching_allocator import CachingAllocator
from ..allocator.graph import Graphs
from ..allocator.places import Place, Places
from ..breakdown.names import Label
from ..breakdown.rows import LabelledBlock, rows_of
from ..records.explained import BEFORE
from ..runtime.shell import current_shell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import ModuleType

    from ..allocator.caching_allocator import Block
    from ..allocator.places import Frame
    from ..records.explained import AtPeak


class Allocation:
    """One allocation.

    Attributes:
        number: Its place among the allocations.
        requested_bytes: What was requested.
        size_bytes: The size of its block.
        kind: A kind of `AtPeak`; empty while it is not known.
        name: What holds it; empty if nothing that has a name.
        place: The user's line that requested it; None for what was there before.
        born: The event that allocated it.
    """

    __slots__ = ("born", "died", "kind", "name", "number", "place", "requested_bytes", "size_bytes")

    def __init__(self, number: int, requested_bytes: int, place: Frame | None, born: int) -> None:
        self.number, self.requested_bytes, self.place, self.born = number, requested_bytes, place, born
        self.size_bytes, self.kind, self.name = 0, "", ""
        self.died: int | None = None  # the event that freed it; None while it is alive


class Allocations:
    """Follows the storages of fake tensors: each is a block until nothing holds it any more."""

    def __init__(self) -> None:
        # Called before the peak may rise, to free what nothing holds any more.
        self.before: Callable[[], None] = lambda: None
        self.allocator = CachingAllocator()
        # In their order: the number of an allocation, and its requested bytes; -1 where it is freed.
        self.events: list[tuple[int, int]] = []
        self._all: list[Allocation] = []
        self._at_peak_event = -1
        self._by_storage: dict[int, tuple[Any, Allocation, Callable[[], None]]] = {}
        self._is_over = False

    def allocation_of(self, storage: Any) -> Allocation | None:
        """Return the allocation behind a storage; None if it has none here."""
        known = self._by_storage.get(id(storage))
        return known[1] if known is not None and known[0]() is storage else None

    def add(self, storage: Any, place: Frame | None, *, least_bytes: int = 0) -> Allocation:
        """Note a new storage, whose block is at least so large."""
        made, free = self.allocate(max(storage.nbytes(), least_bytes), place)
        self._follow(storage, made, free)
        return made

    def move(self, old: Any, new: Any) -> None:
        """Have a new storage take the block of another one, which nothing will use any more."""
        _, made, free = self._by_storage.pop(id(old))
        self._follow(new, made, free)

    def grow(self, storage: Any, place: Frame | None) -> None:
        """Note that a storage has been resized: the new memory is there before the old one is freed."""
        known = self.allocation_of(storage)
        if known is not None and storage.nbytes() > known.requested_bytes:
            free = self._by_storage.pop(id(storage))[2]
            self.add(storage, place)
            free()

    def _follow(self, storage: Any, made: Allocation, free: Callable[[], None]) -> None:
        key = id(storage)

        def gone(reference: Any) -> None:
            known = self._by_storage.get(key)
            if known is not None and known[0] is reference:
                del self._by_storage[key]
                free()

        self._by_storage[key] = weakref.ref(storage, gone), made, free

    def allocate(self, requested_bytes: int, place: Frame | None) -> tuple[Allocation, Callable[[], None]]:
        """Note an allocation; return it, and what frees it."""
        if self.allocator.allocated_bytes + requested_bytes > self.allocator.peak_bytes:
            self.before()
        earlier_bytes = self.allocator.peak_bytes
        block = self.allocator.allocate(requested_bytes)
        made = Allocation(len(self._all), requested_bytes, place, len(self.events))
        self._all.append(made)
        self.events.append((made.number, requested_bytes))
        if block is not None:
            made.size_bytes = block.size_bytes
        if self.allocator.peak_bytes > earlier_bytes:
            self._at_peak_event = made.born
        return made, lambda: self._free(made, block)

    def allocate_briefly(self, sizes_bytes: tuple[int, ...], place: Frame | None) -> None:
        """Note what is allocated together and freed at once, in the reverse order."""
        frees = [self.allocate(size_bytes, place)[1] for size_bytes in sizes_bytes]
        for free in reversed(frees):
            free()

    def _free(self, made: Allocation, block: Block | None) -> None:
        if made.died is None and not self._is_over:
            made.died = len(self.events)
            self.events.append((made.number, -1))
            self.allocator.free(block)

    def end(self) -> None:
        """Stop noting what is freed: the function has returned."""
        self._is_over = True

    def alive(self) -> list[Allocation]:
        """Return what is alive now, or was when the function had returned."""
        return [one for one in self._all if one.died is None]

    def alive_at_peak(self) -> list[Allocation]:
        """Return what was alive when the most was allocated, for the first time."""
        at = self._at_peak_event
        return [
            one
            for one in self._all
            if one.size_bytes and one.born <= at and (one.died is None or one.died > at)
        ]

    def numbered(self, number: int) -> Allocation:
        """Return the allocation of a number."""
        return self._all[number]


class Kinds:
    """Tells what allocations are for, while a function runs and after it."""

    def __init__(self, torch: ModuleType, allocations: Allocations) -> None:
        self._torch, self._allocations = torch, allocations
        self._graphs = _Graphs(torch, allocations)
        self._parameter = torch.nn.Parameter
        self._steps: Counter[int] = Counter()  # by identity of an optimizer

    def backward(self, original: Callable[..., Any], outputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a backward pass, looked at as it begins and ends."""
        leaves = self._before(outputs)
        results = original(outputs, *args, **kwargs)
        for leaf in leaves:
            self._mark(self._graphs.gradient_of(leaf), "gradients")
        for one in results if isinstance(results, tuple) else ():
            self._mark(one, "gradients")
        return results

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
        blocks = (
            LabelledBlock.of(
                Label(one.kind or ("temporaries" if one.died else "variables"), one.name),  # type: ignore[arg-type]
                Place(BEFORE, "") if one.place is None else places.place_of(one.place),
                one.size_bytes,
                alive=True,
            )
            for one in alive
        )
        return rows_of(device, blocks)


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
