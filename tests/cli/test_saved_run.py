"""Logs and notebooks that cannot be read, or not whole: one sentence each."""

import pytest
from command_line import made, refused, saved

from ipygpulogger.cli import main

GARBAGE, CELLS = bytes(range(256)), b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": '
CONTENT = {  # of a file that is no log; None: it is missing, ...: a folder
    **dict.fromkeys(("missing.jsonl", "missing.ipynb")),
    **dict.fromkeys(("folder.jsonl", "folder.ipynb"), ...),
    **dict.fromkeys(("empty.jsonl", "empty.csv", "empty.parquet", "empty.ipynb"), b""),
    **dict.fromkeys(("garbage.jsonl", "garbage.csv", "garbage.parquet", "garbage.ipynb"), GARBAGE),
    "lists.jsonl": b"[1]\n[2]\n",
    "others.jsonl": b'{"a": 1}\n{"b": 2}\n',
    "deep.jsonl": b"[" * 100_000 + b"\n",
    "columns.csv": b"a,b\n1,2\n",
    "list.ipynb": b"[]",
    "number.ipynb": b"3",
    "cells.ipynb": CELLS + b"3}",
    "plain.ipynb": CELLS + b"[]}",
    **dict.fromkeys(("words.txt", "words"), b"hello"),
}


@pytest.mark.parametrize("command", ["report", "compare", "compare it"])
@pytest.mark.parametrize("name", CONTENT)
def test_what_is_no_log(tmp_path, command, name, capsys):
    """Missing, a folder, empty, binary, another's, of another kind: one sentence, exit 2, nothing written."""
    good, bad, page = saved(tmp_path / "good.jsonl", made()), tmp_path / name, tmp_path / "page.html"
    page.write_text("precious")
    content = CONTENT[name]
    if content is ...:
        bad.mkdir()
    elif content is not None:
        bad.write_bytes(content)
    arguments = {
        "report": ["report", bad, "--html", page],
        "compare": ["compare", good, bad],
        "compare it": ["compare", bad, good],
    }
    assert refused(arguments[command], capsys, name)
    assert page.read_text() == "precious"


@pytest.mark.parametrize("words", [["report"], ["report", "--html", "page.html"], ["compare"]])
def test_an_impossible_number_costs_its_record_alone(tmp_path, monkeypatch, capsys, words):
    """The others are ranked, drawn and compared, and one sentence tells of the lost one; without others, exit 2."""
    monkeypatch.chdir(tmp_path)
    huge = saved(tmp_path / "huge.jsonl", made(peak_mb=10**400))
    log = saved(tmp_path / "log.jsonl", made(source="good()"), made(source="huge()", peak_mb=2**70), made())
    count = 2 if words == ["compare"] else 1
    says = "gen.peak.lo_bytes is a number that no machine can have measured; it is left out"
    assert refused([words[0], *[huge] * count, *words[1:]], capsys, says)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["huge.jsonl", "log.jsonl"]
    shown = ["--all"] if words == ["compare"] else words[1:]
    assert main([words[0], *[str(log)] * count, *shown]) == 0
    out, err = capsys.readouterr()
    assert ("good()" in out, "x = 1" in out, "huge()" in out) == (True, True, False)
    told = [line for line in err.splitlines() if "page:" not in line]
    assert len(told) == count
    for line in told:
        assert line.startswith(f"ipygpulogger: {log}, line 2: not a valid cell record: gen.peak.lo_bytes is")
