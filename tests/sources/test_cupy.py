"""CuPy's adapter: its pools, and no context that the user has not made."""

# ruff: noqa: ARG005 - signatures as they are

import threading

from fake_frameworks import Allocator, begin
from memory import MB

from ipygpulogger.sources import Unavailable
from ipygpulogger.sources.frameworks.cupy import CuPy
from ipygpulogger.sources.nvidia import driver


def test_cupy_only_where_it_holds_something(fakes):
    """A pool that never held anything says nothing, and no context is made to find out."""
    a, b = Allocator(), Allocator()
    cupy = fakes.cupy(a, b)
    framework = CuPy()
    fakes.contexts.clear()
    assert framework.counters() == []
    fakes.contexts.add(0)
    assert framework.counters() == []
    with cupy.cuda.Device(1):
        b.move(MB)
    assert [c.device.index for c in framework.counters()] == [1]
    assert cupy.cuda.runtime.getDevice() == 0
    a.move(MB)
    assert [c.observe().readings[0] for c in framework.counters()] == [(MB, None, 0)] * 2


def test_cupy_device(fakes):
    """What CuPy tells of it, and its UUID and size from the driver, without which no device is known."""
    _framework, counter, _allocator, cupy = begin(fakes, "cupy")
    assert counter.device.uuid is None
    assert counter.device.name == "Fake GPU"
    assert counter.limit_bytes() is None
    cupy.pool.limit = 5
    assert counter.limit_bytes() == 5
    fakes.monkeypatch.setattr(driver, "facts", lambda ordinal: driver.Facts("GPU-from-the-driver", 9))
    (counter,) = CuPy().counters()
    assert (counter.device.uuid, counter.device.total_bytes) == ("GPU-from-the-driver", 9)
    fakes.monkeypatch.setattr(driver, "contexts", lambda: None)
    assert CuPy().counters() == []


def test_cupy_makes_no_context_on_the_way_back(fakes):
    """A thread stands on device 0; from there device 1 can be asked only if 0 has a context too."""
    a, b = Allocator(), Allocator()
    cupy = fakes.cupy(a, b)
    fakes.contexts.clear()
    cupy.cuda.runtime.setDevice(1)
    b.move(MB)
    (counter,) = CuPy().counters()
    told = []

    def ask():
        try:
            told.append(counter.observe().readings[0].current_bytes)
        except Unavailable as error:
            told.append(str(error))

    def in_a_thread():
        thread = threading.Thread(target=ask)
        thread.start(), thread.join()

    in_a_thread()
    assert "only if its device and the current one have contexts" in told[0]
    assert fakes.contexts == {1}
    fakes.contexts.add(0)
    in_a_thread()
    assert told[1] == MB


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
