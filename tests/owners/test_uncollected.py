"""What waits for the garbage collector: collected where that is worth its time, otherwise told."""

import gc
import io
import random
from dataclasses import replace

import cyclic_programs
import fresh_cells
import numpy as np
import pytest
from memory import MB

from ipygpulogger import IPyGPULogger
from ipygpulogger.engine.machine import machine
from ipygpulogger.owners import growth, uncollected
from ipygpulogger.runtime import full_collection

COSTS_S = {"free": 0.0, "dear": 100.0}
ARENAS_BYTES = 3 * MB // 2  # Python's own, of 1 MB, come and go


@pytest.fixture
def notebook(shell, monkeypatch, capsys):
    monkeypatch.setattr(growth, "BUDGET_S", 10)
    monkeypatch.setattr(uncollected, "_FOLLOW_S", 10)
    yield shell
    shell.user_ns.clear()


@pytest.mark.parametrize("cost", ["as it is", *COSTS_S])
def test_what_a_full_collection_would_give_back_is_never_told_as_held(notebook, monkeypatch, cost):
    """Arrays of 1 to 100 MB in cycles: whatever a full collection costs, the report tells the truth."""
    if cost in COSTS_S:
        monkeypatch.setattr(full_collection, "cost_s", lambda: COSTS_S[cost])
    cyclic_programs.check_that_nothing_is_told_as_held(
        notebook, lambda size_bytes: np.ones(size_bytes, "u1"), 15, ARENAS_BYTES
    )


@pytest.mark.parametrize("budget_s", [10, 0.001])
def test_what_no_walk_sees_is_never_told_as_held(notebook, monkeypatch, budget_s):
    """The same of memory of C, which is added in place to what names were bound to before."""
    monkeypatch.setattr(full_collection, "cost_s", lambda: COSTS_S["dear"])
    monkeypatch.setattr(growth, "BUDGET_S", budget_s)
    cyclic_programs.check_that_nothing_is_told_as_held(
        notebook,
        lambda size_bytes: io.BytesIO(b"x" * size_bytes),
        25,
        ARENAS_BYTES,
        cyclic_programs.GROWING_PROGRAMS,
    )


@pytest.mark.parametrize("seed", range(6))
def test_what_malloc_keeps_is_told_now_and_then(notebook, monkeypatch, seed):
    """It is not asked for a while after it took long to answer; what it keeps is then told in some cells only."""
    heap, told = machine().process.heap, random.Random(seed)

    def now_and_then():
        found = heap()
        return found and told.choice([None, replace(found, kept_bytes=found.kept_bytes + 100 * MB)])

    monkeypatch.setattr(machine().process, "heap", now_and_then)
    monkeypatch.setattr(full_collection, "cost_s", lambda: COSTS_S["dear"])
    cyclic_programs.check_that_nothing_is_told_as_held(
        notebook,
        lambda size_bytes: io.BytesIO(b"x" * size_bytes),
        10,
        ARENAS_BYTES,
        cyclic_programs.GROWING_PROGRAMS,
    )


# -- when a full collection runs --------------------------------------------------------------------


@pytest.fixture
def cells(notebook, monkeypatch):
    """Runs cells; returns each cell's record, and how many full collections ran because of it."""
    notebook.user_ns.update(Node=cyclic_programs.Node, churn=cyclic_programs.churn, gc=gc, np=np, MB=MB)
    loggers = []

    def start(cost_s=0.0, **options):
        monkeypatch.setattr(full_collection, "cost_s", lambda: cost_s)
        for other in loggers:
            other.stop()
        il = IPyGPULogger(report="none", **options).start()
        loggers.append(il)
        notebook.run_cell("pass", store_history=True)

        def run(source):
            before = full_collection.count()
            notebook.run_cell(source, store_history=True)
            return il.record, full_collection.count() - before

        return run

    yield start
    for il in loggers:
        il.stop()


HOLDS = "a = Node(); a.me = a; a.block = np.ones(50 * MB, 'u1')"
WAITS = "up to 50 MB waits for the garbage collector"


def test_a_small_cell_runs_no_full_collection(cells):
    """Whatever it makes, rebinds or drops, as long as memory comes back; "full" runs two, False none."""
    run = cells(cost_s=0.01)
    for source in (
        "pass",
        "x = [[] for _ in range(100)]",
        "x = 1",
        "y = np.ones(20 * MB, 'u1')",
        "del y",
        HOLDS,
    ):
        assert run(source)[1] == 0, source
    assert cells(gc_collect="full")("x = 1")[1] >= 1
    assert cells(gc_collect=False)("x = 1")[1] == 0


@pytest.mark.parametrize(
    "drop",
    [
        "del a",
        "a = None",
        "a.block = a.me = None; a = Node()",
        "kept['a'].pop(); a = None",
        "a = 1\n%reset_selective -f a",
    ],
)
def test_what_a_name_held_is_collected_where_it_did_not_come_back(cells, drop):
    """A full collection runs once, and no figure has what it freed; where nothing waits there is none."""
    run = cells(cost_s=0.01)
    run(f"{HOLDS}; kept = {{'a': [a]}}; kept = {{'a': [a]}} if 'pop' in {drop!r} else {{}}")
    run("pass")
    record, _ = run(drop)
    assert record.gen.consumed_bytes == pytest.approx(-50 * MB, abs=2 * MB)
    assert not record.notes
    assert run("pass")[1] == 0


def test_what_is_too_dear_is_told_until_it_is_collected(cells):
    """By the report of each cell."""
    run = cells(cost_s=100)
    run(HOLDS)
    for source in ("del a", "pass"):
        record, ran = run(source)
        assert (record.notes, ran) == ((WAITS,), 0)
    record, _ = run("gc.collect()")
    assert record.gen.consumed_bytes == pytest.approx(-50 * MB, abs=2 * MB)
    assert not record.notes
    record, _ = run("x = Node(); x.me = x; x.block = np.ones(50 * MB, 'u1'); churn(); del x")
    assert cyclic_programs.told_bytes(record) == pytest.approx(50 * MB, abs=2 * MB)


def test_a_long_cell_pays_for_a_full_collection(cells):
    """One that takes less than 1 % of its time."""
    run = cells(cost_s=0.001)
    assert run("import time; time.sleep(0.05)")[1] == 0
    assert run("time.sleep(0.2)")[1] == 1


LEAVES = (
    "def leave():\n    o = Node(); o.me = o; o.a = np.ones(50 * MB, 'u1')\n    gc.collect(1); gc.collect(1)\n"
)
MANY = "many = list(range(1_000_000))"  # too much to visit


@pytest.mark.parametrize("cost_s", [0.01, 100])
@pytest.mark.parametrize("beside", ["pass", MANY])
def test_what_a_cell_leaves_beside_much_that_lives(cells, beside, cost_s):
    """Where a walk cannot visit everything, too."""
    run = cells(cost_s)
    run(beside)
    run(LEAVES)
    record, ran = run("leave()")
    left_bytes = record.gen.consumed_bytes
    assert left_bytes < 5 * MB if ran else cyclic_programs.told_bytes(record) >= left_bytes - 2 * MB
    assert ran == (cost_s < 1)


# -- what a walk does not see -----------------------------------------------------------------------

MADE = {
    "text beside an array": "a.rows = [str(i) for i in range(200_000)]; a.block = np.ones(30 * MB, 'u1')",
    "small arrays": "a.layers = [np.ones(700_000, 'u1') for _ in range(60)]",
    "a buffer of C": "a.buffer = io.BytesIO(b'x' * (40 * MB))",
    "a dict of numbers": "a.numbers = {i: float(i) for i in range(500_000)}",
    "a tree whose nodes know their parents": """
def grow(parent, depth):
    node = Node(); node.above = parent; node.name = f"{depth:150}"
    node.below = [grow(node, depth - 1) for _ in range(4)] if depth else []
    return node
a.tree = grow(a, 8)""",
}
BEGIN = "a = b = Node(); a.me = a"
WALKED = "z = np.ones(3 * MB, 'u1')"  # before the next cell: names are walked after what consumes memory
STARTS = {  # the cells around the one that makes something
    "at once": ((BEGIN,), ("b = 0",)),
    "in place": ((BEGIN, WALKED), ("b = 0",)),
    "by and by": ((BEGIN, WALKED, "a.first = io.BytesIO(b'x' * (20 * MB))"), ("b = 0",)),
    "by another name": ((BEGIN, WALKED, "a, b = 0, a"), ("a = b", "b = 0")),
}
HELD = {
    f"{made}, {start}, {cost}": fresh_cells.Program(
        (*before, MADE[made].replace("a.", "b.") if "other" in start else MADE[made], *after, "del a"),
        *limits,
    )
    for made in MADE
    for start, (before, after) in STARTS.items()
    for cost, limits in {"free": (0.01, 0.02), "dear": (100, 0.02), "dear, no time": (100, 0.001)}.items()
}


@pytest.fixture(scope="module")
def held(driverless_env):
    """The outcome of each program."""
    return dict(zip(HELD, fresh_cells.outcomes(list(HELD.values()), driverless_env), strict=True))


@pytest.mark.parametrize("program", HELD)
def test_what_a_name_held_besides_large_blocks(held, program):
    """Small blocks, memory of C, and what a walk has no time for: collected, or told with all of it."""
    found = held[program]
    if found.ran:
        assert found.given_back_bytes < 3 * MB
    else:
        assert found.given_back_bytes > 8 * MB
        assert found.told_bytes >= found.given_back_bytes - 3 * MB
