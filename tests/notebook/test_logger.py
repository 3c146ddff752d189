"""IPython's events, in a shell of this process: which cells are told, when, and as what."""

import asyncio
import copy
import gc
import html
import json
import pickle
import re
import subprocess
import sys
import threading
from datetime import datetime, timezone
from types import SimpleNamespace

import pytest
from IPython.utils.capture import capture_output
from memory import blip

from ipygpulogger import IPyGPULogger
from ipygpulogger.engine import scope
from ipygpulogger.engine.machine import machine
from ipygpulogger.engine.scope import Scope
from ipygpulogger.engine.settling import Settling
from ipygpulogger.notebook import cell_events as events
from ipygpulogger.notebook import report
from ipygpulogger.records import CellRecord, ChildrenUsage, DeviceUsage, Heap, Peak, RamUsage
from ipygpulogger.render import html as render_html
from ipygpulogger.render import text
from ipygpulogger.runtime.clock import utc_now

MB = 2**20
MIME = "application/vnd.ipygpulogger.v1+json"
REPORT = re.compile(
    r"^RAM: Consumed Peaked  Used Total in \d+\.\d{3}s \((?P<label>[^\n]*)\)\n"
    r"Gen:    [ \d-]{5}  [ \d]{5}    [ \d]{5} MB(?P<after>[^\n]*)\n",
    re.MULTILINE,
)


def run(shell, code, *, store_history=True, silent=False):
    """Run a cell the way a front end does."""
    return shell.run_cell(code, store_history=store_history, silent=silent)


def labels(printed):
    """The cells that reports speak of, in the order of printing; every table must keep the format."""
    found = [match["label"] for match in REPORT.finditer(printed)]
    assert len(found) == printed.count("RAM: ") == printed.count("Gen: ")
    return found


@pytest.fixture
def il(shell, capsys):
    """A logger that has started, outside any cell."""
    il = IPyGPULogger().start()
    capsys.readouterr()
    yield il
    il.stop()


@pytest.fixture
def clock(monkeypatch):
    """The time as the package sees it: it moves when told. A settle and a print take ten seconds each."""

    class Clock:
        now_s = 1000.0
        utc_now = staticmethod(utc_now)

        def monotonic_s(self):
            return self.now_s

        def work(self, seconds):
            self.now_s += seconds

    clock = Clock()
    for module in (scope, events):
        monkeypatch.setattr(module, "clock", clock)

    def slow(real):
        def slower(*args, **kwargs):
            clock.work(10)
            return real(*args, **kwargs)

        return slower

    monkeypatch.setattr(Settling, "settle", slow(Settling.settle))
    monkeypatch.setattr(IPyGPULogger, "_show", slow(IPyGPULogger._show))
    return clock


# -- which cells are told ----------------------------------------------------------------------


def test_an_ordinary_cell_has_one_report_after_its_own_output(shell, il, capsys):
    """One report, under the cell's own number, after what the cell printed."""
    result = run(shell, "print('mine')\n6 * 7")
    out = capsys.readouterr().out
    assert result.result == 42
    assert out.startswith("mine\n")
    assert out.index("42") < out.index("RAM:")
    assert labels(out) == [f"In [{result.execution_count}]"]


def test_what_is_printed_is_the_record(shell, il, capsys):
    """The figures of the report are those of the record."""
    run(shell, "pass")
    assert capsys.readouterr().out == text.report(il.record) + "\n"
    assert il.record is il.history[-1]


@pytest.mark.parametrize("code", ["", " ", "\n \n\t"])
def test_an_empty_cell_has_no_report(shell, il, capsys, code):
    """An empty cell fires post without pre: it is nobody's cell."""
    run(shell, "x = 1")
    capsys.readouterr()
    run(shell, code)
    assert capsys.readouterr().out == ""
    assert len(il.history) == 1


def test_an_empty_cell_does_not_end_the_one_around_it(shell, il, capsys):
    """The post of a nested empty cell leaves the outer cell to its own."""
    shell.user_ns["shell"] = shell
    for empty in ("''", "'  '"):
        run(shell, f"shell.run_cell({empty}); print('still running')")
        out = capsys.readouterr().out
        assert out.index("still running") < out.index("RAM:")
        assert len(labels(out)) == 1


def test_a_comment_is_a_cell(shell, il, capsys):
    """A cell of comments has its report, with its comment for source."""
    run(shell, "# nothing here")
    assert len(labels(capsys.readouterr().out)) == 1
    assert il.record.source == "# nothing here"
    assert il.record.status == "ok"


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("1 +", "error", "SyntaxError"),
        ("  x = 1\n y = 2", "error", "IndentationError"),
        ("1 / 0", "error", "ZeroDivisionError"),
        ("%nosuch", "error", "UsageError"),
        ("raise KeyboardInterrupt", "interrupted", "KeyboardInterrupt"),
        ("import asyncio\nraise asyncio.CancelledError", "interrupted", "CancelledError"),
        ("import sys\nsys.exit(3)", "error", "SystemExit"),
        ("import asyncio\nawait asyncio.sleep(0)\n1 / 0", "error", "ZeroDivisionError"),
        ("class Odd(BaseException): pass\nraise Odd", "error", "Odd"),
    ],
)
@pytest.mark.filterwarnings("ignore:To exit:UserWarning")
def test_a_cell_that_failed_says_how(shell, il, capsys, code, status, error):
    """A cell that ended badly has a report and says so on its first row; the next one does not."""
    result = run(shell, code)
    assert not result.success
    (match,) = REPORT.finditer(capsys.readouterr().out)
    ended = "interrupted" if status == "interrupted" else f"failed: {error}"
    assert match["after"].endswith(f"  {ended}")
    assert (il.record.status, il.record.error) == (status, error)
    run(shell, "pass")
    (match,) = REPORT.finditer(capsys.readouterr().out)
    assert not match["after"]
    assert (il.record.status, il.record.error) == ("ok", None)


def test_an_await_that_is_interrupted_has_its_report(shell, il, capsys):
    """In a terminal the interrupt goes through IPython itself: post comes with an info of its own."""
    result = run(
        shell,
        "import asyncio\n"
        "def interrupt(): raise KeyboardInterrupt\n"
        "loop = asyncio.get_running_loop()\n"
        "loop.call_soon(interrupt)\n"
        "await asyncio.sleep(3600)",
    )
    loop = shell.user_ns["loop"]
    for task in asyncio.all_tasks(loop):
        task.cancel()
        loop.run_until_complete(asyncio.wait([task]))
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    assert len(labels(capsys.readouterr().out)) == 1
    assert il.record.status == "interrupted"
    assert il.record.label == f"In [{il.record.execution_count}]"
    assert not machine().scopes


def test_an_async_cell_is_a_cell_like_any(shell, il, capsys, clock):
    """A cell with await has one report, and the time of all of it."""
    shell.user_ns["clock"] = clock
    run(shell, "import asyncio\nclock.work(1)\nawait asyncio.sleep(0)\nclock.work(2)")
    assert len(labels(capsys.readouterr().out)) == 1
    assert il.record.time_s == 3


def test_the_label_is_the_cells_own_number(shell, il):
    """In [n] is what IPython itself calls the cell, failed ones and those after them included."""
    counts = [run(shell, code).execution_count for code in ("1", "", "1 +", "1 / 0", "%nosuch", "2")]
    counts = [count for count in counts if count is not None]
    told = list(il.history)
    assert [record.execution_count for record in told] == sorted(set(counts))[-len(told) :]
    assert [record.label for record in told] == [f"In [{record.execution_count}]" for record in told]
    assert len(told) == 5
    assert shell.execution_count == told[-1].execution_count + 1


def test_the_source_is_the_first_line_shortened(shell, il):
    """The record keeps the first line that is not blank, and not all of a long one."""
    run(shell, "\n\n  \nx = 1\ny = 2")
    assert il.record.source == "x = 1"
    run(shell, f"'{'a' * 10_000}';")
    assert len(il.record.source) == 120
    assert il.record.source == "'" + "a" * 119


def test_the_front_ends_cell_id_is_kept(shell, il):
    """The id that a front end gave the cell is in its record; without one, None."""
    run(shell, "pass")
    assert il.record.cell_id is None
    shell.run_cell("pass", store_history=True, cell_id="abc-1")
    assert il.record.cell_id == "abc-1"


@pytest.mark.parametrize("how", [{"silent": True}, {"store_history": False}])
def test_what_front_ends_run_for_themselves_has_no_report(shell, il, capsys, how):
    """A probe prints nothing, is kept nowhere, and leaves the last record as it was."""
    run(shell, "pass")
    before = il.record
    capsys.readouterr()
    run(shell, "probe = 1", **how)
    run(shell, "%%capture\nprobe = 2", **how)
    run(shell, "1 / 0", **how)
    assert "RAM:" not in capsys.readouterr().out
    assert il.record is before
    assert not machine().scopes
    run(shell, "pass")
    assert il.record.execution_count == before.execution_count + 1


@pytest.mark.parametrize("code", ["%run {path}", "%time 1", "%%time\nx = 1", "get_ipython().ex('x = 1')"])
def test_what_runs_code_without_a_cell_has_one_report(shell, il, capsys, tmp_path, code):
    """%run and %%time make no cell of their own."""
    path = tmp_path / "script.py"
    path.write_text("y = 1\n", encoding="utf-8")
    assert run(shell, code.format(path=path)).success
    assert len(labels(capsys.readouterr().out)) == 1


def test_a_foreign_callback_that_fails_does_not_disturb(shell, il, capsys):
    """Somebody else's hook may raise: our report comes all the same."""

    def stranger(*_):
        raise RuntimeError("not ours")

    for event in ("pre_run_cell", "post_run_cell"):
        shell.events.register(event, stranger)
    run(shell, "pass")
    for event in ("pre_run_cell", "post_run_cell"):
        shell.events.unregister(event, stranger)
    assert len(labels(capsys.readouterr().out)) == 1


# -- nested cells --------------------------------------------------------------------------------


def test_a_captured_cell_reports_inside_then_the_outer_one(shell, il, capsys):
    """The inner report is printed inside the capture, the outer one after it."""
    count = run(shell, "%%capture inner\nprint('mine')").execution_count
    assert labels(capsys.readouterr().out) == [f"In [{count}]"]
    captured = shell.user_ns["inner"].stdout
    assert captured.startswith("mine\n")
    assert labels(captured) == [f"nested in In [{count}]"]
    inner, outer = il.history
    assert (inner.execution_count, inner.source) == (None, "print('mine')")
    assert (outer.execution_count, outer.source) == (count, "%%capture inner")


def test_nested_cells_have_their_own_time_and_the_outer_ones_have_all_but_our_cost(shell, il, clock):
    """A cell's time is its own code and the cells within, without the hooks of any."""
    shell.user_ns.update(clock=clock, shell=shell)
    run(
        shell,
        "clock.work(1)\n"
        "shell.run_cell('clock.work(2); shell.run_cell(\"clock.work(4)\"); clock.work(8)')\n"
        "shell.run_cell('clock.work(16)')\n"
        "clock.work(32)",
    )
    assert [record.time_s for record in il.history] == [4, 14, 16, 63]
    count = il.record.execution_count
    assert [record.label for record in il.history] == [f"nested in In [{count}]"] * 3 + [f"In [{count}]"]


def test_nested_memory_counts_in_both(shell, il):
    """What a nested cell took is consumed by it and by the outer one."""
    run(shell, "%%capture\nblob = b'x' * (64 << 20)")
    inner, outer = il.history
    for record in (inner, outer):
        assert abs(record.gen.consumed_bytes - 64 * MB) < 2 * MB
    run(shell, "%%capture\nlen(b'x' * (64 << 20))")
    for record in il.history[-2:]:
        assert abs(record.gen.consumed_bytes) < 2 * MB
        assert abs(record.gen.peaked_bytes - 64 * MB) < 2 * MB


def test_a_nested_cell_that_raises_fails_alone(shell, il, capsys):
    """The inner cell failed; the outer one, which went on, did not."""
    run(shell, "%%capture\n1 / 0")
    inner, outer = il.history
    assert (inner.status, inner.error) == ("error", "ZeroDivisionError")
    assert (outer.status, outer.error) == ("ok", None)


def test_an_awaited_nested_cell_leaves_no_scope(shell, il, capsys):
    """An awaited run_cell_async fires pre without post: the outer cell's end clears it away."""
    shell.user_ns["shell"] = shell
    code = "await shell.run_cell_async('x = 1', transformed_cell='x = 1')"
    count = run(shell, f"{code}\n{code};").execution_count
    assert labels(capsys.readouterr().out) == [f"In [{count}]"]
    assert not machine().scopes


def test_a_nested_cell_kept_in_the_history_leaves_the_outer_one_alone(shell, il, capsys):
    """A nested cell with a number of its own is told under it; the outer one is told too."""
    shell.user_ns["shell"] = shell
    outer = run(shell, "inner = shell.run_cell('x = 1', store_history=True)").execution_count
    inner = shell.user_ns["inner"].execution_count
    assert labels(capsys.readouterr().out) == [f"In [{inner}]", f"In [{outer}]"]
    assert not machine().scopes


def test_a_cell_whose_end_is_never_told_is_dropped_at_the_next(shell, il, capsys):
    """A pre_run_cell without its post_run_cell, for whatever reason: the next cell starts afresh."""
    callbacks = shell.events.callbacks["post_run_cell"]
    kept = list(callbacks)
    callbacks.clear()
    run(shell, "abandoned = 1")
    callbacks.extend(kept)
    count = run(shell, "x = 1").execution_count
    assert labels(capsys.readouterr().out) == [f"In [{count}]"]
    assert not machine().scopes
    assert not il._cells


# -- start and stop ------------------------------------------------------------------------------


def test_the_cell_that_starts_reports_from_there_on(shell, capsys, clock):
    """The cell that calls start() is told under its own number, with the time since."""
    shell.user_ns.update(IPyGPULogger=IPyGPULogger, clock=clock)
    count = run(shell, "clock.work(5)\nil = IPyGPULogger().start()\nclock.work(2)").execution_count
    il = shell.user_ns["il"]
    assert labels(capsys.readouterr().out) == [f"In [{count}]"]
    assert il.record.time_s == 2
    assert il.record.source == "clock.work(5)"
    assert il.record.execution_count == count
    il.stop()


def test_a_start_within_a_nested_cell_tells_both(shell, capsys):
    """Both the nested cell and the one around it are told from start() on."""
    shell.user_ns["IPyGPULogger"] = IPyGPULogger
    code = "%%capture inner\nil = IPyGPULogger().start()\nblob = b'x' * (64 << 20)"
    count = run(shell, code).execution_count
    il = shell.user_ns["il"]
    assert labels(capsys.readouterr().out) == [f"In [{count}]"]
    assert labels(shell.user_ns["inner"].stdout) == [f"nested in In [{count}]"]
    assert [record.gen.consumed_bytes / MB for record in il.history] == [pytest.approx(64, abs=2)] * 2
    il.stop()


@pytest.mark.parametrize("how", [{"silent": True}, {"store_history": False}])
def test_a_start_that_no_cell_made_tells_the_next_cell(shell, capsys, how):
    """Started by a front end's own request: nothing until the next cell, which begins at its beginning."""
    shell.user_ns["IPyGPULogger"] = IPyGPULogger
    run(shell, "il = IPyGPULogger().start()", **how)
    il = shell.user_ns["il"]
    assert not machine().scopes
    run(shell, "probe = 1", store_history=False)
    run(shell, "")
    assert labels(capsys.readouterr().out) == []
    count = run(shell, "x = 1").execution_count
    assert labels(capsys.readouterr().out) == [f"In [{count}]"]
    assert len(il.history) == 1
    il.stop()


def test_a_start_from_another_thread_tells_the_next_cell(shell, capsys):
    """A thread is no cell: the cell that made it is not told, the next one is."""
    shell.user_ns.update(IPyGPULogger=IPyGPULogger, threading=threading)
    run(
        shell,
        "il = IPyGPULogger()\nthread = threading.Thread(target=il.start)\nthread.start()\nthread.join()",
    )
    assert labels(capsys.readouterr().out) == []
    assert not machine().scopes
    count = run(shell, "x = 1").execution_count
    assert labels(capsys.readouterr().out) == [f"In [{count}]"]
    shell.user_ns["il"].stop()


def test_the_cell_that_stops_prints_nothing_and_leaves_nothing(shell, capsys):
    """stop() says nothing, keeps no record of its cell, and takes everything back."""
    before = {event: list(callbacks) for event, callbacks in shell.events.callbacks.items()}
    il = IPyGPULogger().start()
    shell.user_ns["il"] = il
    run(shell, "x = 1")
    threads = threading.enumerate()
    capsys.readouterr()
    run(shell, "il.stop()")
    assert capsys.readouterr() == ("", "")
    assert len(il.history) == 1
    assert not il.running
    assert shell.events.callbacks == before
    assert not (machine().scopes or machine().scopes.loggers)
    assert il not in shell.configurables
    assert set(threading.enumerate()) <= set(threads)
    run(shell, "x = 2")
    assert capsys.readouterr().out == ""


def test_a_stop_within_a_nested_cell_silences_both(shell, il, capsys):
    """Neither the nested cell that stops nor the one around it is told."""
    shell.user_ns["il"] = il
    run(shell, "%%capture inner\nil.stop()")
    assert capsys.readouterr() == ("", "")
    assert shell.user_ns["inner"].stdout == ""
    assert len(il.history) == 0


def test_stop_and_start_in_one_cell_begin_anew(shell, il, capsys, clock):
    """After stop() and start() the cell is told from the new start on."""
    shell.user_ns.update(il=il, clock=clock)
    count = run(shell, "clock.work(1)\nil.stop()\nil.start()\nclock.work(2)").execution_count
    assert labels(capsys.readouterr().out) == [f"In [{count}]"]
    assert il.record.time_s == 2


def test_a_second_start_or_stop_changes_nothing(shell, il, capsys):
    """start() returns the logger however often; one report all the same; stop() as well."""
    assert il.start() is il
    shell.user_ns["il"] = il
    run(shell, "il.start();")
    assert len(labels(capsys.readouterr().out)) == 1
    assert il.running
    il.stop()
    il.stop()
    assert not il.running
    il.start()
    run(shell, "x = 1")
    assert len(labels(capsys.readouterr().out)) == 1
    assert len(il.history) == 2


def test_stop_survives_a_shell_whose_events_were_reset(shell, il, capsys):
    """Somebody emptied the shell's events: stop() does not mind."""
    shell.events.callbacks["pre_run_cell"].clear()
    shell.events.callbacks["post_run_cell"].clear()
    il.stop()
    il.start()
    run(shell, "x = 1")
    assert len(labels(capsys.readouterr().out)) == 1


def test_two_loggers_are_each_right(shell, il, capsys, clock):
    """Two reports; neither time holds the other's settling or printing, and both see the memory."""
    other = IPyGPULogger(compact=True).start()
    shell.user_ns["clock"] = clock
    capsys.readouterr()
    run(shell, "clock.work(1)\nblob = b'x' * (64 << 20)")
    out = capsys.readouterr().out
    assert len(labels(out.splitlines(keepends=True)[0] + out.splitlines(keepends=True)[1])) == 1
    assert out == f"{text.report(il.record)}\n{text.report(other.record, compact=True)}\n"
    for record in (il.record, other.record):
        assert record.time_s == 1
        assert abs(record.gen.consumed_bytes - 64 * MB) < 2 * MB
    run(shell, "clock.work(1)\nlen(b'x' * (64 << 20))")
    for record in (il.record, other.record):
        assert record.time_s == 1
        assert abs(record.gen.peaked_bytes - 64 * MB) < 2 * MB
    other.stop()
    capsys.readouterr()
    run(shell, "x = 1")
    assert len(labels(capsys.readouterr().out)) == 1


def test_a_logger_that_starts_in_anothers_cell_counts_from_there(shell, il, capsys, clock):
    """A second logger takes the running cell in from its start on, hooks of nested cells left out."""
    shell.user_ns.update(clock=clock, shell=shell, other=IPyGPULogger(report="none"))
    run(
        shell,
        "shell.run_cell('clock.work(1)')\nother.start()\nclock.work(2)\nshell.run_cell('clock.work(4)')",
    )
    other = shell.user_ns["other"]
    assert [record.time_s for record in other.history] == [4, 6]
    assert [record.time_s for record in il.history][:2] == [1, 4]
    other.stop()


def test_stopping_one_of_two_within_a_cell_leaves_the_other(shell, il, capsys):
    """The logger that goes on tells the cell in which the other stopped."""
    other = IPyGPULogger(report="none").start()
    shell.user_ns["other"] = other
    capsys.readouterr()
    run(shell, "other.stop()")
    assert len(labels(capsys.readouterr().out)) == 1
    assert len(other.history) == 0


def test_nothing_of_a_finished_cell_is_kept_but_its_record(shell, il, capsys):
    """No cell, scope or thread entry outlives its cell, however the cell ended."""
    for code in ("1", "", "1 / 0", "1 +", "%%capture\n1 / 0", "import asyncio\nawait asyncio.sleep(0)"):
        run(shell, code)
    assert il._cells == {}
    assert events.CellEvents.of(shell)._running == {}
    assert not machine().scopes


# -- hooks never raise ---------------------------------------------------------------------------


class Odd(BaseException):
    """Not even an Exception."""


def _break_open(monkeypatch, error):
    monkeypatch.setattr(Scope, "open", _raises(error))


def _break_opened(monkeypatch, error):
    real = Scope.open
    monkeypatch.setattr(Scope, "open", lambda self: [real(self), _raises(error)()])


def _break_close(monkeypatch, error):
    real = Scope.close
    monkeypatch.setattr(Scope, "close", lambda self: [real(self), _raises(error)()])


def _break_result(monkeypatch, error):
    monkeypatch.setattr(Scope, "result", _raises(error))


def _break_settle(monkeypatch, error):
    monkeypatch.setattr(Settling, "settle", _raises(error))


def _break_preload(monkeypatch, error):
    monkeypatch.setattr(Settling, "preload", _raises(error))


def _break_counter_at_open(monkeypatch, error):
    monkeypatch.setattr(machine().ram, "open", _raises(error))


def _break_counter_at_close(monkeypatch, error):
    monkeypatch.setattr(machine().ram, "close", _raises(error))


def _break_text(monkeypatch, error):
    monkeypatch.setattr(report.text, "report", _raises(error))


def _raises(error):
    def raises(*_, **__):
        raise error

    return raises


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt(), SystemExit(3), Odd("boom")])
@pytest.mark.parametrize(
    "fault",
    [
        _break_open,
        _break_close,
        _break_result,
        _break_settle,
        _break_preload,
        _break_counter_at_open,
        _break_counter_at_close,
        _break_text,
    ],
)
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
        fault(broken, error)
        first, second = seen(), seen()
    reason = "interrupted" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}: {error}"
    assert first == (*healthy[:3], f"ipygpulogger could not measure a cell: {reason}\n")
    assert second == healthy
    kept = len(il.history)
    assert seen() == healthy  # and it works again
    assert len(il.history) == kept + 1
    assert not machine().scopes
    assert set(machine().scopes.loggers) == holders


@pytest.mark.parametrize("fault", [_break_open, _break_opened, _break_close, _break_result])
def test_a_cell_that_could_not_be_measured_has_no_report(shell, il, capsys, monkeypatch, fault):
    """No figures are better than those of half a measurement."""
    with monkeypatch.context() as broken:
        fault(broken, RuntimeError("boom"))
        run(shell, "x = 1")
    assert capsys.readouterr().out == ""
    assert len(il.history) == 0


def test_with_nowhere_to_speak_the_cell_still_runs(shell, il, capsys, monkeypatch):
    """Not even a sentence that cannot be printed reaches the cell."""
    with monkeypatch.context() as broken:
        broken.setattr("ipygpulogger.runtime.output.print", _raises(OSError("no output")), raising=False)
        result = run(shell, "6 * 7")
    assert result.result == 42
    assert "Error in callback" not in capsys.readouterr().out


def test_one_broken_logger_does_not_stop_the_other(shell, il, capsys, monkeypatch):
    """Each listener is guarded for itself."""
    other = IPyGPULogger(report="none").start()
    capsys.readouterr()
    with monkeypatch.context() as broken:
        broken.setattr(il, "_begin", _raises(RuntimeError("boom")))
        run(shell, "x = 1")
    assert len(other.history) == 1
    assert len(il.history) == 0
    other.stop()


# -- the user's state ----------------------------------------------------------------------------


def test_the_users_interpreter_is_as_it_was(shell, il, capsys):
    """Nothing that belongs to the user changes through our hooks."""

    def trace(*_):
        return None

    def state():
        return {
            "gc": (gc.isenabled(), gc.get_threshold(), gc.get_debug(), len(gc.callbacks)),
            "trace": (sys.gettrace(), sys.getprofile(), threading.gettrace() if hasattr(threading, "gettrace") else 0),
            "last": [getattr(sys, name, None) for name in ("last_type", "last_value", "last_traceback")],
            "hooks": (sys.excepthook, sys.displayhook, sys.unraisablehook, threading.excepthook),
            "streams": (sys.stdout, sys.stderr, sys.stdin),
            "limits": (sys.getrecursionlimit(), sys.getswitchinterval()),
            "names": sorted(name for name in shell.user_ns if name not in ("_", "__", "___", "_i", "_ii", "_iii") and not re.match(r"_i?\d", name)),
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


def test_underscore_is_the_last_result_not_the_report(shell, capsys):
    """_ and Out are those of the user's cells, with a rich report as well."""
    with capture_output():
        il = IPyGPULogger(report="rich").start()
        count = run(shell, "6 * 7").execution_count
        run(shell, "x = 1")
    assert shell.user_ns["_"] == 42
    assert shell.user_ns["Out"] == {count: 42}
    il.stop()


def test_a_record_pins_no_value_of_the_cell(shell, il, capsys):
    """A result and an exception go when the user lets them go."""
    shell.user_ns["shell"] = shell
    run(
        shell,
        "import sys, weakref\n"
        "class Big(Exception): pass\n"
        "result = shell.run_cell('big = Big(); raise big')\n"
        "gone = weakref.ref(big)\n"
        "del result, big\n"
        "sys.last_value = sys.last_traceback = sys.last_exc = shell.last_execution_result = None",
    )
    shell.InteractiveTB.tb = None  # IPython's own
    shell.InteractiveTB.etype = shell.InteractiveTB.evalue = None
    shell.last_execution_result = None
    shell._last_traceback = None
    gc.collect()
    ours = [
        holder
        for holder in gc.get_referrers(shell.user_ns["gone"]() or object())
        if type(holder).__module__.startswith("ipygpulogger")
    ]
    assert ours == []
    assert len(il.history) == 2


# -- options -------------------------------------------------------------------------------------


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


def test_report_none_keeps_the_record_and_says_nothing(shell, capsys):
    """report="none" prints nothing at all, from start to stop."""
    il = IPyGPULogger(report="none").start()
    run(shell, "x = 1")
    il.stop()
    assert capsys.readouterr() == ("", "")
    assert len(il.history) == 1


def test_data_before_and_after(shell, il):
    """Before the first cell only what is in use; then the last cell in whole MB, truncated toward zero."""
    assert il.record is None
    assert il.data[:2] == (0, 0)
    assert il.data.gen_mem_used > 0
    assert il.data[3:] == (0, 0, 0, 0.0)
    run(shell, "blob = b'x' * (64 << 20)")
    gen = il.record.gen
    assert il.data == (
        int(gen.consumed_bytes / MB),
        int(gen.peaked_bytes / MB),
        int(gen.after_bytes / MB),
        0,
        0,
        0,
        il.record.time_s,
    )
    assert il.data.gen_mem_used_delta in (63, 64, 65)
    run(shell, "del blob")
    assert il.data.gen_mem_used_delta in (-63, -64, -65)
    assert len(il.history) == 2
    assert [type(record) for record in il.history] == [CellRecord] * 2


def test_records_are_in_utc_and_in_order(shell, il):
    """started_at is aware, in UTC, and does not go back."""
    before = datetime.now(timezone.utc)
    run(shell, "x = 1")
    run(shell, "x = 2")
    first, second = il.history
    assert before <= first.started_at <= second.started_at <= datetime.now(timezone.utc)
    assert first.started_at.utcoffset().total_seconds() == 0


def test_outside_ipython_the_error_names_measure():
    """Without a shell: RuntimeError that says what to use; importing starts and imports nothing."""
    program = """
import sys, threading
import ipygpulogger
assert not {"IPython", "torch", "pynvml", "numpy"} & set(sys.modules), "imported too much"
assert threading.enumerate() == [threading.main_thread()]
try:
    ipygpulogger.IPyGPULogger()
except RuntimeError as error:
    print(error)
import IPython
try:
    ipygpulogger.IPyGPULogger()
except RuntimeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == second
    assert "ipygpulogger.measure" in first


# -- the formats ---------------------------------------------------------------------------------


def record(consumed=128, peaked=0, used=170, time_s=0.807, label="In [4]", gpus=(), quality="exact", **more):
    """A record of these megabytes."""
    before = used - consumed
    top = max(before, used) + peaked
    hi = {"exact": top, "bounded": top + 48, "sampled": None}[quality]
    peak = Peak(int(top * MB), None if hi is None else int(hi * MB), quality)
    fields = {"execution_count": 4, "cell_id": None, "source": "x = 1", "status": "ok"} | more
    heap = {name: fields.pop(name) for name in ("heap_before", "heap_after") if name in fields}
    return CellRecord(
        label=label,
        started_at=datetime(2024, 5, 6, 7, 8, 9, tzinfo=timezone.utc),
        time_s=time_s,
        gen=RamUsage(int(before * MB), int(used * MB), peak, **heap),
        gpus=gpus,
        **fields,
    )


def device(consumed, peaked, used, index=0, quality="exact", context=0, total_used="same"):
    """A device's figures in megabytes."""
    before = used - consumed
    top = max(before, used) + peaked
    hi = {"exact": top, "bounded": top + 48, "sampled": None}[quality]
    return DeviceUsage(
        before * MB,
        used * MB,
        Peak(top * MB, None if hi is None else hi * MB, quality),
        index=index,
        name="Sim",
        used_bytes=used * MB if total_used == "same" else total_used,
        context_bytes=context * MB,
    )


HEAD = "RAM: Consumed Peaked  Used Total in 0.807s (In [4])\n"
KEPT = {"heap_before": Heap(0, 0), "heap_after": Heap(8 * MB, 120 * MB)}
CHILDREN = ChildrenUsage(0, 300 * MB, Peak(300 * MB, 400 * MB, "bounded"), count=2)
LONG = [
    (
        record(gpus=(device(2467, 1437, 5465),)),
        HEAD + "Gen:      128      0      170 MB\nGPU:     2467   1437     5465 MB",
    ),
    (record(), HEAD + "Gen:      128      0      170 MB"),
    (record(-300, 0, 5), HEAD + "Gen:     -300      0        5 MB"),
    (record(-0.3, 0.4, 5), HEAD + "Gen:        0      0        5 MB"),
    (record(1.6, 2.5, 3.5), HEAD + "Gen:        2      2        4 MB"),
    (record(123456, 234567, 345678), HEAD + "Gen:    123456  234567    345678 MB"),
    (record(0, 342, 170, quality="bounded"), HEAD + "Gen:        0    342      170 MB  (peak 512-560)"),
    (record(0, 342, 170, quality="sampled"), HEAD + "Gen:        0    342      170 MB  (peak at least)"),
    (
        record(status="error", error="ValueError"),
        HEAD + "Gen:      128      0      170 MB  failed: ValueError",
    ),
    (record(status="interrupted", error="X"), HEAD + "Gen:      128      0      170 MB  interrupted"),
    (record(**KEPT), HEAD + "Gen:      128      0      170 MB  (120 MB kept by malloc)"),
    (record(0, **KEPT), HEAD + "Gen:        0      0      170 MB"),
    (
        record(children=CHILDREN),
        HEAD + "Gen:      128      0      170 MB  (+ 2 children 300 MB, peak 300-400 MB)",
    ),
    (
        record(children=ChildrenUsage(0, 7 * MB, Peak(9 * MB, 9 * MB, "exact"), count=1)),
        HEAD + "Gen:      128      0      170 MB  (+ 1 child 7 MB, peak 9 MB)",
    ),
    (
        record(children=ChildrenUsage(7 * MB, 0, Peak(9 * MB, None, "sampled"), count=0)),
        HEAD + "Gen:      128      0      170 MB  (children ended, peak at least 9 MB)",
    ),
    (
        record(gpus=(device(1, 2, 3), device(4, 5, 6, index=1, quality="sampled"))),
        HEAD + "Gen:      128      0      170 MB\nGPU0:       1      2        3 MB\n"
        "GPU1:       4      5        6 MB  (peak at least)",
    ),
    (
        record(gpus=(device(1, 2, 3, context=500),)),
        HEAD + "Gen:      128      0      170 MB\nGPU:        1      2        3 MB  + context 500 MB",
    ),
    (
        record(gpus=(device(1, 2, 3, total_used=None),)),
        HEAD + "Gen:      128      0      170 MB\nGPU:        1      2      n/a MB",
    ),
    (
        record(notes=("The driver went away.",)),
        HEAD + "Gen:      128      0      170 MB\nThe driver went away.",
    ),
    (
        record(label="nested in In [4]", time_s=12.34567),
        "RAM: Consumed Peaked  Used Total in 12.346s (nested in In [4])\nGen:      128      0      170 MB",
    ),
]


@pytest.mark.parametrize(("given", "printed"), LONG)
def test_the_table(given, printed):
    """The long report, letter by letter."""
    assert text.report(given) == printed


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        (
            record(gpus=(device(2467, 1437, 5465),)),
            "Gen: 128/0/170 MB | GPU: 2467/1437/5465 MB | 0.807s | In [4] (Consumed/Peaked/Used Total)",
        ),
        (record(), "Gen: 128/0/170 MB | 0.807s | In [4] (Consumed/Peaked/Used Total)"),
        (
            record(0, 342, 170, quality="bounded"),
            "Gen: 0/342/170 MB  (peak 512-560) | 0.807s | In [4] (Consumed/Peaked/Used Total)",
        ),
        (
            record(status="error", error="ValueError"),
            "Gen: 128/0/170 MB | 0.807s | In [4] (Consumed/Peaked/Used Total) | failed: ValueError",
        ),
        (
            record(gpus=(device(1, 2, 3), device(-4, 5, 6, index=1))),
            "Gen: 128/0/170 MB | GPU0: 1/2/3 MB | GPU1: -4/5/6 MB | 0.807s | In [4] (Consumed/Peaked/Used Total)",
        ),
    ],
)
def test_the_line(given, printed):
    """The compact report, letter by letter."""
    assert text.report(given, compact=True) == printed


@pytest.mark.parametrize("consumed", [-12345, -1, 0, 7, 99999])
@pytest.mark.parametrize("peaked", [0, 13, 4096])
@pytest.mark.parametrize("used", [0, 170, 88888])
def test_the_rows_follow_the_contracts_f_strings(consumed, peaked, used):
    """DESIGN section 5: {consumed:5.0f}  {peaked:5.0f}    {used:5.0f} MB."""
    given = record(consumed, peaked, used, gpus=(device(consumed, peaked, used),))
    head, gen, gpu = text.report(given).split("\n")
    time_s, label = given.time_s, given.label
    assert head == f"RAM: Consumed Peaked  Used Total in {time_s:0.3f}s ({label})"
    assert gen == f"Gen:    {consumed:5.0f}  {peaked:5.0f}    {used:5.0f} MB"
    assert gpu == f"GPU:    {consumed:5.0f}  {peaked:5.0f}    {used:5.0f} MB"


def test_html_escapes_every_foreign_string():
    """A class named <script>, a label of markup, a note of markup: all of it is text."""
    hostile = "<script>alert('&')</script>"
    given = record(
        label=hostile,
        status="error",
        error=hostile,
        notes=(hostile,),
        source=hostile,
        cell_id=hostile,
        gpus=(device(1, 2, 3),),
    )
    page = render_html.report(given)
    assert "<script" not in page
    assert page.count(html.escape(hostile)) >= 3
    assert set(re.findall(r"</?(\w+)", page)) <= {
        "table", "caption", "thead", "tbody", "tr", "th", "td", "p", "details", "summary",
    }  # fmt: skip


def test_html_holds_the_same_figures_within_two_kilobytes():
    """Every figure, label and ending of the text is in the table; it stays small."""
    given = record(
        gpus=(device(2467, 1437, 5465), device(7, 8, 9, index=1, quality="bounded")),
        status="error",
        error="ValueError",
        children=CHILDREN,
        notes=("The driver went away.",),
    )
    page = render_html.report(given)
    words = html.unescape(re.sub(r"<[^>]+>", " ", page)).split()
    for figures in ("Gen 128 0 170", "GPU0 2467 1437 5465", "GPU1 7 8 9"):
        assert figures in " ".join(words)
    for word in ("Consumed", "Peaked", "Used", "0.807", "[4]", "failed:", "ValueError"):
        assert any(word in found for found in words), word
    assert "The driver went away." in page
    assert len(page.encode()) <= 2048
    assert "style" not in page


def test_a_hostile_exception_goes_through_a_real_cell_as_text(shell, capsys):
    """The rich report of a cell that raised <script>: escaped in HTML, plain in text, exact in JSON."""
    il = IPyGPULogger(report="rich").start()
    with capture_output() as caught:
        run(shell, "raise type('<script>', (Exception,), {})")
    il.stop()
    (output,) = caught.outputs
    assert set(output.data) == {"text/plain", "text/html", MIME}
    assert "failed: <script>" in output.data["text/plain"]
    assert "<script" not in output.data["text/html"]
    assert "failed: &lt;script&gt;" in output.data["text/html"]
    assert json.loads(json.dumps(output.data[MIME]))["error"] == "<script>"


def test_a_rich_report_is_one_display_of_three_kinds(shell, capsys):
    """text/plain as printed, text/html, and the record in bytes."""
    il = IPyGPULogger(report="rich").start()
    with capture_output() as caught:
        run(shell, "x = 1")
    il.stop()
    (output,) = caught.outputs
    assert output.data["text/plain"] == text.report(il.record)
    assert output.data["text/html"] == render_html.report(il.record)
    kept = json.loads(json.dumps(output.data[MIME]))
    assert kept["label"] == il.record.label
    assert kept["gen"]["after_bytes"] == il.record.gen.after_bytes
    assert kept["gen"]["peak"]["lo_bytes"] == il.record.gen.peak.lo_bytes
    assert datetime.fromisoformat(kept["started_at"]) == il.record.started_at
    assert "RAM:" not in caught.stdout


def test_without_a_gpu_it_is_said_once_at_the_start(shell, capsys, monkeypatch):
    """No GPU: one line when starting, no row in any report."""
    nvml = SimpleNamespace(
        devices=tuple,
        diagnose=lambda: SimpleNamespace(says="no NVIDIA driver"),
        take_notes=tuple,
        close=lambda: 0,
    )
    monkeypatch.setattr(machine(), "nvml", nvml)
    il = IPyGPULogger().start()
    assert capsys.readouterr().out == "No GPU here (no NVIDIA driver): general RAM only.\n"
    run(shell, "x = 1")
    out = capsys.readouterr().out
    assert labels(out)
    assert "GPU" not in out
    il.stop()


def test_a_logger_is_not_copied_but_its_records_are(shell):
    """Copying or pickling a logger says why not in one sentence; records and history go through both."""
    logger = IPyGPULogger(report="none").start()
    shell.run_cell("1", store_history=True)
    logger.stop()
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="belongs to its shell"):
            attempt(logger)
    again = pickle.loads(pickle.dumps(logger.history))
    assert list(again) == list(logger.history) == list(copy.deepcopy(logger.history))


def test_memory_in_use_is_not_called_kept():
    """Freed heap that was never resident explains nothing of what a cell holds: no remark."""
    before = Heap(10 * MB, 0)
    in_use = record(200, used=300, heap_before=before, heap_after=Heap(210 * MB, 300 * MB))
    assert "kept by malloc" not in text.report(in_use)
    kept = record(200, used=300, heap_before=before, heap_after=Heap(130 * MB, 300 * MB))
    assert "(80 MB kept by malloc)" in text.report(kept)


def test_a_cell_over_its_budget_is_marked(shell, capsys):
    """The cell whose peak went over says by how much, in text and record; one that did not says nothing."""
    il = IPyGPULogger().start()
    shell.run_cell("1", store_history=True)
    allowed_mb = il.data.gen_mem_used + 150
    il.budget = f"{allowed_mb}MB"
    shell.user_ns["blip"] = blip
    for size_mb in (300, 50):
        capsys.readouterr()
        shell.run_cell(f"blip({size_mb})", store_history=True)
        (*_, last) = capsys.readouterr().out.splitlines()
        if size_mb == 300:
            peak_mb = round(il.record.gen.peak.lo_bytes / MB)
            assert last == f"Over budget on RAM: peak {peak_mb} of {allowed_mb} MB"
            assert il.record.notes == (last,)
        else:
            assert last.startswith("Gen:")
            assert il.record.notes == ()
    il.stop()
