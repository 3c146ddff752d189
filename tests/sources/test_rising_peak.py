"""Where no peak can be reset: exact on a record alone; else bounded, or at least what the sampler saw."""

import importlib.util
import os
import sys
import threading
import types

import pytest
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
    on = Machine(process=Process(RisingPeak(lambda: (current(), None))), nvml=NVML, frameworks=())
    seen = threading.Event()

    def look():
        on.sample()
        seen.set()

    on.sampler = Sampler(look, delay_s=0.0, period_s=0.0)
    scope = Scope(on).open()
    block = Block(64)
    for _ in range(2):  # the second look began after the block was there
        seen.clear(), seen.wait(20)
    block.free()
    scope.close()
    on.close()
    gen = scope.result(Measurement, "x").gen
    assert gen.peak.quality == "sampled"
    assert abs(gen.peak.lo_bytes - gen.before_bytes - 64 * MB) <= GRAIN


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


@pytest.mark.linux("each system has one unit")
def test_the_unit_of_the_rising_peak(monkeypatch):
    """getrusage(2): kilobytes on Linux, bytes on macOS."""
    spec = importlib.util.spec_from_file_location(f"{linux.__name__}_on_macos", linux.__file__)
    on_macos = importlib.util.module_from_spec(spec)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "darwin")
        spec.loader.exec_module(on_macos)
    usage = types.SimpleNamespace(ru_minflt=1, ru_majflt=2, ru_maxrss=5 * MB)
    monkeypatch.setattr(linux.resource, "getrusage", lambda _: usage)
    assert on_macos.faults_and_mark() == ((1, 2), 5 * MB)
    assert linux.faults_and_mark() == ((1, 2), 5 * MB * 1024)


@pytest.mark.linux("gVisor is a Linux")
def test_without_any_counter_it_samples(monkeypatch):
    """Where the kernel shows no high-water mark (gVisor) what is seen is "at least", and that is said."""
    monkeypatch.setattr(linux, "reset_mark", refuse)
    monkeypatch.setattr(linux, "resident_and_mark_bytes", lambda: b"".index(b"VmHWM:"))
    process = Process()
    assert process.counter.peak_class == "sampled"
    assert process.diagnose().state == "sampled"


@needs_high_water
def test_a_rising_peak_is_exact_only_on_a_record():
    """Below the old record: bounded by it; above: exact."""
    tracker = PeakTracker(RisingPeak(linux.resident_and_mark_bytes))
    blip(64)
    record_bytes = linux.resident_and_mark_bytes()[1]
    low = tracker.open()
    blip(16)
    tracker.close(low)
    assert low.peak().quality == "bounded"
    assert low.peak().lo_bytes <= low.before_bytes() + 16 * MB + GRAIN
    assert abs(low.peak().hi_bytes - record_bytes) <= GRAIN
    high = tracker.open()
    size_mb = (record_bytes - high.before_bytes()) // MB + 32
    blip(size_mb)
    tracker.close(high)
    assert high.peak().quality == "exact"
    assert abs(high.peak().lo_bytes - high.before_bytes() - size_mb * MB) <= GRAIN
