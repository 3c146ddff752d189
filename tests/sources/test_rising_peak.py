"""Where no peak can be reset: exact on a record alone; else bounded, or at least what the sampler saw."""

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

from memory import MB, Block, blip
from ram import GRAIN, NVML, current, needs_high_water, refuse

from ipygpulogger.engine.machine import Machine
from ipygpulogger.engine.peaks import PeakTracker
from ipygpulogger.engine.sampler import Sampler
from ipygpulogger.engine.scope import Scope
from ipygpulogger.records import Measurement
from ipygpulogger.sources.system import linux
from ipygpulogger.sources.system.process import Process, RisingPeak


def test_a_long_scope_is_sampled():
    """Without any counter what was held while the sampler looked is in the peak, as "at least"."""
    on, seen = (
        Machine(process=Process(RisingPeak(current, None)), nvml=NVML, frameworks=()),
        threading.Event(),
    )

    def look():
        on.sample()
        seen.set()

    on.sampler = Sampler(look, delay_s=0.0, period_s=0.0)
    scope = Scope(on).open()
    block = Block(64)
    (
        seen.clear(),
        seen.wait(20),
        seen.clear(),
        seen.wait(20),
    )  # the second look began after the block was there
    block.free()
    scope.close()
    on.close()
    peak = scope.result(Measurement, "x").gen.peak
    assert peak.quality == "sampled"
    assert (
        64 * MB - GRAIN <= peak.lo_bytes - scope.result(Measurement, "x").gen.before_bytes <= 64 * MB + GRAIN
    )


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
    from ipygpulogger.sources.system.process import RisingPeak
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
