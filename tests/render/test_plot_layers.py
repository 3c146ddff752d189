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


def device(before, after, top=None, *, used, own=None, others=None, course=(), **sizes):
    """A device of these megabytes: in use in all, allocated and reserved by us, of others before and after."""
    named = dict(zip(("allocated_bytes", "reserved_bytes"), own or (), strict=False))
    named |= dict(zip(("neighbours_before_bytes", "neighbours_bytes"), others or (), strict=False))
    fields = {name: size * MB for name, size in (named | sizes | {"used_bytes": used}).items()}
    return gpu(before, after, top, timeline=tuple((at, size * MB) for at, size in course), **fields)


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


COURSE = [(0.0, 1000), (4.0, 6000), (10.0, 1400)]
DROPS = [(0.0, 5500), (1.0, 1000), (10.0, 1000)]


@pytest.mark.parametrize(
    ("use", "tops"),
    [
        # Each layer on top of the one before; the cache before is not in the record: as at the end.
        (device(700, 1500, own=(1000, 1200), used=2000, others=(100, 300)),
         [(0, (500, 700, 900, 1000)), (10, (500, 1500, 1700, 2000))]),
        # A context that the cell made was not there before.
        (device(500, 800, own=(300, 300), used=800, context_bytes=500), [(0, (0, 0, 0, 0)), (10, (500, 800, 800, 800))]),
        # Other processes stayed the same: what was sampled beyond them is cached, or was for a moment.
        (device(700, 1100, 5000, own=(600, 600), used=1400, others=(300, 300), course=COURSE),
         [(0, (500, 700, 700, 1000)), (4, (500, 860, 5700, 6000)), (10, (500, 1100, 1100, 1400))]),
        # Freed early: the tensors are never more than was seen.
        (device(5500, 1000, own=(500, 500), used=1000, others=(0, 0), course=DROPS),
         [(0, (500, 5500, 5500, 5500)), (1, (500, 1000, 1000, 1000)), (10, (500, 1000, 1000, 1000))]),
    ],
)  # fmt: skip
def test_the_layers_are_those_of_the_ladder(use, tops):
    """Outside the allocator, tensors, cached, others: up to what is in use, or was sampled."""
    (panel,) = panels(Axis([cell(1, 0, 10, 1, 1, gpus=[use])]))[1:]
    assert panel.layers == (OTHERS, TENSORS, CACHED, OTHERS)
    assert [list(rows(piece)) for piece in panel.pieces] == [tops]


def test_what_the_last_cell_left_is_there_when_the_next_begins():
    """The cache, and what is outside the allocator, are read at the ends of cells: the next begins with them."""
    one, two = device(500, 900, own=(400, 600), used=1500), device(900, 900, own=(400, 400), used=1300)
    _, ((_, begin), (_, end)) = rows_of(cell(1, 0, 1, 1, 1, gpus=[one]), cell(2, 1.5, 1, 1, 1, gpus=[two]))
    assert begin == (500, 900, 1100, 1500)
    assert end == (500, 900, 900, 1300)


@pytest.mark.parametrize(
    "unknown",
    [{"others": None}, {"others": (0, 300)}, {"neighbours_peak_bytes": 4000}, {"unknown_rise_bytes": 4000}],
)
def test_what_may_be_anothers_is_not_drawn_as_ours(unknown):
    """Where other processes changed, or may have: all that the device shows beyond the ends is theirs."""
    use = device(
        700, 1100, 5000, own=(600, 600), used=1400, course=COURSE, **{"others": (300, 300)} | unknown
    )
    ((_, (_, middle), _),) = rows_of(cell(1, 0, 10, 1, 1, gpus=[use]))
    assert middle == (500, 860, 860, 6000)


@pytest.mark.parametrize(("reserved", "ours"), [(5600, True), (5000, False), (None, False)])
def test_where_per_process_usage_is_unavailable_the_allocator_s_peak_decides(reserved, ours):
    """In a container: the highest sample is ours if what was reserved then explains it."""
    known = Peak(reserved * MB, reserved * MB, "exact") if reserved else None
    use = device(200, 600, 5000, own=(600, 1000), used=1400, course=COURSE, other_bytes=400)
    use = replace(use, reserved_peak=known)
    ((_, (_, middle), _),) = rows_of(cell(1, 0, 10, 1, 1, gpus=[use]))
    assert middle == ((0, 360, 5600, 6000) if ours else (0, 360, 760, 6000))


def test_without_an_allocator_it_is_this_process():
    """Raw CUDA: nothing says what are tensors."""
    (panel,) = panels(Axis([cell(1, 0, 10, 1, 1, gpus=[device(0, 900, used=1000)])]))[1:]
    assert panel.layers == (OTHERS, OWN, CACHED, OTHERS)
    assert rows(panel.pieces[0])[-1] == (10, (0, 900, 900, 1000))


def test_a_device_without_attributed_use_has_no_layer_of_ours():
    """Unknown is not drawn as 0: only what the whole device uses; and nothing where not even that is known."""
    use = gpu(0, 0, attributed=False, used_bytes=900 * MB)
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
    ram, steps = (
        [(k, low + (k * step) % span) for k in range(62)]
        for low, step, span in ((500, 37, 101), (3500, 2371, 7919))
    )
    sizes = {"own": (2500, 2700), "used": 4000, "others": (500, 500), "total_bytes": 16384}
    gpus = [device(3000, 3000, 9000, course=steps, **sizes) for _ in range(devices)]
    gpus = [replace(one, index=n, uuid=f"GPU-{n}") for n, one in enumerate(gpus)]
    return [
        cell(i + 1, i * 70.0, 62, 500 + i % 9, 500 + i % 8, 700 + i % 90, course=ram, gpus=gpus)
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


def test_a_time_too_short_to_be_divided_into_columns_is_one():
    """The least number above zero, divided, is zero; the ends and the highest point stay."""
    edge = [(0.0, 1.0), (5e-324, 3.0), (5e-324, 2.0)]
    (piece,) = drawable([Piece((edge,), sampled=True)], 5e-324 / 1000)
    assert list(piece.edges[0]) == edge
