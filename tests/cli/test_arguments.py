"""The words of the command line that make no sense: one sentence, exit 2, nothing done."""

import pytest
from command_line import command, made, refused, saved

import ipygpulogger
from ipygpulogger.cli import main


def test_bad_words():
    """No command, or an unknown one: argparse's usage and exit 2."""
    for arguments in ((), ("walk",), ("run",), ("doctor", "--fast")):
        done = command(*arguments)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["-p", "x"], "-p takes two words"),
        (["-p"], "-p takes two words"),
        (["-p", "a b", "1"], "'a b' is not a valid name of a variable"),
        (["-f", "missing.yaml"], "missing.yaml cannot be read"),
        (["--max-gpu", "lots"], "'lots' is not a memory size"),
        (["--max-ram", "-1GB"], "--max-ram"),
        (["--max-ram", "10"], "argument --max-ram: '10' has no unit: write a size such as 10GB"),
        (["--max-gpu", "1.5"], "argument --max-gpu: '1.5' has no unit: write a size such as 10GB"),
        (["--timeout", "soon"], "'soon' is not a number of seconds"),
        (["--timeout", "0"], "'0' is not a number of seconds"),
        (["--timeout", "nan"], "'nan' is not a number of seconds"),
        (["--html", "."], ". is a folder"),
        (["--html", "nb.ipynb"], "is the notebook itself"),
        (["--html", "x", "--log", "x"], "x cannot be both the log and the page"),
        (["--log", "log.json"], "the log log.json must be named .jsonl"),
        (["--log", "log.csv"], "the log log.csv must be named .jsonl"),
        (["-p5"], "-p takes two words"),
        (["--parameters=null"], "-p takes two words"),
        (['--parameters={"a":1,"b":2}'], "-p takes two words"),
        (['--parameters={"a":"1","b":"2"}'], "-p takes two words"),
        (['--parameters="ab"'], "-p takes two words"),
        (['--parameters=["a",1]'], "-p takes two words"),
        (["--parameters=" + "[" * 10**5], "-p takes two words"),
        (["--fast"], "unrecognized arguments: --fast"),
    ],
)
def test_options_that_make_no_sense(notebook, monkeypatch, capsys, words, says):
    """One sentence, exit 2, nothing run and nothing written."""
    path = notebook("open('ran', 'w')")
    monkeypatch.chdir(path.parent)
    assert refused(["run", str(path), *words], capsys, says)
    assert [p.name for p in path.parent.iterdir()] == ["nb.ipynb"]


def test_the_version(capsys):
    """--version: the program's name and the version of the package, exit 0."""
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert (stop.value.code, capsys.readouterr().out) == (0, f"ipygpulogger {ipygpulogger.__version__}\n")


@pytest.mark.parametrize(
    "words", [["--tolerance", "5"], ["--tolerance=-5%"], ["--tolerance", "nan%"], ["--tolerance", "5%%"]]
)
def test_tolerances_that_make_no_sense(tmp_path, capsys, words):
    """A percentage and nothing else: 5 could be 5 % or 500 %."""
    log = saved(tmp_path / "log.jsonl", made())
    assert refused(["compare", log, log, *words], capsys, "is not a percentage: write it like 5%")


def test_a_floor_without_a_unit(tmp_path, capsys):
    """compare --floor 50: one sentence that shows a size, exit 2."""
    log = saved(tmp_path / "log.jsonl", made())
    assert refused(
        ["compare", log, log, "--floor", "50"], capsys, "'50' has no unit: write a size such as 10GB"
    )
