"""Where no peak can be reset: exact only on a record, a lower bound without any counter, and never silent."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from memory import MB, blip
from ram import needs_high_water, refuse

from ipygpulogger.engine.peaks import PeakTracker
from ipygpulogger.sources.system import linux
from ipygpulogger.sources.system.process import Process


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
