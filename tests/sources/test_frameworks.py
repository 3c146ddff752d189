"""What every framework's adapter does: nothing without the framework, every label true, no error of its own."""

# ruff: noqa: ARG005 - signatures as they are

import sys
import types

import pytest
from fake_frameworks import ALL, Broken, Fakes, begin
from hypothesis import given, settings
from hypothesis import strategies as st

from ipygpulogger.engine.peaks import PeakTracker
from ipygpulogger.sources import Framework, Unavailable


def test_a_source_of_another_distribution_needs_one_import():
    """`ipygpulogger.sources` has every type in the signatures of a `Framework`, `Diagnosis` included."""
    import ipygpulogger.sources as contract

    needed = (
        "Counter Device DeviceCounter DeviceMemory Diagnosis Framework Holding Observation PeakClass Reading"
    )
    assert {*needed.split(), "Unavailable"} == set(contract.__all__)


class Minimal(Framework):
    """Implements what must be implemented, and says which device it uses."""

    name = "minimal"
    index = None

    def counters(self):
        return []

    def current_index(self):
        return self.index


class Waking(Minimal):
    """Has a context to create as well."""

    def preload(self):
        self.index = 0


def test_a_preload_is_due_until_there_is_a_context():
    """By default, and never of a framework that has none to create."""
    framework = Waking()
    assert framework.can_preload()
    framework.preload()
    assert not framework.can_preload()
    without = Minimal()
    assert not without.can_preload()
    without.index = 0
    assert not without.can_preload()


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
    assert counter.observe().readings[0].current_bytes == 100
    assert framework.current_index() == 0
    assert framework.diagnose().says == "its allocator on cuda:0"


@pytest.mark.parametrize("older_bytes", [0, 5000])
@pytest.mark.parametrize("name", ALL)
def test_a_blip_above_and_below_an_older_record(fakes, name, older_bytes):
    """A new record is exact, but for a pool without peaks. An older one hides a blip where no peak can be reset."""
    _framework, counter, allocator, _ = begin(fakes, name)
    allocator.move(older_bytes), allocator.move(-older_bytes)
    tracker = PeakTracker(counter)
    interval = tracker.open()
    allocator.move(900), allocator.move(-800)
    tracker.close(interval)
    peak = interval.peak()
    hidden = "bounded" if older_bytes else "exact"
    assert peak.quality == {"cupy": "sampled", "tensorflow": "exact"}.get(name, hidden)
    check(peak, 1000)


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


ERRORS = [RuntimeError("broken\nbadly"), AttributeError(), TypeError("no"), OSError(5, "io"), KeyError("k")]


class Odd(Exception):
    """A library's own."""


@pytest.mark.parametrize("name", ALL)
def test_broken_from_the_start(fakes, name):
    """Imported, and nothing in it works, or nothing is in it: no counters, no exception."""
    modules = "jax._src.xla_bridge", "tensorflow.python.eager.context", "rmm.statistics", "rmm._cuda.gpu"
    for broken in (Broken(AttributeError()), types.ModuleType(name), None):
        for module in (name, *modules):
            fakes.monkeypatch.setitem(sys.modules, module, broken)
        framework = ALL[name]()
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
        *(("pool", call) for call in ("used_bytes", "total_bytes", "get_limit", "free_all_blocks")),
    ],
    "tensorflow": [
        *(("Context", call) for call in ("get_memory_info", "reset_memory_stats", "list_physical_devices")),
        *(("Context", call) for call in ("get_visible_devices", "list_logical_devices")),
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
    """Before the first observation there is no counter; after it, `Unavailable` or what does not need the call."""

    def fail(*args, **kwargs):
        raise error

    framework, counter, allocator, module = begin(fakes, name)
    framework.hold()
    tracker = PeakTracker(counter)
    interval = tracker.open()
    with fakes.monkeypatch.context() as patch:
        patch.setattr(find(module, path), call, fail)
        assert list(framework.counters()) == [counter]
        for use in (counter.observe, tracker.open, lambda: tracker.close(interval)):
            try:
                use()
            except Unavailable as told:
                assert "\n" not in str(told)
        assert counter.limit_bytes() is None or counter.limit_bytes() > 0
        framework.settle()
        assert framework.current_index() in {0, None}
        for one in list(ALL[name]().counters()):
            assert one.observe()  # it needed nothing of what fails
    framework.release()
    allocator.move(7)
    assert counter.observe().readings[0].current_bytes == 107


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
            counter.observe()
        assert list(ALL[name]().counters()) == []
