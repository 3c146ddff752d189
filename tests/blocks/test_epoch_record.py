"""The four figures of an epoch."""

from hypothesis import given
from hypothesis import strategies as st
from memory import MB

from ipygpulogger.blocks.epoch_record import EpochMemory, EpochRecord
from ipygpulogger.records import Peak, RamUsage


@given(st.integers(-(2**50), 2**50), st.integers(0, 2**50))
def test_megabytes_are_truncated_toward_zero(consumed, extra):
    """The four figures are whole megabytes of 2**20 bytes, truncated toward zero; no peak is negative."""
    before = 2**50
    after = before + consumed
    peak = max(before, after) + extra
    record = EpochRecord(
        label="", started_at=None, time_s=0.0, gen=RamUsage(before, after, Peak(peak, peak, "exact"))
    )
    used, over = record.memory()[:2]
    assert abs(used) == abs(consumed) // MB
    assert (used >= 0) == (consumed > -MB)
    assert over == extra // MB >= 0
    assert record.memory()[2:] == (0, 0)


def test_loggers_can_keep_the_figures_apart():
    """Four figures have four names, whatever the prefix."""
    assert EpochMemory(1, 2, -3, 4).named("mem_") == {
        "mem_cpu_used_mb": 1,
        "mem_cpu_peak_mb": 2,
        "mem_gpu_used_mb": -3,
        "mem_gpu_peak_mb": 4,
    }
