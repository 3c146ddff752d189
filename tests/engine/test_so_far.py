"""What a scope tells while it is open."""

import pytest
from memory import MB, Block, blip

from ipygpulogger.engine.frameworks import Notes
from ipygpulogger.engine.machine import machine
from ipygpulogger.engine.scope import Scope
from ipygpulogger.records import Measurement


def test_so_far_is_what_would_be_told_now():
    """Consumed and peaked so far, after each step; the final figures know nothing of the questions."""
    scope = Scope().open()
    told = [scope.so_far("x").gen]
    kept = Block(64)
    told.append(scope.so_far("x").gen)
    blip(200)
    told.append(scope.so_far("x").gen)
    kept.free()
    told.append(scope.so_far("x").gen)
    scope.close()
    final = scope.result(Measurement, "x").gen
    consumed = [round(gen.consumed_bytes / MB) for gen in (*told, final)]
    peaked = [round(gen.peaked_bytes / MB) for gen in (*told, final)]
    for found, truth in ((consumed, [0, 64, 64, 0, 0]), (peaked, [0, 0, 200, 264, 264])):
        assert [abs(a - b) <= 2 for a, b in zip(found, truth, strict=True)] == [True] * 5, (found, truth)
    assert final.peak.quality == "exact"


def test_asking_takes_no_note_and_sets_no_clock(monkeypatch):
    """What is missing is said in the record, whoever asked before; the time is the scope's own."""
    on = machine()
    scope = Scope().open()
    monkeypatch.setattr(on, "notes", Notes())
    on.notes.add("a driver went away")
    assert scope.so_far("x").notes == ()
    assert scope.time_s == 0.0
    scope.close()
    time_s = scope.time_s
    scope.so_far("x")  # a thread that comes late
    assert scope.time_s == time_s
    assert scope.result(Measurement, "x").notes == ("a driver went away",)


def test_asking_lists_no_processes(monkeypatch):
    """Neither the children nor the driver's processes: no question that takes milliseconds."""
    scope = Scope().open()
    on = machine()
    monkeypatch.setattr(on.child_peaks, "observe", lambda: pytest.fail("asked for children"))
    monkeypatch.setattr(on.nvml, "processes", lambda _: pytest.fail("asked for processes"))
    scope.so_far("x")
    monkeypatch.undo()
    scope.close()


def test_a_scope_that_is_not_open_yet_tells_nothing():
    """No time since nowhere, no figures of before."""
    with pytest.raises(AssertionError):
        Scope().so_far("x")
