"""The execution of a notebook in a real kernel: failures, interrupts, time limits, other kernels."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest
from command_line import command, executed, is_executed, records, refused, tracebacks_of_ours
from limited import container

from ipygpulogger.cli import execution, main
from ipygpulogger.engine.machine import machine
from ipygpulogger.sources.system.ram_limit import RamLimits


def test_a_failing_cell(notebook, tmp_path):
    """Its numbers and those before it are kept, it is marked, the rest is not run: exit 1.

    Its traceback is there once, as plain text without a control character, below what the cell printed.
    """
    path = notebook("def f():\n    print('in f')\n    raise ValueError('oh')", "f()", "b = 2")
    log = tmp_path / "log.jsonl"
    done = command("run", path, "--log", log, "--show-output")
    assert done.returncode == 1
    assert [(r["status"], r["error"]) for r in records(log)] == [("ok", None), ("error", "ValueError")]
    first = r"\[1/3\]  \d\.\d\d s  .*def f\(\):\n"
    second = r"\[2/3\] │ in f\n\[2/3\]  \d\.\d\d s  failed: ValueError .*f\(\)\n"
    assert re.fullmatch(first + second + r"2 cells in .* · failed: In \[2\]\n", done.stdout)
    assert done.stderr.count("Traceback (most recent call last)") == 1
    assert done.stderr.count("    ValueError: oh\n") == 1
    assert "stopped at the cell that failed: ValueError: oh" in done.stderr
    assert all(line.isprintable() for line in (done.stdout + done.stderr).splitlines())
    assert not tracebacks_of_ours(done.stderr)
    assert [cell.execution_count for cell in executed(path).cells] == [1, 2, None]


def test_allowed_errors(notebook, tmp_path):
    """--allow-errors, as in nbconvert: every cell runs, each failure is marked and told, exit 0; a budget still counts."""
    path, log = notebook("raise ValueError('oh')", "1 / 0", "2"), tmp_path / "log.jsonl"
    done = command("run", path, "--allow-errors", "--log", log)
    assert done.returncode == 0, done.stderr
    assert [record["status"] for record in records(log)] == ["error", "error", "ok"]
    assert [line.split()[0] for line in done.stdout.splitlines()[:-1]] == ["[1/3]", "[2/3]", "[3/3]"]
    assert (done.stdout.count("  failed: "), done.stderr.count("Traceback (most")) == (2, 2)
    assert "2 cells failed; the run went on, because of --allow-errors" in done.stderr
    assert command("run", path, "--allow-errors", "--max-ram", "1MB").returncode == 1
    deadly = notebook("import os; os._exit(1)", "2")
    assert command("run", deadly, "--allow-errors").returncode == 1


@pytest.mark.parametrize("end", ["os._exit(7)", "os.kill(os.getpid(), 9)"])
def test_a_kernel_that_dies(notebook, tmp_path, end):
    """It says which cell it was and what its process said in the end, once, and keeps what was measured: exit 1."""
    env = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    says = "os.write(sys.stderr._original_stdstream_copy, b'the last \\x1b[2J words\\n')"
    path, log = notebook("1", f"import os, sys; {says}; {end}"), tmp_path / "log.jsonl"
    done = command("run", path, "--log", log, env=env)
    assert done.returncode == 1
    said, problem, where = done.stderr.splitlines()[-3:]  # before: over TCP, the kernel warns that it is
    assert said == "    the last ?[2J words"
    assert problem == "ipygpulogger: the kernel died while it ran cell 2 of 2"
    assert where.startswith("executed notebook: ")
    assert len(records(log)) == 1
    assert is_executed(path)


def test_a_kernel_that_does_not_start(notebook, kernel_of):
    """One sentence with the last that its process said, exit 2, nothing written."""
    metadata, env = kernel_of(sys.executable, "-c", "raise SystemExit('no such \x1b[2J device')")
    path = notebook("1", **metadata)
    done = command("run", path, env=env)
    assert (done.returncode, done.stdout) == (2, "")
    says = r"ipygpulogger: the kernel 'bare' did not start: .*\(no such \?\[2J device\)\n"
    assert re.fullmatch(says, done.stderr)
    assert not is_executed(path)


def test_a_cell_that_takes_too_long(notebook, tmp_path):
    """--timeout: it is interrupted, its figures are kept, the rest is not run: exit 1."""
    path, log = notebook("1", "import time; time.sleep(600)", "3"), tmp_path / "log.jsonl"
    done = command("run", path, "--log", log, "--timeout", "1")
    assert done.returncode == 1
    assert "stopped at cell 2 of 3, which ran longer than 1 s" in done.stderr
    assert [record["status"] for record in records(log)] == ["ok", "interrupted"]
    assert not tracebacks_of_ours(done.stderr)


SLEEPERS = {
    "deaf": "import time, signal; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)",
    "caught": "import time\ntry: time.sleep(600)\nexcept KeyboardInterrupt: pass",
}


@pytest.mark.parametrize("source", SLEEPERS.values(), ids=SLEEPERS)
def test_a_cell_that_minds_no_interrupt(notebook, source, monkeypatch, capsys):
    """One that is deaf loses its kernel after a while; one that catches the interrupt is the last all the same."""
    monkeypatch.setattr(execution, "_GRACE_S", 1)
    path = notebook(source, "open('ran', 'w')")
    assert main(["run", str(path), "--timeout", "1"]) == 1
    assert "stopped at cell 1 of 2, which ran longer than 1 s" in capsys.readouterr().err
    assert not path.with_name("ran").exists()
    assert is_executed(path)


@pytest.mark.linux("memray does not run on Windows", "macos")
def test_a_peak_that_cannot_be_known(notebook, kernel_of):
    """--peak in a kernel without memray: said once, with the command that installs it."""
    lacks = "from importlib import util; found = util.find_spec\nutil.find_spec = lambda name, *more: None if name == 'memray' else found(name, *more)"
    run = f"{lacks}\nimport runpy\nrunpy.run_module('ipykernel_launcher', run_name='__main__')"
    metadata, env = kernel_of(sys.executable, "-c", run, "-f", "{connection_file}")
    done = command("run", notebook("1", "2", **metadata), "--peak", env=env)
    assert done.returncode == 0
    assert (done.stdout + done.stderr).count("pip install 'ipygpulogger[memray]'") == 1


TERMINATED = {
    "before the first cell": ("before the first cell; nothing is written", None),
    "in a cell": ("in cell 2 of 3", ["ok", "interrupted"]),
    "in a deaf cell": ("in cell 2 of 3", ["ok"]),
}


@pytest.mark.linux("on Windows SIGTERM ends a process at once", "macos")
@pytest.mark.parametrize("where", TERMINATED)
def test_a_run_that_is_terminated(notebook, tmp_path, kernel_of, where):
    """SIGTERM, as of `timeout` and a cancelled job: one sentence, the log and the notebook kept, exit 143."""
    says, statuses = TERMINATED[where]
    ready = f"open({str(tmp_path / 'ready')!r}, 'w').close(); import time; time.sleep(600)"
    begun = f"{ready if statuses is None else ''}\nimport runpy\nrunpy.run_module('ipykernel_launcher', run_name='__main__')"
    metadata, env = kernel_of(sys.executable, "-c", begun, "-f", "{connection_file}")
    deaf = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); " if "deaf" in where else ""
    path, log = notebook("1", f"{deaf}{ready}", "3", **metadata), tmp_path / "log.jsonl"
    with subprocess.Popen(
        [sys.executable, "-m", "ipygpulogger", "run", path, "--log", log],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    ) as process:
        while not (tmp_path / "ready").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=60)[1].splitlines()
    assert process.returncode == 143, said
    assert said[0] == f"ipygpulogger: terminated {says}"
    assert len(said) == 1 + bool(statuses), said
    assert is_executed(path) == log.exists() == bool(statuses)
    assert not statuses or [record["status"] for record in records(log)] == statuses


@pytest.mark.parametrize(
    ("language", "says"),
    [
        *((language, "'nope', which is not installed here") for language in ("python", "Python", "")),
        ("R", "written in R"),
    ],
)
def test_no_such_kernel(notebook, capsys, language, says):
    """A kernel that is not here, or of another language: one sentence, exit 2, nothing written."""
    path = notebook("1", kernelspec={"name": "nope", "language": language, "display_name": "?"})
    assert refused(["run", path, "--log", path.with_name("log.jsonl")], capsys, says)
    assert [p.name for p in path.parent.iterdir()] == ["nb.ipynb"]


def test_a_kernel_without_us(notebook, bare_kernel, tmp_path):
    """A kernel whose Python cannot import the package: one sentence with the command that fixes it.

    Exit 2 means nothing written, the log of an earlier run included.
    """
    metadata, env = bare_kernel
    path, log = notebook("1", **metadata), tmp_path / "old.jsonl"
    log.write_text("precious\n")
    done = command("run", path, "--log", log, env=env)
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot load ipygpulogger (not this one)" in done.stderr
    assert "pip install ipygpulogger" in done.stderr
    assert not is_executed(path)
    assert log.read_text() == "precious\n"


def test_another_kernel(notebook, bare_kernel, kernel_of, tmp_path):
    """--kernel wins over the notebook's own; one that is not here, or not Python's, is refused."""
    path = notebook("1", kernelspec={"name": "nope", "language": "python", "display_name": "?"})
    _, env = bare_kernel
    kernel_of("R", name="ir", language="R")
    assert command("run", path, "--kernel", "python3").returncode == 0
    for name, says in (
        ("bare", "'bare' cannot load"),
        ("ir", "speaks R"),
        ("gone", "'gone' is not installed"),
    ):
        done = command("run", path, "--kernel", name, env=env)
        assert (done.returncode, says in done.stderr) == (2, True)


@pytest.mark.parametrize("killed", [True, False])
def test_a_kernel_that_was_killed_for_lack_of_memory(notebook, tmp_path, monkeypatch, capsys, killed):
    """The count of killed processes rose while it ran, in the simulated container that it and we live in."""
    simulated = container(tmp_path / "machine", kills=3)
    monkeypatch.setattr(machine(), "limits", RamLimits(simulated.root))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    events = simulated.root / "sys/fs/cgroup/memory.events"
    path = notebook(
        f"import os, pathlib; pathlib.Path({str(events)!r}).write_text('oom_kill {3 + killed}')\n"
        "os.kill(os.getpid(), 9)"
    )
    assert main(["run", str(path), "--max-ram", "9GB"]) == 1
    said = capsys.readouterr().err.splitlines()
    told = "Linux killed 3 processes of this container for lack of memory (limit 8.0 GB)."
    assert said[0] == f"ipygpulogger: {told}"
    why = f": {told.replace('3 processes', '1 process')}" if killed else ""
    assert f"ipygpulogger: the kernel died while it ran cell 1 of 1{why}" in said
