"""Where something else resets the kernel's mark, and it stood higher before, the peak is not called exact."""

import os
from pathlib import Path

from memory import MB, blip
from ram import GRAIN, NVML, needs_high_water

from ipygpulogger.engine.machine import Machine
from ipygpulogger.engine.peaks import PeakTracker
from ipygpulogger.engine.scope import Scope
from ipygpulogger.records import Measurement
from ipygpulogger.render import text
from ipygpulogger.sources.system import linux
from ipygpulogger.sources.system.high_water_mark import HighWaterMark
from ipygpulogger.sources.system.process import Process


@needs_high_water
def test_a_fallen_mark_shows_a_reset():
    """A mark seen high and then low was reset: at least what was seen, with a note once, and exact again after."""
    on, said = Machine(process=Process(HighWaterMark()), nvml=NVML, frameworks=()), []
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(2):
        scope = Scope(on).open()
        blip(32)
        on.ram.look()
        linux.reset_mark()
        scope.close()
        measurement = scope.result(Measurement, "x")
        assert "(peak at least)" in text.report(measurement)
        assert abs(measurement.gen.peaked_bytes - 32 * MB) <= GRAIN
        said += [note for note in measurement.notes if "clear_refs" in note]
    assert len(said) == 1
    after = on.ram.open()  # one reset is one scope's
    on.ram.close(after)
    assert after.peak().quality == "exact"
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@needs_high_water
def test_the_resets_of_a_forked_child_are_its_own():
    """A child that measures is no stranger to its parent, and leaves its peak alone."""
    tracker = PeakTracker(HighWaterMark())
    interval = tracker.open()
    blip(64)
    pid = os.fork()
    if pid == 0:
        for _ in range(3):
            mine = tracker.open()
            tracker.close(mine)
        os._exit(mine.reset_elsewhere)
    assert os.waitpid(pid, 0)[1] == 0
    tracker.close(interval)
    assert interval.peak().lo_bytes - interval.before_bytes() >= 62 * MB
    assert not interval.reset_elsewhere
