"""Dropping a shell's hidden references: what only they held is freed, and nothing else."""

import builtins
import gc
import sys
import weakref

import pytest
from arrays import Array
from memory import MB
from owned import CHAINED, FAILING, found_in, run

from ipygpulogger.owners import roots
from ipygpulogger.owners.roots import drop_hidden_references


@pytest.mark.parametrize("source", [FAILING, CHAINED])
@pytest.mark.parametrize("debugged", [False, True])
def test_let_go_of_a_traceback(notebook, capsys, monkeypatch, source, debugged):
    """Every array that only frames held is gone; variables stay."""
    alive = weakref.WeakSet()
    notebook.user_ns["Array"] = lambda size: (made := Array(size)) and (alive.add(made) or made)
    run(notebook, source)
    if debugged:
        lines = iter(["up", "p dir()", "q"])
        monkeypatch.setattr("builtins.input", lambda *_: next(lines))
        run(notebook, "%debug")
    assert len(alive) >= 3
    for _ in range(2):  # and of nothing
        drop_hidden_references(notebook)
    gc.collect()
    assert [array.size_bytes for array in alive] == ([100] if source == FAILING else [])
    assert found_in(notebook) == ([("x", 100, "variable")] if source == FAILING else [])
    assert not any(hasattr(sys, name) for name in roots._LAST_OF_SYS)
    if debugged:  # and the debugger comes again when it is asked
        lines = iter(["p 'again'", "q"])
        run(notebook, "1 / 0")
        run(notebook, "%debug")
        assert "'again'" in capsys.readouterr().out


def test_let_go_of_outputs(notebook, capsys):
    """`Out`, `_`, `__`, `___`, `_12` and IPython's hidden copies of them; the inputs stay."""
    alive = weakref.WeakSet()
    notebook.user_ns["Array"] = lambda size: (made := Array(size)) and (alive.add(made) or made)
    for size in (1, 2, 3, 4, 5):
        run(notebook, f"Array({size})")
    run(notebook, "_5mine = Array(6)")
    assert len(alive) == 6
    drop_hidden_references(notebook)
    gc.collect()
    assert [array.size_bytes for array in alive] == [6]
    assert notebook.user_ns["In"][-1]
    assert notebook.user_ns["Out"] == {}
    run(notebook, "7")  # and the machinery goes on
    run(notebook, "assert _ == 7 and Out[max(Out)] == 7")
    assert notebook.last_execution_succeeded


@pytest.mark.parametrize("name", ["_", "__", "_1", "_12", "_3_"])
def test_a_variable_of_the_users_survives(notebook, capsys, name):
    """Whoever calls their own variable `_` keeps it."""
    run(notebook, "Array(1)")
    run(notebook, f"{name} = Array(2)")
    assert (name, 2, "variable") in found_in(notebook)
    drop_hidden_references(notebook)
    assert notebook.user_ns[name].size_bytes == 2
    assert found_in(notebook) == [(name, 2, "variable")]


def test_a_kept_exception_does_not_own_the_notebook(notebook, capsys):
    """Its traceback leads to the cell's own frame, whose variables are everybody's."""
    run(
        notebook, "errors = []\ntry:\n    1 / 0\nexcept ZeroDivisionError as error:\n    errors.append(error)"
    )
    run(notebook, "model = Array(6)")
    assert found_in(notebook) == [("model", 6, "variable")]


def test_gettext_survives(notebook, capsys):
    """A `_` among the builtins keeps IPython from using that name; nor do we."""
    builtins._ = str.upper
    run(notebook, "Array(1)")
    drop_hidden_references(notebook)
    assert "_" not in notebook.user_ns
    assert found_in(notebook) == []


@pytest.mark.torch
def test_what_an_allocator_has_cached_is_given_back(notebook, capsys, cuda):
    """Its unused memory returns to the device, though no live array came back."""
    import torch

    notebook.user_ns.update(torch=torch, MB=MB)
    for size_mb in (30, 40):
        run(notebook, f"torch.empty({size_mb} * MB, dtype=torch.uint8, device='cuda').numel()")
    reserved_bytes = torch.cuda.memory_reserved()
    hidden, back, complete = roots.release(notebook, reset_peaks=False)
    assert (hidden, complete) == ((), True)
    assert reserved_bytes - torch.cuda.memory_reserved() >= 40 * MB
    assert back["cuda:0"][0] == 0
