"""The running cell as an object: two ways to end, and each step may be done again."""

import contextlib
from types import SimpleNamespace

import pytest

from ipygpulogger.engine.machine import machine
from ipygpulogger.engine.scope import Scope
from ipygpulogger.notebook.cell import Cell
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

        return noted


@pytest.fixture
def measured():
    """A cell that runs, all of whose parts note what they are asked for."""
    cell = Cell(SimpleNamespace(raw_cell="x = 1", store_history=True), 4)
    gap = SimpleNamespace(told=lambda *_: ((), ()))
    one = MeasuredCell(cell, Scope(), None, None, gap=gap, live=Part(), lines=Part())
    one.begin()
    yield one
    with contextlib.suppress(Exception):
        one.drop()
    assert not machine().scopes


def test_dropped_it_keeps_nothing(measured):
    """Whatever went on has ended and what it knew is let go, as often as it is dropped."""
    for _ in range(2):
        measured.drop()
    assert (measured.over, measured.gap, measured.before, measured.oom) == (True, None, None, None)
    assert measured.live.asked == ["begin", "drop"]
    assert measured.lines.asked == ["start", "stop"]
    assert not machine().scopes


def test_an_interrupted_report_is_not_made_again(shell, il, monkeypatch):
    """A Ctrl-C while the record is reported: everything ends, and the record is there once."""
    shown = []

    def show(record, measured):
        shown.append((record, measured.over))
        raise KeyboardInterrupt

    monkeypatch.setattr(il, "_show", show)
    shell.run_cell("x = 1", store_history=True)
    assert [(record, False) for record in il.history] == shown
    assert len(shown) == 1
    assert not il._cells
    assert not machine().scopes


def test_a_record_goes_on_without_the_step_that_fails(shell, il, monkeypatch, capsys):
    """It is said once; the other steps and the report come all the same."""

    def fails(*_):
        raise OSError("no")

    monkeypatch.setattr(il._growth, "end", fails)
    for _ in range(2):
        shell.run_cell("x = 1", store_history=True)
    out, err = capsys.readouterr()
    assert err == "ipygpulogger could not tell who holds memory: OSError: no\n"
    assert (len(il.history), out.count("In [")) == (2, 2)


def test_a_drop_that_fails_ends_the_rest(measured):
    """What cannot be ended is told once; the display is gone all the same, and nobody tries for ever."""
    measured.lines.fails = OSError("no")
    with pytest.raises(OSError, match="no"):
        measured.drop()
    assert measured.over
    assert measured.live.asked == ["begin", "drop"]
    assert not machine().scopes
    measured.drop()
