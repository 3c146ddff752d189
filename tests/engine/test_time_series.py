"""The course of one number: small however long the scope, and never without its highest."""

import pytest
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


@given(st.integers(1, 300))
def test_half_of_the_points_go_only_where_one_more_does_not_fit(count):
    """A sample a stride: each is kept while a record has room for it and both ends; then every second goes."""
    samples = [((i + 0.5) * FIRST_STRIDE_S, i) for i in range(count)]
    points, stride = course(samples, 1e3), 1
    while len(samples[::stride]) + 2 > 64:
        stride *= 2
    assert len(points) == len(samples[::stride]) + 2


@pytest.mark.parametrize(("samples", "end_s", "points"), [
    ([], 0.05, ()),  # a short scope has no course
    ([(0.1, 9), (0.11, 9), (0.12, 9)], 1.0, ((0.0, 1), (0.1, 9), (1.0, 2))),  # of equals the first
    ([(-0.5, 9), (0.0, 8), (0.2, 5)], 1.0, ((0.0, 1), (0.2, 5), (1.0, 2))),  # nothing from before it
    ([(0.1, 5), (0.2, 6), (0.5, 900)], 0.3, ((0.0, 1), (0.1, 5), (0.2, 6), (0.3, 900), (0.3, 2))),  # our own cost
])  # fmt: skip
def test_the_points(samples, end_s, points):
    """Between both ends; without any where nothing was sampled; without an end that is unknown."""
    assert course(samples, end_s) == points
    assert course(samples, end_s, None, None) == points[1:-1]
