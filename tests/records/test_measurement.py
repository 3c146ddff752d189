"""A measurement: its memories, what grew, its plain values."""

import dataclasses
import json

import pytest
from handmade import MB, cell, gpu, measured, ram
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made import UNSHRUNK, records

from ipygpulogger.records import CPU, DRIVER, Heap, Peak, RamUsage, notable

SIZES = st.integers(0, 1 << 40)


@given(st.lists(st.tuples(st.booleans(), SIZES, SIZES, SIZES), max_size=4))
def test_the_busiest_device(courses):
    """The one on which this process needed most; one that nobody can attribute comes last."""
    gpus = [gpu(i, *course, attributed=attributed) for i, (attributed, *course) in enumerate(courses)]
    busiest = measured(None, *gpus).busiest_gpu()
    needs = [(attributed, max(course) - course[0]) for attributed, *course in courses]
    assert (busiest.index if busiest else None) == (needs.index(max(needs)) if needs else None)


def test_a_device_is_asked_for_by_its_index():
    """Those of frameworks come first: the driver's index is another; without one, the first."""
    raw, first, second = gpu(1, backend=DRIVER), gpu(0), gpu(1)
    both = measured(None, raw, first, second)
    assert both.gpu(1) is second
    assert both.gpu(None) is first
    assert both.gpu(2) is None
    assert measured(None, raw).gpu(1) is raw
    assert measured(None, raw).gpu(0) is None
    assert measured(None).gpu(None) is None


def test_whose_memory_is_known():
    """General RAM, and the devices whose figures are this process's."""
    mine, theirs = gpu(0), gpu(1, attributed=False)
    record = measured(ram(), mine, theirs)
    assert record.memories() == {CPU: record.gen, "cuda:0": mine}


@given(SIZES, SIZES, st.integers(0, 1 << 30))
def test_what_malloc_keeps_is_no_growth(before, handed_out, kept):
    """A cell that freed what it had asked for has grown by what is in use, wherever the rest lies."""
    usage = ram(before, before + handed_out + kept, None, Heap(0, 0), Heap(handed_out, kept))
    grew = cell(usage).grown()
    assert grew == ({CPU: handed_out} if notable(handed_out, usage.after_bytes) else {})


@pytest.mark.parametrize(
    ("precision", "grew"), [(0, True), (9 * MB, True), (10 * MB, False), (11 * MB, False)]
)
def test_what_the_grain_may_be_is_no_growth(precision, grew):
    """Where the resident size itself is approximate, what lies within its grain has no owner; devices count."""
    usage = RamUsage(0, 10 * MB, Peak(10 * MB, 10 * MB, "exact"), precision_bytes=precision)
    grown = measured(usage, gpu(0, 0, 10 * MB)).grown()
    assert grown == ({CPU: 10 * MB} if grew else {}) | {"cuda:0": 10 * MB}
    assert measured(ram(), gpu(0, 0, 10 * MB)).grown() == {"cuda:0": 10 * MB}


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=60, phases=UNSHRUNK)
@given(records())
def test_plain_values_of_any_record_are_those_of_the_standard_library(record):
    """`to_dict` says what `dataclasses.asdict` says."""
    asdict = dataclasses.asdict(record) | {"started_at": record.started_at.isoformat()}
    assert record.to_dict() == asdict
    assert json.dumps(record.to_dict()) == json.dumps(asdict)
