"""A run of very many cells: what is drawn and listed has the highest of all, and is small."""

from datetime import datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st
from made import plain

from ipygpulogger.analysis.ranking import outer, raising
from ipygpulogger.records import DeviceUsage, Heap, Peak, RamUsage

MB = 2**20
BEGIN = datetime(2026, 11, 1, tzinfo=timezone.utc)
SIZES = st.sampled_from([0, 1, MB // 2, MB, 3 * MB // 2, 2 * MB, 5 * MB, 9 * MB])


@st.composite
def cells(draw):
    """A cell that resembles others: few ids, lines and sizes, so that there are ties, reruns and leaks."""
    lo_bytes = draw(SIZES)
    hi_bytes = draw(st.sampled_from([lo_bytes, lo_bytes + 9 * MB, None]))
    peak = Peak(
        lo_bytes, hi_bytes, "sampled" if hi_bytes is None else "exact", draw(st.sampled_from([0, 3 * MB]))
    )
    count = draw(st.integers(1, 4))
    return plain(
        gen=RamUsage(draw(SIZES), draw(SIZES), peak, Heap(0, 0), Heap(0, draw(SIZES))),
        gpus=tuple(
            DeviceUsage(
                draw(SIZES), draw(SIZES), Peak(draw(SIZES), None, "sampled"), index, "x", uuid,
                attributed=draw(st.sampled_from([True, True, False])),
            )
            for index, uuid in draw(st.lists(st.sampled_from([(0, None), (0, "a"), (1, None)]), max_size=2))
        ),
        label=f"In [{count}]",
        execution_count=draw(st.sampled_from([count, count, None])),
        cell_id=draw(st.sampled_from(["a", "b", None])),
        source=draw(st.sampled_from(["x", "y", "%z"])),
        started_at=BEGIN + timedelta(seconds=draw(st.integers(0, 5))),
        time_s=draw(st.sampled_from([0.5, 1.0])),
        status=draw(st.sampled_from(["ok", "error"])),
        gpulog_only=draw(st.sampled_from([False, False, False, True])),
    )  # fmt: skip


RUNS = st.lists(cells(), max_size=12)


@given(RUNS)
def test_who_raised_memory_to_its_highest(run):
    """A cell that came within 5 MB or 1 % of the highest, and of such cells the one that needed most."""
    found = raising([(one, one.gen) for one in run])
    if found is None:
        assert all(one.gen.peak.lo_bytes < MB for one in run)
        return
    raised, usage = found
    highest = max(one.gen.peak.lo_bytes for one in run)
    assert usage.peak.lo_bytes == highest
    assert highest - raised.gen.peak.lo_bytes <= max(5 * MB, highest // 100)
    near = [one for one in run if one.gen.peak.lo_bytes >= highest - 5 * MB]
    assert raised.gen.needed_bytes >= max(one.gen.needed_bytes for one in near)


def test_cells_alone_are_added_up():
    """What a cell holds within it is not counted a second time; without cells the others stand for themselves."""
    one, within = plain(), plain(execution_count=None)
    assert outer([one, within]) == [one]
    assert outer([within]) == [within]
