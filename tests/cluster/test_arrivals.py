"""Records that travel: small, validated on arrival, each taken once."""

import json

import made
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipygpulogger.analysis.group import Group
from ipygpulogger.cluster.arrivals import MOST_BYTES, Arrivals, packed, unpacked
from ipygpulogger.records import CellRecord, DeviceUsage, Peak
from ipygpulogger.records.process import Process, ProcessRecord
from ipygpulogger.records.units import size_text
from ipygpulogger.storage.decode import record_from


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
    GOOD.ljust(MOST_BYTES + 1),
]


@pytest.mark.parametrize("payload", BAD)
def test_what_is_no_record_is_said(payload):
    """It is refused, and counted."""
    arrivals = Arrivals()
    assert arrivals.take(payload) is None
    group = arrivals.group("In [1]")
    assert (len(group), group.notes) == (0, ("1 of what arrived is not valid and left out",))
    assert unpacked(GOOD.ljust(MOST_BYTES)) is not None


def test_of_very_many_records_few_are_held():
    """The largest, by what each needed most of: general RAM, or a device's memory. The others are counted."""
    gpu = DeviceUsage(0, 90 << 20, Peak(90 << 20, 90 << 20, "exact"), index=0, name="A100")
    arrivals = Arrivals(3)
    for size_mb in (70, 10, 80, 20, 75):
        arrivals.take(packed(from_rank(size_mb, size_bytes=size_mb << 20)))
    arrivals.take(packed(from_rank(1, size_bytes=0, gpus=(gpu,))))
    group = arrivals.group("In [1]")
    assert [record.rank for record in group] == [1, 75, 80]
    assert group.notes == ("3 more, each of which needed 70 MB at most, are only counted",)


def test_the_group_of_what_arrived():
    """In the order of the ranks; what was not sent is counted; garbage alone is no group."""
    arrivals = Arrivals()
    arrivals.refused += 1
    assert not arrivals
    arrivals.refused = 0
    assert [arrivals.take(packed(from_rank(rank))).rank for rank in (2, 0)] == [2, 0]
    arrivals.unsent += 3
    group = arrivals.group("In [1]")
    assert [record.rank for record in group] == [0, 2]
    assert group.notes == ("3 more tasks ended, whose records did not arrive",)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 99), st.integers(0, 400)),
        max_size=40,
        unique_by=(lambda sent: sent[0], lambda sent: sent[1]),
    ),
    st.randoms(use_true_random=False),
    st.sampled_from([None, 5]),
)
def test_the_order_of_arrival_does_not_matter(sent, draw, most):
    """Shuffled, lost and between garbage: the table is that of the largest that came, and says what was not."""
    came = [from_rank(rank, size_bytes=needs << 20) for rank, needs in sent if draw.random() < 0.8]
    garbage = [draw.choice(BAD) for _ in range(draw.randrange(4))]
    payloads = [*map(packed, came), *garbage]
    arrivals = Arrivals(most)
    for payload in draw.sample(payloads, len(payloads)):
        arrivals.take(payload)
    came.sort(key=lambda record: -record.gen.needed_bytes)
    kept, left_out = came[:most], came[len(came[:most]) :]
    notes = []
    if garbage:
        are = "is" if len(garbage) == 1 else "are"
        notes.append(f"{len(garbage)} of what arrived {are} not valid and left out")
    if left_out:
        size = size_text(left_out[0].gen.needed_bytes)
        notes.append(f"{len(left_out)} more, each of which needed {size} at most, are only counted")
    assert repr(arrivals.group("In [1]")) == repr(Group("In [1]", kept, (), notes))
