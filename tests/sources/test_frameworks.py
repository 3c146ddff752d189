"""JAX, CuPy, TensorFlow and RMM: against fakes whose truth is known, and against the real CPU builds."""

# ruff: noqa: ARG002, ARG005 - signatures as they are

import gc
import os
import subprocess
import sys
import threading
import types

import pytest
from example_source import Arena
from fake_frameworks import Allocator, Fakes
from hypothesis import given, settings
from hypothesis import strategies as st

from ipygpulogger.engine.peaks import PeakTracker
from ipygpulogger.sources import Unavailable, driver, inherited
from ipygpulogger.sources.cupy import CuPy
from ipygpulogger.sources.jax import Jax
from ipygpulogger.sources.rmm import Rmm
from ipygpulogger.sources.tensorflow import TensorFlow

MB = 2**20
ALL = {"jax": Jax, "cupy": CuPy, "tensorflow": TensorFlow, "rmm": Rmm}


@pytest.fixture
def fakes(monkeypatch):
    return Fakes(monkeypatch)


def begin(fakes, name):
    """A framework in use, its one counter, and the allocator behind it."""
    allocator = Allocator()
    module = getattr(fakes, name)(allocator)
    allocator.move(100)
    framework = ALL[name]()
    (counter,) = framework.counters()
    return framework, counter, allocator, module


# -- all four ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_nothing_without_the_framework(fakes, name):
    """Not imported: no counters, nothing held, nothing said."""
    framework = ALL[name]()
    assert list(framework.counters()) == []
    assert framework.current_index() is None
    assert framework.holding(object()) is None
    framework.preload(), framework.settle(), framework.hold(), framework.release()
    assert framework.diagnose() is None
    assert name not in sys.modules


@pytest.mark.parametrize("name", ALL)
def test_the_counter_is_the_same_every_time(fakes, name):
    """The engine keys its trackers by these objects."""
    framework, counter, _allocator, _ = begin(fakes, name)
    assert list(framework.counters()) == [counter]
    assert counter.device.key == ("cuda", 0)
    assert counter.look().readings[0].current_bytes == 100
    assert framework.current_index() == 0
    assert framework.diagnose().says == "its allocator on cuda:0"


QUALITY = {"jax": "exact", "cupy": "sampled", "tensorflow": "exact", "rmm": "exact"}


@pytest.mark.parametrize("name", ALL)
def test_a_new_record(fakes, name):
    """A blip above all before: everybody but a pool without peaks knows it exactly."""
    _framework, counter, allocator, _ = begin(fakes, name)
    tracker = PeakTracker(counter)
    interval = tracker.open()
    allocator.move(900), allocator.move(-800)
    tracker.close(interval)
    peak = interval.peak()
    assert peak.quality == QUALITY[name]
    assert peak.lo_bytes == (200 if name == "cupy" else 1000)


@pytest.mark.parametrize(
    ("name", "quality"), [("jax", "bounded"), ("rmm", "bounded"), ("tensorflow", "exact")]
)
def test_a_blip_below_an_older_record(fakes, name, quality):
    """Without a reset the older record hides it; the bounds still hold it."""
    _framework, counter, allocator, _ = begin(fakes, name)
    allocator.move(5000), allocator.move(-5000)
    tracker = PeakTracker(counter)
    interval = tracker.open()
    allocator.move(900), allocator.move(-800)
    tracker.close(interval)
    peak = interval.peak()
    assert peak.quality == quality
    assert peak.lo_bytes <= 1000 <= peak.hi_bytes


steps = st.one_of(
    st.tuples(st.just("move"), st.integers(-400, 400)),
    st.tuples(st.just("open"), st.just(0)),
    st.tuples(st.just("close"), st.integers(0, 9)),
    st.tuples(st.just("user"), st.integers(0, 2)),
)


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=150, deadline=None)
@given(story=st.lists(steps, max_size=30))
def test_every_label_is_true(name, story):  # noqa: C901 - one branch a step
    """Whatever opens, closes and moves, and whatever the user does with the same counters."""
    with pytest.MonkeyPatch.context() as patch:
        framework, counter, allocator, module = begin(Fakes(patch), name)
        tracker = PeakTracker(counter)
        framework.on_user_reset = lambda index, reset: tracker.user_resets(reset)
        framework.hold()
        users_peak = 100  # TensorFlow's, as if we were not there
        intervals = []
        for step, number in story:
            if step == "move":
                allocator.move(number)
                users_peak = max(users_peak, allocator.current)
            elif step == "open":
                try:
                    intervals.append((tracker.open(), len(allocator.story) - 1))
                except Unavailable:
                    assert name == "rmm"
            elif step == "close" and intervals:
                interval, since = intervals.pop(number % len(intervals))
                try:
                    tracker.close(interval)
                except Unavailable:
                    assert name == "rmm"
                check(interval.peak(), max(allocator.story[since:]))
            elif step == "user" and name == "rmm":
                users_do(module, allocator, number)
            elif step == "user" and name == "tensorflow":
                if number == 0:
                    module.reset_memory_stats("GPU:0")
                    users_peak = allocator.current
                assert module.get_memory_info("/device:GPU:0")["peak"] == users_peak
        for interval, since in intervals:
            peak = interval.peak()
            assert peak.lo_bytes <= max(allocator.story[since:])
        framework.release()
        if name == "tensorflow":
            assert module.get_memory_info("GPU:0")["peak"] == users_peak


def users_do(rmm, allocator, number):
    if number == 0:  # what RMM's own `statistics()` does
        rmm.statistics.push_statistics()
        allocator.move(50)
        rmm.statistics.pop_statistics()
    elif number == 1:
        rmm.statistics.push_statistics()
    elif len(allocator.stack) > 1:
        rmm.statistics.pop_statistics()


def check(peak, truth):
    assert peak.lo_bytes <= truth
    if peak.quality == "exact":
        assert peak.lo_bytes == peak.hi_bytes == truth
    elif peak.quality == "bounded":
        assert truth <= peak.hi_bytes


def figures(interval):
    peak = interval.peak()
    return peak.lo_bytes, peak.hi_bytes, peak.quality


class Broken:
    """A module, or anything in one, of which every use fails."""

    def __init__(self, error):
        self.__dict__["error"] = error

    def __getattr__(self, name):
        raise self.error

    def __call__(self, *args, **kwargs):
        raise self.error


ERRORS = [RuntimeError("broken\nbadly"), AttributeError(), TypeError("no"), OSError(5, "io"), KeyError("k")]


class Odd(Exception):
    """A library's own."""


@pytest.mark.parametrize("error", [*ERRORS, Odd("odd")], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("name", ALL)
def test_broken_from_the_start(fakes, name, error):
    """Imported, and nothing in it works, or nothing is in it: no counters, no exception."""
    for broken in (Broken(error), types.ModuleType(name), None):
        for module in (
            name, "jax._src.xla_bridge", "tensorflow.python.eager.context", "rmm.statistics", "rmm._cuda.gpu"
        ):  # fmt: skip
            fakes.monkeypatch.setitem(sys.modules, module, broken)
        framework = ALL[name]()
        if isinstance(error, AttributeError) or not isinstance(broken, Broken):
            assert list(framework.counters()) == []
            assert framework.current_index() is None
            assert framework.holding(object()) is None
            framework.hold(), framework.settle(), framework.release()


CALLS = {
    "jax": [("Device", "memory_stats"), ("client", "local_devices")],
    "cupy": [
        ("", "get_default_memory_pool"),
        ("cuda", "Device"),
        ("cuda.runtime", "getDevice"),
        ("cuda.runtime", "getDeviceProperties"),
        ("cuda.runtime", "memGetInfo"),
        *(("pool", call) for call in ("used_bytes", "total_bytes", "get_limit", "free_all_blocks")),
    ],
    "tensorflow": [
        *(("Context", call) for call in ("get_memory_info", "reset_memory_stats", "list_physical_devices")),
        *(("Context", call) for call in ("get_visible_devices", "get_logical_device_configuration")),
        ("Context", "list_logical_devices"),
    ],
    "rmm": [("statistics", "get_statistics"), ("mr", "get_current_device_resource"), ("gpu", "getDevice")],
}


def find(module, path):
    for part in filter(None, path.split(".")):
        module = getattr(module, part)
    return module


@pytest.mark.parametrize("error", [*ERRORS, Odd("odd")], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize(("name", "path", "call"), [(n, *one) for n, calls in CALLS.items() for one in calls])
def test_every_call_may_fail(fakes, name, path, call, error):
    """Before the first look there is no counter; after it, `Unavailable` or what does not need the call."""

    def fail(*args, **kwargs):
        raise error

    framework, counter, allocator, module = begin(fakes, name)
    framework.hold()
    tracker = PeakTracker(counter)
    interval = tracker.open()
    with fakes.monkeypatch.context() as patch:
        patch.setattr(find(module, path), call, fail)
        assert list(framework.counters()) == [counter]
        for use in (counter.look, tracker.open, lambda: tracker.close(interval)):
            try:
                use()
            except Unavailable as told:
                assert "\n" not in str(told)
        assert counter.device_memory() is None or counter.device_memory().total_bytes
        assert counter.limit_bytes() is None or counter.limit_bytes() > 0
        framework.settle()
        assert framework.current_index() in {0, None}
        for one in list(ALL[name]().counters()):
            assert one.look()  # it needed nothing of what fails
    framework.release()
    allocator.move(7)
    assert counter.look().readings[0].current_bytes == 107


@pytest.mark.parametrize("name", ["jax", "tensorflow"])
def test_statistics_that_lose_their_names(fakes, name):
    """A version that calls them otherwise."""
    _framework, counter, _allocator, module = begin(fakes, name)
    for nonsense in ({}, {"bytes_in_use": None, "peak_bytes_in_use": 1, "current": "x"}, None, 5):
        if name == "jax":
            fakes.monkeypatch.setattr(module.Device, "memory_stats", lambda self, told=nonsense: told)
        else:
            fakes.monkeypatch.setattr(
                module.Context, "get_memory_info", lambda self, dev, told=nonsense: told
            )
        with pytest.raises(Unavailable):
            counter.look()
        assert list(ALL[name]().counters()) == []


# -- JAX ---------------------------------------------------------------------------------------------


def test_jax_series(fakes):
    """In use and in the pool, with the count of allocations as the stamp, and the limit."""
    _framework, counter, allocator, _jax = begin(fakes, "jax")
    allocator.move(400), allocator.move(-450)
    look = counter.look()
    assert [(r.current_bytes, r.peak_bytes) for r in look.readings] == [(50, 500), (500, 500)]
    assert look.stamp == (2,)
    assert counter.limit_bytes() == 1 << 40


@pytest.mark.parametrize("told", [{"pool_bytes": -1}, {"peak_pool_bytes": None}])
def test_jax_without_a_pool(fakes, told):
    """What jaxlib cannot tell is -1 or missing: one series, and always that one."""
    jax = fakes.jax(Allocator())
    jax.devices[0].told = told
    (counter,) = Jax().counters()
    assert len(counter.look().readings) == 1
    jax.devices[0].told = {}
    assert len(counter.look().readings) == 1


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
        counter.look()
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


# -- CuPy --------------------------------------------------------------------------------------------


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
    assert [c.look().readings[0] for c in framework.counters()] == [(MB, None, 0)] * 2


def test_cupy_device(fakes):
    """What CuPy tells of it; its uuid is cut short at a zero."""
    _framework, counter, _allocator, cupy = begin(fakes, "cupy")
    assert counter.device.uuid == "GPU-01020304-0506-0708-090a-0b0c0d0e0f10"
    assert counter.device.name == "Fake GPU"
    assert counter.device_memory() == (1 << 34, 100, (1 << 34) - 100, False)
    assert counter.limit_bytes() is None
    cupy.pool.limit = 5
    assert counter.limit_bytes() == 5
    properties = {"name": b"short", "uuid": b"\x01\x02"}
    fakes.monkeypatch.setattr(cupy.cuda.runtime, "getDeviceProperties", lambda device: properties)
    (counter,) = CuPy().counters()
    assert counter.device.uuid is None
    fakes.monkeypatch.setattr(driver, "facts", lambda ordinal: driver.Facts("GPU-from-the-driver", 9))
    (counter,) = CuPy().counters()
    assert (counter.device.uuid, counter.device.total_bytes) == ("GPU-from-the-driver", 9)


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
            told.append(counter.look().readings[0].current_bytes)
        except Unavailable as error:
            told.append(str(error))

    def in_a_thread():
        thread = threading.Thread(target=ask)
        thread.start(), thread.join()

    in_a_thread()
    assert "can be asked only from where" in told[0]
    assert fakes.contexts == {1}
    fakes.contexts.add(0)
    in_a_thread()
    assert told[1] == MB


def test_cupy_where_the_driver_cannot_be_asked(fakes):
    """AMD and Windows: the current device, if it has a context."""
    cupy = fakes.cupy(Allocator(), Allocator())
    fakes.monkeypatch.setattr(driver, "contexts", lambda: None)
    fakes.contexts.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cupy.cuda.driver, "ctxGetCurrent", Broken(RuntimeError("not initialised")))
        assert CuPy().counters() == []
    assert CuPy().counters() == []
    fakes.contexts.add(0)
    assert CuPy().counters() == []
    cupy.get_default_memory_pool().total_bytes = lambda: 5
    assert [c.device.index for c in CuPy().counters()] == [0]


def test_cupy_settles(fakes):
    """Free blocks go, where there are any; elsewhere nothing is asked for."""
    framework, counter, allocator, cupy = begin(fakes, "cupy")
    allocator.move(900), allocator.move(-800)
    assert counter.look().readings[1].current_bytes == 1000
    framework.settle()
    assert counter.look().readings[1].current_bytes == 200
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


# -- TensorFlow --------------------------------------------------------------------------------------


def test_tensorflow_is_not_initialised(fakes):
    """Neither by asking nor by measuring."""
    tensorflow = fakes.tensorflow(Allocator(), initialised=False)
    framework = TensorFlow()
    framework.hold()
    assert framework.counters() == []
    assert framework.current_index() is None
    framework.release()
    assert not tensorflow.context._initialized
    tensorflow.context.ensure_initialized()
    (counter,) = framework.counters()
    tensorflow.context._initialized = False
    with pytest.raises(Unavailable, match="uses no device"):
        counter.look()
    assert not tensorflow.context._initialized


def test_tensorflow_numbers_gpus_its_own_way(fakes):
    """Hidden GPUs do not count, a split one counts twice; ours are the CUDA ordinals."""
    allocators = [Allocator() for _ in range(4)]
    tensorflow = fakes.tensorflow(*allocators, hidden={0}, split={1: 2})
    framework = TensorFlow()
    assert [c.device.index for c in framework.counters()] == [2, 3]
    allocators[3].move(MB)
    assert [c.look().readings[0].current_bytes for c in framework.counters()] == [0, MB]
    assert tensorflow.get_memory_info("GPU:3")["current"] == MB
    assert framework.current_index() is None  # TensorFlow's first is split
    fakes.monkeypatch.setattr(tensorflow.Context, "list_logical_devices", lambda *args: [0])
    assert TensorFlow().counters() == []  # other hosts' devices are among them


def test_tensorflow_user_never_notices(fakes):
    """Their peak is theirs: through every spelling, after our resets, until their own."""
    framework, counter, allocator, tensorflow = begin(fakes, "tensorflow")
    tracker = PeakTracker(counter)
    told = []
    framework.on_user_reset = lambda index, reset: (told.append(index), tracker.user_resets(reset))
    allocator.move(900), allocator.move(-900)
    original = tensorflow.Context.get_memory_info
    framework.hold()
    outer = tracker.open()
    allocator.move(50)
    assert counter.look().readings[0].peak_bytes == 150
    for spelling in ("GPU:0", "/gpu:0", "/device:GPU:0", "/job:localhost/replica:0/task:0/device:GPU:0"):
        assert tensorflow.get_memory_info(spelling) == {"current": 150, "peak": 1000}
    tensorflow.reset_memory_stats("GPU:0")
    assert told == [0]
    assert tensorflow.get_memory_info("GPU:0")["peak"] == 150
    allocator.move(50)
    inner = tracker.open()
    allocator.move(-100)
    assert tensorflow.get_memory_info("GPU:0") == {"current": 100, "peak": 200}
    tracker.close(inner), tracker.close(outer)
    assert inner.peak().quality == "exact"
    assert figures(outer) == (200, None, "sampled")  # nothing certifies what fell between read and reset
    tracker.close(tracker.open())
    framework.release()
    assert tensorflow.get_memory_info("GPU:0")["peak"] == 200  # still kept for them
    assert tensorflow.Context.get_memory_info is not original
    allocator.move(150)
    assert tensorflow.get_memory_info("GPU:0")["peak"] == 250  # the counter has caught up
    assert tensorflow.Context.get_memory_info is original


def test_tensorflow_users_errors_are_theirs(fakes):
    """A device that is not there, or not a GPU: what TensorFlow says, and nothing of ours moves."""
    framework, _counter, _allocator, tensorflow = begin(fakes, "tensorflow")
    framework.on_user_reset = Broken(AssertionError("not a GPU of ours"))
    framework.hold()
    for device in ("CPU:0", "GPU:9", "nonsense"):
        for function in (tensorflow.get_memory_info, tensorflow.reset_memory_stats):
            with pytest.raises(ValueError, match="No matching devices"):
                function(device)
    framework.release()


def test_tensorflow_wrappers_come_off(fakes):
    """At the user's reset after we have gone; and a second holder unwraps nobody else's."""
    framework, counter, allocator, tensorflow = begin(fakes, "tensorflow")
    originals = dict(tensorflow.Context.__dict__)
    allocator.move(900), allocator.move(-900)
    for _ in range(2):
        framework.hold()
        counter.look(), counter.reset()
        framework.release()
        tensorflow.reset_memory_stats("GPU:0")
        assert dict(tensorflow.Context.__dict__) == originals
        allocator.move(900), allocator.move(-900)
    framework.hold()
    child = TensorFlow()  # a fork's child finds its parent's wrappers
    child.hold()
    child.release()
    framework.release()
    assert dict(tensorflow.Context.__dict__) == originals


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("name", ["jax", "tensorflow"])
def test_a_forked_child_asks_nothing_of_its_parents_threads(fakes, name):
    """The parent's client may have been locked at the moment of the fork."""
    _framework, counter, _allocator, _module = begin(fakes, name)
    child = os.fork()
    if not child:
        try:
            counter.look()
        except Unavailable:
            os._exit(0 if ALL[name]().counters() == [] else 2)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert counter.look()
    assert inherited._inherited == []


# -- RMM ---------------------------------------------------------------------------------------------


def test_rmm_only_with_statistics(fakes):
    """They are the user's to enable."""
    rmm = fakes.rmm(Allocator(), enabled=False)
    framework = Rmm()
    assert framework.counters() == []
    rmm.enabled = True
    (counter,) = framework.counters()
    framework.hold()
    rmm.enabled = False
    rmm.statistics.push_statistics()  # as long as they are not enabled, this does nothing
    with pytest.raises(Unavailable, match="not enabled"):
        counter.look()
    rmm.enabled = True
    assert counter.look().stamp == (0, 0)
    framework.release()
    fakes.contexts.clear()
    asked = []
    fakes.monkeypatch.setattr(rmm.gpu, "getDevice", lambda: asked.append(1) or 0)
    assert framework.counters() == [counter]
    assert Rmm().counters() == []
    assert not asked  # it would initialise the driver


@pytest.mark.parametrize("seen", [True, False])
def test_rmm_pushed_and_popped(fakes, seen):
    """Pushed: nothing is told until they pop. Both between two looks: as if nothing had happened."""
    framework, counter, allocator, rmm = begin(fakes, "rmm")
    allocator.move(3000), allocator.move(-3000)
    push, pop = rmm.statistics.push_statistics, rmm.statistics.pop_statistics
    if seen:
        framework.hold()
        push, pop = rmm.statistics.push_statistics, rmm.statistics.pop_statistics
    tracker = PeakTracker(counter)
    interval = tracker.open()
    push()
    # More than ever before: only a wrapper can tell that this does not lie upon what was there.
    for _ in range(3 if seen else 1):
        allocator.move(9000 if seen else 900), allocator.move(-9000 if seen else -900)
    with pytest.raises(Unavailable, match="were pushed"):
        counter.look()
    pop()
    tracker.close(interval)
    assert figures(interval) == ((9100, 9100, "exact") if seen else (100, 3100, "bounded"))
    push()
    with pytest.raises(Unavailable, match="were pushed"):
        tracker.open()
    allocator.move(-50)
    with pytest.raises(Unavailable, match="were pushed"):
        tracker.open()
    pop()
    interval = tracker.open()
    assert interval.before_bytes() == 50
    tracker.close(interval)
    framework.release()
    assert not hasattr(rmm.statistics.push_statistics, "_ipygpulogger_original")


def test_rmm_pushed_before_we_came(fakes):
    """What lay below comes up when they pop: another base, so nothing is told of the scope it fell into."""
    framework, counter, allocator, rmm = begin(fakes, "rmm")
    rmm.statistics.push_statistics()
    framework.hold()
    tracker = PeakTracker(counter)
    allocator.move(50)
    interval = tracker.open()
    assert interval.before_bytes() == 50
    rmm.statistics.pop_statistics()
    with pytest.raises(Unavailable, match="started anew"):
        tracker.close(interval)
    interval = tracker.open()
    assert interval.before_bytes() == 150
    tracker.close(interval)
    framework.release()


def test_rmm_users_calls_are_theirs(fakes):
    """What they return and raise, enabled or not, whatever becomes of ours."""
    framework, _, _, rmm = begin(fakes, "rmm")
    framework.hold()
    assert rmm.statistics.push_statistics().total_bytes == 100
    fakes.monkeypatch.setattr(rmm.mr, "get_current_device_resource", Broken(RuntimeError()))
    assert rmm.statistics.pop_statistics().total_bytes == 0
    with pytest.raises(IndexError):
        rmm.statistics.pop_statistics()
    framework.release()


def test_rmm_started_anew(fakes):
    """Another adaptor counts from zero: unknown within a scope, accepted between two."""
    _framework, counter, allocator, _rmm = begin(fakes, "rmm")
    tracker = PeakTracker(counter)
    interval = tracker.open()
    fakes.rmm(allocator)
    with pytest.raises(Unavailable, match="started anew"):
        tracker.close(interval)
    assert interval.peak().quality == "sampled"
    interval = tracker.open()
    allocator.move(70)
    tracker.close(interval)
    assert figures(interval) == (70, 70, "exact")


def test_rmm_on_another_device(fakes):
    """The statistics asked for are the current device's."""
    framework, counter, _allocator, rmm = begin(fakes, "rmm")
    rmm.gpu.getDevice = lambda: 1
    with pytest.raises(Unavailable, match="another one"):
        counter.look()
    assert framework.current_index() is None


# -- somebody else's ---------------------------------------------------------------------------------


def test_a_third_partys_source(fakes):
    """The example in example_source.py: nested scopes, both exact; a failure is told, not raised."""
    framework = Arena()
    assert list(framework.counters()) == []
    stats = types.SimpleNamespace(live_bytes=100, peak_bytes=100, bytes_ever_allocated=100)

    def move(step):
        stats.live_bytes += step
        stats.peak_bytes = max(stats.peak_bytes, stats.live_bytes)
        stats.bytes_ever_allocated += max(0, step)

    def reset_peak(index):
        stats.peak_bytes = stats.live_bytes

    arena = fakes.module(
        "arena", devices_in_use=lambda: [0], ArenaError=Odd, stats=lambda index: stats, reset_peak=reset_peak
    )
    (counter,) = framework.counters()
    assert list(framework.counters()) == [counter]
    tracker = PeakTracker(counter)
    outer = tracker.open()
    move(500), move(-500)
    inner = tracker.open()
    move(50), move(-50)
    tracker.close(inner), tracker.close(outer)
    assert figures(inner) == (150, 150, "exact")
    assert figures(outer) == (600, 600, "exact")
    assert framework.diagnose().says == "its allocator on cuda:0"
    arena.stats = Broken(Odd("lost"))
    with pytest.raises(Unavailable, match="the arena tells nothing: lost"):
        counter.look()


# -- the real ones, on a CPU -------------------------------------------------------------------------


def real(program):
    """Run it where nothing of this process shows; its last line."""
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.frameworks
def test_real_jax():
    """No backend before the user's, no counters for a CPU, whose statistics are None; holdings by buffer."""
    program = """
import sys
from ipygpulogger.sources.inherited import jax_clients
from ipygpulogger.sources.jax import Jax
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
assert xla_bridge.backends_are_initialized() and len(jax_clients()) == 1
assert jax_clients()[0].local_devices() == jax.local_devices() == jax.devices()
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


@pytest.mark.frameworks
def test_real_tensorflow():
    """No context before the user's, the methods we wrap are there and reach every caller, a CPU is no GPU."""
    program = """
import inspect, sys
from ipygpulogger.sources.tensorflow import TensorFlow, _gpus
assert not TensorFlow().counters() and "tensorflow" not in sys.modules
import tensorflow as tf
contexts = sys.modules["tensorflow.python.eager.context"]
framework = TensorFlow()
def ask():
    framework.preload(), framework.settle(), framework.diagnose(), framework.current_index()
    return framework.counters()
framework.hold()
assert ask() == [] and contexts.context_safe() is None
framework.release()
assert list(inspect.signature(contexts.Context.get_memory_info).parameters) == ["self", "dev"]
assert list(inspect.signature(contexts.Context.reset_memory_stats).parameters) == ["self", "dev"]
for name in ("get_visible_devices", "list_physical_devices", "list_logical_devices"):
    assert list(inspect.signature(getattr(contexts.Context, name)).parameters) == ["self", "device_type"]
assert list(inspect.signature(contexts.Context.get_logical_device_configuration).parameters) == ["self", "dev"]
contexts.context()
assert ask() == [] and not contexts.context_safe()._initialized
tf.constant(1.0)
assert contexts.context_safe()._initialized and contexts.context_safe()._pluggable_devices == []
assert ask() == [] and _gpus() == {}
framework.hold()
for function in (tf.config.experimental.get_memory_info, tf.config.experimental.reset_memory_stats):
    try:
        function("GPU:0")
    except ValueError as error:
        assert "No matching devices" in str(error)
    else:
        raise AssertionError
framework.release()
# A context of one GPU, as far as Python goes: the wrappers reach all public spellings.
class Physical:
    name = "/physical_device:GPU:1"
gpu = Physical()
contexts.Context.get_visible_devices = contexts.Context.list_physical_devices = lambda self, kind=None: [gpu]
contexts.Context.list_logical_devices = lambda self, kind=None: [0]
contexts.Context.get_logical_device_configuration = lambda self, dev: None
info = {"current": 5, "peak": 70}
contexts.Context.get_memory_info = original = lambda self, dev: dict(info)
def reset(self, dev):
    info["peak"] = info["current"]
contexts.Context.reset_memory_stats = reset
(counter,) = framework.counters()
assert counter.device.key == ("cuda", 1)
users = []
framework.on_user_reset = lambda index, reset: (users.append(index), reset())
framework.hold()
counter.look(); counter.reset()
assert counter.look().readings[0].peak_bytes == 5
assert tf.config.experimental.get_memory_info("GPU:0") == {"current": 5, "peak": 70}
assert tf.compat.v1.config.experimental.get_memory_info("/gpu:0")["peak"] == 70
framework.release()
assert tf.config.experimental.get_memory_info("GPU:0")["peak"] == 70
tf.config.experimental.reset_memory_stats("GPU:0")
assert users == [1] and contexts.Context.get_memory_info is original
print("done")
"""
    assert real(program) == "done"
