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


PAIR = "argument -p/--parameters: expected 2 arguments"
RUN = [  # the words after the notebook's name, and what is said
    *((words, PAIR) for words in ("-p x", "-p", "-p5", "--parameters=null")),
    ("-p a;b 1", "'a;b' is not a valid name of a variable"),
    ("-f missing.yaml", "missing.yaml cannot be read"),
    ("--max-gpu lots", "'lots' is not a memory size"),
    ("--max-ram -1GB", "--max-ram"),
    ("--max-ram 10", "argument --max-ram: '10' has no unit: write a size such as 10GB"),
    ("--max-gpu 1.5", "argument --max-gpu: '1.5' has no unit: write a size such as 10GB"),
    *((f"--timeout {given}", f"'{given}' is not a number of seconds") for given in ("soon", "0", "nan")),
    ("--html .", ". is a folder"),
    ("--html nb.ipynb", "is the notebook itself"),
    ("--html x --log x", "x cannot be both the log and the page"),
    ("--log log.json", "the log log.json must be named .jsonl"),
    ("--log log.csv", "the log log.csv must be named .jsonl"),
    ("--output page.html", "the executed notebook page.html must be named .ipynb"),
    *((f"{option} nb.ipynb", "is the notebook itself") for option in ("--output", "--log")),
    *((f"{option} .", "is a folder") for option in ("--output", "--log")),
    *((f"{option} no/x", "there is no folder no") for option in ("--output", "--log")),
    ("--fast", "unrecognized arguments: --fast; ipygpulogger run --help tells more"),
    ("--peak=foo", "argument --peak: does not take 'foo'"),
]


@pytest.mark.parametrize(("words", "says"), RUN)
def test_options_that_make_no_sense(notebook, monkeypatch, capsys, words, says):
    """Words, and places that cannot be written: one sentence, exit 2, nothing run and nothing written."""
    path = notebook("open('ran', 'w')")
    monkeypatch.chdir(path.parent)
    assert refused(["run", "nb.ipynb", *words.split()], capsys, says)
    assert [p.name for p in path.parent.iterdir()] == ["nb.ipynb"]


@pytest.mark.linux("its /proc takes no files, from nobody")
@pytest.mark.parametrize("words", ["-o /proc/x.ipynb", "--log /proc/x.jsonl"])
def test_a_folder_that_takes_no_files(notebook, capsys, words):
    """It is refused before the run, and named as it was given."""
    path, target = notebook("open('ran', 'w')"), words.split()[1]
    assert refused(
        ["run", path, *words.split()], capsys, f"{target} is in a folder that may not be written\n"
    )
    assert not path.with_name("ran").exists()


NEAR = {
    "run --max-rma 3GB nb.ipynb": "ipygpulogger run: unrecognized arguments: --max-rma (did you mean '--max-ram'?);",
    "rnu nb.ipynb": "ipygpulogger: unknown command 'rnu' (did you mean 'run'?);",
    "--rnu": "ipygpulogger: unknown command '--rnu' (did you mean 'run'?);",
    "report log.jsonl --by neded": "(did you mean 'needed'?);",
}


@pytest.mark.parametrize("words", NEAR)
def test_what_may_have_been_meant(capsys, words):
    """A slip names the wrong word alone, the nearest right one, and the help that lists it."""
    assert refused(words.split(), capsys, NEAR[words])


def test_the_version(capsys):
    """--version: the program's name and the version of the package, exit 0."""
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert (stop.value.code, capsys.readouterr().out) == (0, f"ipygpulogger {ipygpulogger.__version__}\n")


@pytest.mark.parametrize("given", ["--tolerance 5", "--tolerance=-5%", "--tolerance nan%", "--floor 50"])
def test_tolerances_that_make_no_sense(tmp_path, capsys, given):
    """A percentage, as 5 could be 5 % or 500 %, and a size with its unit."""
    log = saved(tmp_path / "log.jsonl", made())
    says = "is not a percentage: write it like 5%"
    if "floor" in given:
        says = "'50' has no unit: write a size such as 10GB"
    assert refused(["compare", log, log, *given.split()], capsys, says)
