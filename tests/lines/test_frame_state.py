"""Hits and time of lines, and the line that a frame's memory is attributed to where lines run very often."""

import time
from itertools import count

import pytest
from line_cell import Cell, about
from memory import MB

from ipygpulogger.engine.machine import machine
from ipygpulogger.lines import backends, line_profiler, tracing
from ipygpulogger.runtime.clock import this_thread


@pytest.mark.parametrize(
    ("program", "hits"),
    [
        ("for i in range(3): pass\n", {1: 1}),
        ("x = [i for i in range(5)]\n", {1: 1}),
        ("x = sum(i for i in range(5))\n", {1: 1}),
        ("x = {i: i for i in range(5)}; y = {i for i in x}\n", {1: 1}),
        ("f = lambda: 1\nx = f() + f()\n", {1: 3, 2: 1}),
        ("def f(n): return n and f(n - 1)\nf(4)\n", {1: 6, 2: 1}),
        ("x = sorted([3, 1, 2], key=lambda v: -v)\n", {1: 1}),
        ("def g():\n    for i in range(3):\n        yield i\nx = list(g())\n", {1: 1, 2: 4, 3: 3, 4: 1}),
        (
            "class A:\n    x = 1\n    def f(self):\n        return 2\nA().f()\n",
            {1: 1, 2: 1, 3: 1, 4: 1, 5: 1},
        ),
    ],
)
def test_hits(program, hits):
    """A hit is a new line, or the same one by a jump back; expressions on the line that runs them add none."""
    assert Cell(program).run().hits() == hits


def test_200_000_iterations():
    """A hot loop is only counted from some time on: hits exact, its memory in its header, rare lines measured."""
    cell = Cell(
        """\
total, kept = 0, []
for i in range(200_000):
    total += i
    if i % 50_000 == 49_999:
        kept.append(Block(16))
after = Block(5)
"""
    ).run()
    assert cell.hits() == {1: 1, 2: 200_001, 3: 200_000, 4: 200_000, 5: 4, 6: 1}
    loop = [usage for usage in cell.usages if 2 <= usage.lineno <= 5]
    assert sum(usage.gen.consumed_bytes for usage in loop) / MB == pytest.approx(64, abs=2)
    assert cell.used("after") == about(5, 0)
    assert [usage.complete for usage in cell.usages] == [True, True, False, False, True, True]
    (note,) = cell.lines.notes(lambda _: ("", 0))
    assert note == (
        "lines 3-4: measured until 1,000 lines had run there, from then on their memory is added up in line 2"
    )


def test_a_loop_in_a_function_called_often():
    """Calls of a function with a loop of its own degrade as well: no boundaries without end."""
    before = machine().ram.counter.observe
    looks = count()
    machine().ram.counter.observe = lambda: (next(looks), before())[1]
    try:
        cell = Cell(
            "def f():\n    for i in range(3):\n        pass\n    return 1\nfor j in range(20_000):\n    f()\n"
        ).run()
    finally:
        del machine().ram.counter.observe
    assert cell.hits() == {1: 1, 2: 80_000, 3: 60_000, 4: 20_000, 5: 20_001, 6: 20_000}
    assert next(looks) < 10 * line_profiler.MEASURED


def test_a_hot_expression_within_its_own_line_misses_nothing():
    """A line that runs a lambda or an expression 3,000 times is measured as one: exact, without a note."""
    cell = Cell(
        "kept = []\nlist(map(lambda i: i == 2_500 and kept.append(Block(32)), range(3_000)))\n"
        "total = sum(i for i in range(3_000))\nlate = (i == 2_500 and kept.append(Block(16)) for i in range(3_000))\n"
        "total = sum(bool(i) for i in late)\nafter = Block(5)\n"
    ).run()
    assert cell.used("list(map") == about(32, 0)
    assert cell.used("total = sum(bool") == about(16, 0)
    complete = {usage.lineno: usage.complete for usage in cell.usages}
    assert complete == {1: True, 2: True, 3: True, 4: False, 5: True, 6: True}
    (note,) = cell.lines.notes(lambda _: ("", 0))
    assert note.startswith("line 4: measured until 1,000 lines had run there")


def test_a_hot_generator_leaves_its_memory_to_its_callers():
    """A loop that yields again and again cannot hold memory meanwhile: the lines that run it have it."""
    cell = Cell(
        """\
def values():
    for i in range(20_000):
        if i == 15_000: kept.append(Block(24))
        yield i
kept = []
n = sum(values())
"""
    ).run()
    assert cell.used("n =") == about(24, 0)
    assert cell["yield"].hits == 20_000


def test_the_time_of_lines(monkeypatch):
    """A line's time contains what it calls, and the lines of one level add up to the whole."""
    now_s = [100.0]
    for module in (backends, tracing):
        monkeypatch.setattr(module, "monotonic_s", lambda: now_s[0])

    def work(seconds):
        now_s[0] += seconds

    cell = Cell("def f():\n    work(5)\nfor i in range(3):\n    work(2)\nf()\n", work=work).run()
    assert {usage.lineno: usage.time_s for usage in cell.usages} == {1: 0, 2: 5, 3: 0, 4: 6, 5: 5}


def test_the_time_of_lines_is_without_ours():
    """What measuring costs is overhead, and in no line."""
    cell = Cell("for i in range(2000):\n    i * i\n")
    began_s, before_s = time.perf_counter(), this_thread.overhead_s
    cell.run()
    whole_s, ours_s = time.perf_counter() - began_s, this_thread.overhead_s - before_s
    assert 0 < ours_s < whole_s
    assert sum(usage.time_s for usage in cell.usages) <= whole_s - ours_s


@pytest.mark.linux("elsewhere what a line needed is a range")
def test_a_hot_loops_memory_is_its_headers():
    """What hot lines keep and need, once they are only counted, is in the loop's own line, exact."""
    cell = Cell(
        """\
def odd(i):
    return i == 30_000 and (kept.append(Block(48)), held_transient(100))
kept = []
for i in range(40_000):
    odd(i)
"""
    ).run()
    assert cell.used("for") == about(48, 100)
    assert cell["for"].gen.peak.quality == "exact"
    assert cell["return"].hits == cell["odd"].hits == 40_000
    assert cell["return"].gen.peak.quality == cell["odd"].gen.peak.quality == "sampled"
    assert len(cell.lines.notes(lambda _: ("", 0))) == 2


def test_a_hot_loop_that_waits():
    """The first line of a statement with `await` is that of the loop as well, and no line above it."""
    cell = Cell(
        "import asyncio\nkept = []\nfor i in range(2_000):\n    await asyncio.sleep(0)\n"
        "    if i in (1_000, 1_800): kept.append(Block(24))\n"
    ).run()
    assert cell.used("for") == about(48, 0)
    assert [usage.lineno for usage in cell.usages] == [1, 2, 3, 4, 5]
