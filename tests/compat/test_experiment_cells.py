"""An experiment's cell logger: its data, its options, its seeds."""

import random
import re
import subprocess
import sys

import pytest
from experiment_rig import FINISHED, REPORT, run
from memory import MB

from ipygpulogger.experiments import (
    IPyExperimentsCPU,
)
from ipygpulogger.notebook.logger import IPyGPULogger


def test_the_cells_data(shell, capsys):
    """exp.cl.data is the last finished cell in bytes and seconds; before it, what is in use now."""
    exp = IPyExperimentsCPU()
    import psutil

    first = exp.cl.data
    assert first.gpu == (0, 0, 0)
    assert first.cpu[:2] == (0, 0)
    assert first.time == (0.0,)
    assert abs(first.cpu.used_total - psutil.Process().memory_info().rss) < MB
    run(shell, "a = Block(64)")
    data, record = exp.cl.data, exp.cl.record
    assert abs(data.cpu.used_delta - 64 * MB) < 2 * MB
    assert data == (
        (record.gen.consumed_bytes, record.gen.peaked_bytes, record.gen.after_bytes),
        (0, 0, 0),
        (record.time_s,),
    )
    shell.user_ns["exp"] = exp
    assert run(shell, "blip(100)\nseen = exp.cl.data").success  # a traceback would be of 2 MB
    assert shell.user_ns["seen"] == data
    assert abs(exp.cl.data.cpu.peaked_delta - 100 * MB) < 2 * MB
    exp.finish()
    assert exp.cl.data.cpu.used_total > MB


def test_peaked_follows_the_one_rule(shell, capsys):
    """A cell that gives 64 MB back and needs no more peaked at nothing: -64, 0."""
    run(shell, "a = Block(64)")
    exp = IPyExperimentsCPU()
    capsys.readouterr()
    run(shell, "a.free()")
    match = REPORT.fullmatch(capsys.readouterr().out)
    assert abs(int(match["consumed"]) + 64) <= 1
    assert abs(exp.cl.data.cpu.used_delta + 64 * MB) < 2 * MB
    assert exp.cl.data.cpu.peaked_delta < 2 * MB


def test_the_cell_loggers_options(shell, capsys):
    """Compact and collecting as asked for, and they can be changed."""
    run(shell, "exp = X(cl_compact=True, cl_gc_collect=False)")
    line = re.compile(r"CPU: -?\d+/\d+/\d+ MB \| Time 0:00:0\d\.\d{3} \| \(Consumed/Peaked/Used Total\)\n")
    exp = shell.user_ns["exp"]
    assert (exp.cl.compact, exp.cl.gc_collect, exp.cl.set_seed) == (True, False, 0)
    assert line.search(capsys.readouterr().out)
    run(shell, "a = Block(64)")
    assert line.fullmatch(capsys.readouterr().out)
    exp.cl.compact = False
    run(shell, "pass")
    assert REPORT.fullmatch(capsys.readouterr().out)


def test_small_cells_say_nothing_under_quiet(shell, capsys):
    """`exp.cl` has the option as any logger has it; its own form of the report follows the same rule."""
    run(shell, "exp = X()")
    run(shell, "exp.cl.quiet = '10MB'")
    capsys.readouterr()
    run(shell, "x = 1")
    assert capsys.readouterr().out == ""
    run(shell, "a = Block(64)")
    assert REPORT.fullmatch(capsys.readouterr().out)
    assert len(shell.user_ns["exp"].cl.history) == 4
    run(shell, "exp.finish();")


def test_the_cell_logger_stops_and_starts(shell, capsys):
    """stop() prints nothing and is no report's cell; start() reports again, the rest of its cell included."""
    run(shell, "exp = X()")
    capsys.readouterr()
    run(shell, "exp.cl.stop()")
    run(shell, "pass")
    assert capsys.readouterr().out == ""
    run(shell, "exp.cl.start();")
    assert REPORT.fullmatch(capsys.readouterr().out)
    run(shell, "exp.cl.stop(); exp.cl.stop()")
    run(shell, "exp.finish();")
    assert FINISHED.fullmatch(capsys.readouterr().out)


def test_beside_another_logger(shell, capsys):
    """The extension's report and the experiment's stand side by side, with the same figures."""
    il = IPyGPULogger().start()
    exp = IPyExperimentsCPU()
    run(shell, "a = Block(64)")
    assert abs(il.record.gen.consumed_bytes - 64 * MB) < 2 * MB
    assert abs(exp.cl.record.gen.consumed_bytes - 64 * MB) < 2 * MB
    exp.finish()
    assert il.running
    capsys.readouterr()
    run(shell, "pass")
    assert capsys.readouterr().out.startswith("RAM: Consumed Peaked  Used Total in")
    il.stop()


def test_the_users_configuration_of_the_other_logger(shell, capsys):
    """A rich report, wished for IPyGPULogger, is none of the cell logger's; silence is."""
    shell.config.IPyGPULogger.report = "rich"
    try:
        exp = IPyExperimentsCPU()
        capsys.readouterr()
        run(shell, "pass")
        assert REPORT.fullmatch(capsys.readouterr().out)
        exp.cl.report = "none"
        run(shell, "pass")
        assert capsys.readouterr().out == ""
        exp.finish()
    finally:
        del shell.config["IPyGPULogger"]


@pytest.mark.parametrize("seed", [1, 2**32 - 1])
def test_a_cell_run_again_draws_the_same(shell, capsys, seed):
    """With a seed every cell begins with the same random numbers, and they are that seed's own."""
    import numpy as np

    run(shell, f"import random, numpy as np\nexp = X(cl_set_seed={seed})\nkept = []")
    draw = "kept.append((random.random(), float(np.random.rand())))"
    for code in (draw, "random.random()", draw):
        run(shell, code)
    first, again = shell.user_ns["kept"]
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - what users seed
    assert first == again == (random.random(), np.random.rand())  # noqa: NPY002
    shell.user_ns["exp"].finish()
    state = random.getstate()
    run(shell, "pass")
    assert random.getstate() == state


def test_without_a_seed_nobody_seeds(shell, capsys):
    """The random numbers are the user's."""
    run(shell, "exp = X()")
    random.seed(3)
    run(shell, "pass")
    drawn = random.random()
    random.seed(3)
    assert drawn == random.random()


def test_seeding_imports_nothing(driverless_env):
    """numpy and torch are seeded where they are imported, and not imported for it."""
    program = (
        "import sys\n"
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        "before = {'numpy', 'torch'} & set(sys.modules)\n"
        "for code in ('from ipygpulogger.experiments import *', 'exp = IPyExperimentsCPU(cl_set_seed=3)', '1', '2'):\n"
        "    assert shell.run_cell(code, store_history=True).success\n"
        "print('new', sorted({'numpy', 'torch'} & set(sys.modules) - before))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=driverless_env
    )
    assert done.stdout.endswith("new []\n")
