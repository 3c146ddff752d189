"""What grew, in cells of a real shell: each cell's truth is known by its construction."""

import gc
import mmap
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory import MB, blip

from ipygpulogger.engine.scope import Scope
from ipygpulogger.owners import growth, roots

pytestmark = pytest.mark.usefixtures("il")
linux = pytest.mark.linux("no system call tells what is resident")


@pytest.fixture
def il(run, shell):
    """The logger, in a shell that knows numpy."""
    shell.user_ns.update(np=np, MB=MB)
    return run.logger


def grew(record):
    assert record.owners_complete
    assert {owner.device for owner in record.owners} <= {"cpu"}
    return {owner.name: round(owner.size_bytes / MB, 2) for owner in record.owners}


def large(record):
    return {name: size_mb for name, size_mb in grew(record).items() if size_mb >= 1}


def test_looking_leaves_no_garbage(run, il):
    """With many objects to look at, nothing of ours waits for a collection."""
    il.gc_collect = False
    run("kept = [[np.ones(2000, 'u1')] for _ in range(3000)]; same = kept[::2]; x = np.ones(40 * MB, 'u1')")
    gc.collect()
    gc.disable()
    try:
        assert grew(run("z = np.ones(40 * MB, 'u1')")) == {"z": 40}
        ours = [one for one in gc.get_objects() if type(one).__module__ == "ipygpulogger.owners.attribution"]
    finally:
        gc.enable()
    assert [type(one).__name__ for one in ours] == []


@linux
def test_untouched_memory_is_nobodys(run):
    """300 MB that were never touched are in no figure of the process, so no name grew by them."""
    record = run("x = np.zeros(300 * MB, 'u1'); y = np.ones(50 * MB, 'u1')")
    assert large(record) == {"y": 50}
    assert abs(dict(record.unexplained).get("cpu", 0)) < 2 * MB


@linux
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.integers(0, 59), st.integers(4, 60)), min_size=1, max_size=5
    )
)
def test_memory_that_is_touched_later_is_its_names(run, shell, il, steps):
    """Whichever part of which array, in any cell after it was made, once or again."""
    makes = [
        "np.empty(60 * MB, 'u1')",
        "np.zeros((60, MB), 'u1').ravel()",
        "mapped(60 * MB)",
        "bytearray(60 * MB)",
    ]
    shell.user_ns["mapped"] = lambda size: np.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE), "u1")
    run(
        "; ".join(f"{name} = {make}" for name, make in zip("abcd", makes, strict=True))
        + "; e = np.ones(8 * MB)"
    )
    touched = {name: set() for name in "abc"} | {"d": set(range(60))}  # a bytearray is filled with zeros
    for name, start, count in steps:
        fresh = set(range(start, min(60, start + count))) - touched[name]
        touched[name] |= fresh
        record = run(f"np.frombuffer({name}, 'u1')[{start} * MB : {start + count} * MB] = 1")
        # Of large pages a part of the next one may come.
        if len(fresh) > 6:
            assert large(record) == {name: pytest.approx(len(fresh), abs=4)}
            assert abs(dict(record.unexplained).get("cpu", 0)) < 2 * MB
    run("del a, b, c, d, e")


@linux
@pytest.mark.parametrize(
    ("cell", "holder"),
    [
        ("b = a; del a; b[:] = 1", "b"),
        ("box = {'x': a}; del a; box['x'][:] = 1", "box"),
        ("b = a.reshape(3, -1); del a; b[:] = 1", "b"),
    ],
)
def test_what_another_name_takes_over_and_touches_is_not_freed(run, cell, holder):
    """The block is the same, whatever of it was resident."""
    run("a = np.empty(300 * MB, 'u1'); a[: 100 * MB] = 1")
    record = run(cell)
    assert large(record) == {holder: pytest.approx(200, abs=3)}
    assert not [note for note in record.notes if str(note).startswith("freed")]


@linux
@pytest.mark.parametrize("name", ["z", "q"])
def test_another_block_at_the_same_address(run, shell, name):
    """Freed and made again in one cell, untouched: nothing is held, and what is filled later is its own."""
    run("z = np.ones(300 * MB, 'u1'); address = z.ctypes.data")
    record = run(f"del z; {name} = np.zeros(300 * MB, 'u1')")
    assert shell.user_ns[name].ctypes.data == shell.user_ns["address"]
    assert record.gen.consumed_bytes == pytest.approx(-300 * MB, abs=3 * MB)
    assert [str(note) for note in record.notes] == ["freed: z 300 MB"]
    assert large(run(f"{name}[:] = 1")) == {name: pytest.approx(300, abs=3)}
    record = run(f"del {name}; z = np.zeros(300 * MB, 'u1'); z[: 100 * MB] = 1")
    (note,) = map(str, record.notes)
    freed_mb = re.fullmatch(rf"freed: {name} (\d+) MB", note)[1]
    assert int(freed_mb) == pytest.approx(300 if name == "q" else 200, abs=2)  # of large pages a part more
    assert large(run("z[50 * MB : 200 * MB] = 1")) == {"z": pytest.approx(100, abs=3)}


def test_walks_are_outside_the_cell(run, il, monkeypatch):
    """Before the scope opens and after it has closed; 300 MB that a walk needs are nobody's peak."""
    order = []
    find, opened, closed = roots.owners_in, Scope.open, Scope.close

    def note(word, call):
        def noted(*args, **how):
            order.append(word)
            return call(*args, **how)

        return noted

    def walk(*args, **how):
        blip(300)
        return find(*args, **how)

    run("pass")
    kept = np.ones(50 * MB, "u1")  # changes what is in use, so that the next cell has a walk before it
    monkeypatch.setattr(roots, "owners_in", note("walk", walk))
    monkeypatch.setattr(Scope, "open", note("open", opened))
    monkeypatch.setattr(Scope, "close", note("close", closed))
    record = run("x = np.ones(50 * MB, 'u1')")
    assert order[:3] == ["walk", "open", "close"]
    assert [word for word in order[3:] if word != "close"] == ["walk"]  # closing again changes nothing
    assert grew(record) == {"x": 50}
    assert record.gen.peaked_bytes < kept.nbytes


def test_a_search_that_fails_costs_no_record(run, il, monkeypatch, capsys):
    """The cell's figures are there all the same, and it is said once."""

    def fail(*_, **__):
        raise LookupError("no way")

    run("pass")
    monkeypatch.setattr(roots, "owners_in", fail)
    records = [run("x = np.ones(50 * MB, 'u1')"), run("y = np.ones(50 * MB, 'u1')")]
    assert [record.gen.consumed_bytes // MB for record in records] == pytest.approx([50, 50], abs=2)
    assert [record.owners for record in records] == [(), ()]
    assert capsys.readouterr().err.count("could not tell who holds memory: LookupError: no way") == 1


def test_no_time_is_said(run, il, monkeypatch, capsys):
    """A walk that is cut short names nobody and says so."""
    monkeypatch.setattr(growth, "BUDGET_S", 0)
    il.report = "text"
    record = run("x = np.ones(50 * MB, 'u1')")
    assert not record.owners_complete
    assert "grew: 50 MB unexplained (search cut short)" in capsys.readouterr().out


def test_stopped_it_knows_nothing(run, il):
    """`stop` leaves no walk behind; started again it works again."""
    run("x = np.ones(50 * MB, 'u1')")
    il.stop()
    assert not any(type(one) is growth.Snapshot for one in gc.get_objects())
    il.start()
    assert grew(run("y = np.ones(30 * MB, 'u1')")) == {"y": 30}


def test_it_keeps_nothing_alive(run, shell, il):
    """A deleted array dies in its cell, whatever was walked."""
    run("import weakref; x = np.ones(50 * MB, 'u1'); alive = weakref.ref(x)")
    record = run("del x")
    assert shell.user_ns["alive"]() is None
    assert record.gen.consumed_bytes == pytest.approx(-50 * MB, abs=2 * MB)


def test_an_array_can_be_resized_in_place(run, shell):
    """numpy refuses that for an array to which there is a weak reference."""
    run("a = np.ones(40 * MB, 'u1')")  # of over 32 MB: malloc serves it from nothing that it kept
    run("pass")
    record = run("a.resize(65 * MB); a[:] = 1")
    assert record.status == "ok"
    assert grew(record) == {"a": 25}
