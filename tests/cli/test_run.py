"""`ipygpulogger run`: what it prints, logs and keeps of each cell, the budgets, parameters, other processes."""

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from command_line import MB, command, executed, is_executed, made, records, refused
from sessions import ram

from ipygpulogger import History
from ipygpulogger.cli import main
from ipygpulogger.cli.report import Results
from ipygpulogger.cli.run import judge
from ipygpulogger.records import MIME, DeviceUsage, Peak


def test_a_refused_magic_says_why(notebook):
    """A `UsageError` has no traceback: its reason is printed below the cell's line all the same."""
    done = command("run", notebook("%gpulog nonsense", "2", tags={0: "raises-exception"}))
    assert done.returncode == 0
    assert "    UsageError: %gpulog has no 'nonsense'" in done.stderr


def test_run_reports_every_cell(notebook, tmp_path):
    """Each cell's line is printed, its record logged, its report kept in the executed notebook; the original stays."""
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
    first, second, third, end = done.stdout.splitlines()
    figures = r"\[{}/3\]  \d\.\d\d s  {} → \d+ MB +{}"
    assert re.fullmatch(figures.format(1, r"RAM \+96 MB", r"x = bytearray\(b'x'\) \* \(96 << 20\)"), first)
    assert re.fullmatch(figures.format(2, r"RAM needed 20\d MB", r"len\(b'x' \* \(200 << 20\)\)"), second)
    assert first.index("x = ") == second.index("len")
    bounded = re.search("(, needed 0 to 20\\d)?", third.partition(" MB")[2])[
        0
    ]  # where the mark cannot be reset
    assert re.fullmatch(figures.format(3, f"RAM \u221296 MB{bounded}", "del x"), third)
    assert bounded or second.index("len") == third.index("del")
    assert done.stderr.splitlines() == [f"executed notebook: {path.with_name('nb.executed.ipynb')}"]
    highest = round(peak["lo_bytes"] / MB)
    assert re.fullmatch(rf"3 cells in \d\.\d\d s · highest RAM {highest} MB, raised by In \[2\]", end)
    assert "Traceback" not in done.stderr
    assert path.read_bytes() == before
    nb = executed(path)
    nbformat.validate(nb)
    reports = [o for cell in nb.cells for o in cell.outputs if o.output_type == "display_data"]
    assert len(reports) == 3
    assert {"text/plain", "text/html", MIME} == set(reports[0].data)
    assert [r["cell_id"] for r in records(log)] == [cell.id for cell in nb.cells if cell.outputs]
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
    assert f"<p class=said>{said}</p>" in page.read_text(encoding="utf-8")
    after = executed(path).cells
    assert [cell.cell_type for cell in after] == cells
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in after)


def test_the_notebook_runs_in_its_own_folder_and_numbering(notebook, tmp_path):
    """As in Jupyter: relative paths, In [1] first; a notebook may load the extension itself.

    c.IPyGPULogger.report = 'none' is for notebooks that are open; run reports all the same.
    """
    profile = tmp_path / "ipython" / "profile_default"
    profile.mkdir(parents=True)
    (profile / "ipython_config.py").write_text("c = get_config()\nc.IPyGPULogger.report = 'none'\n")
    path = notebook("%load_ext ipygpulogger", "import os; print(sorted(os.listdir('.')), il.running)")
    done = command("run", path, env={**os.environ, "IPYTHONDIR": str(tmp_path / "ipython")})
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\[2/2\]  \d\.\d\d s  RAM .*\d+ MB ", done.stdout, re.MULTILINE)
    first, second = executed(path).cells
    assert [first.execution_count, second.execution_count] == [1, 2]
    assert first.outputs == []  # our own magics report nothing on themselves
    assert second.outputs[0].text == "['ipython', 'nb.ipynb'] True\n"


def test_the_page(notebook, tmp_path):
    """--html: one page with every cell's report and whole source, escaped; it says why the run ended early."""
    path = notebook("a = '<u>'\nb = 2", "raise ValueError('<i>')", name="my <nb>.ipynb")
    page = tmp_path / "page.html"
    done = command("run", path, "--html", page)
    assert done.returncode == 1, done.stderr
    text = page.read_text(encoding="utf-8")
    assert "<h1>my &lt;nb&gt;</h1>" in text
    assert "a = &#x27;&lt;u&gt;&#x27;\nb = 2" in text
    assert "stopped at the cell that failed: ValueError: &lt;i&gt;" in text
    assert text.count('<details class="cell') == 2
    assert "<u>" not in text
    assert text.count("<script") == 1  # ours


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
    compared = command("compare", *logs, "--all")
    assert "of 3 cells" in compared.stdout
    assert "new: " not in compared.stdout


def test_a_budget_of_ram(notebook, tmp_path):
    """--max-ram: the whole notebook runs, each cell over it is named with its excess, all is kept: exit 1."""
    path, log = notebook("1", "len(b'x' * (300 << 20))", "2"), tmp_path / "log.jsonl"
    done = command("run", path, "--log", log, "--max-ram", "256MB")
    assert done.returncode == 1
    (said,) = [line for line in done.stderr.splitlines() if "over --max-ram" in line]
    peak = records(log)[1]["gen"]["peak"]["lo_bytes"]
    assert said == (
        f"ipygpulogger: In [2]: len(b'x' * (300 << 20)): highest {round(peak / MB)} MB in RAM,"
        f" {round(peak / MB - 256)} MB over --max-ram 256 MB"
    )
    assert done.stdout.splitlines()[-1].endswith(
        f"highest RAM {round(peak / MB)} MB, raised by In [2] · over budget: In [2]"
    )
    assert len(records(log)) == 3
    assert is_executed(path)
    done = command("run", path, "--max-ram", "100GB", "--max-gpu", "1GB")
    assert done.returncode == 0
    assert "ipygpulogger: no GPU was used, so there was nothing for --max-gpu to judge\n" in done.stderr


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
    (said,) = [line for line in done.stderr.splitlines() if "over --max-gpu" in line]
    assert said.endswith("highest 1100 MB on cuda:0, 50 MB over --max-gpu 1050 MB")
    assert command("run", path, "--max-gpu", "1100MB", env=kernel_env).returncode == 0


def test_a_cell_that_is_still_over(notebook, tmp_path):
    """The cell that went above the budget is named and counted; those that began above it are told on one line."""
    path = notebook("x = bytearray(b'x') * (300 << 20)", "y = 1", "del x", "2")
    page = tmp_path / "page.html"
    done = command("run", path, "--max-ram", "256MB", "--html", page)
    assert done.returncode == 1
    over, still, _, _ = done.stderr.splitlines()
    assert re.fullmatch(
        r"ipygpulogger: In \[1\]: x = .*: highest \d+ MB in RAM, \d+ MB over --max-ram 256 MB", over
    )
    assert still == "ipygpulogger: still over --max-ram 256 MB in RAM, as when they began: In [2], In [3]"
    assert done.stdout.splitlines()[-1].endswith(", raised by In [1] · over budget: In [1]")
    assert "<dt>Highest RAM</dt>" in page.read_text()
    assert re.search(r"<dt>Highest RAM</dt><dd>\d+ MB</dd><dd>raised by In \[1\]</dd>", page.read_text())


def judged(*cells, ram=None, gpu=None):
    results = Results(None)
    results.keep(cells)
    judge(results, SimpleNamespace(max_ram=ram, max_gpu=gpu))
    return results


def test_a_cell_that_began_over_and_needs_more(capsys):
    """It is an offender too, as it raised memory further, and how far it was over before is said."""
    first = made(300, gen=ram(100, 300))
    second = made(gen=ram(300, 320, 500), label="In [2]")
    results = judged(first, second, ram=200 * MB)
    one, two = results.problems
    assert one == "In [1]: x = 1: highest 300 MB in RAM, 100 MB over --max-ram 200 MB"
    assert two == "In [2]: x = 1: highest 500 MB in RAM, 300 MB over --max-ram 200 MB; it began 100 MB over"
    assert results.over == [first, second]


def test_a_parameter_that_the_notebook_does_not_have(notebook, capsys):
    """One line on stderr; those that its cell of parameters sets, however it does, are no news."""
    path = notebook("lr: float = 1.0; a, b = 1, 2\nfor i in []: n = 0", "1", tags={0: "parameters"})
    known = [word for name in ("lr", "a", "b", "n") for word in ("-p", name, "1")]
    assert main(["run", str(path), *known, "-p", "rate", "1", "-p", "epoch", "2"]) == 0
    err = capsys.readouterr().err
    assert err.splitlines()[0] == "ipygpulogger: the notebook's cell of parameters does not set rate, epoch"
    assert main(["run", str(path), *known]) == 0
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_budget_nobody_can_judge():
    """A device that the process uses, nobody knows how much of: no silent pass."""
    device = DeviceUsage(0, 0, Peak(0, None, "sampled"), index=0, name="x", backend="nvml", attributed=False)
    cell = made(gpus=(device,))
    results = judged(cell, gpu=1)
    (said,) = results.problems
    assert results.over == []
    assert "--max-gpu cannot be judged on nvml:0" in said
    assert judged(cell).problems == []


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
    assert done.stdout.count("  not measured  ") == 3


BEFORE = ["il.report = 'text'", "il.report = 'none'; get_ipython = json = None"]
BEFORE += ["get_ipython().run_cell('1', store_history=True); il = None"]


@pytest.mark.parametrize("before", BEFORE)
def test_records_whatever_the_notebook_does(notebook, tmp_path, before):
    """A silenced report, shifted counts, shadowed names: every cell's record, and the budget sees its peak."""
    path = notebook(before, "len(b'x' * (300 << 20))", "1 / 0", "2", tags={2: "raises-exception"})
    log = tmp_path / "log.jsonl"
    done = command("run", path, "--log", log, "--max-ram", "256MB")
    assert done.returncode == 1, done.stderr
    assert "left no record" not in done.stderr
    assert done.stderr.count("over --max-ram 256 MB") == 1
    assert [r["cell_id"] for r in records(log)] == [cell.id for cell in executed(path).cells]
    assert [r["status"] for r in records(log)] == ["ok", "ok", "error", "ok"]
    assert [line.split()[0] for line in done.stdout.splitlines()[:-1]] == [f"[{i}/4]" for i in (1, 2, 3, 4)]
    assert "not measured" not in done.stdout


def test_old_outputs_are_not_new(notebook, tmp_path):
    """A run that ends early leaves no outputs, counts or records of an earlier one."""
    path = notebook("1 / 0", "2", tags={0: "raises-exception"})
    old = tmp_path / "old.ipynb"
    assert command("run", path, "--output", old).returncode == 0
    nb = nbformat.read(old, as_version=4)
    assert len(History.load(old)) == 2
    nb.cells[0].metadata["tags"] = []
    nbformat.write(nb, old)
    assert command("run", old).returncode == 1
    second = executed(old).cells[1]
    assert (second.execution_count, second.outputs) == (None, [])
    assert [record.status for record in History.load(old.with_name("old.executed.ipynb"))] == ["error"]


def test_parameters(notebook, tmp_path):
    """-p and -f: a cell after the tagged one, typed as papermill does; -p wins; numbering as it is."""
    check = "assert (lr, name, n, x) == (-5000.0, '--fast', 7, '--slow'), (lr, name, n, x)"
    path = notebook("lr = 1.0; name = 'a'; n = 0; x = 1", check, tags={0: "parameters"})
    before = path.read_bytes()
    values = tmp_path / "values.yaml"
    values.write_text("lr: 5\nn: 7\nname: --fast\n")
    done = command("run", path, "-p", "lr", "-5e3", "-f", values, "-p", "x", "--slow")
    assert done.returncode == 0, done.stderr
    injected = executed(path).cells[1]
    assert injected.metadata["tags"] == ["injected-parameters"]
    assert injected.source == "# Parameters\nlr = -5000.0\nn = 7\nname = '--fast'\nx = '--slow'"
    assert path.read_bytes() == before


def test_the_parameters_stay(notebook, tmp_path, capsys):
    """No target may be the file of parameters."""
    path = notebook("1")
    for option, suffix in ("--output", ".ipynb"), ("--log", ".jsonl"), ("--html", ".html"):
        values = tmp_path / f"values{suffix}"
        values.write_text('{"x": 1}')
        assert refused(["run", path, "-f", values, option, values], capsys, "the file of parameters itself")
        assert values.read_text() == '{"x": 1}'


TESTS = str(Path(__file__).resolve().parent.parent)
WATCH = f"""
import sys
sys.path.insert(0, {TESTS!r})
from processes import of
from ipygpulogger.analysis.group import Group
from ipygpulogger.cluster.watcher import Watch, keep

class OfTheTest(Watch):
    done = ()
    leave = describe = lambda self: ""

    def ended(self, label):
        found, self.done = self.done, ()
        return [Group(label, found)] if found else []

watching = OfTheTest(None)
watching.started()
"""


def test_all_processes_are_logged_and_judged(notebook, tmp_path):
    """Each behind the cell it worked for; the rank over the budget is named; the log is read again."""
    path = notebook(WATCH, "watching.done = [of(0, 100), of(1, 9000)]", "x = 1", "kept = keep([of(7, 50)])")
    log, page = tmp_path / "log.jsonl", tmp_path / "page.html"
    done = command("run", path, "--log", log, "--html", page, "--max-ram", "8GB")
    assert done.returncode == 1, done.stderr
    over = "In [1], rank 1: x: highest 9500 MB in RAM, 1308 MB over --max-ram 8192 MB"
    assert over in done.stderr, done.stderr
    assert done.stderr.count("over --max-ram") == 1
    ranks = [one.get("process", {}).get("rank") for one in records(log)]
    assert ranks == [None, None, 0, 1, None, None, 7]
    assert "rank 1" in page.read_text()
    done = command("report", log)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("4 cells and 3 records of other processes, ")
    assert "highest: RAM 9.3 GB, raised by In [1], rank 1" in done.stdout
    assert command("compare", log, log).returncode == 0


def test_records_in_the_metadata_and_nothing_in_the_output(notebook, tmp_path):
    """report="metadata": no report, the record in each cell's metadata, from which it is loaded; run again, the new one."""
    path = notebook("%gpulog start report=metadata", "x = bytearray(b'x') * (96 << 20)", "1 + 1", "1 / 0")
    for _ in range(2):
        log = tmp_path / "log.jsonl"
        log.unlink(missing_ok=True)
        done = command("run", path, "--log", log, "--log-source", "--allow-errors")
        assert done.returncode == 0, done.stderr
        nb = executed(path)
        nbformat.validate(nb)
        assert [len(cell.outputs) for cell in nb.cells] == [0, 0, 1, 1]
        kept = [cell.metadata.get("ipygpulogger") for cell in nb.cells]
        assert kept[0] is None
        loaded = History.load(path.with_name("nb.executed.ipynb"))
        assert list(loaded) == list(History.load(log))[1:]
        assert [one.status for one in loaded] == ["ok", "ok", "error"]
        assert round(loaded[0].gen.consumed_bytes / MB) == 96
        path.write_bytes(path.with_name("nb.executed.ipynb").read_bytes())
