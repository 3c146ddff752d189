"""malloc's part of resident memory, and reads that are skipped once they were slow."""

import subprocess
import sys
import textwrap
import time

import pytest
from counters import Model
from memory import MB

from ipygpulogger.sources.system.process import Paced, Process


@pytest.mark.linux("its C library alone says what malloc keeps")
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


def test_a_counter_that_states_no_precision_is_exact():
    """The diagnosis names no error of the resident size, and no page table is walked for a better one."""
    process = Process(Model())
    assert process.diagnose().says == "peaks from the kernel's high-water mark, to within 0.0 MB"
    assert process.exact_resident_bytes() is None


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
