"""The sampling process: it sees what C calls hide, sleeps between scopes, and ends with us."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest
from memory import MB, Block, held_transient
from ram import GRAIN, current

from ipygpulogger.engine.peaks import PeakTracker
from ipygpulogger.sources.system.rss_watcher import RisingPeak, RssWatcher


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
    watcher = RssWatcher(period_s=0.0)

    def states():
        return {psutil.Process(watcher.pid).status() for _ in range(100)}

    try:
        for _ in range(2):
            watcher.watch(on=True)
            wait_until(watcher.highest_bytes)
            wait_until(lambda: psutil.STATUS_RUNNING in states())
            watcher.watch(on=False)
            wait_until(lambda: states() == {psutil.STATUS_SLEEPING})
            used = psutil.Process(watcher.pid).cpu_times()
            assert states() == {psutil.STATUS_SLEEPING}
            assert psutil.Process(watcher.pid).cpu_times() == used
    finally:
        watcher.close()


def test_the_sampling_process_is_restarted_if_killed(tracker):
    """Killed in the middle, it is back for the next scope, and nobody waits for it."""
    assert held(tracker, 24) >= 22 * MB
    interval = tracker.open()
    os.kill(tracker.counter.watcher.pid, signal.SIGKILL)
    tracker.counter.watcher._child.wait()
    tracker.close(interval)
    assert held(tracker, 24) >= 22 * MB


def test_the_sampling_process_ignores_interrupts_and_ends_with_us():
    """SIGINT does not stop it; the end of its parent does."""
    program = textwrap.dedent(
        """
        import os, signal, time
        from ipygpulogger.sources.system.rss_watcher import RssWatcher
        watcher = RssWatcher(); watcher.watch(on=True)
        while not watcher.highest_bytes(): time.sleep(0.001)
        os.kill(watcher.pid, signal.SIGINT)
        while not watcher.highest_bytes(): time.sleep(0.001)
        print(watcher.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    pid = int(done.stdout)
    wait_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
