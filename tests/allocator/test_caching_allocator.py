"""The model of torch's caching allocator: beside torch's own on the simulated device."""

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ipygpulogger.allocator.caching_allocator import CachingAllocator, FullError, fits_within

MB = 2**20
SIZES = [0, 1, 512, 513, 300_000, MB - 1, MB, MB + 1, 2 * MB, 3 * MB + 5, 10 * MB - 1]
SIZES += [10 * MB, 19 * MB, 21 * MB]
STEPS = st.one_of(
    st.tuples(st.just("allocate"), st.sampled_from(SIZES)),
    st.tuples(st.just("free"), st.integers(0, 99)),
    st.tuples(st.just("empty"), st.just(0)),
)


@pytest.mark.torch
@settings(suppress_health_check=list(HealthCheck))
@given(st.lists(STEPS, max_size=40))
def test_it_does_as_torchs_own(cuda, steps):
    """After each step as much is allocated and reserved, and so are the peaks."""
    import torch

    device = "cuda:1"  # on which nothing is
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    assert torch.cuda.memory_reserved(device) == 0
    allocator, held = CachingAllocator(), []
    for what, number in steps:
        if what == "allocate":
            held.append((allocator.allocate(number), torch.empty(number, dtype=torch.uint8, device=device)))
        elif what == "free" and held:
            block, tensor = held.pop(number % len(held))
            allocator.free(block)
            del tensor
        elif what == "empty":
            allocator.empty_cache()
            torch.cuda.empty_cache()
        assert allocator.allocated_bytes == torch.cuda.memory_allocated(device)
        assert allocator.reserved_bytes == torch.cuda.memory_reserved(device)
    assert allocator.peak_bytes == torch.cuda.max_memory_allocated(device)
    assert allocator.peak_reserved_bytes == torch.cuda.max_memory_reserved(device)


@given(st.lists(STEPS, max_size=60))
def test_what_was_taken_comes_back(steps):
    """Blocks in use never overlap; when all were freed, they have merged into segments that can be returned."""
    allocator, held = CachingAllocator(), []
    for what, number in steps:
        if what == "allocate" and number:
            held.append(allocator.allocate(number))
            assert held[-1].size_bytes >= number
        elif what == "free" and held:
            allocator.free(held.pop(number % len(held)))
        elif what == "empty":
            allocator.empty_cache()
        ranges = sorted((block.address, block.address + block.size_bytes) for block in held)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(ranges))
        used_bytes = sum(block.size_bytes for block in held)
        assert allocator.allocated_bytes == used_bytes <= allocator.reserved_bytes
    for block in held:
        allocator.free(block)
    allocator.empty_cache()
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (0, 0)


def test_a_limit():
    """The cache is returned first, then the request fails."""
    allocator = CachingAllocator(limit_bytes=50 * MB)
    allocator.free(allocator.allocate(20 * MB))
    allocator.allocate(30 * MB)
    assert allocator.reserved_bytes == 50 * MB
    allocator = CachingAllocator(limit_bytes=30 * MB)
    allocator.free(allocator.allocate(20 * MB))
    allocator.allocate(30 * MB)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (30 * MB, 30 * MB)
    with pytest.raises(FullError):
        allocator.allocate(512)


def test_whether_a_run_fits():
    """The allocations are repeated in their order."""
    events = [(0, 12 * MB), (1, 0), (1, -1), (0, -1), (2, 14 * MB), (3, 512)]
    assert fits_within(events, 16 * MB)
    assert not fits_within(events, 16 * MB - 1)
    assert fits_within([], 1)
    assert fits_within([(0, 40 * MB), (0, -1), (1, 39 * MB)], 40 * MB)
    wasted = [(0, 40 * MB), (0, -1), (1, 30 * MB), (2, 12 * MB)]  # of the first block 10 MB are left
    assert fits_within(wasted, 52 * MB)
    assert not fits_within(wasted, 51 * MB)
