"""The model of torch's caching allocator, by hand: which block a request gets, and what is reserved for it."""

import pytest

from ipygpulogger.breakdown.allocator import Settings
from ipygpulogger.estimation.caching_allocator import CachingAllocator, FullError, fits_within

MB = 2**20


def counted(allocator):
    """What is allocated and reserved now, in bytes."""
    return allocator.allocated_bytes, allocator.reserved_bytes


def test_nothing_is_asked_for():
    """An empty tensor has no block, which can be freed all the same."""
    allocator = CachingAllocator()
    assert allocator.allocate(0) is None
    allocator.free(None)
    assert counted(allocator) == (0, 0)


def test_a_small_block():
    """512 bytes of a segment of 2 MB; the next one stands behind it."""
    allocator = CachingAllocator()
    first, second = allocator.allocate(1), allocator.allocate(513)
    assert (first.size_bytes, second.size_bytes) == (512, 1024)
    assert (first.address, second.address) == (0, 512)
    assert counted(allocator) == (1536, 2 * MB)
    assert (allocator.peak_bytes, allocator.peak_reserved_bytes) == (1536, 2 * MB)
    allocator.free(first)
    assert allocator.allocate(512).address == 0


def test_large_blocks():
    """From 1 MB on they are in segments of 20 MB, from 10 MB on in segments of their own."""
    allocator = CachingAllocator()
    allocator.allocate(MB)
    assert counted(allocator) == (MB, 2 * MB)
    allocator.allocate(MB + 1)
    assert allocator.reserved_bytes == 22 * MB
    allocator.allocate(10 * MB)
    assert allocator.reserved_bytes == 22 * MB
    allocator.allocate(11 * MB)
    assert allocator.reserved_bytes == 34 * MB


def test_the_smallest_block_that_is_large_enough():
    """Of two as large, that with the lowest address."""
    allocator = CachingAllocator()
    blocks = [allocator.allocate(size) for size in (3072, 512, 1024, 512, 1024, 512)]
    for number in (4, 2, 0):
        allocator.free(blocks[number])
    again = allocator.allocate(1024)
    assert again.address == blocks[2].address
    assert again.size_bytes == 1024
    assert allocator.allocate(2048).address == blocks[0].address
    assert allocator.allocate(1024).address == blocks[0].address + 2048
    assert allocator.reserved_bytes == 2 * MB


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)])
def test_neighbours_merge(order):
    """In whatever order they are freed, the whole segment is one block again; the peak stays."""
    allocator = CachingAllocator()
    blocks = [allocator.allocate(512 << 10) for _ in range(3)]
    for number in order:
        allocator.free(blocks[number])
    assert counted(allocator) == (0, 2 * MB)
    assert allocator.peak_bytes == 3 << 19
    last = [allocator.allocate(MB), allocator.allocate(MB)]
    assert [one.address - last[0].address for one in last] == [0, MB]
    assert allocator.reserved_bytes == 2 * MB


def test_the_pools_are_apart():
    """A small request takes nothing of a large segment, and the segments do not merge."""
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(2 * MB))
    assert allocator.reserved_bytes == 20 * MB
    allocator.free(allocator.allocate(512))
    assert allocator.reserved_bytes == 22 * MB
    small = [allocator.allocate(MB) for _ in range(4)]
    assert allocator.reserved_bytes == 24 * MB
    for one in small:
        allocator.free(one)
    allocator.allocate(2 * MB)
    assert allocator.reserved_bytes == 24 * MB


def test_the_cache_is_returned():
    """Only segments without a block in use."""
    allocator = CachingAllocator()
    kept, freed = allocator.allocate(512), allocator.allocate(30 * MB)
    allocator.free(allocator.allocate(2 * MB))
    allocator.free(freed)
    assert allocator.reserved_bytes == 52 * MB
    allocator.empty_cache()
    assert counted(allocator) == (512, 2 * MB)
    allocator.free(kept)
    allocator.empty_cache()
    assert counted(allocator) == (0, 0)
    assert allocator.peak_reserved_bytes == 52 * MB
    allocator.allocate(512)
    assert counted(allocator) == (512, 2 * MB)


def test_a_limit():
    """The cache is returned first, then the request fails."""
    allocator = CachingAllocator(limit_bytes=50 * MB)
    allocator.free(allocator.allocate(20 * MB))
    allocator.allocate(30 * MB)
    assert allocator.reserved_bytes == 50 * MB
    allocator = CachingAllocator(limit_bytes=30 * MB)
    allocator.free(allocator.allocate(20 * MB))
    allocator.allocate(30 * MB)
    assert counted(allocator) == (30 * MB, 30 * MB)
    with pytest.raises(FullError):
        allocator.allocate(512)


def test_blocks_that_are_not_split():
    """With `max_split_size_mb` a larger block serves a request that is nearly as large, and no smaller one."""
    settings = Settings(max_split_bytes=40 * MB)
    allocator = CachingAllocator(settings)
    allocator.free(allocator.allocate(64 * MB))
    allocator.allocate(39 * MB)
    assert allocator.reserved_bytes == 104 * MB
    allocator.allocate(44 * MB)
    assert allocator.reserved_bytes == 148 * MB
    allocator.allocate(40 * MB)
    assert allocator.reserved_bytes == 188 * MB
    assert allocator.allocate(45 * MB).size_bytes == 64 * MB
    allocator = CachingAllocator(settings)
    allocator.free(allocator.allocate(40 * MB))
    allocator.allocate(38 * MB)
    assert allocator.reserved_bytes == 78 * MB
    assert allocator.allocate(40 * MB).size_bytes == 40 * MB
    assert allocator.reserved_bytes == 78 * MB


@pytest.mark.parametrize(
    ("size", "reserved"),
    [(512, 2 * MB), (MB, 2 * MB), (MB + 512, 20 * MB), (20 * MB, 20 * MB), (21 * MB, 40 * MB)],
)
def test_expandable_segments(size, reserved):
    """They have whole pages: of 2 MB for small blocks, of 20 MB for large ones."""
    allocator = CachingAllocator(Settings(expandable=True))
    allocator.allocate(size)
    assert allocator.reserved_bytes == reserved


def test_whether_a_run_fits():
    """The allocations are repeated in their order."""
    events = [(0, 12 * MB), (1, 0), (1, -1), (0, -1), (2, 14 * MB), (3, 512)]
    assert fits_within(events, 16 * MB)
    assert not fits_within(events, 16 * MB - 1)
    assert not fits_within(events, 13 * MB)
    assert fits_within([], 1)
    assert fits_within([(0, 40 * MB), (0, -1), (1, 39 * MB)], 40 * MB)
    wasted = [(0, 40 * MB), (0, -1), (1, 30 * MB), (2, 12 * MB)]  # of the first block 10 MB are left
    assert fits_within(wasted, 52 * MB)
    assert not fits_within(wasted, 51 * MB)
    assert fits_within(wasted, 42 * MB, Settings(max_split_bytes=40 * MB))
