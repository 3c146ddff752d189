"""A log holds no text of the user's code unless it is asked for, and serves `compare` all the same."""

import json
from dataclasses import replace

import nbformat
import pytest
from command_line import made
from hypothesis import given, settings
from hypothesis import strategies as st
from made import UNSHRUNK, plain, records
from sessions import ram

from ipygpulogger import History, IPyGPULogger
from ipygpulogger.analysis.compare import compare
from ipygpulogger.cli import main
from ipygpulogger.cli.arguments import BadRequest
from ipygpulogger.cli.report import Results
from ipygpulogger.records import AtPeak, LineUsage, OutOfMemory
from ipygpulogger.records.cell_record import line_code
from ipygpulogger.records.process import Process, ProcessRecord
from ipygpulogger.render.lines import heaviest
from ipygpulogger.storage.formats import without_source
from ipygpulogger.storage.log import Log

MB = 2**20
SECRET = "hunter2"
CODE = f'key = "{SECRET}"  # {SECRET}'
KINDS = ("jsonl", "csv", "parquet")


CELLS = [
    f"token = '{SECRET}'",
    f"# {SECRET}",
    f"%env TOKEN={SECRET}",
    f"!echo {SECRET}",
    f"pass\nkept = (bytearray(b'x') * (8 << 20), '{SECRET}')  # {SECRET}",
    f"def made(key='{SECRET}'):\n    return bytearray(b'{SECRET}') * (1 << 20)",
    f"%%gpulog --lines --peak\nmade('{SECRET}')\nx = [made(key='{SECRET}') for _ in range(2)]  # {SECRET}",
    f"raise ValueError('{SECRET}', kept)",
    f"size = len(b'{SECRET}' * (1 << 20))",
    f"text = f'''\n{SECRET} {{len(made('{SECRET}'))}}\n'''",
]


def test_a_log_has_the_text_of_the_code_only_if_asked(shell, tmp_path, capsys, monkeypatch):
    """Texts, comments, arguments of magics, lines at the peak, errors: none is in a log, or in what is saved."""
    monkeypatch.setattr(shell, "showtraceback", lambda *_, **__: None)
    il = IPyGPULogger(log=tmp_path / "log.jsonl", lines=True, peak="all").start()
    for cell in CELLS:
        shell.run_cell(cell, store_history=True)
    for asked in (False, True):
        il.log_source = asked
        for kind in KINDS:
            shell.run_line_magic("gpulog", f"save {tmp_path}/{asked}.{kind}")
    il.log = tmp_path / "asked.jsonl"
    shell.run_cell(CELLS[0], store_history=True)
    il.stop()
    assert [row for record in il.history for row in record.at_peak if SECRET in row.name]
    assert SECRET in json.dumps(il.history.to_dicts())  # the session itself knows its cells
    for name in (
        "log.jsonl",
        "asked.jsonl",
        *(f"{asked}.{kind}" for asked in (False, True) for kind in KINDS),
    ):
        has_source = name.startswith(("asked", "True"))
        assert (SECRET.encode() in (tmp_path / name).read_bytes()) is has_source, name
        found = History.load(tmp_path / name)
        assert any(record.source for record in found) is has_source
    found = History.load(tmp_path / "log.jsonl")
    assert "x" in {one.name for record in found for one in record.owners}  # names stay
    assert len(found) == len(CELLS)


@settings(max_examples=15, phases=UNSHRUNK)
@given(record=records())
def test_a_record_without_source_has_its_figures(record):
    """All else is as it was: figures, names, places. To leave the source out twice changes nothing more."""
    bare = without_source(record)
    texts = {"source", "main_line", "code", "lines", "at_peak", "out_of_memory", "label", "process"}
    was, now = record.to_dict(), bare.to_dict()
    assert {k: v for k, v in was.items() if k not in texts} == {
        k: v for k, v in now.items() if k not in texts
    }
    for name in ("lines", "at_peak"):
        assert [{**one, "source": "", "name": ""} for one in was[name]] == [
            {**one, "source": "", "name": ""} for one in now[name]
        ]
    assert without_source(bare) == bare


def test_each_field_that_may_hold_a_line():
    """Names of rows that are lines give way to the place; names that are names stay, and so do those of tests."""
    rows = [
        AtPeak("cpu", "temporaries", CODE, "In [7]:3", 1, 1), AtPeak("cpu", "variables", "x, y and 3 more", "a:1", 1, 1),
        AtPeak("cpu", "variables", "model.fc1, Out[3]", "a:1", 1, 1), AtPeak("cpu", "variables", "a (deleted)", "a:1", 1, 1),
    ]  # fmt: skip
    line = LineUsage(1, CODE, 1, 1.0, ram(0, 32))
    oom = OutOfMemory("cpu", 1, 1, 1, 1, 1, 1, 0, 0, (), "", tuple(rows))
    whole = plain(source=CODE, main_line=CODE, lines=(line,), at_peak=tuple(rows), out_of_memory=oom)
    bare = without_source(whole)
    assert [row.name for row in bare.at_peak] == ["In [7]:3", *(row.name for row in rows[1:])]
    assert bare.out_of_memory.alive == bare.at_peak
    assert SECRET not in json.dumps(bare.to_dict())
    assert (bare.code_line, bare.label) == ("", whole.label)
    assert heaviest(bare.lines).startswith("heaviest line 1: +32 MB")
    for label in (CODE, "In [4]"):  # ipyparallel's, outside IPython and in it
        engine = Process("host", 1, 0, "engine 0", CODE)
        bare = without_source(ProcessRecord.of(replace(whole, label=label), engine))
        assert SECRET not in json.dumps(bare.to_dict())
        assert bare.title() == f"{'request' if label == CODE else label}, request on engine 0"
    assert (
        without_source(plain(source="tests/test_it.py", cell_id="test:it, call")).source == "tests/test_it.py"
    )


TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="'\\"), max_size=9)


@given(one=TEXTS, other=TEXTS, number=st.integers(0, 10**9))
def test_what_stands_for_a_line_tells_no_text(one, other, number):
    """Lines that differ in texts, comments, numbers or what follows a magic have the same digits."""
    for line in (
        "key = '{}'",
        "x = f(1)  # {}",
        "%env A={}",
        "!curl {}",
        "x = !curl {}",
        "x = %sx {}",
        "f({}0)",
    ):
        texts = (number, number // 2) if line == "f({}0)" else (one, other)
        assert len({line_code(plain(source=line.format(text))) for text in texts}) == 1
    lines = ("x = f(1)", "y = f(1)", "x = g(1)", "x1 = f(1)", "%env A", "for x in y:")
    assert len({line_code(plain(source=line)) for line in lines}) == len(lines)


def cell(source, peak_mb, count=1):
    return made(peak_mb, source=source, execution_count=count, label=f"In [{count}]")


def test_two_logs_without_source_are_compared(tmp_path, capsys):
    """Cells without ids are matched by their first lines where none is told; against a log that tells them, too."""
    base = [cell("a = load('x')", 100, 1), cell("b = step(a)", 200, 2), cell("c = step(b)", 300, 3)]
    new = [base[0], cell("new = 1", 50, 2), cell("b = step(a)", 250, 3), cell("c = step(b)", 300, 4)]
    for was in (base, list(map(without_source, base))):
        found = compare(was, map(without_source, new))
        assert [(pair.before.label, pair.after.label) for pair in found.pairs] == [
            ("In [1]", "In [1]"), ("In [2]", "In [3]"), ("In [3]", "In [4]"),
        ]  # fmt: skip
        assert ([pair.after.label for pair in found.regressed], len(found.new)) == (["In [3]"], 1)
    for name, cells in (("base", base), ("new", new)):
        History(cells).save(tmp_path / f"{name}.jsonl")
    assert main(["compare", str(tmp_path / "base.jsonl"), str(tmp_path / "new.jsonl")]) == 1
    told = capsys.readouterr().out
    assert "new: In [2]\n" in told
    assert "In [3]  (1.000 s; was 1.000 s)\n" in told


def test_cells_that_nothing_tells_apart_are_no_suspects():
    """Without id and source no run is taken for another of the same cell; with an id it is."""
    grown = [plain(gen=ram(10 * i, 10 * i + 10), cell_id=None, execution_count=i + 1) for i in range(4)]
    assert History(grown).suspects()
    assert not History(map(without_source, grown)).suspects()
    assert History([without_source(replace(one, cell_id="a")) for one in grown]).suspects()


def test_the_command_line(tmp_path, capsys):
    """`run --log` leaves the source out and `--log-source` keeps it; the page of such a log says so."""
    path, log, page = tmp_path / "nb.ipynb", tmp_path / "log.jsonl", tmp_path / "page.html"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CODE)]), path)
    for options, has_source in ([], False), (["--log-source"], True):
        assert main(["run", str(path), "--log", str(log), *options]) == 0
        assert SECRET in capsys.readouterr().out
        assert (SECRET in log.read_text()) is has_source
        assert main(["report", str(log), "--html", str(page)]) == 0
        assert (SECRET in capsys.readouterr().out) is (SECRET in page.read_text()) is has_source
        assert ("not in this log" in page.read_text()) is not has_source
    with pytest.raises(BadRequest, match="--log-source belongs to --log"):
        Results(None, log_source=True)


def test_the_default_is_without(tmp_path):
    """Whoever writes records in another way asks, too."""
    path = tmp_path / "log.jsonl"
    Log(path).append(plain(source=CODE))
    assert SECRET not in path.read_text()
    Log(path).append(plain(source=CODE), log_source=True)
    assert [one.source for one in History.load(path)] == ["", CODE]
