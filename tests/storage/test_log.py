"""The log that grows by a line per cell, and the option of the logger that writes it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from made import plain
from traitlets import TraitError

from ipygpulogger import History, IPyGPULogger
from ipygpulogger.storage import log as logs
from ipygpulogger.storage.formats import json_line
from ipygpulogger.storage.log import Log


def test_a_log_goes_on_behind_a_line_cut_short(tmp_path):
    """After half a line the next record begins a new one, and only the half is lost."""
    path = tmp_path / "run.jsonl"
    whole = json_line(plain(2)).encode()
    for end in (1, 12, len(whole) // 2, len(whole) - 2):
        path.write_bytes(json_line(plain(1)).encode() + whole[:end])
        Log(path).append(plain(3), log_source=True)
        Log(path).append(plain(4), log_source=True)
        with pytest.warns(UserWarning, match="line 2: this line was cut short"):
            assert list(History.load(path)) == [plain(1), plain(3), plain(4)]


@pytest.mark.parametrize("name", ["folder", "no/run.jsonl", "run.jsonl"])
def test_a_log_that_cannot_be_is_refused_at_once(tmp_path, monkeypatch, name):
    """A folder, a file in no folder or one that may not be written: `ValueError` in one sentence, nothing is made."""
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr(logs.os, "access", lambda *_: False)
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        Log(tmp_path / name)
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_writers_do_not_mix_their_lines(tmp_path):
    """Four processes with two threads each write at once: every record is there, whole, each writer's in order."""
    path = tmp_path / "run.jsonl"
    program = (
        "import sys, threading; sys.path.insert(0, sys.argv[3])\n"
        "from made import plain; from ipygpulogger.storage.log import Log\n"
        "def write(name):\n"
        "    log = Log(sys.argv[1])\n"
        "    for i in range(200): log.append(plain(i, label=name, notes=('n' * 3000,)))\n"
        "threads = [threading.Thread(target=write, args=[f'{sys.argv[2]} {i}']) for i in range(2)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]"
    )
    here = str(Path(__file__).parents[1])
    running = [subprocess.Popen([sys.executable, "-c", program, str(path), str(i), here]) for i in range(4)]
    assert [process.wait() for process in running] == [0] * 4
    found = {}
    for record in History.load(path):
        found.setdefault(record.label, []).append(record.gen.after_bytes)
    assert found == {f"{process} {thread}": list(range(200)) for process in range(4) for thread in range(2)}


@pytest.mark.linux("files have no limit", "macos")
def test_a_disk_that_fills_in_the_middle_of_a_line(tmp_path):
    """The system takes a part of a line and then no more: the record is lost, those around it are not."""
    import resource

    path = tmp_path / "run.jsonl"
    log = Log(path)
    log.append(plain(1), log_source=True)
    size = path.stat().st_size
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        for room in (10, 0):  # part of it, then none
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, limits[1]))
            with pytest.raises(OSError, match=r"No space left|too large"):
                log.append(plain(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.stat().st_size == size + 10
    log.append(plain(3), plain(4), log_source=True)
    with pytest.warns(UserWarning, match="line 2: this line was cut short"):
        assert list(History.load(path)) == [plain(1), plain(3), plain(4)]


@pytest.mark.linux("its /proc tells what is open")
def test_nothing_is_held_open(tmp_path):
    """Between two records the log holds no file, and an error leaves none."""
    folder = tmp_path / "logs"
    folder.mkdir()
    log = Log(folder / "run.jsonl")
    before = set(Path("/proc/self/fd").iterdir())
    log.append(plain(1))
    (folder / "run.jsonl").unlink()
    folder.rmdir()
    with pytest.raises(FileNotFoundError):
        log.append(plain(2))
    full = Log("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        full.append(plain(2))
    assert set(Path("/proc/self/fd").iterdir()) == before


@pytest.fixture
def il(shell, capsys, tmp_path):
    """A logger that writes as it goes."""
    il = IPyGPULogger(report="none", log=tmp_path / "run.jsonl", log_source=True).start()
    yield il
    il.stop()


def test_the_logger_writes_as_it_goes(shell, il, tmp_path, capsys):
    """After every cell, failed ones too, the file holds what the history holds; wherever cells went."""
    there = Path.cwd()
    for code in ("x = 1", "1 / 0", "import os; os.chdir('/')", "1 +"):
        shell.run_cell(code, store_history=True)
        assert list(History.load(tmp_path / "run.jsonl")) == list(il.history)
    os.chdir(there)
    assert len(il.history) == 4
    assert "ipygpulogger" not in capsys.readouterr().err


def test_a_vanished_folder_is_said_once_and_hurts_no_cell(shell, tmp_path, capsys):
    """Cells and history go on; when the folder is back the log goes on."""
    folder = tmp_path / "logs"
    folder.mkdir()
    il = IPyGPULogger(log=folder / "run.jsonl", log_source=True).start()
    shell.run_cell("x = 1", store_history=True)
    folder.rename(tmp_path / "away")
    capsys.readouterr()
    for i in range(3):
        assert shell.run_cell(f"x = {i}", store_history=True).success
    told = capsys.readouterr()
    path = folder / "run.jsonl"
    assert told.err == f"ipygpulogger cannot write {path} and goes on trying: No such file or directory\n"
    assert told.out.count("RAM:") == 3
    (tmp_path / "away").rename(folder)
    for i in range(2):
        shell.run_cell(f"x = {i}", store_history=True)
    assert capsys.readouterr().err == ""
    il.stop()
    assert list(History.load(path)) == [il.history[0], *il.history[4:]]


@pytest.mark.parametrize("value", [3, True, "", "run.csv", "no/such/run.jsonl", b"run.jsonl", "."])
def test_a_log_that_makes_no_sense_is_refused(shell, value):
    """Asked for explicitly: `ValueError` in one sentence, and no logger."""
    for attempt in (lambda: IPyGPULogger(log=value), lambda: IPyGPULogger.check({"log": value})):
        with pytest.raises(ValueError, match=r"^[^\n]+$"):
            attempt()


def test_the_log_is_changed_while_it_runs(shell, il, tmp_path, capsys):
    """%config names another file, none, or one that cannot be: then it is said and nothing changes."""
    run = lambda code: shell.run_cell(code, store_history=True)  # noqa: E731
    other = tmp_path / "other.jsonl"
    run("x = 0")
    run(f"%config IPyGPULogger.log = {str(other)!r}")
    run("x = 1")
    with pytest.raises(TraitError, match=r"^log: there is no folder [^\n]+$"):
        il.log = "/no/such/run.jsonl"
    run("x = 2")
    run("%config IPyGPULogger.log = None")
    run("x = 3")
    assert list(History.load(tmp_path / "run.jsonl")) == [il.history[0]]
    assert list(History.load(other)) == list(il.history[1:4])
    assert len(il.history) == 6
