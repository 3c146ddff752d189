"""A run of very many cells: what is drawn and listed has the highest of all, and is small."""

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import plain
from processes import of

from ipygpulogger.analysis.ranking import of_one_process, outer, raising
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
    raised, usage, _ = found
    highest = max(one.gen.peak.lo_bytes for one in run)
    assert usage.peak.lo_bytes == highest
    assert highest - raised.gen.peak.lo_bytes <= max(5 * MB, highest // 100)
    near = [one for one in run if one.gen.peak.lo_bytes >= highest - 5 * MB]
    assert raised.gen.needed_bytes >= max(one.gen.needed_bytes for one in near)


@pytest.mark.parametrize(("highest_mb", "within_mb"), [(100, 5), (1000, 10)])
@pytest.mark.parametrize("below", [False, True])
def test_how_near_the_highest_a_cell_comes(highest_mb, within_mb, below):
    """To 5 MB or 1 %, to the byte: further below, a cell that needed more did not raise it."""

    def run(lo_bytes, needs_bytes):
        usage = RamUsage(lo_bytes - needs_bytes, 0, Peak(lo_bytes, lo_bytes, "exact"))
        return lo_bytes, usage

    near_bytes = (highest_mb - within_mb) * MB - below
    found = [run(highest_mb * MB, MB), run(near_bytes, 2 * MB)]
    assert raising(found)[:2] == (found[not below][0], found[0][1])


def test_a_page_of_one_process_is_the_kernels():
    """Or, without its records, that of the first process, by its name; nothing is of nobody."""
    first, second = of(1), of({"worker": "b", "host": "other"})
    again, own = of(1, 100), plain()
    assert of_one_process([first, second, again]) == ([first, again], "rank 1")
    assert of_one_process([first, own, second]) == ([own], "")
    assert of_one_process([]) == ([], "")


def test_cells_alone_are_added_up():
    """What a cell holds within it is not counted a second time; without cells the others stand for themselves."""
    one, within = plain(), plain(execution_count=None)
    assert outer([one, within]) == [one]
    assert outer([within]) == [within]
