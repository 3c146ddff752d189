"""malloc's part of resident memory, child processes, and reads that are skipped once they were slow."""

import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from memory import MB

from ipygpulogger.sources.system.child_process import ChildProcess, Descendants
from ipygpulogger.sources.system.process import Paced, Process


def test_what_malloc_keeps_is_told_apart():
    """Freed heap that stays resident is counted as kept, not as in use."""
    process = Process()
    if process.heap() is None:
        # mallinfo2 came with glibc 2.33. Without it, heap figures are None by contract, and there is nothing
        # to compare.
        pytest.skip("this libc has no mallinfo2 (glibc before 2.33, musl)")
    program = textwrap.dedent(
        """
        import ctypes
        from ipygpulogger.sources.system.process import Process
        process, libc = Process(), ctypes.CDLL(None)
        libc.malloc.restype = ctypes.c_void_p
        a = process.heap()
        blocks = [libc.malloc(1000) for _ in range(100_000)]
        b = process.heap()
        for block in blocks[:-1]: libc.free(ctypes.c_void_p(block))
        c = process.heap()
        print(b.in_use_bytes - a.in_use_bytes, c.in_use_bytes - a.in_use_bytes, c.kept_bytes - a.kept_bytes)
        """
    )
    used, left, kept = map(int, subprocess.check_output([sys.executable, "-c", program], text=True).split())
    assert 95 * MB <= used <= 102 * MB + 8 * MB  # with the Python list of pointers
    assert left <= 8 * MB
    assert kept >= 90 * MB


# What a child of its own process does; multiprocessing would leave its resource tracker behind as a child.
CHILD = """
import sys
from memory import Block, blip

blip(48)
block = Block(32)
print("ready", flush=True)
sys.stdin.read()
"""


def found():
    """Every descendant, read anew."""
    return Descendants().visit(ChildProcess.observe)


@pytest.mark.skipif(found() is None, reason="this kernel does not list children")
def test_children_and_grandchildren_are_found():
    """Every descendant with its resident memory and its own peak; those that ended are gone."""
    command, folder = [sys.executable, "-c", CHILD], Path(__file__).parents[1]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder) as process:
        assert process.stdout.readline() == b"ready\n"
        child = next(one for one in found() if one.pid == process.pid)
        assert child.current_bytes >= 32 * MB
        assert child.high_bytes - child.current_bytes >= 14 * MB  # it peaked at 48
        process.communicate()
    assert process.pid not in [one.pid for one in found()]


def test_a_slow_read_is_rare(monkeypatch):
    """It is skipped 64 times, then 128 and so on; a quick one in between begins anew; the first is not judged."""
    now_s, cost_s = [0.0], [1.0]

    def read():
        now_s[0] += cost_s[0]
        return "read"

    monkeypatch.setattr(time, "thread_time", lambda: now_s[0])
    paced = Paced(read, 0.5)
    assert [paced() for _ in range(2)] == ["read"] * 2
    assert [paced() for _ in range(65)] == [None] * 64 + ["read"]
    assert [paced() for _ in range(129)] == [None] * 128 + ["read"]
    cost_s[0] = 0.5
    assert [paced() for _ in range(258)] == [None] * 256 + ["read"] * 2
    cost_s[0] = 0.6
    assert [paced() for _ in range(66)] == ["read"] + [None] * 64 + ["read"]


def test_waiting_is_not_slow():
    """On a busy machine a read waits for a CPU: that says nothing about the next one."""
    paced = Paced(lambda: time.sleep(0.01) or "read", 0.005)
    assert [paced() for _ in range(4)] == ["read"] * 4
