"""Lines of plain Python, to the MB: what each one kept, needed for a moment, how often and for how long."""

import gc
import json
import linecache
import os
import signal
import sys
import threading
import time
from itertools import count

import pytest
from memory import MB, Block, blip, held_transient

from ipygpulogger.engine.machine import machine
from ipygpulogger.engine.scope import Measurement, Scope
from ipygpulogger.lines import frame_state as visits
from ipygpulogger.lines.line_profiler import Lines

CELL = ("", 0)
numbers = count()


@pytest.fixture(autouse=True)
def nothing_left(no_leaks):
    """After every test Python tells us nothing any more."""
    gc.collect()  # what other tests left is freed in none of their lines
    yield
    assert sys.gettrace() is None
    assert threading.gettrace() is None
    if sys.version_info >= (3, 12):
        assert all(sys.monitoring.get_tool(number) != "ipygpulogger" for number in range(6))


class Cell:
    """A program and what its lines used, by the words they begin with."""

    def __init__(self, source, **names):
        self.filename = f"<cell {next(numbers)}>"
        linecache.cache[self.filename] = len(source), None, source.splitlines(keepends=True), self.filename
        self.code = compile(source, self.filename, "exec")
        self.lines = Lines(lambda frame: frame.f_code.co_filename == self.filename)
        self.names = {"Block": Block, "blip": blip, "held_transient": held_transient, "MB": MB, **names}
        self.error = None

    def run(self, error=None):
        self.lines.start()
        try:
            exec(self.code, self.names)
        except BaseException as raised:
            if error is None or not isinstance(raised, error):
                raise
            self.error = raised
        finally:
            self.lines.stop()
        return self

    @property
    def usages(self):
        return self.lines.result(lambda _: CELL)

    def __getitem__(self, start):
        found = [usage for usage in self.usages if usage.source.startswith(start)]
        assert len(found) == 1, (start, [usage.source for usage in self.usages])
        return found[0]

    def used(self, start):
        gen = self[start].gen
        return gen.consumed_bytes / MB, gen.peaked_bytes / MB

    def hits(self):
        return {usage.lineno: usage.hits for usage in self.usages}


def about(*sizes_mb):
    return pytest.approx(sizes_mb, abs=2)


def test_the_acceptance():
    """64 MB kept, 200 MB in a call that holds the GIL, 300 MB in a function of the cell, -64 for the `del`."""
    cell = Cell(
        """\
kept = b"x" * (64 * MB)
n = len(b"y" * (200 * MB))
def needs():
    return len(b"z" * (300 * MB))
needs()
del kept
"""
    ).run()
    assert cell.used("kept =") == about(64, 0)
    assert cell.used("n =") == about(0, 200)
    assert cell.used("return") == about(0, 300)
    assert cell.used("needs()") == about(0, 300)
    assert cell.used("def") == about(0, 0)
    assert cell.used("del kept") == about(-64, 0)
    assert {usage.gen.peak.quality for usage in cell.usages} == {"exact"}
    assert {usage.complete for usage in cell.usages} == {True}
    assert set(cell.hits().values()) == {1}


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


def test_consumed_adds_up_and_peaked_is_the_most_of_a_single_visit():
    """Over its hits a line's consumption is a sum, its peaked a maximum."""
    cell = Cell("kept = []\nfor size in (10, 20, 30):\n    kept.append(Block(size)); blip(size)\n").run()
    assert cell.used("kept.append") == about(60, 30)
    assert cell["kept.append"].hits == 3
    assert cell["for"].hits == 4


@pytest.mark.parametrize(
    ("program", "hits"),
    [
        ("for i in range(3):\n    pass\n", {1: 4, 2: 3}),
        ("for i in range(3): pass\n", {1: 1}),
        ("x = [i for i in range(5)]\n", {1: 1}),
        ("x = sum(i for i in range(5))\n", {1: 1}),
        ("x = {i: i for i in range(5)}; y = {i for i in x}\n", {1: 1}),
        ("f = lambda: 1\nx = f() + f()\n", {1: 3, 2: 1}),
        ("def f(n): return n and f(n - 1)\nf(4)\n", {1: 6, 2: 1}),
        ("x = sorted([3, 1, 2], key=lambda v: -v)\n", {1: 1}),
        ("i = 0\nwhile i < 3:\n    i += 1\n", {1: 1, 2: 4, 3: 3}),
        (
            "try:\n    1 / 0\nexcept ZeroDivisionError:\n    x = 1\nfinally:\n    y = 2\n",
            {1: 1, 2: 1, 3: 1, 4: 1, 6: 1},
        ),
        ("def f(n):\n    return n and f(n - 1)\nf(4)\n", {1: 1, 2: 5, 3: 1}),
        ("def g():\n    yield 1\n    yield 2\nx = list(g())\n", {1: 1, 2: 1, 3: 1, 4: 1}),
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


def test_a_while_on_one_line():
    """One line that jumps within itself began once."""
    cell = Cell("i = 0\nwhile i < 50: i += 1\n").run()
    assert cell["while"].hits in {1, 2}  # Python 3.10 to 3.13 repeat the test, or do not


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


def test_a_generator_rests_while_it_yields():
    """What the consumer does between two values is not the generator's."""
    cell = Cell(
        """\
def values():
    for size in (5, 10):
        mine = Block(size)
        yield mine
kept = []
for value in values():
    kept.append(Block(30))
    blip(50)
"""
    ).run()
    assert cell.used("mine =") == about(15, 0)
    assert cell["yield"].hits == 2
    assert cell.used("yield") == about(0, 0)
    assert cell.used("for value") == about(10, 5)  # the first block goes when the second has come
    assert cell.used("kept.append") == about(60, 0)
    assert cell.used("blip") == about(0, 50)


@pytest.mark.parametrize("end", ["made.close()", "made = None", "made.throw(KeyError)"])
def test_a_generator_that_ends_half_way(end):
    """Closed, thrown into or collected: its last line ends, and so does the block that cleans up."""
    cell = Cell(
        f"""\
def values():
    try:
        yield 1
        yield 2
    finally:
        held_transient(30)
made = values()
next(made)
try:
    {end}
except KeyError:
    pass
after = Block(25)
"""
    ).run()
    assert cell.used("held_transient") == about(0, 30)
    assert cell.used(end) == about(0, 30)
    assert cell.used("yield 1") == about(0, 0)
    assert cell.used("after") == about(25, 0)


def test_with_and_exceptions_through_several_frames():
    """A line ends when an exception leaves its frame; what its cleaning up gives back is where that ran."""
    cell = Cell(
        """\
from contextlib import contextmanager
@contextmanager
def holding(size):
    mine = Block(size)
    try:
        yield mine
    finally:
        mine.free()
def fails():
    held_transient(50)
    raise KeyError("no")
def calls():
    with holding(20):
        fails()
try:
    calls()
except KeyError:
    kept = Block(10)
"""
    ).run()
    assert cell.used("mine = ") == about(20, 0)
    assert cell.used("mine.free") == about(-20, 0)
    assert cell.used("held_transient") == about(0, 50)
    assert cell.used("fails()") == about(0, 50)
    assert cell.used("calls()") == about(0, 70)
    assert cell.used("kept") == about(10, 0)


def test_an_uncaught_exception_ends_the_lines():
    """The lines of a cell that fails end where it does."""
    cell = Cell("def f():\n    kept.append(Block(15))\n    raise KeyError\nkept = []\nf()\nblip(9)\n").run(
        KeyError
    )
    later = Block(40)
    assert cell.used("f()") == about(15, 0)
    assert cell.used("kept.append") == about(15, 0)
    assert not [usage for usage in cell.usages if usage.source.startswith("blip")]
    later.free()


def test_decorators_and_classes():
    """A decorated method's lines are its own; the lines of decorators and class bodies theirs."""
    cell = Cell(
        """\
import functools
def twice(function):
    @functools.wraps(function)
    def both(*args):
        function(*args)
        return function(*args)
    return both
class A:
    kept = [Block(12)]
    @twice
    def grow(self):
        self.kept.append(Block(8))
A().grow()
"""
    ).run()
    assert cell.used("kept =") == about(12, 0)
    assert cell.used("self.kept") == about(16, 0)
    assert cell["self.kept"].hits == 2
    assert cell.used("A().grow") == about(16, 0)


def test_threads_are_followed():
    """A function that runs in a thread of the cell is measured there."""
    cell = Cell(
        """\
import threading
kept = []
def work():
    kept.append(Block(22))
    held_transient(33)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
    ).run()
    assert cell.used("kept.append") == about(22, 0)
    assert cell.used("held_transient") == about(0, 33)
    assert cell["held_transient"].hits == 1


def test_tasks_interleave():
    """A line that awaits stays open; each task's own lines are told apart."""
    cell = Cell(
        """\
import asyncio
kept = []
async def work(size):
    kept.append(Block(size))
    await asyncio.sleep(0)
    held_transient(2 * size)
    await asyncio.sleep(0)
async def values():
    for i in range(2):
        mine = Block(7)
        yield mine
async def main():
    await asyncio.gather(work(10), work(20))
    async for value in values():
        kept.append(Block(3)); kept.append(value)
asyncio.run(main())
"""
    ).run()
    assert cell.used("kept.append(Block(size") == about(30, 0)
    assert cell["kept.append(Block(size"].hits == 2
    assert cell.used("held_transient") == about(0, 40)
    assert cell.used("await asyncio.gather") == about(30, 40)
    assert cell.used("mine = ") == about(14, 0)
    assert cell["yield"].hits == 2
    assert cell.used("kept.append(Block(3") == about(6, 0)
    assert cell.used("asyncio.run") == about(50, 40 - 20)


def test_started_within():
    """Lines that run already are open from the start on: their memory counts, a hit does not."""
    cell = Cell("def f():\n    start()\n    kept.append(Block(11))\nkept = []\nf()\nkept.append(Block(7))\n")
    cell.names["start"] = cell.lines.start
    exec(cell.code, cell.names)
    cell.lines.stop()
    assert cell.used("kept.append(Block(11") == about(11, 0)
    assert cell.used("kept.append(Block(7") == about(7, 0)
    assert cell.used("f()") == about(11, 0)
    assert cell["f()"].hits == cell["start()"].hits == 0


def test_stopped_within():
    """Lines that still run at the end are measured until then."""
    cell = Cell("def f():\n    kept.append(Block(11))\n    stop()\n    blip(30)\nkept = []\nf()\n")
    cell.names["stop"] = cell.lines.stop
    cell.run()
    assert cell.used("f()") == about(11, 0)
    assert not [usage for usage in cell.usages if usage.source.startswith("blip")]


def test_measurements_nest():
    """Two measurements of the same lines, one within the other, each have their own figures."""
    cell = Cell("a = Block(10)\nbegin()\nb = Block(20)\nheld_transient(30)\nend()\nc = Block(40)\n")
    inner = Lines(lambda frame: frame.f_code.co_filename == cell.filename)
    cell.names.update(begin=inner.start, end=inner.stop)
    cell.run()
    assert [cell.used(start) for start in ("a =", "b =", "held", "c =")] == [
        about(10, 0),
        about(20, 0),
        about(0, 30),
        about(40, 0),
    ]
    inside = {usage.lineno: usage for usage in inner.result(lambda _: CELL)}
    assert sorted(inside) == [2, 3, 4, 5]
    assert inside[3].gen.consumed_bytes / MB == pytest.approx(20, abs=2)
    assert inside[4].gen.peaked_bytes / MB == pytest.approx(30, abs=2)


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
    (note,) = cell.lines.notes
    assert note == (
        "lines 3-4: measured until 1,000 lines had run there, from then on their memory is added up in line 2"
    )


def test_one_hot_line_is_told_of_in_the_singular():
    """A note says "its memory" of one line."""
    cell = Cell("for i in range(2_000):\n    pass\n").run()
    said = "line 2: measured until 1,000 lines had run there, from then on its memory is added up in line 1"
    assert cell.lines.notes == (said,)


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
    assert len(cell.lines.notes) == 2


def test_a_loop_in_a_function_called_often():
    """Calls of a function with a loop of its own degrade as well: no boundaries without end."""
    before = machine().ram.counter.look
    looks = count()
    machine().ram.counter.look = lambda: (next(looks), before())[1]
    try:
        cell = Cell(
            "def f():\n    for i in range(3):\n        pass\n    return 1\nfor j in range(20_000):\n    f()\n"
        ).run()
    finally:
        del machine().ram.counter.look
    assert cell.hits() == {1: 1, 2: 80_000, 3: 60_000, 4: 20_000, 5: 20_001, 6: 20_000}
    assert next(looks) < 10 * visits.MEASURED


def test_millions_are_not_even_counted(monkeypatch):
    """After very many beginnings hits are given up, and a note says so; the loop's memory is still its own."""
    monkeypatch.setattr(visits, "COUNTED", 20_000)
    cell = Cell(
        "kept = []\nfor i in range(50_000):\n    i == 40_000 and kept.append(Block(32))\nafter = Block(5)\n"
    ).run()
    assert cell["i =="].hits < 50_000
    assert cell.used("for") == about(32, 0)
    assert cell.used("after") == about(5, 0)
    said = "lines 2-3 ran over 20,000 times in all: after that they are not counted, and their hits are more than shown"
    assert said in cell.lines.notes
    assert cell["for"].time_s > 0


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
    (note,) = cell.lines.notes
    assert note.startswith("line 4: measured until 1,000 lines had run there")


@pytest.mark.skipif(sys.version_info < (3, 12), reason="there is no sys.monitoring")
@pytest.mark.parametrize("taken", [True, False])
def test_an_id_freed_by_somebody_else_is_not_ours_any_more(taken):
    """The cell goes on, what is not known is said, the next cell is measured, whoever took the id keeps it."""
    monitoring = getattr(sys, "monitoring")  # noqa: B009 - unknown to 3.10
    cell = Cell(
        "import sys\nfree = sys.monitoring\n"
        "[free.free_tool_id(i) for i in range(6) if free.get_tool(i) == 'ipygpulogger']\n"
        + ("free.use_tool_id(3, 'thief')\n" if taken else "")
        + "kept = Block(32)\n"
    )
    try:
        cell.run()
        assert cell.used("kept") == about(32, 0) or "tracing was ended" in cell.lines.notes[0]
        assert len(cell.lines.notes) == taken or sys.version_info >= (3, 14)
        assert monitoring.get_tool(3) == ("thief" if taken else None)
        after = Cell("kept = Block(32)\n").run()
        assert after.used("kept") == about(32, 0)
        assert after.lines.notes == ()
    finally:
        left = [monitoring.register_callback(3, 1 << bit, None) for bit in range(9)]
        if taken:
            monitoring.set_events(3, 0)
            monitoring.free_tool_id(3)
    assert left == [None] * 9


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="sys.settrace is one for all")
def test_a_line_cut_off_is_not_said_to_be_hot():
    """Where tracing was ended, the note says that, and not that the open line ran too often."""
    cell = Cell("import sys\nsys.settrace(None)\nkept = Block(32)\n").run()
    (note,) = cell.lines.notes
    assert note.startswith("tracing was ended")


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


def test_the_time_of_lines():
    """A line's time contains what it calls, and the lines of a level never add up to more than the whole."""
    cell = Cell("def f():\n    time.sleep(0.05)\nfor i in range(2000):\n    i * i\nf()\n", time=time)
    began_s = time.perf_counter()
    cell.run()
    whole_s = time.perf_counter() - began_s
    assert 0.05 <= cell["time.sleep"].time_s <= cell["f()"].time_s
    assert sum(cell[start].time_s for start in ("def", "for", "i *", "f()")) <= whole_s
    assert 0 < cell.lines.overhead_s < whole_s


def test_an_interrupt_within():
    """Ctrl-C wherever it strikes, in us as well: it reaches the cell, and the figures stay in order."""
    cell = Cell(
        """\
kept, caught = [], 0
def spin():
    for i in range(1_000_000):
        i * i
for turn in range(20):
    try:
        alarm()
        spin()
    except KeyboardInterrupt:
        caught += 1
kept.append(Block(18))
held_transient(27)
""",
    )
    turns = count(1)
    cell.names["alarm"] = lambda: signal.setitimer(signal.ITIMER_REAL, next(turns) * 0.0007)
    old = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        cell.run()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert cell.names["caught"] == 20
    if any("tracing was ended" in note for note in cell.lines.notes):
        assert sys.version_info < (3, 12)  # there Python ends the tracing when an exception passes through it
    else:
        assert cell.used("kept.append") == about(18, 0)
        assert cell.used("held_transient") == about(0, 27)
    assert not any(row.running or row.holders for row in cell.lines._rows.values())
    assert not cell.lines._gauges._open


@pytest.mark.parametrize("where", ["look", "reset"])
def test_a_signal_handlers_own_exception_goes_on(where, monkeypatch):
    """A timeout that strikes while we read a counter is the user's: it is neither swallowed nor noted."""

    class Timeout(Exception):
        pass

    def handler(*_):
        raise Timeout

    counter, armed = machine().ram.counter, []
    original = getattr(counter, where)

    def strike(*args):
        if armed:
            armed.clear()
            signal.raise_signal(signal.SIGALRM)
        return original(*args)

    old = signal.signal(signal.SIGALRM, handler)
    try:
        cell = Cell("arm()\nblip(9)\nlater = Block(12)\n", arm=lambda: armed.append(1))
        counter.__dict__[where] = strike
        try:
            cell.run((Timeout, BaseException))
        finally:
            del counter.__dict__[where]
    finally:
        signal.signal(signal.SIGALRM, old)
    assert isinstance(cell.error, Timeout)
    assert not any(row.running or row.holders for row in cell.lines._rows.values())


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


def test_our_own_failure_reaches_nobody():
    """A mistake of ours in the middle of a cell ends the measuring with a note, and the cell never knows."""
    cell = Cell("a = 1\nbreak_it()\nb = 2\nc = Block(6)\n")

    def break_it():
        cell.lines._gauges.hold = None

    cell.names["break_it"] = break_it
    cell.run()
    assert cell.names["b"] == 2
    assert any("measured no further" in note for note in cell.lines.notes)


def test_a_question_that_fails_reaches_nobody():
    """`wants` may fail: a note, and nothing measured."""
    lines = Lines(lambda _: 1 / 0)
    lines.start()
    json.dumps([1])
    lines.stop()
    assert lines.result(lambda _: CELL) == ()
    assert any("ZeroDivisionError" in note for note in lines.notes)


def test_nothing_is_kept_alive():
    """Neither frames nor locals live any longer for having been looked at."""
    gone = []

    class Local:
        def __del__(self):
            gone.append(1)

    cell = Cell(
        "def f():\n    x = Local()\n    y = 1\n    return y\nf()\nseen = len(gone)\n", Local=Local, gone=gone
    )
    cell.run()
    assert cell.names["seen"] == 1


def test_gc_is_left_alone():
    """Measuring neither collects garbage nor changes when that happens."""
    state, runs = (gc.isenabled(), gc.get_threshold()), []
    gc.callbacks.append(lambda _, info: runs.append(info["generation"]))
    try:
        Cell("a = Block(5)\n").run()
    finally:
        gc.callbacks.pop()
    assert (gc.isenabled(), gc.get_threshold()) == state
    assert 2 not in runs


def test_places_and_offsets():
    """Lines come out under the place and the number the user knows, the cell's own first."""
    helper = Cell("def f():\n    return Block(4)\n")
    exec(helper.code, helper.names)
    cell = Cell("\n\nkept = f()\n", f=helper.names["f"])
    cell.lines = Lines(lambda frame: frame.f_code.co_filename in (cell.filename, helper.filename))
    cell.run()
    found = cell.lines.result(lambda name: ("", -2) if name == cell.filename else ("In [1]", 10))
    assert [(usage.place, usage.lineno, usage.source) for usage in found] == [
        ("", 1, "kept = f()"),
        ("In [1]", 12, "return Block(4)"),
    ]


def test_idempotent():
    """Starting and stopping twice change nothing; never started is nothing measured."""
    lines = Lines(lambda _: True)
    lines.stop()
    assert lines.result(lambda _: CELL) == ()
    assert (lines.notes, lines.overhead_s) == ((), 0)
    cell = Cell("a = Block(3)\n")
    cell.lines.start()
    cell.run()
    cell.lines.stop()
    assert cell.used("a =") == about(3, 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_is_not_measured():
    """In a child nothing is told; the parent's measuring goes on."""
    cell = Cell(
        """\
pid = os.fork()
if pid == 0:
    os._exit(quiet())
status = os.waitpid(pid, 0)[1]
kept = Block(9)
""",
        os=os,
    )
    from ipygpulogger.lines import tracing

    cell.names["quiet"] = lambda: len(tracing._dispatcher.listeners)
    cell.run()
    assert cell.names["status"] == 0
    assert cell.used("kept") == about(9, 0)
