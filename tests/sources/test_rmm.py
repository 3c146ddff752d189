"""RMM's adapter: silent while the user's own statistics hide what lies below."""

import pytest
from fake_frameworks import Allocator, begin, figures

from ipygpulogger.engine.peaks import PeakTracker
from ipygpulogger.sources import Unavailable
from ipygpulogger.sources.frameworks.rmm import Rmm


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
        counter.observe()
    rmm.enabled = True
    assert counter.observe().stamp == (0, 0)
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
        counter.observe()
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
    """What lay below comes up when they pop: nothing is told until measuring begins anew."""
    framework, counter, allocator, rmm = begin(fakes, "rmm")
    rmm.statistics.push_statistics()
    framework.hold()
    tracker = PeakTracker(counter)
    allocator.move(50)
    interval = tracker.open()
    assert interval.before_bytes() == 50
    rmm.statistics.pop_statistics()
    with pytest.raises(Unavailable, match="were pushed"):
        tracker.close(interval)
    framework.release(), framework.hold()
    interval = tracker.open()
    assert interval.before_bytes() == 150
    tracker.close(interval)
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
        counter.observe()
    assert framework.current_index() is None
