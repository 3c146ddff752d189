"""`ipygpulogger run` on a terminal: what a person sees while it runs, and what stays on the screen."""

import os
import re
import sys

import nbformat
import pytest
from command_line import executed, records
from terminal import Typed, on_a_terminal

pytest.importorskip("pty", reason="a terminal of the tests is a pseudo-terminal")
pytestmark = pytest.mark.linux("a console of Windows is another", "macos")


def lines_of(seen):
    return seen.text.splitlines()


def ruins(seen):
    """What is left of the line that moves."""
    return re.findall(r"[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏]|starting|writing", seen.text)


def test_something_moves_at_once(notebook):
    """While the kernel starts: what is waited for, with a sign that moves; then each cell, with its seconds."""
    seen = on_a_terminal("run", notebook("import time; time.sleep(2.5)", "2"))
    assert seen.status == 0, seen.text
    assert re.fullmatch(r".   0 s  starting the kernel", next(filter(None, seen.states)).strip())
    assert len({state for state in seen.states if "starting the kernel" in state}) > 3
    running = "\n".join(seen.states)
    for seconds in 0, 1, 2:
        assert re.search(rf"^\[1/2\] .   {seconds} s  import time", running, re.MULTILINE)


@pytest.mark.parametrize("columns", [20, 60, 240])
def test_the_screen_in_the_end(notebook, columns):
    """A line for each cell, aligned, cut off where there is no room, and where the notebook is; nothing else."""
    path = notebook("x = bytearray(b'x') * (96 << 20)", "", "x.append(1)", "del x", *["1"] * 9)
    seen = on_a_terminal("run", path, "-o", "/dev/null", columns=columns)
    assert seen.status == 0, seen.text
    lines = lines_of(seen)
    assert [line[:7] for line in lines[:12]] == [f"[{number:2}/12]" for number in range(1, 13)]
    assert all(line.endswith("…") and len(line) == columns for line in lines[:12]) == (columns == 20)
    assert not ruins(seen)
    if columns == 240:
        first, second, third, *_, last, end = lines
        assert re.fullmatch(r"\[ 1/12\]  \d\.\d\d s  RAM \+9\d MB .*→ \d+ MB +x = bytearray\(b'x'\).*", first)
        assert re.fullmatch(r"\[ 2/12\]  \d\.\d\d s  RAM .*x\.append\(1\)", second)
        assert re.fullmatch(r"\[ 3/12\]  \d\.\d\d s  RAM \u22129\d MB → \d+ MB +del x", third)
        assert first.index("x = ") == third.index("del")
        assert (len(lines), last) == (14, "executed notebook: /dev/null")
        assert re.fullmatch(r"12 cells in .* · highest RAM \d+ MB, raised by In \[1\]", end)


def test_stdout_elsewhere(notebook):
    """`run > file` on a terminal: the line that moves is on the terminal, the cells are in the file, plain."""
    seen = on_a_terminal("run", notebook("[bold]=1"), pipes_stdout=True)
    assert seen.status == 1  # bold is no variable, and no style
    assert "\x1b" not in seen.stdout
    assert re.fullmatch(
        r"\[1/1\]  \d\.\d\d s  failed: TypeError .*\[bold\]=1\n1 cell in .* · failed: In \[1\]\n", seen.stdout
    ), seen.stdout
    assert re.search(r"\[1/1\] . +0 s .*\[bold\]=1", "\n".join(seen.states))
    assert "cannot unpack non-iterable int" in seen.text


@pytest.mark.parametrize(
    ("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colours(notebook, environment, coloured):
    """On a terminal that has them, unless the user wants none; a dumb one gets no sequence at all."""
    seen = on_a_terminal("run", notebook("1 / 0"), **environment)
    assert bool(set(seen.screen.styles) - {"", "0"}) == coloured
    assert ("\x1b" in seen.written) == (environment.get("TERM") != "dumb")
    assert "ZeroDivisionError: division by zero" in seen.text


def test_a_traceback(notebook):
    """Once, below the line of its cell, without the line that moves in it."""
    seen = on_a_terminal("run", notebook("def f():\n    raise ValueError('oh')", "f()", "3"), "--show-output")
    assert seen.status == 1
    lines = lines_of(seen)
    assert re.fullmatch(r"\[2/3\]  \d\.\d\d s  failed: ValueError +f\(\)", lines[1])
    assert re.fullmatch(r" +ValueError +Traceback \(most recent call last\)", lines[2])
    assert lines.count("    ValueError: oh") == 1
    assert lines[-3] == "ipygpulogger: stopped at the cell that failed: ValueError: oh"
    assert not ruins(seen)


PRINTS = """
import sys, time
for i in range(3):
    print("epoch", i)
    for percent in range(0, 101, 20):
        print(f"\\r{percent:3}%", end="", file=sys.stderr, flush=True)
        time.sleep(0.1)
    print(file=sys.stderr)
print("no end", end="")
""".strip()


def test_what_cells_print(notebook):
    """--show-output: each line behind the mark of its cell, as it comes; a bar that is rewritten is one line."""
    seen = on_a_terminal("run", notebook(PRINTS, "'a result'", "print(2)"), "--show-output", columns=160)
    assert seen.status == 0
    marked = [line.partition(" │ ") for line in lines_of(seen) if " │ " in line]
    assert [(place, said) for place, _, said in marked] == [
        *[("[1/3]", said) for i in range(3) for said in (f"epoch {i}", "100%")],
        ("[1/3]", "no end"),
        ("[2/3]", "'a result'"),
        ("[3/3]", "2"),
    ]
    during = next(state for state in seen.states if "epoch 1" in state)
    assert "epoch 2" not in during
    assert len(lines_of(seen)) == len(marked) + 5


def whole(path, *counts):
    nb = executed(path)
    nbformat.validate(nb)
    return [cell.execution_count for cell in nb.cells] == list(counts)


@pytest.mark.parametrize(("seconds", "times"), [(0, 1), (1, 1), (1, 4)])
def test_interrupted_while_the_kernel_starts(notebook, tmp_path, kernel_of, seconds, times):
    """At most one sentence, exit 130, nothing written, no kernel left."""
    slow = "import os, runpy, time; open('pid', 'w').write(str(os.getpid())); time.sleep(4)"
    run = f"{slow}; runpy.run_module('ipykernel_launcher', run_name='__main__')"
    metadata, env = kernel_of(sys.executable, "-c", run, "-f", "{connection_file}")
    path = notebook("1", **metadata)
    typed = [Typed(f"{seconds} s  starting the kernel", times=times, pause_s=0.02)]
    seen = on_a_terminal(
        "run", path, "--log", tmp_path / "log.jsonl", typed=typed, JUPYTER_PATH=env["JUPYTER_PATH"]
    )
    assert seen.status == 130, seen.text
    said = list(filter(None, lines_of(seen)))
    assert said in ([], ["ipygpulogger: interrupted before the first cell; nothing is written"])
    assert said or seconds == 0
    assert {p.name for p in tmp_path.iterdir()} - {"pid"} == {"nb.ipynb", "share"}
    if (tmp_path / "pid").exists() and (pid := (tmp_path / "pid").read_text()):
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


@pytest.mark.parametrize("times", [1, 3])
def test_interrupted_in_a_cell(notebook, tmp_path, times):
    """The cell is marked, what ran is written, nothing of the line is left; so with an impatient user."""
    path, log = notebook("1", "import time; time.sleep(600)", "3"), tmp_path / "log.jsonl"
    typed = [Typed(r"\[2/3\] .   1 s", times=times, pause_s=0.1)]
    seen = on_a_terminal("run", path, "--log", log, typed=typed, columns=60)
    assert seen.status == 130
    assert not ruins(seen), seen.text
    assert whole(path, 1, 2, None)
    assert [record["status"] for record in records(log)][:1] == ["ok"]
    if times == 1:
        assert [record["status"] for record in records(log)] == ["ok", "interrupted"]
        lines = lines_of(seen)
        assert re.fullmatch(r"\[2/3\]  \d\.\d\d s  interrupted +import time;.*", lines[1])
        assert lines[2] == "ipygpulogger: interrupted in cell 2 of 3"


def test_interrupted_while_the_notebook_is_written(notebook, tmp_path):
    """The notebook is whole all the same."""
    path = notebook("print('x' * (1 << 20))", *("1" for _ in range(30)))
    seen = on_a_terminal("run", path, typed=[Typed(r"\[31/31\]  ", times=5, pause_s=0.02)])
    assert seen.status == 130
    assert not ruins(seen), seen.text
    assert whole(path, *range(1, 32))


def test_the_last_cell_catches_the_interrupt(notebook):
    """The run was interrupted, whatever the cell made of that."""
    path = notebook("import time\ntry: time.sleep(600)\nexcept KeyboardInterrupt: pass")
    seen = on_a_terminal("run", path, typed=[Typed(r"\[1/1\] .   1 s")])
    assert seen.status == 130
    assert whole(path, 1)
