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


@pytest.mark.linux("elsewhere the row says that the peak is bounded")
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


WITHIN = [
    "%%capture inner\nblob = b'x' * (64 << 20)",
    "blob = b'x' * (64 << 20)\nshell.run_cell('')",
    "shell.run_cell('shell.run_cell(\"1\"); blob = b\\'x\\' * (64 << 20)', store_history=True)",
    "await shell.run_cell_async('1', transformed_cell='1')\nblob = b'x' * (64 << 20)",
    "shell.run_cell('1 / 0')\nblob = b'x' * (64 << 20)",
]


@pytest.mark.parametrize("code", WITHIN)
def test_a_cell_within_a_cell_is_a_part_of_it(shell, il, capsys, code):
    """However it is run, it has no record; its memory is the outer cell's, whose report comes at the end."""
    shell.user_ns["shell"] = shell
    count = run(shell, code).execution_count
    assert labels(capsys.readouterr().out) == [f"In [{il.record.execution_count}]"]
    assert (il.record.source, len(il.history)) == (code.partition("\n")[0], 1)
    assert il.record.execution_count == count or "store_history" in code
    assert abs(il.record.gen.consumed_bytes - 64 * MB) < 2 * MB
    assert not machine().scopes
    del shell.user_ns["blob"]


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
