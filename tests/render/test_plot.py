"""A course as a line of blocks, a notebook as a figure: what is drawn is what was measured."""

import math
import pickle
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import made
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_hex
from memory import MB

from ipygpulogger.records import CellRecord, DeviceUsage, Peak, RamUsage
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


BEGIN = datetime(2024, 5, 6, 7, 8, 9, tzinfo=timezone.utc)
SEEN, UNSEEN, AT_LEAST = "peak, at its moment", "peak, at some moment of its cell", "peak, at least"


def peak(top_mb, quality="exact", hi_mb=None):
    hi = {"exact": top_mb, "bounded": hi_mb, "sampled": None}[quality]
    return Peak(top_mb * MB, None if hi is None else hi * MB, quality)


def cell(count, at_s, time_s, before, after, top=None, *, gpus=(), course=(), **more):
    """A cell of these megabytes, so many seconds after the first."""
    top = top if isinstance(top, Peak) else peak(max(before, after) if top is None else top)
    timeline = tuple((at, size * MB) for at, size in course)
    fields = {"label": f"In [{count}]", "cell_id": None, "source": "x", "status": "ok"} | more
    return CellRecord(
        started_at=BEGIN + timedelta(seconds=at_s),
        time_s=time_s,
        gen=RamUsage(before * MB, after * MB, top, timeline=timeline),
        gpus=tuple(gpus),
        execution_count=count,
        **fields,
    )


def gpu(before, after, top=None, index=0, **more):
    top = top if isinstance(top, Peak) else peak(max(before, after) if top is None else top)
    fields = {"name": "Sim", "uuid": f"GPU-{index}", "used_bytes": (after + 500) * MB} | more
    return DeviceUsage(before * MB, after * MB, top, index=index, **fields)


def pieces(axes, style):
    """What a style of line draws: its unbroken pieces, each a list of points."""
    found = [[]]
    for line in axes.lines:
        if line.get_linestyle() == style and len(line.get_xdata()) != 2:
            for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True):
                if math.isnan(x):
                    found.append([])
                else:
                    found[-1].append((round(float(x), 9), float(y)))
    return [piece for piece in found if piece]


def texts(axes):
    return [text.get_text() for text in axes.texts]


def marks(axes, marker):
    """The places of one kind of mark, and whether it is full."""
    from matplotlib.markers import MarkerStyle

    style = MarkerStyle(marker)
    path = style.get_path().transformed(style.get_transform())
    for found in axes.collections:
        if type(found).__name__ == "PathCollection" and len(found.get_offsets()):
            (drawn,) = found.get_paths()
            if drawn.vertices.shape == path.vertices.shape and (drawn.vertices == path.vertices).all():
                full = bool((found.get_facecolor() == found.get_edgecolor()).all())
                yield from ((tuple(map(float, place)), full) for place in found.get_offsets())


def boxes(axes, hatch):
    """The boxes of a hatch: left, bottom, right, top."""
    for found in axes.collections:
        if found.get_hatch() == hatch:
            for path in found.get_paths():
                yield tuple(map(float, (*path.vertices.min(axis=0), *path.vertices.max(axis=0))))


def legend(drawn):
    return [text.get_text() for text in drawn.legends[0].get_texts()]


def test_a_cell_of_which_only_the_ends_are_known_is_a_dotted_line():
    """No sample, no course: two points, joined by dots, and the legend says what that is."""
    drawn = figure([cell(1, 0, 4, 100, 300)])
    (axes,) = drawn.axes
    assert pieces(axes, ":") == [[(0, 100), (4, 300)]]
    assert pieces(axes, "-") == []
    assert legend(drawn) == ["a cell's two ends, joined"]
    assert axes.get_xlim() == (0, 4)


def test_what_was_sampled_is_a_solid_line():
    """The timeline of a long cell is drawn point for point, between its two ends."""
    course = [(0.5, 120), (2.0, 800), (3.5, 150)]
    drawn = figure([cell(1, 0, 4, 100, 300, 800, course=course)])
    assert pieces(drawn.axes[0], "-") == [[(0, 100), *course, (4, 300)]]
    assert pieces(drawn.axes[0], ":") == []
    assert legend(drawn) == ["sampled", SEEN]


def test_idle_time_is_a_gap():
    """No line leads from one cell to the next, whatever memory did in between."""
    (axes,) = figure([cell(1, 0, 50, 100, 200), cell(2, 50.5, 50, 900, 900)]).axes
    assert pieces(axes, ":") == [[(0, 100), (50, 200)], [(50.5, 900), (100.5, 900)]]


def test_a_long_idle_time_is_shortened_and_told():
    """An hour at the coffee machine is no hour of white: a small gap, named, and the ticks stay true."""
    drawn = figure([cell(1, 0, 10, 100, 200), cell(2, 3610, 10, 200, 200)])
    (axes,) = drawn.axes
    (_, (x, _)), ((again, _), _) = pieces(axes, ":")
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
    assert pieces(one.axes[0], ":") == pieces(other.axes[0], ":")
    assert texts(one.axes[0]) == texts(other.axes[0])


def test_a_peak_that_the_samples_saw_stands_at_its_moment():
    """A full mark, as high as the exact peak, where the highest sample was."""
    (axes,) = figure([cell(1, 0, 10, 100, 100, 805, course=[(3.0, 800), (5.0, 400)])]).axes
    assert list(marks(axes, "o")) == [((3.0, 805.0), True)]
    assert list(boxes(axes, "....")) == []


@pytest.mark.parametrize("course", [(), ((3.0, 400), (5.0, 450))])
def test_a_peak_that_nobody_saw_is_somewhere_in_its_cell(course):
    """A hollow mark on a bar over the whole of the cell, from what it held up to the peak."""
    drawn = figure([cell(1, 0, 10, 100, 150, 800, course=course)])
    (axes,) = drawn.axes
    assert list(marks(axes, "o")) == [((5.0, 800.0), False)]
    assert list(boxes(axes, "....")) == [(0, 150, 10, 800)]
    assert UNSEEN in legend(drawn)


def test_a_sampled_peak_says_at_least():
    """Where something could have been missed the mark points up, and the words say so."""
    drawn = figure([cell(1, 0, 10, 100, 100, peak(300, "sampled"))])
    (axes,) = drawn.axes
    assert list(marks(axes, "^")) == [((5.0, 300.0), False)]
    assert AT_LEAST in legend(drawn)
    assert "In [1]: at least 300 MB" in texts(axes)


def test_a_bounded_peak_shows_both_bounds():
    """The mark is at the lower bound, a line leads to the upper one."""
    drawn = figure([cell(1, 0, 10, 100, 100, peak(300, "bounded", 420))])
    (axes,) = drawn.axes
    lines = [
        [tuple(map(float, point)) for point in segment]
        for found in axes.collections
        if type(found).__name__ == "LineCollection"
        for segment in found.get_segments()
    ]
    assert lines == [[(5.0, 300.0), (5.0, 420.0)]]
    assert "In [1]: 300 to 420 MB" in texts(axes)
    assert "peak, up to its upper bound" in legend(drawn)
    assert axes.get_ylim()[1] > 420


def test_a_peak_that_may_have_been_is_shown():
    """Nothing above the ends for certain, much above them perhaps: the upper bound is in the picture."""
    drawn = figure([cell(1, 0, 10, 100, 100, peak(100, "bounded", 420))])
    (axes,) = drawn.axes
    assert "In [1]: 100 to 420 MB" in texts(axes)
    assert "peak, up to its upper bound" in legend(drawn)
    assert axes.get_ylim()[1] > 420


def test_a_peak_below_a_megabyte_is_no_mark():
    """A page more than at the end is nothing to look at."""
    (axes,) = figure([cell(1, 0, 10, 100, 100, Peak(101 * MB - 1, 101 * MB - 1, "exact"))]).axes
    assert list(marks(axes, "o")) == []


def test_the_highest_is_named():
    """Whose peak was the highest, and how high, stands beside it; also where it is an end of the cell."""
    (axes,) = figure([cell(1, 0, 1, 100, 5465), cell(2, 2, 1, 5465, 10)]).axes
    assert "In [1]: 5,465 MB" in texts(axes)


def test_a_cell_that_failed_is_hatched_and_marked():
    """Failed and interrupted cells are told apart by more than a colour."""
    cells = [
        cell(1, 0, 10, 1, 1),
        cell(2, 10, 10, 1, 1, status="error"),
        cell(3, 20, 10, 1, 1, status="interrupted"),
    ]
    drawn = figure(cells)
    (axes,) = drawn.axes
    assert list(boxes(axes, "///")) == [(10, 0, 20, 1), (20, 0, 30, 1)]
    assert [x for (x, _), _ in marks(axes, "x")] == [15, 25]
    assert "cell that failed or was interrupted" in legend(drawn)


def test_a_cell_within_another_is_part_of_it():
    """The ends of a nested cell are points on the outer one's course; it has no band of its own."""
    nested = cell(None, 2, 3, 150, 250, label="nested in In [1]")
    (axes,) = figure([nested, cell(1, 0, 10, 100, 300)]).axes
    assert pieces(axes, ":") == [[(0, 100), (2, 150), (5, 250), (10, 300)]]
    assert "In [1]" in texts(axes)
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
        cell(3, 20, 10, 100, 100, gpus=[gpu(0, 50), gpu(700, 800, 900, index=1)]),
    ]
    drawn = figure(cells)
    assert [axes.get_ylabel() for axes in drawn.axes] == ["RAM, MB", "GPU0, MB", "GPU1, MB"]
    assert len({axes.get_xlim() for axes in drawn.axes}) == 1
    assert pieces(drawn.axes[1], ":") == [[(20, 0), (30, 50)]]
    assert pieces(drawn.axes[2], ":") == [[(10, 0), (20, 700)], [(20, 700), (30, 800)]]
    assert list(marks(drawn.axes[2], "o")) == [((25.0, 900.0), False)]


def test_a_context_made_by_the_cell_was_not_there_before():
    """The course begins with what the process held, not with what its context would take."""
    axes = figure([cell(1, 0, 10, 1, 1, gpus=[gpu(500, 800, context_bytes=500 * MB)])]).axes[1]
    assert pieces(axes, ":") == [[(0, 0), (10, 800)]]


def test_the_whole_device_is_a_line_of_its_own():
    """What all processes use is no process's own: a dashed course, or a dash where only the end is known."""
    course = ((0.0, 500 * MB), (5.0, 2000 * MB), (10.0, 600 * MB))
    cells = [
        cell(1, 0, 10, 1, 1, gpus=[gpu(0, 100, timeline=course, used_bytes=600 * MB)]),
        cell(2, 10, 10, 1, 1, gpus=[gpu(100, 100, used_bytes=640 * MB)]),
        cell(3, 20, 10, 1, 1, gpus=[gpu(100, 100, used_bytes=None)]),
    ]
    drawn = figure(cells)
    axes = drawn.axes[1]
    assert pieces(axes, "--") == [[(0, 500), (5, 2000), (10, 600)]]
    (dashes,) = [line for line in axes.lines if line.get_marker() == "_"]
    assert [(x, y) for x, y in zip(dashes.get_xdata(), dashes.get_ydata(), strict=True) if x == x] == [
        (20, 640)
    ]
    assert "whole device, all processes" in legend(drawn)


def test_a_device_of_which_nobody_tells_whose_memory_has_no_course_of_ours():
    """Unknown is not drawn as 0: only what the whole device uses."""
    axes = figure([cell(1, 0, 10, 1, 1, gpus=[gpu(0, 0, attributed=False, used_bytes=900 * MB)])]).axes[1]
    assert pieces(axes, ":") == pieces(axes, "-") == []
    assert not any("In [1]" in text for text in texts(axes))


def lines_across(axes):
    return [float(line.get_ydata()[0]) for line in axes.lines if line.get_linestyle() == "-."]


def test_the_headroom_has_a_line():
    """The device's total and the framework's limit stand in the picture, with their sizes."""
    use = gpu(0, 7000, 15000, total_bytes=16384 * MB, limit_bytes=15500 * MB)
    axes = figure([cell(1, 0, 10, 1, 1, gpus=[use])]).axes[1]
    assert lines_across(axes) == [16384, 15500]
    assert {"total 16,384 MB", "limit 15,500 MB"} <= set(texts(axes))
    assert axes.get_ylim()[1] > 16384


def test_a_total_far_above_is_told_in_words():
    """A small use on a large device is not pressed to the ground by its line."""
    axes = figure([cell(1, 0, 10, 1, 1, gpus=[gpu(0, 300, total_bytes=143771 * MB)])]).axes[1]
    assert lines_across(axes) == []
    assert "total 143,771 MB: far above" in texts(axes)
    assert axes.get_ylim()[1] < 2000


def test_an_unknown_total_is_no_line():
    """Nothing known, nothing drawn."""
    axes = figure([cell(1, 0, 10, 1, 1, gpus=[gpu(0, 300)])]).axes[1]
    assert lines_across(axes) == []
    assert not any("total" in text for text in texts(axes))


def test_labels_stand_only_where_there_is_room():
    """No label reaches over a neighbour's band: of a long and many short cells the long one has its name."""
    short = [cell(i, i * 0.01, 0.01, 1, 1) for i in range(1, 40)]
    (axes,) = figure([*short, cell(40, 0.5, 60, 1, 1)]).axes
    assert [text for text in texts(axes) if text.startswith("In [") and "MB" not in text] == ["In [40]"]


def test_labels_do_not_reach_over_one_another():
    """Two narrow cells share the idle time between them: it has room for one of their names."""
    (axes,) = figure([cell(1, 0, 100, 1, 1), cell(2, 103, 1, 1, 1), cell(3, 107, 1, 1, 1)]).axes
    assert [text for text in texts(axes) if text.startswith("In [") and "MB" not in text] == [
        "In [1]",
        "In [2]",
    ]


def test_short_idle_times_are_to_scale():
    """Nothing is shortened where little would be won."""
    (axes,) = figure([cell(i + 1, i * 12, 10, 1, 1) for i in range(5)]).axes
    assert axes.get_xlim() == (0, 58)
    assert not any("idle" in text for text in texts(axes))
    assert "shortened" not in axes.get_xlabel()


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
from test_plot import cell
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


@pytest.mark.parametrize("style", ["default", "dark_background", "grayscale", "ggplot"])
def test_it_looks_the_same_on_every_page(style):
    """Dark ink on white paper, both set: no user's style and no page's ground makes it unreadable."""
    import matplotlib.style

    with matplotlib.style.context(style):
        drawn = figure([cell(1, 0, 10, 100, 200, 300, gpus=[gpu(0, 300)])], title="run")
    assert to_hex(drawn.get_facecolor()) == "#ffffff"
    for axes in drawn.axes:
        words = [
            *axes.texts,
            *axes.get_xticklabels(),
            *axes.get_yticklabels(),
            axes.xaxis.label,
            axes.yaxis.label,
        ]
        assert {to_hex(text.get_color()) for text in words if text.get_text()} == {"#222222"}
        assert to_hex(axes.get_facecolor()) == "#ffffff"
    assert {to_hex(text.get_color()) for text in [*drawn.texts, *drawn.legends[0].get_texts()]} == {"#222222"}


def test_foreign_words_are_words():
    """A label or a name is neither mathematics nor markup, stays on one line, and is short."""
    hostile = "$\\frac{" + "x" * 500 + "\n\x00\ud800"
    record = cell(1, 0, 10, 1, 1, gpus=[gpu(0, 1, name=hostile)], label=hostile)
    drawn = figure([record], title=hostile)
    assert drawn._repr_png_().startswith(b"\x89PNG")
    for text in [*drawn.texts, *(text for axes in drawn.axes for text in axes.texts)]:
        assert len(text.get_text()) < 100
        assert text.get_text().isprintable()


def test_a_figure_can_be_kept():
    """It pickles and copies, as other figures do, and is still shown as a picture."""
    again = pickle.loads(pickle.dumps(figure([cell(1, 0, 1, 1, 2)])))
    assert again._repr_png_().startswith(b"\x89PNG")


def test_thousands_of_cells_are_a_handful_of_artists():
    """However many cells: as many things to draw as for a few, so it stays quick and readable."""
    step = 2.5

    def drawn(count):
        cells = [
            cell(i + 1, i * step, 2, 100 + i % 7, 100 + i % 9, 200 + i % 50, gpus=[gpu(i % 9, i % 5, 90)])
            for i in range(count)
        ]
        return [len(axes.get_children()) for axes in figure(cells).axes]

    assert all(many <= few + 12 for many, few in zip(drawn(3000), drawn(12), strict=True))


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(st.lists(made.records(), min_size=1, max_size=2))
def test_whatever_was_recorded_can_be_drawn(records):
    """No record of any machine or user makes the figure fail."""
    drawn = figure(records, title=records[0].source)
    assert len(drawn.axes) >= 1
    for axes in drawn.axes:
        low, high = axes.get_ylim()
        assert low == 0 < high < math.inf
    drawn._repr_png_()
