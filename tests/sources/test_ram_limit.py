"""How much RAM a process may use: the machine's, or the container's limit where that is lower."""

import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from ipygpulogger.sources import ram_limit


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """A machine of 64 GB, and the two files of a container's limits."""
    files = tmp_path / "memory.max", tmp_path / "memory.limit_in_bytes"
    monkeypatch.setattr(ram_limit, "_CGROUP_LIMITS", files)
    monkeypatch.setattr(ram_limit, "_MEMINFO", tmp_path / "meminfo")  # not there: no Linux
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=64 << 30))
    ram_limit.ram_limit_bytes.cache_clear()
    yield files
    ram_limit.ram_limit_bytes.cache_clear()


@pytest.mark.parametrize(
    ("v2", "v1", "limit_bytes"),
    [
        (None, None, 64 << 30),
        ("max\n", None, 64 << 30),
        ("8589934592\n", None, 8 << 30),
        (None, "4294967296\n", 4 << 30),
        (None, "9223372036854771712\n", 64 << 30),  # how v1 writes that there is none
    ],
)
def test_a_container_has_what_it_is_allowed(machine, v2, v1, limit_bytes):
    """cgroup v2 and v1; without a limit the machine's RAM."""
    for path, words in zip(machine, (v2, v1), strict=True):
        if words is not None:
            path.write_text(words)
    assert ram_limit.ram_limit_bytes() == limit_bytes


def test_unknown_is_unknown(monkeypatch):
    """Where psutil fails."""

    def fail():
        raise RuntimeError("no /proc")

    monkeypatch.setattr(psutil, "virtual_memory", fail)
    assert ram_limit.ram_limit_bytes() is None


@pytest.mark.parametrize(
    ("text", "total_bytes"), [("MemTotal:       16777216 kB\nMemFree: 1 kB\n", 16 << 30), ("odd\n", 64 << 30)]
)
def test_linux_is_asked_itself(monkeypatch, tmp_path, text, total_bytes):
    """As psutil would ask it; where that is not understood, psutil is asked."""
    monkeypatch.setattr(ram_limit, "_MEMINFO", tmp_path / "told")
    (tmp_path / "told").write_text(text)
    assert ram_limit.ram_limit_bytes() == total_bytes


@pytest.mark.skipif(sys.platform != "linux", reason="psutil's figure is /proc/meminfo's")
def test_linux_and_psutil_agree(monkeypatch):
    """To the byte, on this machine."""
    total_bytes = psutil._pslinux.virtual_memory().total
    monkeypatch.setattr(ram_limit, "_MEMINFO", Path("/proc/meminfo"))
    assert ram_limit.ram_limit_bytes() == total_bytes
