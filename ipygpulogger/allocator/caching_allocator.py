"""torch's CUDA caching allocator: its rules, where blocks and segments are, and a model of it.

The rules are those of `c10/cuda/CUDACachingAllocator.cpp`, unchanged from torch 2.0 to 2.13. An event tells
what was requested; how large the block was follows from these rules and from the blocks around it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..records.units import MB
from ..sources.torch.snapshot import Event, Segment

BLOCK_BYTES = 512  # every size is a multiple of this
SMALL_BYTES = MB  # requests up to here are served from the small pool
SMALL_SEGMENT_BYTES = 2 * MB
LARGE_SEGMENT_BYTES = 20 * MB  # what is reserved for a request up to `MIN_OWN_SEGMENT_BYTES`
MIN_OWN_SEGMENT_BYTES = 10 * MB  # from here on a request has a segment of its own size
SEGMENT_GRAIN_BYTES = 2 * MB
_LIVE = "active_allocated"  # a block's state; "active_..." others wait for a stream, and count as freed
_WAITING, _FREE = "active_awaiting_free", "inactive"

Blocks = dict[int, dict[str, Any]]  # by address: "size", "state" and "frames", as a snapshot has them


class Settings(NamedTuple):
    """What `PYTORCH_CUDA_ALLOC_CONF` says about the size of blocks."""

    max_split_bytes: int | None = None  # larger requests take a whole free block; None without a limit
    expandable: bool = False  # segments grow where they are, so that nothing of a free block is wasted

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Settings:
        """Return those that torch's snapshot has under "allocator_settings"; older ones lack some."""
        max_split_bytes = max(int(settings.get("max_split_size") or 0), 0)
        return cls(max_split_bytes or None, bool(settings.get("expandable_segments")))


def round_bytes(requested_bytes: int) -> int:
    """Return a request's size in whole blocks; with `roundup_power2_divisions` a replay does not add up."""
    return max(-(-requested_bytes // BLOCK_BYTES) * BLOCK_BYTES, BLOCK_BYTES)


def always_fits(rounded_bytes: int, settings: Settings) -> bool:
    """Return whether a block has its rounded size whatever free block it is taken from."""
    # There the rest of a free block is split off from 512 bytes on, of which all sizes are multiples.
    return settings.expandable or rounded_bytes <= SMALL_BYTES


def block_bytes(rounded_bytes: int, free_bytes: int, settings: Settings) -> int:
    """Return the size of the block that a request takes from a free one, which is split if it is worth it."""
    rest_bytes = free_bytes - rounded_bytes
    if always_fits(rounded_bytes, settings):
        splits = rest_bytes >= BLOCK_BYTES
    else:
        below = settings.max_split_bytes is None or rounded_bytes < settings.max_split_bytes
        splits = below and rest_bytes > SMALL_BYTES
    return rounded_bytes if splits else max(rounded_bytes, free_bytes)


def segment_bytes(rounded_bytes: int) -> int:
    """Return what the allocator reserves of the device for a request that no free block can serve."""
    if rounded_bytes <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if rounded_bytes < MIN_OWN_SEGMENT_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-rounded_bytes // SEGMENT_GRAIN_BYTES) * SEGMENT_GRAIN_BYTES


class Layout:
    """Follows which blocks of the large pool exist."""

    def __init__(self, segments: Iterable[Segment], addresses: Iterable[int], settings: Settings) -> None:
        self._ends = {segment["address"]: segment["address"] + segment["total_size"] for segment in segments}
        self._segments = sorted(self._ends)
        self._blocks = sorted(addresses)  # small ones do no harm: they are in segments of their own
        self._settings = settings

    def size_bytes(self, address: int, rounded_bytes: int) -> int:
        """Return the size of the block that a request, rounded, is given at an address."""
        segment = bisect_right(self._segments, address) - 1
        if segment < 0 or always_fits(rounded_bytes, self._settings):
            return rounded_bytes
        end = self._ends[self._segments[segment]]
        following = bisect_right(self._blocks, address)
        if following < len(self._blocks):
            end = min(end, self._blocks[following])
        return block_bytes(rounded_bytes, end - address, self._settings)

    def occupy(self, address: int, requested_bytes: int) -> int:
        """Note that a request is given a block at an address; return the block's size."""
        rounded_bytes = round_bytes(requested_bytes)
        if rounded_bytes <= SMALL_BYTES:
            return rounded_bytes
        size_bytes = self.size_bytes(address, rounded_bytes)
        insort(self._blocks, address)
        return size_bytes

    def follow(self, event: Event) -> None:
        """Note what else the allocator did."""
        action, blocks = event["action"], self._blocks
        address: Any = event.get("addr")  # which the failure of an allocation lacks
        if action == "free_completed":
            i = bisect_left(blocks, address)
            if i < len(blocks) and blocks[i] == address:
                del blocks[i]
        elif action == "segment_alloc":
            if address not in self._ends:
                insort(self._segments, address)
            self._ends[address] = address + event["size"]
        elif action == "segment_free" and address in self._ends:
            del self._ends[address]
            self._segments.remove(address)


def blocks_of(segments: Iterable[Segment]) -> Blocks:
    """Return the blocks in use, by address, those that wait for a stream included."""
    blocks = [block for segment in segments for block in segment["blocks"]]
    return {block["address"]: block for block in blocks if block["state"] != _FREE}


def live(blocks: Blocks) -> Blocks:
    """Return the blocks that are not freed."""
    return {address: block for address, block in blocks.items() if block["state"] == _LIVE}


def undone(
    events: Sequence[Event], segments: list[Segment], settings: Settings
) -> tuple[Blocks, list[Segment]]:
    """Return the blocks and segments before the first event, found from those after the last."""
    blocks = blocks_of(segments)
    sizes = {segment["address"]: segment["total_size"] for segment in segments}
    unknown: dict[int, int] = {}  # by address, what was requested
    for event in reversed(events):
        action = event["action"]
        address: Any = event.get("addr")  # which the failure of an allocation lacks
        if action == "alloc":
            blocks.pop(address, None)
            unknown.pop(address, None)
        elif action in ("free_completed", "free_requested"):
            blocks[address] = {"state": _WAITING if action == "free_completed" else _LIVE}
            unknown[address] = event["size"]
        elif action == "segment_alloc":
            sizes.pop(address, None)
        elif action == "segment_free":
            sizes[address] = event["size"]
    stood = [{"address": address, "total_size": size_bytes} for address, size_bytes in sizes.items()]
    layout = Layout(stood, blocks, settings)
    for address, requested_bytes in unknown.items():
        blocks[address]["size"] = layout.size_bytes(address, round_bytes(requested_bytes))
    return blocks, stood


# -- the model, for one stream: what it would have allocated and reserved

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
        self.allocated_bytes: int = 0  # in blocks that are in use
        self.reserved_bytes: int = 0  # in segments, cached memory included
        self.peak_bytes: int = 0  # the highest of each so far
        self.peak_reserved_bytes: int = 0
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
        free = self._free[small]
        # The smallest that is large enough, the lowest address first.
        at = bisect_left(free, (rounded_bytes,))
        block = free.pop(at)[2] if at < len(free) else self._reserved(rounded_bytes, small)
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

    def _reserved(self, rounded_bytes: int, small: bool) -> Block:
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
