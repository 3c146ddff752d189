"""A course as a line of blocks, a notebook as a figure: what is drawn is what was measured."""

from hypothesis import given
from hypothesis import strategies as st
from memory import MB

from ipygpulogger.render.plot import sparkline

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
