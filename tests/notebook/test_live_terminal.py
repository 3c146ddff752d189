"""A running cell in a terminal: the end of a line, rewritten, and wiped out before the cell writes."""

import os
import pty
import sys
import threading
from contextlib import suppress
from functools import partial
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from places import TIMEOUT_S, Screen, begun, here, in_a_thread, standing

from ipygpulogger import IPyGPULogger
from ipygpulogger.notebook import live
from ipygpulogger.notebook.live_places import LiveTerminal, Tap
from ipygpulogger.render import text


@pytest.fixture
def at_once(monkeypatch):
    """Every cell is long."""
    monkeypatch.setattr(live, "AFTER_S", 0.0)
    monkeypatch.setattr(live, "EVERY_S", 0.001)


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", str(Screen.COLUMNS))
    monkeypatch.setenv("TERM", "xterm")


@pytest.fixture
def a_line(monkeypatch):
    """What makes a line on a screen, where the cell prints too."""

    def made(columns=Screen.COLUMNS):
        screen = Screen()
        screen.COLUMNS = columns
        screen.shell = SimpleNamespace(system=screen.write)
        monkeypatch.setattr(sys, "stdout", screen)
        monkeypatch.setattr(sys, "stderr", screen)
        return screen, begun(LiveTerminal(screen.shell))

    return made


def test_one_line_is_rewritten_and_wiped_out(a_line):
    """Each showing stands over the last one, and the end leaves the screen and the cursor as they were."""
    screen, line = a_line()
    for used_mb in (170, 99999, 7):
        line.show(standing(used_mb=used_mb))
        assert screen.lines == [text.so_far(standing(used_mb=used_mb)).rjust(79)]
        assert screen.column == 0
    line.end()
    line.show(standing())
    assert screen.lines == [""]


@pytest.mark.parametrize("where", [here, in_a_thread])
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.sampled_from(["a", "a word ", "\n", "\r", "", "system", "show"]), max_size=30))
def test_nothing_is_left_of_it_once_the_cell_writes(a_line, where, steps):
    """Whatever is written, by whichever thread: the screen is at once as without us, and stays so."""
    alone = Screen()
    screen, line = a_line()
    written = False
    for step in steps:
        if step == "show":
            line.show(standing())
            assert written or screen.lines == [text.so_far(standing()).rjust(79)]
            assert (screen.row, screen.column) == (alone.row, alone.column)
        elif screen.column + len(step) < 80:
            where(screen.shell.system if step == "system" else partial(print, end=""), step)
            alone.write(step)
            written = True
        if written:
            assert (screen.lines, screen.row, screen.column) == (alone.lines, alone.row, alone.column)
    line.end()
    assert screen.lines == alone.lines
    for owner, name in ((screen, "write"), (screen, "flush"), (screen.shell, "system")):
        assert not isinstance(getattr(owner, name), Tap)


def test_what_asks_for_input_finds_the_line_clean(a_line):
    """input() writes by itself, and flushes before: that is when ours goes."""
    screen, line = a_line()
    line.show(standing())
    sys.stderr.flush()
    line.show(standing())
    assert screen.lines == [""]


def test_a_forks_child_writes_whoever_holds_the_lock(a_line):
    """The child prints, though a thread of ours was writing at the moment of the fork."""
    _, line = a_line()
    pid = os.fork()
    if not pid:
        code = 1
        with suppress(BaseException):
            line._lock = threading.Lock()
            line._lock.acquire()
            print("child")
            code = 0 if sys.stdout.lines[0] == "child" else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    line.end()


def test_a_narrow_terminal_gets_what_fits(monkeypatch, a_line):
    """The line never wraps, however narrow the window."""
    for columns in (20, 7, 1):
        monkeypatch.setenv("COLUMNS", str(columns))
        _, line = a_line(columns)
        line.show(standing())
        line.end()


@pytest.mark.parametrize(
    ("then", "printed"),
    [
        ("1;", []),
        ("print('a'); print('b')", ["a", "b"]),
        ("get_ipython().system('echo a; echo b')", ["a", "b"]),
        ("import sys; sys.stderr.write('a\\n');", ["a"]),
    ],
    ids=["silent", "print", "system", "stderr"],
)
def test_in_a_terminal_the_report_follows_the_line_wiped_out(shell, monkeypatch, at_once, then, printed):
    """A real cell of a real shell on a real pseudo-terminal: live, then what it writes, then the table."""
    parent, child = pty.openpty()
    terminal, errors = os.fdopen(child, "w"), os.fdopen(os.dup(child), "w", buffering=1)
    shown = threading.Event()
    show = LiveTerminal.show

    def told(line, measurement):
        show(line, measurement)
        shown.set()

    monkeypatch.setattr(LiveTerminal, "show", told)
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", errors)
    monkeypatch.setattr(shell, "system", lambda words: os.system(f"({words}) >{os.ttyname(child)}"))
    shell.user_ns["shown"] = shown
    il = IPyGPULogger().start()
    shell.run_cell(f"assert shown.wait({TIMEOUT_S})\n{then}", store_history=True)
    il.stop()
    terminal.close()
    errors.close()
    words = b""
    with suppress(OSError):  # how a pseudo-terminal says that it ends
        while more := os.read(parent, 65536):
            words += more
    os.close(parent)
    live_part, wiped, rest = words.decode().rpartition("\x1b[K\x1b8")
    assert wiped
    assert "s so far | Gen: 0/0/" in live_part
    assert "\x1b" not in rest
    screen = Screen()
    screen.write(live_part + wiped + rest)
    assert [line for line in screen.lines if line][: len(printed)] == printed
    assert "".join(screen.lines[-3:]).startswith("RAM: Consumed Peaked")
    assert "so far" not in "".join(screen.lines)
