"""General RAM at its peak, by the line that asked for it."""

import json
import os
import subprocess
import sys

import pytest
from interrupt_injection import STRIKES, strike
from memory import MB

from ipygpulogger import measure
from ipygpulogger.allocator.places import Place
from ipygpulogger.breakdown.ram import _unseen
from ipygpulogger.breakdown.recording import PeakRecording
from ipygpulogger.breakdown.rows import HELD, Deleted, LabelledBlock, rows_of
from ipygpulogger.engine.scope import Scope
from ipygpulogger.records import CPU, AtPeak, Measurement
from ipygpulogger.sources.system import memray as source

pytestmark = pytest.mark.linux("memray does not run on Windows", "macos")
needs_memray = pytest.mark.skipif(not source.installed(), reason="memray is not installed")
FILE = "test_ram.py"
CALL = "return len(bytearray(size * MB))"


def at_peak(work):
    """The record of a call, as `measure(peak=True)` makes it."""
    recording, scope = PeakRecording(ram=True), Scope()
    recording.begin()
    scope.open()
    try:
        work()
    finally:
        scope.close()
        recording.end()
        measurement = recording.result(scope.result(Measurement, "block"))
        recording.drop()
    return measurement


def told_by(program):
    """What a program prints as JSON, in a process of its own."""
    command = [sys.executable, "-c", program]
    return json.loads(subprocess.check_output(command, text=True, timeout=60))


def large(measurement, least_bytes=MB):
    return [
        (row.kind, row.name, row.size_bytes)
        for row in measurement.at_peak
        if row.size_bytes >= least_bytes and (row.name, row.size_bytes) != ("small objects of Python", MB)
    ]


@needs_memray
def test_each_line_has_what_it_asked_for(monkeypatch):
    """numpy, C code and pandas, within 1 %; what is kept is told from what was freed."""
    numpy, pandas = pytest.importorskip("numpy"), pytest.importorskip("pandas")
    kept = {}
    pandas.DataFrame({"warm": [1.0]}) * 2  # what these libraries import late

    def work():
        kept["array"] = numpy.ones(8 * MB)
        kept["frame"] = pandas.DataFrame(numpy.ones((MB, 4)))
        assert len(b"x" * (48 * MB))
        b"x" * (16 * MB)

    found = at_peak(work)
    first = work.__code__.co_firstlineno + 1
    truth = [
        ("variables", "kept", 64 * MB),
        ("temporaries", 'assert len(b"x" * (48 * MB))', 48 * MB),
        ("variables", "kept", 32 * MB),
    ]
    assert [row[:2] for row in large(found)] == [row[:2] for row in truth]
    assert [row[2] for row in large(found)] == [pytest.approx(size, rel=0.01) for *_, size in truth]
    assert {row.device for row in found.at_peak} == {"cpu"}
    assert {row.place for row in found.at_peak if row.size_bytes > MB} == {
        f"{FILE}:{line}" for line in (first, first + 1, first + 2)
    }
    assert sum(row.size_bytes for row in found.at_peak) == pytest.approx(144 * MB, abs=2 * MB)


@needs_memray
def test_a_block_and_each_call_have_theirs():
    """By `measure(peak=True)`, one within the other."""

    @measure(peak=True)
    def call(size):
        return len(bytearray(size * MB))

    with measure("block", peak=True) as block:
        kept = bytearray(8 * MB)
        call(4)
    call(2)
    assert large(block) == [("variables", "kept", 8 * MB + 1), ("temporaries", CALL, 4 * MB + 1)]
    assert large(block.last) == large(block)
    assert not block.last.notes
    del kept


SMALL = """
import json, sys
from ipygpulogger import measure
kept = []
with measure(peak=True) as m:
    kept.extend(float(n) for n in range(300_000))
print(json.dumps([(row.kind, row.name, row.size_bytes) for row in m.at_peak if row.size_bytes >= 2 << 20]))
"""


@needs_memray
def test_small_objects_stand_by_themselves():
    """Python asks for a megabyte at a time for them, so the line that needed the next one is that of a few.

    In a process of its own: one that ran other tests has room left in what Python asked for then.
    """
    small, table = told_by(SMALL)
    assert small[:2] == ["variables", "small objects of Python"]
    assert small[2] == pytest.approx(300_000 * 32, abs=2 * MB)  # an object takes multiples of 16 bytes
    assert table[0] == "variables" and table[2] == pytest.approx(300_000 * 8, rel=0.15)


@needs_memray
def test_our_own_work_is_not_in_it():
    """An empty scope has hardly anything; a recording within another is refused, and the outer one is right."""
    assert sum(row.size_bytes for row in at_peak(lambda: None).at_peak) < 8 << 10
    inner = []

    def work():
        block = bytearray(8 * MB)
        inner.append(at_peak(lambda: len(bytearray(4 * MB))))
        del block
        assert bytearray(9 * MB)

    outer = at_peak(work)
    assert [size // MB for _, _, size in large(outer)] == [8, 4]
    assert inner[0].at_peak == ()
    assert "it is recorded for another measurement" in str(inner[0].notes[-1])


@needs_memray
def test_what_comes_after_the_end_is_not_in_it():
    """A block that lives from the end until the rows are read makes no peak, and hides none."""
    recording, scope = PeakRecording(ram=True), Scope()
    recording.begin()
    scope.open()
    kept = bytearray(8 * MB)
    assert bytearray(4 * MB)
    scope.close()
    recording.end()
    later = bytearray(64 * MB)
    found = recording.result(scope.result(Measurement, "block"))
    names = ("kept", 8 * MB + 1), ("assert bytearray(4 * MB)", 4 * MB + 1)
    assert [row[1:] for row in large(found)] == [*names]
    del kept, later


def test_only_a_line_of_the_cell_itself_binds_its_variable(tmp_path):
    """Neither what a function of the cell asked for, nor the same line of another file, is the variable's."""
    cell, other = tmp_path / "cell.py", tmp_path / "other.py"
    cell.write_text("a = bytes(9)\nb = 2\ndel a\n", encoding="utf-8")
    deleted = Deleted([[(str(cell), 2, "<module>")]], None)
    assert deleted.name_of([(str(cell), 1, "<module>")]) == "a (deleted)"
    assert deleted.name_of([(str(cell), 1, "<lambda>"), (str(cell), 1, "<module>")]) == ""
    assert deleted.name_of([(str(other), 1, "<module>")]) == ""
    assert deleted.name_of([(str(cell), 2, "<module>")]) == ""


HERE = Place("In [1]:2", "x = f()")


def test_a_row_has_its_blocks():
    """Their sizes and their names, three at most."""

    def row(*blocks):
        return rows_of(CPU, [LabelledBlock("variables", HERE, name, *sizes) for name, *sizes in blocks])

    held = [(name, 200_000, HELD) for name in ("a", "b", "a", "c", "")]
    assert row(*held) == (AtPeak(CPU, "variables", "a, b, c", "In [1]:2", 1_000_000, 5),)
    more = AtPeak(CPU, "variables", "a, b, c and 1 more", "In [1]:2", 1_010_000, 6)
    assert row(*held, ("d", 10_000, HELD)) == (more,)
    assert row(("", 10_000)) == (AtPeak(CPU, "variables", "x = f()", "In [1]:2", 10_000, 1),)


UNSEEN = """
import ctypes, json
from ipygpulogger import measure
malloc = ctypes.CDLL(None).malloc
malloc.restype = ctypes.c_void_p
with measure(peak="all") as m:
    address = malloc(ctypes.c_size_t(80 << 20))
    ctypes.memset(address, 1, 80 << 20)
    kept = bytearray(80 << 20)
print(json.dumps(m.last.notes))
"""


@needs_memray
def test_what_memray_does_not_see_is_said():
    """Such as what ctypes allocates; not where it is little beside the rest."""
    (note,) = told_by(UNSEEN)
    assert note.startswith(
        "Of the 160 MB by which RAM rose to its highest, at least 80 MB are not in the table: "
    )
    row = AtPeak("cpu", "variables", "x", "", 100 * MB, 1)
    assert [len(_unseen([row], rise_bytes)) for rise_bytes in (133 * MB, 134 * MB)] == [0, 1]
    assert [len(_unseen([row, row], rise_mb * MB)) for rise_mb in (266, 267)] == [0, 1]


def test_a_block_without_a_report_warns_that_memray_lacks(monkeypatch, fresh_machine):
    """Else what was asked for would be missing without a word."""
    monkeypatch.setattr(source, "installed", lambda: False)
    with pytest.warns(RuntimeWarning, match=r"pip install 'ipygpulogger\[memray\]'"), measure(peak=True):
        pass


def test_without_memray_one_sentence_says_how(monkeypatch, fresh_machine):
    """Once in a process."""
    monkeypatch.setattr(source, "installed", lambda: False)
    notes = [at_peak(lambda: None).notes for _ in range(2)]
    assert [[note for note in one if "memray" in note] for one in notes] == [[source.ABSENT], []]
    assert "pip install 'ipygpulogger[memray]'" in source.ABSENT


@needs_memray
def test_an_interrupt_anywhere_leaves_nothing_behind(tmp_path):
    """No profile function, no tracker, no file, and the next recordings are right; a sample of the points."""
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    assert strike(env, "walk", "ram", STRIKES) >= STRIKES / 2
