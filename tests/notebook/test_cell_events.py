"""IPython's events, in a shell of this process: which cells are reported, when, and as what."""

import asyncio

import pytest
from reports import REPORT, labels, run

from ipygpulogger.engine.machine import machine

MB = 2**20


@pytest.mark.parametrize("code", ["", " ", "\n \n\t"])
def test_an_empty_cell_has_no_report(shell, il, capsys, code):
    """An empty cell fires post without pre: it is nobody's cell."""
    run(shell, code)
    assert capsys.readouterr().out == ""
    assert len(il.history) == 0


def test_an_empty_cell_does_not_end_the_one_around_it(shell, il, capsys):
    """The post of a nested empty cell leaves the outer cell to its own."""
    shell.user_ns["shell"] = shell
    for empty in ("''", "'  '"):
        run(shell, f"shell.run_cell({empty}); print('still running')")
        out = capsys.readouterr().out
        assert out.index("still running") < out.index("RAM:")
        assert len(labels(out)) == 1


ERRORS = {
    "1 +": "SyntaxError",
    "  x = 1\n y = 2": "IndentationError",
    "1 / 0": "ZeroDivisionError",
    "%nosuch": "UsageError",
    "raise KeyboardInterrupt": "KeyboardInterrupt",
    "import asyncio\nraise asyncio.CancelledError": "CancelledError",
    "import sys\nsys.exit(3)": "SystemExit",
    "import asyncio\nawait asyncio.sleep(0)\n1 / 0": "ZeroDivisionError",
    "class Odd(BaseException): pass\nraise Odd": "Odd",
}


@pytest.mark.parametrize(("code", "error"), ERRORS.items())
@pytest.mark.filterwarnings("ignore:To exit:UserWarning")
def test_a_cell_that_failed_says_how(shell, il, capsys, code, error):
    """A cell that ended badly has a report and says so on its first row; the next one does not."""
    result = run(shell, code)
    assert not result.success
    (match,) = REPORT.finditer(capsys.readouterr().out)
    interrupted = error in ("KeyboardInterrupt", "CancelledError")
    ended, status = ("interrupted", "interrupted") if interrupted else (f"failed: {error}", "error")
    assert match["after"].endswith(f"  {ended}")
    assert (il.record.status, il.record.error) == (status, error)
    run(shell, "pass")
    (match,) = REPORT.finditer(capsys.readouterr().out)
    assert not match["after"]
    assert (il.record.status, il.record.error) == ("ok", None)


def test_an_await_that_is_interrupted_has_its_report(shell, il, capsys):
    """In a terminal the interrupt goes through IPython itself: post comes with an info of its own."""
    interrupt = (
        "import asyncio\ndef interrupt(): raise KeyboardInterrupt\nloop = asyncio.get_running_loop()\n"
    )
    result = run(shell, f"{interrupt}loop.call_soon(interrupt)\nawait asyncio.sleep(3600)")
    loop = shell.user_ns["loop"]
    for task in asyncio.all_tasks(loop):
        task.cancel()
        loop.run_until_complete(asyncio.wait([task]))
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    assert len(labels(capsys.readouterr().out)) == 1
    assert il.record.status == "interrupted"
    assert il.record.label == f"In [{il.record.execution_count}]"
    assert not machine().scopes


def test_the_label_is_the_cells_own_number(shell, il):
    """In [n] is what IPython itself calls the cell, failed ones and those after them included."""
    counts = [run(shell, code).execution_count for code in ("1", "", "1 +", "1 / 0", "%nosuch", "2")]
    own = sorted(set(filter(None, counts)))[-5:]
    assert [record.execution_count for record in il.history] == own
    assert [record.label for record in il.history] == [f"In [{count}]" for count in own]
    assert shell.execution_count == own[-1] + 1


def test_the_source_is_the_first_line_shortened(shell, il):
    """The record keeps the first line that is not blank, and not all of a long one."""
    run(shell, "\n\n  \nx = 1\ny = 2")
    assert il.record.source == "x = 1"
    run(shell, f"'{'a' * 10_000}';")
    assert len(il.record.source) == 120
    assert il.record.source == "'" + "a" * 119


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
    run(shell, "%%capture\nlen(b'x' * (64 << 20))")
    for record, (consumed_mb, peaked_mb) in zip(il.history, [(64, 0)] * 2 + [(0, 64)] * 2, strict=True):
        assert abs(record.gen.consumed_bytes - consumed_mb * MB) < 2 * MB
        assert abs(record.gen.peaked_bytes - peaked_mb * MB) < 2 * MB


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
