"""Where no peak can be reset: exact on a record alone; a process samples what C calls hide, and ends with us."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest
from memory import MB, Block, blip, held_transient
from ram import GRAIN, current, needs_high_water, refuse

from ipygpulogger.engine.peaks import PeakTracker
from ipygpulogger.sources.system import linux
from ipygpulogger.sources.system.process import Process
from ipygpulogger.sources.system.rss_watcher import RisingPeak


@pytest.fixture
def tracker():
    tracker = PeakTracker(RisingPeak(current, None))
    yield tracker
    tracker.counter.close()


def held(tracker, size_mb):
    """What an interval says of a block held until the sampling process must have seen it."""
    interval = tracker.open()
    block = Block(size_mb)
    deadline_s = time.monotonic() + 20
    while time.monotonic() < deadline_s:
        tracker.fold(interval)
        if interval.peak().lo_bytes - interval.before_bytes() >= (size_mb - 2) * MB:
            break
        time.sleep(0.001)
    block.free()
    tracker.close(interval)
    return interval.peak().lo_bytes - interval.before_bytes()


def test_the_sampling_process_sees_what_a_c_call_hides(tracker):
    """A transient in one C call that holds the GIL is seen from outside, as "at least"."""
    tracker.close(tracker.open())  # the process is up
    best = 0
    for _ in range(10):
        interval = tracker.open()
        held_transient(512)
        tracker.close(interval)
        assert interval.peak().quality == "sampled"
        assert interval.peak().lo_bytes - interval.before_bytes() <= 512 * MB + GRAIN
        best = max(best, interval.peak().lo_bytes - interval.before_bytes())
    assert best >= 256 * MB


def wait_until(so):
    """Poll, for as long as the slowest machine may take."""
    deadline_s = time.monotonic() + 60
    while not so():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def test_the_sampling_process_sleeps_between_scopes():
    """Without a pause between its samples it never stops running; when nobody measures, it waits."""
    watcher = RisingPeak(current, None, period_s=0.0)

    def states():
        return {psutil.Process(watcher.sampler_pid).status() for _ in range(100)}

    try:
        for _ in range(2):
            watcher.watch(on=True)
            wait_until(watcher._sampled_bytes)
            wait_until(lambda: psutil.STATUS_RUNNING in states())
            watcher.watch(on=False)
            wait_until(lambda: states() == {psutil.STATUS_SLEEPING})
            used = psutil.Process(watcher.sampler_pid).cpu_times()
            assert states() == {psutil.STATUS_SLEEPING}
            assert psutil.Process(watcher.sampler_pid).cpu_times() == used
    finally:
        watcher.close()


def test_the_sampling_process_is_restarted_if_killed(tracker):
    """Killed in the middle, it is back for the next scope, and nobody waits for it."""
    assert held(tracker, 24) >= 22 * MB
    interval = tracker.open()
    os.kill(tracker.counter.sampler_pid, signal.SIGKILL)
    tracker.counter._child.wait()
    tracker.close(interval)
    assert held(tracker, 24) >= 22 * MB


def test_the_sampling_process_ignores_interrupts_and_ends_with_us():
    """SIGINT does not stop it; the end of its parent does."""
    program = textwrap.dedent(
        """
        import os, signal, time
        from ipygpulogger.sources.system.rss_watcher import RisingPeak
        watcher = RisingPeak(int, None); watcher.watch(on=True)
        while not watcher._sampled_bytes(): time.sleep(0.001)
        os.kill(watcher.sampler_pid, signal.SIGINT)
        while not watcher._sampled_bytes(): time.sleep(0.001)
        print(watcher.sampler_pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    pid = int(done.stdout)
    wait_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


def test_a_reset_that_is_not_offered(monkeypatch):
    """Where the kernel offers no reset the peak only rises, and that is said."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    process = Process()
    assert process.counter.peak_class == "monotone"
    assert process.diagnose().state == "bounded"
    process.close()


@needs_high_water
def test_a_refused_reset_is_noticed_by_trying(monkeypatch):
    """Offered but refused at the first trial: the peak only rises from then on, and that is said."""
    monkeypatch.setattr(linux, "reset_mark", refuse)
    process = Process()
    tracker = PeakTracker(process.counter)
    blip(40)
    interval = tracker.open()
    blip(10)
    tracker.close(interval)
    assert process.counter.peak_class == "monotone"
    assert process.diagnose().state == "bounded"
    assert interval.peak().quality == "bounded"
    assert interval.peak().hi_bytes - interval.before_bytes() >= 38 * MB


def test_without_any_counter_it_samples(monkeypatch):
    """Where the kernel shows no high-water mark (gVisor) what is seen is "at least", and that is said."""
    monkeypatch.setattr(linux, "reset_mark", refuse)
    monkeypatch.setattr(linux, "resident_and_mark_bytes", lambda: b"".index(b"VmHWM:"))
    process = Process()
    assert process.counter.peak_class == "sampled"
    assert process.diagnose().state == "sampled"


RISING = """
    import resource, sys; sys.path[:0] = {paths!r}
    import psutil
    from memory import MB, blip
    from ipygpulogger.engine.peaks import PeakTracker
    from ipygpulogger.sources.system.rss_watcher import RisingPeak
    current = lambda: psutil.Process().memory_info().rss
    tracker = PeakTracker(RisingPeak(current, lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
    blip(200)
    low = tracker.open(); blip(50); tracker.close(low)
    high = tracker.open(); blip(400); tracker.close(high)
    tracker.counter.close()
    for one in (low, high):
        peak = one.peak()
        print(peak.quality, round((peak.lo_bytes - one.before_bytes()) / MB), round((peak.hi_bytes - one.before_bytes()) / MB))
"""


def test_a_rising_peak_is_exact_only_on_a_record():
    """Below the old record: bounded by it; above: exact. In a process of its own, whose record is known."""
    program = textwrap.dedent(RISING.format(paths=[str(Path(__file__).parents[1])]))
    # A child begins with the record of who started it (exec keeps it): a shell's is small, ours is not.
    words = ["sh", "-c", '"$0" -c "$1"; true', sys.executable, program]
    lines = subprocess.check_output(words, text=True).splitlines()
    quality, lo, hi = lines[0].split()
    assert quality == "bounded"
    assert int(lo) <= 52
    assert 148 <= int(hi) <= 252
    quality, lo, hi = lines[1].split()
    assert quality == "exact"
    assert abs(int(lo) - 400) <= 2
