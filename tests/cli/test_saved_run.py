"""Logs and notebooks that cannot be read, or not whole: one sentence each."""

import pytest
from command_line import made, refused, saved

from ipygpulogger.cli import main


@pytest.mark.parametrize("command", ["report", "compare", "compare it"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("missing.jsonl", None),
        ("missing.ipynb", None),
        ("folder.jsonl", ...),
        ("folder.ipynb", ...),
        ("empty.jsonl", b""),
        ("empty.csv", b""),
        ("empty.parquet", b""),
        ("empty.ipynb", b""),
        ("garbage.jsonl", bytes(range(256))),
        ("garbage.csv", bytes(range(256))),
        ("garbage.parquet", bytes(range(256))),
        ("garbage.ipynb", bytes(range(256))),
        ("lists.jsonl", b"[1]\n[2]\n"),
        ("others.jsonl", b'{"a": 1}\n{"b": 2}\n'),
        ("deep.jsonl", b"[" * 100_000 + b"\n"),
        ("columns.csv", b"a,b\n1,2\n"),
        ("list.ipynb", b"[]"),
        ("number.ipynb", b"3"),
        ("cells.ipynb", b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": 3}'),
        ("plain.ipynb", b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": []}'),
        ("words.txt", b"hello"),
        ("words", b"hello"),
    ],
)
def test_what_is_no_log(tmp_path, command, name, content, capsys):
    """Missing, a folder, empty, binary, another's, of another kind: one sentence, exit 2, nothing written."""
    good, bad, page = saved(tmp_path / "good.jsonl", made()), tmp_path / name, tmp_path / "page.html"
    page.write_text("precious")
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
def test_numbers_beyond_all_sizes(tmp_path, monkeypatch, capsys, words):
    """A log whose only record has an impossible number: one sentence, exit 2, nothing written."""
    monkeypatch.chdir(tmp_path)
    huge = saved(tmp_path / "huge.jsonl", made(peak_mb=10**400))
    logs = [huge, huge] if words == ["compare"] else [huge]
    says = "gen.peak.lo_bytes is a number that no machine can have measured; it is left out"
    assert refused([words[0], *logs, *words[1:]], capsys, says)
    assert [p.name for p in tmp_path.iterdir()] == ["huge.jsonl"]


@pytest.mark.parametrize("words", [["report"], ["report", "--html", "page.html"], ["compare"]])
def test_an_impossible_number_costs_its_record_alone(tmp_path, monkeypatch, capsys, words):
    """The others are ranked, drawn and compared, and one sentence on stderr tells of the lost one."""
    monkeypatch.chdir(tmp_path)
    good, huge = made(source="good()"), made(source="huge()", peak_mb=2**70)
    log = saved(tmp_path / "log.jsonl", good, huge, made(source="more()"))
    logs = [log, log] if words == ["compare"] else [log]
    assert main([words[0], *map(str, logs), *words[1:]]) == 0
    out, err = capsys.readouterr()
    assert ("good()" in out, "more()" in out, "huge()" in out) == (True, True, False)
    told = [line for line in err.splitlines() if "page:" not in line]
    assert len(told) == len(logs)
    for line in told:
        assert line.startswith(f"ipygpulogger: {log}, line 2: not a valid cell record: gen.peak.lo_bytes is")


def test_a_line_cut_short(tmp_path, capsys):
    """The half line of a kernel that was killed is left out, and that is said; the rest counts."""
    log = saved(tmp_path / "log.jsonl", made(source="whole"), made(source="torn"))
    log.write_bytes(log.read_bytes()[:-20])
    assert main(["report", str(log)]) == 0
    out, err = capsys.readouterr()
    assert "whole" in out
    assert "torn" not in out
    assert err.startswith("ipygpulogger: ")
    assert "cut short" in err
    assert len(err.splitlines()) == 1
