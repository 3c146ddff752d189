"""The user's garbage collector, while cells are measured: not set off by us, and not changed."""

import gc
import os
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

import ipygpulogger
from ipygpulogger import IPyGPULogger
from ipygpulogger.runtime import collector

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
    made = []

    def start(**options):
        il = IPyGPULogger(**options).start()
        made.append(il)
        return il

    yield start
    for il in made:
        il.stop()


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
            frame, codes = sys._getframe(), []
            while frame is not None:
                codes.append(frame.f_code)
                frame = frame.f_back
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
    cells = [
        "x = 1",
        "y = bytearray(20 << 20)",
        "1 / 0",
        "%%capture\nz = 2",
        "del y",
        "x + 1",
        "raise KeyboardInterrupt",
    ]
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
    with collections() as found:
        run(
            shell,
            "class Node: pass\nnode = Node(); node.self = node\nimport weakref; alive = weakref.ref(node); del node",
        )
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
    for change in (
        "gc.set_threshold(500, 5, 5)",
        "gc.disable()",
        "gc.set_threshold(0)",
        "gc.set_threshold(20_000_000)",
    ):
        run(shell, change)
        run(shell, look)
    assert seen == [
        ((500, 5, 5), True, *calm[2:]),
        ((500, 5, 5), False, *calm[2:]),
        ((0, 5, 5), False, *calm[2:]),
        ((20_000_000, 5, 5), False, *calm[2:]),
    ]


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


def test_two_threads_at_work():
    """It is over with the last of them, in either order."""
    was = gc.get_threshold()
    for ends_first in (True, False):
        begun, go = threading.Event(), threading.Event()

        def work(begun=begun, go=go):
            with collector.undisturbed():
                begun.set()
                go.wait(10)

        thread = threading.Thread(target=work)
        with collector.undisturbed():
            thread.start()
            begun.wait(10)
            if ends_first:
                go.set()
                thread.join()
            assert gc.get_threshold() != was
        assert (gc.get_threshold() == was) is ends_first
        go.set()
        thread.join()
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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_fork_while_a_thread_of_ours_works():
    """The child's collector is the user's: the thread at work is not there."""
    was = gc.get_threshold()
    begun, go = threading.Event(), threading.Event()

    def work():
        with collector.undisturbed():
            begun.set()
            go.wait(10)

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait(10)
    pid = os.fork()
    if not pid:
        os._exit(gc.get_threshold() != was)
    go.set()
    thread.join()
    assert os.waitpid(pid, 0)[1] == 0
    assert gc.get_threshold() == was
