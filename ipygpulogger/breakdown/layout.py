"""Where the blocks and segments of a device's allocator are: in a snapshot, and from one event to the next.

An event tells what was requested, not how large the block was. The allocator rounds requests up, and a large
request may be given a whole free block (`allocator.block_bytes`). How large that was follows from the blocks
around it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING, Any

from .allocator import SMALL_BYTES, always_fits, block_bytes, round_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..sources.torch_snapshot import Event, Segment
    from .allocator import Settings

Blocks = dict[int, dict[str, Any]]  # by address: "size", "state" and "frames", as a snapshot has them

_LIVE = "active_allocated"  # a block's state; "active_..." others wait for a stream, and count as freed
_WAITING = "active_awaiting_free"
_FREE = "inactive"


class Layout:
    """Follows which blocks of the large pool exist.

    Args:
        segments: Those that there are.
        addresses: Of the blocks in use.
        settings: The allocator's.
    """

    def __init__(self, segments: Iterable[Segment], addresses: Iterable[int], settings: Settings) -> None:
        self._ends = {segment["address"]: segment["address"] + segment["total_size"] for segment in segments}
        self._segments = sorted(self._ends)
        self._blocks = sorted(
            addresses
        )  # small ones among them do no harm: they are in segments of their own
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
        rounded_bytes = round_bytes(requested_bytes, self._settings)
        if rounded_bytes <= SMALL_BYTES:
            return rounded_bytes
        size_bytes = self.size_bytes(address, rounded_bytes)
        insort(self._blocks, address)
        return size_bytes

    def follow(self, event: Event) -> None:
        """Note what else the allocator did."""
        action = event["action"]
        if action == "free_completed":
            address, blocks = event["addr"], self._blocks
            i = bisect_left(blocks, address)
            if i < len(blocks) and blocks[i] == address:
                del blocks[i]
        elif action == "segment_alloc":
            address = event["addr"]
            if address not in self._ends:
                insort(self._segments, address)
            self._ends[address] = address + event["size"]
        elif action == "segment_free" and event["addr"] in self._ends:
            del self._ends[event["addr"]]
            self._segments.remove(event["addr"])


def blocks_of(segments: Iterable[Segment]) -> Blocks:
    """Return the blocks in use, by address, those that wait for a stream included."""
    blocks = {}
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            address = block.get("address", address)  # which older versions of torch leave out
            if block["state"] != _FREE:
                blocks[address] = block
            address += block["size"]
    return blocks


def live(blocks: Blocks) -> Blocks:
    """Return the blocks that are not freed."""
    return {address: block for address, block in blocks.items() if block["state"] == _LIVE}


def undone(
    events: Sequence[Event], segments: list[Segment], settings: Settings, *, stacks: bool
) -> tuple[Blocks, list[Segment]]:
    """Return the blocks and segments before the first event, found from those after the last.

    The size of a block that was freed meanwhile is what its request is rounded to, or up to the next block if
    it cannot have been split.

    Args:
        events: In their order.
        segments: After them.
        settings: The allocator's.
        stacks: Whether the event of a free has the stack of the allocation.
    """
    blocks = blocks_of(segments)
    sizes = {segment["address"]: segment["total_size"] for segment in segments}
    unknown: dict[int, int] = {}  # by address, what was requested
    for event in reversed(events):
        action = event["action"]
        address: Any = event.get("addr")  # which the failure of an allocation lacks
        if action == "alloc":
            blocks.pop(address, None)
            unknown.pop(address, None)
        elif action == "free_completed":
            blocks[address] = {"state": _WAITING}
            unknown[address] = event["size"]
        elif action == "free_requested":
            frames = event.get("frames", ()) if stacks else ()
            blocks[address] = {"state": _LIVE, "frames": frames}
            unknown[address] = event["size"]
        elif action == "segment_alloc":
            sizes.pop(address, None)
        elif action == "segment_free":
            sizes[address] = event["size"]
    stood = [{"address": address, "total_size": size_bytes} for address, size_bytes in sizes.items()]
    layout = Layout(stood, blocks, settings)
    for address, requested_bytes in unknown.items():
        blocks[address]["size"] = layout.size_bytes(address, round_bytes(requested_bytes, settings))
    return blocks, stood
