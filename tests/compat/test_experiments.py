"""Experiments in a shell of this process: what they print, what they delete, and that they end."""

import atexit
import copy
import gc
import os
import pickle
import random
import re
import subprocess
import sys
import threading
import weakref
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory import MB, Block, blip

import ipygpulogger
import ipygpulogger.experiments as door
from ipygpulogger.compat import experiment as experiments
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
    IPyExperimentsGPU,
    IPyExperimentsPytorch,
)
from ipygpulogger.notebook.cell_events import CellEvents
from ipygpulogger.notebook.logger import IPyGPULogger
from ipygpulogger.records import CellRecord, DeviceUsage, OutOfMemory, Peak, RamUsage
from ipygpulogger.render import experiments as render

STATE = (
    r"\n\*\*\* Current state:\n"
    r"RAM: +Used +Free +Total +Util\n"
    r"CPU: +(?P<used>[\d,]+) +(?P<free>[\d,]+) +(?P<total>[\d,]+) MB +(?P<util>\d+\.\d\d)% \n"
)
STARTED = re.compile(r"\n\*\*\* Experiment started with the CPU-only backend\n\n" + STATE + r"\n\n")
FINISHED = re.compile(
    r"\n\w+: Finishing\n"
    r"\n\*\*\* Experiment finished in (?P<elapsed>\d\d:\d\d:\d\d) \(elapsed wallclock time\)\n"
    r"(?:\n\*\*\* Newly defined local variables:\n"
    r"(?:Deleted: (?P<deleted>.+)\n)?(?:Failed to delete: (?P<failed>.+)\n)?(?:Kept:    (?P<kept>.+)\n)?)?"
    r"(?:\n\*\*\* Circular ref objects gc collected during the experiment:\n"
    r"cleared (?P<cleared>\d+) objects \(only temporary leakage\)\n)?"
    r"(?:\n\*\*\* Potential memory leaks during the experiment:\n"
    r"uncollected gc.garbage of (?P<garbage>\d+) objects\n)?"
    r"\n\*\*\* Experiment memory:\n"
    r"RAM: Consumed       Reclaimed\n"
    r"CPU: +(?P<consumed>-?[\d,]+) +(?P<reclaimed>-?[\d,]+) MB \((?P<share>[ \d.-]+%|    n/a)\)\n"
    + STATE
    + r"\n\n"
)
REPORT = re.compile(
    r"･ RAM:  △Consumed    △Peaked    Used Total \| Exec time \d:\d\d:\d\d\.\d{3}\n"
    r"･ CPU: (?P<consumed>[ \d,-]{10}) (?P<peaked>[ \d,]{10}) [ \d,]{10} MB \|(?P<after>.*)\n"
)


def run(shell, code, **how):
    """Run a cell the way a front end does."""
    return shell.run_cell(code, store_history=True, **how)


@pytest.fixture
def shell(shell):
    """The shell, knowing these names; no experiment is left in it."""
    shell.user_ns.update(X=IPyExperimentsCPU, Block=Block, blip=blip)
    yield shell
    for experiment in list(experiments._unfinished):
        experiment._abandon()
    shell.user_ns.clear()
    shell.init_user_ns()
    gc.collect()


@pytest.fixture
def exp(shell, capsys):
    """An experiment without a cell logger, begun outside any cell; its banner is read already."""
    exp = IPyExperimentsCPU(cl_enable=False)
    capsys.readouterr()
    return exp


# -- what is printed, character by character -----------------------------------------------------


def record(consumed=128, peaked=0, used=170, time_s=0.807, gpus=(), quality="exact", **more):
    """A record of these megabytes."""
    before = used - consumed
    top = max(before, used) + peaked
    hi = {"exact": top, "bounded": top + 48, "sampled": None}[quality]
    peak = Peak(int(top * MB), None if hi is None else int(hi * MB), quality)
    fields = {"execution_count": 4, "cell_id": None, "source": "x = 1", "status": "ok"} | more
    return CellRecord(
        label="In [4]",
        started_at=datetime(2024, 5, 6, 7, 8, 9, tzinfo=timezone.utc),
        time_s=time_s,
        gen=RamUsage(int(before * MB), int(used * MB), peak),
        gpus=gpus,
        **fields,
    )


def device(consumed, peaked, used, quality="exact", total_used="same", **more):
    """A device's figures in megabytes."""
    before = used - consumed
    top = max(before, used) + peaked
    hi = {"exact": top, "sampled": None}[quality]
    return DeviceUsage(
        int(before * MB),
        int(used * MB),
        Peak(int(top * MB), None if hi is None else int(hi * MB), quality),
        index=0,
        name="Sim",
        used_bytes=int(used * MB) if total_used == "same" else total_used,
        **more,
    )


def int2width(*numbers):
    """As the contract has it."""
    width = max(map(len, map(str, numbers)))
    return width + int((width - 1) / 3)


def secs2time(secs):
    """As the contract has it."""
    return f"{timedelta(seconds=int(secs))}.{int(abs(secs - int(secs)) * 1000):03d}"


HEAD = "･ RAM:  △Consumed    △Peaked    Used Total | Exec time 0:00:00.807\n"


@pytest.mark.parametrize(
    ("record", "gpu", "says"),
    [
        (record(), None, HEAD + "･ CPU:        128          0        170 MB |"),
        (
            record(2048, 1, 5465),
            device(2467, 1437, 5465),
            HEAD
            + "･ CPU:      2,048          1      5,465 MB |\n･ GPU:      2,467      1,437      5,465 MB |",
        ),
        (record(-300.9, 0, 5), None, HEAD + "･ CPU:       -300          0          5 MB |"),
        (
            record(quality="bounded", peaked=512),
            device(1, 2, 3, quality="sampled"),
            HEAD + "･ CPU:        128        512        170 MB |  (peak 682-730)\n"
            "･ GPU:          1          2          3 MB |  (peak at least)",
        ),
        (
            record(status="error", error="ValueError", notes=("Something is missing.",)),
            device(1, 2, 3, attributed=False, total_used=None),
            HEAD + "･ CPU:        128          0        170 MB |  failed: ValueError\n"
            "･ GPU:        n/a        n/a        n/a MB |  (nobody tells which process uses it)\n"
            "Something is missing.",
        ),
    ],
)
def test_the_cells_report(record, gpu, says):
    """The original's three lines; what is more stands after a row or below, never within."""
    assert render.cell(record, gpu) == says


@pytest.mark.parametrize(
    ("record", "gpu", "says"),
    [
        (record(), None, "CPU: 128/0/170 MB | Time 0:00:00.807 | (Consumed/Peaked/Used Total)"),
        (
            record(2048, 1, 5465, time_s=3723.5),
            device(2467, 1437, 5465),
            "CPU: 2048/1/5465 MB | GPU: 2467/1437/5465 MB | Time 1:02:03.500 | (Consumed/Peaked/Used Total)",
        ),
        (
            record(status="interrupted", quality="sampled"),
            device(1, 2, 3, attributed=False),
            (
                "CPU: 128/0/170 MB  (peak at least) | GPU: n/a/n/a/3 MB  (nobody tells which process uses it)"
                " | Time 0:00:00.807 | (Consumed/Peaked/Used Total) | interrupted"
            ),
        ),
    ],
)
def test_the_cells_compact_report(record, gpu, says):
    """The original's one line."""
    assert render.cell(record, gpu, compact=True) == says


def test_a_cell_that_ran_out_of_memory_is_explained():
    """The report of IPyGPULogger's, below the row."""
    card = OutOfMemory("cuda:0", 1, 2, 3, 4, 5, 6, 0, 0, (), "free something")
    for compact in (False, True):
        said = render.cell(record(out_of_memory=card), None, compact=compact)
        assert said.splitlines()[-1] == "  -> free something"
        assert "\nOut of memory on cuda:0: " in said


SIZES = st.integers(-(2**46), 2**46)


@given(SIZES, st.integers(0, 2**45), st.integers(0, 2**46), SIZES, st.integers(0, 2**46), st.floats(0, 10**6))
def test_the_cells_report_is_the_contracts_own(consumed, peaked, used, gpu_consumed, gpu_used, time_s):
    """Whatever the figures: the lines are what the contract's f-strings make of them."""

    def usage(consumed, used):
        used = max(used, consumed, 0)
        return used - consumed, used, Peak(max(used - consumed, used) + peaked, None, "exact")

    ram, gpu = usage(consumed, used), usage(gpu_consumed, gpu_used)
    gen = RamUsage(*ram[:2], Peak(ram[2].lo_bytes, ram[2].lo_bytes, "exact"))
    one = DeviceUsage(
        *gpu[:2], Peak(gpu[2].lo_bytes, gpu[2].lo_bytes, "exact"), index=0, name="Sim", used_bytes=gpu[1]
    )
    cell = CellRecord(
        label="In [1]",
        started_at=datetime.now(timezone.utc),
        time_s=time_s,
        gen=gen,
        execution_count=1,
        cell_id=None,
        source="",
        status="ok",
    )

    def b2mb(num):
        return int(num / 2**20)

    d, p, u, dd, uu = map(b2mb, (consumed, peaked, ram[1], gpu_consumed, gpu[1]))
    w = max(10, int2width(d, p, u, dd, uu) + 1)
    t = secs2time(time_s)
    assert render.cell(cell, one).splitlines() == [
        f"･ RAM: {'△Consumed':>{w}} {'△Peaked':>{w}}    {'Used Total':>{w}} | Exec time {t}",
        f"･ CPU: {d:{w},.0f} {p:{w},.0f} {u:{w},.0f} MB |",
        f"･ GPU: {dd:{w},.0f} {p:{w},.0f} {uu:{w},.0f} MB |",
    ]
    assert render.cell(cell, one, compact=True) == (
        f"CPU: {d:0.0f}/{p:0.0f}/{u:0.0f} MB | GPU: {dd:0.0f}/{p:0.0f}/{uu:0.0f} MB | Time {t}"
        " | (Consumed/Peaked/Used Total)"
    )


@given(st.lists(st.tuples(*[st.integers(0, 2**46)] * 2, st.integers(1, 2**46)), min_size=1, max_size=2))
def test_the_state_is_the_contracts_own(rows):
    """Whatever the figures: the lines are what the contract's f-strings make of them."""
    names = ["CPU", "GPU"]
    w = int2width(*(int(size / 2**20) for row in rows for size in row)) + 1
    lines = [
        "",
        "*** Current state:",
        f"RAM: {'Used':>{w}} {'Free':>{w}} {'Total':>{w}}    {'Util':>{w}}",
    ]
    for name, row in zip(names, rows, strict=False):
        used, free, total = (int(size / 2**20) for size in row)
        lines.append(
            f"{name}: {used:{w},.0f} {free:{w},.0f} {total:{w},.0f} MB {row[0] / row[2] * 100:6.2f}% "
        )
    assert render.state(dict(zip(names, rows, strict=False))).split("\n") == lines


def test_what_is_unknown_is_no_number():
    """n/a where nobody tells; a share of nothing or of less is none, but nothing of nothing is all."""
    assert render.state({"GPU": (None, 2 * MB, None)}, ["A note."]) == (
        "\n*** Current state:\nRAM: Used Free Total    Util\nGPU:  n/a    2  n/a MB     n/a \nA note."
    )
    assert render.memory({"CPU": (0, 0), "GPU": (None, None)}) == (
        "\n*** Experiment memory:\nRAM: Consumed       Reclaimed\n"
        "CPU:        0        0 MB (100.00%)\nGPU:      n/a      n/a MB (    n/a)"
    )
    assert render.memory({"CPU": (-MB, 0)}).endswith("CPU:       -1        0 MB (    n/a)")
    assert render.memory({"CPU": (0, MB)}).endswith("CPU:        0        1 MB (    n/a)")
    assert render.memory({"CPU": (400 * MB, -1)}).endswith("CPU:      400        0 MB (  0.00%)")


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (
            {"CPU": (2048 * MB, 1024 * MB)},
            ["RAM: Consumed       Reclaimed", "CPU:    2,048    1,024 MB ( 50.00%)"],
        ),
        (
            {"CPU": (1, 1), "GPU": (12345678 * MB, 0)},
            [
                "RAM:    Consumed         Reclaimed",
                "CPU:           0           0 MB (100.00%)",
                "GPU:  12,345,678           0 MB (  0.00%)",
            ],
        ),
    ],
)
def test_the_experiments_memory(rows, says):
    """Columns of at least eight, wider where a figure needs it."""
    assert render.memory(rows).split("\n") == ["", "*** Experiment memory:", *says]


def test_the_other_lines():
    """The banner, the device, the end and what was found, in the original's words."""
    assert render.started("CPU-only") == "\n*** Experiment started with the CPU-only backend"
    gpu = device(0, 0, 0, total_bytes=8119 * MB)
    assert render.device(gpu) == "Device: ID 0, Sim (8119 RAM)"
    assert render.device(None) == "Device: none that can be used, general RAM only"
    begins = "\nX: Finishing\n\n*** Experiment finished in "
    assert render.finished("X", 3723.9) == f"{begins}01:02:03 (elapsed wallclock time)"
    assert render.finished("X", 100 * 3600) == f"{begins}100:00:00 (elapsed wallclock time)"
    assert render.variables(["x1", "x2"], ["y"], ["z"]) == (
        "\n*** Newly defined local variables:\nDeleted: x1, x2\nFailed to delete: y\nKept:    z"
    )
    assert render.variables([], [], []) == render.garbage(0, 0) == ""
    assert render.garbage(3, 2) == (
        "\n*** Circular ref objects gc collected during the experiment:\n"
        "cleared 3 objects (only temporary leakage)\n"
        "\n*** Potential memory leaks during the experiment:\nuncollected gc.garbage of 2 objects"
    )


# -- an experiment from its beginning to its end ----------------------------------------------------


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
    match = FINISHED.fullmatch(capsys.readouterr().out)
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
    assert capsys.readouterr().out == ""
    assert shell.user_ns["a"] == 1
    assert shell.user_ns["exp"].data.cpu.reclaimed == 0
    assert run(shell, "exp.finish()").result is None


WHOLE = """
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
for cell in CELLS:
    shell.run_cell(cell, store_history=True)
"""


@pytest.mark.parametrize("driver", [True, False])
def test_the_whole_text(request, driver):
    """All that one prints, blank lines included, in a process of its own: no garbage of ours is told of."""
    env = request.getfixturevalue("machine_env" if driver else "driverless_env")
    cells = [
        "from ipygpulogger.experiments import *",
        "exp = IPyExperimentsCPU(cl_enable=False)",
        "a = 1",
        "exp.keep_var_names('b'); b = 2",
        "exp.finish();",
    ]
    program = WHOLE.replace("CELLS", repr(cells))
    out = subprocess.check_output([sys.executable, "-c", program], env=env, text=True, timeout=100)
    started = STARTED.match(out)
    finished = FINISHED.fullmatch(out, started.end())
    assert out[started.end() :].startswith("\nIPyExperimentsCPU: Finishing\n\n*** Experiment finished in ")
    assert finished.group("deleted", "kept", "cleared") == ("a", "b", None)


def test_what_a_bare_import_gave():
    """`import ipyexperiments`: its version, and the base class that every experiment is one of."""
    assert door.__version__ == ipygpulogger.__version__
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


# -- which variables are deleted ------------------------------------------------------------------

NAMES = ["a", "b", "c", "d", "_hidden"]


class Value:
    """Something that a name can hold and a weak reference can follow."""


steps = st.one_of(
    st.tuples(st.just("assign"), st.sampled_from(NAMES)),
    st.tuples(st.just("alias"), st.sampled_from(NAMES), st.sampled_from(NAMES)),
    st.tuples(st.just("delete"), st.sampled_from(NAMES)),
    st.tuples(st.just("keep"), st.integers(0, 3), st.sampled_from(NAMES)),
    st.tuples(st.just("begin")),
    st.tuples(st.just("finish"), st.integers(0, 3)),
)


class Model:
    """What the names should hold; which experiments run, the oldest first."""

    def __init__(self, names):
        self.names, self.held, self.running = names, {}, []
        for name in NAMES:
            names.pop(name, None)

    def assign(self, name):
        self.names[name] = self.held[name] = Value()

    def alias(self, name, other):
        if other in self.held:
            self.names[name] = self.held[name] = self.held[other]

    def delete(self, name):
        if name in self.held:
            del self.names[name], self.held[name]

    def begin(self):
        self.running.append((IPyExperimentsCPU(cl_enable=False), set(self.held), set()))

    def keep(self, which, name):
        if which < len(self.running):
            self.running[which][0].keep_var_names(name)
            self.running[which][2].add(name)

    def finish(self, which):
        if which < len(self.running):
            exp, _, kept = self.running[which]
            for name in set(self.held) - kept - {"_hidden"}:
                owners = [one for one, found, _ in self.running if name not in found]
                if owners and owners[-1] is exp:
                    del self.held[name]
            del self.running[which]
            exp.finish()


@given(st.lists(steps, max_size=25))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_namespace_after_any_story(shell, capsys, story):
    """A name goes with the newest running experiment that had not found it, unless that one keeps it."""
    model = Model(shell.user_ns)
    for step, *args in [*story, *[("finish", 0)] * 25]:
        getattr(model, step)(*args)
        assert {name: shell.user_ns[name] for name in NAMES if name in shell.user_ns} == model.held
    capsys.readouterr()


def test_what_is_deleted_is_free(shell, exp, capsys):
    """Nothing of IPython's holds on to it: not Out, not _, not the last result."""
    shell.user_ns["Value"] = Value
    exp.keep_var_names("Value")
    run(shell, "a = Value(); b = Value(); c = a")
    watched = [weakref.ref(shell.user_ns[name]) for name in "ab"]
    for code in ("a", "b", "a", "b"):
        run(shell, code)
    assert shell.user_ns["_"] is shell.user_ns["b"]
    exp.finish()
    assert [ref() for ref in watched] == [None, None]
    run(shell, "7")
    assert shell.user_ns["_"] == 7
    assert shell.user_ns["__"] == ""


def test_what_was_there_before_stays(shell, capsys):
    """An alias of an old object takes neither the object's own name nor an old output with it."""
    run(shell, "old = [1]; [2]")
    number = shell.execution_count - 1
    run(shell, "exp = X(cl_enable=False)")
    old, output = shell.user_ns["old"], shell.user_ns["Out"][number]
    run(shell, "alias = old\nalias")
    run(shell, f"other = Out[{number}]")
    shell.user_ns["exp"].finish()
    assert FINISHED.search(capsys.readouterr().out)["deleted"] == "alias, other"
    assert shell.user_ns["old"] is old
    assert shell.user_ns["Out"][number] is shell.user_ns[f"_{number}"] is output


def test_what_else_holds_a_value_keeps_it_in_out(shell, exp):
    """Out[n] stays where a kept variable holds the same object."""
    run(shell, "a = [1]\nkept = a\nkept")
    number = shell.execution_count - 1
    exp.keep_var_names("kept")
    exp.finish()
    assert shell.user_ns["Out"][number] is shell.user_ns["kept"]
    assert "a" not in shell.user_ns


def test_ipythons_own_names_stay(shell, exp):
    """In, Out, exit and the like are as they were, even where a new name held the same object."""
    before = {name: shell.user_ns[name] for name in ("In", "Out", "exit", "get_ipython", "_ih", "_oh", "_dh")}
    run(shell, "one = In; two = Out; three = exit; four = get_ipython; five = _dh; six = None; seven = 1")
    exp.finish()
    assert {name: shell.user_ns[name] for name in before} == before
    assert not {"one", "two", "three", "four", "five", "six", "seven"} & set(shell.user_ns)
    assert run(shell, "1 + 1").result == 2


def test_the_users_own_underscore_stays(shell, exp):
    """A `_` that the user made is no output of IPython's."""
    run(shell, "a = [1]\n_ = a")
    exp.finish()
    assert shell.user_ns["_"] == [1]
    del shell.user_ns["_"]


def test_a_module_is_a_variable_like_any(shell, exp):
    """The name of a module imported since goes, the module does not."""
    run(shell, "import json, json as js")
    run(shell, "X = X")
    assert exp.get_var_names() == ["js", "json"]
    exp.finish()
    assert not {"json", "js"} & set(shell.user_ns)
    assert "json" in sys.modules
    assert "X" in shell.user_ns


def test_experiments_delete_no_experiment(shell, capsys):
    """The variable that holds one stays, whichever of them finishes."""
    run(shell, "one = X(cl_enable=False)\ntwo = X(cl_enable=False)\na = 1")
    one, two = shell.user_ns["one"], shell.user_ns["two"]
    assert (one.get_var_names(), two.get_var_names()) == ([], ["a"])
    two.finish()
    one.finish()
    assert shell.user_ns["one"] is one
    assert shell.user_ns["two"] is two


def test_keep_var_names_takes_names(exp):
    """What is no string is refused, and then nothing is kept of that call."""
    with pytest.raises(ValueError, match=r"^expecting variable names as strings$"):
        exp.keep_var_names("a", 3)
    assert exp._names_kept == set()


def test_a_kept_name_that_never_came(shell, exp, capsys):
    """Only what is there is said to be kept."""
    exp.keep_var_names("never", "X", "b")
    shell.user_ns["b"] = 1
    exp.finish()
    assert FINISHED.fullmatch(capsys.readouterr().out)["kept"] == "b"


def test_what_cannot_be_deleted_is_said(shell, exp, capsys, monkeypatch):
    """A namespace that refuses breaks nothing: the others go, and the report names it."""

    class Stubborn(dict):
        def pop(self, name, *default):
            if name == "stuck":
                raise RuntimeError("not this one")
            return super().pop(name, *default)

    monkeypatch.setattr(shell, "user_ns", Stubborn(shell.user_ns))
    shell.user_ns.update(stuck=1, free=2)
    exp.finish()
    match = FINISHED.fullmatch(capsys.readouterr().out)
    assert (match["deleted"], match["failed"]) == ("free", "stuck")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_destructor_of_the_users_may_do_anything(shell, exp, capsys):
    """It raises, makes names, removes names, finishes the experiment: the end goes on."""

    class Wild:
        def __del__(self):
            shell.user_ns["made"] = 1
            shell.user_ns.pop("z", None)
            exp.finish()
            raise RuntimeError("wild")

    shell.user_ns.update(a=Wild(), z=1)
    exp.finish()
    assert FINISHED.fullmatch(capsys.readouterr().out)["deleted"] == "a, z"
    assert shell.user_ns["made"] == 1


@pytest.mark.parametrize("cycles", [0, 1, 5])
def test_cycles_are_counted(shell, exp, capsys, cycles):
    """The collector's own count of what only it could free, and nothing of ours among it."""
    gc.collect()  # the fixtures' own
    for i in range(cycles):
        cycle = []
        cycle.append(cycle)
        shell.user_ns[f"cycle{i}"] = cycle
        del cycle
    exp.finish()
    match = FINISHED.fullmatch(capsys.readouterr().out)
    assert match["cleared"] == (str(cycles) if cycles else None)
    assert match["garbage"] is None


def test_garbage_from_before_is_not_the_experiments(shell, capsys):
    """Cycles that were garbage already when it began are none of its count."""
    for _ in range(7):
        cycle = []
        cycle.append(cycle)
    del cycle
    IPyExperimentsCPU(cl_enable=False).finish()
    assert FINISHED.search(capsys.readouterr().out)["cleared"] is None


def test_what_cannot_be_collected_is_said(shell, exp, capsys, monkeypatch):
    """gc.garbage is told of."""
    gc.garbage.append(Value())
    try:
        exp.finish()
    finally:
        gc.garbage.clear()
    assert FINISHED.fullmatch(capsys.readouterr().out)["garbage"] == "1"


# -- how else an experiment ends --------------------------------------------------------------------


def test_del_finishes(shell, capsys):
    """Who deletes the last reference has finished it: one end, one report less."""
    run(shell, "exp = X()\na = Block(32)")
    capsys.readouterr()
    run(shell, "del exp")
    match = FINISHED.fullmatch(capsys.readouterr().out)
    assert match["deleted"] == "a"
    assert abs(int(match["reclaimed"]) - 32) <= 1


def test_the_garbage_collector_finishes(shell, capsys):
    """One that only a cycle held ends when the collector finds it."""
    run(shell, "import gc\nexp = X(cl_enable=False)\nexp.me = exp\na = 1\ndel exp")
    assert not FINISHED.search(capsys.readouterr().out)
    run(shell, "gc.collect();")
    assert FINISHED.search(capsys.readouterr().out)["deleted"] == "a"


REMADE = [
    "exp = X()",
    "exp: object = X(cl_compact=False)",
    "print(end=''); exp = X(); 1",
    "for _i_ in range(1):\n    exp = X()",
    "def f():\n    global exp\n    exp = X()\nf()",
    "%time exp = X()",
    "import asyncio\nawait asyncio.sleep(0)\nexp = X()",
    "class Y(X):\n    def __init__(self):\n        super().__init__()\nexp = Y()",
    "exp = X(**{'cl_gc_collect': True})",
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
    assert len(experiments._unfinished) == 1
    run(shell, "b = Block(32)")
    consumed = shell.user_ns["exp"].data.cpu.consumed
    assert abs(consumed - 32 * MB) < 2 * MB
    assert "a" not in shell.user_ns
    assert capsys.readouterr().out.count("･ CPU:") == 1


@pytest.mark.parametrize(
    "code",
    [
        "exp = make()",
        "exp, n = X(cl_enable=False), 1",
        "exp = other = X(cl_enable=False); del other",
        "new = X(cl_enable=False)\nexp = new\ndel new",
    ],
)
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


@pytest.mark.parametrize("code", ["exp = X()", "exp = X() if True else None"])
def test_one_that_is_held_elsewhere_goes_on(shell, capsys, code):
    """A name that is given away ends nothing while somebody else holds the experiment."""
    run(shell, "exp = X(cl_enable=False)\nheld = [exp]\na = 1")
    first = shell.user_ns["exp"]
    capsys.readouterr()
    run(shell, code)
    assert not FINISHED.search(capsys.readouterr().out)
    assert shell.user_ns["exp"] is not first
    assert shell.user_ns["held"] == [first]
    assert shell.user_ns["a"] == 1
    assert (first.get_var_names(), shell.user_ns["exp"].get_var_names()) == (["a", "held"], [])


def test_a_constructor_that_refuses_ends_nobody(shell, capsys):
    """The old experiment goes on under its name where the options of a new one are wrong."""
    run(shell, "exp = X()")
    exp = shell.user_ns["exp"]
    capsys.readouterr()
    for code in ("exp = X(cl_compact='yes')", "exp = X(cl_set_seed=-1)", "exp = X(what=1)"):
        assert not run(shell, code).success
        assert shell.user_ns["exp"] is exp
        assert exp._running
    assert not FINISHED.search(capsys.readouterr().out)


def test_a_constructor_that_fails_late_takes_no_name(shell, capsys, monkeypatch):
    """A name that would have gone to the new one stays with an old one that is held elsewhere."""
    run(shell, "exp = X(cl_enable=False)\nheld = [exp]")
    exp = shell.user_ns["exp"]

    def fails(_self):
        raise ValueError

    with monkeypatch.context() as patched:
        patched.setattr(IPyExperimentsCPU, "print_state", fails)
        assert not run(shell, "exp = X()").success
    assert shell.user_ns["exp"] is exp
    assert exp._running


def test_reset_wipes_everything_without_a_word(shell, capsys):
    """%reset finds every name where it was; no report, no error, nothing left."""
    run(shell, "exp = X()\n" + "\n".join(f"n{i} = {i}" for i in range(50)))
    capsys.readouterr()
    result = run(shell, "%reset -f")
    assert result.success
    assert capsys.readouterr() == ("", "")
    assert not experiments._unfinished
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


@pytest.mark.parametrize("ending", ["", "exit\n", "1/0\n", "import sys; sys.exit(0)\n", "%reset -f\n"])
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
    assert len(STARTED.findall(done.stdout)) == 2
    assert len(FINISHED.findall(done.stdout)) == 1
    assert len(REPORT.findall(done.stdout)) >= 4
    assert "ipygpulogger" not in done.stderr
    assert "xception" not in done.stderr
    assert done.returncode == 0


def test_exit_when_the_package_came_before_the_shell(driverless_env):
    """The order of imports does not matter: the interpreter's end is silent."""
    program = (
        "from ipygpulogger.experiments import IPyExperimentsCPU\n"
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        "shell.user_ns['X'] = IPyExperimentsCPU\n"
        "shell.run_cell('exp = X(); a = 1', store_history=True)\n"
        "print('the end')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=driverless_env
    )
    assert done.stdout.endswith("the end\n")
    assert (done.stderr, done.returncode) == ("", 0)


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
        set(experiments._unfinished),
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


def test_between_cells_nothing_is_open(shell, capsys):
    """However long an experiment lasts, no scope waits and no thread looks on its account."""
    exp = IPyExperimentsCPU(cl_enable=False)
    assert not machine().scopes
    assert not machine().scopes.loggers
    assert not [thread for thread in threading.enumerate() if "ipygpulogger" in thread.name]
    exp.finish()


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
        (gc, "collect"),
    ],
)
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_constructor_that_fails_leaves_nothing(shell, capsys, monkeypatch, where, name, error):
    """Whatever step fails, the error comes out, and there is no half an experiment."""
    before = standing(shell)

    def fails(*_args, **_how):
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(where, name, fails)
        with pytest.raises(error):
            IPyExperimentsCPU()
    gc.collect()
    assert standing(shell) == before
    assert not FINISHED.search(capsys.readouterr().out)


def test_a_start_that_is_interrupted_at_its_end_leaves_nothing(shell, capsys, monkeypatch):
    """The cells are subscribed to already, and let go of again."""
    before = standing(shell)
    subscribe = CellEvents.subscribe

    def interrupted(self, listener, **how):
        subscribe(self, listener, **how)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(CellEvents, "subscribe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            IPyExperimentsCPU()
    assert standing(shell) == before


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
    assert (out, err) == ("", "ipygpulogger could not finish an experiment: ValueError: no measure\n")
    assert standing(shell) == before


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"cl_set_seed": -1}, ValueError, "set_seed takes a whole number below 2**32, or 0 for none, not -1"),
        ({"cl_set_seed": 2**32}, ValueError, "not 4294967296"),
        ({"cl_set_seed": "7"}, ValueError, "not '7'"),
        ({"cl_compact": "yes"}, ValueError, "compact takes True or False, not 'yes'"),
        ({"cl_gc_collect": 2}, ValueError, "gc_collect takes True or False, not 2"),
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


def test_the_abstract_one_is_abstract(shell):
    """IPyExperimentsGPU is for subclasses that know a framework."""
    with pytest.raises(TypeError, match="abstract"):
        IPyExperimentsGPU()


def test_without_torch(shell, monkeypatch, capsys):
    """Asking for torch where there is none: one sentence with the command, and nothing has begun."""
    before = standing(shell)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"^IPyExperimentsPytorch needs torch \(.*\): pip install torch$"):
        IPyExperimentsPytorch()
    assert standing(shell) == before
    assert capsys.readouterr().out == ""


# -- the cell logger ---------------------------------------------------------------------------------


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
    run(shell, "blip(100)\nseen = exp.cl.data")
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
