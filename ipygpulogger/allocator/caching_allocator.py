"""torch's CUDA caching allocator as a model: what it would have allocated and reserved.

Blocks are found, split and merged as `c10/cuda/CUDACachingAllocator.cpp` does it for one stream. Rules that
the size of a block follows are those of `allocator/rules.py`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

from .rules import SMALL_BYTES, Settings, block_bytes, round_bytes, segment_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable


_SETTINGS = Settings()  # without `PYTORCH_CUDA_ALLOC_CONF`


class FullError(Exception):
    """A request that does not fit into the memory of the device."""


class Block:
    """A piece of a segment, one for small blocks or not; allocated or free."""

    __slots__ = ("address", "after", "before", "is_free", "is_small", "size_bytes")

    def __init__(self, address: int, size_bytes: int, *, is_small: bool) -> None:
        self.address, self.size_bytes, self.is_small = address, size_bytes, is_small
        # The block that ends where this one begins; None at the start of a segment.
        self.before: Block | None = None
        self.after: Block | None = None  # the block that begins where this one ends
        self.is_free = True  # whether it can be allocated


class CachingAllocator:
    """The allocator of one device, without memory.

    Attributes:
        allocated_bytes: In blocks that are in use, rounded as the allocator does.
        reserved_bytes: In segments, cached memory included.
        peak_bytes: The highest `allocated_bytes` so far.
        peak_reserved_bytes: The highest `reserved_bytes` so far.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.allocated_bytes = self.reserved_bytes = self.peak_bytes = self.peak_reserved_bytes = 0
        self._limit_bytes = limit_bytes
        # Of the small pool and the large one: (size, address) of what is free, in this order.
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        self._blocks: dict[int, Block] = {}  # by address, what is free
        self._next_address = 0

    def allocate(self, requested_bytes: int) -> Block | None:
        """Return a block for a request; None for an empty one, which takes no memory."""
        if requested_bytes <= 0:
            return None
        rounded_bytes = round_bytes(requested_bytes, _SETTINGS)
        small = rounded_bytes <= SMALL_BYTES
        block = self._found(rounded_bytes, small) or self._reserved(rounded_bytes, small)
        size_bytes = block_bytes(rounded_bytes, block.size_bytes, _SETTINGS)
        if size_bytes < block.size_bytes:
            self._split(block, size_bytes)
        block.is_free = False
        self.allocated_bytes += block.size_bytes
        self.peak_bytes = max(self.peak_bytes, self.allocated_bytes)
        return block

    def free(self, block: Block | None) -> None:
        """Take a block back, and merge it with its free neighbours."""
        if block is None:
            return
        self.allocated_bytes -= block.size_bytes
        block.is_free = True
        for other in (block.before, block.after):
            if other is not None and other.is_free:
                self._take_out(other)
                first, second = (other, block) if other is block.before else (block, other)
                first.size_bytes += second.size_bytes
                first.after = second.after
                if second.after is not None:
                    second.after.before = first
                block = first
        self._put_in(block)

    def empty_cache(self) -> None:
        """Return every segment to the device that has no block in use."""
        for small in (True, False):
            for _, address in list(self._free[small]):
                block = self._blocks[address]
                if block.before is None and block.after is None:
                    self._take_out(block)
                    self.reserved_bytes -= block.size_bytes

    def _found(self, rounded_bytes: int, small: bool) -> Block | None:
        """Return the smallest free block that is large enough, the one with the lowest address first."""
        free = self._free[small]
        at = bisect_left(free, (rounded_bytes, 0))
        if at == len(free):
            return None
        block = self._blocks[free[at][1]]
        self._take_out(block)
        return block

    def _reserved(self, rounded_bytes: int, small: bool) -> Block:
        """Return a new segment."""
        size_bytes = segment_bytes(rounded_bytes)
        limit_bytes = self._limit_bytes
        if limit_bytes is not None and self.reserved_bytes + size_bytes > limit_bytes:
            self.empty_cache()
            if self.reserved_bytes + size_bytes > limit_bytes:
                raise FullError
        self.reserved_bytes += size_bytes
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        block = Block(self._next_address, size_bytes, is_small=small)
        self._next_address += size_bytes
        return block

    def _split(self, block: Block, size_bytes: int) -> None:
        rest = Block(block.address + size_bytes, block.size_bytes - size_bytes, is_small=block.is_small)
        rest.before, rest.after = block, block.after
        if block.after is not None:
            block.after.before = rest
        block.after, block.size_bytes = rest, size_bytes
        self._put_in(rest)

    def _put_in(self, block: Block) -> None:
        insort(self._free[block.is_small], (block.size_bytes, block.address))
        self._blocks[block.address] = block

    def _take_out(self, block: Block) -> None:
        free = self._free[block.is_small]
        del free[bisect_left(free, (block.size_bytes, block.address))]
        del self._blocks[block.address]


def fits_within(events: Iterable[tuple[int, int]], limit_bytes: int) -> bool:
    """Return whether a device of this size could serve all allocations of a run."""
    allocator = CachingAllocator(limit_bytes)
    blocks: dict[int, Block | None] = {}
    try:
        for number, size_bytes in events:
            if size_bytes < 0:
                allocator.free(blocks.pop(number))
            else:
                blocks[number] = allocator.allocate(size_bytes)
    except FullError:
        return False
    return True
