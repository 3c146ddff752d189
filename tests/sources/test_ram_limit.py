"""How much RAM a process may use, and what is left: the machine's, its cgroups' limits, its resource limits."""

import os
import re
from functools import partial

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from limited import GB, NO_LIMIT_OF_V1, Simulated, container

from ipygpulogger.records import Note, NoteKind
from ipygpulogger.sources.system import ram_limit
from ipygpulogger.sources.system.ram_limit import MemoryLimit, RamLimits, least

MB = 2**20
resource = pytest.importorskip("resource", reason="Windows has no limits of a process")


@pytest.fixture(autouse=True)
def nothing_else(monkeypatch, tmp_path):
    """No resource limits, whatever the tests run under, and a home of the test's own."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def left(limits):
    """What is left under each limit, by name."""
    return {limit.name: limit.left_bytes for limit in limits.all()}


def grouped(path, *, group, **limits):
    """A machine on which this process is in such a group of version 2."""
    return lambda root: Simulated(root).process_of_v2(path).group_of_v2(group, **limits)


STEP = "system.slice/slurmstepd.scope/job_7/step_0"


@pytest.mark.parametrize(
    ("machine", "says"),
    [
        (Simulated, "60.0 GB of 64.0 GB (this machine)"),
        # Page cache that the kernel gives up first is not in use.
        (partial(container, current=7 * GB, inactive_file=2 * GB), "3.0 GB of 8.0 GB (container limit)"),
        (
            lambda root: (
                Simulated(root).process_of_v1().group_of_v1(limit=4 * GB, usage=3 * GB, inactive_file=GB)
            ),
            "2.0 GB of 4.0 GB (container limit)",
        ),
        (grouped(f"/{STEP}", group=STEP, current=GB, max=2 * GB), "1.0 GB of 2.0 GB (job limit)"),
        # A namespace of its own; the host's paths; moved out of the container.
        *(
            (grouped(path, group="", current=GB, max=8 * GB), "7.0 GB of 8.0 GB (container limit)")
            for path in ("/", "/docker/abc", "/../other")
        ),
    ],
)
def test_the_tightest_limit(tmp_path, machine, says):
    """The machine's, a container's of either version or a job's, with what is left."""
    machine(tmp_path)
    assert str(least(RamLimits(tmp_path).all())) == says


@pytest.mark.parametrize("value", ["max", "", "garbage", "-1", "9" * 40, NO_LIMIT_OF_V1, 2**60, "8 GB"])
def test_what_is_no_limit(tmp_path, value):
    """Words, nothing, what no kernel writes."""
    container(tmp_path, limit=2**60 - 1)
    assert left(RamLimits(tmp_path))["container limit"] == 2**60 - 1 - GB  # the largest limit
    container(tmp_path, limit=value)
    assert left(RamLimits(tmp_path)) == {"this machine": 60 * GB}
    simulated = Simulated(tmp_path).process_of_v1()
    simulated.group_of_v1(limit=value)
    assert left(RamLimits(tmp_path)) == {"this machine": 60 * GB}


def test_a_use_that_may_not_be_read(tmp_path):
    """A folder stands in its place, which not even root can read: that limit is known, and never the tightest."""
    container(tmp_path)
    (tmp_path / "sys/fs/cgroup/memory.current").unlink()
    (tmp_path / "sys/fs/cgroup/memory.current").mkdir()
    limits = RamLimits(tmp_path)
    assert limits.refusing().name == "this machine"  # beyond a group's limit processes are killed
    assert left(limits) == {"container limit": None, "this machine": 60 * GB}
    assert (limits.total_bytes, str(limits.all()[0])) == (8 * GB, "8.0 GB (container limit)")
    assert limits.short(100 * GB, 0).name == "this machine"


def test_what_changes_is_seen(tmp_path):
    """The limit, what is in use, and the group that the process is in."""
    simulated = container(tmp_path)
    limits = RamLimits(tmp_path)
    assert left(limits)["container limit"] == 7 * GB
    simulated.group_of_v2(current=2 * GB, max=4 * GB)
    assert left(limits)["container limit"] == 2 * GB
    simulated.process_of_v2("/deeper").group_of_v2("deeper", current=GB, max=GB + MB)
    assert least(limits.all()).left_bytes == MB


@pytest.mark.linux("a process has no limits", "macos")
def test_address_space(tmp_path, monkeypatch):
    """That limit is no limit of RAM; beyond it allocating fails. There is none on Windows."""
    Simulated(tmp_path).write("proc/self/statm", "1000 500 100 10 0 300 0\n")
    set_to = {resource.RLIMIT_AS: 8000 * 4096, resource.RLIMIT_RSS: 4096}
    monkeypatch.setattr(resource, "getrlimit", lambda number: (set_to.get(number, -1), -1))
    monkeypatch.setattr(resource, "getpagesize", lambda: 4096)
    limits = RamLimits(tmp_path)
    assert left(limits) == {"RLIMIT_AS": 7000 * 4096, "this machine": 60 * GB}
    assert limits.total_bytes == 64 * GB
    assert limits.refusing().name == "RLIMIT_AS"
    # How much of it was in use at the peak is unknown: only what is left now counts.
    assert limits.short(7000 * 4096, 60 * GB).name == "this machine"
    assert limits.short(7000 * 4096 + 1, 0).name == "RLIMIT_AS"
    for used_pages, name in ((7600, None), (7601, "RLIMIT_AS")):  # a twentieth is enough
        Simulated(tmp_path).write("proc/self/statm", f"{used_pages} 500 100 10 0 300 0\n")
        found = limits.short(0, 0)
        assert (found and found.name) == name
    kinds = {Note.read(f"{limit.memory} left").kind for limit in limits.all()}
    assert kinds == {NoteKind.LITTLE_LEFT}
    for none in (2**63 - 1, 2**60):  # the first is "no limit" on macOS
        set_to[resource.RLIMIT_AS] = none
        assert left(limits) == {"this machine": 60 * GB}
    set_to[resource.RLIMIT_AS] = 0
    assert left(limits)["RLIMIT_AS"] == 0
    monkeypatch.setattr(ram_limit, "resource", None)
    assert left(limits) == {"this machine": 60 * GB}


@pytest.mark.linux("the files are Linux's")
def test_this_machine():
    """Total to the byte as psutil has it, what is available about the same; nothing here fails."""
    limits = RamLimits()
    machine = next(limit for limit in limits.all() if limit.name == "this machine")
    assert machine.limit_bytes == psutil.virtual_memory().total
    assert abs(machine.left_bytes - psutil.virtual_memory().available) < GB
    assert limits.total_bytes <= machine.limit_bytes
    assert all(limit.left_bytes is not None for limit in limits.all())


@pytest.mark.parametrize("text", ["odd\n", None, "MemTotal: 5 MB\n", "MemTotal: 5 kB\n"])
def test_unknown_is_unknown(tmp_path, text):
    """Where there is no ``/proc/meminfo``, as on other systems, or it is not understood."""
    if text is not None:
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc/meminfo").write_text(text)
    limits = RamLimits(tmp_path)
    assert (limits.all(), least(limits.all()), limits.total_bytes) == ([], None, None)
    assert (limits.short(GB, 0), limits.kills()) == (None, None)
    assert said(tmp_path) == [("RAM limit", "absent", "neither the machine's RAM nor a limit can be read")]


SIZES = st.integers(0, 100).map(lambda count: count * MB)
GROUP = st.fixed_dictionaries(
    {"current": st.none() | SIZES, "inactive_file": st.none() | SIZES},
    optional={"max": st.none() | SIZES},
)


@given(chain=st.lists(GROUP, min_size=1, max_size=4), available=SIZES, need=SIZES, transient=SIZES)
def test_the_least_that_any_limit_leaves(tmp_path_factory, chain, available, need, transient):
    """Of the whole chain and the machine, by the plainest arithmetic: an ancestor that leaves less rules."""
    root = tmp_path_factory.mktemp("machine")
    simulated = Simulated(root, total_bytes=200 * MB, available_bytes=available)
    simulated.process_of_v2("/" + "/".join("abcd"[: len(chain) - 1]))
    expected = [(available, 200 * MB)]
    for depth, group in enumerate(chain):
        values = {"max": group["max"]} if "max" in group else {}
        current, cache = group["current"], group["inactive_file"]
        folder = simulated.group_of_v2("/".join("abcd"[:depth]), current=current or 0, **values)
        (folder / "memory.stat").write_text("anon 1\n" if cache is None else f"inactive_file {cache}\n")
        if current is None:
            (folder / "memory.current").unlink()
            continue
        working_set = max(0, current - (cache or 0))
        expected += [(max(0, v - working_set), v) for v in values.values() if v is not None]
    limits = RamLimits(root)
    assert least(limits.all()).left_bytes == min(expected)[0]
    short = [left for left, size in expected if left < max(need, int(size * 0.05) + transient)]
    found = limits.short(need, transient)
    assert (found and found.left_bytes) == min(short, default=None)
    sizes = [value for group in chain if (value := group.get("max")) is not None]
    assert limits.total_bytes == min([200 * MB, *sizes])


TEXTS = st.binary(max_size=40) | st.sampled_from([b"max\n", b"1048576\n", b"0::/a/b\n", b"4:memory:/a\n"])
FILES = ("cgroup", "statm")
NAMES = ("memory.max", "memory.current", "memory.stat", "memory.events")


@given(st.dictionaries(st.sampled_from([*FILES, *NAMES]), TEXTS))
def test_garbage_hurts_nobody(tmp_path_factory, texts):
    """Any bytes in any of the files: no error, and figures that are none or not negative."""
    root = tmp_path_factory.mktemp("garbage")
    simulated = Simulated(root)
    for name, text in texts.items():
        for folder in ("proc/self",) if name in FILES else ("sys/fs/cgroup", "sys/fs/cgroup/a/b"):
            simulated.write(f"{folder}/{name}", "").write_bytes(text)
    limits = RamLimits(root)
    for limit in limits.all():
        assert limit.limit_bytes >= 0
        assert limit.left_bytes is None or 0 <= limit.left_bytes <= limit.limit_bytes
        assert str(limit)
    kills = limits.kills()
    assert kills is None or kills.processes >= 0


def test_kills_are_those_of_the_group_with_the_nearest_limit(tmp_path):
    """There the kernel counts what was killed in the groups below, too; without any limit, the innermost counts."""
    simulated = Simulated(tmp_path).process_of_v2("/pod/box/kernel")
    simulated.group_of_v2("pod/box/kernel", kills=0)
    simulated.group_of_v2("pod/box", kills=2, max=8 * GB)
    simulated.group_of_v2("pod", kills=9, max=32 * GB)
    assert RamLimits(tmp_path).kills()[:2] == (2, "this container")
    assert RamLimits(tmp_path).kills().limit_bytes == 8 * GB
    simulated.group_of_v2("pod/box", max="max")
    simulated.group_of_v2("pod", max="max")
    assert RamLimits(tmp_path).kills()[:2] == (0, "this cgroup")
    simulated.process_of_v1("/docker/abc").group_of_v1("docker/abc", kills=1, limit=GB)
    assert RamLimits(tmp_path).kills()[:2] == (1, "this container")
    container(tmp_path, kills=-3)  # no kernel writes it
    assert RamLimits(tmp_path).kills().processes == 0


def test_a_limit_in_words():
    """With what is left, and without where that is unknown; a moment when less was left, or little."""
    limit = MemoryLimit("container limit", "memory.max", 8 * GB, 7 * GB + 624 * MB)
    assert str(limit) == "400 MB of 8.0 GB (container limit)"
    assert str(limit.with_left(-5)) == "0 MB of 8.0 GB (container limit)"
    assert str(limit._replace(used_bytes=None)) == "8.0 GB (container limit)"
    twentieth = MemoryLimit("container limit", "memory.max", 2000, 1900)
    scarce = [twentieth, twentieth.with_left(99), twentieth._replace(used_bytes=None)]
    assert [limit.is_scarce for limit in scarce] == [False, True, False]


def said(root):
    return [(one.source, one.state, one.says) for one in RamLimits(root).diagnoses()]


@pytest.mark.linux("a process has no limits", "macos")
def test_what_is_said_of_each_limit(tmp_path, monkeypatch):
    """The tightest first: the file, the value, what is left; little alone has a remedy."""
    container(tmp_path, current=6 * GB, inactive_file=GB)
    assert said(tmp_path)[:2] == [
        ("RAM limit", "exact", f"{left}, from {file}")
        for left, file in (
            ("3.0 GB of 8.0 GB (container limit) left", "/sys/fs/cgroup/memory.max"),
            ("60.0 GB of 64.0 GB (this machine) left", "/proc/meminfo"),
        )
    ]
    container(tmp_path, current=8 * GB)
    tight, machine, *_ = RamLimits(tmp_path).diagnoses()
    assert "end kernels" in tight.remedy
    assert machine.remedy is None
    container(tmp_path, limit=100 * GB, current=100 * GB)
    assert [says.partition(" left")[0] for *_, says in said(tmp_path)] == [
        "0 MB of 100.0 GB (container limit)", "60.0 GB of 64.0 GB (this machine)",
    ]  # fmt: skip
    set_to = {resource.RLIMIT_AS: 8 * GB}
    monkeypatch.setattr(resource, "getrlimit", lambda number: (set_to.get(number, -1), -1))
    (unread,) = (says for *_, says in said(tmp_path) if "RLIMIT_AS" in says)
    assert unread == "8.0 GB (RLIMIT_AS), of which the part in use cannot be read"


def new(root):
    """How many kills are new."""
    said = RamLimits(root).new_oom_kills()
    return int(re.search(r"killed (\d+) process", said)[1]) if said else 0


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


def test_what_is_said_of_kills(tmp_path):
    """Always by the doctor, with the file; by others where they are new."""
    for kills, processes in ((0, ""), (1, "1 process"), (3, "2 processes")):
        container(tmp_path, kills=kills)
        says = f"Linux killed {processes} of this container for lack of memory (limit 8.0 GB)."
        assert RamLimits(tmp_path).new_oom_kills() == (says if kills else None)
    says = "Linux killed 3 processes of this container for lack of memory (limit 8.0 GB)"
    assert said(tmp_path)[-1] == ("OOM kills", "exact", f"{says}, from /sys/fs/cgroup/memory.events")


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
