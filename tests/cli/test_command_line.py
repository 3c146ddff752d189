"""The command line as a whole: exit status, closed streams, the example for CI."""

import shlex
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import yaml
from command_line import command, made, refused, saved

from ipygpulogger import History
from ipygpulogger.cli import main


def test_our_own_mistakes(tmp_path, monkeypatch, capsys):
    """What we did not foresee exits with 2, for 1 would say that a cell grew; a variable shows where it was."""
    log = saved(tmp_path / "log.jsonl", made())
    monkeypatch.setattr(History, "rank", lambda *_, **__: 1 / 0)
    assert refused(["report", log], capsys, "ipygpulogger failed: ZeroDivisionError")
    monkeypatch.setenv("IPYGPULOGGER_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["report", str(log)])


@pytest.mark.skipif(sys.platform == "win32", reason="a shell closes no descriptor there")
@pytest.mark.parametrize(("now_mb", "status"), [(100, 0), (150, 1)])
def test_a_closed_stdout(tmp_path, now_mb, status):
    """`compare >&-`: who wants no table still learns from the exit status whether a cell grew."""
    logs = saved(tmp_path / "base.jsonl", made(100)), saved(tmp_path / "new.jsonl", made(now_mb))
    shell = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "ipygpulogger.cli", "compare"]
    done = subprocess.run([*shell, *map(str, logs)], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (status, "")


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
