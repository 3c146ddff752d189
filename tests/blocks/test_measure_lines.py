"""`measure_lines`: each line of a function outside notebooks, whatever kind of function it is."""

import asyncio
import copy
import inspect
import pickle
import re
import sys
import threading
import weakref
from contextlib import nullcontext
from pathlib import Path

import pytest
from memory import MB, Block, blip

from ipygpulogger import measure_lines
from ipygpulogger.blocks import measure_lines as measure_lines_module
from ipygpulogger.lines.line_profiler import LineProfiler
from ipygpulogger.records import LineUsage

HERE = Path(__file__).name
pytestmark = pytest.mark.linux("elsewhere what a line needed is a range")
BEFORE_312 = sys.version_info < (3, 12)


def mb(size_bytes):
    return round(size_bytes / MB)


def told(function):
    """Hits, consumed and peaked in MB by the line's text, less a trailing comment."""
    return {
        line.source.partition("  #")[0]: (line.hits, mb(line.gen.consumed_bytes), mb(line.gen.peaked_bytes))
        for line in function.lines
    }


def near(found, expected):
    """Within 2 MB, the hits exactly."""
    assert found.keys() == expected.keys()
    for source, (hits, consumed_mb, peaked_mb) in expected.items():
        assert found[source][0] == hits, source
        assert abs(found[source][1] - consumed_mb) <= 2, (source, found[source])
        assert abs(found[source][2] - peaked_mb) <= 2, (source, found[source])


@pytest.fixture(autouse=True)
def untraced():
    """Every test leaves the interpreter's tracing as it found it."""

    def state():
        monitoring = getattr(sys, "monitoring", None)
        tools = [monitoring.get_tool(tool) for tool in range(6)] if monitoring else []
        return sys.gettrace(), threading.gettrace(), sys.getprofile(), tools

    before = state()
    yield
    assert state() == before


def test_each_line_of_a_function(capsys):
    """Kept, needed for a moment, given back, needed within a function of it or of another: all on their lines."""

    def beside():  # has no lines of its own
        blip(80)

    @measure_lines
    def work():
        def inner():
            blip(96)

        kept = Block(64)
        blip(200)
        inner()
        beside()
        kept.free()
        return 42

    assert work() == 42
    expected = {
        "def inner():": (1, 0, 0),
        "blip(96)": (1, 0, 96),
        "kept = Block(64)": (1, 64, 0),
        "blip(200)": (1, 0, 200),
        "inner()": (1, 0, 96),
        "beside()": (1, 0, 80),
        "kept.free()": (1, -64, 0),
        "return 42": (1, 0, 0),
    }
    near(told(work), expected)
    first = inspect.getsourcelines(work.__wrapped__)[1]
    assert [line.lineno - first for line in work.lines] == [2, 3, 5, 6, 7, 8, 9, 10]
    assert {line.place for line in work.lines} == {HERE}
    assert all(isinstance(line, LineUsage) and line.complete and line.time_s >= 0 for line in work.lines)
    printed = capsys.readouterr().out
    assert all(source in printed for source in expected)


def test_every_call_is_printed_unless_asked_otherwise(capsys):
    """Bare: a table after each call. `report=False`: nothing; the lines are there all the same."""

    @measure_lines
    def loud():
        pass

    @measure_lines(report=False)
    def quiet():
        pass

    loud()
    assert capsys.readouterr().out.count("pass") == 1
    loud()
    assert capsys.readouterr().out.count("pass") == 1
    quiet()
    assert not capsys.readouterr().out
    assert quiet.lines


def test_asked_too_early_says_so():
    """Before a call has ended there are no lines, and no empty tuple either."""
    early = []

    @measure_lines(report=False)
    def work():
        with pytest.raises(AttributeError, match="no line of work is measured yet"):
            work.lines  # noqa: B018
        early.append(True)

    assert not hasattr(work, "lines")
    with pytest.raises(AttributeError, match="no line of work is measured yet"):
        work.lines  # noqa: B018
    work()
    assert early
    assert work.lines


def test_methods():
    """Of instances, classes, and static ones; the lines are asked for where the function is called."""

    class Thing:
        @measure_lines(report=False)
        def method(self, x):
            return self, x

        @measure_lines(report=False)
        @classmethod
        def above(cls, x):
            return cls, x

        @classmethod
        @measure_lines(report=False)
        def below(cls, x):
            return cls, x

        @measure_lines(report=False)
        @staticmethod
        def alone(x):
            return x

    class Kind(Thing):
        pass

    thing = Kind()
    assert thing.method(1) == (thing, 1)
    assert Kind.above(2) == thing.above(2) == (Kind, 2)
    assert Kind.below(3) == thing.below(3) == (Kind, 3)
    assert Kind.alone(4) == thing.alone(4) == 4
    assert told(thing.method) == told(Kind.method) == {"return self, x": (1, 0, 0)}
    assert told(thing.above) == told(Kind.below) == {"return cls, x": (1, 0, 0)}
    assert told(thing.alone) == {"return x": (1, 0, 0)}


def test_coroutines():
    """A coroutine's line stays open while it awaits; the function stays a coroutine function."""

    @measure_lines(report=False)
    async def work():
        await asyncio.sleep(0)
        blip(48)
        return 7

    async def stay():
        blip(80)

    async def both():
        return await asyncio.gather(work(), stay())

    assert inspect.iscoroutinefunction(work)
    assert asyncio.run(both()) == [7, None]
    near(told(work), {"await asyncio.sleep(0)": (1, 0, 80), "blip(48)": (1, 0, 48), "return 7": (1, 0, 0)})


def test_generators():
    """A generator's line is closed while it waits: what its caller does meanwhile is not its own."""

    @measure_lines(report=False)
    def work():
        blip(48)
        sent = yield 1
        yield sent
        return 9

    def whole():
        return (yield from work())

    assert inspect.isgeneratorfunction(work)
    steps = whole()
    assert next(steps) == 1
    blip(128)
    assert steps.send("sent") == "sent"
    blip(128)
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert end.value.value == 9
    near(
        told(work),
        {"blip(48)": (1, 0, 48), "sent = yield 1": (1, 0, 0), "yield sent": (1, 0, 0), "return 9": (1, 0, 0)},
    )


def test_recursion_is_one_measurement(capsys):
    """A function that calls itself: one table; hits of all its calls, memory from the first to the last."""

    @measure_lines
    def down(depth):
        if depth:
            down(depth - 1)
        blip(16 * (depth + 1))

    down(2)
    near(
        told(down),
        {"if depth:": (3, 0, 0), "down(depth - 1)": (2, 0, 32), "blip(16 * (depth + 1))": (3, 0, 48)},
    )
    assert capsys.readouterr().out.count("if depth:") == 1


def test_threads_that_overlap_are_one_measurement():
    """Every line of each is a hit; of threads that ran before, a warning says so before Python 3.12."""

    @measure_lines(report=False)
    def work():
        begun.set()
        meet.wait()

    def run():
        begun.wait()
        work()
        traced.append(sys.gettrace())

    begun, meet, traced = threading.Event(), threading.Barrier(3), []
    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    warned = pytest.warns(RuntimeWarning, match="that ran before") if BEFORE_312 else nullcontext()
    with warned:
        work()
        for thread in threads:
            thread.join()
    assert [line.hits for line in work.lines] == [1, 1] if BEFORE_312 else [3, 3]
    assert traced == [None, None]


def test_an_exception_is_the_users_and_its_lines_are_there():
    """The type, the message, the line; the traceback holds none of the arguments longer than bare."""

    class Argument:
        pass

    @measure_lines(report=False)
    def work(argument):
        del argument
        raise KeyError("mine")

    argument = Argument()
    alive = weakref.ref(argument)
    with pytest.raises(KeyError, match="mine") as error:
        work(argument)
    del argument
    assert alive() is None
    assert error.traceback[-1].lineno + 1 == inspect.getsourcelines(work.__wrapped__)[1] + 3
    assert told(work) == {"del argument": (1, 0, 0), 'raise KeyError("mine")': (1, 0, 0)}


def test_it_stays_the_function_it_was():
    """Name, signature, doc, attributes; pickled and copied as a function is."""
    assert (plain.__name__, plain.__doc__, plain.mark) == ("plain", "Doc.", 5)
    assert str(inspect.signature(plain)) == "(x, *, y=2)"
    assert pickle.loads(pickle.dumps(plain)) is plain
    assert copy.deepcopy(plain) is copy.copy(plain) is plain
    assert plain(1) == plain(1, y=2) == 3


def marked(function):
    function.mark = 5
    return function


@measure_lines(report=False)
@marked
def plain(x, *, y=2):
    """Doc."""
    return x + y


def test_it_refuses_what_it_cannot_measure():
    """A class, an async generator, a number, what is not written in Python: one sentence."""

    async def several():
        yield 1

    for thing in (int, several, 3, classmethod(int), len, [].append):
        with pytest.raises(TypeError, match="measure_lines takes a function"):
            measure_lines(thing)


@pytest.mark.parametrize("where", ["__init__", "stop", "result", "table"])
def test_it_never_costs_the_users_result(where, monkeypatch):
    """Whatever fails on our side, printing too, the call's result stands, and a warning says what is missing."""

    def refuse(self, *_args, **_options):
        if where == "stop":
            real_stop(self)
        raise OSError("out of order")

    real_stop = LineProfiler.stop
    monkeypatch.setattr(measure_lines_module.render if where == "table" else LineProfiler, where, refuse)

    @measure_lines
    def answer():
        return 42

    with pytest.warns(RuntimeWarning, match="the lines of answer are not measured: out of order"):
        assert answer() == 42
    assert told(answer) == ({"return 42": (1, 0, 0)} if where == "table" else {})


# -- in cells -----------------------------------------------------------------------------------------------

DEFINED = """from ipygpulogger import measure_lines

@measure_lines
def step():
    made = b'x' * (40 << 20)
    return len(made)
"""


@pytest.mark.parametrize("above", ["", "\n\n", "%%gpulog\n", "%%gpulog\n%%capture out\n", "%%capture out\n"])
@pytest.mark.parametrize("loaded", [True, False])
def test_a_function_of_a_cell_stands_in_that_cell(shell, capsys, above, loaded):
    """The table names the cell, and numbers the lines as it has them; with the extension and without it."""
    if loaded:
        shell.run_cell("%load_ext ipygpulogger", store_history=True)
        shell.user_ns["il"].report = "none"
    elif "%%gpulog" in above:
        above = ""
    count = shell.run_cell(f"{above}{DEFINED}", store_history=True).execution_count
    capsys.readouterr()
    assert shell.run_cell("step()", store_history=True).success
    printed = capsys.readouterr().out
    step = shell.user_ns.pop("step")
    assert [line.place for line in step.lines] == [f"In [{count}]"] * 2
    assert [line.lineno for line in step.lines] == [above.count("\n") + number for number in (5, 6)]
    assert f"\nIn [{count}]:\n" in printed
    assert "ipython-input" not in printed
    if loaded:
        shell.run_cell("%unload_ext ipygpulogger", store_history=True)


def test_a_function_of_the_cell_that_runs(shell, capsys):
    """Defined and called in one cell; a note names the cell too."""
    count = shell.run_cell(f"{DEFINED}\nstep()", store_history=True).execution_count
    assert f"\nIn [{count}]:\n" in capsys.readouterr().out
    loop = DEFINED.replace("    made", "    for i in range(5000):\n        i += 1\n    made")
    count = shell.run_cell(f"{loop}\nstep()", store_history=True).execution_count
    assert re.search(rf"of In \[{count}\]: measured until", capsys.readouterr().out)
    assert count
