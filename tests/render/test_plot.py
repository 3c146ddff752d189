"""A course as a line of blocks, a notebook as a figure: what is drawn is what was measured."""

import itertools
import math
import pickle
import struct
import subprocess
import sys
from pathlib import Path

import made
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from memory import MB
from plotted import cell, gpu, peak

from ipygpulogger.records import Peak
from ipygpulogger.render import plot
from ipygpulogger.render.page import svg
from ipygpulogger.render.plot import figure
from ipygpulogger.render.sparkline import sparkline

HERE = Path(__file__).parent
PATHS = f"import sys; sys.path[:0] = {[str(HERE), str(HERE.parent)]}\n"
BLOCKS = "▁▂▃▄▅▆▇█"


@st.composite
def timelines(draw, min_size=1):
    """Points in order of time; several at one moment now and then, as at a scope's end."""
    points = draw(
        st.lists(
            st.tuples(st.integers(0, 10**7).map(lambda ms: ms / 1000), st.integers(0, 1 << 40)),
            min_size=min_size,
            max_size=64,
        )
    )
    return tuple(sorted(points, key=lambda point: point[0]))


def column(at_s, timeline, width):
    """Where a moment stands: the equal stretches of time, told once more."""
    start_s, end_s = timeline[0][0], timeline[-1][0]
    return min(int((at_s - start_s) / (end_s - start_s) * width), width - 1) if end_s > start_s else 0


# -- the line of blocks --------------------------------------------------------------------------


def test_a_rise_climbs_one_block_a_column():
    """Eight levels, eight columns: each its own block."""
    assert sparkline(tuple((float(i), i * 100 * MB) for i in range(8)), 8) == BLOCKS


def test_a_plateau_and_a_peak():
    """What is drawn has the shape of what was: low, a short peak, half of it for the rest."""
    course = (
        [(i / 10, 0) for i in range(40)] + [(4.0, 700 * MB)] + [(i / 10, 300 * MB) for i in range(41, 81)]
    )
    assert sparkline(tuple(course), 8) == "▁▁▁▁█▄▄▄"


@given(timelines(), st.integers(1, 100))
def test_as_wide_as_asked_and_the_peak_stands_in_its_place(timeline, width):
    """Whatever the course and the width: so many blocks, and the highest is full, at its own moment."""
    drawn = sparkline(timeline, width)
    assert len(drawn) == width
    assert set(drawn) <= set(BLOCKS)
    high_s, high = max(timeline, key=lambda point: point[1])
    if high - min(size for _, size in timeline) >= MB:
        assert drawn[column(high_s, timeline, width)] == "█"
    else:
        assert drawn == "▁" * width


@given(timelines(min_size=2), st.integers(1, 100))
def test_a_course_that_only_grows_is_drawn_growing(timeline, width):
    """No resampling makes a dip, or a peak, that was not there."""
    sizes = sorted(size for _, size in timeline)
    drawn = sparkline(tuple((at_s, size) for (at_s, _), size in zip(timeline, sizes, strict=True)), width)
    assert list(drawn) == sorted(drawn)


@given(timelines(min_size=2), st.integers(1, 100), st.integers(-3, 10))
def test_only_the_shape_counts(timeline, width, power):
    """Slower or faster, the course looks the same."""
    other = tuple((at_s * 2.0**power, size) for at_s, size in timeline)
    assert sparkline(other, width) == sparkline(timeline, width)


def test_a_gap_between_two_samples_is_a_straight_line():
    """A column in which nothing was sampled lies between its neighbours, and is no drop to nothing."""
    assert sparkline(((0.0, 100 * MB), (1.0, 800 * MB)), 8) == "▁▂▃▄▅▆▇█"


def test_less_than_a_megabyte_is_no_mountain():
    """Noise of some pages is drawn flat; a megabyte is not noise."""
    assert sparkline(((0.0, 500 * MB), (1.0, 501 * MB - 1)), 4) == "▁▁▁▁"
    assert sparkline(((0.0, 500 * MB), (1.0, 501 * MB)), 2) == "▁█"


def test_nothing_sampled_is_no_line():
    """An empty course, or no room for it: an empty string."""
    assert sparkline(()) == ""
    assert sparkline(((0.0, 1),), 0) == ""


# -- the figure ----------------------------------------------------------------------------------


def components(patch):
    """The unbroken lines of a shape, each a list of points."""
    path, found = patch.get_path(), []
    for point, code in zip(path.vertices, path.codes, strict=True):
        if code == path.MOVETO:
            found.append([])
        if code != path.CLOSEPOLY:
            found[-1].append(tuple(round(float(figure), 9) for figure in point))
    return found


def polygons(axes, name):
    """The shapes of a layer: of each the upper edge, from left to right."""
    color, alpha = plot._LAYERS[name]
    found = []
    for patch in axes.patches:
        if to_hex(patch.get_facecolor()) == color and patch.get_alpha() == alpha:
            found += components(patch)
    return found


def uppers(axes, name="resident"):
    """The upper edges of a layer that stands on the axis."""
    return [points[:-2] for points in polygons(axes, name)]


def outlines(axes):
    """The outline: its unbroken pieces, each a list of points."""
    found = [[]]
    for line in axes.lines:
        if line.get_linestyle() == "-" and len(line.get_xdata()):
            for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True):
                if math.isnan(x):
                    found.append([])
                else:
                    found[-1].append((round(float(x), 9), float(y)))
    return [piece for piece in found if piece]


def texts(axes):
    return [text.get_text() for text in axes.texts]


def marks(axes, marker):
    """The places of one kind of mark."""
    return [
        (float(x), float(y))
        for line in axes.lines
        if line.get_marker() == marker
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
    ]


def segments(axes, *, upright):
    """The bars of the peaks, or the stems and bounds."""
    found = [
        (*line[0], *line[1])
        for patch in axes.patches
        if not patch.get_fill()
        for line in components(patch)
        if upright or patch.get_linewidth() > 1
    ]
    return [each for each in found if (each[0] == each[2]) == upright]


def bands(axes):
    """The spans of the bands of cells that failed."""
    return [
        (min(x for x, _ in shape), max(x for x, _ in shape))
        for patch in axes.patches
        if patch.get_fill() and to_hex(patch.get_facecolor()) == plot.PEAK
        for shape in components(patch)
    ]


def legend(drawn):
    return [text.get_text() for found in drawn.legends for text in found.get_texts()]


def test_a_cell_of_which_only_the_ends_are_known_has_no_outline():
    """No sample, no course: a straight line from end to end, and only what is sampled is outlined."""
    drawn = figure([cell(1, 0, 4, 100, 300)])
    (axes,) = drawn.axes
    assert uppers(axes) == [[(0, 100), (4, 300)]]
    assert outlines(axes) == []
    assert axes.get_xlim() == (0, 4)


def test_what_was_sampled_is_outlined():
    """The timeline of a long cell is drawn point for point, between its two ends."""
    course = [(0.5, 120), (2.0, 800), (3.5, 150)]
    (axes,) = figure([cell(1, 0, 4, 100, 300, 800, course=course)]).axes
    assert uppers(axes) == outlines(axes) == [[(0, 100), *course, (4, 300)]]


def test_what_the_outline_means_is_said_where_it_tells_cells_apart():
    """One cell that was sampled, one that was not: a note under the picture."""
    seen, unseen = cell(1, 0, 4, 100, 300, course=[(2, 200)]), cell(2, 5, 4, 300, 300)
    assert "outlined where sampled" in figure([seen, unseen]).axes[0].get_xlabel()
    assert "outlined" not in figure([seen]).axes[0].get_xlabel()


def test_idle_time_is_a_gap():
    """No line leads from one cell to the next, whatever memory did in between."""
    (axes,) = figure([cell(1, 0, 50, 100, 200), cell(2, 50.5, 50, 900, 900)]).axes
    assert uppers(axes) == [[(0, 100), (50, 200)], [(50.5, 900), (100.5, 900)]]


def test_a_long_idle_time_is_shortened_and_told():
    """An hour at the coffee machine is no hour of white: a small gap, named, and the ticks stay true."""
    drawn = figure([cell(1, 0, 10, 100, 200), cell(2, 3610, 10, 200, 200)])
    (axes,) = drawn.axes
    (_, (x, _)), ((again, _), _) = uppers(axes)
    assert x == 10
    assert 10 < again < 11
    assert "idle 1:00:00" in texts(axes)
    places = [round(float(x), 9) for x in axes.get_xticks()]
    ticks = dict(zip(places, (text.get_text() for text in axes.get_xticklabels()), strict=True))
    assert ticks[0] == "0:00"
    assert ticks[again] == "1:00:10"
    assert axes.get_xlabel() == "time since 2024-05-06 07:08:09 UTC; longer idle times shortened"


def test_the_order_of_the_records_does_not_matter():
    """A saved notebook has its cells in the order of the page, the figure in that of time."""
    cells = [cell(1, 0, 1, 100, 100), cell(2, 2, 1, 100, 200), cell(3, 4, 1, 200, 300)]
    one, other = figure(cells), figure(cells[::-1])
    assert uppers(one.axes[0]) == uppers(other.axes[0])
    assert texts(one.axes[0]) == texts(other.axes[0])


def test_a_peak_that_the_samples_saw_stands_at_its_moment():
    """A dot, as high as the exact peak, where the highest sample was."""
    drawn = figure([cell(1, 0, 10, 100, 100, 805, course=[(3.0, 800), (5.0, 400)])])
    (axes,) = drawn.axes
    assert marks(axes, "o") == [(3.0, 805.0)]
    assert segments(axes, upright=False) == []
    assert legend(drawn) == ["peak, at its moment"]


@pytest.mark.parametrize("course", [(), ((3.0, 400), (5.0, 450))])
def test_a_peak_that_nobody_saw_is_a_bar_over_its_cell(course):
    """It was somewhere in the cell: no moment is named."""
    drawn = figure([cell(1, 0, 10, 100, 150, 800, course=course)])
    (axes,) = drawn.axes
    assert segments(axes, upright=False) == [(0, 800, 10, 800)]
    assert marks(axes, "o") == []
    assert legend(drawn) == ["peak of the cell"]


def test_a_sampled_peak_says_at_least():
    """Where something could have been missed the mark points up, and the words say so."""
    drawn = figure([cell(1, 0, 10, 100, 100, peak(300, "sampled"))])
    (axes,) = drawn.axes
    assert marks(axes, "^") == [(5.0, 300.0)]
    assert legend(drawn) == ["peak, at least"]
    assert "In [1]: at least 300 MB" in texts(axes)


def test_a_bounded_peak_shows_both_bounds():
    """The bar is at the lower bound, a line leads to the upper one."""
    (axes,) = figure([cell(1, 0, 10, 100, 100, peak(300, "bounded", 420))]).axes
    assert segments(axes, upright=False) == [(0, 300, 10, 300)]
    assert segments(axes, upright=True) == [(5, 300, 5, 420)]
    assert "In [1]: 300 to 420 MB" in texts(axes)
    assert axes.get_ylim()[1] > 420


def test_a_peak_that_may_have_been_is_shown():
    """Nothing above the ends for certain, much above them perhaps: the upper bound is in the picture."""
    (axes,) = figure([cell(1, 0, 10, 100, 100, peak(100, "bounded", 1420))]).axes
    assert "In [1]: 100 MB to 1.4 GB" in texts(axes)
    assert segments(axes, upright=True) == [(5, 100, 5, 1420)]
    assert axes.get_ylim()[1] > 1420


def test_a_peak_below_a_megabyte_is_no_mark():
    """A page more than at the end is nothing to look at."""
    (axes,) = figure([cell(1, 0, 10, 100, 100, Peak(101 * MB - 1, 101 * MB - 1, "exact"))]).axes
    assert segments(axes, upright=False) == []


def test_the_highest_is_named():
    """Whose peak was the highest, and how high, stands beside it; also where it is an end of the cell."""
    (axes,) = figure([cell(1, 0, 1, 100, 5465), cell(2, 2, 1, 5465, 10)]).axes
    assert "In [1]: 5.3 GB" in texts(axes)


def test_the_peaks_that_matter_are_marked_and_the_highest_of_them_named():
    """Of two hundred cells with peaks a few marks remain, spread over the time, the highest among them."""
    cells = [cell(i, i * 2.0, 2, 100, 100, 200 + (i * 37) % 101) for i in range(200)]
    (axes,) = figure(cells).axes
    bars = segments(axes, upright=False)
    assert 12 <= len(bars) <= 26
    highest = max(cells, key=lambda one: one.gen.peak.lo_bytes)
    assert highest.gen.peak.lo_bytes // MB in {top for _, top, _, _ in bars}
    assert f"{highest.label}: 300 MB" in texts(axes)
    assert sum("MB" in text for text in texts(axes)) <= 6


def test_a_small_peak_beside_a_large_one_is_not_marked():
    """What the eye would not see has no mark; the bar of the large one has its own."""
    (axes,) = figure([cell(1, 0, 10, 100, 100, 1000), cell(2, 10, 10, 100, 100, 110)]).axes
    assert segments(axes, upright=False) == [(0, 1000, 10, 1000)]


def test_a_cell_that_failed_is_red_and_crossed():
    """Failed and interrupted cells are told apart by more than a colour."""
    cells = [
        cell(1, 0, 10, 1, 1),
        cell(2, 10, 10, 1, 1, status="error"),
        cell(3, 20, 10, 1, 1, status="interrupted"),
    ]
    (axes,) = figure(cells).axes
    assert bands(axes) == [(10, 20), (20, 30)]
    assert {"1", "2 ✕", "3 ✕"} <= set(texts(axes))


def test_a_cell_within_another_is_part_of_it():
    """The ends of a nested cell are points on the outer one's course; it has no band of its own."""
    nested = cell(None, 2, 3, 150, 250, label="nested in In [1]")
    (axes,) = figure([nested, cell(1, 0, 10, 100, 300)]).axes
    assert uppers(axes) == [[(0, 100), (2, 150), (5, 250), (10, 300)]]
    assert "1" in texts(axes)
    assert "nested in In [1]" not in texts(axes)


def test_a_restart_is_drawn():
    """Where the numbers of the cells begin anew, a line and a word; a nested cell is none."""
    first = [cell(1, 0, 10, 100, 100), cell(2, 11, 10, 100, 100), cell(None, 12, 1, 100, 100, label="nested")]
    assert not any("restart" in text for text in texts(figure(first).axes[0]))
    for count in (1, 2):
        again = cell(count, 30, 10, 50, 50)
        (axes,) = figure([*first, again]).axes
        assert "restart, idle 9 s" in texts(axes)


def test_every_device_has_its_own_panel():
    """RAM, then the devices by index, whenever each was first touched; each over the same time."""
    cells = [
        cell(1, 0, 10, 100, 100),
        cell(2, 10, 10, 100, 100, gpus=[gpu(0, 700, index=1)]),
        cell(3, 20, 10, 100, 100, gpus=[gpu(0, 50), gpu(700, 800, 950, index=1)]),
    ]
    drawn = figure(cells)
    titles = ["RAM of this process", "GPU0: Sim", "GPU1: Sim"]
    assert [title in texts(axes) for title, axes in zip(titles, drawn.axes, strict=True)] == [True] * 3
    assert len({axes.get_xlim() for axes in drawn.axes}) == 1
    assert segments(drawn.axes[2], upright=False) == [(20, 950, 30, 950)]


def test_the_legend_names_what_is_there():
    """Four kinds of areas and peaks at most for a training, and none that the picture lacks."""
    tensors = {"allocated_bytes": 500 * MB, "reserved_bytes": 600 * MB}
    drawn = figure([cell(1, 0, 10, 1, 1, gpus=[gpu(0, 500, 900, **tensors)])])
    assert legend(drawn) == [
        "tensors",
        "cached or transient",
        "context, other processes",
        "peak of the cell",
    ]
    assert legend(figure([cell(1, 0, 10, 1, 1)])) == []


def lines_across(axes):
    return [
        float(line.get_ydata()[0])
        for line in axes.lines
        if len(line.get_ydata()) == 2 and line.get_linestyle() == "--"
    ]


def test_the_headroom_has_a_line():
    """The device's total and the framework's limit stand in the picture, with their sizes."""
    use = gpu(0, 7000, 15000, total_bytes=16384 * MB, limit_bytes=15500 * MB)
    axes = figure([cell(1, 0, 10, 1, 1, gpus=[use])]).axes[1]
    assert lines_across(axes) == [16384, 15500]
    assert {"total 16 GB", "limit 15.1 GB"} <= set(texts(axes))
    assert axes.get_ylim()[1] > 16384


def test_a_total_far_above_is_told_in_words():
    """A small use on a large device is not pressed to the ground by its line."""
    axes = figure([cell(1, 0, 10, 1, 1, gpus=[gpu(0, 300, total_bytes=143771 * MB)])]).axes[1]
    assert lines_across(axes) == []
    assert "total 140.4 GB, above the picture" in texts(axes)
    assert axes.get_ylim()[1] < 2000


def test_an_unknown_total_is_no_line():
    """Nothing known, nothing drawn."""
    axes = figure([cell(1, 0, 10, 1, 1, gpus=[gpu(0, 300)])]).axes[1]
    assert lines_across(axes) == []
    assert not any("total" in text for text in texts(axes))


def test_the_axis_is_in_the_unit_that_people_read():
    """Round gigabytes for a large device, megabytes for a small process; it begins at zero."""

    def ticks(top_mb):
        (axes,) = figure([cell(1, 0, 10, 100, top_mb)]).axes
        return [text.get_text() for text in axes.get_yticklabels()]

    assert ticks(800) == ["0", "200 MB", "400 MB", "600 MB", "800 MB"]
    assert ticks(15 << 10) == ["0", "5 GB", "10 GB", "15 GB"]


def test_numbers_stand_only_where_there_is_room():
    """No number reaches over another: of a long and many short cells the long one has its own."""
    short = [cell(i, i * 0.01, 0.01, 1, 1) for i in range(1, 40)]
    (axes,) = figure([*short, cell(40, 0.5, 60, 1, 1)]).axes
    found = [text for text in texts(axes) if text.isdecimal()]
    assert "40" in found
    assert len(found) <= 2


def test_a_cell_that_failed_has_its_number_first():
    """Between neighbours that leave no room for all, it is the one to look for."""
    short = [cell(i, i * 0.3, 0.3, 1, 1, status="error" if i == 20 else "ok") for i in range(1, 40)]
    (axes,) = figure([*short, cell(40, 12, 60, 1, 1)]).axes
    assert {"20 ✕", "40"} <= set(texts(axes))


def test_a_label_of_the_users_own_is_shown_whole():
    """A cell that was given a name has it in place of its number."""
    (axes,) = figure([cell(1, 0, 10, 1, 1, label="load"), cell(2, 10, 10, 1, 1)]).axes
    assert {"load", "2"} <= set(texts(axes))


def test_short_idle_times_are_to_scale():
    """Nothing is shortened where little would be won."""
    (axes,) = figure([cell(i + 1, i * 12, 10, 1, 1) for i in range(5)]).axes
    assert axes.get_xlim() == (0, 58)
    assert not any("idle" in text for text in texts(axes))
    assert "shortened" not in axes.get_xlabel()


def test_nothing_leaves_the_figure():
    """All words lie within it, those of the legend and of the axis below as well."""
    tensors = {"allocated_bytes": 500 * MB, "reserved_bytes": 600 * MB}
    cells = [cell(i, i * 400, 100, 100, 300, 900, gpus=[gpu(0, 500, 900, **tensors)]) for i in range(1, 4)]
    cells.append(cell(4, 2000, 90, 100, 300, 400, course=[(1, 200)]))
    cells.append(cell(5, 2100, 90, 100, 300, peak(900, "sampled")))
    cells.append(cell(6, 2200, 90, 100, 300, 900, course=[(1, 900)]))
    drawn = figure(cells)
    assert len(legend(drawn)) == 6
    canvas = FigureCanvasAgg(drawn)
    canvas.draw()
    renderer = canvas.get_renderer()
    words = [*drawn.legends[0].get_texts(), *(text for axes in drawn.axes for text in axes.texts)]
    words += [axes.xaxis.label for axes in drawn.axes]
    words += [label for axes in drawn.axes for label in (*axes.get_xticklabels(), *axes.get_yticklabels())]
    for box in (text.get_window_extent(renderer) for text in words if text.get_text()):
        assert box.x0 >= -1 and box.x1 <= drawn.bbox.width + 1
        assert box.y0 >= -1 and box.y1 <= drawn.bbox.height + 1


def test_no_cells_no_figure():
    """Nothing to plot is an error of one sentence."""
    with pytest.raises(ValueError, match=r"^there is nothing to plot: no cell has been reported yet$"):
        figure([])


def test_without_matplotlib_the_command_is_told(monkeypatch):
    """One sentence, with what to type."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"^plots need matplotlib: pip install 'ipygpulogger\[plot\]'$"):
        figure([cell(1, 0, 1, 1, 1)])


def test_nothing_global_is_touched():
    """No pyplot, no backend chosen, no setting changed; and `sparkline` needs no matplotlib at all."""
    program = """
import sys
from ipygpulogger.render.plot import figure
from ipygpulogger.render.sparkline import sparkline
sparkline(((0.0, 0), (1.0, 1 << 30)))
print(any(name.startswith("matplotlib") for name in sys.modules))
import matplotlib
backend_of = lambda settings: dict.__getitem__(settings, 'backend')
before = dict(matplotlib.rcParams)
from plotted import cell
import matplotlib.pyplot
backend, numbers = backend_of(matplotlib.rcParams), matplotlib.pyplot.get_fignums()
figure([cell(1, 0, 1, 1, 1)])._repr_png_()
print(matplotlib.pyplot.get_fignums() == numbers, backend_of(matplotlib.rcParams) == backend)
print(dict(matplotlib.rcParams) == before)
"""
    done = subprocess.run(
        [sys.executable, "-c", PATHS + program], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["False", "True", "True", "True"], done.stderr


def luminance(color):
    return sum(
        share * (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4)
        for share, c in zip((0.2126, 0.7152, 0.0722), to_rgb(color), strict=True)
    )


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("style", ["default", "dark_background", "grayscale", "ggplot"])
def test_it_reads_on_a_light_page_and_on_a_dark_one(style):
    """No background of its own, and inks that read on white and on JupyterLab's black, whatever the user's style."""
    import matplotlib.style

    with matplotlib.style.context(style):
        drawn = figure([cell(1, 0, 10, 100, 200, 300, gpus=[gpu(0, 300)])], title="run")
    assert drawn.get_facecolor()[3] == 0
    words = [*drawn.texts, *drawn.legends[0].get_texts()]
    for axes in drawn.axes:
        assert axes.get_facecolor()[3] == 0
        words += [*axes.texts, *axes.get_xticklabels(), *axes.get_yticklabels(), axes.xaxis.label]
    inks = {to_hex(text.get_color()) for text in words if text.get_text()}
    assert inks
    for ink in inks:
        assert contrast(ink, "white") > 3.5
        assert contrast(ink, "#111111") > 3.5


def test_no_background_is_put_under_it():
    """matplotlib-inline, in use with the user's own plots, puts none under a figure whose ticks are not all dark."""
    from matplotlib_inline.backend_inline import _fetch_figure_metadata

    assert not _fetch_figure_metadata(figure([cell(1, 0, 10, 100, 200)]))


def picture(drawn):
    """The PNG, and its size on the page."""
    data, size = drawn._repr_png_()
    assert data.startswith(b"\x89PNG")
    return data, size


def test_the_picture_is_sharp_and_small():
    """Twice the pixels of its size on the page, in fewer than 100 KB for any notebook of one device."""
    cells = [
        cell(i, i * 3.0, 2, 100 + i % 7, 100 + i % 9, 400 + i % 50, gpus=[gpu(i % 900, i % 500, 900)])
        for i in range(300)
    ]
    data, size = picture(figure(cells))
    width, height = struct.unpack(">II", data[16:24])
    assert (width, height) == (2 * size["width"], 2 * size["height"])
    assert size["width"] == 800
    assert len(data) < 100_000


def test_foreign_words_are_words():
    """A label or a name is neither mathematics nor markup, stays on one line, and is short."""
    hostile = "$\\frac{" + "x" * 500 + "\n\x00\ud800"
    record = cell(1, 0, 10, 1, 1, gpus=[gpu(0, 1, name=hostile)], label=hostile)
    drawn = figure([record], title=hostile)
    picture(drawn)
    for text in [*drawn.texts, *(text for axes in drawn.axes for text in axes.texts)]:
        assert len(text.get_text()) < 100
        assert text.get_text().isprintable()


def test_a_figure_can_be_kept():
    """It pickles and copies, as other figures do, and is still shown as a picture."""
    picture(pickle.loads(pickle.dumps(figure([cell(1, 0, 1, 1, 2)]))))


def test_thousands_of_cells_are_a_handful_of_artists():
    """However many cells: as many things to draw as for a few, so it stays quick and readable."""
    step = 2.5

    def drawn(count):
        cells = [
            cell(i + 1, i * step, 2, 100 + i % 7, 100 + i % 9, 200 + i % 50, gpus=[gpu(i % 9, i % 5, 90)])
            for i in range(count)
        ]
        return [len(axes.get_children()) for axes in figure(cells).axes]

    assert all(many <= few + 60 for many, few in zip(drawn(3000), drawn(12), strict=True))


def test_no_words_cover_others_in_a_long_run():
    """Hours on the axis, and the name of a card beside its limit: each has its room."""
    card = gpu(100, 100, 500, name="NVIDIA H100 80GB HBM3", total_bytes=80 << 30)
    drawn = figure([cell(i, 900 * i, 900, 100, 200, gpus=[card]) for i in range(1, 40)])
    renderer = FigureCanvasAgg(drawn).get_renderer()
    drawn.draw(renderer)
    for axes in drawn.axes:
        titles = [text for text in axes.texts if text.xycoords == axes.transAxes]
        for words in (axes.get_xticklabels(), titles):
            boxes = sorted(
                (text.get_window_extent(renderer) for text in words if text.get_text()),
                key=lambda box: box.x0,
            )
            assert all(one.x1 <= other.x0 for one, other in itertools.pairwise(boxes))


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(st.lists(made.records(), min_size=1, max_size=2))
def test_whatever_was_recorded_can_be_drawn(records):
    """No record of any machine or user makes the figure fail."""
    drawn = figure(records, title=records[0].source)
    assert len(drawn.axes) >= 1
    for axes in drawn.axes:
        low, high = axes.get_ylim()
        assert low == 0 < high < math.inf
    picture(drawn)
    assert svg(drawn, records[0].source).startswith("<svg")
