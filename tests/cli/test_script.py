"""`ipygpulogger run script.py`: measured like a cell, and in all else what `python script.py` is."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import MB, command, records, refused

from ipygpulogger import History
from ipygpulogger.cli import main
from ipygpulogger.cli import script as cli_script

RUN = [sys.executable, "-m", "ipygpulogger", "run"]
REPORT = re.compile(r"RAM: Consumed .*\nGen: .*\n")


@pytest.fixture
def script(tmp_path):
    """Write a script; its path."""

    def write(source, name="train.py"):
        (tmp_path / name).write_text(source)
        return tmp_path / name

    return write


def ran(*words, **options):
    return subprocess.run(
        list(map(str, words)), capture_output=True, text=True, check=False, timeout=120, **options
    )


NEEDS = """
import os
x = bytearray(b"x") * (96 << 20)
def f():
    return bytearray(b"x") * (200 << 20)
len(f())
os.chdir("/")
"""


def test_a_script_is_measured_as_a_cell_is(script, tmp_path, monkeypatch):
    """One record with exact figures, its report on stderr alone; log and page are where they were asked for."""
    path = script(NEEDS)
    monkeypatch.chdir(tmp_path)
    done = ran(*RUN, "--log", "log.jsonl", "--html", "page.html", "--lines", "--log-source", "train.py")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert re.search(
        r"RAM: Consumed Peaked  Used Total in \d\.\d{3}s \(train\.py\)\nGen: +96 +200 ", done.stderr
    )
    (record,) = History.load("log.jsonl")
    assert (record.label, record.status, record.execution_count) == ("train.py", "ok", None)
    assert abs(record.gen.consumed_bytes - 96 * MB) < 2 * MB
    assert abs(record.gen.needed_bytes - 296 * MB) < 2 * MB
    heaviest = max(record.lines, key=lambda line: line.gen.needed_bytes // MB)  # but for a page
    assert (heaviest.lineno, record.code_line) == (5, 'return bytearray(b"x") * (200 << 20)')
    assert "    return bytearray" in done.stderr  # as it is indented
    page = (tmp_path / "page.html").read_text()
    assert "<h1>train.py</h1>" in page
    assert "os.chdir(&quot;/&quot;)" in page
    assert main(["compare", "log.jsonl", "log.jsonl"]) == 0
    assert path.read_text() == NEEDS


def test_what_was_alive_at_the_peak(script):
    """--peak: its names and lines."""
    pytest.importorskip("memray")
    done = ran(*RUN, "--peak", script(NEEDS))
    assert done.returncode == 0
    assert re.search(r"At the peak: 29\d MB of ", done.stderr)
    assert re.search(r"train\.py:5 +200 MB", done.stderr)
    assert re.search(r"x +train\.py:3 +96 MB", done.stderr)


@pytest.mark.linux("memray does not run on Windows", "macos")
def test_a_peak_that_cannot_be_known_is_said_at_once(monkeypatch, capsys):
    """Without memray, before the script has run: with the command that installs it."""
    monkeypatch.setattr(cli_script, "installed", lambda: False)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(cli_script.machine().notes, "_told", set())
    cli_script._recording("all")
    assert "pip install 'ipygpulogger[memray]'" in capsys.readouterr().err
    assert not cli_script.machine().notes.is_new(cli_script.ABSENT), "the report would say it again"


ENDS = {
    "its end": "print(1)",
    "exit": "import sys; sys.exit()",
    "exit 0": "raise SystemExit(0)",
    "exit 7": "import sys; sys.exit(7)",
    "words": "import sys; sys.exit('no data')",
    "an error": "def f():\n    return 1 / 0\ntry:\n    f()\nexcept ZeroDivisionError as e:\n    raise KeyError('é') from e",
    "a mistake": "x = = 1",
    "null": "x = '\\0'\nexec('\\0')",
    "hook": "import sys\nsys.excepthook = lambda kind, error, tb: print(kind, error, tb.tb_lineno)\n1 / 0",
    "ctrl-c": "import os, signal, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)",
    "caught": "import os, signal, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(60)\nexcept KeyboardInterrupt: print('mine')",
    "term": "import os, signal, time\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(60)",
    "handled": "import os, signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\nos.kill(os.getpid(), signal.SIGTERM)\nsignal.pause()",
    "at exit": "import atexit, sys\natexit.register(print, 'last', file=sys.stderr)\n1 / 0",
    "child": "import os\nif os.fork():\n    print(os.wait()[1])\nelse:\n    raise ValueError",
    "thread": "import threading\nthreading.Thread(target=lambda: (threading.main_thread().join(), print('t'))).start()",
    "os._exit": "import os; os._exit(4)",
}


@pytest.mark.linux("no signal ends a program there, and nothing forks", "macos")
@pytest.mark.parametrize("end", ENDS)
def test_it_ends_as_it_would_alone(script, end):
    """Exit status, signal, stdout, and stderr but for our report: all as Python has it, tracebacks included."""
    path = script(ENDS[end])
    alone, measured = ran(sys.executable, path), ran(*RUN, path)
    assert measured.returncode == alone.returncode
    assert measured.stdout == alone.stdout
    assert REPORT.sub("", measured.stderr) == alone.stderr


STATUS = {"its end": "ok", "exit 0": "ok", "exit 7": "error", "an error": "error", "ctrl-c": "interrupted"}


@pytest.mark.parametrize("end", STATUS)
def test_its_record_says_how_it_ended(script, tmp_path, end):
    """As of a cell: ok, error with its class, interrupted."""
    ran(*RUN, "--log", tmp_path / "log.jsonl", script(ENDS[end]))
    (record,) = records(tmp_path / "log.jsonl")
    assert record["status"] == STATUS[end]


def test_the_report_says_the_exit_status_and_where_the_log_is(script, tmp_path):
    """`sys.exit(7)` fails with its status, a text with 1 as Python has it; the log is named."""
    for end, status in (("exit 7", 7), ("words", 1)):
        done = ran(*RUN, "--log", tmp_path / "log.jsonl", script(ENDS[end]))
        assert f"failed: SystemExit with status {status}" in done.stderr
        assert f"log: {tmp_path / 'log.jsonl'}\n" in done.stderr


ITS_OWN = """
import sys
print(sys.argv, sys.path[0], __name__, __file__, __package__, __spec__, input())
import helper
import pickle
class Thing: pass
print(pickle.loads(pickle.dumps(Thing())).__class__ is Thing, sys.modules["__main__"].Thing is Thing)
print(sorted(name for name in globals() if not name.startswith("__")))
def annotated(x: Undefined): pass
"""


def test_what_it_sees_is_its_own(script, tmp_path):
    """Words, also such as are options of ours, path, name, file, stdin, modules beside it, and no future of ours."""
    path = script(ITS_OWN)
    script("print('helped')", "helper.py")
    words = ["--max-ram", "1MB", "-p", "x", "--html", "-h", "other.py"]
    alone = ran(sys.executable, path, *words, input="typed\n")
    for name in path, Path("train.py"):
        measured = ran(*RUN, name, *words, input="typed\n", cwd=tmp_path)
        assert measured.returncode == alone.returncode == 1
        assert measured.stdout.replace("['train.py'", f"['{path}'") == alone.stdout
        assert "NameError: name 'Undefined' is not defined" in measured.stderr
    assert sorted(file.name for file in tmp_path.iterdir() if file.is_file()) == ["helper.py", "train.py"]


SPAWNS = """
import multiprocessing as mp
def work(n):
    return len(bytearray(b"x") * (n << 20))
if __name__ == "__main__":
    with mp.get_context("spawn").Pool(2) as pool:
        print(pool.map(work, [1, 2]))
"""


def test_processes_that_are_spawned(script):
    """They import the script as they would without us."""
    done = ran(*RUN, script(SPAWNS))
    assert (done.returncode, done.stdout) == (0, "[1048576, 2097152]\n"), done.stderr
    assert "Traceback" not in done.stderr


def test_a_budget_of_a_script(script):
    """Over it: said on stderr, exit 1; a script that failed keeps its own status."""
    done = ran(*RUN, "--max-ram", "256MB", script(NEEDS))
    assert (done.returncode, done.stdout) == (1, "")
    assert re.search(
        r"ipygpulogger: train\.py.*: highest 3\d\d MB in RAM, \d+ MB over --max-ram 256 MB", done.stderr
    )
    assert ran(*RUN, "--max-ram", "256MB", script(NEEDS + "raise SystemExit(5)")).returncode == 5
    assert ran(*RUN, "--max-ram", "100GB", script(NEEDS)).returncode == 0


@pytest.mark.parametrize(("end", "status"), [("raise SystemExit(3)", 3), ("1 / 0", 1), ("", 1)])
def test_our_failures_do_not_hide_its_end(script, tmp_path, end, status):
    """A log that cannot be written, as the script removed its folder: said, and the script ends as it would."""
    (tmp_path / "logs").mkdir()
    path = script(f"import os\nos.remove('logs/x.jsonl'); os.rmdir('logs')\n{end}")
    done = ran(*RUN, "--log", "logs/x.jsonl", path.name, cwd=tmp_path)
    assert done.returncode == status
    assert "logs/x.jsonl could not be written: No such file or directory" in done.stderr
    assert "log: " not in done.stderr
    assert ("ZeroDivisionError" in done.stderr) == (end == "1 / 0")


@pytest.mark.torch
def test_gpus_of_a_script(script, tmp_path, kernel_env):
    """Each device that it used, what was alive there at the peak, and the budget for one."""
    source = "import torch\nx = torch.empty(600 << 20, dtype=torch.uint8, device='cuda')\ndel x\n"
    log = tmp_path / "log.jsonl"
    options = ["--max-gpu", "200MB", "--peak", "--log", log]
    done = ran(*RUN, *options, script(source), env=kernel_env)
    assert done.returncode == 1, done.stderr
    assert re.search(
        r"train\.py.*: highest 1100 MB on cuda:0, 900 MB over --max-gpu 200 MB\n", done.stderr
    ), done.stderr
    assert re.search(r"train\.py:2 +600 MB", done.stderr), done.stderr
    assert records(log)[0]["gpus"][0]["peak"]["lo_bytes"] == 1100 * MB


WORDS = {
    "nb.txt": "nb.txt is neither a notebook (.ipynb) nor a script (.py)",
    ".": ". is neither a notebook (.ipynb) nor a script (.py)",
    "gone.py": "gone.py cannot be read: No such file or directory",
    "folder.py": "folder.py cannot be read: Is a directory",
    "--kernel python3 train.py": "--kernel is for notebooks, and train.py is a script",
    "-p x 1 train.py": "--parameters is for notebooks, and train.py is a script",
    "--show-output train.py": "--show-output is for notebooks, and train.py is a script",
    "--log train.py train.py": "train.py is the script itself",
    "--log log.txt train.py": "the log log.txt must be named .jsonl",
    "--max-ram 1 train.py": "'1' has no unit",
}


@pytest.mark.parametrize("words", WORDS)
def test_words_that_make_no_sense(script, monkeypatch, capsys, tmp_path, words):
    """One sentence, exit 2, and nothing was run."""
    script("open('ran', 'w')")
    (tmp_path / "folder.py").mkdir()
    monkeypatch.chdir(tmp_path)
    assert refused(["run", *words.split()], capsys, WORDS[words])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.py", "train.py"]


def test_a_notebook_has_lines_and_peak_too(notebook, tmp_path):
    """--lines: each cell's lines are in the log, and the heaviest names the cell."""
    path, log = notebook("a = 1\nx = bytearray(b'x') * (64 << 20)\nb = 2"), tmp_path / "log.jsonl"
    done = command("run", path, "--lines", "--log", log)
    assert done.returncode == 0, done.stderr
    (record,) = History.load(log)
    assert [line.lineno for line in record.lines] == [1, 2, 3]
    assert done.stdout.splitlines()[0].endswith("  x = bytearray(b'x') * (64 << 20)")


def test_the_signal_reaches_a_script_in_a_group(script):
    """Ctrl-C as a terminal sends it: the script's own handler runs, once, and its status is the run's."""
    path = script(
        "import signal, sys\nsignal.signal(signal.SIGINT, lambda *_: sys.exit(9))\nprint('ready', flush=True)\nsignal.pause()"
    )
    process = subprocess.Popen([*RUN, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 9
    assert "Traceback" not in err
