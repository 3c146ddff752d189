"""How large a block torch's CUDA caching allocator makes for a request.

The rules are those of `c10/cuda/CUDACachingAllocator.cpp` (`round_size`, `should_split`,
`get_allocation_size`), unchanged from torch 2.0 to 2.13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..records.units import MB

if TYPE_CHECKING:
    from collections.abc import Mapping

BLOCK_BYTES = 512  # every size is a multiple of this
SMALL_BYTES = MB  # requests up to here are served from the small pool
SMALL_SEGMENT_BYTES = 2 * MB
LARGE_SEGMENT_BYTES = 20 * MB  # what is reserved for a request up to `MIN_OWN_SEGMENT_BYTES`
MIN_OWN_SEGMENT_BYTES = 10 * MB  # from here on a request has a segment of its own size
SEGMENT_GRAIN_BYTES = 2 * MB


class Settings(NamedTuple):
    """What `PYTORCH_CUDA_ALLOC_CONF` says about the size of blocks.

    Attributes:
        max_split_bytes: Larger requests take a whole free block; None without a limit.
        expandable: Segments grow where they are, so that nothing of a free block is wasted.
        divisions: Of each power of two into how many sizes a request is rounded up, by the request's
            size: up to 2 MB, 4 MB, and so on; 0 or 1 means that it is not.
    """

    max_split_bytes: int | None = None
    expandable: bool = False
    divisions: tuple[int, ...] = ()

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Settings:
        """Return those that torch's snapshot has under "allocator_settings"; older ones lack some."""
        max_split_bytes = int(settings.get("max_split_size") or 0)
        divisions: Mapping[str, int] = settings.get("roundup_power2_divisions") or {}
        ordered = tuple(int(divisions[size_mb]) for size_mb in sorted(divisions, key=int))
        return cls(
            max_split_bytes if max_split_bytes > 0 else None,
            bool(settings.get("expandable_segments", False)),
            ordered if any(count > 1 for count in ordered) else (),
        )


def round_bytes(requested_bytes: int, settings: Settings) -> int:
    """Return the size of the block for a request, where the allocator can split a free one."""
    if settings.divisions:
        interval = max(requested_bytes.bit_length() - MB.bit_length(), 0)
        divisions = settings.divisions[min(interval, len(settings.divisions) - 1)]
        if divisions > 1 and requested_bytes > BLOCK_BYTES * divisions:
            grain_bytes = 1 << (requested_bytes.bit_length() - divisions.bit_length())
            return -(-requested_bytes // grain_bytes) * grain_bytes
    return max(-(-requested_bytes // BLOCK_BYTES) * BLOCK_BYTES, BLOCK_BYTES)


def always_fits(rounded_bytes: int, settings: Settings) -> bool:
    """Return whether a block has its rounded size whatever free block it is taken from."""
    # There the rest of a free block is split off from 512 bytes on, of which all sizes are multiples.
    return settings.expandable or rounded_bytes <= SMALL_BYTES


def block_bytes(rounded_bytes: int, free_bytes: int, settings: Settings) -> int:
    """Return the size of the block that a request takes from a free one, which is split if it is worth it.

    Args:
        rounded_bytes: The request, rounded.
        free_bytes: The size of the free block.
        settings: The allocator's.
    """
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
