"""What `gather` does with what the ranks send, over a store of a dictionary; real jobs are in test_torchrun.py."""

import subprocess
import sys

import made
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipygpulogger import measure
from ipygpulogger.blocks.watch_epochs import EpochRecord
from ipygpulogger.cluster import gather, torch_distributed
from ipygpulogger.cluster.arrivals import MOST_BYTES, packed
from ipygpulogger.cluster.torch_distributed import Job
from ipygpulogger.records.process import Process, ProcessRecord

RANKS = 4


class DictStore(dict):
    """A store of torch.distributed, as far as `Job` asks it; `broken` makes every operation fail."""

    broken = None

    def _act(self):
        if self.broken is not None:
            self.broken()

    def set(self, key, value):
        self._act()
        self[key] = value

    def check(self, keys):
        self._act()
        return all(key in self for key in keys)

    def get(self, key):
        return self[key]

    def delete_key(self, key):
        return self.pop(key, None) is not None


@pytest.fixture
def store():
    return DictStore()


@pytest.fixture
def jobs(store):
    return [Job(rank, RANKS, store) for rank in range(RANKS)]


def step(rank, label="step"):
    """What a rank measured: its label tells who."""
    return made.plain(label=label, source=f"rank {rank}")


def test_every_rank_in_order(store, jobs):
    """Of any kind of measurement; nothing is left in the store."""
    with measure("step") as m:
        pass
    fields = {name: getattr(m.last, name) for name in ("label", "started_at", "time_s", "gen")}
    kinds = [step(0), m.last, EpochRecord(**fields, gpu_index=0), step(3)]
    gathering, *others = [one.post(kind, kind.label) for one, kind in zip(jobs, kinds, strict=True)]
    assert others == [None] * 3
    group = gathering.wait(30)
    assert [record.rank for record in group] == [0, 1, 2, 3]
    assert [record.gen for record in group] == [kind.gen for kind in kinds]
    assert (group.label, group.missing, dict(store)) == ("step", (), {})


def test_a_silent_rank_is_missing(jobs):
    """What it sends too late is not taken for its next record."""
    for one in 1, 3:
        jobs[one].post(step(one), "step")
    group = jobs[0].post(step(0), "step").wait(0.05)
    assert [record.rank for record in group] == [0, 1, 3]
    assert group.missing == (("rank 2", "no answer within 0.05 s"),)
    jobs[2].post(step("late"), "step")
    for one in 1, 2, 3:
        jobs[one].post(step(one), "step")
    group = jobs[0].post(step(0), "step").wait(30)
    assert [record.source for record in group] == [f"rank {one}" for one in range(RANKS)]


def test_what_was_not_measured_is_said(jobs):
    """By any rank, under the label of the others."""
    for one in jobs[1:]:
        one.post(step(1), "step")
    jobs[0].post(step(0), "step").wait(30)
    for one in jobs[1:]:
        one.post(None if one is jobs[2] else step(1), "step")
    group = jobs[0].post(None, "step").wait(30)
    assert [record.rank for record in group] == [1, 3]
    assert group.missing == (("rank 0", "not measured"), ("rank 2", "not measured"))


@pytest.mark.parametrize(
    "value",
    [
        b"\xff" * 10_000,
        b"{}",
        packed(ProcessRecord.of(step(2), Process("node", 1, 2))),
        packed(ProcessRecord.of(step(1), Process("node", 1, 1))) + b" " * MOST_BYTES,
    ],
)
def test_what_is_not_a_record_is_refused(store, jobs, value):
    """A rank speaks for itself alone, in records of bounded size; the others are right."""
    store[jobs[0].key("step", 0, 1)] = value
    for one in 2, 3:
        jobs[one].post(step(one), "step")
    group = jobs[0].post(step(0), "step").wait(30)
    assert [record.rank for record in group] == [0, 2, 3]
    assert group.missing == (("rank 1", "sent something that is not a record"),)


def test_attempts_are_not_mixed(store, monkeypatch):
    """What was sent before torchrun restarted the job is not taken; what a rank sends afterwards is."""
    for attempt, ranks in ("0", (1, 2, 3)), ("1", (1, 2)):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", attempt)
        for one in ranks:
            Job(one, RANKS, store).post(step(10 * int(attempt) + one), "step")
    group = Job(0, RANKS, store).post(step(10), "step").wait(0.1)
    assert [record.source for record in group] == ["rank 10", "rank 11", "rank 12"]
    assert [who for who, _ in group.missing] == ["rank 3"]


def test_a_store_that_is_lost(store, jobs):
    """No rank waits, and none raises; it is asked once."""

    def broken():
        asked.append(1)
        raise RuntimeError("Broken pipe\nwith a trace")

    asked, store.broken = [], broken
    said = "the job's store cannot be reached: Broken pipe"
    with pytest.warns(RuntimeWarning, match=f"what rank 1 measured does not reach rank 0: {said}$"):
        assert [jobs[1].post(step(1), "step") for _ in range(3)] == [None] * 3
    assert len(asked) == 1
    with pytest.warns(RuntimeWarning, match="rank 0 has no records of other ranks"):
        group = jobs[0].post(step(0), "step").wait(30)
    assert [record.rank for record in group] == [0]
    assert {why for _, why in group.missing} == {said}


def test_one_process(monkeypatch):
    """A script runs without torchrun as well: a group of one. A rank without a process group is an error."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr(torch_distributed, "_distributed", lambda: None)
    with measure("alone") as m:
        pass
    group = gather(m)
    assert [(record.label, record.rank, record.gen) for record in group] == [("alone", 0, m.gen)]
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(RuntimeError, match=r"init_process_group\(\) and destroy_process_group\(\)$"):
        gather(m)
    with pytest.raises(TypeError, match=r"not str$"):
        gather("m")


class FakeDistributed:
    """torch.distributed with a process group of two, as far as `gather` asks it."""

    def __init__(self):
        self.group = type("group", (), {"WORLD": type("ProcessGroup", (), {})()})

    def get_rank(self):
        return 0

    def get_world_size(self):
        return 2


def test_calls_are_counted_from_the_first_group_on(monkeypatch):
    """Those of one process have no counterpart on other ranks. The store may outlive a group: they go on in the next."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr(torch_distributed, "_current", None)
    numbers = []
    for distributed in None, (first := FakeDistributed()), first, (second := FakeDistributed()):
        monkeypatch.setattr(torch_distributed, "_distributed", lambda found=distributed: found)
        gathering = torch_distributed._job().post(step(0), "step")
        numbers.append([key.split("/")[1] for key in gathering._open.values()])
    assert numbers == [[], ["0"], ["1"], ["2"]]
    assert second.group.WORLD is not first.group.WORLD


def test_gather_imports_no_torch():
    """One process has no need of it."""
    program = (
        "import sys\nfrom ipygpulogger import measure\nfrom ipygpulogger.cluster import gather\n"
        "with measure('a') as m: pass\nprint(len(gather(m)), 'torch' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "1 False"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("ab")), max_size=20))
def test_whatever_the_order(calls):
    """Rank 0 has of each call what was sent by then, never that of another call; the rest is said to be missing."""
    store = DictStore()
    jobs, sent = [Job(rank, 3, store) for rank in range(3)], {}
    for rank, label in calls:
        number = sent[rank, label] = sent.get((rank, label), 0) + 1
        gathering = jobs[rank].post(step(f"{rank} {label} {number}"), label)
        if gathering is not None:
            group = gathering.wait(0)
            there = [one for one in range(3) if sent.get((one, label), 0) >= number]
            assert [record.source for record in group] == [f"rank {one} {label} {number}" for one in there]
            assert {who for who, _ in group.missing} == {f"rank {one}" for one in {0, 1, 2} - set(there)}
