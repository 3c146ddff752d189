"""Reads that are skipped once they were slow."""

import time

from ipygpulogger.sources.system.linux import Paced


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
