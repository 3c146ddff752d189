"""The user's garbage collector, while cells are measured: not set off by us, and not changed."""

import gc
import os
import sys
import threading
import weakref
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import ipygpulogger
from ipygpulogger import IPyGPULogger
from ipygpulogger.runtime import collector
from ipygpulogger.runtime.objects import walk_stack

HERE = str(Path(ipygpulogger.__file__).parent)
EXPLICIT = collector.collect.__code__


def run(shell, code):
    return shell.run_cell(code, store_history=True)


@pytest.fixture(autouse=True)
def thresholds():
    """A test may set its own."""
    was = gc.get_threshold()
    yield
    gc.set_threshold(*was)
    gc.enable()


@pytest.fixture
def logger(shell, capsys):
    """Makes loggers that run."""
    with ExitStack() as made:

        def start(**options):
            il = IPyGPULogger(**options).start()
            made.callback(il.stop)
            return il

        yield start


@contextmanager
def hook():
    """As the hooks of cells are."""
    collector.begin_hook()
    try:
        yield
    finally:
        collector.end_hook()


@contextmanager
def collections():
    """Each automatic collection that starts within: whether in code of ours."""
    found = []

    def started(phase, _):
        if phase == "start" and threading.current_thread() is threading.main_thread():
            codes = [frame.f_code for frame in walk_stack(sys._getframe())]
            if EXPLICIT not in codes:
                found.append(any(code.co_filename.startswith(HERE) for code in codes))

    gc.callbacks.append(started)
    try:
        yield found
    finally:
        gc.callbacks.remove(started)


@pytest.mark.parametrize("report", ["none", "text", "rich"])
def test_no_hook_sets_off_a_collection(shell, logger, report):
    """Where each fifth container sets one off there are many, none of them in a hook: of any outcome and size."""
    logger(gc_collect=False, report=report)
    cells = ["x = 1", "y = bytearray(20 << 20)", "1 / 0", "%%capture\nz = 2", "del y", "x + 1"]
    cells.append("raise KeyboardInterrupt")
    run(shell, "x = 1")  # what is loaded once
    gc.set_threshold(5, 10, 10)
    with collections() as found:
        for code in cells:
            run(shell, code)
    assert found.count(False) > 50
    assert not any(found)


def test_with_gc_collect_only_ours_run_in_hooks(shell, logger):
    """What is asked for is collected, at both ends of a cell, and nothing else in between."""
    logger(gc_collect=True, report="none")
    run(shell, "x = 1")
    cycle = "class Node: pass\nnode = Node(); node.self = node\n"
    with collections() as found:
        run(shell, cycle + "import weakref; alive = weakref.ref(node); del node")
    assert shell.user_ns["alive"]() is None
    assert not any(found)


@pytest.mark.parametrize("gc_collect", [True, False])
def test_the_settings_are_the_users(shell, logger, gc_collect):
    """In each cell, whatever was set there, and after them."""
    logger(gc_collect=gc_collect, report="none")
    seen = []
    shell.user_ns["seen"] = seen
    look = "import gc; seen.append((gc.get_threshold(), gc.isenabled(), len(gc.callbacks)))"
    run(shell, look)
    calm = seen.pop()
    for change in ("set_threshold(500, 5, 5)", "disable()", "set_threshold(0)", "set_threshold(20_000_000)"):
        run(shell, f"gc.{change}")
        run(shell, look)
    thresholds = ((500, True), (500, False), (0, False), (20_000_000, False))
    assert seen == [((first, 5, 5), is_on, *calm[2:]) for first, is_on in thresholds]


def test_what_others_set_meanwhile_stays():
    """A thread of the user's sets the threshold while we work; a thread that saves it gets none that is off."""
    was = gc.get_threshold()
    with hook():
        saved = gc.get_threshold()
        assert saved[0] > 0
        gc.set_threshold(300, 3, 3)
    assert gc.get_threshold() == (300, 3, 3)
    gc.set_threshold(*was)
    with hook(), collector.undisturbed():
        pass
    assert gc.get_threshold() == was


@pytest.fixture
def at_work():
    """Starts a thread that works for us until it is told to end."""

    def start():
        begun, go = threading.Event(), threading.Event()

        def work():
            with collector.undisturbed():
                begun.set()
                go.wait(10)

        thread = threading.Thread(target=work)
        thread.start()
        begun.wait(10)
        return lambda: (go.set(), thread.join())

    return start


def test_two_threads_at_work(at_work):
    """It is over with the last of them, in either order."""
    was = gc.get_threshold()
    for ends_first in (True, False):
        with collector.undisturbed():
            end = at_work()
            if ends_first:
                end()
            assert gc.get_threshold() != was
        assert (gc.get_threshold() == was) is ends_first
        end()
        assert gc.get_threshold() == was


def test_an_interrupt_in_our_end_is_made_good(shell, logger, monkeypatch):
    """By the next boundary, or by the logger's end."""
    was = gc.get_threshold()

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(collector, "restore", interrupted)
        with pytest.raises(KeyboardInterrupt), hook():
            pass
    assert gc.get_threshold() != was
    with hook():
        pass
    assert gc.get_threshold() == was
    il = logger(gc_collect=False, report="none")
    with monkeypatch.context() as patch:
        patch.setattr(collector, "restore", interrupted)
        run(shell, "x = 1")
    assert gc.get_threshold() != was
    il.stop()
    assert gc.get_threshold() == was


@pytest.mark.linux("nothing forks there", "macos")
def test_a_fork_while_a_thread_of_ours_works(at_work):
    """The child's collector is the user's: the thread at work is not there."""
    was = gc.get_threshold()
    end = at_work()
    pid = os.fork()
    if not pid:
        os._exit(gc.get_threshold() != was)
    end()
    assert os.waitpid(pid, 0)[1] == 0
    assert gc.get_threshold() == was


def test_what_is_young_is_asked_for(monkeypatch):
    """A Python without the GIL lists every object in each generation; 3.14.0 takes no third threshold."""
    everything, listed = gc.get_objects, [gc.get_objects, lambda _generation=None: everything()]
    found = []
    for thresholds in ((700, 10, 10), (2000, 10, 0)):
        monkeypatch.setattr(gc, "get_threshold", lambda now=thresholds: now)
        for one in listed:
            monkeypatch.setattr(gc, "get_objects", one)
            found.append(collector._young())
    assert found == [1, 2, 0, 2]


@pytest.mark.parametrize(
    ("young", "cost_s", "ran"),
    [(1, 0.002, [1]), (0, 0.002, [0]), (2, 0.002, []), (2, 0.0005, [2])],
)
def test_a_young_collection_costs_little(monkeypatch, young, cost_s, ran):
    """Where all collections are full ones, it runs only if one costs no more than a young one may."""
    collected = []
    monkeypatch.setattr(collector, "YOUNG", young)
    monkeypatch.setattr(collector, "cost_s", lambda: cost_s)
    monkeypatch.setattr(collector, "_blocks", [0])  # an earlier test may have left millions
    monkeypatch.setattr(gc, "get_count", lambda: (100, 1, 1))
    monkeypatch.setattr(gc, "collect", collected.append)
    collector.run_young(0.001)
    assert collected == ran


def test_what_is_young_is_collected():
    """A cycle that was dropped a moment ago, on this Python."""

    class Node:
        """Refers to itself."""

    gc.disable()  # the fixture enables it
    node = Node()
    node.me, alive = node, weakref.ref(node)
    del node
    collector.collect(collector.YOUNG)
    assert alive() is None


@pytest.mark.parametrize("third", [0, 10])
def test_the_third_threshold_may_be_a_constant(monkeypatch, third):
    """As in Python 3.14.0, whatever is set: the user's others come back all the same."""
    now = [2000, 10]
    monkeypatch.setattr(gc, "get_threshold", lambda: (*now, third))
    monkeypatch.setattr(gc, "set_threshold", lambda *values: now.__setitem__(slice(2), values[:2]))
    with hook():
        assert now[0] > 2000
    assert now == [2000, 10]
