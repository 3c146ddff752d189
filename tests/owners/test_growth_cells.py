"""What grew, in cells of a real shell: each cell's truth is known by its construction."""

import gc

import numpy as np
import pytest
from memory import MB, blip

from ipygpulogger.engine.scope import Scope
from ipygpulogger.owners import growth, roots

pytestmark = pytest.mark.usefixtures("il")


@pytest.fixture
def il(run, shell):
    """The logger, in a shell that knows numpy."""
    shell.user_ns.update(np=np, MB=MB)
    return run.logger


def grew(record):
    assert record.owners_complete
    assert {owner.device for owner in record.owners} <= {"cpu"}
    return {owner.name: round(owner.size_bytes / MB, 2) for owner in record.owners}


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


def test_untouched_memory_is_no_new_memory(run):
    """300 MB that were never touched are held by their name and are in no figure of the process."""
    record = run("x = np.zeros(300 * MB, 'u1'); y = np.ones(50 * MB, 'u1')")
    assert grew(record) == {"x": 300, "y": 50}
    assert dict(record.unexplained)["cpu"] == pytest.approx(-300 * MB, abs=2 * MB)


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
