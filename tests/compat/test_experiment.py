"""Experiments in a shell of this process: what they tell, how they end, and what they leave behind."""

import gc
import os
import re
import subprocess
import sys
import threading

import pytest
from experiment_rig import FINISHED, REPORT, STARTED, STATE, run
from memory import MB, Block

import ipygpulogger
import ipygpulogger.experiments as door
from ipygpulogger.compat import experiment as experiment_module
from ipygpulogger.engine.frameworks import Settling
from ipygpulogger.engine.machine import Machine, machine
from ipygpulogger.engine.scope import Scope
from ipygpulogger.experiments import (
    CellLoggerData,
    CellLoggerMemory,
    CellLoggerTime,
    IPyExperimentData,
    IPyExperimentMemory,
    IPyExperiments,
    IPyExperimentsCPU,
)
from ipygpulogger.notebook.cell import CellEvents
from ipygpulogger.notebook.logger import IPyGPULogger


@pytest.mark.usefixtures("fresh_mark")
def test_a_whole_experiment(shell, capsys):
    """Banner, a report for each cell, the end; the figures are those of the blocks."""
    run(shell, "exp = X()")
    out = capsys.readouterr().out
    assert REPORT.fullmatch(out[STARTED.match(out).end() :])
    run(shell, "a = Block(64)")
    assert abs(int(REPORT.fullmatch(capsys.readouterr().out)["consumed"]) - 64) <= 1
    run(shell, "blip(128)")
    assert abs(int(REPORT.fullmatch(capsys.readouterr().out)["peaked"]) - 128) <= 1
    so_far = shell.user_ns["exp"].data
    assert abs(so_far.cpu.consumed - 64 * MB) < 2 * MB
    assert so_far.cpu.reclaimed == 0
    run(shell, "data = exp.finish()")
    out = capsys.readouterr().out
    match, final = FINISHED.fullmatch(out, REPORT.match(out).end()), shell.user_ns["data"].cpu
    assert match["deleted"] == "a"  # `data` has its value only when the cell is over
    assert (match["consumed"], match["reclaimed"]) == tuple(str(int(size / MB)) for size in final[:2])
    assert all(abs(size_bytes - 64 * MB) < 2 * MB for size_bytes in final[:2])
    run(shell, "pass")
    assert capsys.readouterr().out == ""


def test_the_state_is_the_machines(shell, exp, capsys):
    """Used is this process, free what the machine can still give, total all it has."""
    import psutil

    block = Block(200)
    exp.print_state()
    match = re.fullmatch(STATE, capsys.readouterr().out)
    used, free, total = (int(match[name].replace(",", "")) for name in ("used", "free", "total"))
    assert total == psutil.virtual_memory().total // MB
    assert abs(used - psutil.Process().memory_info().rss / MB) < 2
    assert used < free + used <= total
    assert float(match["util"]) == pytest.approx(used / total * 100, abs=0.01)
    block.free()


def test_data_are_bytes_in_named_tuples(exp):
    """The original's names in its order; without a GPU its figures are 0."""
    fields = {
        IPyExperimentData: ("cpu", "gpu"),
        IPyExperimentMemory: ("consumed", "reclaimed", "available"),
        CellLoggerData: ("cpu", "gpu", "time"),
        CellLoggerMemory: ("used_delta", "peaked_delta", "used_total"),
        CellLoggerTime: ("time_delta",),
    }
    assert {kind: kind._fields for kind in fields} == fields
    data = exp.data
    assert all(type(figure) is int for figure in data.cpu)
    assert data.cpu.available > MB
    assert data.gpu == exp.finish().gpu == (0, 0, 0)


def test_finishing_again_changes_nothing(shell, exp, capsys):
    """The second finish prints and deletes nothing, and returns what the first did; so does data."""
    shell.user_ns["a"] = 1
    first = exp.finish()
    assert FINISHED.fullmatch(capsys.readouterr().out)["deleted"] == "a"
    shell.user_ns["b"] = 1
    assert exp.finish() is first is exp.data
    with exp:
        pass
    assert exp.finish() is first
    assert shell.user_ns["b"] == 1
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("error", [None, "ValueError", "KeyboardInterrupt", "SystemExit"])
@pytest.mark.filterwarnings("ignore:To exit:UserWarning")
def test_the_context_manager(shell, capsys, error):
    """The block's end is the experiment's, which lets keep a name from within; an exception goes on."""
    ends = f"raise mine({error})" if error else "pass"
    run(shell, "raised = []\ndef mine(kind):\n    raised.append(kind(3))\n    return raised[0]")
    result = run(
        shell,
        f"with X(cl_enable=False) as exp:\n    a = 1\n    b = 2\n    exp.keep_var_names('b')\n    {ends}",
    )
    out = capsys.readouterr().out
    match = FINISHED.search(out, STARTED.match(out).end())
    assert (match["deleted"], match["kept"]) == ("a", "b")
    assert "a" not in shell.user_ns
    assert shell.user_ns["b"] == 2
    assert [result.error_in_exec] == (shell.user_ns["raised"] or [None])


def test_only_the_cell_logger(shell, capsys):
    """exp_enable=False: the banner, then cells are reported, nothing else is printed, shown or deleted."""
    run(shell, "exp = X(exp_enable=False)")
    banner = "\n*** Experiment started with the CPU-only backend\n\n"
    out = capsys.readouterr().out
    assert out.startswith(banner)
    assert REPORT.fullmatch(out.removeprefix(banner))
    for code in ("a = 1", "exp.finish()"):
        assert run(shell, code).result is None
        assert REPORT.fullmatch(capsys.readouterr().out)
    assert shell.user_ns["a"] == 1
    assert shell.user_ns["exp"].data.cpu.reclaimed == 0
    assert run(shell, "exp.finish()").result is None


def test_what_a_bare_import_gave():
    """`import ipyexperiments`: its version, its utils, and the base class, which is no experiment itself."""
    assert door.__version__ == ipygpulogger.__version__
    assert door.utils.mem.b2mb(3 << 20) == 3
    names = {}
    exec("from ipygpulogger.experiments import *", names)
    assert set(names) - {"__builtins__"} == set(door.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        door.no_such_name  # noqa: B018
    with pytest.raises(TypeError, match="use IPyExperimentsCPU or IPyExperimentsPytorch"):
        IPyExperiments()


# -- how else an experiment ends --------------------------------------------------------------------

REMADE = [
    "exp = X()",
    "def f():\n    global exp\n    exp = X()\nf()",
    "new = X(cl_enable=False)\nexp = new\ndel new",
]


@pytest.mark.parametrize("code", REMADE)
def test_the_constructors_cell_again(shell, capsys, code):
    """The old one ends in the cell where the new one begins: variables and figures stay apart."""
    for _ in range(2):
        run(shell, code)
    run(shell, "a = Block(64)")
    capsys.readouterr()
    run(shell, code)
    out = capsys.readouterr().out
    (finished,) = FINISHED.finditer(out)
    assert "a" in finished["deleted"].split(", ")
    assert len(STARTED.findall(out)) == len(experiment_module._unfinished) == 1
    exp = shell.user_ns["exp"]
    run(shell, "a = Block(32)")  # the name that the old one had
    assert exp.get_var_names() == ["a"]
    assert abs(exp.data.cpu.consumed - 32 * MB) < 2 * MB
    assert capsys.readouterr().out.count("･ CPU:") == (exp.cl is not None)
    final = exp.finish().cpu
    assert all(abs(size_bytes - 32 * MB) < 2 * MB for size_bytes in final[:2])
    assert "a" not in shell.user_ns


def test_reset_wipes_everything_without_a_word(shell, capsys):
    """%reset finds every name where it was; no report, no error, nothing left."""
    run(shell, "exp = X()\n" + "\n".join(f"n{i} = {i}" for i in range(50)))
    capsys.readouterr()
    assert run(shell, "%reset -f").success
    assert capsys.readouterr() == ("", "")
    assert not experiment_module._unfinished
    assert not {"exp", "n1"} & set(shell.user_ns)


@pytest.mark.parametrize(
    ("code", "deleted"),
    [
        ("%xdel exp", "a"),
        ("%reset_selective -f ^exp$", "a"),
        ("globals().pop('exp');", "a"),
        ("exp = None", "a, exp"),  # a new variable like any
        ("exp.me = exp\ndel exp\nimport gc\ngc.collect();", "a, gc"),  # only a cycle held it
    ],
)
def test_other_ways_to_lose_it(shell, capsys, code, deleted):
    """However the last reference goes, the experiment finishes."""
    run(shell, "exp = X(cl_enable=False)\na = 1")
    capsys.readouterr()
    assert run(shell, code).success
    assert FINISHED.fullmatch(capsys.readouterr().out)["deleted"] == deleted


@pytest.mark.linux("nothing forks there", "macos")
def test_a_forked_child_says_nothing(shell, capfd):
    """The experiment is the parent's: the child's copy goes without a word, and deletes nothing."""
    run(shell, "exp = X(cl_enable=False)\na = 1")
    capfd.readouterr()
    run(
        shell,
        "import os\n"
        "pid = os.fork()\n"
        "if not pid:\n"
        "    try:\n        del exp\n"
        "    finally:\n        os._exit(globals().get('a', 2))\n"
        "status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])",
    )
    assert shell.user_ns["status"] == 1
    assert capfd.readouterr() == ("", "")
    assert shell.user_ns["exp"]._running


TERMINAL = ["-m", "IPython", "--simple-prompt", "--no-banner", "--colors=NoColor", "--no-confirm-exit"]


@pytest.mark.parametrize("ending", ["", "%reset -f\n", "import sys; sys.kept = exp\n"])
def test_terminal_ipython(driverless_env, tmp_path, ending):
    """The same in a terminal; at its exit an unfinished experiment ends without a word."""
    cells = (
        "from ipygpulogger.experiments import IPyExperimentsCPU\n"
        "exp = IPyExperimentsCPU()\n"
        "a = b'x' * (64 << 20)\n"
        "data = exp.finish()\n"
        "print('left', 'a' in dir(), 60 << 20 < data.cpu.reclaimed < 68 << 20)\n"
        "exp = IPyExperimentsCPU()\n"
        "b = 1\n"
    )
    done = subprocess.run(
        [sys.executable, *TERMINAL],
        input=cells + ending,
        capture_output=True,
        text=True,
        check=False,
        encoding="utf-8",
        env={**driverless_env, "IPYTHONDIR": str(tmp_path), "PYTHONIOENCODING": "utf-8"},
    )
    assert "left False True" in done.stdout
    assert "No GPU here" not in done.stdout  # the banner names the devices
    assert len(STARTED.findall(done.stdout)) == 2
    assert len(FINISHED.findall(done.stdout)) == 1
    assert len(REPORT.findall(done.stdout)) >= 4
    assert "ipygpulogger" not in done.stderr
    assert "xception" not in done.stderr
    assert done.returncode == 0


def test_outside_ipython(driverless_env):
    """One clear sentence that says what to do instead; nothing is imported to find out."""
    program = (
        "from ipygpulogger.experiments import IPyExperimentsCPU, IPyExperimentsPytorch\n"
        "import sys\n"
        "assert not {'IPython', 'torch', 'numpy'} & set(sys.modules)\n"
        "from ipygpulogger import IPyGPULogger\n"
        "for kind in (IPyExperimentsCPU, IPyExperimentsPytorch, IPyGPULogger):\n"
        "    try: kind()\n"
        "    except RuntimeError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=driverless_env
    )
    assert done.stdout == "".join(
        f"{kind} works inside IPython; outside it, measure a block of code with ipygpulogger.measure.\n"
        for kind in ("IPyExperimentsCPU", "IPyExperimentsPytorch", "IPyGPULogger")
    )
    assert done.stderr == ""


# -- what it leaves behind ----------------------------------------------------------------------------


@pytest.fixture
def leaves_nothing(shell, capsys):
    """After the test there is no more of ours than before, and the environment is as it was."""

    def standing():
        return (
            {event: list(found) for event, found in shell.events.callbacks.items()},
            [thread.name for thread in threading.enumerate()],
            set(machine().scopes),
            set(machine().scopes.loggers),
            [one for one in shell.configurables if isinstance(one, IPyGPULogger)],
            set(experiment_module._unfinished),
            {**os.environ, "PYTEST_CURRENT_TEST": ""},
        )

    before = standing()
    yield
    gc.collect()
    assert standing() == before


@pytest.mark.parametrize("end", ["exp.finish()", "del exp", "exp = 1", "%reset -f"])
def test_nothing_is_left_and_no_variable_of_the_environment_is_touched(shell, leaves_nothing, end):
    """Hooks, threads, scopes, environment: after the end as before; and the environment all along."""
    before = dict(os.environ)
    run(shell, "exp = X()\nexp.print_state()")
    assert dict(os.environ) == before
    run(shell, "a = 1")
    run(shell, end)


STEPS = [
    (Settling, "settle"), (Machine, "attach"), (Scope, "open"), (Scope, "result"), (gc, "collect"),
    (IPyExperimentsCPU, "print_state"), (IPyGPULogger, "_preload"), (IPyGPULogger, "_settle"),
    (CellEvents, "subscribe"),
]  # fmt: skip


@pytest.mark.parametrize(("where", "name"), STEPS)
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_constructor_that_fails_leaves_nothing(leaves_nothing, capsys, monkeypatch, where, name, error):
    """Whatever step fails, the error comes out, and there is no half an experiment."""
    original = getattr(where, name)

    def fails(*args, **how):
        if where is CellEvents:  # interrupted at its end
            original(*args, **how)
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(where, name, fails)
        with pytest.raises(error):
            IPyExperimentsCPU()
    gc.collect()
    assert not FINISHED.search(capsys.readouterr().out)


def test_an_end_that_fails_is_said_and_hurts_nobody(shell, leaves_nothing, capsys, monkeypatch):
    """Where nobody asked for the end by name, its failure is one sentence; everything of ours is gone."""
    run(shell, "exp = X()")
    capsys.readouterr()

    def fails(*_args, **_how):
        raise ValueError("no measure")

    with monkeypatch.context() as patched:
        patched.setattr(IPyExperimentsCPU, "_now", fails)
        assert run(shell, "del exp").success
    out, err = capsys.readouterr()
    assert REPORT.fullmatch(out)
    assert err == "ipygpulogger could not finish an experiment: ValueError: no measure\n"


@pytest.mark.parametrize(
    ("make", "options", "error", "says"),
    [
        ("CPU", {"cl_set_seed": -1}, ValueError, "set_seed takes a whole number below 2**32, or 0 for none, not -1"),
        ("CPU", {"cl_set_seed": 2**32}, ValueError, "not 4294967296"),
        ("CPU", {"cl_compact": "yes"}, ValueError, "compact takes True or False, not 'yes'"),
        ("CPU", {"cl_gc_collect": 2}, ValueError, "gc_collect takes True, False or 'full', not 2"),
        ("CPU", {"compact": True}, TypeError, "compact"),
        ("Pytorch", {}, ImportError, "): pip install torch"),
    ],
)  # fmt: skip
def test_what_cannot_begin(leaves_nothing, monkeypatch, capsys, make, options, error, says):
    """An option that it does not take, or no torch where it is asked for: one sentence, and nothing has begun."""
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(error, match=re.escape(says)):
        getattr(door, f"IPyExperiments{make}")(**options)
    assert capsys.readouterr().out == ""
