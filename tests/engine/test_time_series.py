"""The course of one number: small however long the scope, and never without its highest."""

from itertools import pairwise
from statistics import median

from hypothesis import given
from hypothesis import strategies as st

from ipygpulogger.engine.device_scope import FIRST_STRIDE_S, TimeSeries

HOURS_S = 6 * 3600.0


def course(samples, end_s, before_bytes=1, after_bytes=2):
    series = TimeSeries()
    for at_s, size_bytes in samples:
        series.add(at_s, size_bytes)
    return series.between(before_bytes, after_bytes, end_s)


@given(
    st.lists(st.floats(0.001, HOURS_S), min_size=1, max_size=400),
    st.lists(st.integers(0, 1 << 40), min_size=400, max_size=400),
)
def test_small_ordered_and_never_without_the_highest(times, sizes):
    """Hours or milliseconds, even or in bursts: at most 64 points, in order, ends and highest included."""
    samples = list(zip(sorted(times), sizes, strict=False))
    end_s = samples[-1][0] + 1
    points = course(samples, end_s)
    assert 3 <= len(points) <= 64
    assert [at for at, _ in points] == sorted(at for at, _ in points)
    assert points[0] == (0.0, 1)
    assert points[-1] == (round(end_s, 3), 2)
    assert set(points[1:-1]) <= {(round(at, 3), size) for at, size in samples}
    assert max(size for _, size in points[1:-1]) == max(size for _, size in samples)


def test_a_steady_sampler_is_spread_evenly():
    """Two hours of samples: at least half of the room is used, and no gap stands out."""
    samples = [(0.1 + 0.25 * i, i) for i in range(4 * 7200)]
    points = course(samples, 7201.0)
    assert 32 <= len(points) <= 64
    inner = [at for at, _ in points[1:-1]]
    strides = [b - a for a, b in pairwise(inner)]
    assert max(strides) <= 2 * median(strides)


def test_nothing_sampled_is_no_course():
    """A short scope has none, whatever its ends."""
    assert course([], 0.05) == ()


def test_unknown_ends_are_left_out():
    """Where an end is unknown the samples stand alone."""
    assert course([(0.2, 7)], 1.0, None, None) == ((0.2, 7),)


def test_of_equals_in_one_stride_the_first_stays():
    """The time of a point is when that size was reached."""
    assert course([(0.1, 9), (0.11, 9), (0.12, 9)], 1.0)[1:-1] == ((0.1, 9),)


@given(st.integers(1, 300))
def test_half_of_the_points_go_only_where_one_more_does_not_fit(count):
    """A sample a stride: each is kept while a record has room for it and both ends; then every second goes."""
    samples = [((i + 0.5) * FIRST_STRIDE_S, i) for i in range(count)]
    points, stride = course(samples, 1e3), 1
    while len(samples[::stride]) + 2 > 64:
        stride *= 2
    assert len(points) == len(samples[::stride]) + 2


def test_what_was_sampled_before_the_scope_is_not_in_its_course():
    """The first point is where the scope began, whatever was seen until then, and at that very moment."""
    assert course([(-0.5, 9), (0.0, 8), (0.2, 5)], 1.0) == ((0.0, 1), (0.2, 5), (1.0, 2))


def test_a_scope_that_leaves_out_our_own_cost():
    """Samples beyond the end of the time that counts are kept at the end: the highest may be there."""
    points = course([(0.1, 5), (0.2, 6), (0.5, 900)], 0.3)
    assert points == ((0.0, 1), (0.1, 5), (0.2, 6), (0.3, 900), (0.3, 2))
