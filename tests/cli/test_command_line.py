"""The command line as a whole: exit status, closed streams, the example for CI."""

import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from command_line import MB, command, made, refused, saved

from ipygpulogger.cli import main
from ipygpulogger.records import Peak, RamUsage
from ipygpulogger.render import summary


def test_our_own_mistakes(tmp_path, monkeypatch, capsys):
    """What we did not foresee exits with 2, for 1 would say that a cell grew; a variable shows where it was."""
    log = saved(tmp_path / "log.jsonl", made())
    monkeypatch.setattr(summary, "summary", lambda *_: 1 / 0)
    assert refused(["report", log], capsys, "ipygpulogger failed: ZeroDivisionError")
    monkeypatch.setenv("IPYGPULOGGER_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["report", str(log)])


@pytest.mark.linux("a shell closes no descriptor there", "macos")
@pytest.mark.parametrize(("now_mb", "status"), [(100, 0), (150, 1)])
def test_a_closed_stdout(tmp_path, now_mb, status):
    """`compare >&-`: who wants no table still learns from the exit status whether a cell grew."""
    logs = saved(tmp_path / "base.jsonl", made(100)), saved(tmp_path / "new.jsonl", made(now_mb))
    shell = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "ipygpulogger", "compare"]
    done = subprocess.run([*shell, *map(str, logs)], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (status, "")


STATUS = {"report base": 0, "compare base base": 0, "compare base new": 1, "doctor": 0, "doctor --json": 0}


@pytest.mark.parametrize("lines", [0, 1])
@pytest.mark.parametrize("words", STATUS)
def test_a_reader_that_has_seen_enough(tmp_path, words, lines):
    """`| head`: nothing on stderr, and the exit status that it would have been."""
    cells = range(3000)  # more than a pipe holds
    logs = {
        "base": saved(tmp_path / "base.jsonl", *(made(100, source=f"x = {i}") for i in cells)),
        "new": saved(tmp_path / "new.jsonl", *(made(150, source=f"x = {i}") for i in cells)),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "ipygpulogger", *(str(logs.get(word, word)) for word in words.split())],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for _ in range(lines):
        process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(timeout=60) == STATUS[words]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no full disk to offer")
def test_a_full_stdout(tmp_path):
    """`report > /dev/full`: one sentence, and no success."""
    log = saved(tmp_path / "log.jsonl", made())
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ipygpulogger", "report", log],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
        )  # fmt: skip
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "No space left on device" in done.stderr


@pytest.mark.parametrize(("encoding", "sign"), [("utf-8", "≥"), ("ascii", ">=")])
def test_signs_of_ours_that_the_terminal_lacks(tmp_path, encoding, sign):
    """They are written in plain signs, a cell's own characters by their numbers."""
    peak = Peak(100 * MB, None, "sampled")
    log = saved(tmp_path / "log.jsonl", replace(made(source="π = 3"), gen=RamUsage(0, 0, peak)))
    done = subprocess.run(
        [sys.executable, "-m", "ipygpulogger", "report", log],
        capture_output=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )
    said = done.stdout.decode(encoding)
    assert f"{sign}100" in said
    assert ("π = 3" if encoding == "utf-8" else r"\u03c0 = 3") in said


def test_the_ci_example(notebook, tmp_path):
    """The workflow of docs/history.md is YAML, and its commands do what it says: here they run."""
    page = Path(__file__).parents[2].joinpath("docs", "history.md").read_text(encoding="utf-8")
    workflow = yaml.safe_load(page.partition("<!-- ci -->\n```yaml\n")[2].partition("```")[0])
    steps = workflow["jobs"]["train"]["steps"]
    commands = [shlex.split(step["run"]) for step in steps if step.get("run", "").startswith("ipygpulogger")]
    assert [words[1] for words in commands] == ["run", "compare"]
    tags = {0: "parameters"}
    path = notebook("epochs = 10", "x = bytearray(epochs << 20)", name="train.ipynb", tags=tags)
    (tmp_path / "memory").mkdir()
    assert command("run", path, "--log", tmp_path / "memory" / "base.jsonl").returncode == 0
    for words in commands:
        done = command(*words[1:], cwd=tmp_path)
        assert done.returncode == 0, done.stderr + done.stdout
    kept = next(step["with"]["path"].split() for step in steps if "upload-artifact" in step.get("uses", ""))
    assert all((tmp_path / name).exists() for name in kept)
