"""What moves between cells is told with the next one; the truth is known by construction."""

import gc
import os
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory import MB, Block

from ipygpulogger import IPyGPULogger
from ipygpulogger.engine.machine import machine
from ipygpulogger.engine.scope import Scope
from ipygpulogger.notebook import measured_cell
from ipygpulogger.records import CPU, DeviceHolding, moved_between


@pytest.fixture
def il(shell):
    """A logger whose reports are not looked at."""
    il = IPyGPULogger(report="none", gc_collect=False).start()
    shell.user_ns["Block"] = Block
    yield il
    il.stop()
    shell.user_ns.clear()


@pytest.fixture
def run(shell, il):
    def run(source):
        shell.run_cell(source, store_history=True)
        return il.record

    return run


def between(record):
    """In MB."""
    return {device: round(size_bytes / MB) for device, size_bytes in record.between}


CYCLE = "class Node: pass\nnode = Node(); node.me = node; node.block = Block(100); del node"


def test_garbage_that_goes_between_cells(il, run, capsys):
    """A cell leaves a cycle of 100 MB, the collector takes it before the next: that one tells of it."""
    il.report = "text"
    consumed = run(CYCLE).gen.consumed_bytes
    assert consumed == pytest.approx(100 * MB, abs=MB)
    gc.collect()
    capsys.readouterr()
    assert between(run("x = 1")) == {"cpu": -100}
    assert "between cells: -100 MB" in capsys.readouterr().out.splitlines()
    assert run("x = 1").between == ()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2)), min_size=1, max_size=5))
def test_every_gap(shell, run, steps):
    """Whatever moves in cells and between them: each has its own."""
    blocks = shell.user_ns["blocks"] = []

    def move(eights):
        for _ in range(abs(eights)):
            if eights > 0:
                blocks.append(Block(8))
            elif blocks:
                blocks.pop().free()

    shell.user_ns["move"] = move
    run("x = 1")
    try:
        for outside, inside in steps:
            before = len(blocks)
            move(outside)
            moved_mb, middle = 8 * (len(blocks) - before), len(blocks)
            record = run(f"move({inside})")
            assert between(record) == ({"cpu": moved_mb} if moved_mb else {})
            assert record.gen.consumed_bytes == pytest.approx(8 * MB * (len(blocks) - middle), abs=MB)
    finally:
        while blocks:
            blocks.pop().free()


def test_our_own_work_is_left_out(il, run, monkeypatch):
    """After a cell and before one, what our hooks need for themselves is nobody's."""
    kept = []
    run("x = 1")
    run("x = 1")  # the first one may have moved a megabyte, which makes another walk necessary
    for target, name in ((il, "_show"), (il._growth, "_find")):
        real = getattr(target, name)
        monkeypatch.setattr(target, name, lambda *args, real=real: (kept.append(Block(20)), real(*args))[1])
    run("x = 1")
    assert len(kept) == 1
    block = Block(10)
    assert between(run("x = 1")) == {"cpu": 10}
    assert len(kept) == 3  # what was shown made another walk necessary
    for one in (block, *kept):
        one.free()


def test_cells_at_the_same_time(shell, il, run):
    """A cell that begins while another runs has no gap of its own; the outer one and the next have theirs."""

    def aside(source):
        thread = threading.Thread(target=shell.run_cell, args=(source,), kwargs={"store_history": True})
        thread.start()
        thread.join()

    shell.user_ns["aside"] = aside
    run("x = 1")
    block = Block(30)
    outer = run("aside('b = Block(20)')")
    inner = il.history[-2]
    assert inner.between == ()
    assert between(outer) == {"cpu": 30}
    block.free()
    assert between(run("b.free()")) == {"cpu": -30}


@pytest.mark.parametrize("how", ["stopped", "a fork", "not measured", "one cell alone"])
def test_without_a_cell_just_before_there_is_none(shell, il, run, monkeypatch, how):
    """Then what moved is not known to have moved between two cells."""
    run("x = 1")
    if how == "stopped":
        il.stop()
        il.start()
    elif how == "one cell alone":
        il.stop()
        il.expect()
    elif how == "a fork":
        pid = os.getpid()
        monkeypatch.setattr(measured_cell.os, "getpid", lambda: pid + 1)
    else:
        with monkeypatch.context() as patch:
            patch.setattr(Scope, "open", lambda _: 1 / 0)
            shell.run_cell("y = 1", store_history=True)
    block = Block(30)
    assert run("%%gpulog\nx = 1" if how == "one cell alone" else "x = 1").between == ()
    block.free()
    if how in ("stopped", "not measured"):
        assert between(run("x = 1")) == {"cpu": -30}


def test_no_figure_where_memory_cannot_be_read(il, run, monkeypatch):
    """For want of descriptors, say: then nothing is told, and the cell is measured all the same."""
    counter = machine().process.counter
    observe, times = counter.observe, iter([OSError(24, "Too many open files")])

    def failing():
        for error in times:
            raise error
        return observe()

    with monkeypatch.context() as patch:
        patch.setattr(counter, "stamp", tuple)  # as if memory was allocated since the last observation
        patch.setattr(il, "_show", lambda *_: patch.setattr(counter, "observe", failing))
        run("x = 1")  # at whose end the gap begins
    block = Block(20)
    record = run("y = Block(10)")
    assert record.between == ()
    assert record.gen.consumed_bytes == pytest.approx(10 * MB, abs=MB)
    block.free()
    assert between(run("y.free()")) == {"cpu": -20}


# -- of devices, and as data -----------------------------------------------------------------------


def held(name, inside_mb, outside_mb=None):
    return DeviceHolding(name, inside_mb * MB, None if outside_mb is None else outside_mb * MB)


@pytest.mark.parametrize(
    ("ended", "began", "moved_mb"),
    [
        (held("cuda:0", 100, 500), held("cuda:0", 300, 500), 200),
        (held("cuda:0", 100, 500), held("cuda:0", 100, 700), 200),
        (held("cuda:0", 100, None), held("cuda:0", 100, 700), 0),  # it was there, and nobody told
        (held("cuda:0", 100, 500), held("cuda:0", 50, None), -50),
        (None, held("cuda:0", 40, 500), 40),  # with a context, which is no array
        (held("nvml:0", 0, 800), held("cuda:0", 200, 600), 0),  # a framework took over its own device
        (held("cuda:0", 100, 500), None, 0),
    ],
)
def test_arithmetic_of_a_device(ended, began, moved_mb):
    """Arrays, and what stands outside the allocators where that is known at both ends."""
    was = {"GPU-1": ended} if ended else {}
    now = {"GPU-1": began} if began else {}
    assert moved_between(was, now, 0) == ((("cuda:0", moved_mb * MB),) if moved_mb else ())


def test_the_grain_is_general_rams_alone():
    """A device's figures have none."""
    was = {CPU: held(CPU, 100), "GPU-1": held("cuda:0", 100)}
    now = {CPU: held(CPU, 104), "GPU-1": held("cuda:0", 104)}
    assert moved_between(was, now, 8 * MB) == (("cuda:0", 4 * MB),)
    assert dict(moved_between(was, now, 0)) == {CPU: 4 * MB, "cuda:0": 4 * MB}
