"""Two runs of a notebook, whose peaks we wrote ourselves."""

from dataclasses import replace
from datetime import datetime, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ipygpulogger.analysis.compare import FLOOR_BYTES, compare
from ipygpulogger.records import CellRecord, DeviceUsage, Peak, RamUsage
from ipygpulogger.render.summary import comparison

MB = 2**20


def cell(peak_mb=100, *, source="x = 1", cell_id=None, before_mb=0, peak=None, gpus=(), count=1):
    peak = peak or Peak(int(peak_mb * MB), int(peak_mb * MB), "exact")
    return CellRecord(
        label=f"In [{count}]", started_at=datetime(2026, 1, 1, tzinfo=timezone.utc), time_s=1.0,
        gen=RamUsage(before_mb * MB, before_mb * MB, peak), gpus=gpus, execution_count=count,
        cell_id=cell_id, source=source, status="ok",
    )  # fmt: skip


def device(peak_mb, index=0, **fields):
    size = int(peak_mb * MB)
    return DeviceUsage(0, 0, Peak(size, size, "exact"), index=index, name="x", **fields)


def regressed(before, after, **options):
    return bool(compare([before], [after], **options).regressed)


sizes_mb = st.integers(0, 1 << 16)


@given(sizes_mb, sizes_mb, st.sampled_from([0.0, 0.05, 0.5, 2.0]), st.sampled_from([0, MB, 64 * MB]))
def test_what_grew(before_mb, after_mb, tolerance, floor_bytes):
    """Just what is higher by more than both the tolerated part and the floor; never what shrank or stayed."""
    found = regressed(cell(before_mb), cell(after_mb), tolerance=tolerance, floor_bytes=floor_bytes)
    growth = (after_mb - before_mb) * MB
    assert found == (growth > tolerance * before_mb * MB and growth > floor_bytes)


@given(sizes_mb, sizes_mb, sizes_mb, sizes_mb)
def test_what_a_test_needs(before_mb, need_mb, later_mb, later_need_mb):
    """Tests are compared by need, wherever they began; in RAM 5 MB may come from what malloc kept of others."""
    runs = [
        cell(began_mb + need, before_mb=began_mb, cell_id="test:test_a")
        for began_mb, need in ((before_mb, need_mb), (later_mb, later_need_mb))
    ]
    growth_mb = later_need_mb - need_mb
    assert regressed(*runs) == (growth_mb > 0.05 * need_mb and growth_mb > 5)


def exact(size_mb, more_bytes=0, grain_mb=0):
    size = size_mb * MB + more_bytes
    return Peak(size, size, "exact", grain_mb * MB)


@pytest.mark.parametrize(
    ("before", "after", "grew"),
    [
        (exact(1000), exact(1050), False),  # 5 % of the peak before
        (exact(1000), exact(1050, 1), True),
        (exact(3), exact(4), False),  # a megabyte on a small cell is no news
        (exact(3), exact(5), True),
        (exact(100, grain_mb=96), exact(196), False),  # what the counter of either run cannot tell apart
        (exact(100), exact(196, grain_mb=96), False),
        (exact(100, grain_mb=96), exact(197), True),
        (Peak(100 * MB, 900 * MB, "bounded"), exact(900), False),  # bounds count with what is certain
        (Peak(100 * MB, 900 * MB, "bounded"), exact(1000), True),
        (exact(400), Peak(100 * MB, 900 * MB, "bounded"), False),
        (Peak(100 * MB, None, "sampled"), exact(900), True),
    ],
)
def test_what_is_certain_to_have_grown(before, after, grew):
    """Beyond the tolerance, the floor and both grains, from the most it may have been to the least it is."""
    found = compare([cell(peak=before)], [cell(peak=after)])
    assert bool(found.regressed) == grew
    assert found.pairs[0].changes[0].at_least == ({before.quality, after.quality} != {"exact"})
    assert ("(at least)" in comparison(found, unchanged=True)) == (
        {before.quality, after.quality} != {"exact"}
    )
    assert FLOOR_BYTES == MB


def test_any_device_counts():
    """RAM that stays and a device that grows is a regression, named; slices of one card, of one index, are two."""
    before = cell(gpus=(device(100), device(100), device(100, 1)))
    after = cell(gpus=(device(100), device(400), device(300, 1)))
    (pair,) = compare([before], [after]).pairs
    grew = {"RAM": False, "cuda:0": False, "cuda:0.1": True, "cuda:1": True}
    assert {c.name: c.regressed for c in pair.changes} == grew


def test_what_nobody_tells_is_no_zero():
    """A device that nobody can divide among processes is n/a, neither grown nor shrunk."""
    unknown = cell(gpus=(device(0, attributed=False),))
    for before, after in ((unknown, cell(gpus=(device(500),))), (cell(gpus=(device(500),)), unknown)):
        found = compare([before], [after])
        assert not found.regressed
        assert "n/a" in comparison(found)
        change = found.pairs[0].changes[1]
        assert None in (change.before_bytes, change.after_bytes)
        assert (change.inherited_bytes, change.at_least) == (None, False)


@given(st.integers(0, 4 * MB), st.integers(0, 4 * MB), st.sampled_from(["cuda:0", "cuda:1"]))
@example(FLOOR_BYTES, 0, "cuda:0")
@example(FLOOR_BYTES + 1, 0, "cuda:0")
def test_a_device_left_untouched_counts_as_empty(size_bytes, before_bytes, name):
    """Where one run has nothing on a device, all of the other's is the change, judged as from or to nothing."""
    peak = Peak(size_bytes, size_bytes, "exact")
    gpu = DeviceUsage(before_bytes, 0, peak, index=int(name[-1]), name="x")
    (came,), (went,) = (
        [
            change
            for change in compare([cell(gpus=was)], [cell(gpus=now)]).pairs[0].changes
            if change.name == name
        ]
        for was, now in (((), (gpu,)), ((gpu,), ()))
    )
    assert (came.before_bytes, came.after_bytes, came.inherited_bytes) == (0, size_bytes, before_bytes)
    assert (went.before_bytes, went.after_bytes, went.inherited_bytes) == (size_bytes, 0, -before_bytes)
    assert came.regressed == (size_bytes - before_bytes > FLOOR_BYTES)
    assert came.began_higher == (size_bytes > FLOOR_BYTES and not came.regressed)
    assert not went.regressed


def pairs(base, new):
    found = compare(base, new)
    return (
        [(p.before.execution_count, p.after.execution_count) for p in found.pairs],
        [r.execution_count for r in found.new],
        [r.execution_count for r in found.removed],
    )


def test_cells_are_found_by_id_then_by_source():
    """An id finds a cell whose text changed; a line finds one whose id changed; the rest is new or removed."""
    base = [
        cell(cell_id="a", source="one", count=1),
        cell(cell_id="b", source="two", count=2),
        cell(cell_id="c", source="gone", count=3),
    ]
    new = [
        cell(cell_id="z", source="two", count=11),
        cell(cell_id="a", source="changed", count=12),
        cell(cell_id="d", source="fresh", count=13),
    ]
    assert pairs(base, new) == ([(2, 11), (1, 12)], [13], [3])
    said = comparison(compare(base, new)).splitlines()
    assert "new: In [13]: fresh" in said
    assert "removed: In [3]: gone" in said


def test_equal_lines_are_paired_from_the_end():
    """Without ids the last `x` is the last `x`, as of a cell that ran several times; the first may be new."""
    base = [cell(source="x", count=i) for i in (1, 2)]
    new = [cell(source="x", count=i) for i in (11, 12, 13)]
    assert pairs(base, new) == ([(1, 12), (2, 13)], [11], [])
    assert pairs(new, base) == ([(12, 1), (13, 2)], [], [11])


@given(st.lists(st.sampled_from("xyz"), max_size=6), st.lists(st.sampled_from("xyz"), max_size=6))
def test_a_match_without_ids_has_the_same_line(base, new):
    """As many pairs of each first line as both runs have."""
    found = compare(
        [cell(10, source=source, count=i) for i, source in enumerate(base)],
        [cell(99, source=source, count=i) for i, source in enumerate(new)],
    )
    assert all(pair.before.source == pair.after.source for pair in found.pairs)
    assert len(found.pairs) == sum(min(base.count(source), new.count(source)) for source in "xyz")


def test_the_last_run_of_a_cell_counts():
    """A cell run three times is compared as it ran last, and stands there."""
    base = [cell(900, cell_id="a", count=1), cell(cell_id="b", count=2), cell(100, cell_id="a", count=3)]
    new = [cell(900, cell_id="a", count=1), cell(cell_id="b", count=2), cell(500, cell_id="a", count=4)]
    assert pairs(base, new) == ([(2, 2), (3, 4)], [], [])
    assert compare(base, new).regressed


@pytest.mark.parametrize("cell_id", [None, "same"])
def test_cells_that_only_ran_gpulog_are_left_out(cell_id):
    """They are the logger's, not the user's; without source, all of them would have the same code."""
    ours = [
        replace(cell(size_mb, source="%gpulog save a.csv", cell_id=cell_id), gpulog_only=True)
        for size_mb in (100, 300)
    ]
    found = compare([cell(1), ours[0]], [cell(1), ours[1]])
    assert len(found.pairs) == 1
    assert (found.regressed, found.new, found.removed, found.unexplained) == ((), (), (), None)


def test_a_nested_cell_is_not_its_outer_one():
    """The same line within a %%capture and on its own: two cells."""
    nested = replace(cell(source="x"), execution_count=None)
    found = compare([cell(source="x")], [nested])
    assert (len(found.pairs), len(found.new), len(found.removed)) == (0, 1, 1)


records = st.lists(
    st.builds(
        cell,
        sizes_mb,
        source=st.sampled_from(["x", "y", "z"]),
        cell_id=st.sampled_from([None, "a", "b", "c"]),
    ),
    max_size=12,
)


@given(records, records)
def test_no_cell_is_lost(base, new):
    """Every cell's last run is in a pair, new or removed, once; a run is no regression from itself."""
    found = compare(base, new)

    def last(side):
        return {r.cell_id or id(r): id(r) for r in side}.values()

    assert sorted([id(p.before) for p in found.pairs] + [id(r) for r in found.removed]) == sorted(last(base))
    assert sorted([id(p.after) for p in found.pairs] + [id(r) for r in found.new]) == sorted(last(new))
    same = compare(base, base)
    assert not (same.regressed or same.new or same.removed)
    assert len(same.pairs) == len(last(base))


def test_what_is_said():
    """The figures of both runs, what grew, how much of that was there before, and a verdict."""
    found = compare([cell(100)], [replace(cell(1124, before_mb=1000), status="error", error="ValueError")])
    head, named, ram, failed, verdict = comparison(found).splitlines()
    assert failed == "failed now, not before: In [1]: x = 1"
    assert head.split() == ["Highest,", "MB", "Before", "Now", "Change"]
    assert named == "In [1]: x = 1  (1.000 s, failed: ValueError; was 1.000 s)"
    assert ram.split()[:5] == ["RAM", "100", "1124", "+1024", "GREW"]
    assert "(+1000 MB of it before the cell began)" in ram
    assert verdict == "1 of 1 cell grew by more than 5 % and 1 MB"


@given(sizes_mb, sizes_mb, sizes_mb, sizes_mb)
def test_a_cell_that_only_began_higher_has_not_grown(was_mb, needed_mb, now_mb, needs_mb):
    """Grown: it went higher, and would have without what was there before it. Else it began higher, and exit 1 stays."""
    before = cell(was_mb + needed_mb, before_mb=was_mb)
    after = cell(now_mb + needs_mb, before_mb=now_mb)
    found = compare([before], [after], tolerance=0.0)
    ((change, *_),) = [pair.changes for pair in found.pairs]
    higher_mb, own_mb = now_mb + needs_mb - was_mb - needed_mb, needs_mb - needed_mb
    assert change.regressed == (min(higher_mb, own_mb) > 1)
    assert change.began_higher == (higher_mb > 1 and own_mb <= 1)
    assert bool(found.regressed or found.unexplained) == (higher_mb > 1)


def test_blame_is_where_memory_was_raised():
    """After a cell that grew, `del x` that begins higher is shown, not counted; alone it says that nobody grew."""
    base = [cell(100, source="x = f()"), cell(100, before_mb=100, source="del x")]
    new = [cell(300, source="x = f()"), cell(300, before_mb=300, source="del x")]
    found = compare(base, new)
    assert [pair.after.source for pair in found.regressed] == ["x = f()"]
    assert found.unexplained is None
    assert "del x" not in comparison(found)
    assert "(+200 MB of it before the cell began)" in comparison(found, unchanged=True)
    assert comparison(found).endswith("1 of 2 cells grew by more than 5 % and 1 MB")
    alone = compare(base[1:], new[1:])
    assert "In [1]: del x: began higher, and no cell of both runs grew" in comparison(alone)


@given(st.lists(st.tuples(*[st.sampled_from(["ok", "error", "interrupted"])] * 2), min_size=1, max_size=5))
def test_a_cell_that_fails_now(statuses):
    """Failed now: not "ok", and "ok" before, or new; it is named."""
    base, new = (
        [replace(cell(source=f"f({i})"), status=pair[at], error="E") for i, pair in enumerate(statuses)]
        for at in (0, 1)
    )
    found = compare(base, [*new, replace(cell(source="fresh"), status="error", error="E")])
    expected = [f"f({i})" for i, (was, now) in enumerate(statuses) if was == "ok" != now]
    assert [record.source for record in found.failed] == [*expected, "fresh"]
    assert "failed now, not before: " in comparison(found)
    assert not compare(base, base).failed


@given(records, records)
def test_changed_cells_alone_are_shown(base, new):
    """A row for each memory that moved beyond the tolerance, up or down; --all has every row."""
    found = compare(base, new)
    told, whole = comparison(found), comparison(found, unchanged=True)
    changed = [change for pair in found.pairs for change in pair.changes if change.changed]
    assert told.count("\n  RAM ") == len(changed)
    assert whole.count("\n  RAM ") == len(found.pairs)
    for change in changed:
        moved = abs(change.after_bytes - change.before_bytes)
        assert moved > max(MB, 0.05 * change.before_bytes)
    assert ("(--all shows" in told) == any(not pair.changed for pair in found.pairs)
    assert "--all" not in whole
