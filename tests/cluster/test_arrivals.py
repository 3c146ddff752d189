"""Records that travel: small, validated on arrival, each taken once."""

import json
from dataclasses import replace

import made
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ipygpulogger
from ipygpulogger import cluster, measure
from ipygpulogger.blocks.epoch_record import EpochRecord
from ipygpulogger.cluster.arrivals import MOST_BYTES, Arrivals, packed, unpacked
from ipygpulogger.records import CellRecord
from ipygpulogger.records.decode import record_from
from ipygpulogger.records.group import Group, Missing, place_of
from ipygpulogger.records.process import Process, ProcessRecord


def from_rank(rank, **fields):
    """A record of this rank."""
    return ProcessRecord.of(made.plain(**fields), Process("node", 100 + rank, rank))


def test_a_record_keeps_its_process():
    """Through plain values, and through what is sent; a cell of this process stays what it was."""
    record = from_rank(2)
    assert (record.rank, record.host, record.pid, record.worker, record.task) == (2, "node", 102, None, None)
    assert record_from(record.to_dict()) == record == unpacked(packed(record))
    assert type(record_from(made.plain().to_dict())) is CellRecord
    assert "process" not in made.plain().to_dict()


def test_a_measured_block_becomes_a_record():
    """With the figures that it had; an epoch's too."""
    with measure("load") as m:
        block = bytearray(30 << 20)
    record = ProcessRecord.of(m.last, Process("node", 1, 0))
    assert (record.label, record.gen, record.status, len(block)) == ("load", m.gen, "ok", 30 << 20)
    fields = {name: getattr(m.last, name) for name in ("label", "started_at", "time_s", "gen")}
    assert ProcessRecord.of(EpochRecord(**fields, gpu_index=0), Process("node", 1, 0)).gen == m.gen


@settings(max_examples=30, phases=made.UNSHRUNK, deadline=None)
@given(st.text(max_size=300), st.text(max_size=300))
def test_what_is_sent_is_bounded(host, task):
    """Whatever the names are."""
    record = ProcessRecord.of(made.plain(source="x" * 9000), Process(host, 1, worker="w" * 500, task=task))
    payload = packed(record)
    assert len(payload) <= MOST_BYTES
    assert unpacked(payload).gen == record.gen


GOOD = packed(from_rank(1))
BAD = [
    b"",
    b"\xff\x00",
    b"[" * 10_000,
    b"{}",
    json.dumps({**json.loads(GOOD), "process": 3}).encode(),
    json.dumps({**json.loads(GOOD), "process": {"host": "a", "pid": -1}}).encode(),
    json.dumps({**json.loads(GOOD), "time_s": -1}).encode(),
    json.dumps(made.plain().to_dict(), default=str).encode(),
    GOOD + b" " * MOST_BYTES,
]


@pytest.mark.parametrize("payload", BAD)
def test_what_is_no_record_is_said(payload):
    """It is refused, and counted."""
    arrivals = Arrivals()
    assert arrivals.take(payload) is None
    group = arrivals.group("In [1]")
    assert (len(group), group.notes) == (0, ("1 of what arrived is not valid and left out",))


def test_each_record_is_taken_once():
    """In the order of the ranks; who sent none is named."""
    arrivals = Arrivals()
    first = [arrivals.take(packed(from_rank(rank))) for rank in (2, 0, 2)]
    assert [record and record.rank for record in first] == [2, 0, None]
    group = arrivals.group("In [1]", [f"rank {rank}" for rank in range(3)], "no answer within 30 s")
    assert [record.rank for record in group] == [0, 2]
    assert group.missing == (("rank 1", "no answer within 30 s"),)
    assert len(arrivals.group("In [2]")) == 0


def test_a_later_run_is_another_record():
    """The same block of the same rank, once more."""
    arrivals = Arrivals()
    later = replace(from_rank(0), started_at=made.plain().started_at.replace(year=2027))
    assert all(arrivals.take(packed(record)) for record in (from_rank(0), later))


def test_what_is_watched_is_one_of_three():
    """Anything else is refused in one sentence."""
    with pytest.raises(TypeError, match=r"ipyparallel\.Client, the module ray, or a distributed\.Client"):
        cluster.watch(ipygpulogger)
    assert set(cluster.__all__) <= set(dir(cluster))
    assert all(getattr(cluster, name) for name in cluster.__all__)


def test_of_many_the_largest_are_kept():
    """The others are counted, those that the sender left out among them."""
    arrivals = Arrivals(most=10)
    arrivals.count_more(5, 3 << 20)
    for size in range(100):
        arrivals.take(packed(from_rank(size, size_bytes=size << 20)))
    assert len(arrivals) == 105
    group = arrivals.group("In [1]")
    assert [record.rank for record in group] == list(range(90, 100))
    assert group.notes == ("95 more, each of which needed 89 MB at most, are only counted",)
    assert (len(arrivals), arrivals.group("In [2]").notes) == (0, ())


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 2), st.integers(0, 400)), max_size=40),
    st.randoms(use_true_random=False),
    st.sampled_from([None, 5]),
)
def test_the_order_of_arrival_does_not_matter(sent, draw, most):
    """Shuffled, lost, doubled and between garbage: the table is that of the distinct records that came."""
    records = {}
    for rank, second, needs in sent:  # one record of each scope
        began = made.plain().started_at.replace(second=second)
        records[rank, second] = from_rank(rank, size_bytes=needs << 20, started_at=began)
    came = [record for record in records.values() if draw.random() < 0.8]
    payloads = [packed(record) for record in came]
    garbage = [draw.choice(BAD) for _ in range(draw.randrange(4))]
    arrivals = Arrivals(most)
    for payload in draw.sample(payloads * 2 + garbage, len(payloads) * 2 + len(garbage)):
        arrivals.take(payload)
    assert len(arrivals) == len(came)
    group = arrivals.group("In [1]", [f"rank {rank}" for rank in range(31)], "it died")
    in_order = Arrivals(most)
    for payload in payloads:
        in_order.take(payload)
    expected = [f"rank {rank}" for rank in range(31)]
    notes = [*in_order.group("In [1]").notes]
    if garbage:
        notes.insert(
            0, f"{len(garbage)} of what arrived {'is' if len(garbage) == 1 else 'are'} not valid and left out"
        )
    here = {record.rank for record in came}
    lost = [Missing(who, "it died") for rank, who in enumerate(expected) if rank not in here]
    kept = sorted(came, key=lambda record: (-record.gen.needed_bytes, place_of(record)))[:most]
    assert repr(group) == repr(Group("In [1]", kept, lost, notes))
    assert group.missing == tuple(lost)
    for payload in payloads:  # once more, when the next cell has begun
        assert arrivals.take(payload) is None
    assert len(arrivals) == 0


def test_of_two_records_of_one_scope_the_same_one_is_kept():
    """Whichever came first."""
    one, other = packed(from_rank(0, size_bytes=1)), packed(from_rank(0, size_bytes=2))
    found = []
    for payloads in ([one, other], [other, one]):
        arrivals = Arrivals()
        for payload in payloads:
            arrivals.take(payload)
        found.append(list(arrivals.group("In [1]")))
    assert found[0] == found[1]
    assert len(found[0]) == 1
