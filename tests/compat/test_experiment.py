"""Experiments in a shell of this process: what they tell, how they end, and what they leave behind."""

import atexit
import copy
import gc
import os
import pickle
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
from ipygpulogger.engine.machine import Machine, machine
from ipygpulogger.engine.scope import Scope
from ipygpulogger.engine.settling import Settling
from ipygpulogger.experiments import (
    CellLoggerData,
    CellLoggerMemory,
    CellLoggerTime,
    IPyExperimentData,
    IPyExperimentMemory,
    IPyExperiments,
    IPyExperimentsCPU,
    IPyExperimentsPytorch,
)
from ipygpulogger.notebook.cell import CellEvents
from ipygpulogger.notebook.logger import IPyGPULogger


def test_a_whole_experiment(shell, capsys):
    """Banner, a report for each cell, the end; the figures are those of the blocks."""
    run(shell, "exp = X()")
    out = capsys.readouterr().out
    assert STARTED.match(out)
    assert REPORT.fullmatch(out[STARTED.match(out).end() :])
    run(shell, "a = Block(64)")
    assert abs(int(REPORT.fullmatch(capsys.readouterr().out)["consumed"]) - 64) <= 1
    run(shell, "blip(128)")
    (match,) = REPORT.finditer(capsys.readouterr().out)
    assert abs(int(match["peaked"]) - 128) <= 1
    exp = shell.user_ns["exp"]
    so_far = exp.data
    assert abs(so_far.cpu.consumed - 64 * MB) < 2 * MB
    assert so_far.cpu.reclaimed == 0
    run(shell, "data = exp.finish()")
    out = capsys.readouterr().out
    match = FINISHED.fullmatch(out, REPORT.match(out).end())
    assert match["deleted"] == "a"  # `data` has its value only when the cell is over
    assert match["consumed"] == str(int(shell.user_ns["data"].cpu.consumed / MB))
    assert match["reclaimed"] == str(int(shell.user_ns["data"].cpu.reclaimed / MB))
    final = shell.user_ns["data"].cpu
    assert abs(final.consumed - 64 * MB) < 2 * MB
    assert abs(final.reclaimed - 64 * MB) < 2 * MB
    run(shell, "pass")
    assert capsys.readouterr().out == ""


def test_the_state_is_the_machines(shell, capsys):
    """Used is this process, free what the machine can still give, total all it has."""
    import psutil

    exp = IPyExperimentsCPU(cl_enable=False)
    block = Block(200)
    capsys.readouterr()
    exp.print_state()
    match = re.fullmatch(STATE, capsys.readouterr().out)
    used, free, total = (int(match[name].replace(",", "")) for name in ("used", "free", "total"))
    assert total == psutil.virtual_memory().total // MB
    assert abs(used - psutil.Process().memory_info().rss / MB) < 2
    assert used < free + used <= total
    assert float(match["util"]) == pytest.approx(used / total * 100, abs=0.01)
    block.free()
    exp.finish()


def test_data_are_bytes_in_named_tuples(exp):
    """The original's names in its order; without a GPU its figures are 0."""
    data = exp.data
    assert IPyExperimentData._fields == ("cpu", "gpu")
    assert IPyExperimentMemory._fields == ("consumed", "reclaimed", "available")
    assert CellLoggerData._fields == ("cpu", "gpu", "time")
    assert CellLoggerMemory._fields == ("used_delta", "peaked_delta", "used_total")
    assert CellLoggerTime._fields == ("time_delta",)
    assert data.gpu == (0, 0, 0)
    assert all(type(figure) is int for figure in data.cpu)
    assert data.cpu.available > MB
    assert exp.finish().gpu == (0, 0, 0)


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


def test_the_context_manager(shell, capsys):
    """The block's end is the experiment's; it yields the experiment, which lets keep a name from within."""
    run(shell, "with X(cl_enable=False) as exp:\n    a = 1\n    b = 2\n    exp.keep_var_names('b')")
    out = capsys.readouterr().out
    match = FINISHED.search(out, STARTED.match(out).end())
    assert (match["deleted"], match["kept"]) == ("a", "b")
    assert "a" not in shell.user_ns
    assert shell.user_ns["b"] == 2


@pytest.mark.parametrize("error", ["ValueError", "KeyboardInterrupt", "SystemExit"])
@pytest.mark.filterwarnings("ignore:To exit:UserWarning")
def test_an_exception_ends_the_block_and_goes_on(shell, capsys, error):
    """The experiment is finished, the exception is the user's own."""
    result = run(shell, f"mine = {error}(3)\nwith X():\n    a = 1\n    raise mine")
    assert result.error_in_exec is shell.user_ns["mine"]
    assert FINISHED.search(capsys.readouterr().out)["deleted"] == "a"
    assert "a" not in shell.user_ns


def test_only_the_cell_logger(shell, capsys):
    """exp_enable=False: the banner, then cells are reported, nothing else is printed, shown or deleted."""
    run(shell, "exp = X(exp_enable=False)")
    banner = "\n*** Experiment started with the CPU-only backend\n\n"
    out = capsys.readouterr().out
    assert out.startswith(banner)
    assert REPORT.fullmatch(out.removeprefix(banner))
    run(shell, "a = 1")
    assert REPORT.fullmatch(capsys.readouterr().out)
    assert run(shell, "exp.finish()").result is None
    assert REPORT.fullmatch(capsys.readouterr().out)
    assert shell.user_ns["a"] == 1
    assert shell.user_ns["exp"].data.cpu.reclaimed == 0
    assert run(shell, "exp.finish()").result is None


def test_what_a_bare_import_gave():
    """`import ipyexperiments`: its version, its utils, and the base class that every experiment is one of."""
    assert door.__version__ == ipygpulogger.__version__
    program = (
        "import ipygpulogger.experiments as ipyexperiments\n"
        "print(ipyexperiments.utils.mem.b2mb(3 << 20), ipyexperiments.utils.ipython.is_in_ipython())"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "3 False\n"
    assert issubclass(IPyExperimentsCPU, IPyExperiments)
    assert issubclass(IPyExperimentsPytorch, IPyExperiments)
    names = {}
    exec("from ipygpulogger.experiments import *", names)
    assert {"IPyExperiments", "IPyExperimentsCPU", "IPyExperimentsGPU", "IPyExperimentsPytorch"} <= set(names)
    with pytest.raises(AttributeError, match="no_such_name"):
        door.no_such_name  # noqa: B018


def test_the_base_class_is_no_experiment(shell, capsys):
    """Made directly it says which ones there are, and begins nothing."""
    with pytest.raises(TypeError, match="use IPyExperimentsCPU or IPyExperimentsPytorch"):
        IPyExperiments()
    assert capsys.readouterr().out == ""


def test_without_the_cell_logger(shell, capsys):
    """cl_enable=False: no report, and no hook at all."""
    before = {event: list(found) for event, found in shell.events.callbacks.items()}
    run(shell, "exp = X(cl_enable=False)")
    assert STARTED.fullmatch(capsys.readouterr().out)
    run(shell, "a = 1")
    assert capsys.readouterr().out == ""
    assert shell.user_ns["exp"].cl is None
    assert {event: list(found) for event, found in shell.events.callbacks.items()} == before


# -- how else an experiment ends --------------------------------------------------------------------


def test_the_garbage_collector_finishes(shell, capsys):
    """One that only a cycle held ends when the collector finds it."""
    run(shell, "import gc\nexp = X(cl_enable=False)\nexp.me = exp\na = 1\ndel exp")
    assert not FINISHED.search(capsys.readouterr().out)
    run(shell, "gc.collect();")
    assert FINISHED.search(capsys.readouterr().out)["deleted"] == "a"


REMADE = [
    "exp = X()",
    "def f():\n    global exp\n    exp = X()\nf()",
    "%time exp = X()",
    "import asyncio\nawait asyncio.sleep(0)\nexp = X()",
    "class Y(X):\n    def __init__(self):\n        super().__init__()\nexp = Y()",
    "if True:\n" + "".join(f"    n{i} = {i}\n" for i in range(300)) + "    exp = X()",
]


@pytest.mark.parametrize("code", REMADE)
def test_the_constructors_cell_again(shell, capsys, code):
    """The old one finishes first, then the new one begins, and has nothing of the old one's."""
    for _ in range(2):
        run(shell, code)
    capsys.readouterr()
    run(shell, "a = Block(64)")
    run(shell, code)
    out = capsys.readouterr().out
    finished, started = FINISHED.search(out), STARTED.search(out)
    assert "a" in finished["deleted"].split(", ")
    assert finished.end() <= started.start()
    assert len(FINISHED.findall(out)) == len(STARTED.findall(out)) == 1
    assert len(experiment_module._unfinished) == 1
    run(shell, "b = Block(32)")
    consumed = shell.user_ns["exp"].data.cpu.consumed
    assert abs(consumed - 32 * MB) < 2 * MB
    assert "a" not in shell.user_ns
    assert capsys.readouterr().out.count("･ CPU:") == 1


@pytest.mark.parametrize("code", ["exp = make()", "new = X(cl_enable=False)\nexp = new\ndel new"])
def test_an_old_one_that_ends_late_disturbs_no_new_one(shell, capsys, code):
    """Made another way, the new one begins before the old one ends: variables and figures stay apart."""
    run(shell, "def make():\n    return X(cl_enable=False)\nn = 0")
    run(shell, code + "\na = Block(64)")
    capsys.readouterr()
    run(shell, code + "\nb = Block(32)")
    out = capsys.readouterr().out
    assert FINISHED.search(out)["deleted"] == "a"
    assert len(FINISHED.findall(out)) == 1
    exp = shell.user_ns["exp"]
    assert exp.get_var_names() == ["b"]
    assert abs(exp.data.cpu.consumed - 32 * MB) < 2 * MB
    final = exp.finish()
    assert abs(final.cpu.consumed - 32 * MB) < 2 * MB
    assert abs(final.cpu.reclaimed - 32 * MB) < 2 * MB
    assert "b" not in shell.user_ns


def test_reset_wipes_everything_without_a_word(shell, capsys):
    """%reset finds every name where it was; no report, no error, nothing left."""
    run(shell, "exp = X()\n" + "\n".join(f"n{i} = {i}" for i in range(50)))
    capsys.readouterr()
    result = run(shell, "%reset -f")
    assert result.success
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
    ],
)
def test_other_ways_to_lose_it(shell, capsys, code, deleted):
    """However the last reference goes, the experiment finishes."""
    run(shell, "exp = X(cl_enable=False)\na = 1")
    capsys.readouterr()
    assert run(shell, code).success
    assert FINISHED.fullmatch(capsys.readouterr().out)["deleted"] == deleted


def test_a_forked_child_says_nothing(shell, capfd):
    """The experiment is the parent's: the child's copy goes without a word."""
    run(shell, "exp = X(cl_enable=False)\na = 1")
    capfd.readouterr()
    run(
        shell,
        "import os, sys\n"
        "pid = os.fork()\n"
        "if not pid:\n"
        "    code = 1\n"
        "    try:\n"
        "        del exp\n"
        "        code = 0 if a == 1 else 2\n"
        "    finally:\n"
        "        sys.stdout.flush()\n"
        "        os._exit(code)\n"
        "status = os.waitpid(pid, 0)[1]",
    )
    assert shell.user_ns["status"] == 0
    assert capfd.readouterr() == ("", "")
    assert shell.user_ns["exp"]._running


TERMINAL = [
    sys.executable,
    "-m",
    "IPython",
    "--simple-prompt",
    "--no-banner",
    "--colors=NoColor",
    "--no-confirm-exit",
]


@pytest.mark.parametrize("ending", ["", "exit\n", "%reset -f\n"])
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
        TERMINAL,
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
        "for kind in (IPyExperimentsCPU, IPyExperimentsPytorch):\n"
        "    try: kind()\n"
        "    except RuntimeError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=driverless_env
    )
    assert done.stdout == "".join(
        f"{kind} works inside IPython; outside it, measure a block of code with ipygpulogger.measure.\n"
        for kind in ("IPyExperimentsCPU", "IPyExperimentsPytorch")
    )
    assert done.stderr == ""


# -- what it leaves behind ----------------------------------------------------------------------------


def standing(shell):
    """What a forgotten experiment would leave."""
    return (
        {event: list(found) for event, found in shell.events.callbacks.items()},
        [thread.name for thread in threading.enumerate()],
        set(machine().scopes),
        set(machine().scopes.loggers),
        [one for one in shell.configurables if isinstance(one, IPyGPULogger)],
        set(experiment_module._unfinished),
        dict(os.environ),
    )


def test_an_experiment_cannot_be_doubled(shell, exp):
    """A copy would end as well, and delete the variables of the one that still runs."""
    for double in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            double(exp)
    assert repr(exp) == "<IPyExperimentsCPU: running>"
    data = exp.finish()
    assert pickle.loads(pickle.dumps(data)) == copy.copy(data) == data
    assert repr(exp) == "<IPyExperimentsCPU: finished>"


@pytest.mark.parametrize("end", ["exp.finish()", "del exp", "exp = 1", "%reset -f"])
def test_nothing_is_left_and_no_variable_of_the_environment_is_touched(shell, capsys, end):
    """Hooks, threads, scopes, environment: after the end as before; and the environment all along."""
    before = standing(shell)
    run(shell, "exp = X()\nexp.print_state()")
    assert dict(os.environ) == before[-1]
    run(shell, "a = 1")
    run(shell, end)
    assert standing(shell) == before


@pytest.mark.parametrize(
    ("where", "name"),
    [
        (Settling, "settle"),
        (Machine, "attach"),
        (Scope, "open"),
        (Scope, "result"),
        (IPyExperimentsCPU, "print_state"),
        (IPyGPULogger, "_preload"),
        (IPyGPULogger, "_settle"),
        (CellEvents, "subscribe"),
        (gc, "collect"),
    ],
)
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_constructor_that_fails_leaves_nothing(shell, capsys, monkeypatch, where, name, error):
    """Whatever step fails, the error comes out, and there is no half an experiment."""
    before = standing(shell)

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
    assert standing(shell) == before
    assert not FINISHED.search(capsys.readouterr().out)


def test_an_end_that_fails_is_said_and_hurts_nobody(shell, capsys, monkeypatch):
    """Where nobody asked for the end by name, its failure is one sentence; everything of ours is gone."""
    before = standing(shell)
    run(shell, "exp = X()")
    capsys.readouterr()

    def fails(*_args, **_how):
        raise ValueError("no measure")

    with monkeypatch.context() as patched:
        patched.setattr(IPyExperimentsCPU, "_now", fails)
        assert run(shell, "del exp").success
    out, err = capsys.readouterr()
    assert REPORT.fullmatch(out)
    assert err == ("ipygpulogger could not finish an experiment: ValueError: no measure\n")
    assert standing(shell) == before


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"cl_set_seed": -1}, ValueError, "set_seed takes a whole number below 2**32, or 0 for none, not -1"),
        ({"cl_set_seed": 2**32}, ValueError, "not 4294967296"),
        ({"cl_compact": "yes"}, ValueError, "compact takes True or False, not 'yes'"),
        ({"cl_gc_collect": 2}, ValueError, "gc_collect takes True, False or 'full', not 2"),
        ({"compact": True}, TypeError, "compact"),
    ],
)
def test_what_an_option_does_not_take(shell, capsys, options, error, says):
    """One sentence, before anything has begun."""
    before = standing(shell)
    with pytest.raises(error, match=re.escape(says)):
        IPyExperimentsCPU(**options)
    assert standing(shell) == before
    assert capsys.readouterr().out == ""


def test_without_torch(shell, monkeypatch, capsys):
    """Asking for torch where there is none: one sentence with the command, and nothing has begun."""
    before = standing(shell)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"^IPyExperimentsPytorch needs torch \(.*\): pip install torch$"):
        IPyExperimentsPytorch()
    assert standing(shell) == before
    assert capsys.readouterr().out == ""


def test_the_exit_hook_goes_with_the_last_experiment(shell, capsys, monkeypatch):
    """atexit knows of us while an experiment runs, once, and no longer."""
    known = []
    monkeypatch.setattr(atexit, "register", known.append)
    monkeypatch.setattr(atexit, "unregister", lambda one: known.remove(one) if one in known else None)
    one, two = IPyExperimentsCPU(cl_enable=False), IPyExperimentsCPU(cl_enable=False)
    assert len(known) == 1
    one.finish()
    assert len(known) == 1
    two.finish()
    assert known == []
