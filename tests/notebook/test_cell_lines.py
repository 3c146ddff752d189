"""The lines of cells in a real shell: which are measured, where they stand, how they are numbered and shown."""

import importlib.util
import re
import sys
import threading

import pytest
from reports import run

from ipygpulogger import IPyGPULogger
from ipygpulogger.engine.machine import machine
from ipygpulogger.notebook.cell_lines import CellLines
from ipygpulogger.render.lines import heaviest

MB = 2**20


def about(size_mb):
    return pytest.approx(size_mb, abs=2)


def tracing_state():
    """Everything of Python's tracing that anybody could find of us."""
    monitoring = getattr(sys, "monitoring", None)
    tools = [monitoring.get_tool(i) for i in range(6)] if monitoring else []
    return tools, sys.gettrace(), sys.getprofile(), threading.gettrace()


@pytest.fixture
def il(shell, capsys):
    """A logger that measures lines and says nothing; afterwards Python's tracing is as it was."""
    before = tracing_state()
    logger = IPyGPULogger(report="none", lines=True)
    shell.user_ns["il"] = logger
    run(shell, "pass")
    logger.start()
    capsys.readouterr()
    yield logger
    logger.stop()
    assert tracing_state() == before
    assert not machine().scopes


def lines(il):
    """The last record's lines: place and number, and the source."""
    return [(line.place, line.lineno, line.source, line.hits) for line in il.record.lines]


def test_what_a_loop_gives_back_is_not_held_at_once(shell, il):
    """Three times 100 MB, each dropped before the next: 300 MB consumed in all, and never more than 100 MB at once."""
    run(shell, "for i in range(3):\n    x = b'x' * (100 << 20)\n    del x\ny = b'x' * (150 << 20)\ndel y")
    found = {line.source: line for line in il.record.lines}
    line = found["x = b'x' * (100 << 20)"]
    assert (line.gen.consumed_bytes / MB, dict(line.risen)["cpu"] / MB) == (about(300), about(100))
    assert heaviest(il.record.lines).startswith("heaviest line 4: y = ")


FUNCTIONS = """import functools, shutil
def plain():
    kept = bytearray(b"x") * (30 << 20)
    return [len(kept) for _ in range(2)]
def other():
    return plain()
@functools.lru_cache
def wrapped(n):
    return bytearray(b"x") * n
class Model:
    def forward(self):
        return plain()
    @classmethod
    def make(cls):
        return cls()
model = Model()
def many():
    yield 1
    yield 2
"""
CHOSEN = {
    "plain": ("other()", {3, 4}),
    "Model.forward": ("model.forward()", {12}),
    "model.forward,plain": ("model.forward(); other()", {3, 4, 12}),
    "Model.make": ("model.make()", {15}),
    "wrapped": ("wrapped(30 << 20)", {9}),
    "many": ("list(many())", {18, 19}),
    "other": ("plain()", set()),
}


@pytest.mark.parametrize("names", CHOSEN)
def test_of_chosen_functions_the_lines_are_measured_and_no_others(shell, capsys, names):
    """%%gpulog --lines=f,Model.forward: below decorators, of methods; not the cell's own lines."""
    il = IPyGPULogger(report="none").start()
    run(shell, FUNCTIONS)
    count, (code, numbers) = shell.execution_count - 1, CHOSEN[names]
    assert run(shell, f"%%gpulog --lines={names}\n{code}\nz = 1").success
    assert {line.place for line in il.record.lines} <= {f"In [{count}]"}
    assert {line.lineno for line in il.record.lines} == numbers
    sizes = [line.gen.consumed_bytes // MB for line in il.record.lines if "(30 << 20)" in line.source]
    assert all(size == about(30 * (1 + names.count(","))) for size in sizes)
    il.stop()


def test_a_function_of_a_file_can_be_chosen(shell, capsys, tmp_path):
    """Its lines have the file's name; of two files with the same name each has its own."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "utils.py").write_text(f"\n\ndef f():\n    {folder} = 1\n    return {folder}\n")
        spec = importlib.util.spec_from_file_location(f"{folder}_utils", tmp_path / folder / "utils.py")
        shell.user_ns[folder] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(shell.user_ns[folder])
    il = IPyGPULogger(report="text").start()
    capsys.readouterr()
    run(shell, "%%gpulog --lines=a.f,b.f\na.f(); b.f()")
    places = {line.place: line.source for line in il.record.lines if "=" in line.source}
    assert sorted(places.values()) == ["a = 1", "b = 1"]
    assert "utils.py" in places
    il.stop()
    printed = capsys.readouterr().out
    assert re.search(r"utils\.py:\n.*a = 1\n", printed)
    assert re.search(r"b/utils\.py:\n.*b = 1\n", printed)


NESTED = "get_ipython().run_cell('y = 1\\nz = 2')"


@pytest.mark.parametrize(
    ("code", "own"),
    [
        ("x = 1\ny = 2", {1: "x = 1", 2: "y = 2"}),
        ("\n \n\nx = 1\n\ny = 2\n\n", {4: "x = 1", 6: "y = 2"}),
        ("%%gpulog\nx = 1", {2: "x = 1"}),
        ("\n%%gpulog --lines\n\n\nx = 1", {5: "x = 1"}),
        ("%%capture out\nx = 1\n\ny = 2", {1: "%%capture out"}),
        ("%%gpulog\n\n%%capture out\n\nx = 1", {3: "%%capture out"}),
        ("\n%%gpulog\n%%time\n\nx = 1", {3: "%%time"}),
        ("%time x = 1\n!true\ny = 2", {1: "%time x = 1", 2: "!true", 3: "y = 2"}),
        ("x = 1; y = 2", {1: "x = 1; y = 2"}),
        ("x = [\n    1,\n    int(),\n]", {1: "x = [", 3: "int(),"}),
        ("def f():\n    return 1\nf()", {1: "def f():", 2: "return 1", 3: "f()"}),
        ("import asyncio\nawait asyncio.sleep(0)\nx = 1", {1: "import asyncio", 2: "await asyncio.sleep(0)", 3: "x = 1"}),
        ("exec('a = 1\\nb = 2')", {1: "exec('a = 1\\nb = 2')"}),
        ("from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\nP(1)", {1: "from dataclasses import dataclass", 2: "@dataclass", 3: "class P:", 4: "x: int", 5: "P(1)"}),
        ("x = 1\ny = 'a\x0cb'\nz = 3", {1: "x = 1", 2: "y = 'a\x0cb'", 3: "z = 3"}),
        ("%time f\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    pass", {3: "1 / 0", 4: "except ZeroDivisionError:", 5: "pass"}),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_lines_are_numbered_and_shown_as_the_user_wrote_them(shell, il, capsys, code, own):
    """Whatever IPython takes off or makes of them; library code, `exec` and templates have none."""
    run(shell, "%load_ext ipygpulogger")
    run(shell, "f = 1")
    run(shell, code)
    run(shell, "%unload_ext ipygpulogger")
    record = il.history[-2]
    found = {line.lineno: line.source for line in record.lines}
    written = re.split("\r\n|\n", code)
    assert {number: source for number, source in found.items() if number in own} == own
    assert all(written[number - 1].strip() == source for number, source in found.items())
    assert {line.place for line in record.lines} == {""}
    below = "%%time" in code or "%%capture" in code
    assert bool([note for note in record.notes if "below another cell magic" in note]) == below


def test_functions_of_earlier_cells(shell, il):
    """Their lines stand after the cell's own, in the order of the cells, each with its cell's number."""
    while shell.execution_count < 9:
        run(shell, "pass")
    run(shell, "\n\ndef f():\n    return 1")
    run(shell, "def g():\n    f()\n    return 2")
    run(shell, "g()\ng()")
    assert lines(il) == [
        ("", 1, "g()", 1),
        ("", 2, "g()", 1),
        ("In [9]", 4, "return 1", 2),
        ("In [10]", 2, "f()", 2),
        ("In [10]", 3, "return 2", 2),
    ]


def test_a_cell_that_a_cell_runs(shell, il):
    """Its lines are not measured; the line that runs it has what it used."""
    run(shell, f"x = 1\n{NESTED}")
    assert [(line.place, line.lineno) for line in il.record.lines] == [("", 1), ("", 2)]


def test_a_cell_on_another_thread_has_its_own_lines(shell, il):
    """What another thread's cell runs meanwhile, as a subshell's, is not this cell's."""
    shell.user_ns["threading"] = threading
    run(
        shell,
        "def other():\n    get_ipython().run_cell('y = 1', store_history=True)\n"
        "t = threading.Thread(target=other)\nt.start(); t.join()",
    )
    inner, outer = il.history[-2:]
    assert [(line.place, line.source) for line in inner.lines] == [("", "y = 1")]
    assert "y = 1" not in [line.source for line in outer.lines]
    assert {line.place for line in outer.lines} == {""}


@pytest.mark.parametrize(
    "code", ["1 / 0", "def f():\n    raise SystemExit\nf()", "x = 1\n1 +", "raise KeyboardInterrupt"]
)
def test_a_failing_cell_has_the_lines_it_ran(shell, il, capsys, code):
    """The line that failed is the last one hit; of a cell that never ran there are none."""
    run(shell, code)
    assert il.record.status != "ok"
    hit = [line.source for line in il.record.lines]
    assert hit == ([] if "+" in code else [line.strip() for line in code.split("\n")])


@pytest.mark.parametrize("how", ["il.stop()", "il.stop(); il.start()"])
def test_a_logger_stopped_within_a_cell_leaves_nothing(shell, il, how):
    """Tracing ends with the logger, in the middle of a cell; the record, if any, begins anew."""
    run(shell, f"x = 1\n{how}\nx = 2")
    if il.running:
        assert lines(il)[-1][1:3] == (3, "x = 2")
    else:
        assert tracing_state()[1] is None


def test_statements_on_one_line_are_one_line(shell, il):
    """What one statement needed and the next one freed was needed by the line for a moment; it began once."""
    run(shell, "t = b'x' * (100 << 20); del t\na = b'x' * (40 << 20); b = b'x' * (50 << 20)\nc = 1; c = 2")
    freed, kept, _ = il.record.lines
    assert [line.hits for line in il.record.lines] == [1, 1, 1]
    assert (freed.gen.consumed_bytes / MB, freed.gen.peaked_bytes / MB) == (about(0), about(100))
    assert (kept.gen.consumed_bytes / MB, kept.gen.peaked_bytes / MB) == (about(90), about(0))


def test_what_is_not_understood_costs_no_record(shell, il, capsys, monkeypatch):
    """Our own failure in the lines is said once; the cell runs, and the next is measured again."""
    monkeypatch.setattr(CellLines, "result", lambda _: 1 / 0)
    before = len(il.history)
    assert run(shell, "6 * 7").result == 42
    assert "could not tell what each line used: ZeroDivisionError" in capsys.readouterr().err
    assert len(il.history) == before + 1
    monkeypatch.undo()
    run(shell, "x = 1")
    assert lines(il) == [("", 1, "x = 1", 1)]


# -- what is shown --------------------------------------------------------------------------------


def test_the_ordinary_report_names_the_heaviest_line(shell, il, capsys):
    """lines=True: one sentence below the figures, on the same line in the compact form; no table."""
    il.report = "text"
    code = "def make(n):\n    return b'x' * (n << 20)"
    run(shell, code)
    capsys.readouterr()
    run(shell, "x = 1\nkept = make(64)")
    out = capsys.readouterr().out
    assert re.search(
        r"^heaviest line 2 of In \[\d+\]: return b'x' \* \(n << 20\)  \+64 MB of RAM \(\d+\.\d\d s\)$",
        out,
        re.MULTILINE,
    )
    assert not any(line.startswith("  Line") for line in out.splitlines())
    il.compact = True
    run(shell, "del kept; kept = make(65)")
    out = capsys.readouterr().out
    assert " | heaviest line " in out
    assert out.count("\n") == 1


def test_the_whole_table_is_shown_where_it_is_asked_for(shell, il, capsys):
    """%%gpulog --lines: the table after the report, indented as in the cell, earlier cells under their numbers."""
    il.report, il.lines = "text", False
    run(shell, "def f(n):\n    if n:\n        return b'x' * (n << 20)")
    capsys.readouterr()
    run(shell, "%%gpulog --lines\nfor i in range(2):\n    f(64)\n    if i:\n        del i")
    out = capsys.readouterr().out.splitlines()
    table = [re.sub(r"^([ >] +\d+ +\d+) +[\d.]+ s +(-?\d+) +[\d-]+", r"\1 \2", line) for line in out[4:]]
    count = il.record.execution_count - 1
    assert table[1:] == [
        "     2     3 0  for i in range(2):",
        "     3     2 0      f(64)",
        "     4     2 0      if i:",
        "     5     1 0          del i",
        f"In [{count}]:",
        "     2     2 0  if n:",
        ">    3     2 128      return b'x' * (n << 20)",
    ]
    assert not il.record.notes


def test_a_magic_over_several_lines_has_ipythons_lines(shell, il, capsys):
    """Where IPython makes one line of several, lines are numbered as in its tracebacks, and shown as they run."""
    run(shell, "%time \\\n  x = 1\ny = 2\nz = 3")
    assert lines(il)[1:] == [("", 2, "y = 2", 1), ("", 3, "z = 3", 1)]
