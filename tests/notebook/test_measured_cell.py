"""The running cell as an object: two ways to end, and each step may be done again."""

import contextlib
from types import SimpleNamespace

import pytest

from ipygpulogger.engine.machine import machine
from ipygpulogger.engine.scope import Scope
from ipygpulogger.lines.tracing import spent
from ipygpulogger.notebook.cell_options import Request
from ipygpulogger.notebook.measured_cell import MeasuredCell


class Part:
    """A part of a measured cell that notes what it is asked for; `fails` raises in `stop`."""

    def __init__(self, fails=None):
        self.asked, self.fails, self.notes = [], fails, ()

    def __getattr__(self, step):
        def noted(*_, **__):
            self.asked.append(step)
            if step == "stop" and self.fails is not None:
                raise self.fails
            return {"moved": (), "notes": (), "result": ()}.get(step)

        return noted


class Growth:
    """Knows how a cell began, and sees that again at its end."""

    has_walked = True

    def begin(self):
        return "as it began"

    def end(self, before, record, *, collected):
        assert before == "as it began"
        assert collected
        return record


@pytest.fixture
def measured():
    """A cell that runs, all of whose parts note what they are asked for."""
    cell = SimpleNamespace(
        label="In [4]", execution_count=4, cell_id=None, source="x = 1", raw="x = 1", status="ok", error=None
    )
    cell.hooks_s = 0.0
    reporter = SimpleNamespace(explaining=lambda *_: contextlib.nullcontext())
    gap = SimpleNamespace(moved=lambda *_: (), notes=lambda _: ())
    one = MeasuredCell(cell, Request(), Scope(), Growth(), reporter, gap=gap, live=Part(), lines=Part())
    one.begin()
    yield one
    with contextlib.suppress(Exception):
        one.drop()
    assert not machine().scopes


def test_it_finishes_once(measured):
    """The record is told once the live display is gone; then everything has ended, and again is nothing."""
    told = []
    measured.end()
    for _ in range(2):
        measured.finish(
            lambda record, cell: told.append((record.label, cell.over, cell.live.asked[-1])), collected=True
        )
    assert told == [("In [4]", False, "drop")]
    assert measured.over
    assert measured.live.asked == ["begin", "end", "drop", "drop"]
    assert measured.lines.asked[0] == "start"
    assert measured.lines.asked[-1] == "stop"


def test_dropped_it_tells_nothing(measured):
    """Whatever went on has ended and what it knew is let go, as often as it is dropped; no record comes of it."""
    for _ in range(2):
        measured.drop()
    measured.finish(lambda *_: pytest.fail("told"), collected=True)
    assert (measured.over, measured.gap, measured._before, measured._autopsy) == (True, None, None, None)
    assert measured.live.asked == ["begin", "drop"]
    assert measured.lines.asked == ["start", "stop"]
    assert not machine().scopes


def test_an_interrupted_finish_reports_once(measured):
    """A Ctrl-C while the record is reported: done again, everything ends, and the record is not there twice."""
    told = []

    def tell(record, _):
        told.append(record)
        raise KeyboardInterrupt

    measured.end()
    with pytest.raises(KeyboardInterrupt):
        measured.finish(tell, collected=True)
    assert not measured.over
    measured.finish(tell, collected=True)
    assert (len(told), measured.over) == (1, True)


def test_our_own_time_is_taken_off_once(measured):
    """However often the end is told."""
    measured.end()
    time_s = measured.scope.time_s
    spent().s += 5
    try:
        measured.end()
    finally:
        spent().s -= 5
    assert measured.scope.time_s == time_s


def test_an_interrupted_drop_is_done_again(measured):
    """A Ctrl-C goes on to whoever dropped it; the next drop ends what is left."""
    measured.lines.fails = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        measured.drop()
    assert not measured.over
    measured.lines.fails = None
    measured.drop()
    assert measured.over
    assert not machine().scopes


def test_a_drop_that_fails_ends_the_rest(measured):
    """What cannot be ended is told once; the display is gone all the same, and nobody tries for ever."""
    measured.lines.fails = OSError("no")
    with pytest.raises(OSError, match="no"):
        measured.drop()
    assert measured.over
    assert measured.live.asked == ["begin", "drop"]
    assert not machine().scopes
    measured.drop()
