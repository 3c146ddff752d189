"""The extension and %gpulog: what it takes, what it tells, what it leaves."""

import re
import sys

import pytest
from IPython.core.error import UsageError
from IPython.utils.capture import capture_output
from matplotlib.figure import Figure
from reports import run

import ipygpulogger
from ipygpulogger import History
from ipygpulogger.engine.machine import machine
from ipygpulogger.render import plot_data, text
from ipygpulogger.render.summary import summary

MIME = "application/vnd.ipygpulogger.v1+json"


def test_loading_starts_a_rich_logger_named_il(shell, capsys):
    """%load_ext: il runs, its report is rich, and loading again changes nothing."""
    found = []
    for code in ("%load_ext ipygpulogger\nx = 1", "%load_ext ipygpulogger", "x = 1"):
        with capture_output() as caught:
            run(shell, code)
        found += [set(output.data) for output in caught.outputs]
        il = shell.user_ns["il"]
        ipygpulogger.load_ipython_extension(shell)
        assert (il.running, il.report, shell.user_ns["il"]) == (True, "rich", il)
    assert found == [{"text/plain", "text/html", MIME}] * 2
    run(shell, "%unload_ext ipygpulogger")


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_name_of_the_users_stays_the_users(shell, capsys, when):
    """il is taken only if it is free, and given back only if it is still ours."""
    steps = ["%load_ext ipygpulogger"]
    steps.insert(when == "after", "il = 'mine'")
    for code in (*steps, "%unload_ext ipygpulogger"):
        run(shell, code)
    assert shell.user_ns["il"] == "mine"


def test_the_users_configuration_decides_for_the_extension_too(shell, capsys):
    """c.IPyGPULogger.report is what %load_ext reports with."""
    shell.config.IPyGPULogger.report = "none"
    run(shell, "%load_ext ipygpulogger")
    run(shell, "x = 1")
    assert capsys.readouterr() == ("", "")
    assert len(shell.user_ns["il"].history) == 2
    run(shell, "%unload_ext ipygpulogger")


def test_the_magic_starts_and_stops(extension, capsys):
    """%gpulog start takes options; each says in a line what it changed; the logger stays the same."""
    il = extension.user_ns["il"]
    il.report = "text"
    for said in ("ipygpulogger stopped: 1 cell recorded.\n", "ipygpulogger is stopped already.\n"):
        run(extension, "%gpulog stop")
        assert capsys.readouterr() == (said, "")
        assert not il.running
    for compact, said in ((True, "started"), (False, "goes on with compact=False")):
        run(extension, f"%gpulog start compact={compact} report=text")
        assert capsys.readouterr().out == f"ipygpulogger {said}.\n"
        run(extension, "x = 1")
        assert capsys.readouterr().out == text.report(il.record, compact=compact) + "\n"
    assert il.running


def test_status_says_whether_it_runs_with_what_and_what_is_exact(extension, capsys):
    """%gpulog status, or %gpulog alone: running or stopped, options that were changed, the state of each source."""
    for line, cells in (("%gpulog", "1 cell"), ("%gpulog status", "2 cells")):
        run(extension, line)
        first, states = capsys.readouterr().out.splitlines()[:2]
        assert first == f"running, {cells} recorded"
        assert re.match(r"RAM (exact|bounded|sampled), ", states)
        assert re.search(r", NVML \w.*, torch \w.*; reasons: %gpulog doctor$", states)
    run(extension, "%gpulog start compact=True budget=10GB")
    run(extension, "%gpulog status")
    assert "running, 4 cells recorded, budget='10GB', compact=True\n" in capsys.readouterr().out
    run(extension, "%gpulog stop")
    capsys.readouterr()
    run(extension, "%gpulog status")
    assert capsys.readouterr().out.startswith("stopped, ")


def test_a_page_is_html_where_reports_are(extension, capsys):
    """In rich mode one display, whose plain text is what is printed elsewhere."""
    with capture_output() as caught:
        run(extension, "%gpulog summary")
    (shown,) = caught.outputs
    assert set(shown.data) == {"text/plain", "text/html"}
    assert "<script" not in shown.data["text/html"]
    assert caught.stdout == ""
    run(extension, "%gpulog start report=text")
    capsys.readouterr()
    with capture_output() as caught:
        run(extension, "%gpulog summary")
    assert not caught.outputs
    assert caught.stdout.split()[0] == shown.data["text/plain"].split()[0]


COMMANDS = (
    "start, stop, status, summary, plot, panel, measure, fit, save, load, snapshot, vars, free, doctor, help"
)
REFUSED = {
    "fly": f"has no 'fly'; it has {COMMANDS}",
    "strat": f"has no 'strat' (did you mean 'start'?); it has {COMMANDS}",
    "--lines": f"has no '--lines'; it has {COMMANDS}",
    "stop now": "stop takes no options",
    "status --all": "status takes no options",
    "start fast": "write options as name=value, such as quiet='10MB 1s', not 'fast'",
    "start colour=True": "no option 'colour'",
    "start compact=yes": "compact takes True or False, not 'yes'",
    "start compact=True report=loud": "report takes 'text', 'rich', 'metadata' or 'none', not 'loud'",
    "start budget=100 MB": "write options as name=value, such as quiet='10MB 1s', not 'MB'",
    "start compact=True quiet=10MB 1s": "such as quiet='10MB 1s', not '1s'",
    "measure": "measure takes a statement, not nothing",
    "load": "load takes one path, not nothing",
    "load no/such.jsonl": "load: cannot read no/such.jsonl: no such file or directory",
    "load a.parrot": "a.parrot must be named .jsonl, .csv, .parquet or .ipynb",
    "start budget=10": "'10' has no unit: write a size such as 10GB, 512MB or 4096B",
    "start bugdet=1GB": "no option 'bugdet' (did you mean 'budget'?); it has budget, clear_cache",
    "start =": "no option ''",
    "start 'compact=True": "quot",
    "summary peak": "takes --by needed, --by consumed, --by highest or --by time, not 'peak'",
    "summary --by": "takes --by needed, --by consumed, --by highest or --by time, not '--by'",
    "summary --by=peak --by=time": "not '--by=peak --by=time'",
    "save": "save takes one path, not nothing",
    "save a.jsonl b.jsonl": "save takes one path, not 'a.jsonl b.jsonl'",
    "save no/such/folder/a.jsonl": "cannot write no/such/folder/a.jsonl: no such file or directory",
    "save a.parrot": "a.parrot",
    "snapshot no/file": "torch is not imported: run it after a cell that uses the GPU through torch",
}


@pytest.mark.parametrize("line", REFUSED)
def test_bad_words_are_a_usage_error_of_one_sentence(extension, capsys, monkeypatch, line):
    """What %gpulog does not take: UsageError that says what it takes, and nothing has changed."""
    il = extension.user_ns["il"]
    before = il.running, il.trait_values(config=True)
    monkeypatch.setitem(sys.modules, "torch", None)
    result = run(extension, f"%gpulog {line}")
    assert isinstance(result.error_in_exec, UsageError)
    sentence = str(result.error_in_exec)
    assert REFUSED[line].lower() in sentence.lower()
    assert sentence.startswith("%gpulog")
    assert "\n" not in sentence
    assert capsys.readouterr().err == f"UsageError: {sentence}\n"
    assert (il.running, il.trait_values(config=True)) == before


# -- looking and keeping --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how", ["", "--by needed", "--by=consumed", "--by highest", "--by time", "--by peak"]
)
def test_the_summary_is_of_the_cells_so_far(extension, capsys, how):
    """%gpulog summary prints the ranking that the history gives, by needed where nothing else is asked."""
    for size_mb in (1, 30, 2):
        run(extension, f"x = bytearray({size_mb} << 20)")
    history = extension.user_ns["il"].history
    by = how.replace("=", " ").split()[-1] if how else "needed"
    expected = summary(history, by)
    capsys.readouterr()
    run(extension, f"%gpulog summary {how}")
    assert capsys.readouterr().out.startswith(expected + "\n")


def test_the_plot_is_handed_back(extension, capsys):
    """%gpulog plot is the cell's result; given a name, it is shown only when asked for."""
    assert isinstance(run(extension, "%gpulog plot").result, Figure)
    assert run(extension, "fig = %gpulog plot").result is None
    assert isinstance(extension.user_ns["fig"], Figure)


def test_the_plot_in_a_terminal_is_drawn_there(extension, capsys, monkeypatch):
    """In characters, also without matplotlib; in a kernel it is a picture."""
    run(extension, "x = 1")
    history = extension.user_ns["il"].history
    capsys.readouterr()
    drawing = plot_data.drawing(history)
    run(extension, "%gpulog plot")
    assert capsys.readouterr().out.startswith(f"Out[3]: \n{drawing}\n")
    monkeypatch.setattr(extension, "kernel", None, raising=False)
    assert not hasattr(run(extension, "%gpulog plot").result, "_ipython_display_")
    monkeypatch.delattr(extension, "kernel")
    capsys.readouterr()
    drawing = plot_data.drawing(history)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    run(extension, "%gpulog plot")
    assert capsys.readouterr().out.startswith(f"\n{drawing}\n")


@pytest.mark.parametrize("name", ["run.jsonl", "two words.csv"])
def test_what_is_saved_is_the_history(extension, capsys, tmp_path, name):
    """%gpulog save: every cell so far is in the file, and how many is told."""
    run(extension, "%gpulog start log_source=True\nx = 1")
    before = list(extension.user_ns["il"].history)
    capsys.readouterr()
    run(extension, f"%gpulog save '{tmp_path / name}'")
    assert capsys.readouterr().out.startswith(f"2 cells written to {tmp_path / name}\n")
    assert list(History.load(tmp_path / name)) == before


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_what_is_loaded_is_shown_and_handed_back(extension, capsys, tmp_path, kind):
    """%gpulog load: the summary of the file, not of this session; the history can be assigned."""
    run(extension, "%gpulog start report=text log_source=True")
    run(extension, "kept = bytearray(30 << 20)")
    saved = list(extension.user_ns["il"].history)
    run(extension, f"%gpulog save '{tmp_path}/run.{kind}'")
    run(extension, "later = 1")
    capsys.readouterr()
    run(extension, f"old = %gpulog load '{tmp_path}/run.{kind}'")
    old = extension.user_ns["old"]
    assert isinstance(old, History)
    assert list(old) == saved
    assert capsys.readouterr().out == summary(old) + "\n"


@pytest.mark.parametrize("content", ["no json\nat all", '{"label": 3}\n', "[]\n"])
def test_a_damaged_file_is_refused_in_one_sentence(extension, capsys, tmp_path, content):
    """%gpulog load: what is wrong, and where; of a file with nothing in it just that."""
    (tmp_path / "nb.ipynb").write_text('{"cells": []}')
    result = run(extension, f"h = %gpulog load '{tmp_path}/nb.ipynb'")
    assert str(result.error_in_exec) == f"%gpulog load: {tmp_path}/nb.ipynb holds no record of a cell"
    path = tmp_path / "run.jsonl"
    path.write_text(content)
    result = run(extension, f"h = %gpulog load '{path}'")
    assert re.fullmatch(rf"%gpulog load: {path}, line 1: [^\n]+", str(result.error_in_exec))


# -- one statement --------------------------------------------------------------------------------


def test_a_statement_has_one_line_and_its_names_stay(either, capsys):
    """%gpulog measure: its line alone, no value, no report of the cell; the cell's record has what it used."""
    shell, il = either
    capsys.readouterr()
    out = dict(shell.user_ns["Out"])
    assert run(shell, '%gpulog measure held = bytearray(b"x") * (64 << 20); len(held)').success
    printed = capsys.readouterr()
    assert re.fullmatch(r"\d\.\d\d s · RAM \+6[345] MB\b.*→ \d+ MB\n", printed.out)
    assert printed.err == ""
    assert len(shell.user_ns["held"]) == 64 << 20
    assert shell.user_ns["Out"] == out
    ran = [round(one.gen.consumed_bytes / 2**20) for one in il.history if not one.gpulog_only]
    assert ran == ([pytest.approx(64, abs=1)] if il.running else [])
    assert len(il.history.rank()) == len(ran)


def test_a_statement_within_a_cell_is_a_part_of_it(stopped, capsys):
    """The cell has one record with all that it used, and its own report below the line."""
    shell, il = stopped
    il.start()
    capsys.readouterr()
    run(shell, "a = bytearray(b'x') * (32 << 20)\n%gpulog measure b = bytearray(b'x') * (48 << 20)\nc = 1")
    (record,) = il.history
    assert (record.gen.consumed_bytes / 2**20, record.gpulog_only) == (pytest.approx(80, abs=1), False)
    line, *report = capsys.readouterr().out.splitlines()
    assert re.search(r"RAM \+4[789] MB", line)
    assert "\n".join(report) == text.report(record)
    il.stop()


TRICKY = {
    "d = {'a': {1}, 'b': 'two words'}": ("d", {"a": {1}, "b": "two words"}),
    "d = '{x} $x'": ("d", "{x} $x"),
    "d = 'it' + \"'s\"": ("d", "it's"),
    "d = '-h', '--help'": ("d", ("-h", "--help")),
    "x += 1; d = x": ("d", 6),
}


@pytest.mark.parametrize("statement", TRICKY)
def test_a_statement_is_taken_as_it_is_written(extension, capsys, statement):
    """Quotes, braces, dollars and words that ask for help elsewhere are the statement's."""
    extension.user_ns["x"] = 5
    assert run(extension, f"%gpulog measure {statement}").success
    name, value = TRICKY[statement]
    assert extension.user_ns[name] == value


@pytest.mark.parametrize("statement", ["1 / 0", "1 +", "nosuch"])
def test_a_statement_fails_as_in_a_cell(either, capsys, statement):
    """The same error; the cell has failed of it; nothing of the measuring stays open."""
    shell, il = either
    expected = run(shell, statement)
    expected = type(expected.error_in_exec or expected.error_before_exec)
    scopes = len(machine().scopes)
    result = run(shell, f"%gpulog measure {statement}")
    assert type(result.error_in_exec) is expected
    assert "measured_cell" not in capsys.readouterr().out or expected is SyntaxError
    assert len(machine().scopes) == scopes
    if il.running:
        assert (il.history[-1].status, il.history[-1].error) == ("error", expected.__name__)


def test_other_commands_still_expand_names(extension, capsys, tmp_path):
    """%gpulog save {path}, as every magic does."""
    extension.user_ns["path"] = tmp_path / "run.jsonl"
    assert run(extension, "%gpulog save {path}").success
    assert (tmp_path / "run.jsonl").exists()
    assert run(extension, "def f(where):\n    get_ipython().run_line_magic('gpulog', 'save {where}')").success
    extension.user_ns["other"] = tmp_path / "other.csv"
    assert run(extension, "f(other)").success
    assert (tmp_path / "other.csv").exists()


# -- just this cell -------------------------------------------------------------------------------


@pytest.fixture
def stopped(extension, capsys):
    """The extension loaded, its logger stopped, and its printed form chosen; no record yet."""
    il = extension.user_ns["il"]
    run(extension, "%gpulog start report=text")
    run(extension, "%gpulog stop")
    il.history._records.clear()
    capsys.readouterr()
    return extension, il


@pytest.fixture(params=[True, False], ids=["running", "stopped"])
def either(request, stopped):
    """The same, and with the logger running; so it is afterwards."""
    shell, il = stopped
    if request.param:
        il.start()
    yield shell, il
    assert il.running == request.param


def test_just_this_cell(stopped, capsys):
    """%%gpulog with the logger stopped: this cell has a report, and none before and after it."""
    shell, il = stopped
    callbacks = {event: list(found) for event, found in shell.events.callbacks.items()}
    for code in ("x = 1", "%%gpulog\nassert il.running\nx = 2", "x = 3"):
        run(shell, code)
    assert not il.running
    assert [(r.source, r.status) for r in il.history] == [("assert il.running", "ok")]  # not our own line
    assert capsys.readouterr().out == text.report(il.record) + "\n"
    assert {event: list(found) for event, found in shell.events.callbacks.items()} == callbacks


@pytest.mark.parametrize("options", ["--label 'two words'", "--lines --label='two words'"])
@pytest.mark.parametrize("form", ["{}\nx = 1", "\n \n{}\nx = 1", "  {}\n  x = 1", ">>> {}\n>>> x = 1"])
def test_a_cell_with_a_name(stopped, capsys, options, form):
    """--label: what report and record call the cell, whatever IPython takes off before it; its number stays."""
    shell, il = stopped
    count = shell.execution_count
    assert run(shell, form.format(f"%%gpulog {options}")).success
    assert [(one.label, one.execution_count) for one in il.history] == [("two words", count)]
    assert " (two words)\n" in capsys.readouterr().out
    assert shell.user_ns["x"] == 1


CELLS = [
    *("6 * 7", "\n\n1 / 0", "def f():\n    return 1 / 0\n\nf()", "1 +", "raise SystemExit(3)"),
    *("import asyncio\nawait asyncio.sleep(0)\n'waited'", "%time 6 * 7", "!true", "%nosuch", "%%nosuch\nx"),
    *("%%time\nx = 6 * 7\nx", "%%capture out\nprint('x')", "# nothing but a comment"),
    "print('a')\nfor i in range(2):\n    print(i)\ni",
]


def seen(shell, capsys, cell):
    """What anybody can see of a cell: printed text, result, error, Out; file names, times and ours left out."""
    shell.execution_count = 50
    shell.user_ns["Out"].pop(50, None)
    result = run(shell, cell)
    error = result.error_before_exec or result.error_in_exec
    told = re.sub(r"\x1b\[[\d;]*m", "", "".join(capsys.readouterr()))
    told = re.sub(r"%%gpulog --label x|\bpass\b|[\d.]+ [nµm]?s\b|Wall time: .*|CPU times: .*", "", told)
    told = re.sub(r"\n +\d+ *(?=\n)", "", told)  # an empty line of the source
    found = result.success, type(error), str(error), result.result, shell.user_ns["Out"].get(50), told
    return [re.sub(r"ipython-input-50-\w+", "", re.sub(r" +(?=\n)", "", str(each))) for each in found]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("code", CELLS)
@pytest.mark.parametrize("running", [True, False])
def test_otherwise_it_is_an_ordinary_cell(stopped, capsys, code, running):
    """The same as with `pass` in its first line: output, result, Out, error and the traceback's lines."""
    shell, il = stopped
    il.report = "none"
    magic = code.strip().startswith("%%")
    plain = seen(shell, capsys, code.strip() if magic else f"pass\n{code}")
    if running:
        il.start()
    assert seen(shell, capsys, f"%%gpulog --label x\n{code}") == plain
    assert il.running == running
    assert [r.label for r in il.history].count("x") == 1


NO_OPTION, NO_LABEL = "unknown option", "--label takes a text"
TAKEN = "the options are --lines, --lines=NAMES, --peak, --peak=all and --label TEXT"
NOT_MEANT = {
    "--line": f"{NO_OPTION} '--line' (did you mean '--lines'?); {TAKEN}",
    "start": f"{NO_OPTION} 'start'; {TAKEN}",
    "--peak=most": f"{NO_OPTION} '--peak=most' (did you mean '--peak'?); {TAKEN}",
    "--lines f": "write --lines=f, not --lines f",
    "--lines=1": "--lines takes names such as --lines=f,Model.forward, not '1'",
    "--lines=": "--lines takes names such as --lines=f,Model.forward, not ''",
    "--lines=yes": "there is no yes yet; --lines=yes needs it before the cell runs",
    "--lines=str.nothing": "there is no str.nothing yet; --lines=str.nothing needs it before the cell runs",
    "--lines=len": "--lines measures functions and methods written in Python, and len is not one",
    "--lines=Exception": "--lines measures functions and methods written in Python, and Exception is not one",
    **dict.fromkeys(("--label", "--label --lines", "--label ''"), NO_LABEL),
    "--label 'x": "No closing quotation: --label 'x",
}
NOTHING = "%%gpulog has nothing to measure: write the cell's code below this line"
NO_CELLS = {f"%%gpulog {line}\nran = True": f"%%gpulog: {says}" for line, says in NOT_MEANT.items()}
for below in ("", "\n", "\n\n \n\t\n"):
    NO_CELLS |= {f"%%gpulog{line}{below}": NOTHING for line in ("", " --lines --label x", " --line")}


CALLED = "get_ipython().run_cell_magic('gpulog', '--label x', 'ran = True')"
for above in ("%%time\n%%gpulog", "%%prun\n%%gpulog --lines", f"{CALLED} #"):
    NO_CELLS[f"{above}\nran = True"] = "%%gpulog: write it in the first line of the cell, above other magics"


@pytest.mark.parametrize("cell", NO_CELLS)
def test_options_that_make_no_sense_run_nothing(either, capsys, cell):
    """So without code below: one UsageError of one sentence; nothing runs, no line is measured, nothing changes."""
    shell, il = either
    result = run(shell, cell)
    assert "ran" not in shell.user_ns
    if cell.startswith("%%time") and not result.error_in_exec:  # older IPython: %%time shows the error itself
        assert f"UsageError: {NO_CELLS[cell]}\n" in capsys.readouterr().err
        return
    assert isinstance(result.error_in_exec, UsageError)
    sentence = str(result.error_in_exec)
    assert sentence.startswith(NO_CELLS[cell])
    assert "\n" not in sentence
    told = [(record.error, record.label[:4], record.lines) for record in il.history]
    assert told == ([("UsageError", "In [", ())] if il.running else [])
    assert "Hits" not in capsys.readouterr().out


def test_a_cell_that_never_comes_is_not_waited_for(stopped, capsys):
    """Whoever only transforms the cell: the next one is not measured, and the logger is stopped again."""
    shell, il = stopped
    shell.transform_cell("%%gpulog\nx = 1")
    run(shell, "x = 1")
    assert (il.running, len(il.history)) == (False, 0)
    assert capsys.readouterr() == ("", "")


def test_what_cannot_be_measured_runs_all_the_same(stopped, capsys, monkeypatch):
    """Our own failure before the cell: said once, and the cell has its result."""
    shell, il = stopped
    monkeypatch.setattr("ipygpulogger.notebook.logger.CellEvents.subscribe", lambda *_, **__: 1 / 0)
    assert run(shell, "%%gpulog\n6 * 7").result == 42
    assert "could not measure a cell: ZeroDivisionError" in capsys.readouterr().err
    assert not il.running
