"""What the doctor says about the limits of RAM, and which kills of the out-of-memory killer are new."""

import os
import resource

import pytest
from limited import GB, Simulated, container

from ipygpulogger.sources.system.limit_diagnosis import diagnoses, take_new
from ipygpulogger.sources.system.ram_limit import RamLimits


@pytest.fixture(autouse=True)
def nothing_else(monkeypatch, tmp_path):
    """No resource limits, a home of the test's own."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def said(root):
    return [(one.source, one.state, one.says) for one in diagnoses(RamLimits(root))]


def test_the_tightest_limit_comes_first(tmp_path):
    """The file, the value, the working set, what is left; then the machine."""
    container(tmp_path, current=6 * GB, inactive_file=GB)
    first, machine, *_ = said(tmp_path)
    assert first[:2] == ("RAM limit", "exact")
    assert first[2].split("; ") == [
        "3.0 GB of 8.0 GB (container limit) left, from /sys/fs/cgroup/memory.max",
        "working set 5.0 GB, without page cache that can be reclaimed",
    ]
    assert machine == ("RAM limit", "exact", "60.0 GB of 64.0 GB (this machine) left, from /proc/meminfo")


def test_little_has_a_remedy(tmp_path):
    """And only that."""
    container(tmp_path, current=8 * GB)
    tight, machine, *_ = diagnoses(RamLimits(tmp_path))
    assert "end kernels" in tight.remedy
    assert machine.remedy is None


def test_what_happens_beyond_is_said_where_it_is_no_kill(tmp_path, monkeypatch):
    """A soft limit slows down; beyond a resource limit allocating fails."""
    container(tmp_path, limit="max", high=4 * GB)
    set_to = {resource.RLIMIT_AS: 8 * GB}
    monkeypatch.setattr(resource, "getrlimit", lambda number: (set_to.get(number, -1), -1))
    told = [says for _, _, says in said(tmp_path)]
    assert "Linux slows the processes down" in next(one for one in told if "soft limit" in one)
    unread = next(one for one in told if "RLIMIT_AS" in one)  # there is no statm
    assert unread.startswith("8.0 GB (RLIMIT_AS), of which the part in use cannot be read; it counts address")
    assert "allocating fails" in unread


def test_nothing_is_known(tmp_path, monkeypatch):
    """Neither the machine's RAM nor a limit."""
    monkeypatch.setattr(RamLimits, "_machines_limit", lambda _: iter(()))
    assert said(tmp_path) == [("RAM limit", "absent", "neither the machine's RAM nor a limit can be read")]


def test_kills_are_always_said(tmp_path):
    """With the file that counts them; where there was none, there is nothing to say."""
    for kills, processes in ((1, "1 process"), (2, "2 processes")):
        container(tmp_path, kills=kills)
        says = f"Linux killed {processes} of this container for lack of memory (limit 8.0 GB)"
        assert ("OOM kills", "exact", f"{says}, from /sys/fs/cgroup/memory.events") in said(tmp_path)
    container(tmp_path, kills=0)
    assert "OOM kills" not in [name for name, *_ in said(tmp_path)]


# -- which are new --------------------------------------------------------------------------------------------


def new(root):
    limits = RamLimits(root)
    return take_new(limits, limits.kills())


def test_each_kill_is_new_once(tmp_path):
    """Across kernels of one container; another one has its own count, also of the same path and number."""
    simulated = container(tmp_path / "one", kills=1)
    assert [new(tmp_path / "one") for _ in range(2)] == [1, 0]
    simulated.group_of_v2(kills=4, max=8 * GB)
    assert [new(tmp_path / "one") for _ in range(2)] == [3, 0]
    simulated.group_of_v2(kills=2, max=8 * GB)
    assert new(tmp_path / "one") == 2  # a count that fell is another group's
    container(tmp_path / "two", kills=4)
    assert [new(tmp_path / "two") for _ in range(2)] == [4, 0]


def test_new_oom_kills(tmp_path):
    """A sentence where there are new ones; none where nobody counts, or nothing was killed."""
    Simulated(tmp_path)
    assert RamLimits(tmp_path).new_oom_kills() is None
    simulated = container(tmp_path)
    limits = RamLimits(tmp_path)
    assert limits.new_oom_kills() is None
    simulated.group_of_v2(kills=2, max=8 * GB)
    sentence = "Linux killed 2 processes of this container for lack of memory (limit 8.0 GB)."
    assert [limits.new_oom_kills() for _ in range(2)] == [sentence, None]


@pytest.mark.parametrize("text", [b"", b"4", b"x y", b"\xff\x00"])
def test_a_broken_memory_only_repeats(tmp_path, text):
    """Whatever is in the file."""
    container(tmp_path, kills=2)
    file = tmp_path / "cache/ipygpulogger/oom-kills"
    file.parent.mkdir(parents=True)
    file.write_bytes(text)
    assert [new(tmp_path) for _ in range(2)] == [2, 0]


def test_a_home_that_cannot_be_written_hurts_nobody(tmp_path, monkeypatch):
    """It is said again each time."""
    container(tmp_path, kills=2)
    (tmp_path / "cache").write_text("a file")
    assert [new(tmp_path) for _ in range(2)] == [2, 2]
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", os.devnull)
    assert new(tmp_path) == 2
