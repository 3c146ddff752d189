"""What a function would allocate on a device, and what of it is alive at the peak."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from .caching_allocator import CachingAllocator

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..breakdown.places import Frame
    from .caching_allocator import Block


class Allocation:
    """One allocation.

    Attributes:
        number: Its place among the allocations.
        requested_bytes: What was asked for.
        size_bytes: The size of its block.
        kind: A kind of `AtPeak`; empty while it is not known.
        name: What holds it; empty if nothing that has a name.
        place: File, line and function that asked for it; None for what was there before.
        born: The event that allocated it.
        died: The event that freed it; None while it is alive.
    """

    __slots__ = ("born", "died", "kind", "name", "number", "place", "requested_bytes", "size_bytes")

    def __init__(self, number: int, requested_bytes: int, place: Frame | None, born: int) -> None:
        self.number, self.requested_bytes, self.place, self.born = number, requested_bytes, place, born
        self.size_bytes, self.kind, self.name = 0, "", ""
        self.died: int | None = None


class Allocations:
    """The allocations of a run, as torch's caching allocator would serve them.

    Attributes:
        events: In their order: the number of an allocation, and its requested bytes; -1 where it is freed.
        at_peak_event: The event at which the most was allocated.
    """

    def __init__(self) -> None:
        self.allocator = CachingAllocator()
        self.events: list[tuple[int, int]] = []
        self.at_peak_event = -1
        self._all: list[Allocation] = []
        self._by_storage: dict[int, tuple[Any, Allocation, Callable[[], None]]] = {}
        self._over = False

    def allocation_of(self, storage: Any) -> Allocation | None:
        """Return the allocation behind a storage; None if it has none here."""
        known = self._by_storage.get(id(storage))
        return known[1] if known is not None and known[0]() is storage else None

    def add(self, storage: Any, place: Frame | None, *, least_bytes: int = 0) -> Allocation:
        """Note a new storage, of more bytes if it holds more; it is freed when nothing holds it any more."""
        made, free = self.allocate(max(storage.nbytes(), least_bytes), place)
        self._follow(storage, made, free)
        return made

    def move(self, old: Any, new: Any) -> None:
        """Have a new storage take the place of another one, which nothing will use any more."""
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
        block = self.allocator.allocate(requested_bytes)
        made = Allocation(len(self._all), requested_bytes, place, len(self.events))
        self._all.append(made)
        self.events.append((made.number, requested_bytes))
        if block is not None:
            made.size_bytes = block.size_bytes
            if self.allocator.allocated_bytes == self.allocator.peak_bytes and self._rose():
                self.at_peak_event = made.born
        return made, lambda: self._free(made, block)

    def _rose(self) -> bool:
        """Return whether the peak rose; it is that of the first time."""
        risen = self.allocator.peak_bytes > self._peak_bytes
        self._peak_bytes = self.allocator.peak_bytes
        return risen

    _peak_bytes = 0

    def _free(self, made: Allocation, block: Block | None) -> None:
        if made.died is None and not self._over:
            made.died = len(self.events)
            self.events.append((made.number, -1))
            self.allocator.free(block)

    def end(self) -> None:
        """Stop noting what is freed: the function has returned."""
        self._over = True

    def alive(self) -> list[Allocation]:
        """Return what is alive now, or was when the function had returned."""
        return [one for one in self._all if one.died is None]

    def alive_at_peak(self) -> list[Allocation]:
        """Return what was alive when the most was allocated."""
        at = self.at_peak_event
        return [
            one
            for one in self._all
            if one.size_bytes and one.born <= at and (one.died is None or one.died > at)
        ]

    def numbered(self, number: int) -> Allocation:
        """Return the allocation of a number."""
        return self._all[number]
