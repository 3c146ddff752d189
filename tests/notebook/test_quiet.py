"""Cells that have no report: small ones under `quiet`, and our own magics. All are recorded."""

from dataclasses import replace

import pytest
from handmade import MB, cell, gpu, ram
from hypothesis import given
from hypothesis import strategies as st
from IPython.utils.capture import capture_output
from memory import Block, blip
from reports import REPORT, run

from ipygpulogger import History
from ipygpulogger.notebook.options import Threshold
from ipygpulogger.notebook.report import is_reported
from ipygpulogger.records import ChildrenUsage, Note, NoteKind, Peak, Usage

# -- what a threshold is ------------------------------------------------------------------------------------


MEANT = {
    **dict.fromkeys(("10MB", "10 MB", "10m"), Threshold(10 * MB)),
    " 1.5g ": Threshold(3 * 512 * MB),
    "1s": Threshold(None, 1),
    **dict.fromkeys(("500 ms", ".5S"), Threshold(None, 0.5)),
    "2min": Threshold(None, 120),
    "1 h": Threshold(None, 3600),
    **dict.fromkeys(("10MB 1s", "1s 10MB", "10 MB, 1 s", "1s,10MB"), Threshold(10 * MB, 1)),
}


@pytest.mark.parametrize("text", MEANT)
def test_what_a_text_means(text):
    """A size as a budget has it, a time, or both in any order."""
    assert Threshold.parse(text) == MEANT[text]


@pytest.mark.parametrize(
    "text",
    ["", "10", "0MB", "0s", "-1s", "10MB 5MB", "1s 2s", "0s 10MB", "10MB 1s 5MB", "1s, 2s, 10MB", "10MB1s"],
)
def test_what_is_refused(text):
    """No unit, nothing, below zero, or one kind twice."""
    with pytest.raises(ValueError, match="is not a size, a time or both"):
        Threshold.parse(text)


BIG, SMALL = 10 * MB, 10 * MB - 1
TEN = Threshold(10 * MB)
RECORDS = {  # by what happened: the record of so many bytes
    "RAM consumed": lambda size: cell(ram(0, size)),
    "RAM given back": lambda size: cell(ram(size, 0)),
    "RAM peaked": lambda size: cell(ram(5, 5, 5 + size)),
    "RAM consumed and peaked": lambda size: cell(ram(0, size // 2, size)),
    "the second GPU consumed": lambda size: cell(ram(), gpu(0), gpu(1, 0, size)),
    "a GPU gave back": lambda size: cell(ram(), gpu(0, size, 0)),
    "a GPU peaked": lambda size: cell(ram(), gpu(0, 7, 7, 7 + size)),
    "a context": lambda size: cell(ram(), gpu(context_bytes=size)),
    "outside the allocator": lambda size: cell(ram(), gpu(unattributed_bytes=-size)),
    "for a moment, of an unknown owner": lambda size: cell(ram(), gpu(unknown_rise_bytes=size)),
    "children": lambda size: cell(ram(), children=ChildrenUsage(0, 0, Peak(size, None, "sampled"), 0)),
    "pinned memory": lambda size: cell(ram(), pinned=Usage(0, size, Peak(size, size, "exact"))),
    "between cells": lambda size: cell(ram(), between=(("cpu", -size),)),
}

WARNING = Note(NoteKind.OVER_BUDGET, "Over budget on RAM: highest 9 of 8 MB")


def reported(record, quiet=TEN, *, requested=False):
    return is_reported(record, quiet, requested=requested)


@pytest.mark.parametrize("what", RECORDS)
def test_a_size_is_of_all_that_moved(what):
    """RAM, each device, children: consumed, given back, or needed for a moment. Exactly the size is not under."""
    assert reported(RECORDS[what](BIG))
    assert not reported(RECORDS[what](SMALL))
    assert reported(RECORDS[what](SMALL), quiet=None)


def test_a_time_is_of_the_time_alone():
    """And with both, a cell is under if it is under the one and under the other."""
    large, small = cell(ram(0, BIG)), cell()  # both took 1.5 s
    for record in (large, small):
        assert reported(record, Threshold(None, 1.5))
        assert not reported(record, Threshold(None, 1.6))
    assert reported(large, Threshold(BIG, 1.6))
    assert reported(small, Threshold(BIG, 1.5))
    assert not reported(small, Threshold(BIG, 1.6))


def test_what_is_reported_all_the_same():
    """A cell that did not succeed, went over its budget, or left little headroom; one that asks for a report."""
    assert reported(cell(status="error", error="ValueError"))
    assert reported(cell(status="interrupted", error="KeyboardInterrupt"))
    assert reported(cell(notes=(WARNING,)))
    assert reported(cell(), requested=True)
    full = {"total_bytes": 100 * MB, "reserved_bytes": 0, "allocated_bytes": 0}
    assert reported(cell(ram(), gpu(0, MB, MB, free_bytes=4 * MB, **full)))
    assert not reported(cell(ram(), gpu(0, MB, MB, free_bytes=6 * MB, **full)))


def test_our_own_magics_say_nothing_in_any_case():
    """However they ended; with `%%gpulog` above them they do."""
    for record in (cell(gpulog_only=True), cell(ram(0, BIG), gpulog_only=True, status="error")):
        for quiet in (None, TEN):
            assert not reported(replace(record, notes=(WARNING,)), quiet)
            assert reported(record, quiet, requested=True)


# -- in cells -----------------------------------------------------------------------------------------------


@pytest.fixture
def said(shell, il, capsys):
    """Run a cell; the labels of the reports that it left."""
    shell.user_ns.update(Block=Block, blip=blip, il=il)
    run(shell, "pass")

    def said(code):
        capsys.readouterr()
        run(shell, code)
        return [match["label"] for match in REPORT.finditer(capsys.readouterr().out)]

    return said


WAYS = [
    "il.quiet = '10MB'",
    "%config IPyGPULogger.quiet = '10MB'",
    "%gpulog start quiet=10MB",
    "%gpulog start quiet='10MB'",
    "%gpulog start quiet='10 MB, 1h' compact=False",
]


@pytest.mark.linux("elsewhere a peak below an earlier one counts by its lower bound")
@pytest.mark.parametrize("way", WAYS)
def test_small_cells_say_nothing_and_are_recorded(shell, il, said, tmp_path, way):
    """Large ones speak; history, log and il.data have every cell."""
    il.log, il.log_source = tmp_path / "run.jsonl", True
    said(way)
    before = len(il.history)
    assert said("x = 1") == []
    assert il.data.time_delta == il.record.time_s > 0
    assert il.record.source == "x = 1"
    big = "kept = Block(30)", "blip(30)", "kept.free()"
    for code in (*big[:1], "small = Block(2)", big[1], "blip(2)", big[2], "small.free()"):
        assert bool(said(code)) == (code in big), code
        assert il.record.source == code
    assert len(il.history) == before + 7
    logged = History.load(il.log)[-7:]
    assert [record.source for record in logged] == [record.source for record in il.history[-7:]]
    said("il.quiet = None")
    assert len(said("x = 1")) == 1


@pytest.mark.parametrize("report", ["rich", "text"])
def test_loading_the_extension_reports_nothing_on_itself(shell, capsys, report):
    """The next cell is the first that has a report; the cell that loads it and does more has one."""
    shell.config.IPyGPULogger.report = report
    with capture_output() as caught:
        run(shell, "%load_ext ipygpulogger")
    assert (caught.outputs, "RAM:" in caught.stdout) == ([], False)
    assert len(shell.user_ns["il"].history) == 1
    with capture_output() as caught:
        run(shell, "%reload_ext ipygpulogger\nx = 1")
    assert len(caught.outputs) + caught.stdout.count("RAM:") == 1
    run(shell, "%unload_ext ipygpulogger")


@given(st.text(alphabet="0123456789.,- mMbBsSgh\n"))
def test_any_text_is_a_threshold_or_refused(text):
    """Never one without a size and a time, never one that no cell can be under."""
    try:
        found = Threshold.parse(text)
    except ValueError:
        return
    assert (found.size_bytes, found.time_s) != (None, None)
    assert found.size_bytes is None or found.size_bytes > 0
    assert found.time_s is None or found.time_s > 0


def test_of_a_peak_that_is_not_exact_the_lower_bound_counts():
    """As for a budget: one that is only bounded by what the process once held makes no cell large."""
    usage = cell(ram()).gen
    for peak in (Peak(0, 100 * MB, "bounded"), Peak(0, None, "sampled")):
        assert not reported(cell(type(usage)(0, 0, peak)))
