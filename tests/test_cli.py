"""The command line as a user meets it: a process of its own, a real kernel, real files."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

from ipygpulogger.cli import main

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


def test_a_failing_cell(notebook, tmp_path):
    """Its numbers and those before it are kept, it is marked, the rest is not run: exit 1."""
    path, log = notebook("a = 1", "raise ValueError('oh')", "b = 2"), tmp_path / "log.jsonl"
    done = command("run", path, "--log", log)
    assert done.returncode == 1
    assert [(r["status"], r["error"]) for r in records(log)] == [("ok", None), ("error", "ValueError")]
    assert "failed: ValueError" in done.stdout
    assert "stopped at the cell that failed: ValueError: oh" in done.stderr
    assert "Traceback" not in done.stderr
    executed = nbformat.read(path.with_name("nb.executed.ipynb"), as_version=4)
    assert [cell.execution_count for cell in executed.cells] == [1, 2, None]


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
    assert "Traceback" not in done.stderr
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
    assert "Traceback" not in stderr
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


def test_doctor():
    """Each source has its line; what is missing has a remedy; exit 0."""
    done = command("doctor")
    assert done.returncode == 0, done.stderr
    for word in ("general RAM", "NVML", "torch"):
        assert any(line.startswith(word) for line in done.stdout.splitlines())


def test_doctor_on_the_simulated_machine(kernel_env):
    """With a driver: its version and its devices."""
    done = command("doctor", env=kernel_env)
    assert "driver 580.65.06, 2 device(s): NVIDIA SimGPU 16GB, NVIDIA SimGPU 16GB" in done.stdout


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
