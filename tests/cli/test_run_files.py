"""The files that `ipygpulogger run` writes: refused before anything runs, or written whole."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import command, executed, records, tracebacks_of_ours


def test_devices_stay_what_they_are(notebook):
    """An output that is a device is written into; of links see test_trust.py."""
    assert command("run", notebook("1"), "--output", os.devnull).returncode == 0
    assert not Path(os.devnull).is_file()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no full disk to offer")
def test_a_full_disk(notebook, tmp_path):
    """A log, a page, a notebook or a stdout that cannot be written is said once, costs nothing else, and is no success."""
    path = notebook("1", "2")
    for option in ("--log", "--html"):
        done = command("run", path, option, "/dev/full")
        assert done.returncode == 1
        assert done.stderr.count("/dev/full could not be written: No space left on device") == 1
        assert len(done.stdout.splitlines()) == 3
        assert not tracebacks_of_ours(done.stderr)
    log = tmp_path / "log.jsonl"
    done = command("run", path, "--output", "/dev/full", "--log", log)
    assert (done.returncode, len(records(log))) == (1, 2)
    shell = ["sh", "-c", 'exec "$@" > /dev/full', "sh", sys.executable, "-m", "ipygpulogger", "run"]
    done = subprocess.run([*shell, path, "--log", log], capture_output=True, text=True, check=False)
    assert (done.returncode, len(records(log))) == (1, 2)
    assert done.stderr.count("stdout could not be written: No space left on device") == 1


def test_a_reader_of_run_that_has_seen_enough(notebook, tmp_path):
    """`run | head`, `run 2>&1 | head`: every cell runs, and what was asked for is written; exit 0."""
    log, page = tmp_path / "log.jsonl", tmp_path / "page.html"
    path = notebook("1", "2", "3")
    for stderr in subprocess.PIPE, subprocess.STDOUT:
        process = subprocess.Popen(
            [sys.executable, "-m", "ipygpulogger", "run", path, "--log", log, "--html", page],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        process.stdout.close()
        if process.stderr is not None:
            assert not tracebacks_of_ours(process.stderr.read())
            process.stderr.close()
        assert process.wait(timeout=60) == 0
        assert [record["label"] for record in records(log)] == ["In [1]", "In [2]", "In [3]"]
        assert [cell.execution_count for cell in executed(path).cells] == [1, 2, 3]
        path.with_name("nb.executed.ipynb").unlink()
        assert page.exists()
        page.unlink()
