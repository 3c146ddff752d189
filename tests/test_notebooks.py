"""The notebooks that we show are run, and what they claim is checked."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
MB = 2**20


def run(name, tmp_path, env=None):
    """Execute a notebook with the command line; its records by the first line of the cell."""
    log = tmp_path / "log.jsonl"
    words = ["run", NOTEBOOKS / name, "--log", log, "--output", tmp_path / name]
    done = subprocess.run(
        [sys.executable, "-m", "ipygpulogger.cli", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=env,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return [json.loads(line) for line in log.read_text().splitlines()]


def find(records, source):
    (record,) = (record for record in records if record["source"].startswith(source))
    return record


def figures(usage):
    """(consumed, peaked) in MB."""
    before, after, lo = usage["before_bytes"], usage["after_bytes"], usage["peak"]["lo_bytes"]
    return round((after - before) / MB), round((lo - max(before, after)) / MB)


@pytest.mark.parametrize("lane", ["plain", pytest.param("torch", marks=pytest.mark.torch)])
def test_demo(tmp_path, lane, request):
    """The demo says what it shows: on any machine, and with a GPU as well."""
    records = run("demo.ipynb", tmp_path, request.getfixturevalue("kernel_env") if lane == "torch" else None)
    assert figures(find(records, "kept =")["gen"]) == (128, 0)
    assert figures(find(records, "len(b")["gen"])[0] == 0
    assert abs(figures(find(records, "len(b")["gen"])[1] - 256) <= 2
    assert figures(find(records, "del kept")["gen"]) == (-128, 0)
    assert find(records, "scratch =")["error"] == "ValueError"
    if lane == "torch":
        keep, transient, free = records[11:14]
        assert figures(keep["gpus"][0]) == (512, 0)
        assert figures(transient["gpus"][0]) == (0, 1024)
        assert figures(free["gpus"][0]) == (-512, 0)
        assert {record["gpus"][0]["peak"]["quality"] for record in (keep, transient, free)} == {"exact"}
