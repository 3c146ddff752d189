"""What our own late imports take is neither a cell's nor told between two; the truth is known by construction."""

import sys
import threading
from types import ModuleType

import pytest
from memory import MB, Block

from ipygpulogger import IPyGPULogger
from ipygpulogger.engine import frameworks
from ipygpulogger.engine.machine import Machine, machine
from ipygpulogger.engine.scope import Scope
from ipygpulogger.records import Measurement
from ipygpulogger.sources import Framework

KEPT = []  # what the imports took
ONCE = threading.Lock()


class Late(Framework):
    """An adapter whose import takes three megabytes."""

    name = "torch"

    def counters(self):
        return []


def adapter():
    with ONCE:  # as `import`: a second thread waits, and takes nothing
        if not KEPT:
            KEPT.append(Block(3))
    return Late


@pytest.fixture(autouse=True)
def gone():
    yield
    KEPT.clear()


@pytest.fixture
def on(monkeypatch):
    """A machine whose adapter of torch is not loaded."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(frameworks, "_adapter", lambda _: adapter())
    on = Machine()
    yield on
    on.close()


def mb(size_bytes):
    return round(size_bytes / MB)


def test_an_adapter_comes_when_its_framework_does(on, monkeypatch):
    """Loaded at the end of the scope in which the user imports torch; the scope has the user's memory alone."""
    scope = Scope(on).open()
    assert [one.name for one in on.frameworks.loaded] == []
    kept = Block(20)
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    scope.close()
    gen = scope.result(Measurement, "").gen
    assert [one.name for one in on.frameworks.loaded] == ["torch"]
    assert len(KEPT) == 1
    assert (mb(gen.consumed_bytes), mb(gen.peaked_bytes)) == (20, 0)
    kept.free()


@pytest.mark.usefixtures("fresh_mark")
def test_an_import_within_a_scope_is_in_neither_end_nor_peak(on):
    """Of a part of ours that a command of the user's needed."""
    scope = Scope(on).open()
    with on.own_imports.importing():
        KEPT.append(Block(3))
        with on.own_imports.importing():  # one that imports another counts once
            pass
    more = Block(40)
    more.free()
    scope.close()
    gen = scope.result(Measurement, "").gen
    assert (mb(gen.consumed_bytes), mb(gen.peaked_bytes)) == (0, 40)
    assert gen.peak.quality == "exact"


def test_two_threads_that_import_the_same_take_it_once(on):
    """The sampler's finds the framework while the cell ends, and waits for the import of the other."""
    entered, taken = threading.Barrier(2), threading.Event()

    def wait():
        with on.own_imports.importing():
            entered.wait()
            taken.wait()

    other = threading.Thread(target=wait)
    scope = Scope(on).open()
    other.start()
    with on.own_imports.importing():
        entered.wait()
        KEPT.append(Block(3))
    taken.set()
    other.join()
    scope.close()
    assert mb(scope.result(Measurement, "").gen.consumed_bytes) == 0


@pytest.mark.parametrize("when", ["began", "ended"])
def test_another_thread_imports_while_a_scope(on, when):
    """What it has taken by then is counted by then, and the rest not in this scope's place."""
    taken, over = threading.Event(), threading.Event()

    def take():
        with on.own_imports.importing():
            KEPT.append(Block(3))
            taken.set()
            over.wait()

    other = threading.Thread(target=take)
    scope = Scope(on)
    if when == "ended":
        scope.open()
    other.start()
    taken.wait()
    if when == "began":
        scope.open()
    else:
        scope.close()
    over.set()
    other.join()
    scope.close()
    assert mb(scope.result(Measurement, "").gen.consumed_bytes) == 0


def test_an_import_that_fails_is_tried_again(on, monkeypatch):
    """No descriptor was left at that moment: it is told once, and the framework is not left out for good."""

    def refuse():
        raise OSError("too many open files")

    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    with monkeypatch.context() as patch:
        patch.setattr(frameworks, "_adapter", lambda _: refuse())
        assert on.frameworks.imported() == on.frameworks.imported() == []
    assert on.take_notes() == ("the source torch cannot be loaded: OSError: too many open files",)
    assert [one.name for one in on.frameworks.imported()] == ["torch"]


def test_what_is_given_back_later(shell):
    """Taken before a cell and given back after it: neither the cell's nor told between two."""
    il = IPyGPULogger(report="none", gc_collect=False).start()
    shell.run_cell("x = 1", store_history=True)
    on = machine()
    with on.own_imports.importing(64 * MB):
        KEPT.append(Block(40))
    scope = Scope().open()
    kept = Block(20)
    scope.close()
    with on.own_imports.importing(64 * MB, -64 * MB):
        KEPT.pop().free()
        KEPT.append(Block(10))
    assert mb(scope.result(Measurement, "").gen.consumed_bytes) == 20
    kept.free()
    for _ in range(2):
        shell.run_cell("x = 1", store_history=True)
        assert il.record.between == ()
    il.stop()
