"""A run of very many cells: what is drawn and listed has the highest of all, and is small."""

import os
import threading
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from made import plain

from ipygpulogger import History
from ipygpulogger.analysis import totals
from ipygpulogger.analysis.compare import compare, shortened
from ipygpulogger.analysis.ranking import rank, ranked
from ipygpulogger.analysis.totals import quantiles, stretches
from ipygpulogger.records import DeviceUsage, Heap, Peak, RamUsage
from ipygpulogger.records.units import rounded_mb

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


@settings(deadline=None)
@given(RUNS, st.sampled_from(["peak", "consumed", "time"]))
def test_the_worst_figures_are_the_highest(run, by):
    """Of RAM and of any device: no cell has a higher figure in whole MB, and none with as much began before."""
    found = ranked(rank(run, by), by, [])
    counted = [one for one in run if not one.gpulog_only]
    if found is None:
        assert not counted
        return
    for figure, of_ram in product(("needed", "consumed"), (True, False)):
        sizes = [
            (getattr(usage, f"{figure}_bytes"), one.started_at)
            for one in counted
            for usage in ([one.gen] if of_ram else [gpu for gpu in one.gpus if gpu.attributed])
            if getattr(usage, f"{figure}_bytes") >= MB
        ]
        named = [
            one for one in found.worst if one.figure == figure and isinstance(one.usage, RamUsage) == of_ram
        ]
        if not sizes:
            assert named == []
            continue
        (worst,) = named
        most_mb = max(rounded_mb(size) for size, _ in sizes)
        assert rounded_mb(getattr(worst.usage, f"{figure}_bytes")) == most_mb
        assert worst.record.started_at == min(at for size, at in sizes if rounded_mb(size) == most_mb)


@settings(deadline=None)
@given(RUNS, RUNS)
def test_a_short_comparison_counts_what_it_leaves_out(base, new):
    """All cells that grew are listed, and each kind of cell is counted."""
    found = compare(base, new)
    few = shortened(found, at_most=0)
    grew = found.regressed
    assert shortened(found, at_most=24) == found
    if few.counts is None:
        assert few == found
        return
    assert few.pairs == grew
    assert few.counts == (
        type(few.counts)(
            len(found.pairs),
            len(grew),
            sum(pair.alike > 1 for pair in grew),
            len(found.new),
            len(found.removed),
        )
    )


def test_quantiles_are_figures_of_cells():
    """The median, what 90 and 99 of 100 do not exceed, and the most: each is some cell's, never between two."""
    assert quantiles(range(1, 101)) == [50, 90, 99, 100]
    assert quantiles(range(1, 1001)) == [500, 900, 990, 1000]
    assert quantiles([7]) == [7, 7, 7, 7]


def _with_a_device_twice():
    """A record that names one device twice, the higher peak first."""
    peaks = Peak(MB, MB, "exact"), Peak(0, 0, "exact")
    return plain(gpus=tuple(DeviceUsage(0, 0, peak, index=0, name="x", uuid=None) for peak in peaks))


@settings(deadline=None, max_examples=60)
@given(st.lists(cells(), min_size=1, max_size=60), st.floats(0.001, 20))
@example([_with_a_device_twice(), plain()], 1.0)
def test_stretches_have_the_peaks_and_ends_of_their_cells(run, longest_s):
    """However cells share stretches: the highest peak of each memory is there, and what the last cell left."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(totals, "_SHORTEST_S", longest_s)
        drawn, at_most_s = stretches(run)

    def peaks(records, key):
        return [usage.peak.lo_bytes for one in records for its, usage in totals.memories(one) if its == key]

    for key in {key for one in run for key, _ in totals.memories(one)}:
        assert max(peaks(drawn, key)) == max(peaks(run, key))
    whole = [one for one in drawn if all(one is not cell for cell in run)]
    assert all(one.time_s <= at_most_s + 1e-3 for one in whole)
    assert min(one.started_at for one in drawn) == min(one.started_at for one in run)
    assert drawn[-1].gen.after_bytes == run[-1].gen.after_bytes or drawn[-1] not in whole


def test_very_many_cells_are_drawn_in_few_stretches():
    """At most 480 stretches, and at least half as many of a run that is busy all the time."""
    run = [replace(plain(), started_at=BEGIN + timedelta(seconds=at / 2), time_s=0.5) for at in range(5000)]
    drawn, longest_s = stretches(run)
    whole = [one for one in drawn if all(one is not cell for cell in run)]
    assert 200 <= len(whole) <= 480
    assert longest_s < 5000


def test_a_pipe_is_read_like_a_file(tmp_path):
    """A log need not be seekable."""
    run, pipe = [plain(), plain(2)], tmp_path / "pipe.jsonl"
    History(run).save(tmp_path / "run.jsonl")
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes((tmp_path / "run.jsonl").read_bytes()))
    writer.start()
    assert list(History.load(pipe)) == run
    writer.join()
