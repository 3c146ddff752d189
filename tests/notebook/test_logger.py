"""The logger, in a shell of this process: start and stop, what it says, and what of the user's it leaves alone."""

import copy
import gc
import json
import pickle
import re
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from IPython.utils.capture import capture_output
from memory import blip
from reports import labels, run

from ipygpulogger import IPyGPULogger
from ipygpulogger.engine.frameworks import Settling
from ipygpulogger.engine.machine import machine
from ipygpulogger.engine.scope import Scope
from ipygpulogger.experiments import IPyExperimentsCPU
from ipygpulogger.notebook import report
from ipygpulogger.notebook.measured_cell import Gap
from ipygpulogger.records import CellRecord
from ipygpulogger.render import html as render_html
from ipygpulogger.render import text
from ipygpulogger.storage.decode import record_from

MB = 2**20
MIME = "application/vnd.ipygpulogger.v1+json"

# -- start and stop ------------------------------------------------------------------------------


def test_the_cell_that_starts_reports_from_there_on(shell, capsys, clock):
    """The cell that calls start() is told under its own number, with the time since."""
    shell.user_ns.update(IPyGPULogger=IPyGPULogger, clock=clock)
    count = run(shell, "clock.work(5)\nil = IPyGPULogger().start()\nclock.work(2)").execution_count
    il = shell.user_ns["il"]
    assert labels(capsys.readouterr().out) == [f"In [{count}]"]
    record = il.record
    assert (record.time_s, record.source, record.execution_count) == (2, "clock.work(5)", count)
    il.stop()


def test_the_cell_that_stops_has_no_report_and_leaves_nothing(shell, capsys):
    """stop() says that in a line, keeps no record of its cell, and takes everything back."""
    before = {event: list(callbacks) for event, callbacks in shell.events.callbacks.items()}
    il = IPyGPULogger().start()
    shell.user_ns["il"] = il
    run(shell, "x = 1")
    threads = threading.enumerate()
    capsys.readouterr()
    run(shell, "il.stop()")
    assert capsys.readouterr() == ("ipygpulogger stopped: 1 cell recorded.\n", "")
    assert len(il.history) == 1
    assert not il.running
    assert shell.events.callbacks == before
    assert not (machine().scopes or machine().scopes.loggers)
    assert il not in shell.configurables
    assert set(threading.enumerate()) <= set(threads)
    run(shell, "x = 2")
    assert capsys.readouterr().out == ""


def test_start_and_stop_say_one_line_where_something_changed(shell, capsys):
    """Neither a second time, nor where nothing is to be shown, nor as the interpreter ends."""
    il, said = IPyGPULogger().start().stop() or IPyGPULogger(), []
    capsys.readouterr()
    for call in (il.start, il.start, il.stop, il.stop):
        call()
        said.append(capsys.readouterr().out)
    assert said == ["ipygpulogger started.\n", "", "ipygpulogger stopped: 0 cells recorded.\n", ""]
    silent = IPyGPULogger(report="none")
    silent.start()
    silent.stop()
    assert capsys.readouterr() == ("", "")
    program = "from ipygpulogger import IPyGPULogger; il = IPyGPULogger().start()"
    command = [sys.executable, "-m", "IPython", "--no-banner", "--colors=NoColor", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "started" in done.stdout
    assert "stopped" not in done.stdout + done.stderr


def test_a_second_start_or_stop_changes_nothing(shell, il, capsys):
    """start() returns the logger however often; one report all the same; stop() as well."""
    assert il.start() is il
    shell.user_ns["il"] = il
    run(shell, "il.start();")
    assert len(labels(capsys.readouterr().out)) == 1
    il.stop()
    il.stop()
    assert not il.running
    il.start()
    run(shell, "x = 1")
    assert len(labels(capsys.readouterr().out)) == 1
    assert len(il.history) == 2


@pytest.mark.usefixtures("fresh_mark")
def test_two_loggers_are_each_right(shell, il, capsys, clock):
    """Two reports; neither time holds the other's settling or printing, both see the memory; one line says its heads."""
    other = IPyGPULogger(compact=True).start()
    shell.user_ns["clock"] = clock
    capsys.readouterr()
    for code, consumed_mb, peaked_mb in (
        ("blob = b'x' * (64 << 20)", 64, 0),
        ("len(b'x' * (64 << 20));", 0, 64),
    ):
        run(shell, f"clock.work(1)\n{code}")
        compact = text.report(other.record, compact=True, heads="blob" in code)
        printed = f"{text.report(il.record)}\n{compact}\n"
        assert capsys.readouterr().out == printed
        for record in (il.record, other.record):
            assert record.time_s == 1
            assert abs(record.gen.consumed_bytes - consumed_mb * MB) < 2 * MB
            assert abs(record.gen.peaked_bytes - peaked_mb * MB) < 2 * MB
    other.stop()
    capsys.readouterr()
    run(shell, "x = 1")
    assert len(labels(capsys.readouterr().out)) == 1


# -- hooks never raise ---------------------------------------------------------------------------


class Odd(BaseException):
    """Not even an Exception."""


def _raises(error):
    def raises(*_, **__):
        raise error

    return raises


FAULTS = {  # what fails, and whether it has done its work by then
    "open": (lambda: (Scope, "open"), False),
    "opened": (lambda: (Scope, "open"), True),
    "close": (lambda: (Scope, "close"), True),
    "result": (lambda: (Scope, "result"), False),
    "settle": (lambda: (Settling, "settle"), False),
    "preload": (lambda: (Gap, "preload"), False),
    "the counter at open": (lambda: (machine().ram, "open"), False),
    "the counter at close": (lambda: (machine().ram, "close"), False),
    "text": (lambda: (report.text, "report"), False),
}


def break_(monkeypatch, fault, error):
    """Let a step of ours fail."""
    place, late = FAULTS[fault]
    real = getattr(*place())
    monkeypatch.setattr(*place(), lambda *args, **named: [late and real(*args, **named), _raises(error)()])


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt(), SystemExit(3), Odd("boom")])
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "opened"])
def test_a_fault_of_ours_never_reaches_the_cell(shell, il, capsys, monkeypatch, fault, error):
    """Whatever breaks: the cell's result and output are its own, and one sentence is said, once."""

    def seen():
        result = run(shell, "print('mine')\n6 * 7")
        out, err = capsys.readouterr()
        own = re.sub(r"\[\d+\]", "[n]", out.partition("RAM:")[0])
        return result.success, result.result, own, err

    healthy, holders = seen(), set(machine().scopes.loggers)
    assert healthy[3] == ""
    with monkeypatch.context() as broken:
        break_(broken, fault, error)
        first, second = seen(), seen()
    reason = "interrupted" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}: {error}"
    assert first == (*healthy[:3], f"ipygpulogger could not measure a cell: {reason}\n")
    assert second == healthy
    kept = len(il.history)
    assert seen() == healthy  # and it works again
    assert len(il.history) == kept + 1
    assert not machine().scopes
    assert set(machine().scopes.loggers) == holders


# -- the user's state ----------------------------------------------------------------------------


def test_the_users_interpreter_is_as_it_was(shell, il, capsys):
    """Nothing that belongs to the user changes through our hooks."""

    def trace(*_):
        return None

    ours = {"_", "__", "___", "_i", "_ii", "_iii"}

    def state():
        return {
            "gc": (gc.isenabled(), gc.get_threshold(), gc.get_debug(), len(gc.callbacks)),
            "trace": (sys.gettrace(), sys.getprofile(), threading.gettrace()),
            "last": [getattr(sys, name, None) for name in ("last_type", "last_value", "last_traceback")],
            "hooks": (sys.excepthook, sys.displayhook, sys.unraisablehook, threading.excepthook),
            "streams": (sys.stdout, sys.stderr, sys.stdin),
            "limits": (sys.getrecursionlimit(), sys.getswitchinterval()),
            "names": sorted(n for n in shell.user_ns if n not in ours and not re.match(r"_i?\d", n)),
            "outputs": [shell.user_ns[name] for name in ("_", "__", "___")] + sorted(shell.user_ns["Out"].items()),
        }  # fmt: skip

    run(shell, "40 + 2")
    run(shell, "1 / 0")
    before_trace = sys.gettrace()
    gc.freeze()
    gc.disable()
    gc.set_threshold(701, 11, 12)
    try:
        shell.user_ns["sys"] = sys
        sys.settrace(trace)
        before, frozen = state(), gc.get_freeze_count()
        run(shell, "pass")
        run(shell, "None")
        after, still_frozen = state(), gc.get_freeze_count()
    finally:
        sys.settrace(before_trace)
        gc.enable()
        gc.set_threshold(700, 10, 10)
        gc.unfreeze()
    assert after == before
    assert 0 < still_frozen <= frozen  # neither thawed nor frozen anew; a frozen object may die
    assert len(il.history) == 4


# -- what its options do ---------------------------------------------------------------------------


@pytest.mark.parametrize("gc_collect", [True, False])
def test_gc_collect_says_whether_garbage_is_collected(shell, capsys, gc_collect):
    """A cycle left by a cell is gone before the next one, if so wished."""
    il = IPyGPULogger(gc_collect=gc_collect, report="none").start()
    gc.disable()
    try:
        run(shell, "class C: pass\nimport weakref\nc = C(); c.self = c; ref = weakref.ref(c); del c")
        assert (shell.user_ns["ref"]() is None) is gc_collect
    finally:
        gc.enable()
        il.stop()


def test_data_before_and_after(shell, il):
    """Before the first cell only what is in use; then the last cell in whole MB, truncated toward zero."""
    assert il.record is None
    assert il.data[:2] == (0, 0)
    assert il.data.gen_mem_used > 0
    assert il.data[3:] == (0, 0, 0, 0.0)
    run(shell, "blob = b'x' * (64 << 20)")
    gen = il.record.gen
    sizes_mb = [int(size / MB) for size in (gen.consumed_bytes, gen.peaked_bytes, gen.after_bytes)]
    assert il.data == (*sizes_mb, 0, 0, 0, il.record.time_s)
    assert il.data.gen_mem_used_delta in (63, 64, 65)
    run(shell, "del blob")
    assert il.data.gen_mem_used_delta in (-63, -64, -65)
    assert [type(record) for record in il.history] == [CellRecord] * 2


def test_outside_ipython_the_error_names_measure():
    """Without a shell: RuntimeError that says what to use; importing starts and imports nothing."""
    program = """
import sys, threading
import ipygpulogger
assert not {"IPython", "torch", "pynvml", "numpy"} & set(sys.modules), "imported too much"
assert threading.enumerate() == [threading.main_thread()]
for _ in range(2):
    try:
        ipygpulogger.IPyGPULogger()
    except RuntimeError as error:
        print(error)
    import IPython
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == second
    assert "ipygpulogger.measure" in first


# -- its reports --------------------------------------------------------------------------------


def test_a_rich_report_is_one_display_of_three_kinds(shell, capsys):
    """text/plain as printed, text/html, and the record in bytes."""
    il = IPyGPULogger(report="rich").start()
    with capture_output() as caught:
        run(shell, "x = 1")
    il.stop()
    (output,) = caught.outputs
    assert output.data["text/plain"] == text.report(il.record)
    assert output.data["text/html"] == render_html.report(il.record)
    assert record_from(json.loads(json.dumps(output.data[MIME]))) == il.record
    assert "RAM:" not in caught.stdout


@pytest.fixture
def no_gpu(monkeypatch):
    """A machine without a driver."""
    why = SimpleNamespace(says="no NVIDIA driver")
    nvml = SimpleNamespace(
        devices=tuple, diagnose=lambda: why, notes=SimpleNamespace(take=tuple), close=lambda: 0
    )
    monkeypatch.setattr(machine(), "nvml", nvml)


NO_GPU = "No GPU here (no NVIDIA driver): RAM only.\n"


def test_that_there_is_no_gpu_is_said_once_per_kernel(shell, capsys, no_gpu):
    """By the first logger that says anything; not at the next start, nor by another, and no report has a row."""
    IPyGPULogger(report="none").start().stop()
    assert capsys.readouterr().out == ""
    run(shell, "%load_ext ipygpulogger")
    assert capsys.readouterr().out == NO_GPU
    run(shell, "%gpulog stop\n%gpulog start\n%reload_ext ipygpulogger")
    il = IPyGPULogger().start()
    run(shell, "x = 1")
    out = capsys.readouterr().out
    assert labels(out)
    assert "GPU" not in out
    il.stop()
    il.start()
    shell.user_ns["X"] = IPyExperimentsCPU
    run(shell, "exp = X()\nexp.finish();")
    il.stop()
    run(shell, "%unload_ext ipygpulogger")
    assert "No GPU here" not in capsys.readouterr().out


def test_a_logger_is_not_copied_but_its_records_are(shell, il):
    """Copying or pickling a logger says why not in one sentence; records and history go through both."""
    run(shell, "1")
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="belongs to its shell"):
            attempt(il)
    again = pickle.loads(pickle.dumps(il.history))
    assert list(again) == list(il.history) == list(copy.deepcopy(il.history))


@pytest.mark.usefixtures("fresh_mark")
def test_a_cell_over_its_budget_is_marked(shell, il, capsys):
    """The cell that went over says by how much, in text and record; one that did not says nothing."""
    run(shell, "1")
    allowed_mb = il.data.gen_mem_used + 150
    il.budget = f"{allowed_mb}MB"
    shell.user_ns["blip"] = blip
    for size_mb in (50, 300):
        capsys.readouterr()
        run(shell, f"blip({size_mb})")
        peak_mb = round(il.record.gen.peak.lo_bytes / MB)
        said = f"Over budget on RAM: highest {peak_mb} of {allowed_mb} MB"
        assert il.record.notes == ((said,) if size_mb == 300 else ())
        assert (capsys.readouterr().out.splitlines()[-1] == said) == (size_mb == 300)


def test_a_cell_that_began_over_the_budget_is_not_blamed(shell, il, capsys, fresh_mark):
    """The one that crossed it says so in full; those after it by how much it is still over, until it is not."""
    run(shell, "1")
    allowed_mb = il.data.gen_mem_used + 150
    il.budget = f"{allowed_mb}MB"
    shell.user_ns["blip"] = blip
    said = []
    for code in ("kept = bytearray(b'x') * (300 << 20)", "1", "blip(50)", "del kept", "1"):
        fresh_mark()
        run(shell, code)
        over_mb = round((il.record.gen.after_bytes - allowed_mb * MB) / MB)
        said.append([str(note).partition(":")[0] for note in il.record.notes if "budget" in note])
        assert (
            not said[-1] or "still" not in said[-1][0] or said[-1] == [f"still over budget by {over_mb} MB"]
        )
    crossed = "Over budget on RAM"
    assert [note and note[0].partition(" by ")[0] for note in said] == [
        crossed, "still over budget", crossed, [], []]  # fmt: skip


@pytest.mark.parametrize("fault", ["open", "opened", "close", "result"])
def test_a_cell_that_could_not_be_measured_has_no_report(shell, il, capsys, monkeypatch, fault):
    """No figures are better than those of half a measurement."""
    with monkeypatch.context() as broken:
        break_(broken, fault, RuntimeError("boom"))
        run(shell, "x = 1")
    assert capsys.readouterr().out == ""
    assert len(il.history) == 0
