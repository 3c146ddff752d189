"""A record is equal, hashed and written as a dataclass that `dataclasses` had made in full."""

import dataclasses
import pickle
from datetime import datetime, timezone

import pytest

from ipygpulogger.records import (
    CellRecord,
    Diagnosis,
    Heap,
    Metric,
    Owner,
    Peak,
    RamUsage,
    Usage,
)

PEAK = Peak(5, None, "sampled")
GEN = RamUsage(1, 2, PEAK, heap_before=Heap(1, 2))
RECORD = CellRecord(
    label="In [1]",
    started_at=datetime(2026, 1, 1, tzinfo=timezone.utc),
    time_s=1.0,
    gen=GEN,
    execution_count=1,
    cell_id=None,
    source="x",
    status="ok",
)
VALUES = [
    PEAK,
    GEN,
    GEN.heap_before,
    RECORD,
    Metric("energy", 1.0, "J"),
    Owner("x", 1, "cpu", "variable"),
    Diagnosis("RAM", "exact", "says"),
]


def made_in_full(value):
    """The same value, of a class that `dataclasses` gives all its methods."""
    kind = type(value)
    names = [(one.name, one.type) for one in dataclasses.fields(kind)]
    full = dataclasses.make_dataclass(kind.__name__, names, frozen=True)
    return full(*(getattr(value, one.name) for one in dataclasses.fields(kind)))


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_equality_and_hash(value):
    """By the fields, and between values of one class alone; copies and pickles are equal."""
    full = made_in_full(value)
    assert hash(value) == hash(full)
    assert value != full
    assert value == dataclasses.replace(value) == pickle.loads(pickle.dumps(value))
    first = dataclasses.fields(value)[0].name
    assert value != dataclasses.replace(value, **{first: "another"})
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, first, 1)


@pytest.mark.parametrize("value", [PEAK, VALUES[2], *VALUES[4:]], ids=lambda value: type(value).__name__)
def test_it_is_written_as_a_dataclass_is(value):
    """Those without a `repr` of their own."""
    assert repr(value) == repr(made_in_full(value)).replace("made_in_full.<locals>.", "")


def test_a_kind_is_not_its_base():
    """A `RamUsage` is no `Usage` of the same bytes."""
    assert Usage(1, 2, PEAK) != RamUsage(1, 2, PEAK)
