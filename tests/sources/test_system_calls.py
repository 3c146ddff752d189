"""Our own system calls: how many a light cell makes, and what they say of children."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

from ipygpulogger.sources.system import linux

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


def test_whether_there_are_children():
    """A child counts while it runs and until it was waited for, and stays there to be waited for."""
    before = linux.has_children()  # left by other tests
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    assert linux.has_children()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert linux.has_children() == before
