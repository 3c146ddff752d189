"""JAX's adapter: series, devices and holdings, on a stand-in of jaxlib's signatures and on the real CPU build."""

import gc
import sys

import pytest
from fake_frameworks import Allocator, begin, real

from ipygpulogger.sources import Unavailable
from ipygpulogger.sources.frameworks.jax import Jax


def test_jax_series(fakes):
    """In use and in the pool, with the count of allocations as the stamp, and the limit."""
    _framework, counter, allocator, _jax = begin(fakes, "jax")
    allocator.move(400), allocator.move(-450)
    observation = counter.observe()
    assert [(r.current_bytes, r.peak_bytes) for r in observation.readings] == [(50, 500), (500, 500)]
    assert observation.stamp == (2,)
    assert counter.limit_bytes() == 1 << 40


@pytest.mark.parametrize("told", [{"pool_bytes": -1}, {"peak_pool_bytes": None}])
def test_jax_without_a_pool(fakes, told):
    """What jaxlib cannot tell is -1 or missing: one series, and always that one."""
    jax = fakes.jax(Allocator())
    jax.devices[0].told = told
    (counter,) = Jax().counters()
    assert len(counter.observe().readings) == 1
    jax.devices[0].told = {}
    assert len(counter.observe().readings) == 1


def test_jax_devices(fakes):
    """Several devices by their hardware's number; a CPU, or an allocator without statistics, is none."""
    a, b = Allocator(), Allocator()
    jax = fakes.jax(a, None, b)
    framework = Jax()
    assert [c.device.index for c in framework.counters()] == [0, 2]
    assert framework.current_index() == 0
    jax.config.jax_default_device = jax.devices[2]
    assert framework.current_index() == 2
    jax.config.jax_default_device = "gpu"
    assert framework.current_index() == 0
    fakes.jax(Allocator(), platform="cpu")
    assert Jax().counters() == []
    fakes.jax(Allocator(), platform="tpu").devices[0].local_hardware_id = None
    (counter,) = Jax().counters()
    assert counter.device.key == ("tpu", 10)
    fakes.jax(Allocator(), initialised=False)
    assert Jax().counters() == []


def test_jax_clients_are_not_kept(fakes):
    """`clear_backends` frees the memory only if nobody holds the client."""
    _framework, counter, _allocator, jax = begin(fakes, "jax")
    jax.bridge._backends.clear()
    with pytest.raises(Unavailable, match="no memory statistics"):
        counter.observe()
    client = jax.__dict__.pop("client")
    jax.__dict__.pop("devices")
    gc.collect()
    assert [r for r in gc.get_referrers(client) if r is not sys._getframe()] == []


def test_jax_holdings(fakes):
    """One key a buffer; nothing for what has no buffer of its own; never a wait."""
    framework, _counter, _allocator, jax = begin(fakes, "jax")
    (device,) = jax.devices
    one, same, other = (jax.Array(device, address, 4096) for address in (1, 1, 2))
    keys = [framework.holding(array).key for array in (one, same, other)]
    assert keys[0] == keys[1] != keys[2]
    assert framework.holding(one)[1:3] == (4096, "cuda:0")
    assert framework.holding(jax.Array(device, 1, 8, ready=False)).size_bytes == 8
    assert framework.holding(jax.Array([device, object()], 1, 8)) is None  # sharded
    assert framework.holding(jax.Array(object(), 1, 8)).device == "cpu"
    assert framework.holding([one]) is None


def test_jax_is_asked_about_its_own_classes(fakes):
    """Its array, what is derived from that, and what its packages define; to ask about others runs their code."""
    framework, _counter, _allocator, jax = begin(fakes, "jax")
    traced = type("Tracer", (), {"__module__": "jax._src.core"})
    made_in_c = type("ArrayImpl", (), {"__module__": "jaxlib._jax"})
    for kind in (
        jax.Array,
        traced,
        made_in_c,
        type("Derived", (jax.Array,), {}),
        type("Derived", (traced,), {}),
    ):
        assert framework.may_hold(kind), kind
    for kind in (list, type("Array", (), {"__module__": "jaxtyping"}), type("Array", (), {"__module__": 5})):
        assert not framework.may_hold(kind), kind


@pytest.mark.frameworks
def test_real_jax():
    """No backend before the user's, no counters for a CPU, whose statistics are None; holdings by buffer."""
    program = """
import sys
from ipygpulogger.sources.frameworks.jax import Jax, _clients
assert not Jax().counters() and "jax" not in sys.modules
import jax, jax.numpy as jnp
from jax._src import xla_bridge
framework = Jax()
def ask():
    framework.hold(), framework.preload(), framework.settle()
    framework.diagnose(), framework.current_index(), framework.holding(5)
    framework.release()
    return framework.counters()
assert ask() == [] and not xla_bridge.backends_are_initialized()
x = jnp.ones((100, 100))
assert xla_bridge.backends_are_initialized() and len(_clients()) == 1
assert _clients()[0].local_devices() == jax.local_devices() == jax.devices()
device = jax.devices()[0]
assert device.memory_stats() is None and device.platform == "cpu" and device.local_hardware_id == 0
assert ask() == [] and jax.config.jax_default_device is None
x.block_until_ready()
held = framework.holding(x)
assert held.size_bytes == 40000 and held.device == "cpu", held
assert held == framework.holding(jax.device_put(x))
assert held.key != framework.holding((x + 1).block_until_ready()).key
big = jnp.ones((3000, 3000)); big.block_until_ready()
import time
product = big @ big @ big @ big; began = time.perf_counter()
assert framework.holding(product).size_bytes == 36_000_000
waited = time.perf_counter() - began
assert waited < 0.05 or product.is_ready(), waited
seen = []
jax.jit(lambda traced: (seen.append((isinstance(traced, jax.Array), framework.holding(traced))), traced)[1])(x)
assert seen == [(True, None)], seen
x.delete()
assert framework.holding(x) is None
print("done")
"""
    assert real(program) == "done"
