"""An experiment's cell logger: its data, its options, its seeds."""

import random
import re

import pytest
from experiment_rig import FINISHED, REPORT, run
from memory import MB

from ipygpulogger.experiments import CellLogger, IPyExperimentsCPU


def test_the_cells_data(shell, capsys, fresh_mark):
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
    fresh_mark()
    assert run(shell, "blip(100)\nseen = exp.cl.data").success  # a traceback would be of 2 MB
    assert shell.user_ns["seen"] == data
    assert abs(exp.cl.data.cpu.peaked_delta - 100 * MB) < 2 * MB
    exp.finish()
    assert exp.cl.data.cpu.used_total > MB


def test_the_cell_loggers_options(shell, capsys):
    """Compact and collecting as asked for, and they can be changed; `quiet` and silence as of any logger.

    A rich report, wished for IPyGPULogger, is none of the cell logger's.
    """
    shell.config.IPyGPULogger.report = "rich"
    try:
        run(shell, "exp = X(cl_compact=True, cl_gc_collect=False)")
    finally:
        del shell.config["IPyGPULogger"]
    line = re.compile(
        r"CPU: -?\d+/\d+/\d+ MB(?:  \(peaked 0-\d+\))? \| Time 0:00:0\d\.\d{3} \| \(Consumed/Peaked/Used Total\)\n"
    )
    cl = shell.user_ns["exp"].cl
    assert (cl.compact, cl.gc_collect, cl.set_seed) == (True, False, 0)
    assert line.search(capsys.readouterr().out)
    for code, option, report in [
        ("a = Block(64)", {}, line),
        ("pass", {"compact": False}, REPORT),
        ("x = 1", {"quiet": "10MB"}, re.compile("")),
        ("b = Block(64)", {}, REPORT),
        ("c = Block(64)", {"report": "none"}, re.compile("")),
    ]:
        for name, value in option.items():
            setattr(cl, name, value)
        run(shell, code)
        assert report.fullmatch(capsys.readouterr().out), code
    assert len(cl.history) == 6


@pytest.mark.linux("elsewhere an earlier peak bounds a lower one")
def test_the_cell_logger_stops_and_starts(shell, capsys):
    """stop() reports its cell up to there, once; start() reports again, the rest of its cell alone."""
    run(shell, "exp = X()")
    capsys.readouterr()
    run(shell, "a = Block(64)\nexp.cl.stop()\nb = Block(32)")
    assert near(REPORT.fullmatch(capsys.readouterr().out), 64, 0)
    record = shell.user_ns["exp"].cl.record
    assert (record.label, record.execution_count, record.status) == ("In [2]", 2, "ok")
    run(shell, "pass")
    assert capsys.readouterr().out == ""
    run(shell, "blip(200)\nexp.cl.start();\nblip(100)")
    assert near(REPORT.fullmatch(capsys.readouterr().out), 0, 100)
    run(shell, "exp.cl.stop(); exp.cl.stop()")
    assert REPORT.fullmatch(capsys.readouterr().out)
    run(shell, "exp.finish();")
    assert FINISHED.fullmatch(capsys.readouterr().out)


def near(match, consumed, peaked):
    """Whether a report says so, to the MB of its rounding."""
    return abs(int(match["consumed"]) - consumed) <= 1 and abs(int(match["peaked"]) - peaked) <= 1


ENDS = {
    "finish": ("exp = X()", "a = Block(64); blip(200)\nexp.finish();"),
    "del": ("exp = X()", "a = Block(64); blip(200)\ndel exp"),
    "with": ("pass", "with X():\n    a = Block(64); blip(200)"),
    "an exception": ("pass", "with X():\n    a = Block(64); blip(200); 1/0"),
    "captured": ("exp = X()", "%%capture c\na = Block(64); blip(200)\nexp.finish()"),
    "in a nested cell": (
        "exp = X()",
        "a = Block(64); blip(200)\nget_ipython().run_cell('exp.finish();', store_history=False);",
    ),
}


@pytest.mark.usefixtures("fresh_mark")
@pytest.mark.parametrize("how", ENDS)
def test_the_end_reports_the_running_cell(shell, capsys, how):
    """However it ends: one report of the cell up to there, with its peak, before the experiment's own."""
    begin, end = ENDS[how]
    run(shell, begin)
    capsys.readouterr()
    run(shell, end)
    said = capsys.readouterr().out + str(shell.user_ns.get("c", ""))
    (report,) = REPORT.finditer(said)
    assert near(report, 64, 200)
    (finished,) = FINISHED.finditer(said)
    assert report.end() <= finished.start()
    assert "a" in finished["deleted"].split(", ")
    run(shell, "pass")
    assert capsys.readouterr().out == ""


def test_a_report_that_fails_keeps_no_experiment_open(shell, capsys, monkeypatch):
    """Said once, as in a hook; the end goes on."""
    run(shell, "exp = X()")
    capsys.readouterr()

    def fails(*_):
        raise ValueError("no report")

    with monkeypatch.context() as patched:
        patched.setattr(CellLogger, "_show", fails)
        assert run(shell, "exp.finish();").success
    out, err = capsys.readouterr()
    assert FINISHED.fullmatch(out)
    assert err.count("no report") == 1
    run(shell, "pass")
    assert capsys.readouterr().out == ""


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
