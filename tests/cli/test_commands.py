"""The command line as a user meets it: a process of its own, a real kernel, real files."""

import contextlib
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from types import ModuleType

import nbclient
import nbformat
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import ipygpulogger
from ipygpulogger import History
from ipygpulogger.cli import execution, main
from ipygpulogger.cli.execution import displayed_record
from ipygpulogger.cli.run import _over_budget
from ipygpulogger.engine.machine import Machine
from ipygpulogger.records import MIME, CellRecord, DeviceUsage, Peak, RamUsage
from ipygpulogger.records.embed import LIMIT_BYTES, embedded
from ipygpulogger.render import page as pages
from ipygpulogger.sources import Framework

MB = 2**20


def command(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "ipygpulogger.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        **options,
    )


@pytest.fixture
def notebook(tmp_path):
    """Write a notebook of these cells; its path."""

    def write(*sources, name="nb.ipynb", **metadata):
        cells = [nbformat.v4.new_code_cell(source) for source in sources]
        nb = nbformat.v4.new_notebook(cells=cells, metadata=metadata)
        path = tmp_path / name
        nbformat.write(nb, path)
        return path

    return write


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_run_reports_every_cell(notebook, tmp_path):
    """Each cell's report is printed, logged and kept in the executed notebook; the original is untouched."""
    path = notebook("x = bytearray(b'x') * (96 << 20)", "len(b'x' * (200 << 20))", "", "del x")
    before = path.read_bytes()
    log = tmp_path / "log.jsonl"
    done = command("run", path, "--log", log)
    assert done.returncode == 0, done.stderr
    consumed = [round((r["gen"]["after_bytes"] - r["gen"]["before_bytes"]) / MB) for r in records(log)]
    assert consumed == [96, 0, -96]
    peak = records(log)[1]["gen"]["peak"]
    assert abs(peak["lo_bytes"] - records(log)[1]["gen"]["before_bytes"] - 200 * MB) <= 2 * MB
    assert [r["label"] for r in records(log)] == ["In [1]", "In [2]", "In [3]"]
    assert done.stdout.count("RAM: Consumed Peaked") == 3
    assert "In [3]: del x" in done.stdout
    assert "Traceback" not in done.stderr
    assert path.read_bytes() == before
    executed = nbformat.read(path.with_name("nb.executed.ipynb"), as_version=4)
    nbformat.validate(executed)
    reports = [o for cell in executed.cells for o in cell.outputs if o.output_type == "display_data"]
    assert len(reports) == 3
    assert {"text/plain", "text/html", "application/vnd.ipygpulogger.v1+json"} == set(reports[0].data)


def test_run_leaves_nothing_else(notebook, tmp_path):
    """Two files more beside the notebook, and no other: no socket, no temporary file."""
    path = notebook("1")
    done = command("run", path, "--log", tmp_path / "log.jsonl", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["log.jsonl", "nb.executed.ipynb", "nb.ipynb"]


@pytest.mark.parametrize("cells", [[], ["markdown"], ["raw", "markdown"], ["code", "code"]])
@pytest.mark.parametrize("budget", [[], ["--max-ram", "1GB"]])
def test_a_notebook_without_code(tmp_path, capsys, cells, budget):
    """It is said, all that was asked for is written, and nothing failed: exit 0; old outputs are gone."""
    v4 = nbformat.v4
    made = {"markdown": v4.new_markdown_cell, "raw": v4.new_raw_cell, "code": v4.new_code_cell}
    nb = v4.new_notebook(cells=[made[kind](" \n" if kind == "code" else "words") for kind in cells])
    for cell in nb.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [v4.new_output("stream", text="old")], 7
    path, log, page = tmp_path / "nb.ipynb", tmp_path / "log.jsonl", tmp_path / "page.html"
    nbformat.write(nb, path)
    assert main(["run", str(path), "--log", str(log), "--html", str(page), *budget]) == 0
    said = f"{path} has no cell with code, so there is nothing to measure"
    out, err = capsys.readouterr()
    assert (out, err.splitlines().count(f"ipygpulogger: {said}")) == ("", 1)
    assert "left no record" not in err
    assert log.read_text() == ""
    assert f"<strong>{said}</strong>" in page.read_text(encoding="utf-8")
    executed = nbformat.read(tmp_path / "nb.executed.ipynb", as_version=4)
    assert [cell.cell_type for cell in executed.cells] == cells
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in executed.cells)


def test_parameters_are_code(tmp_path):
    """A parameter makes a cell of code: a notebook without another one is measured like any."""
    path = tmp_path / "nb.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("words")]), path)
    done = command("run", path, "-p", "x", "1")
    assert (done.returncode, "no cell with code" in done.stderr) == (0, False)
    assert "In [1]: # Parameters" in done.stdout


def test_the_notebook_runs_in_its_own_folder_and_numbering(notebook):
    """As in Jupyter: relative paths, In [1] first, and a notebook that loads the extension itself is fine."""
    path = notebook("%load_ext ipygpulogger", "import os; print(sorted(os.listdir('.')), il.running)")
    done = command("run", path)
    assert done.returncode == 0, done.stderr
    executed = nbformat.read(path.with_name("nb.executed.ipynb"), as_version=4)
    first, second = executed.cells
    assert [cell.execution_count for cell in executed.cells] == [1, 2]
    assert [o.output_type for o in first.outputs] == ["display_data"]
    assert second.outputs[0].text == "['nb.ipynb'] True\n"


def tracebacks_of_ours(stderr):
    """Those through the package: ipykernel may print one of its own while it shuts down."""
    return [told for told in stderr.split("Traceback")[1:] if str(Path(ipygpulogger.__file__).parent) in told]


def test_a_failing_cell(notebook, tmp_path):
    """Its numbers and those before it are kept, it is marked, the rest is not run: exit 1."""
    path, log = notebook("a = 1", "raise ValueError('oh')", "b = 2"), tmp_path / "log.jsonl"
    done = command("run", path, "--log", log)
    assert done.returncode == 1
    assert [(r["status"], r["error"]) for r in records(log)] == [("ok", None), ("error", "ValueError")]
    assert "failed: ValueError" in done.stdout
    assert "stopped at the cell that failed: ValueError: oh" in done.stderr
    assert not tracebacks_of_ours(done.stderr)
    executed = nbformat.read(path.with_name("nb.executed.ipynb"), as_version=4)
    assert [cell.execution_count for cell in executed.cells] == [1, 2, None]


def test_an_error_without_a_message(notebook):
    """Only the class of the error is named."""
    done = command("run", notebook("raise ValueError"))
    assert done.returncode == 1
    assert "stopped at the cell that failed: ValueError\n" in done.stderr


def test_a_cell_that_may_fail(notebook):
    """The tag raises-exception means what it means elsewhere."""
    path = notebook("raise ValueError", "2")
    nb = nbformat.read(path, as_version=4)
    nb.cells[0].metadata["tags"] = ["raises-exception"]
    nbformat.write(nb, path)
    done = command("run", path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("RAM:") == 2


def test_a_kernel_that_dies(notebook, tmp_path):
    """What was measured before is kept, and it says which cell it was: exit 1."""
    path, log = notebook("1", "import os; os._exit(7)"), tmp_path / "log.jsonl"
    done = command("run", path, "--log", log)
    assert done.returncode == 1
    assert "the kernel died while it ran cell 2 of 2" in done.stderr
    assert not tracebacks_of_ours(done.stderr)
    assert len(records(log)) == 1
    assert path.with_name("nb.executed.ipynb").exists()


def test_interrupted(notebook, tmp_path):
    """Ctrl-C keeps what was measured so far, the interrupted cell included: exit 130, no traceback."""
    path, log = notebook("1", "import time; time.sleep(600)"), tmp_path / "log.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-m", "ipygpulogger.cli", "run", str(path), "--log", str(log)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline_s = time.monotonic() + 60
    while not (log.exists() and log.read_text()):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert not tracebacks_of_ours(stderr)
    assert [record["status"] for record in records(log)] == ["ok", "interrupted"]
    assert path.with_name("nb.executed.ipynb").exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "there is no notebook"),
        ("", "no JSON"),
        ("print(1)", "no JSON"),
        ("[1, 2]", "names no nbformat"),
        ('{"cells": []}', "names no nbformat"),
        (
            '{"nbformat": 4, "nbformat_minor": 5, "cells": [{"cell_type": "nonsense"}], "metadata": {}}',
            "broken notebook",
        ),
        ('{"nbformat": 4, "nbformat_minor": 5, "metadata": {}}', "broken notebook"),
        ('{"nbformat": 99, "nbformat_minor": 0, "cells": [], "metadata": {}}', "broken notebook"),
        (b"\xff\xfe\x00", "cannot be read"),
    ],
)
def test_not_a_notebook(tmp_path, content, says):
    """A missing, broken or foreign file: one sentence, exit 2, nothing written."""
    path = tmp_path / "x.ipynb"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    files = sorted(tmp_path.iterdir())
    done = command("run", path, "--log", tmp_path / "log.jsonl")
    assert done.returncode == 2
    assert done.stdout == ""
    assert says in done.stderr
    assert done.stderr.startswith("ipygpulogger: ")
    assert len(done.stderr.splitlines()) == 1
    assert sorted(tmp_path.iterdir()) == files


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({"kernelspec": {"name": "nope", "language": "python", "display_name": "?"}}, "not installed here"),
        ({"kernelspec": {"name": "ir", "language": "R", "display_name": "R"}}, "written in R"),
        ({"kernelspec": {"name": "nope", "language": "Python", "display_name": "?"}}, "not installed here"),
        ({"kernelspec": {"name": "nope", "language": "", "display_name": "?"}}, "not installed here"),
    ],
)
def test_no_such_kernel(notebook, metadata, says, tmp_path):
    """A kernel that is not here, or of another language: one sentence, exit 2, nothing written."""
    path = notebook("1", **metadata)
    done = command("run", path, "--log", tmp_path / "log.jsonl")
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["nb.ipynb"]


@pytest.fixture
def bare_kernel(tmp_path):
    """A kernel whose Python cannot import the package: its metadata, and the environment that offers it."""
    shadow, spec = tmp_path / "shadow", tmp_path / "share" / "kernels" / "bare"
    shadow.mkdir()
    (shadow / "ipygpulogger.py").write_text("raise ImportError('not this one')")
    spec.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel = {"argv": argv, "display_name": "bare", "language": "python", "env": {"PYTHONPATH": str(shadow)}}
    (spec / "kernel.json").write_text(json.dumps(kernel))
    metadata = {"kernelspec": {"name": "bare", "language": "python", "display_name": "bare"}}
    return metadata, {**os.environ, "JUPYTER_PATH": str(tmp_path / "share")}


def test_a_kernel_without_us(notebook, bare_kernel):
    """A kernel whose Python cannot import the package: one sentence with the command that fixes it."""
    metadata, env = bare_kernel
    path = notebook("1", **metadata)
    done = command("run", path, env=env)
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot load ipygpulogger (not this one)" in done.stderr
    assert "pip install ipygpulogger" in done.stderr
    assert not path.with_name("nb.executed.ipynb").exists()


@pytest.mark.parametrize("option", ["--output", "--log"])
def test_places_that_cannot_be_written(notebook, tmp_path, option):
    """The notebook itself, a folder, or a folder that is not there: said before anything runs."""
    path = notebook("open('ran', 'w')")
    for target, says in (
        (path, "the notebook itself"),
        (tmp_path, "a folder"),
        (tmp_path / "no" / "x", "no folder"),
    ):
        done = command("run", path, option, target)
        assert (done.returncode, done.stdout) == (2, "")
        assert says in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["nb.ipynb"]


def test_without_the_run_extra(notebook, monkeypatch, capsys):
    """Without nbclient: one sentence with the command that installs it."""
    monkeypatch.setitem(sys.modules, "nbclient", None)
    assert main(["run", str(notebook("1"))]) == 2
    assert "pip install 'ipygpulogger[run]'" in capsys.readouterr().err


# -- what run also writes, and when it fails ----------------------------------------------------------


def test_the_page(notebook, tmp_path):
    """--html: one page with every cell's report and whole source, escaped; it says why the run ended early."""
    path = notebook("a = '<b>'\nb = 2", "raise ValueError('<i>')", name="my <nb>.ipynb")
    page = tmp_path / "page.html"
    done = command("run", path, "--html", page)
    assert done.returncode == 1, done.stderr
    text = page.read_text(encoding="utf-8")
    assert "<h1>my &lt;nb&gt;</h1>" in text
    assert "a = &#x27;&lt;b&gt;&#x27;\nb = 2" in text
    assert "stopped at the cell that failed: ValueError: &lt;i&gt;" in text
    assert text.count("<section>") == 2
    assert "<b>" not in text
    assert "<script" not in text


def test_the_ids_are_the_notebooks(notebook, tmp_path):
    """The log and the executed notebook name each cell as the notebook does, so that runs can be compared."""
    path, log = notebook("1", "2"), tmp_path / "log.jsonl"
    assert command("run", path, "--log", log).returncode == 0
    ids = [cell.id for cell in nbformat.read(path, as_version=4).cells]
    assert [record["cell_id"] for record in records(log)] == ids
    executed = nbformat.read(path.with_name("nb.executed.ipynb"), as_version=4)
    assert [
        cell.outputs[-1].data["application/vnd.ipygpulogger.v1+json"]["cell_id"] for cell in executed.cells
    ] == ids


@pytest.mark.parametrize("minor", [4, 5])
def test_cells_without_ids(notebook, tmp_path, minor):
    """An old notebook, or a new one without ids, runs without a warning; two runs have every cell in common."""
    path = notebook("1", "2", "2")
    nb = json.loads(path.read_text())
    nb["nbformat_minor"] = minor
    for cell in nb["cells"]:
        del cell["id"]
    path.write_text(json.dumps(nb))
    logs = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for log in logs:
        done = command("run", path, "--log", log)
        assert (done.returncode, len(done.stderr.splitlines())) == (0, 1), done.stderr
    compared = command("compare", *logs)
    assert "of 3 cells" in compared.stdout
    assert compared.stdout.count("(matched by its first line, which 2 cells share)") == 2
    assert "new: " not in compared.stdout


def test_a_reader_of_run_that_has_seen_enough(notebook, tmp_path):
    """`run --log | head -1`: each cell that ran is in the log, and no traceback."""
    log = tmp_path / "log.jsonl"
    words = [
        sys.executable,
        "-m",
        "ipygpulogger.cli",
        "run",
        str(notebook("1", "2")),
        "--log",
        str(log),
    ]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    stderr = process.stderr.read()
    process.stderr.close()
    process.wait(timeout=60)
    assert not tracebacks_of_ours(stderr)
    assert [record["label"] for record in records(log)] == ["In [1]"]


def test_a_budget_of_ram(notebook, tmp_path):
    """--max-ram: the whole notebook runs, each cell over it is named with its excess, all is kept: exit 1."""
    path, log = notebook("1", "len(b'x' * (300 << 20))", "2"), tmp_path / "log.jsonl"
    done = command("run", path, "--log", log, "--max-ram", "256MB")
    assert done.returncode == 1
    (said,) = [line for line in done.stderr.splitlines() if "peaked" in line]
    peak = records(log)[1]["gen"]["peak"]["lo_bytes"]
    assert said == (
        f"ipygpulogger: In [2]: len(b'x' * (300 << 20)): peaked at {round(peak / MB)} MB in RAM,"
        f" {round(peak / MB - 256)} MB over --max-ram 256 MB"
    )
    assert len(records(log)) == 3
    assert path.with_name("nb.executed.ipynb").exists()
    assert command("run", path, "--max-ram", "100GB", "--max-gpu", "1GB").returncode == 0


@pytest.mark.torch
def test_a_budget_of_gpu_memory(notebook, kernel_env):
    """--max-gpu: the process's own peak on each device, its context of 500 MB included, to the byte."""
    path = notebook(
        "import torch",
        "torch.empty(600 << 20, dtype=torch.uint8, device='cuda'); _ = None",
        "torch.empty(512 << 20, dtype=torch.uint8, device='cuda:1'); _ = None",
    )
    done = command("run", path, "--max-gpu", "1050MB", env=kernel_env)
    assert done.returncode == 1, done.stderr
    (said,) = [line for line in done.stderr.splitlines() if "peaked" in line]
    assert said.endswith("peaked at 1100 MB on cuda:0, 50 MB over --max-gpu 1050 MB")
    assert command("run", path, "--max-gpu", "1100MB", env=kernel_env).returncode == 0


def test_a_budget_nobody_can_judge():
    """A device that the process uses, nobody knows how much of: no silent pass."""
    device = DeviceUsage(0, 0, Peak(0, None, "sampled"), index=0, name="x", backend="nvml", attributed=False)
    cell = made(gpus=(device,))
    (said,) = _over_budget([cell], None, 1)
    assert "--max-gpu cannot be judged on nvml:0" in said
    assert list(_over_budget([cell], None, None)) == []


def test_cells_without_a_record(notebook):
    """A notebook that stops the logger is told; a budget that cannot be judged is not kept: exit 1."""
    path = notebook("%gpulog stop", "1", "2")
    done = command("run", path, "--max-ram", "100GB")
    assert done.returncode == 1, done.stderr
    assert "3 cells left no record" in done.stderr
    assert "no budget can be judged there" in done.stderr
    done = command("run", path)
    assert done.returncode == 0, done.stderr
    assert "3 cells left no record" in done.stderr


@pytest.mark.parametrize(
    "before",
    [
        "il.report = 'text'",
        "il.report = 'none'; get_ipython = json = None",
        "get_ipython().run_cell('1', store_history=True); il = None",
    ],
)
def test_records_whatever_the_notebook_does(notebook, tmp_path, before):
    """A silenced report, shifted counts, shadowed names: every cell's record, and the budget sees its peak."""
    path = notebook(before, "len(b'x' * (300 << 20))", "1 / 0", "2")
    nb = nbformat.read(path, as_version=4)
    nb.cells[2].metadata["tags"] = ["raises-exception"]
    nbformat.write(nb, path)
    log = tmp_path / "log.jsonl"
    done = command("run", path, "--log", log, "--max-ram", "256MB")
    assert done.returncode == 1, done.stderr
    assert "left no record" not in done.stderr
    assert done.stderr.count("over --max-ram 256 MB") == 1
    assert [r["cell_id"] for r in records(log)] == [cell.id for cell in nb.cells]
    assert [r["status"] for r in records(log)] == ["ok", "ok", "error", "ok"]
    assert done.stdout.count("RAM: Consumed Peaked") == 4


def test_old_outputs_are_not_new(notebook, tmp_path):
    """A run that ends early leaves no outputs, counts or records of an earlier one."""
    path = notebook("1 / 0", "2")
    nb = nbformat.read(path, as_version=4)
    nb.cells[0].metadata["tags"] = ["raises-exception"]
    nbformat.write(nb, path)
    old = tmp_path / "old.ipynb"
    assert command("run", path, "--output", old).returncode == 0
    nb = nbformat.read(old, as_version=4)
    assert len(History.load(old)) == 2
    nb.cells[0].metadata["tags"] = []
    nbformat.write(nb, old)
    assert command("run", old).returncode == 1
    executed = nbformat.read(old.with_name("old.executed.ipynb"), as_version=4)
    assert (executed.cells[1].execution_count, executed.cells[1].outputs) == (None, [])
    assert [record.status for record in History.load(old.with_name("old.executed.ipynb"))] == ["error"]


@given(st.integers(1, 2000))
def test_the_records_limit_holds_with_the_id(size):
    """The cell's name that run adds lifts no record above two kilobytes, and what was left out stays named."""
    cut = made(notes=("a note",) * 20, error="é" * size)
    values = embedded(cut)
    cell = nbformat.v4.new_code_cell(execution_count=1)
    cell.id = "i" * 64
    cell.outputs = [nbformat.v4.new_output("display_data", {"text/plain": "it", MIME: values})]
    record, plain = displayed_record(cell)
    kept = cell.outputs[0].data[MIME]
    assert len(json.dumps(kept, separators=(",", ":"))) <= LIMIT_BYTES
    assert (kept["cell_id"], record.cell_id, plain) == (cell.id, cell.id, "it")
    assert set(values.get("left_out", ())) <= set(kept.get("left_out", ()))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no full disk to offer")
def test_a_full_disk(notebook, tmp_path):
    """A log or a page that cannot be written is said once, costs nothing else, and is no success."""
    path = notebook("1", "2")
    for option in ("--log", "--html"):
        done = command("run", path, option, "/dev/full")
        assert done.returncode == 1
        assert done.stderr.count("/dev/full could not be written: No space left on device") == 1
        assert done.stdout.count("In [") >= 2
        assert not tracebacks_of_ours(done.stderr)
    done = command("run", path, "--output", "/dev/full", "--log", tmp_path / "log.jsonl")
    assert (done.returncode, len(records(tmp_path / "log.jsonl"))) == (1, 2)


def test_a_cell_that_takes_too_long(notebook, tmp_path):
    """--timeout: it is interrupted, its figures are kept, the rest is not run: exit 1."""
    path, log = notebook("1", "import time; time.sleep(600)", "3"), tmp_path / "log.jsonl"
    done = command("run", path, "--log", log, "--timeout", "1")
    assert done.returncode == 1
    assert "stopped at cell 2 of 3, which ran longer than 1 s" in done.stderr
    assert [record["status"] for record in records(log)] == ["ok", "interrupted"]
    assert not tracebacks_of_ours(done.stderr)


@pytest.mark.parametrize(
    "source",
    [
        "import time, signal; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)",
        "import time\ntry: time.sleep(600)\nexcept KeyboardInterrupt: pass",
    ],
    ids=["deaf", "caught"],
)
def test_a_cell_that_minds_no_interrupt(notebook, source, monkeypatch, capsys):
    """One that is deaf loses its kernel after a while; one that catches the interrupt is the last all the same."""
    monkeypatch.setattr(execution, "_GRACE_S", 1)
    path = notebook(source, "open('ran', 'w')")
    assert main(["run", str(path), "--timeout", "1"]) == 1
    assert "stopped at cell 1 of 2, which ran longer than 1 s" in capsys.readouterr().err
    assert not path.with_name("ran").exists()
    assert path.with_name("nb.executed.ipynb").exists()


def test_another_kernel(notebook, bare_kernel, tmp_path):
    """--kernel wins over the notebook's own; one that is not here, or not Python's, is refused."""
    foreign = {"kernelspec": {"name": "nope", "language": "python", "display_name": "?"}}
    path = notebook("1", **foreign)
    assert command("run", path, "--kernel", "python3").returncode == 0
    _, env = bare_kernel
    done = command("run", path, "--kernel", "bare", env=env)
    assert (done.returncode, "'bare' cannot load" in done.stderr) == (2, True)
    done = command("run", path, "--kernel", "gone")
    assert (done.returncode, done.stderr) == (2, "ipygpulogger: the kernel 'gone' is not installed here\n")
    spec = tmp_path / "share" / "kernels" / "ir"
    spec.mkdir()
    (spec / "kernel.json").write_text(json.dumps({"argv": ["R"], "display_name": "R", "language": "R"}))
    done = command("run", path, "--kernel", "ir", env=env)
    assert (done.returncode, "speaks R" in done.stderr) == (2, True)


def test_parameters(notebook, tmp_path):
    """-p and -f: a cell after the tagged one, typed as papermill does, dashes and all; -p wins; numbering as it is."""
    path = notebook(
        "lr = 1.0; name = 'a'; n = 0", "assert (lr, name, n) == (-1e-3, '--fast', 7), (lr, name, n)"
    )
    nb = nbformat.read(path, as_version=4)
    nb.cells[0].metadata["tags"] = ["parameters"]
    nbformat.write(nb, path)
    values = tmp_path / "values.yaml"
    values.write_text("lr: 5\nn: 7\n")
    done = command("run", path, "-p", "lr", "-1e-3", "--parameters", "name", "--fast", "-f", values)
    assert done.returncode == 0, done.stderr
    executed = nbformat.read(path.with_name("nb.executed.ipynb"), as_version=4)
    assert executed.cells[1].metadata["tags"] == ["injected-parameters"]
    assert executed.cells[1].source == "# Parameters\nlr = -0.001\nn = 7\nname = '--fast'"
    assert len(nbformat.read(path, as_version=4).cells) == 2


def test_parameters_nobody_expects(notebook):
    """Without a tagged cell they stand on top, and that is said."""
    path = notebook("x + 1")
    done = command("run", path, "-p", "x", "1")
    assert done.returncode == 0, done.stderr
    assert "no cell is tagged 'parameters'" in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["-p", "x"], "-p takes two words"),
        (["-p"], "-p takes two words"),
        (["-p", "a b", "1"], "no variable can be called 'a b'"),
        (["-f", "missing.yaml"], "missing.yaml cannot be read"),
        (["--max-gpu", "lots"], "'lots' is no size of memory"),
        (["--max-ram", "-1GB"], "--max-ram"),
        (["--max-ram", "10"], "argument --max-ram: '10' has no unit: write a size such as 10GB"),
        (["--max-gpu", "1.5"], "argument --max-gpu: '1.5' has no unit: write a size such as 10GB"),
        (["--timeout", "soon"], "'soon' is no number of seconds"),
        (["--timeout", "0"], "'0' is no number of seconds"),
        (["--timeout", "nan"], "'nan' is no number of seconds"),
        (["--html", "."], ". is a folder"),
        (["--html", "nb.ipynb"], "is the notebook itself"),
        (["--html", "x", "--log", "x"], "x cannot be both the log and the page"),
        (["--log", "log.json"], "the log log.json must be named .jsonl"),
        (["--log", "log.csv"], "the log log.csv must be named .jsonl"),
        (["-p5"], "-p takes two words"),
        (["--parameters=null"], "-p takes two words"),
        (['--parameters={"a":1,"b":2}'], "-p takes two words"),
        (['--parameters={"a":"1","b":"2"}'], "-p takes two words"),
        (['--parameters="ab"'], "-p takes two words"),
        (['--parameters=["a",1]'], "-p takes two words"),
        (["--parameters=" + "[" * 10**5], "-p takes two words"),
        (["--fast"], "unrecognized arguments: --fast"),
    ],
)
def test_options_that_make_no_sense(notebook, monkeypatch, capsys, words, says):
    """One sentence, exit 2, nothing run and nothing written."""
    path = notebook("open('ran', 'w')")
    monkeypatch.chdir(path.parent)
    assert refused(["run", str(path), *words], capsys, says)
    assert [p.name for p in path.parent.iterdir()] == ["nb.ipynb"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("cycle.yaml", "f: &a [*a]"),
        ("cycle.yaml", "f: &a {x: *a}"),
        ("deep.json", f'{{"f": {"[" * 600}{"]" * 600}}}'),
    ],
)
def test_parameters_without_an_end(notebook, tmp_path, capsys, name, content):
    """A value that holds itself, or lies deeper than Python reads: one sentence, exit 2, nothing written."""
    path = notebook("1")
    tmp_path.joinpath(name).write_text(content)
    assert refused(["run", path, "-f", tmp_path / name], capsys, "too deep")
    assert {p.name for p in tmp_path.iterdir()} == {"nb.ipynb", name}


def test_the_parameters_stay(notebook, tmp_path, capsys):
    """No target may be the file of parameters."""
    path, values = notebook("1"), tmp_path / "values.jsonl"
    values.write_text('{"x": 1}')
    for option in "--output", "--log", "--html":
        assert refused(["run", path, "-f", values, option, values], capsys, "the file of parameters itself")
    assert values.read_text() == '{"x": 1}'


def test_half_a_surrogate_pair(notebook, capsys):
    """What no UTF-8 can hold is refused in code, which no kernel would take; elsewhere it costs nothing."""
    path = notebook("s = 'SURROGATE'", "1")
    whole = path.read_text().replace("SURROGATE", "\\ud800")
    path.write_text(whole)
    assert refused(["run", path], capsys, "cell 1 holds half a character")
    assert [p.name for p in path.parent.iterdir()] == ["nb.ipynb"]
    nb = json.loads(whole)
    nb["cells"][0] = {"cell_type": "markdown", "id": "x", "metadata": {}, "source": "\ud800"}
    path.write_text(json.dumps(nb))
    done = command("run", path)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    executed = json.loads(path.with_name("nb.executed.ipynb").read_text(encoding="utf-8"))
    assert executed["cells"][0]["source"] in ("\ud800", ["\ud800"])


@pytest.mark.parametrize("words", [["report"], ["report", "--html", "page.html"], ["compare"]])
def test_numbers_beyond_all_sizes(tmp_path, monkeypatch, capsys, words):
    """A log whose only record has an impossible number: one sentence, exit 2, nothing written."""
    monkeypatch.chdir(tmp_path)
    huge = saved(tmp_path / "huge.jsonl", made(peak_mb=10**400))
    logs = [huge, huge] if words == ["compare"] else [huge]
    says = "gen.peak.lo_bytes is a number that no machine can have measured; it is left out"
    assert refused([words[0], *logs, *words[1:]], capsys, says)
    assert [p.name for p in tmp_path.iterdir()] == ["huge.jsonl"]


@pytest.mark.parametrize("words", [["report"], ["report", "--html", "page.html"], ["compare"]])
def test_an_impossible_number_costs_its_record_alone(tmp_path, monkeypatch, capsys, words):
    """The others are ranked, drawn and compared, and one sentence on stderr tells of the lost one."""
    monkeypatch.chdir(tmp_path)
    good, huge = made(source="good()"), made(source="huge()", peak_mb=2**70)
    log = saved(tmp_path / "log.jsonl", good, huge, made(source="more()"))
    logs = [log, log] if words == ["compare"] else [log]
    assert main([words[0], *map(str, logs), *words[1:]]) == 0
    out, err = capsys.readouterr()
    assert ("good()" in out, "more()" in out, "huge()" in out) == (True, True, False)
    told = [line for line in err.splitlines() if "page:" not in line]
    assert len(told) == len(logs)
    for line in told:
        assert line.startswith(
            f"ipygpulogger: {log}, line 2: this is no record of a cell: gen.peak.lo_bytes is"
        )


def test_our_own_mistakes(tmp_path, monkeypatch, capsys):
    """What we did not foresee exits with 2, for 1 would say that a cell grew; a variable shows where it was."""
    log = saved(tmp_path / "log.jsonl", made())
    monkeypatch.setattr(History, "rank", lambda *_, **__: 1 / 0)
    assert refused(["report", log], capsys, "ipygpulogger failed: ZeroDivisionError")
    monkeypatch.setenv("IPYGPULOGGER_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["report", str(log)])


def refused(arguments, capsys, says):
    """Whether the command line refused with one sentence that says this."""
    try:
        status = main([str(word) for word in arguments])
    except SystemExit as stop:  # argparse's own
        status = stop.code
    out, err = capsys.readouterr()
    assert (status, out) == (2, ""), err
    assert len(err.splitlines()) == 1
    assert says in err
    assert "Errno" not in err
    return err.startswith("ipygpulogger")


def test_a_terminal_sees_which_cell_runs(notebook):
    """On a terminal: which cell, of how many, its first line; nothing of it in the standard output."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "ipygpulogger.cli",
            "run",
            str(notebook("1", "[bold]=1\nimport time; time.sleep(1)")),
        ],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "NO_COLOR": "1"},
    )
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while chunk := os.read(ours, 4096):
            seen += chunk
    os.close(ours)
    stdout = process.communicate(timeout=60)[0].decode()
    assert process.returncode == 1  # bold is no variable, and no colour
    assert b"cell 2 of 2" in seen
    assert b"[bold]=1" in seen
    assert "\x1b" not in stdout
    assert "cell 2 of 2" not in stdout


# -- report and compare --------------------------------------------------------------------------------


def made(peak_mb=100, source="x = 1", **fields):
    """A record as a run would have made it."""
    size = peak_mb * MB
    return CellRecord(
        label="In [1]",
        started_at=datetime(2026, 1, 1, tzinfo=timezone.utc),
        time_s=1.0,
        gen=RamUsage(0, 0, Peak(size, size, "exact")),
        execution_count=1,
        cell_id=None,
        source=source,
        status="ok",
        **fields,
    )


def saved(path, *cells):
    history = History()
    for cell in cells:
        history.append(cell)
    history.save(path)
    return path


def test_report_of_a_log_and_of_the_notebook(notebook, tmp_path):
    """The log and the executed notebook of one run tell the same; the page of the notebook has whole sources."""
    path, log = notebook("x = 1\ny = 2", "len(b'x' * (300 << 20))"), tmp_path / "log.jsonl"
    assert command("run", path, "--log", log).returncode == 0
    executed = path.with_name("nb.executed.ipynb")
    reports = [
        command("report", source, "--html", tmp_path / f"{source.name}.html") for source in (log, executed)
    ]
    assert [done.returncode for done in reports] == [0, 0], reports
    assert reports[0].stdout == reports[1].stdout
    first, second = (reports[0].stdout.index(word) for word in ("len(b'x'", "x = 1"))
    assert first < second  # the higher peak first
    assert "x = 1\ny = 2" in (tmp_path / "nb.executed.ipynb.html").read_text()
    page = (tmp_path / "log.jsonl.html").read_text()
    assert "x = 1" in page
    assert page.count("<section>") == 2


@pytest.mark.parametrize("executor", ["nbclient", "nbconvert"])
def test_notebooks_that_others_execute(notebook, tmp_path, executor, capsys):
    """With the extension loaded in it, any executor will do: report shows each cell after that."""
    path = notebook("%load_ext ipygpulogger", "a = 1", "b = 2")
    nb = nbformat.read(path, as_version=4)
    if executor == "nbclient":
        nbclient.NotebookClient(nb, resources={"metadata": {"path": str(tmp_path)}}).execute()
    else:
        from nbconvert.preprocessors import ExecutePreprocessor  # half a second of loading

        ExecutePreprocessor().preprocess(nb, {"metadata": {"path": str(tmp_path)}})
    nbformat.write(nb, path)
    assert main(["report", str(path), "--html", str(tmp_path / "page.html")]) == 0
    said = capsys.readouterr().out
    assert "a = 1" in said
    assert "b = 2" in said
    assert (tmp_path / "page.html").read_text().count(
        "<section>"
    ) == 3  # the cell that loads it, from there on


@pytest.mark.parametrize("command", ["report", "compare", "compare it"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("missing.jsonl", None),
        ("missing.ipynb", None),
        ("folder.jsonl", ...),
        ("folder.ipynb", ...),
        ("empty.jsonl", b""),
        ("empty.csv", b""),
        ("empty.parquet", b""),
        ("empty.ipynb", b""),
        ("garbage.jsonl", bytes(range(256))),
        ("garbage.csv", bytes(range(256))),
        ("garbage.parquet", bytes(range(256))),
        ("garbage.ipynb", bytes(range(256))),
        ("lists.jsonl", b"[1]\n[2]\n"),
        ("others.jsonl", b'{"a": 1}\n{"b": 2}\n'),
        ("deep.jsonl", b"[" * 100_000 + b"\n"),
        ("columns.csv", b"a,b\n1,2\n"),
        ("list.ipynb", b"[]"),
        ("number.ipynb", b"3"),
        ("cells.ipynb", b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": 3}'),
        ("plain.ipynb", b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": []}'),
        ("words.txt", b"hello"),
        ("words", b"hello"),
    ],
)
def test_what_is_no_log(tmp_path, command, name, content, capsys):
    """Missing, a folder, empty, binary, another's, of another kind: one sentence, exit 2, nothing written."""
    good, bad, page = saved(tmp_path / "good.jsonl", made()), tmp_path / name, tmp_path / "page.html"
    page.write_text("precious")
    if content is ...:
        bad.mkdir()
    elif content is not None:
        bad.write_bytes(content)
    arguments = {
        "report": ["report", bad, "--html", page],
        "compare": ["compare", good, bad],
        "compare it": ["compare", bad, good],
    }
    assert refused(arguments[command], capsys, name)
    assert page.read_text() == "precious"


@pytest.mark.skipif(sys.platform == "win32", reason="a shell closes no descriptor there")
@pytest.mark.parametrize(("now_mb", "status"), [(100, 0), (150, 1)])
def test_a_closed_stdout(tmp_path, now_mb, status):
    """`compare >&-`: who wants no table still learns from the exit status whether a cell grew."""
    logs = saved(tmp_path / "base.jsonl", made(100)), saved(tmp_path / "new.jsonl", made(now_mb))
    shell = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "ipygpulogger.cli", "compare"]
    done = subprocess.run([*shell, *map(str, logs)], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (status, "")


def executed_notebook():
    bundle = {"text/plain": "x", "application/vnd.ipygpulogger.v1+json": made().to_dict()}
    output = {"output_type": "display_data", "data": bundle, "metadata": {}}
    cell = {"cell_type": "code", "id": "a", "source": ["x = 1\n", "y"], "execution_count": 1, "metadata": {}}
    cells = [
        {**cell, "outputs": [output]},
        {"cell_type": "markdown", "id": "b", "source": "z", "metadata": {}},
    ]
    return {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def paths(value, before=()):
    """Every place in a value of JSON."""
    yield before
    members = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, member in members:
        yield from paths(member, (*before, key))


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(list(paths(executed_notebook()))[1:]),
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
    | st.dictionaries(st.sampled_from(["id", "cells", "data"]), st.integers(), max_size=2),
)  # fmt: skip
def test_a_notebook_that_somebody_mangled(place, value):
    """Whatever stands anywhere in a notebook: its report, or one sentence and exit 2; never a traceback."""
    content = executed_notebook()
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    told, said = io.StringIO(), io.StringIO()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "_plot", lambda _: "")
        path, page = Path(folder) / "nb.ipynb", Path(folder) / "page.html"
        path.write_text(json.dumps(content))
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(said):
            status = main(["report", str(path), "--html", str(page)])
        assert (status, page.exists()) in [(0, True), (2, False)]
    assert len(said.getvalue().splitlines()) == 1  # the page's place, or what is wrong
    assert bool(told.getvalue()) == (status == 0)


def test_a_line_cut_short(tmp_path, capsys):
    """The half line of a kernel that was killed is left out, and that is said; the rest counts."""
    log = saved(tmp_path / "log.jsonl", made(source="whole"), made(source="torn"))
    log.write_bytes(log.read_bytes()[:-20])
    assert main(["report", str(log)]) == 0
    out, err = capsys.readouterr()
    assert "whole" in out
    assert "torn" not in out
    assert err.startswith("ipygpulogger: ")
    assert "cut short" in err
    assert len(err.splitlines()) == 1


def test_the_page_is_not_the_log(tmp_path, capsys):
    """A page over its own log is refused, and the log is what it was."""
    log = saved(tmp_path / "log.jsonl", made())
    before = log.read_bytes()
    assert refused(["report", log, "--html", log], capsys, "is the log itself")
    assert log.read_bytes() == before


@pytest.mark.parametrize(
    ("before_mb", "after_mb", "words", "status"),
    [
        (100, 100, [], 0),
        (100, 50, [], 0),
        (100, 105, [], 0),
        (100, 106, [], 1),
        (100, 106, ["--tolerance", "10%"], 0),
        (100, 103, ["--tolerance", "0%"], 1),
        (3, 4, [], 0),
        (100, 140, ["--floor", "50MB"], 0),
    ],
)
def test_compare(tmp_path, capsys, before_mb, after_mb, words, status):
    """1 when a peak grew beyond the tolerance and the floor, 0 when it shrank, stayed or grew within them."""
    base = saved(tmp_path / "base.jsonl", made(before_mb))
    new = saved(tmp_path / "new.jsonl", made(after_mb))
    assert main(["compare", str(base), str(new), *words]) == status
    out = capsys.readouterr().out
    assert ("GREW" in out) == bool(status)
    assert f"{before_mb:8}{after_mb:8}" in out


@pytest.mark.parametrize(
    "words", [["--tolerance", "5"], ["--tolerance=-5%"], ["--tolerance", "nan%"], ["--tolerance", "5%%"]]
)
def test_tolerances_that_make_no_sense(tmp_path, capsys, words):
    """A percentage and nothing else: 5 could be 5 % or 500 %."""
    log = saved(tmp_path / "log.jsonl", made())
    assert refused(["compare", log, log, *words], capsys, "is no percentage: write it like 5%")


def test_a_floor_without_a_unit(tmp_path, capsys):
    """compare --floor 50: one sentence that shows a size, exit 2."""
    log = saved(tmp_path / "log.jsonl", made())
    assert refused(
        ["compare", log, log, "--floor", "50"], capsys, "'50' has no unit: write a size such as 10GB"
    )


def test_nothing_in_common(tmp_path, capsys):
    """Two runs without a cell in common prove nothing: exit 2."""
    one, two = (saved(tmp_path / f"{word}.jsonl", made(source=word)) for word in ("one", "two"))
    assert refused(["compare", one, two], capsys, "have no cell in common")


def test_two_real_runs(notebook, tmp_path):
    """A notebook whose cell grows by 300 MB: compare finds it one way round, and is content the other way."""
    path = notebook("mb = 1", "len(b'x' * (mb << 20))", "open('done', 'w').close()")
    nb = nbformat.read(path, as_version=4)
    nb.cells[0].metadata["tags"] = ["parameters"]
    nbformat.write(nb, path)
    logs = []
    for mb in ("100", "400"):
        logs.append(tmp_path / f"{mb}.jsonl")
        assert command("run", path, "-p", "mb", mb, "--log", logs[-1]).returncode == 0
    grew = command("compare", *logs)
    assert grew.returncode == 1, grew.stderr
    (line,) = [line for line in grew.stdout.splitlines() if "GREW" in line]
    assert abs(int(line.split()[3]) - 300) <= 8
    assert command("compare", *reversed(logs)).returncode == 0


def test_a_reader_that_has_seen_enough(tmp_path):
    """`report | head`: no traceback."""
    log = saved(tmp_path / "log.jsonl", *(made(source=f"x = {i}") for i in range(3000)))
    process = subprocess.Popen(
        [sys.executable, "-m", "ipygpulogger.cli", "compare", log, log],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    process.wait(timeout=60)


# -- doctor ----------------------------------------------------------------------------------------------


def test_doctor():
    """Each source has its line; what is missing has a remedy; exit 0."""
    done = command("doctor")
    assert done.returncode == 0, done.stderr
    for word in ("general RAM", "NVML", "torch"):
        assert any(line.startswith(word) for line in done.stdout.splitlines())


WITHOUT_TORCH = """
class Nowhere:
    def find_spec(self, name, *_):
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'")
import sys
sys.meta_path.insert(0, Nowhere())
"""
BROKEN = {  # what torch's own import raises, by what is missing
    "OSError('libcudart.so.12: cannot open shared object file\\nsecond line')": (
        "OSError: libcudart.so.12: cannot open shared object file"
    ),
    "ImportError('libtorch_cpu.so: undefined symbol: x')": "ImportError: libtorch_cpu.so: undefined symbol: x",
    "ValueError('libcublasLt.so.*[0-9] not found in the system path')": (
        "ValueError: libcublasLt.so.*[0-9] not found in the system path"
    ),
    "ModuleNotFoundError('No module named sympy')": "ModuleNotFoundError: No module named sympy",
}


def torch_that(fails_with, folder):
    """A package called torch whose import fails as torch's does: after it has imported a part of itself."""
    package = folder / "torch"
    package.mkdir()
    (package / "_utils.py").write_text("")
    (package / "__init__.py").write_text(f"import torch._utils\n{fails_with and f'raise {fails_with}'}\n")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}


def diagnosed(*programs, env=None):
    """What is said of torch after the programs have run in one process, in its only line or two."""
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(programs)], env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    said = done.stdout.splitlines()
    (at,) = [i for i, line in enumerate(said) if line.startswith("torch ")]
    return "\n".join([said[at], *(line for line in said[at + 1 : at + 2] if line.startswith(" "))])


DOCTOR = "import sys; from ipygpulogger.cli import main; sys.exit(main(['doctor']))"
MAGIC = """
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
shell.run_line_magic("load_ext", "ipygpulogger")
shell.run_cell("il.stop()")
%s
shell.run_line_magic("gpulog", "doctor")
assert "torch" not in __import__("sys").modules
"""


@pytest.mark.parametrize("way", [DOCTOR, MAGIC % ""], ids=["command", "magic"])
def test_torch_that_is_not_installed(way):
    """Both doctors say so, for which Python, and how to install it; nobody is told to import it."""
    said = diagnosed(WITHOUT_TORCH, way)
    assert f"not installed for {sys.executable}" in said
    assert f"{sys.executable} -m pip install torch" in said
    assert "import torch" not in said


@pytest.mark.parametrize("error", BROKEN)
def test_torch_whose_import_fails(tmp_path, error):
    """The command line tries the import, tells the first line of its error whatever its type, and exits with 0."""
    said = diagnosed(DOCTOR, env=torch_that(error, tmp_path))
    assert f"installed, but import torch fails: {BROKEN[error]}\n" in said
    assert "-c 'import torch' shows where it fails" in said


def test_torch_that_the_kernel_did_not_import(tmp_path):
    """The magic imports nothing: torch is installed; once the user's own import failed, it says that it failed."""
    env = torch_that("OSError('libcudart.so.12')", tmp_path)
    said = diagnosed(MAGIC % "", env=env)
    assert "installed, but not imported in this process\n" in said
    assert "-> import torch, then ask again" in said
    said = diagnosed(MAGIC % "try: import torch\nexcept OSError: pass", env=env)
    assert "installed, but import torch failed in this process\n" in said
    assert "-> import torch again to see the error" in said


def test_doctor_as_json_tells_the_error_too(tmp_path):
    """The same diagnosis, for programs."""
    done = command("doctor", "--json", env=torch_that("OSError('libcudart.so.12')", tmp_path))
    (torch,) = [one for one in json.loads(done.stdout) if one["source"] == "torch"]
    assert (torch["state"], "OSError: libcudart.so.12" in torch["says"]) == ("absent", True)


@pytest.mark.parametrize("step", ["load", "preload", "counters", "diagnose"])
def test_doctor_tells_of_a_source_that_fails(step, monkeypatch):
    """A framework's source that raises at any step is in the list, absent, with its error."""

    class Broken(Framework):
        name = "broken"

        def counters(self):
            return ()

    def fail(_):
        raise OSError("no such library")

    setattr(Broken, step, fail)
    monkeypatch.setitem(sys.modules, "broken", ModuleType("broken"))
    machine = Machine(frameworks=[Broken()])
    machine.load()
    (found,) = [one for one in machine.diagnose() if one.source == "broken"]
    assert (found.state, found.says) == ("absent", "fails and is left out: OSError: no such library")


def test_doctor_on_the_simulated_machine(kernel_env):
    """With a driver: its version and its devices."""
    done = command("doctor", env=kernel_env)
    assert "driver 580.65.06, 2 device(s): NVIDIA SimGPU 16GB, NVIDIA SimGPU 16GB" in done.stdout


def test_doctor_as_json():
    """The same diagnoses, for programs."""
    done = command("doctor", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {"source", "state", "says", "remedy"} == set(found[0])
    assert {"general RAM", "NVML", "torch"} <= {diagnosis["source"] for diagnosis in found}


@pytest.mark.torch
def test_doctor_with_torch(kernel_env):
    """With torch and a device: the allocator's peaks are exact, and that is said."""
    done = command("doctor", env=kernel_env)
    assert done.returncode == 0, done.stderr
    assert "the allocator's own peaks on cuda:0" in done.stdout


def test_bad_words():
    """No command, or an unknown one: argparse's usage and exit 2."""
    for arguments in ((), ("walk",), ("run",), ("doctor", "--fast")):
        done = command(*arguments)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


def test_an_old_log_outlives_a_refused_request(notebook, bare_kernel, tmp_path):
    """Exit 2 means nothing written, the log of an earlier run included."""
    metadata, env = bare_kernel
    path = notebook("1", **metadata)
    log = tmp_path / "old.jsonl"
    log.write_text("precious\n")
    done = command("run", path, "--log", log, env=env)
    assert done.returncode == 2
    assert log.read_text() == "precious\n"


def test_one_file_cannot_be_both(notebook, tmp_path):
    """The log and the executed notebook under one name: refused, nothing written."""
    done = command("run", notebook("1"), "--log", tmp_path / "x", "--output", tmp_path / "x")
    assert done.returncode == 2
    assert "cannot be both" in done.stderr
    assert not (tmp_path / "x").exists()


def test_links_and_devices_stay_what_they_are(notebook, tmp_path):
    """An output that is a link fills the file it points to; one that is a device is written into."""
    path, real, link = notebook("1"), tmp_path / "real.ipynb", tmp_path / "link.ipynb"
    link.symlink_to(real)
    assert command("run", path, "--output", link).returncode == 0
    assert link.is_symlink()
    assert nbformat.read(real, as_version=4).cells
    assert command("run", path, "--output", os.devnull).returncode == 0
    assert not Path(os.devnull).is_file()


def test_the_users_configuration_does_not_silence_run(notebook, tmp_path):
    """c.IPyGPULogger.report = 'none' is for notebooks that are open; run reports all the same."""
    profile = tmp_path / "ipython" / "profile_default"
    profile.mkdir(parents=True)
    (profile / "ipython_config.py").write_text("c = get_config()\nc.IPyGPULogger.report = 'none'\n")
    done = command("run", notebook("1"), env={**os.environ, "IPYTHONDIR": str(tmp_path / "ipython")})
    assert done.returncode == 0, done.stderr
    assert "RAM: Consumed Peaked" in done.stdout


# -- what the documentation says -------------------------------------------------------------------------


def test_the_ci_example(notebook, tmp_path):
    """The workflow of docs/history.md is YAML, and its commands do what it says: here they run."""
    page = Path(__file__).parents[2].joinpath("docs", "history.md").read_text(encoding="utf-8")
    workflow = yaml.safe_load(page.partition("<!-- ci -->\n```yaml\n")[2].partition("```")[0])
    steps = workflow["jobs"]["train"]["steps"]
    commands = [shlex.split(step["run"]) for step in steps if step.get("run", "").startswith("ipygpulogger")]
    assert [words[1] for words in commands] == ["run", "compare"]
    path = notebook("epochs = 10", "x = bytearray(epochs << 20)", name="train.ipynb")
    nb = nbformat.read(path, as_version=4)
    nb.cells[0].metadata["tags"] = ["parameters"]
    nbformat.write(nb, path)
    (tmp_path / "memory").mkdir()
    assert command("run", path, "--log", tmp_path / "memory" / "base.jsonl").returncode == 0
    for words in commands:
        done = command(*words[1:], cwd=tmp_path)
        assert done.returncode == 0, done.stderr + done.stdout
    kept = next(step["with"]["path"].split() for step in steps if "upload-artifact" in step.get("uses", ""))
    assert all((tmp_path / name).exists() for name in kept)
