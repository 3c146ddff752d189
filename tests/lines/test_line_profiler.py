"""Lines of plain Python, to the MB: what each one kept, needed for a moment, how often and for how long."""

import json
import os
import signal
import sys

import pytest
from line_cell import CELL, Cell, about, is_quiet
from memory import MB, Block

from ipygpulogger.engine.machine import machine
from ipygpulogger.lines import line_memory, line_profiler
from ipygpulogger.lines.line_memory import LineMemories
from ipygpulogger.lines.line_profiler import LineProfiler
from ipygpulogger.sources import Reading

pytestmark = pytest.mark.linux("elsewhere what a line needed is a range")


def nothing_open(profiler):
    """Whether every line has ended, and no frame's memory is attributed to any."""
    lines = profiler._lines.values()
    return not (any(line.running or line.holders for line in lines) or profiler._memory._open)


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
    assert cell.used("yield") == about(0, 0)  # what is kept meanwhile is its caller's
    assert cell.used("kept.append(Block(3") == about(6, 0)
    assert cell.used("asyncio.run") == about(50, 40 - 20)


def test_started_or_stopped_within():
    """What runs already is not measured, what it calls is; lines that still run are measured until the end."""
    cell = Cell("def f():\n    kept.append(Block(11))\nkept = []\nstart()\nf()\n", whole=True)
    cell.names["start"] = cell.lines.start
    cell.execute()
    cell.lines.stop()
    assert cell.used("kept.append(Block(11") == about(11, 0)
    assert len(cell.usages) == 1
    cell = Cell("def f():\n    kept.append(Block(11))\n    stop()\n    blip(30)\nkept = []\nf()\n")
    cell.names["stop"] = cell.lines.stop
    cell.run()
    assert cell.used("f()") == about(11, 0)
    assert not [usage for usage in cell.usages if usage.source.startswith("blip")]


def test_started_within_a_generator():
    """The one that runs already yields unmeasured, while another of the same function is measured."""
    cell = Cell(
        """\
def values(begin):
    yield begin()
def start_and_go_on():
    start()
    return next(values(int))
first = next(values(start_and_go_on))
""",
        whole=True,
    )
    cell.names["start"] = cell.lines.start
    cell.execute()
    cell.lines.stop()
    assert cell.names["first"] == 0
    assert cell.hits() == {2: 1}
    assert cell.lines.notes(lambda _: CELL) == ()


def test_measurements_nest():
    """Two measurements of the same lines, one within the other, each have their own figures."""
    code = "def f():\n    b = Block(20)\n    held_transient(30)\n    return b\n"
    calls = "a = f()\nbegin()\nkept = f()\nend()\nc = Block(40)\nd = f()\n"
    cell = Cell(f"{code}{calls}", whole=True)
    inner = LineProfiler(lambda frame: frame.f_code.co_filename == cell.filename)
    cell.names.update(begin=inner.start, end=inner.stop)
    cell.run()
    assert [cell.used(start) for start in ("a =", "b =", "held", "c =", "d =")] == [
        about(20, 30),
        about(60, 0),
        about(0, 30),
        about(40, 0),
        about(20, 30),
    ]
    assert cell.hits() == {1: 1, 2: 3, 3: 3, 4: 3, 5: 1, 6: 1, 7: 1, 8: 1, 9: 1, 10: 1}
    inside = {usage.lineno: usage for usage in inner.result(lambda _: CELL)}
    assert {lineno: usage.hits for lineno, usage in inside.items()} == {2: 1, 3: 1, 4: 1}
    assert inside[2].gen.consumed_bytes / MB == pytest.approx(20, abs=2)
    assert inside[3].gen.peaked_bytes / MB == pytest.approx(30, abs=2)


STRUCK = {  # each is struck as it begins and as it ends
    line_memory._Sum: ("__init__", "begin", "end", "resume"),
    LineMemories: ("hold", "_read_counters", "_read_counter", "_begin", "_close"),
    line_profiler.Line: ("enter", "leave"),
    line_profiler.CodeFrames: ("line", "ended", "_add", "_count", "_attribute"),
}


def test_an_interrupt_within(monkeypatch):
    """Ctrl-C wherever it strikes in us: it reaches the cell, and the figures stay in order. No clock decides where."""
    left, moved = 0, []

    def point():
        nonlocal left
        left -= 1
        if left == 0:
            moved.append(Block(1))  # the next reading is another than the last
            raise KeyboardInterrupt

    def struck(original):
        def strike(*args, **how):
            point()
            result = original(*args, **how)
            point()
            return result

        return strike

    def arm(number):
        nonlocal left
        left = number

    for kind, names in STRUCK.items():
        for name in names:
            monkeypatch.setattr(kind, name, struck(getattr(kind, name)))
    for number in range(1, 100):  # each with lines that are new, of which most is set up
        cell = Cell(
            """\
caught = 0
def spin(n):
    for i in range(n):
        i * i
try:
    arm()
    spin(5)
except KeyboardInterrupt:
    caught += 1
kept = Block(18)
held_transient(27)
""",
            arm=lambda number=number: arm(number),
        )
        cell.run()
        assert cell.names["caught"] == 1
        if sys.version_info < (3, 12):  # there Python ends the tracing when an exception passes through it
            assert "tracing was ended" in cell.lines.notes(lambda _: CELL)[-1]
        else:
            assert [
                note
                for note in cell.lines.notes(lambda _: CELL)
                if "an exception cut the measuring short" not in note
            ] == []
            assert {usage.complete for usage in cell.usages if usage.lineno > 8} == {True}
            assert cell.used("kept") == about(18, 0)
            assert cell.used("held_transient") == about(0, 27)
        assert nothing_open(cell.lines)
        cell.names["kept"].free()


@pytest.mark.parametrize("where", ["observe", "reset"])
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
    assert nothing_open(cell.lines)


def test_our_own_failure_reaches_nobody(monkeypatch):
    """A mistake of ours in the middle of a cell ends the measuring with a note, and the cell never knows."""
    cell = Cell("a = 1\nbreak_it()\nb = 2\nc = Block(6)\n", whole=True)

    def break_it():
        monkeypatch.setattr(LineMemories, "hold", None)

    cell.names["break_it"] = break_it
    cell.run()
    assert cell.names["b"] == 2
    assert any("measured no further" in note for note in cell.lines.notes(lambda _: CELL))
    # The line that began then is told, and that its figures and those of the one before are not whole.
    assert cell.hits() == {1: 1, 2: 1, 3: 1}
    assert [usage.complete for usage in cell.usages] == [True, False, False]
    lines = LineProfiler(lambda _: 1 / 0)  # nor a question that fails
    lines.start()
    json.dumps([1])
    lines.stop()
    assert lines.result(lambda _: CELL) == ()
    assert any("ZeroDivisionError" in note for note in lines.notes(lambda _: CELL))


@pytest.mark.linux("nothing forks there", "macos")
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
    cell.names["quiet"] = lambda: not is_quiet()
    cell.run()
    assert cell.names["status"] == 0
    assert cell.used("kept") == about(9, 0)


# -- counters ---------------------------------------------------------------------------------------


def test_a_counter_that_fails_is_said():
    """A counter that cannot be read for a while is a note, and the lines then open are "at least"."""
    counter = machine().ram.counter
    original, broken = counter.observe, []

    def observe():
        if broken:
            raise OSError("gone")
        return original()

    counter.observe = observe
    try:
        cell = Cell("a = 1\nbroken.append(1)\nb = 2\nbroken.clear()\nc = Block(6)\n", broken=broken).run()
    finally:
        del counter.observe
    assert cell["broken.append"].gen.peak.quality == "sampled"
    assert cell["a ="].gen.peak.quality == cell["c ="].gen.peak.quality == "exact"
    assert cell.used("c =") == about(6, 0)
    assert any("gone" in note for note in cell.lines.notes(lambda _: CELL))


def test_a_counter_that_cannot_be_opened_is_said(monkeypatch):
    """The cell runs without us, nothing is told of its lines, and a note says why."""

    def observe():
        raise OSError("gone")

    monkeypatch.setitem(machine().ram.counter.__dict__, "observe", observe)
    cell = Cell("a = 1\n").run()
    assert (cell.names["a"], cell.usages) == (1, ())
    (note,) = cell.lines.notes(lambda _: CELL)
    assert note.startswith("lines are not measured: ")
    assert "gone" in note


def test_each_line_to_the_byte(monkeypatch):
    """What the counter says at its start and at its end, and nothing where the counter does not move."""
    counter, now_bytes = machine().ram.counter, [64 * MB]
    read = counter.observe()

    def observe():
        peak = None if read.readings[0].peak_bytes is None else now_bytes[0]
        return read._replace(readings=(Reading(now_bytes[0], peak),) * len(read.readings))

    def move(size_bytes):
        now_bytes[0] += size_bytes

    monkeypatch.setitem(counter.__dict__, "observe", observe)
    cell = Cell("move(5)\npass\nfor i in range(3): move(2)\nmove(-7)\n", move=move).run()
    assert [usage.gen.consumed_bytes for usage in cell.usages] == [5, 0, 6, -7]
    assert [usage.gen.peaked_bytes for usage in cell.usages] == [0, 0, 0, 0]
