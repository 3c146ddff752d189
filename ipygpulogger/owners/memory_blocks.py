"""The memory behind objects: of arrays by the readers of all frameworks, and blocks of addresses."""

from __future__ import annotations

import contextlib
import weakref
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from ..engine.machine import machine
from .address_space import of_files, resident_bytes
from .host_arrays import CHECKED_FROM, DEVICE, HOST
from .referents import is_safe_to_examine

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from ..sources import Holding

    ArrayReaders = Sequence[Callable[[Any], Holding | None]]


def array_readers() -> ArrayReaders:
    """Return every reader of this process: `Framework.holding` of each framework, and the host's."""
    return [HOST.holding, *(framework.holding for framework in machine().frameworks)]


def holding_of(value: Any, readers: ArrayReaders) -> Holding | None:
    """Return the memory behind a value; None if it is not an array or owns no memory."""
    holding = read(value, readers_of(type(value), readers))
    return holding if holding is not None and holding.size_bytes else None


def read(value: Any, readers: ArrayReaders) -> Holding | None:
    """Return the memory behind a value, from the first reader that knows it."""
    for reader in readers:
        try:
            found = reader(value)
        except Exception:  # noqa: S112 - a broken array, of which nothing can be said
            continue
        if found is not None:
            return found
    return None


def readers_of(kind: type, readers: ArrayReaders) -> ArrayReaders:
    """Return the readers that may know values of a class; a framework decides that by the class alone."""
    found = []
    for reader in readers:
        owner = getattr(reader, "__self__", None)
        if owner is HOST:
            of_kind = HOST.reader_of(kind)
            found += [] if of_kind is None else [of_kind]
            continue
        may_hold = getattr(owner, "may_hold", None)
        with contextlib.suppress(Exception):  # a framework in pieces
            if is_safe_to_examine(kind) if may_hold is None else may_hold(kind):
                found.append(reader)
    return found


LARGE = 1 << 20  # bytes: for smaller blocks neither lifetime nor sharing names are kept


class MemoryBlocks:
    """The blocks of memory that a walk found, each with a number."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._mapped: list[int] = []
        self._borrowed: set[int] = set()
        self.keys: list[Hashable] = []  # by number, as the devices and the sizes in bytes
        self.devices: list[str] = []
        self.sizes: list[int] = []
        # By key, of large blocks where that is known: a weak reference that dies with the block.
        self.alive: dict[Hashable, weakref.ref[Any]] = {}

    def number(self, holding: Holding) -> int:
        """Return a block's number, a new one where it was not found before."""
        key, size_bytes, device = holding[:3]
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.keys)
            self.keys.append(key)
            self.devices.append(device)
            self.sizes.append(size_bytes)
            if holding.owner is not None and size_bytes >= LARGE:
                self.alive[key] = weakref.ref(holding.owner)
            if holding.mapped:
                self._mapped.append(number)
            if holding.borrowed:
                self._borrowed.add(number)
        elif number in self._borrowed and not holding.borrowed:  # now its size is known
            self._borrowed.remove(number)
            self.sizes[number] = size_bytes
        elif size_bytes > self.sizes[number] and (number in self._borrowed or not holding.borrowed):
            self.sizes[number] = size_bytes  # a smaller view at the same address was found first
        return number

    def same_memory(self) -> dict[int, int]:
        """Return, by number, which block each block lies within, such as a numpy array's in a tensor's.

        The block that others overlap with grows to hold them. A borrowed block belongs to the block that it
        begins in, which does not grow. Where it begins in none, it counts up to where the next one begins,
        and borrowed blocks that overlap are one. The key of a block with an address is (device, address).
        """
        found: dict[int, int] = {}
        for device in set(self.devices):
            placed = [
                (key[1], number)
                for number, key in enumerate(self.keys)
                if type(key) is tuple and key[0] == device and type(key[1]) is int
            ]
            placed.sort()
            own = self._joined([one for one in placed if one[1] not in self._borrowed], found)
            starts = [start for start, _, _ in own]
            alone = []
            for address, number in placed:
                if number in self._borrowed:
                    at = bisect_right(starts, address) - 1
                    if at >= 0 and address < own[at][1]:
                        found[number] = own[at][2]
                    else:
                        alone.append((address, number))
            lent = {}
            for start, end, number in self._joined(alone, found):
                following = bisect_right(starts, start)
                lent[number] = start, min(end, starts[following]) if following < len(starts) else end
                self.sizes[number] = lent[number][1] - start
            if device == DEVICE:
                checked = [number for number in lent if self.sizes[number] >= CHECKED_FROM]
                sizes = resident_bytes([lent[number] for number in checked])
                for number, size_bytes in zip(checked, sizes, strict=True):
                    self.sizes[number] = size_bytes
        return found

    def _joined(self, placed: list[tuple[int, int]], found: dict[int, int]) -> list[tuple[int, int, int]]:
        """Return (start, end, number) of blocks by address, with those that overlap joined to the first."""
        joined: list[tuple[int, int, int]] = []
        for address, number in placed:
            end = address + self.sizes[number]
            if joined and address < joined[-1][1]:
                start, last_end, first = joined[-1]
                found[number] = first
                joined[-1] = start, max(end, last_end), first
                self.sizes[first] = joined[-1][1] - start
            else:
                joined.append((address, end, number))
        return joined

    def without_memory(self) -> list[int]:
        """Return the blocks that only show a file, or of which nothing is resident."""
        large = [number for number in self._mapped if self.sizes[number] >= CHECKED_FROM]
        checked = {self.keys[number]: number for number in large if number not in self._borrowed}
        found = of_files(key[1] for key in checked if type(key) is tuple and key[0] == DEVICE)
        nothing = [number for number in self._borrowed if not self.sizes[number]]
        return nothing + [checked[DEVICE, address] for address in found]
