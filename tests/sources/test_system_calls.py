"""Our own system calls: how many a light cell makes, and that none of them gives up the GIL."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from statistics import median

import pytest

from ipygpulogger.sources.system import linux
from ipygpulogger.sources.system.linux import Calls, gil_held

on_linux = pytest.mark.linux("the GIL is kept on Linux alone")
MOST_CALLS, MOST_GETPID = 30, 20  # of a light cell

# A shell with a logger, in a process of its own.
CELLS = """
import os, sys, threading, time
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
from ipygpulogger import IPyGPULogger

shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
light = {"gc_collect": False, "clear_cache": False, "preload": False}
logger = IPyGPULogger(**(light if "light" in sys.argv[-1] else {}), report="none").start()

def cells(count):
    for _ in range(count):
        shell.run_cell("pass", store_history=True)

cells(10)
"""


def run(program, options, *command):
    """Return what a program prints."""
    words = [*command, sys.executable, "-c", CELLS + program, options]
    return subprocess.check_output(words, text=True, cwd=Path(__file__).parents[1])


@on_linux
@pytest.mark.skipif(
    not shutil.which("strace"), reason="strace, which counts the calls, is not installed here"
)
def test_the_system_calls_of_a_light_cell(tmp_path):
    """An empty cell makes a few calls, of these kinds alone.

    A cell in which a page fault came between two readings reads once more. So the median cell is counted.
    """
    trace = tmp_path / "trace"
    run(
        'for _ in range(20): os.access("/cell", 0); cells(1)\nos.access("/cell", 0)',
        "light",
        "strace",
        "-f",
        "-o",
        str(trace),
    )
    between = [cell.splitlines()[1:-1] for cell in trace.read_text().split('"/cell"')[1:-1]]
    calls = [[line.split(maxsplit=1)[1].partition("(")[0] for line in cell] for cell in between]
    ours = {"openat", "open", "read", "close", "write", "getrusage", "waitid", "getpid", "clock_gettime"}
    pythons = {"brk", "mmap", "munmap", "madvise"}  # its allocator's, now and then
    assert len(calls) == 20
    assert set().union(*calls) <= ours | pythons, calls
    assert median(cell.count("getpid") for cell in calls) <= MOST_GETPID
    assert median(sum(call in ours - {"getpid"} for call in cell) for cell in calls) <= MOST_CALLS, calls


@on_linux
@pytest.mark.parametrize("options", ["light", "default"])
def test_no_hook_gives_up_the_gil(options):
    """A thread that waits for the GIL gets it in none of a hundred hooks, and they call nothing of `os` that gives it up."""
    program = """
turns, done, given_up, called = [0], False, [], set()

def wait():
    while not done:
        turns[0] += 1
        time.sleep(0)  # gives it up at once, and waits for it again

def counted(hook):
    def count(*args):
        before = turns[0]
        sys.setprofile(note)
        hook(*args)
        sys.setprofile(None)
        given_up.append(turns[0] - before)
    return count

def note(frame, event, function):
    if event == "c_call" and function.__module__ == "posix":
        called.add(function.__name__)

sys.setswitchinterval(1000)  # none takes it from a thread that does not give it up
threading.Thread(target=wait, daemon=True).start()
for event in ("pre_run_cell", "post_run_cell"):
    hooks = shell.events.callbacks[event]
    (ours,) = [hook for hook in hooks if "ipygpulogger" in hook.__module__]
    hooks[hooks.index(ours)] = counted(ours)
for _ in range(50):
    time.sleep(0.001)  # the thread comes to wait again
    cells(1)
done = True
print(len(given_up), sum(given_up), turns[0] > 50, *(called - {"fspath"}))
"""
    assert run(program, options).split() == ["100", "0", "True", "getpid"]


@pytest.fixture(params=["os", "held"])
def calls(request):
    """Both ways to make the calls."""
    return Calls() if request.param == "os" else gil_held()


def test_a_call_that_fails_raises_what_os_raises(calls, tmp_path):
    """The same class, number, text and file name, whoever makes the call."""
    for path, error in ((tmp_path / "none", FileNotFoundError), (tmp_path, IsADirectoryError)):
        for call in (calls.read_file, lambda path: calls.write_file(path, b"x")):
            with pytest.raises(error) as caught:
                call(str(path))
            assert caught.value.errno and caught.value.strerror
            assert caught.value.filename in (str(path), None)  # a call with a descriptor knows none
    with pytest.raises(OSError, match="Bad file descriptor"):
        calls.read(10**6)


def test_what_can_be_read_at_once(calls, tmp_path):
    """Of a file its beginning, of a descriptor what has come, and None if nothing has."""
    (tmp_path / "long").write_bytes(bytes(range(256)) * 1000)
    (tmp_path / "written").write_bytes(b"....")
    assert calls.read_file(str(tmp_path / "long")) == (bytes(range(256)) * 1000)[: 2**16]
    assert calls.read_file(str(tmp_path / "long"), whole=True) == bytes(range(256)) * 1000
    calls.write_file(str(tmp_path / "written"), b"56")
    assert calls.read_file(str(tmp_path / "written")) == b"56.."
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    assert calls.read(reader) is None
    os.write(writer, b"some")
    assert calls.read(reader) == b"some"
    os.close(writer)
    assert calls.read(reader) == b""
    os.close(reader)


@pytest.mark.linux("children are not measured there")
def test_whether_there_are_children(calls):
    """A child counts while it runs and until it was waited for, and stays there to be waited for."""
    before = calls.has_children()  # left by other tests
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    assert calls.has_children()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert calls.has_children() == before


def test_where_the_gil_cannot_be_kept_os_makes_the_calls(monkeypatch):
    """On another system, and where ctypes does not work."""
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "ctypes", None)
        assert type(gil_held.__wrapped__()) is Calls
    monkeypatch.setattr(linux.sys, "platform", "freebsd14")
    assert type(gil_held.__wrapped__()) is Calls


@on_linux
def test_many_threads_at_once(restless):
    """Each gets its own answer, though they share what the calls read into."""
    true = {path: Path(path).read_bytes() for path in ("/proc/self/comm", "/proc/self/limits")}

    def read(path):
        return [path for _ in range(3000) if gil_held().read_file(path) != true[path]]

    with ThreadPoolExecutor(8) as pool:
        assert not [*chain(*pool.map(read, [*true] * 4))]
