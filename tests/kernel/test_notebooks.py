"""The notebooks that we show are run, and what they claim is checked."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
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


def printed(path):
    """What each code cell of an executed notebook printed or came to, our own reports apart."""
    found = {}
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] != "code":
            continue
        texts = [
            output.get("text") or output.get("data", {}).get("text/plain") or []
            for output in cell["outputs"]
            if "application/vnd.ipygpulogger.v1+json" not in output.get("data", {})
        ]
        lines = "".join("".join(text) + "\n" for text in texts).splitlines()
        found[cell["id"]] = [line for line in lines if line.strip()]
    return found


@pytest.mark.parametrize("lane", ["plain", pytest.param("torch", marks=pytest.mark.torch)])
def test_tracing(tmp_path, lane, request):
    """The tracing notebook says what it shows: zeros without a GPU, the truth with one."""
    env = request.getfixturevalue("kernel_env" if lane == "torch" else "driverless_env")
    records = run("tracing.ipynb", tmp_path, env)
    said = printed(tmp_path / "tracing.ipynb")
    gpu = lane == "torch"

    def line(used, peaked, where=""):
        return f"△Used Peaked MB: {used if gpu else 0:6} {peaked if gpu else 0:6}{where}"

    assert said["kept"] == [line(100, 50)]
    assert said["data"] == ["(100, 50)" if gpu else "(0, 0)"]
    assert said["given-back"] == [line(-100, 0, " (given back)")]
    assert said["stop"] == [line(-100, 0)]
    assert said["foobar"] == [line(64, 0, " (foobar: 1st try)"), line(32, 0, " (foobar: 2nd try)")]
    assert said["with"] == [line(0, 200, " (a block: exit)")]
    assert said["traced"] == [line(20, 80, " (step: exit)")]
    assert said["nested"] == [line(0, 300, " (inner: exit)"), line(0, 300, " (outer)")]
    if gpu:  # this process may have contexts there
        rows = [dev.mine() for dev in request.getfixturevalue("gpu").dev[:2]]
        used = [row.used >> 20 if row else 0 for row in rows]
        assert said["which"] == [f"({used.index(min(used))}, {15872 - min(used)})"]
    else:
        assert said["which"] == ["(None, 0)"]
    fail = find(records, "@gpu_mem_restore")
    assert fail["error"] == "RuntimeError"
    assert abs(figures(fail["gen"])[0]) <= 8  # what formatting a first traceback loads, and not the 256 MB
    assert abs(figures(fail["gen"])[1] - 256) <= 8
    if gpu:
        free_mb = int(said["smaller"][0].split()[0])
        assert abs(free_mb - 2000) <= 4


def grown(record):
    """Who grew, by how much in MB, and what nobody accounts for; what is less than half a MB left out.

    What formatting a first traceback loads is left out as well.
    """
    owners = [owner for owner in record["owners"] if not owner["name"].startswith("libraries loaded: ")]
    names = {owner["name"]: round(owner["size_bytes"] / MB) for owner in owners}
    rest = {device: round(size_bytes / MB) for device, size_bytes in record["unexplained"]}
    return {name: size_mb for name, size_mb in names.items() if size_mb}, rest


@pytest.mark.parametrize("lane", ["plain", pytest.param("torch", marks=pytest.mark.torch)])
def test_find_the_leak(tmp_path, lane, request):
    """Each leak of the guide is found under its name, and is given back: on any machine, torch's as well."""
    env = request.getfixturevalue("kernel_env" if lane == "torch" else "driverless_env")
    records = run("find_the_leak.ipynb", tmp_path, env)
    said = {cell: "\n".join(lines) for cell, lines in printed(tmp_path / "find_the_leak.ipynb").items()}

    leak, again = find(records, "for step"), find(records, "%%gpulog --lines")
    assert grown(leak)[0] == {"log": 120}
    assert grown(again)[0] == {"log": 40}
    lines = {(line["place"], line["source"]): line for line in again["lines"]}
    for place, source in [
        ("", "loss = train_step(3)"),
        ("In [2]", "batch = load_batch(40)"),
        ("In [2]", 'return bytearray(b"x") * (size_mb * MB)'),
    ]:
        assert abs(figures(lines[place, source]["gen"])[0] - 40) <= 2, source
    kept = lines["In [2]", 'log.append({"step": step, "loss": loss, "batch": batch})']
    assert abs(figures(kept["gen"])[0]) <= 2
    assert abs(figures(find(records, "for row in log")["gen"])[0] + 160) <= 2
    assert "log" not in said["nothing-left"]

    failed, shown = find(records, "def evaluate"), find(records, "memoryview")
    assert grown(failed)[0] == {"last traceback: evaluate.predictions": 60}
    assert grown(shown)[0] == {f"Out[{shown['execution_count']}]": 80}
    for holder in ("last traceback: evaluate.predictions", f"Out[{shown['execution_count']}]"):
        assert holder in said["hidden"]
        assert holder.removeprefix("last traceback: ") in said["free-run"]
    freed = re.search(r"came back: .*RAM (\d+) MB", said["free-run"])
    assert abs(int(freed[1]) - 140) <= 2
    oom = find(records, "def forward")
    assert oom["error"] == "MemoryError"
    assert grown(oom)[0] == {"last traceback: forward.activations": 200}
    assert abs(int(re.search(r"came back: .*RAM (\d+) MB", said["oom-free"])[1]) - 200) <= 2

    cycle = find(records, "class Node")
    assert grown(cycle) == ({}, {"cpu": 100})
    assert "up to 100 MB waits for the garbage collector" in cycle["notes"]
    if lane == "torch":
        graph, without = (record for record in records if record["source"] == "if torch:")
        assert grown(graph)[0] == {"losses (autograd graph)": 80}
        assert figures(graph["gpus"][0])[0] == 80
        assert "losses (autograd graph)" in said["graph-vars"]
        assert figures(without["gpus"][0])[0] == -80


@pytest.mark.training
@pytest.mark.parametrize("lane", ["cpu", "gpu"])
def test_training(tmp_path, lane, request):
    """The training notebook shows PeakMemMetric's table, and a plain loop's leak in the epoch that leaks."""
    run(
        "training.ipynb",
        tmp_path,
        request.getfixturevalue("kernel_env" if lane == "gpu" else "driverless_env"),
    )
    said = {cell: "\n".join(lines) for cell, lines in printed(tmp_path / "training.ipynb").items()}
    columns = ["epoch", "train_loss", "valid_loss", "mae", "cpu used", "peak", "gpu used", "peak", "time"]
    table = re.findall("<t[hd]>(.*?)</t[hd]>", said["fit"])
    names, *rows = [table[i : i + len(columns)] for i in range(0, len(table), len(columns))]
    assert names == columns
    fits, loops = (
        [tuple(map(int, re.findall(r"=(-?\d+)", figures))) for figures in said[cell].split("EpochMemory")[1:]]
        for cell in ("history", "figures")
    )
    assert [tuple(map(int, row[4:8])) for row in rows] == fits
    assert len(fits) == len(loops) == 3
    if lane == "gpu":
        assert fits[0][2] in range(48, 64)  # thrice the model's 16 MB, and what cuBLAS takes
        assert [figures[2:] for figures in fits[1:]] == [(0, 32), (0, 32)]
        assert [figures[2:] for figures in loops] == [(0, 0), (256, 0), (0, 0)]
    else:  # how much resident memory is malloc's habit is nobody's promise
        assert {figures[2:] for figures in (*fits, *loops)} == {(0, 0)}
    assert [line.split()[0] for line in said["loop"].splitlines()] == ["epoch", "0", "1", "2"]
