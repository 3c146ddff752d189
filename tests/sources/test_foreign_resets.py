"""Whatever else resets the kernel's mark, no peak that it may have erased is called exact."""

import os
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from memory import MB, blip
from ram import GRAIN, NVML, needs_high_water

from ipygpulogger.engine.machine import Machine
from ipygpulogger.engine.peaks import PeakTracker
from ipygpulogger.engine.scope import Scope
from ipygpulogger.records import Measurement
from ipygpulogger.render import text
from ipygpulogger.sources.system import linux, process
from ipygpulogger.sources.system.process import HighWaterMark, Process


@needs_high_water
@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(["look", "blip", "reset", "other path"]), max_size=8))
def test_a_mark_that_something_else_resets(steps):
    """Whenever it came, and however low the mark stood: what it may have erased is never called exact."""
    tracker, truth_mb = PeakTracker(HighWaterMark()), 0
    interval = tracker.open()
    for step in steps:
        if step == "look":
            tracker.fold(interval)
        elif step == "blip":
            blip(32)
            truth_mb = 32
        elif step == "reset":
            linux.reset_mark()
        else:
            Path(f"/proc/{os.getpid()}/clear_refs").write_text("5")
    tracker.close(interval)
    peak, extra = interval.peak(), interval.peak().lo_bytes - interval.before_bytes()
    foreign = "reset" in steps or "other path" in steps
    assert interval.reset_elsewhere == foreign == (peak.quality == "sampled")
    assert extra <= truth_mb * MB + GRAIN
    if not foreign:
        assert extra >= truth_mb * MB - GRAIN
    else:
        assert "/proc/self/clear_refs" in tracker.loss(interval)
    after = tracker.open()  # one reset is one scope's
    tracker.close(after)
    assert after.peak().quality == "exact"


@needs_high_water
def test_a_fallen_mark_shows_a_reset_that_nothing_reports(monkeypatch):
    """Where inotify sees nothing, a mark seen high and then low was reset all the same."""
    monkeypatch.setattr(process.ResetWatch, "start", lambda _: None)
    tracker = PeakTracker(HighWaterMark())
    interval = tracker.open()
    blip(32)
    tracker.fold(interval)
    linux.reset_mark()
    tracker.close(interval)
    assert interval.reset_elsewhere
    assert interval.peak().quality == "sampled"
    assert abs(interval.peak().lo_bytes - interval.before_bytes() - 32 * MB) <= GRAIN


@needs_high_water
def test_the_resets_of_a_forked_child_are_its_own():
    """A child that measures is no stranger to its parent, takes none of its reports, and leaves its peak alone."""
    tracker = PeakTracker(HighWaterMark())
    interval = tracker.open()
    blip(64)
    for foreign in (False, True):
        if foreign:
            linux.reset_mark()
        pid = os.fork()
        if pid == 0:
            for _ in range(3):
                mine = tracker.open()
                tracker.close(mine)
            os._exit(not foreign and mine.reset_elsewhere)
        assert os.waitpid(pid, 0)[1] == 0
        if not foreign:
            tracker.fold(interval)
            assert interval.peak().lo_bytes - interval.before_bytes() >= 62 * MB
            assert not interval.reset_elsewhere
    tracker.close(interval)
    assert interval.reset_elsewhere


@needs_high_water
def test_a_note_says_once_that_something_resets_the_mark():
    """The scope in which it happened says why its peak is "at least"; the next ones need not."""
    on = Machine(process=Process(HighWaterMark()), nvml=NVML, frameworks=())
    said = []
    for _ in range(2):
        scope = Scope(on).open()
        linux.reset_mark()
        scope.close()
        measurement = scope.result(Measurement, "x")
        assert "(peaked at least)" in text.report(measurement)
        said += [note for note in measurement.notes if "clear_refs" in note]
    assert len(said) == 1
    before = len(list(Path("/proc/self/fd").iterdir()))
    on.close()
    left = before - len(list(Path("/proc/self/fd").iterdir()))
    assert left in (1, 2), "the kernel's reports may still be for another watch"
