"""A time series as a line of blocks, a notebook as a figure: what is drawn is what was measured."""

import itertools
import math
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import made
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib_inline.backend_inline import _fetch_figure_metadata
from memory import MB
from plotted import cell, gpu, peak

from ipygpulogger.records import Peak
from ipygpulogger.render.markup import sparkline
from ipygpulogger.render.plot import figure, png
from ipygpulogger.render.plot_data import OWN, WHOLE, Axis, panels, thinned

PATHS = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
BLOCKS = "▁▂▃▄▅▆▇█"
TENSORS = {"allocated_bytes": 500 * MB, "reserved_bytes": 600 * MB}
POINTS = st.lists(st.tuples(st.floats(0, 1000), st.integers(0, 1 << 40)), min_size=1, max_size=200).map(
    lambda points: sorted(points, key=lambda point: point[0])
)


def column(at_s, timeline, width):
    """In which of so many equal parts of the time a moment lies."""
    start_s, end_s = timeline[0][0], timeline[-1][0]
    return min(int((at_s - start_s) / (end_s - start_s) * width), width - 1) if end_s > start_s else 0


# -- the line of blocks --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("course", "width", "drawn"),
    [
        (tuple((float(i), i * 100 * MB) for i in range(8)), 8, BLOCKS),
        (((0.0, 0), (3.9, 0), (4.0, 700 * MB), (4.1, 300 * MB), (8.0, 300 * MB)), 8, "▁▁▁▁█▄▄▄"),
        (((0.0, 500 * MB), (1.0, 501 * MB)), 4, "▁▁▁█"),  # between two samples the earlier one
        (((0.0, 500 * MB), (1.0, 501 * MB - 1)), 4, ""),
        ((), 24, ""),
    ],
)
def test_blocks_have_the_shape_of_the_course(course, width, drawn):
    """Eight levels, and the last sample where nothing was sampled."""
    assert sparkline(course, width) == drawn


@given(POINTS, st.integers(1, 100))
def test_as_wide_as_requested_and_the_peak_stands_in_its_place(timeline, width):
    """Whatever the course and the width: so many blocks, if it varies by 1 MB; the highest is full; a course that grows is drawn so."""
    drawn = sparkline(tuple(timeline), width)
    high_s, high = max(timeline, key=lambda point: point[1])
    varies = high - min(size for _, size in timeline) >= MB
    assert len(drawn) == (width if varies else 0)
    assert set(drawn) <= set(BLOCKS)
    if varies:
        assert drawn[column(high_s, timeline, width)] == "█"
    sizes = sorted(size for _, size in timeline)
    growing = sparkline([(at_s, size) for (at_s, _), size in zip(timeline, sizes, strict=True)], width)
    assert list(growing) == sorted(growing)


# -- the curves ----------------------------------------------------------------------------------


def curves(*cells, at=1):
    """The curves of a panel, by default of the first device: of this process, and of all."""
    found = panels(Axis(cells))[at].curves
    return found[OWN], found[WHOLE]


def device(before, after, *, used=2000, course=(), **more):
    timeline = tuple((at, size * MB) for at, size in course)
    return gpu(before, after, used_bytes=None if used is None else used * MB, timeline=timeline, **more)


def test_ram_is_drawn_point_for_point():
    """The ends of each cell and its samples, without the idle time between; a nested cell is part of the outer one."""
    course = [(0.5, 120), (2.0, 800), (3.5, 150)]
    cells = [cell(1, 0, 4, 100, 300, 800, course=course), cell(2, 3600, 10, 350, 500)]
    cells.append(cell(None, 3602, 3, 150, 250, label="nested in In [2]"))
    for order in cells, cells[::-1]:
        ends = [(4, 300), (4, 350), (6, 150), (9, 250), (14, 500)]
        assert curves(*order, at=0) == ([[(0, 100), *course, *ends]], [])
    assert [band.cell.label for band in Axis(cells).bands] == ["In [1]", "In [2]"]


@pytest.mark.parametrize(
    ("use", "own", "whole"),
    [
        (device(700, 1500), [[(0, 700), (10, 1500)]], [[(10, 2000)]]),
        # Others hold 1000 at the end; this process never has more than its peak.
        (device(5500, 1000, course=[(1, 1000), (9, 5000)]), [[(0, 5500), (1, 0), (9, 4000), (10, 1000)]],
         [[(1, 1000), (9, 5000), (10, 2000)]]),
        (device(0, 4000, used=4400, course=[(1, 400), (4, 400), (5, 4400), (9, 7000)]),
         [[(0, 0), (1, 0), (4, 0), (5, 4000), (9, 4000), (10, 4000)]],
         [[(1, 400), (4, 400), (5, 4400), (9, 7000), (10, 4400)]]),
        (device(0, 0, attributed=False), [], [[(10, 2000)]]),
        (device(0, 5, used=None), [[(0, 0), (10, 5)]], []),
        (device(0, 0, used=None, attributed=False), [], []),
    ],
)  # fmt: skip
def test_the_curves_of_a_device(use, own, whole):
    """What all use but for what others hold at the end, up to this one's peak; the ends as they are; nothing unknown."""
    assert curves(cell(1, 0, 10, 1, 1, gpus=[use])) == (own, whole)


def test_a_curve_is_broken_where_a_device_is_unknown():
    """No line leads over a cell that has no figure of a device."""
    uses = [[device(0, 700)], [device(700, 800)], [], [device(0, 50)]]
    own, _ = curves(*(cell(i, i * 10, 10, 1, 1, gpus=use) for i, use in enumerate(uses)))
    assert own == [[(0, 0), (10, 700), (20, 800)], [(30, 0), (40, 50)]]


@given(POINTS, st.integers(1, 50))
def test_thinning_loses_no_peak(points, columns):
    """Both ends, and the highest of each column, stay as high; nothing is made up."""
    column = 1000 / columns
    kept = thinned(points, column)
    assert set(kept) <= set(points)
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert len(kept) <= 2 * (columns + 1) + 2
    for at in {x // column for x, _ in points}:
        highest = max(size for x, size in points if x // column == at)
        assert highest in [size for x, size in kept if x // column == at]
    least = [(0.0, 1.0), (5e-324, 3.0), (5e-324, 2.0)]  # too short to be divided into columns
    assert thinned(least, 5e-324 / 1000) == least


# -- the figure ----------------------------------------------------------------------------------


def texts(axes):
    return [text.get_text() for text in axes.texts]


def bars(axes):
    """The bars of the marked peaks: left, right, height."""
    return [
        (*segment[:, 0], segment[0, 1])
        for lines in axes.collections
        if hasattr(lines, "get_segments")
        for segment in lines.get_segments()
    ]


def triangles(axes):
    return [float(x) for line in axes.lines if line.get_marker() == "^" for x in line.get_xdata()]


def legend(drawn):
    return [text.get_text() for found in drawn.legends for text in found.get_texts()]


@pytest.mark.parametrize(
    ("top", "at_least", "word"),
    [
        (805, False, "805 MB, raised by In [1]"),
        (peak(300, "sampled"), True, "at least 300 MB, raised by In [1]"),
        (peak(300, "bounded", 420), True, "at least 300 MB, raised by In [1]"),
        (Peak(300 * MB, 300 * MB + 1, "bounded"), False, "300 MB, raised by In [1]"),
    ],
)
def test_how_a_peak_is_drawn(top, at_least, word):
    """A bar over its cell, with a triangle if it is a lower bound; the highest is named."""
    drawn = figure([cell(1, 0, 10, 100, 100, top)])
    (axes,) = drawn.axes
    assert bars(axes) == [(0, 10, 805 if top == 805 else 300)]
    assert triangles(axes) == [5] * at_least
    assert legend(drawn) == ["highest, at least" if at_least else "highest of the cell"]
    assert f"RAM of this process, highest {word}" in texts(axes)


@given(st.lists(st.integers(0, 4000), min_size=1, max_size=120))
@settings(max_examples=10, deadline=None)
def test_the_highest_peak_is_always_marked(peaks):
    """However many cells there are: the highest is named, and marked if it rises notably above its cell."""
    cells = [cell(i, i * 1.0, 1, 100, 100, peak(100 + more)) for i, more in enumerate(peaks)]
    (axes,) = figure(cells).axes
    marked = [top for *_, top in bars(axes)]
    notable = [100 + more for more in peaks if more >= 0.06 * axes.get_ylim()[1]]
    assert sorted(marked) == sorted(notable)[-24:]
    raised = f" MB, raised by In [{peaks.index(max(peaks))}]"
    assert any(text.endswith(raised) or " GB, raised " in text for text in texts(axes))


def test_a_cell_that_failed_is_crossed_and_has_its_number_first():
    """Where there is no room for all, it is the one to look for; a label of the user's own is shown whole."""
    short = [cell(i, i * 0.3, 0.3, 1, 1, status="error" if i == 20 else "ok") for i in range(1, 40)]
    (axes,) = figure([*short, cell(40, 12, 60, 1, 1, label="load")]).axes
    assert {"20 ✕", "load"} <= set(texts(axes))
    assert sum(text.isdecimal() for text in texts(axes)) <= 6


def test_every_device_has_its_own_panel():
    """RAM, then the devices by index, whenever each was first touched; the legend names what is there."""
    cells = [
        cell(1, 0, 10, 100, 100),
        cell(2, 10, 10, 100, 100, gpus=[gpu(0, 700, index=1)]),
        cell(3, 20, 10, 100, 100, gpus=[gpu(0, 50), gpu(700, 800, 950, index=1)]),
    ]
    drawn = figure(cells)
    titles = ["RAM of this process, highest 100", "GPU0: Sim, highest 50", "GPU1: Sim, highest 950"]
    for title, axes in zip(titles, drawn.axes, strict=True):
        assert any(text.startswith(f"{title} MB, raised by ") for text in texts(axes))
    assert len({axes.get_xlim() for axes in drawn.axes}) == 1
    assert bars(drawn.axes[2]) == [(20, 30, 950)]
    assert sorted(legend(drawn)) == sorted([WHOLE, "highest of the cell", OWN])
    assert legend(figure(cells[:1])) == []


@pytest.mark.parametrize(
    ("use", "lines", "words", "top_mb"),
    [
        (gpu(0, 7000, 15000, total_bytes=16384 * MB, limit_bytes=15500 * MB), [16384, 15500],
         {"total 16 GB, limit 15.1 GB"}, 20000),
        (gpu(0, 300, total_bytes=143771 * MB), [], {"total 140.4 GB"}, 2000),
        (gpu(0, 300), [], set(), 2000),
    ],
)  # fmt: skip
def test_the_headroom_has_a_line(use, lines, words, top_mb):
    """The device's total and limit, with their sizes; in words alone where far above; nothing where unknown."""
    axes = figure([cell(1, 0, 10, 1, 1, gpus=[use])]).axes[1]
    assert [line.get_ydata()[0] for line in axes.lines if line.get_linestyle() == "--"] == lines
    assert {text for text in texts(axes) if "total" in text or "limit" in text} == words
    assert max([0, *lines]) < axes.get_ylim()[1] < top_mb


@pytest.mark.parametrize(
    ("top_mb", "time_s", "sizes", "times"),
    [
        (800, 50, ["0", "200 MB", "400 MB", "600 MB", "800 MB"], ["0", "10 s", "20 s", "30 s", "40 s", "50 s"]),
        (15 << 10, 7200, ["0", "5 GB", "10 GB", "15 GB"], ["0", "0.5 h", "1 h", "1.5 h", "2 h"]),
    ],
)  # fmt: skip
def test_the_axes_are_in_the_units_that_people_read(top_mb, time_s, sizes, times):
    """Round gigabytes for a large device, megabytes for a small process; hours for a long run."""
    (axes,) = figure([cell(1, 0, time_s, 100, top_mb)]).axes
    assert [text.get_text() for text in axes.get_yticklabels()] == sizes
    assert [text.get_text() for text in axes.get_xticklabels()] == times


def test_words_neither_leave_the_figure_nor_cover_each_other():
    """Those of the legend and of the axis below as well; hours on the axis, a card's name beside its limit."""
    card = gpu(100, 500, 900, name="NVIDIA H100 80GB HBM3", total_bytes=80 << 30, **TENSORS)
    cells = [cell(i, 900 * i, 900, 100, 200, 400, course=[(1, 200)], gpus=[card]) for i in range(1, 40)]
    cells.append(cell(40, 36000, 90, 100, 300, peak(900, "sampled")))
    drawn = figure(cells)
    assert len(legend(drawn)) == 4
    canvas = FigureCanvasAgg(drawn)
    canvas.draw()
    renderer = canvas.get_renderer()
    words = [*drawn.legends[0].get_texts(), *(text for axes in drawn.axes for text in axes.texts)]
    words += [axes.xaxis.label for axes in drawn.axes]
    words += [label for axes in drawn.axes for label in (*axes.get_xticklabels(), *axes.get_yticklabels())]
    for box in (text.get_window_extent(renderer) for text in words if text.get_text()):
        assert box.x0 >= -1 and box.x1 <= drawn.bbox.width + 1
        assert box.y0 >= -1 and box.y1 <= drawn.bbox.height + 1
    for axes in drawn.axes:
        titles = [text for text in axes.texts if text.xycoords == axes.transAxes]
        for beside in (axes.get_xticklabels(), titles):
            found = (text.get_window_extent(renderer) for text in beside if text.get_text())
            boxes = sorted(found, key=lambda box: box.x0)
            assert all(one.x1 <= other.x0 for one, other in itertools.pairwise(boxes))


def test_what_cannot_be_drawn_is_refused_in_one_sentence(monkeypatch):
    """Nothing to plot; no matplotlib, with what to type."""
    with pytest.raises(ValueError, match=r"^there is nothing to plot: no cell has been reported yet$"):
        figure([])
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"^plots need matplotlib: pip install 'ipygpulogger\[plot\]'$"):
        figure([cell(1, 0, 1, 1, 1)])


def test_nothing_global_is_touched():
    """No pyplot's figure, no backend chosen, no setting changed."""
    program = """
import matplotlib.pyplot
backend_of = lambda: dict.__getitem__(matplotlib.rcParams, 'backend')
before, backend, numbers = dict(matplotlib.rcParams), backend_of(), matplotlib.pyplot.get_fignums()
from plotted import cell
from ipygpulogger.render.plot import figure, png
figure([cell(1, 0, 1, 1, 1)])._repr_png_()
print(matplotlib.pyplot.get_fignums() == numbers, backend_of() == backend, dict(matplotlib.rcParams) == before)
"""
    done = subprocess.run(
        [sys.executable, "-c", PATHS + program], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["True"] * 3, done.stderr


def luminance(color):
    return sum(
        share * (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4)
        for share, c in zip((0.2126, 0.7152, 0.0722), to_rgb(color), strict=True)
    )


@pytest.mark.parametrize("style", ["default", "dark_background", "grayscale", "ggplot"])
def test_it_reads_on_a_light_page_and_on_a_dark_one(style):
    """No background of its own, and inks that read on white and on JupyterLab's black, whatever the user's style."""
    import matplotlib.style

    with matplotlib.style.context(style):
        drawn = figure([cell(1, 0, 10, 100, 200, 300, gpus=[gpu(0, 300)])])
    assert drawn.get_facecolor()[3] == 0
    words = [*drawn.texts, *drawn.legends[0].get_texts()]
    for axes in drawn.axes:
        assert axes.get_facecolor()[3] == 0
        words += [*axes.texts, *axes.get_xticklabels(), *axes.get_yticklabels(), axes.xaxis.label]
    inks = {to_hex(text.get_color()) for text in words if text.get_text()}
    assert inks
    # A contrast above 3.5, to either page.
    assert all(
        3.5 * (luminance("#111111") + 0.05) - 0.05 < luminance(ink) < 1.05 / 3.5 - 0.05 for ink in inks
    )
    # So matplotlib-inline, in use with the user's own plots, puts no background under it.
    assert not _fetch_figure_metadata(drawn)


def test_the_picture_is_sharp_and_small():
    """Twice the pixels of its size on the page, in fewer than 100 KB for any notebook of one device."""
    cells = [
        cell(i, i * 3.0, 2, 100 + i % 7, 100 + i % 9, 400 + i % 50, gpus=[gpu(i % 900, i % 500, 900)])
        for i in range(300)
    ]
    data, size = figure(cells)._repr_png_()
    width, height = struct.unpack(">II", data[16:24])
    assert (width, height) == (2 * size["width"], 2 * size["height"])
    assert size["width"] == 800
    assert len(data) < 100_000


def test_foreign_words_are_words():
    """A label or a name is neither mathematics nor markup, stays on one line, and is short."""
    hostile = "$\\frac{" + "x" * 500 + "\n\x00\ud800"
    record = cell(1, 0, 10, 1, 1, gpus=[gpu(0, 1, name=hostile)], label=hostile)
    drawn = figure([record])
    assert drawn._repr_png_()[0].startswith(b"\x89PNG")
    for text in [*drawn.texts, *(text for axes in drawn.axes for text in axes.texts)]:
        assert len(text.get_text()) < 100
        assert text.get_text().isprintable()


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(st.lists(made.records(), min_size=1, max_size=2))
def test_whatever_was_recorded_can_be_drawn(records):
    """No record of any machine or user makes the figure fail."""
    drawn = figure(records)
    assert len(drawn.axes) >= 1
    for axes in drawn.axes:
        low, high = axes.get_ylim()
        assert low == 0 < high < math.inf
    assert drawn._repr_png_()[0].startswith(b"\x89PNG")


# -- as a picture --------------------------------------------------------------------------------


def training(count, devices):
    """Cells of a training, each sampled, on devices that are full of steps."""
    ram, steps = (
        [(k, low + (k * step) % span) for k in range(62)]
        for low, step, span in ((500, 37, 101), (3500, 2371, 7919))
    )
    use = device(3000, 3000, used=4000, course=steps, total_bytes=16384 * MB)
    gpus = [replace(use, index=n, uuid=f"GPU-{n}") for n in range(devices)]
    return [
        cell(i + 1, i * 70.0, 62, 500 + i % 9, 500 + i % 8, 700 + i % 90, course=ram, gpus=gpus)
        for i in range(count)
    ]


@pytest.mark.parametrize(("count", "devices"), [(1, 1), (40, 1), (3000, 1), (100, 8)])
def test_the_picture_is_small_however_long_the_notebook(count, devices):
    """Under 160 KB."""
    assert len(png(figure(training(count, devices)))[0]) < 160_000
