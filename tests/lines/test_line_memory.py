"""The memory of one line over all its intervals, and of lines within lines."""

import pytest
from line_cell import Cell, about
from memory import MB

from ipygpulogger.engine.machine import machine
from ipygpulogger.engine.scope import Measurement, Scope


def test_consumed_adds_up_and_peaked_is_the_most_of_a_single_visit():
    """Over its hits a line's consumption is a sum, its peaked a maximum."""
    cell = Cell("kept = []\nfor size in (10, 20, 30):\n    kept.append(Block(size)); blip(size)\n").run()
    assert cell.used("kept.append") == about(60, 30)
    assert cell["kept.append"].hits == 3
    assert cell["for"].hits == 4


def test_recursion_is_one_interval():
    """A line that is open several times counts its memory once, and every beginning."""
    cell = Cell(
        """\
def down(n, kept):
    kept.append(Block(10))
    if n:
        down(n - 1, kept)
    held_transient(20)
kept = []
down(3, kept)
"""
    ).run()
    assert cell["kept.append"].hits == 4
    assert cell.used("kept.append") == about(40, 0)
    assert cell["down(n"].hits == 3
    assert cell.used("down(n") == about(30, 20)
    assert cell.used("held_transient") == about(0, 20)
    assert cell.used("down(3") == about(40, 20)
    assert cell["down(n"].time_s <= cell["down(3"].time_s


def test_the_lines_of_one_level_add_up():
    """The sum over the lines of one level is what the block consumed, and the highest of them its peak."""
    scope = Scope()
    cell = Cell(
        """\
a = Block(30)
held_transient(90)
b = Block(10)
a.free()
c = [Block(3) for i in range(5)]
"""
    )
    scope.open()
    cell.run()
    scope.close()
    whole = scope.result(Measurement, "all")
    assert sum(usage.gen.consumed_bytes for usage in cell.usages) == pytest.approx(
        whole.gen.consumed_bytes, abs=2 * MB
    )
    assert whole.gen.peaked_bytes / MB == pytest.approx(120 - 25, abs=2)
    assert whole.gen.peak.quality == "exact"
    assert max(usage.gen.peak.lo_bytes for usage in cell.usages) == pytest.approx(
        whole.gen.peak.lo_bytes, abs=2 * MB
    )


def test_a_calling_line_contains_what_it_called():
    """Inclusive in the calling lines, however deep; exclusive where it happened."""
    cell = Cell(
        """\
def inner():
    held_transient(40)
    return Block(20)
def outer():
    mine = inner()
    blip(60)
    return mine
got = outer()
"""
    ).run()
    assert cell.used("held_transient") == about(0, 40)
    assert cell.used("return Block") == about(20, 0)
    assert cell.used("mine =") == about(20, 20)
    assert cell.used("blip") == about(0, 60)
    assert cell.used("got =") == about(20, 60)


def test_a_counter_that_fails_is_said():
    """A counter that cannot be read for a while is a note, and the lines then open are "at least"."""
    counter = machine().ram.counter
    original, broken = counter.look, []

    def look():
        if broken:
            raise OSError("gone")
        return original()

    counter.look = look
    try:
        cell = Cell("a = 1\nbroken.append(1)\nb = 2\nbroken.clear()\nc = Block(6)\n", broken=broken).run()
    finally:
        del counter.look
    assert cell["broken.append"].gen.peak.quality == "sampled"
    assert cell["a ="].gen.peak.quality == cell["c ="].gen.peak.quality == "exact"
    assert cell.used("c =") == about(6, 0)
    assert any("gone" in note for note in cell.lines.notes)
