"""The notebooks that we show: what they claim is checked, and their outputs are those of an execution anew."""

import json
import platform
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import shown_notebooks
from shown_notebooks import NAMES, NOTEBOOKS

from ipygpulogger.records import MIME
from ipygpulogger.render import html, text
from ipygpulogger.storage.decode import record_from

MB = 2**20
PICTURE_BYTES = 80_000


def run(name, tmp_path, env=None):
    """Execute a notebook with the command line; its records by the first line of the cell.

    Without an environment, on a simulated GPU of its own and by the script that writes the notebooks that we show.
    """
    log = tmp_path / f"{name}.jsonl"
    if env is None:
        words = [shown_notebooks.__file__, name, "--into", tmp_path]
    else:
        words = [
            "-m",
            "ipygpulogger",
            "run",
            NOTEBOOKS / name,
            "--log",
            log,
            "--log-source",
            "--output",
            tmp_path / name,
        ]
    done = subprocess.run(
        [sys.executable, *map(str, words)], capture_output=True, text=True, check=False, timeout=300, env=env
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


@pytest.fixture
def env(request):
    """The environment of the lane's parameter: None for the simulated GPU."""
    return None if request.param == "torch" else request.getfixturevalue("driverless_env")


lanes = pytest.mark.parametrize(
    ("env", "gpu"), [("plain", False), pytest.param("torch", True, marks=pytest.mark.torch)], indirect=["env"]
)


def cells_of(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def outputs_of(path):
    return [(cell, output) for cell in cells_of(path) for output in cell["outputs"]]


def of_mime(output, mime):
    value = output.get("data", {}).get(mime, "")
    return value if isinstance(value, str) else "".join(value)


def shape(cell):
    """What does not vary from one execution of a cell to the next, output by output."""
    found = []
    for output in visible(cell):
        kind, mimes = output["output_type"], sorted(output.get("data", {}))
        if kind == "error":
            said = [output["ename"], masked(output["evalue"])]
        elif MIME in mimes:  # the contractual rows; which small things grew varies
            rows = r"^(?:RAM|Gen|GPU\d?): |failed: \w+|interrupted$"
            said = re.findall(rows, of_mime(output, "text/plain"), re.MULTILINE)
        else:
            said = masked("".join(output.get("text", "")) or of_mime(output, "text/plain")).split("\n")
            if "summary" in "".join(cell["source"]):  # order and marks follow the figures
                said = sorted(line.replace("* In [", " In [") for line in said)
        if kind == "stream" and found and found[-1][:2] == (kind, output["name"]):
            before = found.pop()[-1]
            said = [*before[:-1], before[-1] + said[0], *said[1:]]
        found.append((kind, output.get("name", ""), mimes, said))
    return found


def visible(cell):
    """The outputs of a cell but what is left of its live display: an empty one."""
    return [output for output in cell["outputs"] if output.get("data") != {"text/html": []}]


VARY = "smaller ones|libraries loaded|kept by malloc|search cut short|(?:RAM limit|OOM kills):"


def masked(said):
    """A text without its figures, and without what comes and goes with them, or with the machine."""
    said = re.sub(r"\x1b\[[0-9;]*m", "", said)
    # What was alive in general RAM: it needs memray, and small rows come and go.
    said = re.sub(r"(?:\n|\A)At the peak.* of general RAM asked for(?:\n  .*)*", "", said)
    said = re.sub(r"(?:\n|\A)What was alive at the peak in general RAM is not known.*", "", said)
    said = re.sub(rf"^.*(?:{VARY}).*\n?", "", said, flags=re.MULTILINE)
    said = re.sub(r"0x[0-9a-f]+|[<\u2212+-]?\d[\d.,]*", "#", said)
    said = re.sub(r"[ ─-▟·:▼]+", " ", said)  # of memory over the time as well, which is another each time
    return re.sub(r"^ | $", "", said, flags=re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_what_we_show(name):
    """Every code cell was run, in order; no output names a machine; each report is what its record gives today."""
    path = NOTEBOOKS / name
    cells, again = cells_of(path), "not as it is today: nox -s notebooks"
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1)), again
    for cell in cells:
        reports = [number for number, output in enumerate(visible(cell)) if MIME in output.get("data", {})]
        after = visible(cell)[reports[0] :] if reports else ()
        assert {output["output_type"] for output in after} <= {"display_data"}, "a report amid the output"
    for cell, output in outputs_of(path):
        if output["output_type"] == "error":
            assert "raises-exception" in cell["metadata"]["tags"]
        assert len(of_mime(output, "image/png")) < PICTURE_BYTES
        assert len(of_mime(output, "image/svg+xml")) < PICTURE_BYTES
        data = output.get("data", {})
        whole = MIME in data and not data[MIME].get("left_out")  # and without time series
        if whole and not re.search("[▁-█]", of_mime(output, "text/plain")):
            record = record_from(data[MIME])
            for mime, render in (("text/plain", text.report), ("text/html", html.report)):
                today = [
                    render(told, compact=compact).replace("<details open", "<details")
                    for compact in (False, True)
                    for told in (record, replace(record, at_peak=()))
                ]  # whether it is open, RAM's size decides, too
                assert of_mime(output, mime).replace("<details open", "<details") in today, again
    said = path.read_text(encoding="utf-8")
    said = re.sub(r'"image/png": "[^"]*"', "", said)
    for place in (str(NOTEBOOKS.parent), str(Path.home()), tempfile.gettempdir(), platform.node()):
        assert not re.search(rf"(?<!\w){re.escape(place)}(?!\w)", said)
    assert not re.search(r"(?<![\w.])/(?:home|root|work|tmp|usr|opt|Users)/|site-packages", said)
    assert path.stat().st_size < 200_000


def test_the_demo_shows_it_all():
    """Reports, a live cell's in one piece, lines, holders, out of memory, the summary and the plot; in forty seconds."""
    path = NOTEBOOKS / "demo.ipynb"
    kinds = {cell["id"]: [output["output_type"] for output in visible(cell)] for cell in cells_of(path)}
    found = [output["data"] for _, output in outputs_of(path) if MIME in output.get("data", {})]
    records = [record_from(data[MIME]) for data in found]
    first, last = min(r.started_at for r in records), max(r.started_at for r in records)
    assert (last - first).total_seconds() < 40
    assert "stream" in kinds["long-run"]
    for cell in ("lines-run", "vars-run", "oom-run", "oom-free", "summary", "plot", "status"):
        assert kinds[cell], cell


def compare(name, tmp_path):
    """The outputs that we show are those of the execution that is in the folder, cell by cell, but for the figures."""
    kept, anew = (
        {cell["id"]: shape(cell) for cell in cells_of(folder / name)} for folder in (NOTEBOOKS, tmp_path)
    )
    assert list(kept) == list(anew)
    for cell, shown in kept.items():
        assert shown == anew[cell], f"{cell}: nox -s notebooks"


@lanes
def test_demo(tmp_path, env, gpu):
    """The demo says what it shows: on any machine, and with a GPU as well."""
    records = run("demo.ipynb", tmp_path, env)
    assert figures(find(records, "kept =")["gen"]) == (128, 0)
    assert figures(find(records, "len(b")["gen"])[0] == 0
    assert abs(figures(find(records, "len(b")["gen"])[1] - 256) <= 2
    assert figures(find(records, "del kept")["gen"]) == (-128, 0)
    assert find(records, "scratch =")["error"] == "ValueError"
    assert find(records, "whole_mb")["error"] == ("OutOfMemoryError" if gpu else "MemoryError")
    if gpu:
        keep, transient, free = (record for record in records if record["source"] == "if device:")
        assert figures(keep["gpus"][0]) == (512, 0)
        assert figures(transient["gpus"][0]) == (0, 1024)
        assert figures(free["gpus"][0]) == (-512, 0)
        assert {record["gpus"][0]["peak"]["quality"] for record in (keep, transient, free)} == {"exact"}
        assert figures(find(records, "import time")["gpus"][0]) == (1024, 0)
        compare("demo.ipynb", tmp_path)


def printed(path):
    """The lines that each code cell of an executed notebook printed or came to, our own reports apart."""
    found = {}
    for cell in cells_of(path):
        texts = [
            output.get("text") or output.get("data", {}).get("text/plain") or []
            for output in cell["outputs"]
            if MIME not in output.get("data", {})
        ]
        lines = "".join("".join(text) + "\n" for text in texts).splitlines()
        found[cell["id"]] = [line for line in lines if line.strip()]
    return found


@lanes
def test_tracing(tmp_path, env, gpu):
    """The tracing notebook says what it shows: zeros without a GPU, the truth with one."""
    records = run("tracing.ipynb", tmp_path, env)
    said = printed(tmp_path / "tracing.ipynb")

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
    assert said["which"] == ["(0, 15872)" if gpu else "(None, 0)"]
    fail = find(records, "@gpu_mem_restore")
    assert fail["error"] == "RuntimeError"
    assert abs(figures(fail["gen"])[0]) <= 8  # what formatting a first traceback loads, and not the 256 MB
    assert abs(figures(fail["gen"])[1] - 256) <= 8
    if gpu:
        free_mb = int(said["smaller"][0].split()[0])
        assert abs(free_mb - 2000) <= 4
        compare("tracing.ipynb", tmp_path)


def grown(record):
    """Who grew, by how much in MB, and what nobody accounts for; what is less than half a MB left out.

    What formatting a first traceback loads is left out as well.
    """
    owners = [owner for owner in record["owners"] if not owner["name"].startswith("libraries loaded: ")]
    names = {owner["name"]: round(owner["size_bytes"] / MB) for owner in owners}
    rest = {device: round(size_bytes / MB) for device, size_bytes in record["unexplained"]}
    return {name: size_mb for name, size_mb in names.items() if size_mb}, rest


@lanes
def test_find_the_leak(tmp_path, env, gpu):
    """Each leak of the guide is found under its name, and is given back: on any machine, torch's as well."""
    records = run("find_the_leak.ipynb", tmp_path, env)
    said = {cell: "\n".join(lines) for cell, lines in printed(tmp_path / "find_the_leak.ipynb").items()}

    leak, again = find(records, "for step"), find(records, "loss = train_step(3)")
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
    assert cycle["notes"] == []
    if gpu:
        graph, without = (record for record in records if record["source"] == "if torch:")
        assert grown(graph)[0] == {"losses (autograd graph)": 80}
        assert figures(graph["gpus"][0])[0] == 80
        assert "losses (autograd graph)" in said["graph-vars"]
        assert figures(without["gpus"][0])[0] == -80
        compare("find_the_leak.ipynb", tmp_path)


@lanes
def test_fit_the_model(tmp_path, env, gpu):
    """The estimate is within 2 % of what the allocator then needs, the batch that fits runs; RAM's line on any machine."""
    run("fit_the_model.ipynb", tmp_path, env)
    said = {cell: "\n".join(lines) for cell, lines in printed(tmp_path / "fit_the_model.ipynb").items()}
    assert re.search(
        r"50 +10\d  In \[14\]\n +100 +20\d  In \[15\]\n +200 +40\d  In \[16\]", said["ram-fit"]
    ), said["ram-fit"]
    assert "2 MB for each of batch_size" in said["ram-fit"]
    if gpu:
        estimated, needed = map(float, re.findall(r"[\d.]+(?= MB)", said["beside"]))
        assert abs(estimated - needed) <= 0.02 * needed
        kinds = dict(re.findall(r"^(.+?) +([\d.]+) MB$", said["kinds"], re.MULTILINE))
        assert abs(sum(map(float, kinds.values())) - needed) <= 0.05 * len(kinds)
        assert {"parameters", "gradients", "optimizer state"} <= set(kinds)
        assert "enough up to batch_size" in said["fit"]
        assert f" {said['fits'].split()[0]} " in re.search(r".*<- the largest that fits", said["estimate"])[0]
        compare("fit_the_model.ipynb", tmp_path)


@pytest.mark.training
@pytest.mark.parametrize(("env", "gpu"), [("plain", False), ("torch", True)], indirect=["env"])
def test_training(tmp_path, env, gpu):
    """The training notebook shows PeakMemMetric's table, and a plain loop's leak in the epoch that leaks."""
    run("training.ipynb", tmp_path, env)
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
    if gpu:
        assert fits[0][2] in range(48, 72)  # thrice the model's 16 MB, and cuBLAS's two workspaces
        assert [figures[2:] for figures in fits[1:]] == [(0, 32), (0, 32)]
        assert [figures[2:] for figures in loops] == [(0, 0), (256, 0), (0, 0)]
    else:  # how much resident memory is malloc's habit is nobody's promise
        assert {figures[2:] for figures in (*fits, *loops)} == {(0, 0)}
    assert [line.split()[0] for line in said["loop"].splitlines()] == ["epoch", "0", "1", "2"]
    if gpu:
        compare("training.ipynb", tmp_path)
