"""The lines that `ipygpulogger run` prints of cells, from records made by hand: in columns, in the report's words."""

import re
from dataclasses import replace

import pytest
from command_line import MB, command, made
from nbformat.v4 import new_output
from sessions import gpu, ram

from ipygpulogger.cli.progress import Columns, Progress, Transcript, _collapsed
from ipygpulogger.records import MIME, Note, OutOfMemory

GB = 1024 * MB


def device(before_gb, after_gb, peak_gb, used_gb):
    sizes_mb = (round(1024 * size_gb) for size_gb in (before_gb, after_gb, peak_gb))
    return gpu(*sizes_mb, total_bytes=16 * GB, used_bytes=round(used_gb * GB))


def told(capsys, *cells, count=None, traceback=()):
    """What is printed of cells: each a record and its source."""
    progress = Progress()
    transcript = Transcript(progress, shows_output=False)
    for number, (record, source) in enumerate(cells, 1):
        transcript.begin(number, count or len(cells), source)
        transcript.end(record and replace(record, source=source.partition("\n")[0]), traceback)
    progress.close()
    return capsys.readouterr()


def test_the_line_of_a_cell(capsys):
    """As the issue has it: place, time, what moved, used of total, first line; in columns."""
    quiet = replace(made(), time_s=0.3, gen=ram(468, 468), gpus=(device(4, 4, 4, 4.5),))
    trained = replace(made(), time_s=12.4, gen=ram(468, 475), gpus=(device(4, 6.4, 7.6, 6.4),))
    loaded = replace(made(), time_s=125.0, gen=ram(475, 1475), gpus=())
    freed = replace(made(), time_s=0.021, gen=ram(475, 475), gpus=(device(6.4, 4, 6.4, 4.5),))
    out = told(
        capsys,
        (quiet, "import torch\nimport numpy"),
        (trained, "for batch in loader:\n    step(batch)"),
        (loaded, "df = read()"),
        (freed, "del model"),
        (None, "2"),
        count=21,
    ).out
    assert out.splitlines() == [
        "[ 1/21]  0.30 s  GPU 4.5 of 16 GB                import torch",
        "[ 2/21]  12.4 s  GPU +2.4 GB, needed 3.6 → 6.4 of 16 GB  for batch in loader:",
        "[ 3/21]  2 min 5 s  RAM +1.0 GB → 1.4 GB                    df = read()",
        "[ 4/21]     0.02 s  GPU \u22122.4 GB → 4.5 of 16 GB              del model",
        "[ 5/21]     0.00 s  not measured                            2",
    ]


def test_what_there_is_no_room_for():
    """The lesser memories of a cell are left out; one that is long pushes its source aside."""
    many = [f"cuda:{index} +1.0 GB → 5.0 of 16 GB" for index in range(4)]
    line = Columns(1).line(1, "1.00 s", many, "load()")
    assert line == "[1/1]  1.00 s  cuda:0 +1.0 GB → 5.0 of 16 GB   load()"
    assert Columns(1).line(1, "1.00 s", [many[0] * 3], "load()").endswith("16 GB  load()")


def test_a_failed_cell(capsys):
    """Its line says so; traceback and the report of a failed allocation are on stderr, the traceback without colours."""
    card = OutOfMemory("cuda:0", 8000 * MB, 3000 * MB, 12000 * MB, 0, 0, None, 0, 0, (), "Do this.")
    cell = replace(made(), status="error", error="OutOfMemoryError", out_of_memory=card)
    rule = "\x1b[31m" + "-" * 75 + "\x1b[39m"
    lines = ["\x1b[31mOutOfMemoryError\x1b[39m: no\x1b[2J", "", "  room"]
    out, err = told(capsys, (cell, "step()"), traceback=[rule, "\n".join(lines)])
    assert re.fullmatch(r"\[1/1\]  1\.00 s  failed: OutOfMemoryError .* step\(\)\n", out)
    assert err.splitlines()[:4] == ["    OutOfMemoryError: no?[2J", "", "      room", ""]
    assert err.splitlines()[4].startswith("Out of memory on cuda:0")
    assert err.splitlines()[5] == "  -> Do this."


def test_columns_after_a_failed_cell(capsys):
    """How a cell failed may push its own source aside, and no other's: those before and after are in one column."""
    quiet = replace(made(), gen=ram(468, 468))
    failed = replace(
        quiet, gen=ram(468, 900), status="error", error="AVeryLongNameOfAnErrorThatSomebodyChose"
    )
    out = told(capsys, (quiet, "a = 1"), (failed, "step()"), (quiet, "b = 2")).out
    first, second, third = out.splitlines()
    assert first.index("a = 1") == third.index("b = 2")
    assert "failed: AVeryLong" in second


def test_a_cell_is_named_by_what_it_does(capsys):
    """Not by an import, comment, magic or bare `try:`, neither while it runs nor after."""
    source = "# load\nimport os\ntry:\n    data = load()"
    assert "data = load()" in told(capsys, (None, source)).out
    cell = replace(made(source="# load"), main_line="data = load()")
    assert told(capsys, (cell, source)).out.rstrip().endswith("  data = load()")


def test_the_notebooks_own_budget(notebook):
    """`budget` of the notebook marks the cell's line and the last line; it fails no run."""
    done = command(
        "run", notebook("%gpulog start budget=150MB", "x = b'x' * (200 << 20)", "%gpulog start budget=9GB\n1")
    )
    assert done.returncode == 0
    *cells, last = done.stdout.splitlines()
    assert ["  over budget · RAM +200 MB → " in line for line in cells] == [False, True, False]
    assert last.endswith(" · over budget: In [2]")


def test_an_interrupted_cell_needs_no_traceback(capsys):
    """The line says that it was interrupted."""
    cell = replace(made(), status="interrupted", error="KeyboardInterrupt")
    out, err = told(capsys, (cell, "step()"), traceback=["Traceback"])
    assert "  interrupted" in out
    assert err == ""


def test_outputs(capsys):
    """Complete lines as they come, each stream on its own; results as text; no report of ours, no page of HTML."""
    transcript = Transcript(Progress(), shows_output=True)
    transcript.begin(1, 2, "f()")
    transcript.output(new_output("stream", name="stdout", text="a\nb"))
    assert capsys.readouterr() == ("[1/2] │ a\n", "")
    transcript.output(new_output("stream", name="stderr", text="w\n"))
    transcript.output(new_output("stream", name="stdout", text="c\x1b[1m\x1b[2K\x1b]0;t\x07\n"))
    assert capsys.readouterr() == ("[1/2] │ bc?[2K?]0;t?\n", "[1/2] │ w\n")
    transcript.output(new_output("stream", name="stdout", text="no end"))
    for bundle in (
        {"text/plain": "1\n2", "text/html": "<b>"},
        {"text/plain": "report", MIME: {}},
        {"text/plain": "In [1]: 5 s so far | Gen: 0/0/1 MB", "text/html": "live"},
        {"image/png": "x"},
    ):
        transcript.output(new_output("display_data", bundle))
    transcript.output(new_output("error", ename="E", evalue="", traceback=["E"]))
    assert capsys.readouterr() == ("[1/2] │ no end\n[1/2] │ 1\n[1/2] │ 2\n", "")


REWRITTEN = {"plain": "plain", "\r 10%\r 20%": " 20%", "50%\rdone": "done", "50%\r": "50%"}


@pytest.mark.parametrize(("line", "shown"), REWRITTEN.items())
def test_a_line_that_is_rewritten(line, shown):
    """What a terminal would show in the end."""
    assert _collapsed(line) == shown


def test_little_ram_is_said_at_once(capsys):
    """Below the line, on stderr: the next cell may be killed; other notes are in the notebook."""
    said = Note.read("RAM left: 54 MB of 300 MB (container limit); this cell needs 70 MB")
    printed = told(capsys, (made(notes=("a note", said)), "x = 1"), (made(), "y = 1"))
    assert printed.err == f"    {said}\n"
