"""The layers of a device in the plot: its ladder over time, and what thinning keeps of it."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory import MB
from plotted import cell, gpu, peak

from ipygpulogger.records import Peak
from ipygpulogger.records.units import in_mb
from ipygpulogger.render.page import description, svg
from ipygpulogger.render.plot import figure
from ipygpulogger.render.plot_data import CACHED, OTHERS, OWN, TENSORS, Axis, Piece, drawable, panels


def device(before, after, top=None, *, course=(), **sizes):
    """A device of these megabytes; the process holds 500 MB outside the allocator."""
    fields = {name: size * MB if name.endswith("_bytes") else size for name, size in sizes.items()}
    timeline = tuple((at, size * MB) for at, size in course)
    return gpu(before, after, top, timeline=timeline, **fields)


def rows(piece):
    """The tops of the layers at each place where any of them has a point; on a straight line in between."""
    places = sorted({x for edge in piece.edges for x, _ in edge})

    def top(edge, x):
        for (x0, size0), (x1, size1) in pairwise(edge):
            if x0 <= x <= x1:
                return round(size0 + (size1 - size0) * (x - x0) / (x1 - x0), 6)
        raise AssertionError((x, edge))

    return tuple((x, tuple(top(edge, x) for edge in piece.edges)) for x in places)


def rows_of(*cells):
    """The tops of the layers of the device's panel, piece by piece."""
    return [rows(piece) for piece in panels(Axis(cells))[1].pieces]


def test_the_layers_are_those_of_the_ladder():
    """Outside the allocator, tensors, cached, others: each on top of the one before, up to what is in use."""
    use = device(
        700, 1500, allocated_bytes=1000, reserved_bytes=1200, used_bytes=2000, neighbours_bytes=300,
        neighbours_before_bytes=100,
    )  # fmt: skip
    (panel,) = panels(Axis([cell(1, 0, 10, 1, 1, gpus=[use])]))[1:]
    assert panel.layers == (OTHERS, TENSORS, CACHED, OTHERS)
    ((first, last),) = map(rows, panel.pieces)
    assert last == (10, (500, 1500, 1700, 2000))
    assert first == (0, (500, 700, 900, 1000))  # the cache before is not in the record: as at the end


def test_what_the_last_cell_left_is_there_when_the_next_begins():
    """The cache, and what is outside the allocator, are read at the ends of cells: the next begins with them."""
    one = device(500, 900, allocated_bytes=400, reserved_bytes=600, used_bytes=1500)
    two = device(900, 900, allocated_bytes=400, reserved_bytes=400, used_bytes=1300)
    _, ((_, begin), (_, end)) = rows_of(cell(1, 0, 1, 1, 1, gpus=[one]), cell(2, 1.5, 1, 1, 1, gpus=[two]))
    assert begin == (500, 900, 1100, 1500)
    assert end == (500, 900, 900, 1300)


def test_a_context_made_by_the_cell_was_not_there_before():
    """The course begins with what the process held, not with what its context would take."""
    use = device(500, 800, allocated_bytes=300, reserved_bytes=300, used_bytes=800, context_bytes=500)
    (((_, begin), (_, end)),) = rows_of(cell(1, 0, 10, 1, 1, gpus=[use]))
    assert begin == (0, 0, 0, 0)
    assert end == (500, 800, 800, 800)


COURSE = [(0.0, 1000), (4.0, 6000), (10.0, 1400)]


def test_what_was_sampled_above_the_tensors_is_cached_or_was_for_a_moment():
    """Other processes stayed the same: what the device shows beyond them is this process's own."""
    use = device(
        700, 1100, 5000, course=COURSE, allocated_bytes=600, reserved_bytes=600, used_bytes=1400,
        neighbours_bytes=300, neighbours_before_bytes=300,
    )  # fmt: skip
    ((begin, middle, end),) = rows_of(cell(1, 0, 10, 1, 1, gpus=[use]))
    assert begin == (0, (500, 700, 700, 1000))
    assert middle == (4, (500, 860, 5700, 6000))
    assert end == (10, (500, 1100, 1100, 1400))


@pytest.mark.parametrize(
    "unknown",
    [
        {"neighbours_bytes": None},
        {"neighbours_before_bytes": 0},
        {"neighbours_peak_bytes": 4000},
        {"unknown_rise_bytes": 4000},
    ],
)
def test_what_may_be_anothers_is_not_drawn_as_ours(unknown):
    """Where other processes changed, or may have: all that the device shows beyond the ends is theirs."""
    known = {"neighbours_bytes": 300, "neighbours_before_bytes": 300} | unknown
    known = {name: size for name, size in known.items() if size is not None}
    use = device(
        700, 1100, 5000, course=COURSE, allocated_bytes=600, reserved_bytes=600, used_bytes=1400, **known
    )
    ((_, (_, middle), _),) = rows_of(cell(1, 0, 10, 1, 1, gpus=[use]))
    assert middle == (500, 860, 860, 6000)


@pytest.mark.parametrize(("reserved", "ours"), [(5600, True), (5000, False), (None, False)])
def test_where_per_process_usage_is_unavailable_the_allocator_s_peak_decides(reserved, ours):
    """In a container: the highest sample is ours if what was reserved then explains it."""
    known = Peak(reserved * MB, reserved * MB, "exact") if reserved else None
    use = device(
        200, 600, 5000, course=COURSE, allocated_bytes=600, reserved_bytes=1000, used_bytes=1400, other_bytes=400,
    )  # fmt: skip
    use = replace(use, reserved_peak=known)
    ((_, (_, middle), _),) = rows_of(cell(1, 0, 10, 1, 1, gpus=[use]))
    assert middle == ((0, 360, 5600, 6000) if ours else (0, 360, 760, 6000))


def test_the_tensors_are_never_more_than_was_seen():
    """Freed early: the straight line between the ends is cut down to the sample."""
    use = device(
        5500, 1000, course=[(0.0, 5500), (1.0, 1000), (10.0, 1000)], allocated_bytes=500,
        reserved_bytes=500, used_bytes=1000, neighbours_bytes=0, neighbours_before_bytes=0,
    )  # fmt: skip
    ((_, (at, middle), _),) = rows_of(cell(1, 0, 10, 1, 1, gpus=[use]))
    assert (at, middle) == (1, (500, 1000, 1000, 1000))


def test_without_an_allocator_it_is_this_process():
    """Raw CUDA: nothing says what are tensors."""
    (panel,) = panels(Axis([cell(1, 0, 10, 1, 1, gpus=[device(0, 900, used_bytes=1000)])]))[1:]
    assert panel.layers == (OTHERS, OWN, CACHED, OTHERS)
    assert rows(panel.pieces[0])[-1] == (10, (0, 900, 900, 1000))


def test_a_device_without_attributed_use_has_no_layer_of_ours():
    """Unknown is not drawn as 0: only what the whole device uses; and nothing where not even that is known."""
    use = device(0, 0, attributed=False, used_bytes=900)
    (panel,) = panels(Axis([cell(1, 0, 10, 1, 1, gpus=[use])]))[1:]
    assert [tops for _, tops in rows(panel.pieces[0])] == [(0, 0, 0, 900)] * 2
    assert panel.marks == [] and panel.highest is None
    unknown = gpu(0, 0, attributed=False, used_bytes=None)
    (panel,) = panels(Axis([cell(1, 0, 10, 1, 1, gpus=[unknown])]))[1:]
    assert panel.pieces == []


EDGES = st.lists(
    st.tuples(st.floats(0, 1000), st.integers(0, 1 << 40).map(in_mb)), min_size=1, max_size=200
).map(lambda points: sorted(points, key=lambda point: point[0]))


@given(EDGES, st.integers(1, 50))
def test_thinning_loses_no_peak(edge, columns):
    """Both ends, and the highest of each column, stay as high; nothing is made up."""
    column = 1000 / columns
    (piece,) = drawable([Piece((edge,), sampled=True)], column)
    (kept,) = piece.edges
    assert set(kept) <= set(edge)
    assert (kept[0], kept[-1]) == (edge[0], edge[-1])
    assert len(kept) <= 2 * (columns + 1) + 2
    for at in {x // column for x, _ in edge}:
        highest = max(size for x, size in edge if x // column == at)
        assert highest in [size for x, size in kept if x // column == at]


def test_gaps_that_nobody_could_see_are_closed():
    """Thousands of cells are one shape; a gap that is wide enough to see stays."""
    cells = [Piece(([(at, 1.0), (at + 0.9, 2.0)],), sampled=False) for at in range(1000)]
    assert len(drawable(cells, 10)) == 1
    assert len(drawable(cells, 0.15)) == 1000


PEAKS = st.lists(st.tuples(st.integers(0, 4000), st.none() | st.integers(0, 4000)), min_size=1, max_size=120)


@given(PEAKS)
def test_the_highest_peak_is_always_marked(peaks):
    """However many cells share its part of the picture: the highest for certain, and the highest perhaps."""
    tops = [(100 + low, None if more is None else 100 + low + more) for low, more in peaks]
    cells = [
        cell(i, i * 1.0, 1, 100, 100, peak(low) if high is None else peak(low, "bounded", high))
        for i, (low, high) in enumerate(tops)
    ]
    (panel,) = panels(Axis(cells))
    marks = panel.marks
    assert max((mark.top_mb for mark in marks), default=100) == max(
        (low for low, high in tops if (high or low) > 100), default=100
    )
    assert max((mark.most_mb for mark in marks), default=100) == max(high or low for low, high in tops)
    assert panel.highest.top_mb == max(low for low, _ in tops)
    assert len(marks) <= 2 * 25


# -- SVG -----------------------------------------------------------------------------------------------


def training(count, devices=1):
    """Cells of a training, each sampled, on devices that are full of steps."""
    sizes = {"allocated_bytes": 2500, "reserved_bytes": 2700, "used_bytes": 4000, "total_bytes": 16384}
    sizes |= {"neighbours_bytes": 500, "neighbours_before_bytes": 500}
    return [
        cell(
            i + 1,
            i * 70.0,
            62,
            500 + i % 9,
            500 + i % 8,
            700 + i % 90,
            course=[(k, 500 + (k * 37) % 101) for k in range(62)],
            gpus=[
                device(
                    3000,
                    3000,
                    9000,
                    course=[(k, 3500 + (k * 2371) % 7919) for k in range(62)],
                    index=n,
                    **sizes,
                )
                for n in range(devices)
            ],
        )
        for i in range(count)
    ]


@pytest.mark.parametrize(("count", "devices"), [(1, 1), (40, 1), (300, 1), (3000, 1), (100, 4), (100, 8)])
def test_svg_is_small_however_long_the_notebook(count, devices):
    """Under 160 KB: points are thinned to what a picture can show."""
    assert len(svg(figure(training(count, devices)), "x").encode()) < 160_000


def test_svg_has_the_page_s_own_colours():
    """No background, text in the colour of the text around it and in its font."""
    found = svg(figure([cell(1, 0, 1, 1, 2, label="fill: #808080")]), 'a "label" <&')
    assert "font-family" not in found
    assert "fill: currentColor" in found
    assert "fill: #808080</text>" in found  # foreign text stays as it is
    assert "&lt;&amp;" in found
    assert "#ffffff" not in found


def test_the_figure_has_words():
    """For those who do not see it: the highest of each panel, and whose it was."""
    cells = [cell(1, 0, 10, 100, 100, 300), cell(2, 10, 10, 100, 100, gpus=[gpu(0, 50, 2048)])]
    assert description(Axis(cells)) == "Memory over time; the highest: RAM In [1]: 300 MB; GPU In [2]: 2.0 GB"
