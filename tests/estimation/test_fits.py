"""Whether a function fits, against what the real allocator does with so little memory."""

import gc

import pytest
import torch
from estimation import models

from ipygpulogger import estimate

pytestmark = pytest.mark.torch
MB = 2**20


@pytest.fixture(autouse=True)
def _without_cudnn():
    before = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = False  # the simulated device has none
    yield
    torch.backends.cudnn.enabled = before


@pytest.fixture
def limited(cuda):
    """Limits what torch's allocator may reserve."""
    total_bytes = torch.cuda.mem_get_info(0)[1]

    def limit(size_bytes):
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction((size_bytes + 0.5) / total_bytes, 0)

    yield limit
    torch.cuda.set_per_process_memory_fraction(1.0, 0)


def runs(fn, args):
    """Whether a function runs for real."""
    try:
        fn(*args)
    except torch.OutOfMemoryError:
        return False
    return True


@pytest.mark.parametrize("builder", [models.conv, models.accumulation])
def test_fits(limited, builder):
    """A capacity between the peak and what would be reserved: fits is what the allocator makes of it.

    The same is said of the device where the model is there already: with that limit and no capacity.
    """
    fn, args = builder("cpu")
    whole = estimate(fn, *args, capacity="15GB")
    peak_bytes, reserved_bytes = whole.peak_bytes, whole.reserved_bytes
    seen = set()
    for capacity in (peak_bytes - 1, peak_bytes, (peak_bytes + reserved_bytes) // 2, reserved_bytes):
        made = estimate(fn, *args, capacity=capacity)
        limited(capacity)
        real, given = builder("cuda")
        there = estimate(real, *given)
        assert there.held_bytes > 0
        assert there.peak_bytes == peak_bytes
        fits = runs(real, given)
        del real, given
        assert (made.fits, there.fits) == (fits, fits), (capacity, there)
        assert made.short_bytes == (0 if fits else max(1, made.short_bytes))
        seen.add(fits)
    assert seen == {True, False}


def test_a_full_device(cuda):
    """What others hold is not available, and what the function itself holds there does not count twice."""
    fn, args = models.inference("cuda")
    total = torch.cuda.mem_get_info(0)[1]
    rest = torch.cuda.mem_get_info(0)[0] - 256 * MB
    ballast = torch.empty(rest, dtype=torch.uint8, device="cuda")
    made = estimate(fn, *args)
    assert made.fits and runs(fn, args)
    assert made.available_bytes < 400 * MB < made.capacity_bytes
    more = torch.empty(180 * MB, dtype=torch.uint8, device="cuda")
    made = estimate(fn, *args, batch_sizes=[64, 16384, 32768])
    assert made.fits is runs(fn, args) is False
    assert [batch.fits for batch in made.batches] == [True, False, False]
    assert made.largest_batch == 64
    assert total and ballast.numel() and more.numel()
