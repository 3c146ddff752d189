"""Measurements made by hand, in bytes."""

from datetime import datetime, timezone

from hypothesis import strategies as st

from ipygpulogger.records import CellRecord, DeviceUsage, Measurement, Peak, RamUsage

MB = 2**20
BEGIN = datetime(2024, 5, 6, 7, 8, 9, tzinfo=timezone.utc)
CHANGES = st.integers(-(1 << 40), 1 << 40)


def ram(before=0, after=0, peak=None, heap_before=None, heap_after=None):
    peak = max(before, after) if peak is None else peak
    return RamUsage(before, after, Peak(peak, peak, "exact"), heap_before, heap_after)


def gpu(index=0, before=0, after=0, peak=None, **fields):
    peak = max(before, after) if peak is None else peak
    return DeviceUsage(before, after, Peak(peak, peak, "exact"), index=index, name="a card", **fields)


def measured(gen=None, *gpus):
    return Measurement(label="x", started_at=BEGIN, time_s=1.5, gen=gen or ram(), gpus=gpus)


def cell(gen=None, *gpus, **fields):
    fields = {"execution_count": 1, "cell_id": None, "source": "x", "status": "ok"} | fields
    return CellRecord(label="In [1]", started_at=BEGIN, time_s=1.5, gen=gen or ram(), gpus=gpus, **fields)
