"""`ipygpulogger report` and `compare`: logs, saved notebooks, the page; what grew, and the exit status."""

import contextlib
import errno
import io
import json
import os
import tempfile
from pathlib import Path

import nbclient
import nbformat
import pytest
from command_line import command, made, refused, saved
from hypothesis import given, settings
from hypothesis import strategies as st

from ipygpulogger.cli import main
from ipygpulogger.cli import report as reports
from ipygpulogger.render import page as pages


def test_report_of_a_log_and_of_the_notebook(notebook, tmp_path):
    """The log and the executed notebook of one run tell the same."""
    path, log = notebook("x = 1\ny = 2", "len(b'x' * (300 << 20))"), tmp_path / "log.jsonl"
    assert command("run", path, "--log", log, "--log-source").returncode == 0
    executed = path.with_name("nb.executed.ipynb")
    reports = [
        command("report", source, "--html", tmp_path / f"{source.name}.html") for source in (log, executed)
    ]
    assert [done.returncode for done in reports] == [0, 0], reports
    assert reports[0].stdout == reports[1].stdout
    first, second = (reports[0].stdout.index(word) for word in ("len(b'x'", "x = 1"))
    assert first < second  # the higher peak first
    for name in "nb.executed.ipynb", "log.jsonl":
        page = (tmp_path / f"{name}.html").read_text()
        assert "x = 1" in page
        assert page.count('<details class="cell') == 2


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
    cells = (tmp_path / "page.html").read_text().count('<details class="cell')
    assert cells == 2  # the cell that only loads it has no report


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


def test_a_log_without_code(tmp_path, capsys):
    """Where a log names no cell by its code, the report says how it would."""
    for source, lines in (("", 1), ("x = 1", 0)):
        assert main(["report", str(saved(tmp_path / "log.jsonl", made(source=source)))]) == 0
        said = capsys.readouterr().err
        assert said.count("--log-source") == lines, said


def test_the_page_is_not_the_log(tmp_path, capsys):
    """A page over its own log is refused, and the log is what it was."""
    log = saved(tmp_path / "log.jsonl", made())
    before = log.read_bytes()
    assert refused(["report", log, "--html", log], capsys, "is the log itself")
    assert log.read_bytes() == before


def test_a_page_that_cannot_be_written(tmp_path, capsys, monkeypatch):
    """A full disk: one sentence that names the page, as `run` says it."""
    log, page = saved(tmp_path / "log.jsonl", made()), tmp_path / "page.html"

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(reports, "write_file", full)
    assert main(["report", str(log), "--html", str(page)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].endswith(f"{page} could not be written: {os.strerror(errno.ENOSPC)}")


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
    assert main(["compare", str(base), str(new), *words, "--all"]) == status
    out = capsys.readouterr().out
    assert ("GREW" in out) == bool(status)
    assert f"{before_mb:8}{after_mb:8}" in out


def test_nothing_in_common(tmp_path, capsys):
    """Two runs without a cell in common prove nothing: exit 2."""
    one, two = (saved(tmp_path / f"{word}.jsonl", made(source=word)) for word in ("one", "two"))
    assert refused(["compare", one, two], capsys, "have no cell in common")


def test_a_log_of_which_nothing_is_left(tmp_path, capsys):
    """Its only line was cut short: that, and that no record is left."""
    log = saved(tmp_path / "log.jsonl", made())
    log.write_bytes(log.read_bytes()[:40])
    assert refused(
        ["report", log], capsys, "line 1: this line was cut short and is left out; no record is left\n"
    )
