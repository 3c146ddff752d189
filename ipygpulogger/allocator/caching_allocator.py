"""torch's CUDA caching allocator as a model, for one stream: what it would have allocated and reserved."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .rules import SMALL_BYTES, Settings, block_bytes, round_bytes, segment_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

_SETTINGS = Settings()  # without `PYTORCH_CUDA_ALLOC_CONF`


class FullError(Exception):
    """A request that does not fit into the memory of the device."""


@dataclass(slots=True, eq=False)
class Block:
    """A piece of a segment."""

    address: int
    size_bytes: int
    is_small: bool  # whether the segment is one for small blocks
    # The blocks that end where this one begins, and begin where it ends; None at the ends of a segment.
    before: Block | None = None
    after: Block | None = None
    is_free: bool = True  # whether it can be allocated


class CachingAllocator:
    """The allocator of one device, without memory."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.allocated_bytes = self.peak_bytes = 0  # in blocks that are in use; the highest so far
        self.reserved_bytes = self.peak_reserved_bytes = 0  # in segments, cached memory included
        self._limit_bytes = limit_bytes
        # Of the small pool and the large one: size, address and block of what is free, in this order.
        self._free: dict[bool, list[tuple[int, int, Block]]] = {True: [], False: []}
        self._next_address = 0

    def allocate(self, requested_bytes: int) -> Block | None:
        """Return a block for a request; None for an empty one, which takes no memory."""
        if requested_bytes <= 0:
            return None
        rounded_bytes = round_bytes(requested_bytes)
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
            for _, _, block in list(self._free[small]):
                if block.before is None and block.after is None:
                    self._take_out(block)
                    self.reserved_bytes -= block.size_bytes

    def _found(self, rounded_bytes: int, small: bool) -> Block | None:
        """Return the smallest free block that is large enough, the one with the lowest address first."""
        free = self._free[small]
        at = bisect_left(free, (rounded_bytes,))
        return free.pop(at)[2] if at < len(free) else None

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
        block = Block(self._next_address, size_bytes, small)
        self._next_address += size_bytes
        return block

    def _split(self, block: Block, size_bytes: int) -> None:
        address, rest_bytes = block.address + size_bytes, block.size_bytes - size_bytes
        rest = Block(address, rest_bytes, block.is_small, before=block, after=block.after)
        if block.after is not None:
            block.after.before = rest
        block.after, block.size_bytes = rest, size_bytes
        self._put_in(rest)

    def _put_in(self, block: Block) -> None:
        insort(self._free[block.is_small], (block.size_bytes, block.address, block))

    def _take_out(self, block: Block) -> None:
        free = self._free[block.is_small]
        del free[bisect_left(free, (block.size_bytes, block.address))]


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
