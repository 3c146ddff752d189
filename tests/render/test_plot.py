"""A course as a line of blocks, a notebook as a figure: what is drawn is what was measured."""

import itertools
import math
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
from ipygpulogger.render.markup import sparkline
from ipygpulogger.render.page import svg
from ipygpulogger.render.plot import figure

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


@pytest.mark.parametrize(
    ("course", "width", "drawn"),
    [
        (tuple((float(i), i * 100 * MB) for i in range(8)), 8, BLOCKS),
        (((0.0, 0), (3.9, 0), (4.0, 700 * MB), (4.1, 300 * MB), (8.0, 300 * MB)), 8, "▁▁▁▁█▄▄▄"),
        (((0.0, 100 * MB), (1.0, 800 * MB)), 8, BLOCKS),  # between two samples a straight line
        (((0.0, 500 * MB), (1.0, 501 * MB - 1)), 4, "▁▁▁▁"),
        (((0.0, 500 * MB), (1.0, 501 * MB)), 2, "▁█"),
        ((), 24, ""),
        (((0.0, 1),), 0, ""),
    ],
)
def test_blocks_have_the_shape_of_the_course(course, width, drawn):
    """Eight levels, a straight line where nothing was sampled, and no mountain of less than a megabyte."""
    assert sparkline(course, width) == drawn


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


def test_only_what_was_sampled_is_outlined():
    """The timeline of a long cell point for point, between its two ends; elsewhere a straight line from end to end."""
    course = [(0.5, 120), (2.0, 800), (3.5, 150)]
    seen, unseen = cell(1, 0, 4, 100, 300, 800, course=course), cell(2, 5, 4, 300, 500)
    (axes,) = figure([seen]).axes
    assert uppers(axes) == outlines(axes) == [[(0, 100), *course, (4, 300)]]
    assert "outlined" not in axes.get_xlabel()
    (axes,) = figure([unseen]).axes
    assert (uppers(axes), outlines(axes), axes.get_xlim()) == ([[(0, 300), (4, 500)]], [], (0, 4))
    assert "outlined where sampled" in figure([seen, unseen]).axes[0].get_xlabel()


@pytest.mark.parametrize(
    ("top", "course", "dots", "triangles", "bars", "stems", "word"),
    [
        (805, [(3.0, 800), (5.0, 400)], [(3, 805)], [], [], [], "In [1]: 805 MB"),
        (800, (), [], [], [(0, 800, 10, 800)], [], "In [1]: 800 MB"),
        (800, ((3.0, 400), (5.0, 450)), [], [], [(0, 800, 10, 800)], [], "In [1]: 800 MB"),
        (peak(300, "sampled"), (), [], [(5, 300)], [], [(5, 100, 5, 300)], "In [1]: at least 300 MB"),
        (peak(300, "bounded", 420), (), [], [], [(0, 300, 10, 300)], [(5, 300, 5, 420)], "In [1]: 300 to 420 MB"),
        (peak(100, "bounded", 1420), (), [], [], [(0, 100, 10, 100)], [(5, 100, 5, 1420)], "In [1]: 100 MB to 1.4 GB"),
        (Peak(101 * MB - 1, 101 * MB - 1, "exact"), (), [], [], [], [], "In [1]: 101 MB"),
    ],
)  # fmt: skip
def test_how_a_peak_is_drawn(top, course, dots, triangles, bars, stems, word):
    """A dot at its moment, or a bar over its cell if no sample saw it; up for a lower bound, a line to the upper one."""
    (axes,) = figure([cell(1, 0, 10, 100, 100, top, course=course)]).axes
    assert (marks(axes, "o"), marks(axes, "^")) == (dots, triangles)
    flat = [bar for bar in segments(axes, upright=False) if bar[2] - bar[0] > 1]
    assert (flat, segments(axes, upright=True)) == (bars, stems)
    assert word in texts(axes)
    assert axes.get_ylim()[1] > max([0, *(stem[3] for stem in stems)])


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
    assert legend(drawn) == ["tensors", "cached or transient", "context, other processes", "peak of the cell"]
    assert legend(figure([cell(1, 0, 10, 1, 1)])) == []


def lines_across(axes):
    return [
        float(line.get_ydata()[0])
        for line in axes.lines
        if len(line.get_ydata()) == 2 and line.get_linestyle() == "--"
    ]


@pytest.mark.parametrize(
    ("use", "lines", "words", "top_mb"),
    [
        (gpu(0, 7000, 15000, total_bytes=16384 * MB, limit_bytes=15500 * MB), [16384, 15500],
         {"total 16 GB", "limit 15.1 GB"}, 20000),
        (gpu(0, 300, total_bytes=143771 * MB), [], {"total 140.4 GB, above the picture"}, 2000),
        (gpu(0, 300), [], set(), 2000),
    ],
)  # fmt: skip
def test_the_headroom_has_a_line(use, lines, words, top_mb):
    """The device's total and limit, with their sizes; in words where far above; nothing where unknown."""
    axes = figure([cell(1, 0, 10, 1, 1, gpus=[use])]).axes[1]
    assert lines_across(axes) == lines
    assert {text for text in texts(axes) if "total" in text or "limit" in text} == words
    assert max([0, *lines]) < axes.get_ylim()[1] < top_mb


def test_the_axis_is_in_the_unit_that_people_read():
    """Round gigabytes for a large device, megabytes for a small process; it begins at zero."""

    def ticks(top_mb):
        (axes,) = figure([cell(1, 0, 10, 100, top_mb)]).axes
        return [text.get_text() for text in axes.get_yticklabels()]

    assert ticks(800) == ["0", "200 MB", "400 MB", "600 MB", "800 MB"]
    assert ticks(15 << 10) == ["0", "5 GB", "10 GB", "15 GB"]


def test_a_cell_that_failed_has_its_number_first():
    """Where there is no room for all, it is the one to look for; a label of the user's own is shown whole."""
    short = [cell(i, i * 0.3, 0.3, 1, 1, status="error" if i == 20 else "ok") for i in range(1, 40)]
    (axes,) = figure([*short, cell(40, 12, 60, 1, 1, label="load")]).axes
    assert {"20 ✕", "load"} <= set(texts(axes))
    assert sum(text.isdecimal() for text in texts(axes)) <= 6


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
from ipygpulogger.render.markup import sparkline
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
