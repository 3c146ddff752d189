"""CuPy's adapter: its pools, and no context that the user has not made."""

import pytest
from fake_frameworks import Allocator, begin
from memory import MB

from ipygpulogger.sources import Unavailable
from ipygpulogger.sources.frameworks.cupy import CuPy
from ipygpulogger.sources.nvidia import driver


def test_cupy_only_where_it_holds_something(fakes):
    """A pool that never held anything says nothing, nor that of another device; no context is made to find out."""
    a, b = Allocator(), Allocator()
    cupy = fakes.cupy(a, b)
    framework = CuPy()
    fakes.contexts.clear()
    a.move(MB), b.move(MB)
    assert framework.counters() == []
    fakes.contexts.add(1)
    assert framework.counters() == []
    with cupy.cuda.Device(1):
        (counter,) = framework.counters()
        assert counter.device.index == 1
        assert counter.observe().readings[0] == (MB, None)
    with pytest.raises(Unavailable, match="another one"):
        counter.observe()
    a.move(-MB), setattr(a, "pool", 0)
    assert framework.counters() == [counter]
    assert cupy.cuda.runtime.getDevice() == 0


def test_cupy_device(fakes):
    """What CuPy tells of it, and its UUID and size from the driver, without which no device is known."""
    _framework, counter, _allocator, cupy = begin(fakes, "cupy")
    assert counter.device.uuid is None
    assert counter.device.name == "Fake GPU"
    assert counter.limit_bytes() is None
    cupy.pool.limit = 5
    assert counter.limit_bytes() == 5
    fakes.monkeypatch.setattr(
        driver, "device", lambda ordinal: driver.Device("cuda", ordinal, "", "GPU-from-the-driver", 9)
    )
    (counter,) = CuPy().counters()
    assert (counter.device.uuid, counter.device.total_bytes) == ("GPU-from-the-driver", 9)
    fakes.monkeypatch.setattr(driver, "contexts", lambda: None)
    assert CuPy().counters() == []


def test_cupy_settles(fakes):
    """Free blocks go, where there are any; elsewhere nothing is asked for."""
    framework, counter, allocator, cupy = begin(fakes, "cupy")
    allocator.move(900), allocator.move(-800)
    assert counter.observe().readings[1].current_bytes == 1000
    framework.settle()
    assert counter.observe().readings[1].current_bytes == 200
    asked = []
    cupy.pool.free_all_blocks = lambda: asked.append(1)
    framework.settle()
    assert not asked  # there was nothing to free


def test_cupy_holdings(fakes):
    """The block, which views share."""
    framework, _counter, _allocator, cupy = begin(fakes, "cupy")
    array, other = cupy.ndarray(1, 4096, 512), cupy.ndarray(1, 8192, 512)
    assert framework.holding(array)[:3] == (("cuda:1", 4096), 512, "cuda:1")
    assert framework.holding(other).key != framework.holding(array).key
    array.data = None
    assert framework.holding(array) is None
    assert framework.holding(5) is None
