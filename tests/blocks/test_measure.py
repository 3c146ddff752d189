"""`measure`: blocks and calls of every kind, nested, overlapping and forgotten."""

import asyncio
import copy
import gc
import pickle
import threading
import warnings
import weakref
from dataclasses import replace

import pytest
from memory import MB, Block, blip, no_frame_kept

from ipygpulogger import OverBudget, measure
from ipygpulogger.blocks.measure import Measure, _tasks_lock, warn
from ipygpulogger.engine import scope as scopes
from ipygpulogger.engine.machine import machine
from ipygpulogger.runtime import clock
from ipygpulogger.sources.system import linux


def mb(size_bytes):
    return round(size_bytes / MB)


@pytest.mark.usefixtures("fresh_mark")
def test_measure_a_block():
    """The block's own figures, after its end."""
    with measure("load") as m:
        blip(80)
    assert m.last.label == "load"
    assert mb(m.gen.peaked_bytes) in range(78, 83)
    assert m.time_s > 0
    assert not machine().scopes


def test_a_block_needs_no_lock_of_the_engines_tasks():
    """In a forked child another thread may have taken it for ever."""
    taken, over = threading.Event(), threading.Event()

    def hold():
        with _tasks_lock:
            taken.set()
            over.wait()

    def block():
        with measure("alone"):
            pass

    threads = [threading.Thread(target=one, daemon=True) for one in (hold, block)]
    threads[0].start()
    taken.wait()
    threads[1].start()
    threads[1].join(20)
    waits = threads[1].is_alive()
    over.set()
    assert not waits


def test_measure_decorates_every_kind_of_function(capsys):
    """Functions, coroutines and generators keep name and result; each call is reported under the name."""

    @measure(report=True)
    def plain(x):
        """Doc."""
        return x + 1

    @measure("await", report=True)
    async def later(x):
        return x + 2

    @measure
    def several(x):
        yield x
        return x + 3

    assert plain(1) == 2
    assert (plain.__name__, plain.__doc__) == ("plain", "Doc.")
    assert asyncio.run(later(1)) == 3
    assert list(several(1)) == [1]
    heads = [line for line in capsys.readouterr().out.splitlines() if line.startswith("RAM")]
    assert [head.rpartition("(")[2] for head in heads] == [
        "test_measure_decorates_every_kind_of_function.<locals>.plain)",
        "await)",
        "test_measure_decorates_every_kind_of_function.<locals>.several)",
    ]


def test_a_compact_report_is_one_line(capsys):
    """measure(report=True, compact=True), around a block and around calls."""
    with measure("load", report=True, compact=True):
        pass
    measure("call", report=True, compact=True)(len)("")
    lines = capsys.readouterr().out.splitlines()
    assert [line.startswith("Gen: ") for line in lines] == [True, True]
    assert [label in line for label, line in zip(("load", "call"), lines, strict=True)] == [True, True]


def test_measure_passes_exceptions_on():
    """The block's exception is the user's; the figures are there all the same."""
    m = measure()
    with pytest.raises(KeyError, match="mine"), m:
        raise KeyError("mine")
    assert m.time_s >= 0
    assert not machine().scopes


def test_measure_asked_too_early_says_so():
    """Before anything ended there is no figure, and no zero either."""
    with pytest.raises(RuntimeError, match="nothing measured yet"):
        measure().gen  # noqa: B018


@pytest.mark.usefixtures("fresh_mark")
def test_measure_recurs_and_nests():
    """A function that calls itself under the decorator: the outer call's peak covers the inner's."""
    peaks = []
    m = measure()

    @m
    def down(depth):
        if depth:
            down(depth - 1)
        blip(10 * (depth + 1))

    down(2)
    outer = m.last
    assert mb(outer.gen.peaked_bytes) in range(28, 33)
    assert not peaks
    assert not machine().scopes


def test_measure_in_overlapping_tasks(monkeypatch):
    """One measure in two tasks that overlap: each block ends its own scope."""
    m, took_s, now = measure(), {}, [0.0]
    monkeypatch.setattr(clock, "monotonic_s", lambda: now[0])

    async def block(name, end):
        with m:
            await end.wait()
        took_s[name] = m.time_s

    async def both():
        ends = {"short": asyncio.Event(), "long": asyncio.Event()}
        tasks = {name: asyncio.create_task(block(name, end)) for name, end in ends.items()}
        await asyncio.sleep(0)  # both blocks are entered
        for name, at_s in ("short", 1.0), ("long", 3.0):
            now[0] = at_s
            ends[name].set()
            await tasks[name]

    asyncio.run(both())
    assert took_s == {"short": 1.0, "long": 3.0}
    assert not machine().scopes


def test_measure_ended_by_another_task_or_thread():
    """An async generator, an exit stack, a thread: who ends a block need not have begun it; the exception stays."""

    async def several(m):
        with m:
            yield 1
            raise KeyError("the user's own")

    async def drive(m):
        steps = several(m)
        while True:
            await asyncio.create_task(steps.__anext__())

    m = measure("x")
    with pytest.raises(KeyError, match="the user's own"):
        asyncio.run(drive(m))
    assert m.time_s > 0

    m = measure("y")
    thread = threading.Thread(target=m.__enter__)
    thread.start()
    thread.join()
    m.__exit__(None, None, None)
    assert m.time_s > 0
    m.__exit__(None, None, None)  # once too often
    assert not machine().scopes


def test_a_block_that_is_never_left_ends_with_its_measure():
    """Whoever enters and forgets leaves nothing behind either."""
    m = measure("forgotten")
    m.__enter__()
    del m
    gc.collect()
    assert not machine().scopes


def test_measure_refuses_what_it_cannot_measure():
    """A class, an async generator, a number: one sentence instead of a surprise."""

    async def several():
        yield 1

    for thing in (int, 3, classmethod(int)):
        with pytest.raises(TypeError, match="measure takes a function"):
            measure(thing)
    with pytest.raises(TypeError, match=r"^measure takes a function.* not the asynchronous generator <f"):
        measure(several)


@pytest.mark.linux("elsewhere psutil reads the memory")
def test_measure_never_costs_the_users_result(monkeypatch):
    """Where nothing can be read any more the call's result stands, and a warning says what is missing."""

    @measure
    def answer():
        monkeypatch.setattr(linux, "read", refuse)
        return 42

    def refuse(_path):
        raise OSError(24, "Too many open files")

    with pytest.warns(RuntimeWarning, match=r"answer is not measured.*Too many open files"):
        assert answer() == 42
    with pytest.warns(RuntimeWarning, match="block is not measured"), measure():
        pass
    assert not machine().scopes


def test_a_warning_is_shown_once():
    """A warning in the user's own filters; where warnings are errors nothing is said, and nothing raised."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        for _ in range(2):
            warn("a sentence of this test")
    assert [str(one.message) for one in shown] == ["a sentence of this test"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn("another sentence of this test")


def test_tasks_of_an_engine_that_overlap_say_so():
    """Each says how many others ran in its process between its ends; one that ran alone, or a block, says nothing."""
    tasks, block = {name: Measure(name, of_task=True) for name in "abcde"}, measure("block")
    with block:
        for event in ("+a", "-a", "+b", "+c", "+d", "-c", "+e", "-b", "-d", "-e"):
            task = tasks[event[1]]
            task.__enter__() if event[0] == "+" else task.__exit__(None, None, None)
    said = {name: [*map(str, task.last.notes)] for name, task in tasks.items()}
    assert said.pop("a") == [*block.last.notes] == []
    others = {"b": 3, "c": 2, "d": 3, "e": 2}
    assert said == {name: [f"shared with {n} other tasks of its process"] for name, n in others.items()}


def test_a_measure_that_has_ended_is_copied(fresh_mark):
    """Measured functions travel to the workers of engines, which pickle them; a copy measures for itself."""
    with measure("copied") as m:
        pass
    for again in (copy.deepcopy(m), pickle.loads(pickle.dumps(m))):
        fresh_mark()
        with again:
            blip(20)
        assert mb(again.gen.peaked_bytes) in range(18, 23) and mb(m.gen.peaked_bytes) < 18


class Kept:
    """What a caller may hand over, and a traceback must not keep."""


def needs_64():
    blip(64)


async def needs_64_async():
    await asyncio.sleep(0)
    blip(64)


def yields_and_needs_64():
    blip(64)
    yield 1


RUN = {  # by kind of function: a call of it to its end
    needs_64: lambda call: call(),
    needs_64_async: lambda call: asyncio.run(call()),
    yields_and_needs_64: lambda call: list(call()),
}


@pytest.mark.parametrize("function", RUN, ids=lambda one: one.__name__)
def test_a_call_that_needs_more_than_its_budget_raises(function, fresh_mark):
    """By its own need, with the record; as much as the budget is allowed; a call that fails raises its own error."""
    held = Block(96)  # what was there before is not needed
    RUN[function](measure("step", budget="80MB")(function))
    fresh_mark()
    with pytest.raises(
        OverBudget,
        match=r"^step needed 6[345] MB of RAM, 3[123] MB more than its budget of 32 MB$",
    ) as raised:
        RUN[function](measure("step", budget="32MB")(function))
    assert mb(raised.value.record.gen.needed_bytes) in (63, 64, 65)
    copied = pickle.loads(pickle.dumps(raised.value))
    assert (str(copied), copied.record) == (str(raised.value), raised.value.record)
    held.free()


def test_a_block_over_budget_raises_only_where_it_has_not_failed(fresh_mark):
    """The inner one of two raises for both; the figures are there all the same."""
    with pytest.raises(ZeroDivisionError), measure(budget="32MB"):
        blip(64)
        1 / 0  # noqa: B018
    fresh_mark()
    with pytest.raises(OverBudget, match=r"^inner "), measure("outer", budget="32MB") as outer:  # noqa: SIM117
        with measure("inner", budget="32MB"):
            blip(64)
    assert mb(outer.gen.needed_bytes) in (63, 64, 65)


@pytest.mark.usefixtures("fresh_mark")
def test_an_argument_does_not_outlive_a_call_over_budget():
    """The error's traceback has our frame, which must not have what the caller handed over."""
    given = Kept()
    alive = weakref.ref(given)
    with pytest.raises(OverBudget) as raised:
        measure(budget="32MB")(lambda _: blip(64))(given)
    del given
    gc.collect()
    assert alive() is None
    assert raised.value.__traceback__ is not None


@pytest.mark.parametrize(
    "options",
    [{}, {"peak": True}, {"report": True}, {"budget": "1TB"}, {"peak": True, "report": True}],
    ids=str,
)
def test_a_block_keeps_no_frame(options):
    """Whose locals would live until a collection."""
    with no_frame_kept():

        def load():
            with measure(**options):
                blip(1)

        load()


@pytest.mark.parametrize("step", ["open", "_read_peaks", "result"])
def test_what_could_not_be_measured_is_not_over_budget(monkeypatch, step):
    """It warns, as ever."""

    def fail(*_, **__):
        raise RuntimeError("injected")

    monkeypatch.setattr(scopes.Scope, step, fail)
    with (
        pytest.warns(RuntimeWarning, match="is not measured: injected"),
        measure(f"faulty {step}", budget="1MB"),
    ):
        blip(64)


@pytest.mark.parametrize("budget", ["2", "", "many", 2, -1])
def test_a_budget_is_a_size(budget):
    """Anything else is refused in one sentence, before the block runs."""
    with pytest.raises(ValueError, match=r"^budget: .*write a size such as 10GB"):
        measure(budget=budget)


@pytest.mark.torch
def test_a_budget_is_of_each_device_where_one_is_used(cuda):
    """What RAM needs then is not judged; a device whose use cannot be told apart is named."""
    import torch

    with (
        pytest.raises(
            OverBudget, match=r"^step needed 64 MB of cuda:0, 32 MB more than its budget of 32 MB$"
        ),
        measure("step", budget="32MB"),
    ):
        torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    with measure("other", budget="65MB") as other:
        torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        blip(128)
    gpu = next(one for one in other.gpus if one.id == "cuda:0")  # an earlier test may have used another
    with pytest.warns(
        RuntimeWarning, match="other: no budget can be judged on cuda:0: per-process usage is unavailable"
    ):
        assert not other.over_budget(replace(other.last, gpus=(replace(gpu, attributed=False),)))
