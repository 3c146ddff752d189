"""What of a measurement is worth telling, one rule at a time."""

from dataclasses import replace

import pytest
from handmade import MB, cell, gpu, measured, ram

from ipygpulogger.analysis.notable import is_inexact, is_notable, matters, nearly_full
from ipygpulogger.records import OutOfMemory, Peak

TOTAL = 1000 * MB


@pytest.mark.parametrize(
    ("fields", "full"),
    [
        ({"headroom_bytes": 49 * MB, "total_bytes": TOTAL, "after": MB}, True),
        ({"headroom_bytes": 50 * MB, "total_bytes": TOTAL, "after": MB}, False),
        ({"headroom_bytes": 49 * MB, "total_bytes": TOTAL, "after": 0}, False),  # another process fills it
        ({"headroom_bytes": None, "total_bytes": TOTAL, "after": MB}, False),
        ({"headroom_bytes": 0, "total_bytes": None, "after": MB}, False),
        ({"headroom_bytes": None, "total_bytes": None, "after": MB}, False),
    ],
)
def test_nearly_full(monkeypatch, fields, full):
    """Under a twentieth of a device that this process uses can still be allocated; what is unknown is not little."""
    one = gpu(after=fields["after"], total_bytes=fields["total_bytes"])
    monkeypatch.setattr(type(one), "headroom_bytes", fields["headroom_bytes"])
    assert nearly_full(one) is full
    assert is_notable(one) is (full or fields["after"] >= MB)
    assert matters(measured(None, one)) is full


@pytest.mark.parametrize(
    ("lo_mb", "hi_mb", "quality", "inexact"),
    [
        (10, 10, "exact", False),
        (10, None, "sampled", True),
        (10, 12, "bounded", True),
        (10, 10.2, "bounded", False),
    ],
)
def test_an_inexact_figure_matters(lo_mb, hi_mb, quality, inexact):
    """One that may be another megabyte, of a cell that moved memory; not one that is exact to a megabyte."""
    peak = Peak(lo_mb * MB, None if hi_mb is None else int(hi_mb * MB), quality)
    usage = replace(ram(0, 0), peak=peak)
    assert is_inexact(usage) is inexact
    assert matters(measured(usage)) is inexact
    assert not matters(measured(replace(usage, before_bytes=lo_mb * MB, after_bytes=lo_mb * MB)))


@pytest.mark.parametrize(
    ("fields", "notable"),
    [
        ({}, False),
        ({"metrics": (("energy", 5.0),)}, True),
        ({"context_bytes": MB}, True),
        ({"context_bytes": MB - 1}, False),
        ({"unattributed_bytes": -MB}, True),
        ({"unknown_rise_bytes": MB}, True),
        ({"neighbours_before_bytes": 2 * MB, "neighbours_bytes": MB}, True),
        ({"neighbours_before_bytes": None, "neighbours_bytes": 9 * MB}, False),
    ],
)
def test_a_device_is_notable(fields, notable):
    """Each reason is enough by itself: a metric, or a megabyte of anybody's."""
    assert is_notable(gpu(**fields)) is notable


def test_a_failure_for_lack_of_memory_matters():
    """It does however little moved; a cell that did not fail so does not."""
    failed = cell(out_of_memory=OutOfMemory("cpu", 1, 1, 0, 0, 0, None, 0, 0, (), ""))
    assert matters(failed)
    assert not matters(replace(failed, out_of_memory=None))
