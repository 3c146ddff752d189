"""A shell's names, outputs and exceptions: where the walk starts."""

import builtins
import gc
import sys
import weakref

from arrays import Array
from owned import CHAINED, FAILING, KEPT, found_in, run, shared_in

from ipygpulogger.owners import roots
from ipygpulogger.owners.roots import drop_hidden_references


def test_variables_and_outputs(notebook, capsys):
    """What is a variable too is no output's; IPython's own names are no variables."""
    run(notebook, "a = [Array(10)]; b = a[0]; _mine = Array(3)")
    run(notebook, "b")
    number = notebook.execution_count
    run(notebook, "Array(5)")
    run(notebook, "{'deep': Array(4)}")
    assert found_in(notebook) == [
        ("a", 10, "variable"),
        (f"Out[{number}]", 5, "output"),
        (f"Out[{number + 1}]", 4, "output"),
        ("_mine", 3, "variable"),
    ]


def test_outputs_that_are_not_in_out(notebook, capsys, monkeypatch):
    """IPython's own copies hold them: the numbered ones, and where it keeps none, the last three."""
    for size in (5, 1, 2, 3):
        run(notebook, f"Array({size})")
    run(notebook, "numbers = sorted(Out); Out.clear()")
    a, b, c, d = (f"_{number}" for number in notebook.user_ns["numbers"])
    assert found_in(notebook) == [(a, 5, "output"), (d, 3, "output"), (c, 2, "output"), (b, 1, "output")]
    drop_hidden_references(notebook)
    monkeypatch.setattr(notebook.displayhook, "do_full_cache", False)
    builtins._ = str.upper  # with gettext no variable `_` is set either
    for size in (1, 2, 3, 4):
        run(notebook, f"Array({size})")
    run(notebook, "Out.clear()")
    assert [(name.removeprefix("IPython's own "), size) for name, size, _ in found_in(notebook)] == [
        ("_", 4),
        ("__", 3),
        ("___", 2),
    ]


def test_a_thread_is_not_the_holder_of_the_kernels_memory(notebook):
    """A thread refers to the kernel's stream, and that to messages and outputs: none of them is the thread's."""
    stream = type("OutStream", (), {"__module__": "ipykernel.iostream"})
    notebook.user_ns["stream"] = stream()
    run(notebook, "import threading; stream.message = Array(7); t = threading.Thread(); t._stderr = stream")
    run(notebook, "del stream")
    assert found_in(notebook) == []


def test_an_output_is_not_called_after_the_users_own_name(notebook, capsys):
    """Where the user has another `_`, and nothing in `Out`, neither is said to hold the output."""
    run(notebook, "Array(5)")
    number = notebook.execution_count - 1
    assert shared_in(notebook) == {f"Out[{number}]": (5, "output", ("_",))}
    run(notebook, "_ = 1; Out.clear()")
    assert shared_in(notebook) == {f"_{number}": (5, "output", ("IPython's own _",))}
    run(notebook, f"del _{number}")
    assert set(shared_in(notebook)) == {f"IPython's own _{number}"}


def test_the_last_traceback(notebook, capsys):
    """The frames hold what no variable does, the outermost first."""
    run(notebook, FAILING)
    assert found_in(notebook) == [
        ("x", 100, "variable"),
        ("last traceback: step.act", 20, "traceback"),
        ("last traceback: layer.inside", 7, "traceback"),
        ("last traceback: layer.Inner", 2, "traceback"),
    ]


def test_chained_exceptions(notebook, capsys):
    """Causes, contexts, and what an exception itself carries."""
    run(notebook, CHAINED)
    names = {name.removeprefix("last traceback: "): size for name, size, _ in found_in(notebook)}
    assert names == {"first.one": 3, "second.two": 4, "third.three": 5, "RuntimeError": 6}


def test_names_of_methods(notebook, capsys):
    """With their class, where Python tells."""
    run(notebook, "class Net:\n    def forward(self):\n        h = Array(4)\n        1 / 0\nNet().forward()")
    name = "Net.forward.h" if sys.version_info >= (3, 11) else "forward.h"
    assert found_in(notebook) == [(f"last traceback: {name}", 4, "traceback")]


def test_our_own_objects_lead_nowhere(notebook, capsys):
    """The logger in `il` holds the shell and so everything that the shell hides; it is no owner."""
    from ipygpulogger import IPyGPULogger

    run(notebook, "Array(5)")
    notebook.user_ns["il"] = IPyGPULogger(report="none")
    notebook.user_ns["shell"] = notebook
    assert [kind for _, _, kind in found_in(notebook)] == ["output"]


def test_looking_changes_nothing(notebook, capsys):
    """After the walk nothing holds more than before, and `locals()` of the user's is what it was."""
    run(
        notebook,
        FAILING.replace("inside =", "mine.append(locals()); inside =").replace("x = ", "mine = []; x = "),
    )
    found_in(notebook)
    assert {"h", "Inner"} <= set(notebook.user_ns["mine"][0])
    inside = weakref.ref(sys.last_traceback.tb_next.tb_next.tb_next.tb_frame.f_locals["inside"][0])
    act = weakref.ref(sys.last_traceback.tb_next.tb_next.tb_frame.f_locals["act"])
    found_in(notebook)
    notebook.user_ns["mine"].clear()
    run(notebook, "1")  # the result of the failed cell is gone with the next one
    notebook.InteractiveTB.tb = None
    for name in roots._LAST_OF_SYS:
        vars(sys).pop(name, None)
    gc.collect()
    assert inside() is None
    assert act() is None


def test_an_exception_in_a_variable(notebook, capsys):
    """What its frames hold has the variable's name, the function's and the local's, in a container too."""
    run(notebook, KEPT + "err = attempt()")
    assert shared_in(notebook) == {"err: step.act": (20, "variable", ()), "err: step.x": (3, "variable", ())}
    run(notebook, "errors = {'first': err}; del err")
    assert shared_in(notebook) == {
        "errors: step.act": (20, "variable", ()),
        "errors: step.x": (3, "variable", ()),
    }


def test_who_shares_an_exception(notebook, capsys):
    """What a second name leads to counts once; a name of a local itself comes first and is told."""
    run(
        notebook,
        KEPT + "err = attempt(); again = [err]; act = err.__traceback__.tb_next.tb_frame.f_locals['act']",
    )
    found = {"act": (20, "variable", ("err: step.act",)), "err: step.x": (3, "variable", ())}
    assert shared_in(notebook) == found
    run(notebook, "raise err")
    assert shared_in(notebook) == found


def test_debuggers(notebook, capsys):
    """What pdb keeps for its convenience is hidden."""
    notebook.user_ns[roots.DEBUGGERS] = {"_exception": [Array(7)]}
    assert shared_in(notebook) == {"debugger": (7, "traceback", ())}
    names = {roots.DEBUGGERS: {"_exception": [Array(8)]}}  # of a module that failed
    notebook.user_ns["names"] = names
    run(notebook, "exec('1 / 0', names)")
    drop_hidden_references(notebook)
    assert shared_in(notebook) == {}
    assert roots.DEBUGGERS not in names


def test_a_failed_script_stays_in_the_traceback(notebook, capsys):
    """The names of a module whose running failed, which no variable shows."""
    source = "big = Array(8)\n1 / 0\n"
    run(notebook, f"exec(compile({source!r}, 'script.py', 'exec'), {{'Array': Array}})")
    assert shared_in(notebook) == {"last traceback: <module>.big": (8, "traceback", ())}


def test_modules_of_the_user(notebook, tmp_path, monkeypatch):
    """The globals of a module of one's own have a name; those of installed ones are not looked at."""
    (tmp_path / "ours_to_try.py").write_text("cache = []")
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "installed_to_try.py").write_text("cache = []")
    for folder in (tmp_path, tmp_path / "site-packages"):
        monkeypatch.syspath_prepend(str(folder))
    import installed_to_try
    import ours_to_try

    ours_to_try.cache.append(Array(8))
    installed_to_try.cache.append(Array(9))
    assert found_in(notebook) == [("ours_to_try.cache", 8, "other")]
    for name in ("ours_to_try", "installed_to_try"):
        del sys.modules[name]
