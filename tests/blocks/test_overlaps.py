"""Blocks, calls and tasks that run at the same time in one process: each record says that it was not alone."""

import asyncio
import copy
import gc
import os
import pickle
import threading

import pytest

from ipygpulogger import measure
from ipygpulogger.blocks.measure import Measure, Overlapping, Overlaps

ONE = ("shared with 1 other block of its process",)


def test_those_that_overlap_are_counted():
    """Each says how many others ran in its process between its ends; one that ran alone says nothing."""
    overlaps, tasks = Overlaps(), {name: Overlapping("task") for name in "abcde"}
    for event in ("+a", "-a", "+b", "+c", "+d", "-c", "+e"):
        task = tasks[event[1]]
        if event[0] == "+":
            overlaps.begin(task)
        elif event == "-a":
            assert overlaps.end(task) == ()
        else:
            assert overlaps.end(task) == ("shared with 2 other tasks of its process",)
    assert overlaps.end(tasks["b"]) == ("shared with 3 other tasks of its process",)
    assert overlaps.end(tasks["e"]) == ("shared with 2 other tasks of its process",)
    assert overlaps.end(Overlapping("task")) == ()


class Elsewhere:
    """A measured block in another thread, from its making until `leave`."""

    def __init__(self, kind="block"):
        self.measured, entered, self._end = measure("elsewhere"), threading.Event(), threading.Event()

        def block():
            with self.measured:
                entered.set()
                self._end.wait(30)

        def call():
            self.measured(lambda: entered.set() or self._end.wait(30))()

        def generator():
            @self.measured
            def steps():
                entered.set()
                yield self._end.wait(30)

            list(steps())

        kinds = {"block": block, "call": call, "generator": generator}
        self._thread = threading.Thread(target=kinds[kind])
        self._thread.start()
        assert entered.wait(30)

    def leave(self):
        self._end.set()
        self._thread.join()
        return self.measured.last.notes


@pytest.mark.parametrize("kind", ["block", "call", "generator"])
def test_threads_that_overlap_say_so(kind, capsys):
    """However they interleave; the report prints it, and a later block alone says nothing."""
    with Measure("a", report=True) as a:
        b = Elsewhere(kind)
    assert "\nshared with 1 other block of its process\n" in capsys.readouterr().out
    with measure("c") as c, measure("within c") as within:
        notes = b.leave()
    with measure("alone") as alone:
        pass
    assert (a.last.notes, c.last.notes, within.last.notes, alone.last.notes) == (ONE, ONE, ONE, ())
    assert notes == ("shared with 3 other blocks of its process",)


def test_nested_blocks_of_one_thread_are_not_others(monkeypatch):
    """Blocks, calls, recursion, generators in any order; a block that was forgotten, or could not be measured."""
    m = measure("down")

    @m
    def down(depth):
        with measure("deeper") as deeper:
            if depth:
                down(depth - 1)
        assert deeper.last.notes == ()

    @m
    def steps():
        yield from range(2)

    with measure("around") as around:
        down(3)
        assert m.last.notes == ()
        list(zip(steps(), steps(), strict=True))
        forgotten = steps()
        next(forgotten)
    assert (m.last.notes, around.last.notes) == ((), ())
    del forgotten
    with monkeypatch.context() as broken, pytest.warns(RuntimeWarning, match="is not measured"):
        broken.setattr("ipygpulogger.blocks.measure.Scope", None)
        with measure("not measured"):
            pass
    assert Elsewhere().leave() == ()


def test_a_block_that_never_ends_is_no_other_once_it_is_forgotten():
    """An interrupt may cut it short."""
    forgotten = measure("forgotten")
    begun = threading.Thread(target=forgotten.__enter__)
    begun.start()
    begun.join()
    del begun
    with measure("beside it") as beside:
        pass
    del forgotten
    gc.collect()
    with measure("after it") as after:
        pass
    assert (beside.last.notes, after.last.notes) == (ONE, ())


def test_tasks_of_asyncio_that_interleave_say_so():
    """Not those that one block encloses, with that one: they are its parts."""

    async def block(others):
        with measure("task") as m:
            await others.wait()
        return m.last.notes

    async def together(count):
        end = asyncio.Event()
        tasks = [asyncio.create_task(block(end)) for _ in range(count)]
        await asyncio.sleep(0)
        end.set()
        return [await task for task in tasks]

    assert asyncio.run(together(2)) == [ONE, ONE]
    with measure("all") as around:
        assert asyncio.run(together(1)) == [()]
        assert asyncio.run(together(3)) == [("shared with 2 other blocks of its process",)] * 3
    assert around.last.notes == ()


def test_a_task_of_an_engine_is_no_other_block():
    """What `watch` measures in a worker is not the user's; it counts its own kind, or nothing."""
    elsewhere = Elsewhere()
    with Measure("task", among="task") as task, Measure("cell", among=None) as cell:
        assert elsewhere.leave() == ()
    assert (task.last.notes, cell.last.notes) == ((), ())


def test_a_copy_is_of_the_same_process():
    """Measured functions, and blocks that have ended, travel to the workers of engines, which pickle them."""
    with measure("copied") as m:
        pass
    elsewhere = Elsewhere()
    with copy.deepcopy(m) as again, pickle.loads(pickle.dumps(m)) as once_more:
        pass
    elsewhere.leave()
    assert (m.last.notes, again.last.notes, once_more.last.notes) == ((), ONE, ONE)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_child_is_alone():
    """The threads of its parent do not run in it."""
    elsewhere = Elsewhere()
    pid = os.fork()
    if not pid:
        with measure("child") as child:
            pass
        os._exit(len(child.last.notes))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert elsewhere.leave() == ()
