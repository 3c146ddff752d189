"""Consumed, peaked and what malloc keeps, against a truth that was there first."""

import pytest
from handmade import CHANGES, MB, ram
from hypothesis import example, given
from hypothesis import strategies as st

from ipygpulogger.records import Heap, Peak, Usage, notable

SIZES = st.integers(0, 1 << 40)


@given(SIZES, CHANGES, SIZES, st.none() | SIZES, st.sampled_from([0, 512]))
def test_runs_in_sum(first, change, peaked, most, grain):
    """The usage of several runs has their sum as consumed, the most of one as peaked, within its bounds."""
    found = Usage.of_runs(first, change, (peaked, most), grain)
    assert (found.before_bytes, found.consumed_bytes, found.peaked_bytes) == (first, change, peaked)
    if most is None:
        assert (found.peak.quality, found.peaked_at_most_bytes) == ("sampled", None)
    else:
        assert found.peaked_at_most_bytes == max(peaked, most)
        assert found.peak.quality == ("exact" if most - peaked <= grain else "bounded")


@given(SIZES, SIZES, SIZES, SIZES)
@example(0, 0, 0, 0)
@example(5, 5, 4, 0)
@example(0, 0, 1, 1)
def test_consumed_and_peaked_make_what_a_scope_needed(before, after, lo, more):
    """From where it began, what stays and what was needed for a moment lead to the highest point; none is negative."""
    usage = Usage(before, after, Peak(lo, lo + more, "bounded"))
    higher, highest = max(before, after), max(before, after, lo)
    assert before + usage.consumed_bytes == after
    assert higher + usage.peaked_bytes == highest
    assert higher + usage.peaked_at_most_bytes == max(higher, lo + more)
    assert before + usage.needed_bytes == highest
    assert before + usage.needed_at_most_bytes == max(highest, lo + more)


@given(SIZES, SIZES)
@example(0, MB)
@example(0, MB + 1)
@example(500 * MB, 5 * MB)
@example(500 * MB, 5 * MB + 1)
def test_a_coarse_grain_is_over_a_megabyte_and_a_hundredth(size, precision):
    """Just as much is not more."""
    peak = Peak(size, size, "exact", precision)
    assert peak.coarse == (precision > MB and precision > size // 100)


@given(SIZES, SIZES, CHANGES, CHANGES, CHANGES)
@example(0, 0, 0, 0, 0)
@example(10, 10, 1, 1, 1)
@example(10, 10, -1, 1, 1)
def test_what_malloc_keeps_of_what_was_consumed(in_use, kept, handed_out, newly_kept, elsewhere):
    """Resident memory is what malloc handed out, what it keeps, and what other means took.

    Of what was consumed it keeps no more than it keeps newly, nor more than is left beside what it handed out.
    """
    heaps = Heap(in_use, kept), Heap(in_use + handed_out, kept + newly_kept)
    consumed = handed_out + newly_kept + elsewhere
    usage = ram(1 << 45, (1 << 45) + consumed, None, *heaps)
    assert usage.newly_kept_bytes == newly_kept
    assert usage.newly_in_use_bytes == (max(0, handed_out))
    part = usage.kept_of_consumed_bytes
    if handed_out >= 0 and elsewhere >= 0:
        assert part == (max(0, newly_kept))
    beside = consumed - usage.newly_in_use_bytes
    assert part >= 0
    assert not part or (part in (newly_kept, beside) and part <= newly_kept and part <= beside)
    assert part or newly_kept <= 0 or beside <= 0


@pytest.mark.parametrize(("before", "after"), [(None, Heap(5, 7)), (Heap(5, 7), None), (None, None)])
def test_an_allocator_that_tells_nothing_keeps_nothing(before, after):
    """Where one end is unknown the change is, and nothing is taken off what was consumed."""
    usage = ram(0, 100, None, before, after)
    assert (usage.newly_kept_bytes, usage.newly_in_use_bytes, usage.kept_of_consumed_bytes) == (0, 0, 0)


@given(CHANGES, SIZES)
@example(MB, 0)
@example(MB + 1, 0)
@example(2 * MB, 200 * MB)
@example(2 * MB + 1, 200 * MB)
def test_notable_is_more_than_a_megabyte_and_a_hundredth(moved, used):
    """Just as much is not more; what was given back is not growth."""
    assert notable(moved, used) == (moved > MB and 100 * moved > used)


@pytest.mark.parametrize(
    ("bounds", "quality"),
    [
        ((5, 5), "exact"),
        ((5, 8, 3), "exact"),
        ((5, 9, 3), "bounded"),
        ((5, 6), "bounded"),
        ((5, None, 3), "sampled"),
    ],
)
def test_a_peak_is_exact_within_its_granularity(bounds, quality):
    """Bounds that only the counter's granularity keeps apart are one exact figure; without an upper one, sampled."""
    assert Peak.within(*bounds) == Peak(*bounds[:2], quality, *bounds[2:])
