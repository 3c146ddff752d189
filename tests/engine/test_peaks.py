"""Many intervals over one counter: truth is known, because the counter is ours."""

import os
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipygpulogger.engine.interval import peak_of_sum
from ipygpulogger.engine.peaks import SEGMENT_SLACK_BYTES, PeakTracker
from ipygpulogger.records import Peak
from ipygpulogger.sources import Counter, Observation, Reading, Unavailable


class Model(Counter):
    """A counter with one peak and one reset for everybody, and the whole truth written down."""

    def __init__(self, peak_class="resettable", certified=True):
        self.peak_class = peak_class
        self.certified = certified
        self.current = self.highest = 1000
        self.allocated = 0  # ever: the stamp
        self.story = [self.current]  # every value the memory ever had
        self.before_reset = self.before_stamp = lambda: None
        self.broken = False
        self.erased = False  # something else reset the counter since the last look
        self.watched = []

    def move(self, step):
        self.current += step
        self.allocated += max(0, step)
        self.highest = max(self.highest, self.current)
        self.story.append(self.current)

    def look(self):
        if self.broken:
            raise Unavailable("broken")
        peak = None if self.peak_class == "sampled" else self.highest
        erased, self.erased = self.erased, False
        return Observation(
            (Reading(self.current, peak),), (self.allocated,) if self.certified else (), erased
        )

    def stamp(self):
        self.before_stamp()
        return super().stamp()

    def describe(self):
        return "the model"

    def reset_elsewhere(self, *, reported):
        self.highest, self.erased = self.current, reported

    def reset(self):
        assert self.peak_class == "resettable"
        self.before_reset()
        self.highest = self.current

    def growth_bytes(self, earlier, later):
        return (later[0] - earlier[0],)

    def watch(self, *, on):
        self.watched.append(on)


steps = st.one_of(
    st.tuples(st.just("move"), st.integers(-400, 400)),
    st.tuples(st.just("blip"), st.integers(1, 900)),  # another thread's, between reading and resetting
    st.tuples(st.just("open"), st.booleans()),
    st.tuples(st.just("close"), st.integers(0, 9)),
    st.tuples(st.just("fold"), st.integers(0, 9)),
    st.tuples(st.just("segment"), st.integers(0, 9)),
    st.tuples(st.just("user"), st.just(0)),
)


def as_peak(segment):
    """A segment's figures, judged as an interval's."""
    if segment.hi_bytes is None:
        return Peak(segment.lo_bytes, None, "sampled")
    return Peak(
        segment.lo_bytes, segment.hi_bytes, "exact" if segment.lo_bytes == segment.hi_bytes else "bounded"
    )


def play(model, program):  # noqa: C901 - one branch a step
    """Run a program; for each interval its peak, whether it may be inexact, and the true one."""
    tracker, open_ones, done, blip = PeakTracker(model), [], [], [0]

    def blip_now():
        height, blip[0] = blip[0], 0
        if height:
            model.move(height)
            model.move(-height)

    model.before_reset = blip_now

    def close(i):
        interval, began, reset, blips = open_ones.pop(i % len(open_ones))
        tracker.close(interval)
        done.append((interval.peak(), max(model.story[began:]), reset, blips[0]))

    for what, value in program:
        if what == "move":
            model.move(max(value, -model.current))
        elif what == "blip":
            blip[0] = value
        elif what == "open":
            if value and blip[0]:
                for one in open_ones:
                    one[3][0] += 1
            interval = tracker.open(reset=value)
            open_ones.append([interval, len(model.story) - 1, value, [0]])
        elif what == "user":
            if blip[0]:
                for one in open_ones:
                    one[3][0] += 1
            tracker.user_resets(model.reset)
        elif open_ones and what == ("segment"):
            one = open_ones[value % len(open_ones)]
            resets = model.highest > model.current
            if blip[0] and resets:  # here the tracker resets
                for other in open_ones:
                    other[3][0] += 1
            (segment,) = tracker.next_segment(one[0])
            done.append((as_peak(segment), max(model.story[one[1] :]), one[2], one[3][0]))
            one[1:] = [len(model.story) - 1, one[2] or model.peak_class == "resettable", [0]]
        elif open_ones and what == "fold":
            tracker.fold(open_ones[value % len(open_ones)][0])
        elif open_ones:
            close(value)
    while open_ones:
        close(0)
    return tracker, done


@settings(max_examples=500, deadline=None)
@given(st.lists(steps, max_size=40))
def test_the_truth_lies_in_the_bounds(program):
    """Whatever nests, overlaps, resets or slips in between: lo <= truth <= hi."""
    tracker, done = play(Model(), program)
    for peak, truth, _, _ in done:
        assert peak.lo_bytes <= truth <= peak.hi_bytes
    assert not tracker._open


@settings(max_examples=500, deadline=None)
@given(st.lists(steps, max_size=40))
def test_exact_means_exact(program):
    """What calls itself exact is the truth; without foreign blips every interval that resets is exact."""
    _, done = play(Model(), program)
    for peak, truth, reset, blips in done:
        if peak.quality == "exact":
            assert peak.lo_bytes == peak.hi_bytes == truth
        if reset and not blips:
            assert peak.quality == "exact"


@settings(max_examples=300, deadline=None)
@given(st.lists(steps, max_size=40))
def test_a_rising_peak_bounds(program):
    """A counter that cannot be reset still never lies: exact only where a record was set."""
    model = Model("monotone")
    _, done = play(model, [step for step in program if step[0] not in {"user", "blip"}])
    for peak, truth, _, _ in done:
        assert peak.lo_bytes <= truth <= peak.hi_bytes
        if peak.quality == "exact":
            assert peak.lo_bytes == truth


@settings(max_examples=200, deadline=None)
@given(st.lists(steps, max_size=40))
def test_without_a_counter_it_is_at_least(program):
    """Where nothing counts peaks, what was seen is a lower bound and says so."""
    _, done = play(Model("sampled"), [step for step in program if step[0] not in {"user", "blip"}])
    for peak, truth, _, _ in done:
        assert peak.quality == "sampled"
        assert peak.hi_bytes is None
        assert peak.lo_bytes <= truth


@settings(max_examples=200, deadline=None)
@given(st.lists(steps, max_size=40))
def test_without_a_stamp_nothing_is_certified(program):
    """A counter that cannot prove a quiet reset never calls a folded interval exact wrongly."""
    _, done = play(Model(certified=False), program)
    for peak, truth, _, _ in done:
        assert peak.lo_bytes <= truth
        if peak.hi_bytes is not None:
            assert truth <= peak.hi_bytes


def test_the_race_is_flagged():
    """A foreign blip between reading and resetting is a bound for those open, and none of the new one's."""
    model = Model()
    tracker = PeakTracker(model)
    outer = tracker.open()
    model.move(60)
    model.move(-10)

    def blip():
        model.before_reset = lambda: None
        model.move(700)
        model.move(-700)

    model.before_reset = blip
    inner = tracker.open()
    tracker.close(inner)
    tracker.close(outer)
    assert outer.peak().quality == "bounded"
    assert (outer.peak().lo_bytes, outer.peak().hi_bytes) == (1060, 1750)
    assert inner.peak().quality == "exact"
    assert inner.peak().lo_bytes == 1050


def test_lifetime_survives_every_reset():
    """The highest ever is kept, whoever resets."""
    model = Model()
    tracker = PeakTracker(model)
    model.move(5000)
    model.move(-5000)
    interval = tracker.open()
    tracker.close(interval)
    tracker.user_resets(model.reset)
    assert tracker.lifetime_peak_bytes() == 6000


def test_a_lost_counter_is_not_exact():
    """A counter that fails at the end leaves what was known, as "at least", and no interval open."""
    model = Model()
    tracker = PeakTracker(model)
    interval = tracker.open()
    model.broken = True
    with pytest.raises(Unavailable):
        tracker.close(interval)
    assert interval.peak().quality == "sampled"
    assert not tracker._open
    tracker.close(interval)  # again: harmless


def test_adopted_from_zero():
    """A counter that came to life within a scope is measured from nothing, peak included."""
    model = Model()
    model.move(500)
    model.move(-1200)
    interval = PeakTracker(model).adopt()
    assert interval.before_bytes() == 0
    assert interval.peak().lo_bytes == interval.peak().hi_bytes == 1500


def test_watched_only_while_open():
    """Sampled counters are told when the first interval opens and the last one closes."""
    model = Model("sampled")
    tracker = PeakTracker(model)
    first, second = tracker.open(), tracker.open()
    tracker.close(first)
    tracker.close(second)
    assert model.watched == [True, False]


def test_threads_certify_themselves():
    """Thousands of trials with foreign threads at work: no miss that is not flagged."""

    class Locked(Model):
        """The allocator's mutex: every single step is atomic, reading then resetting is not."""

        lock = threading.Lock()

        def move(self, step):
            with self.lock:
                super().move(step)

        def look(self):
            with self.lock:
                return super().look()

        def reset(self):
            with self.lock:
                super().reset()

    model, stop = Locked(), threading.Event()
    tracker = PeakTracker(model)

    def blips(height):
        while not stop.is_set():
            model.move(height)
            model.move(-height)

    threads = [threading.Thread(target=blips, args=(height,)) for height in (300, 170)]
    [thread.start() for thread in threads]
    flagged = exact = 0
    try:
        for _ in range(3000):
            model.story = [model.current]  # the outer interval's own story
            began = tracker.open()
            with model.lock:
                model.story = [model.current]
            tracker.close(tracker.open())
            with model.lock:
                story = list(model.story)
                truth = max(story)
            tracker.close(began)
            peak = began.peak()
            assert peak.hi_bytes >= truth, "missed, and not flagged"
            flagged += peak.quality == "bounded"
            exact += peak.quality == "exact"
    finally:
        stop.set()
        [thread.join() for thread in threads]
    assert exact


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_never_waits_for_the_parents_lock():
    """A child forked while another thread holds the tracker's lock can still use the tracker."""
    model = Model()
    tracker = PeakTracker(model)
    held, let_go = threading.Event(), threading.Event()

    def hold():
        with tracker._lock:
            held.set()
            let_go.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    pid = os.fork()
    if pid == 0:
        interval = tracker.open()
        tracker.close(interval)
        os._exit(0)
    let_go.set()
    holder.join()
    assert os.waitpid(pid, 0)[1] == 0


def test_a_quiet_lap_resets_nothing():
    """Where nothing came or went a segment reads once and resets nothing; where anything fell, it resets."""
    model, resets = Model(), []
    model.before_reset = lambda: resets.append(model.current)
    tracker = PeakTracker(model)
    interval = tracker.open()
    resets.clear()
    (segment,) = tracker.next_segment(interval)
    assert (segment.lo_bytes, segment.hi_bytes, segment.after_bytes) == (1000, 1000, 1000)
    model.move(50)
    (segment,) = tracker.next_segment(interval)  # the record stands at what is in use: as good as reset
    assert (segment.lo_bytes, segment.hi_bytes, segment.after_bytes) == (1050, 1050, 1050)
    assert not resets
    model.move(-150)  # moves no stamp
    (segment,) = tracker.next_segment(interval)
    assert (segment.lo_bytes, segment.hi_bytes, segment.after_bytes) == (1050, 1050, 900)
    assert resets == [900]
    (segment,) = tracker.next_segment(interval)
    assert (segment.lo_bytes, segment.hi_bytes, segment.after_bytes) == (900, 900, 900)
    tracker.close(interval)


def test_a_lap_of_nothing_resets_nothing():
    """Where nothing was ever in use, no record stands above it."""
    model, resets = Model(), []
    model.current = model.highest = 0
    tracker = PeakTracker(model)
    interval = tracker.open()
    model.before_reset = lambda: resets.append(1)
    assert tracker.next_segment(interval) == [(0, 0, 0)]
    assert not resets


def test_a_lap_within_the_grain_leaves_the_record():
    """A record a little above what is in use, by less than the grain, bounds the next segment and is not reset."""
    model, resets = Model(), []
    model.precision_bytes = 100
    model.before_reset = lambda: resets.append(1)
    tracker = PeakTracker(model)
    interval = tracker.open()
    resets.clear()
    model.move(40)
    model.move(-40)
    assert tracker.next_segment(interval)[0].hi_bytes == 1040
    model.move(10)
    (segment,) = tracker.next_segment(interval)
    assert (segment.lo_bytes, segment.hi_bytes) == (1010, 1040)
    assert not resets
    tracker.close(interval)


foreign_steps = st.one_of(
    st.tuples(st.just("move"), st.integers(-400, 400)),
    st.tuples(st.sampled_from(["open", "close", ("segment")]), st.integers(0, 9)),
    st.tuples(st.just("reset elsewhere"), st.booleans()),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(foreign_steps, max_size=30))
def test_what_something_else_erased_is_never_exact(program):  # noqa: C901 - one branch a step
    """A foreign reset, reported or shown by a peak that fell, makes what is open sampled; not what follows."""
    model, open_ones = Model(), []
    tracker = PeakTracker(model)

    def check(peak, one):
        truth = max(model.story[one["began"] :])
        assert peak.lo_bytes <= truth
        if one["erased"]:
            assert peak.quality == "sampled"
        else:
            assert peak.lo_bytes == peak.hi_bytes == truth

    for what, value in program:
        if what == "move":
            model.move(max(value, -model.current))
        elif what == "reset elsewhere":
            if not value:
                tracker.look()  # the only witness of the peak before
            shows = value or model.highest > model.current
            model.reset_elsewhere(reported=value)
            for one in open_ones:
                one["erased"] |= shows
            tracker.look()
        elif what == "open":
            open_ones.append({"interval": tracker.open(), "began": len(model.story) - 1, "erased": False})
        elif open_ones:
            one = open_ones[value % len(open_ones)]
            if what == "close":
                tracker.close(one["interval"])
                check(one["interval"].peak(), one)
                assert ("model" in tracker.loss(one["interval"])) >= one["erased"]
                open_ones.remove(one)
            else:
                (segment,) = tracker.next_segment(one["interval"])
                check(as_peak(segment), one)
                one |= {"began": len(model.story) - 1, "erased": False}


# -- several numbers, several counters --------------------------------------------------------------


class Pair(Model):
    """A counter of two numbers: what is live, and what was taken from the device for it."""

    def __init__(self):
        super().__init__()
        self.taken = Model()

    def look(self):
        live, taken = super().look(), self.taken.look()
        return Observation(live.readings + taken.readings, live.stamp + taken.stamp)

    def reset(self):
        super().reset()
        self.taken.reset()

    def growth_bytes(self, earlier, later):
        return tuple(now - before for before, now in zip(earlier, later, strict=True))


def test_each_series_has_its_own_figures():
    """The first is meant where none is named: at the beginning, at its peak, and over the whole life."""
    model = Pair()
    model.taken.move(500)
    tracker = PeakTracker(model)
    interval = tracker.open()
    model.move(10)
    model.taken.move(100)
    model.taken.move(-600)
    segments = tracker.next_segment(interval)
    assert [(segment.lo_bytes, segment.hi_bytes, segment.after_bytes) for segment in segments] == [
        (1010, 1010, 1010),
        (1600, 1600, 1000),
    ]
    assert interval.before_bytes() == interval.before_bytes(0) == 1010
    assert interval.before_bytes(1) == 1000
    assert interval.peak() == interval.peak(0) == Peak(1010, 1010, "exact")
    assert interval.peak(1) == Peak(1000, 1000, "exact")
    assert tracker.lifetime_peak_bytes() == tracker.lifetime_peak_bytes(0) == 1010
    assert tracker.lifetime_peak_bytes(1) == 1600
    assert tracker.current_bytes() == tracker.current_bytes(0) == tracker.last_bytes() == 1010
    assert tracker.current_bytes(1) == 1000
    assert peak_of_sum([interval], 1) == interval.peak(1)
    assert len(interval.before) == 2


def test_opening_resets_where_any_series_stands_above():
    """One number that fell is enough; without it the interval would have the other's record."""
    model = Pair()
    model.taken.move(500)
    model.taken.move(-500)
    interval = PeakTracker(model).open()
    assert model.taken.highest == 1000
    assert interval.peak(1) == Peak(1000, 1000, "exact")


def test_what_comes_right_after_the_reset_belongs_to_the_new_interval():
    """Between the reset and the look after it another thread allocates and frees: it is not an old record."""
    model, reset = Model(), Model.reset
    model.move(500)
    model.move(-500)
    model.reset = lambda: (reset(model), model.move(700), model.move(-700))
    tracker = PeakTracker(model)
    interval = tracker.open()
    model.move(10)
    tracker.close(interval)
    assert interval.peak() == Peak(1700, 1700, "exact")


def test_a_lap_resets_where_any_series_stands_above():
    """One number that fell is enough; without it the next segment would have the other's record."""
    model, resets = Pair(), []
    tracker = PeakTracker(model)
    interval = tracker.open()
    model.before_reset = lambda: resets.append(1)
    model.taken.move(-100)
    tracker.next_segment(interval)
    assert len(resets) == 1
    model.move(-100)
    tracker.next_segment(interval)
    assert len(resets) == 2


sum_steps = st.lists(
    st.tuples(st.sampled_from(["move", "blip"]), st.integers(0, 2), st.integers(-300, 300)), max_size=12
)


@settings(max_examples=300, deadline=None)
@given(sum_steps, st.sampled_from([0, 7]))
def test_the_sum_of_several_counters(program, precision):
    """The highest sum lies within the bounds; it is exact where at most one moved, and what moved is told."""
    models = [Model() for _ in range(3)]
    for model in models:
        model.precision_bytes = precision
    trackers = [PeakTracker(model) for model in models]
    intervals = [tracker.open() for tracker in trackers]
    sums, moved = [sum(model.current for model in models)], [False] * 3
    for what, i, step in program:
        if what == "blip":
            models[i].move(abs(step))
            sums.append(sum(model.current for model in models))
            models[i].move(-abs(step))
        else:
            models[i].move(step)
            trackers[i].fold(intervals[i])
        sums.append(sum(model.current for model in models))
        moved[i] |= bool(step)
    for tracker, interval in zip(trackers, intervals, strict=True):
        tracker.close(interval)
    peak = peak_of_sum(intervals, 0)
    assert [interval.moved for interval in intervals] == moved
    assert peak.lo_bytes <= max(sums) <= peak.hi_bytes
    assert peak.precision_bytes == 3 * precision
    if sum(moved) <= 1:
        assert peak.lo_bytes == peak.hi_bytes
    assert peak.hi_bytes == sum(interval.peak().hi_bytes for interval in intervals)
    assert (peak.quality == "exact") == (peak.hi_bytes - peak.lo_bytes <= 3 * precision)
    highest = [interval.peak().lo_bytes for interval in intervals]
    still = [0 if interval.moved else 1000 for interval in intervals]
    assert peak.lo_bytes == max(high + sum(still) - alone for high, alone in zip(highest, still, strict=True))


def test_a_sum_with_one_that_nobody_counts():
    """It is at least what is known, whatever the others are."""
    exact, sampled = Model(), Model("sampled")
    trackers = [PeakTracker(exact), PeakTracker(sampled)]
    intervals = [tracker.open() for tracker in trackers]
    sampled.move(50)
    exact.move(7)
    for tracker, interval in zip(trackers, intervals, strict=True):
        tracker.close(interval)
    assert peak_of_sum(intervals, 0) == Peak(1050, None, "sampled")
    assert peak_of_sum(intervals[::-1], 0) == Peak(1050, None, "sampled")


def test_without_a_stamp_anything_may_have_moved():
    """Nothing shows a blip then; where there is a stamp, nothing moved until it shows."""
    for certified in (False, True):
        tracker = PeakTracker(Model(certified=certified))
        interval = tracker.open()
        assert interval.moved is (not certified)
        tracker.next_segment(interval)
        assert interval.moved is (not certified)
        tracker.close(interval)


@pytest.mark.parametrize("grain", [100, SEGMENT_SLACK_BYTES, 1 << 20])
def test_a_lap_leaves_no_more_than_256_kib(grain):
    """The record may stand above what is in use by the grain, and by no more than 256 KiB."""
    model, resets = Model(), []
    model.precision_bytes = grain
    model.before_reset = lambda: resets.append(1)
    model.current = model.highest = 1 << 30
    tracker = PeakTracker(model)
    interval = tracker.open()
    resets.clear()
    model.move(-min(grain, 256 * 1024))
    tracker.next_segment(interval)
    assert not resets
    model.move(-1)
    tracker.next_segment(interval)
    assert resets
    tracker.close(interval)


# -- the certificate --------------------------------------------------------------------------------


def test_what_came_before_a_lap_resets_is_read_and_not_guessed():
    """A blip between the segment's reading and its reset moves the stamp: it is read once more, and exact."""
    model = Model()
    tracker = PeakTracker(model)
    interval = tracker.open()
    model.move(-100)

    def blip():
        model.before_stamp = lambda: None
        model.move(700)
        model.move(-700)

    model.before_stamp = blip
    assert tracker.next_segment(interval) == [(1600, 1600, 900)]
    assert tracker.next_segment(interval) == [(900, 900, 900)]


def test_a_quiet_lap_resets_at_once():
    """Where the stamp stood still, a segment reads once, resets, and looks at the stamp alone before and after."""
    model, steps = Model(), []
    tracker = PeakTracker(model)
    interval = tracker.open()
    model.move(-100)
    look = model.look
    model.look = lambda: (steps.append("look"), look())[1]
    model.stamp = lambda: (steps.append("stamp"), look().stamp)[1]
    model.before_reset = lambda: steps.append("reset")
    tracker.next_segment(interval)
    assert steps == ["look", "stamp", "reset", "stamp"]


def test_what_a_lap_loses_with_its_reset_bounds_the_others():
    """Another thread's blip just before it: whoever is open beside the segment may have had that peak."""
    model = Model()
    tracker = PeakTracker(model)
    outer, interval = tracker.open(), tracker.open()
    model.move(500)
    model.move(-500)
    model.before_reset = lambda: (model.move(900), model.move(-900))
    tracker.next_segment(interval)
    tracker.close(outer)
    assert outer.peak() == Peak(1500, 1900, "bounded")


def test_a_lap_without_a_stamp_is_at_least():
    """Nothing certifies that its reset lost nothing, for itself and for all that are open."""
    model = Model(certified=False)
    tracker = PeakTracker(model)
    outer, inner = tracker.open(), tracker.open()
    model.move(-100)
    (segment,) = tracker.next_segment(inner)
    assert (segment.lo_bytes, segment.hi_bytes) == (1000, None)
    tracker.close(outer)
    assert outer.peak() == Peak(1000, None, "sampled")


@pytest.mark.parametrize("after", [("segment"), "open", "user"])
def test_what_came_with_the_reset_counts_from_then_on(after):
    """A rise that lasts, between the reset and the look after it: all that are open have it as their own."""
    model = Model()
    tracker = PeakTracker(model)
    outer, inner = tracker.open(), tracker.open()
    model.move(-100)
    resets = []

    def rise():
        if not resets:
            resets.append(1)
            model.move(500)

    model.before_reset = rise
    {
        ("segment"): lambda: tracker.next_segment(inner),
        "open": tracker.open,
        "user": lambda: tracker.user_resets(model.reset),
    }[after]()
    assert outer.peak().lo_bytes == 1400  # before any other boundary
    assert tracker._lifetime == [1400]
    model.move(-500)
    tracker.close(outer)
    assert outer.peak() == Peak(1400, 1400, "exact")


@pytest.mark.parametrize("moves", range(7))
def test_before_a_reset_it_waits_for_quiet(moves):
    """While other threads move the stamp the tracker looks again, four times at most; alone, it looks once."""
    model = Model()
    tracker = PeakTracker(model)
    opened = tracker.open()
    model.move(100)
    model.move(-100)
    looks, left, look = [], [moves], model.look

    def restless():
        looks.append(bool(model.highest))
        if left[0]:
            left[0] -= 1
            model.move(1)
        return look()

    model.look = restless
    at_reset = []
    model.before_reset = lambda: at_reset.append(len(looks))
    tracker.open()
    assert at_reset == [1 + min(max(moves, 1), 4)]
    tracker.close(opened)


def test_nobody_open_needs_no_second_look():
    """The first interval resets after one look: there is nobody whose peak could be lost."""
    model, steps = Model(), []
    model.move(500)
    model.move(-500)
    look = model.look
    model.look = lambda: (steps.append("look"), look())[1]
    model.before_reset = lambda: steps.append("reset")
    PeakTracker(model).open()
    assert steps == ["look", "reset", "look"]


@pytest.mark.parametrize("somebody", [False, True])
def test_a_peak_at_what_is_in_use_needs_no_reset(somebody):
    """One look opens an interval then; its peak and those of the others are exact, whatever comes after it."""
    model, steps = Model(), []
    tracker = PeakTracker(model)
    outer = tracker.open() if somebody else None
    model.move(500)
    look = model.look
    model.look = lambda: (steps.append("look"), look())[1]
    model.before_reset = lambda: steps.append("reset")
    interval = tracker.open()
    assert steps == ["look"]
    model.move(300)
    model.move(-900)
    tracker.close(interval)
    assert interval.peak() == Peak(1800, 1800, "exact")
    if outer:
        tracker.close(outer)
        assert outer.peak() == Peak(1800, 1800, "exact")


# -- a reset that fails -----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["open", ("segment")])
def test_a_reset_that_fails_leaves_an_old_record(how):
    """What begins under it is bounded by that record, and exact only above it."""
    model = Model()
    tracker = PeakTracker(model)
    outer = tracker.open()
    model.move(500)
    model.move(-500)

    def refuse():
        raise OSError("no reset today")

    model.before_reset = refuse
    if how == "open":
        interval = tracker.open()
    else:
        interval = outer
        assert tracker.next_segment(interval) == [(1500, 1500, 1000)]
    model.move(200)
    tracker.fold(interval)
    assert interval.peak() == Peak(1200, 1500, "bounded")
    model.move(600)
    tracker.close(interval)
    assert interval.peak() == Peak(1800, 1800, "exact")


def test_what_a_handler_raises_in_a_lap_goes_on():
    """Ctrl-C during the reset is the user's."""
    model = Model()
    tracker = PeakTracker(model)
    interval = tracker.open()
    model.move(-100)

    def interrupt():
        raise KeyboardInterrupt

    model.before_reset = interrupt
    with pytest.raises(KeyboardInterrupt):
        tracker.next_segment(interval)


def test_laps_that_reset_nothing_keep_the_old_record():
    """Where the caller forbids it, the record bounds the next segment, and is not taken for its own."""
    model = Model()
    tracker = PeakTracker(model)
    interval = tracker.open()
    model.move(500)
    model.move(-500)
    assert tracker.next_segment(interval, reset=False) == [(1500, 1500, 1000)]
    assert tracker.next_segment(interval, reset=False) == [(1000, 1500, 1000)]


# -- watching ---------------------------------------------------------------------------------------

watch_steps = st.lists(
    st.tuples(st.sampled_from(["open", "adopt", "close", "close again", "drop", "break"]), st.integers(0, 5)),
    max_size=20,
)


@given(watch_steps)
def test_watched_while_anything_is_open(program):
    """Told once when the first begins, however it does, and once when the last ends, however it does."""
    model = Model("sampled")
    tracker, open_ones, ended = PeakTracker(model), [], []
    for what, value in program:
        if what in ("open", "adopt"):
            open_ones.append(getattr(tracker, what)())
        elif what == "close again" and ended:
            tracker.close(ended[value % len(ended)])
        elif open_ones and what in ("close", "break"):
            model.broken = what == "break"
            ended.append(open_ones.pop(value % len(open_ones)))
            try:
                tracker.close(ended[-1])
            except Unavailable:
                assert model.broken
            model.broken = False
        assert model.watched == [i % 2 == 0 for i in range(len(model.watched))]
        assert (len(model.watched) % 2 == 1) == bool(open_ones)
        assert set(tracker._open) == set(open_ones)


class Sampled(Model):
    """A counter whose sampler tells once what it saw since the last look."""

    def __init__(self):
        super().__init__("sampled")
        self.seen = 0

    def move(self, step):
        super().move(step)
        self.seen = max(self.seen, self.current)

    def look(self):
        seen, self.seen = self.seen, 0
        return Observation((Reading(self.current, None, seen),), ())


@pytest.mark.parametrize(
    "who", ["look", "open", "open without a reset", "adopt", "fold", "lifetime_peak_bytes", "close"]
)
def test_what_a_sampler_saw_counts_whoever_asked(who):
    """It tells it once: any look gives it to all that are open, and to the lifetime."""
    model = Sampled()
    tracker = PeakTracker(model)
    outer, other = tracker.open(), tracker.open()
    model.move(700)
    model.move(-700)
    calls = {
        "open without a reset": lambda: tracker.open(reset=False),
        "fold": lambda: tracker.fold(other),
        "close": lambda: tracker.close(other),
    }
    calls.get(who, getattr(tracker, who, None))()
    assert outer.peak() == Peak(1700, None, "sampled")
    tracker.close(outer)
    assert outer.peak().lo_bytes == tracker.lifetime_peak_bytes() == 1700


def test_a_foreign_reset_is_told_once_and_noted_by_whoever_looks():
    """The counter says so at one look, and what is open must know it, whose look it was."""
    model = Model()
    tracker = PeakTracker(model)
    interval = tracker.open()
    model.move(500)
    model.move(-500)
    model.reset_elsewhere(reported=True)
    tracker.look()
    tracker.close(interval)
    assert interval.peak().quality == "sampled"
    assert "the model" in tracker.loss(interval)
    assert tracker.loss(tracker.open()) == ""


def test_a_foreign_reset_is_told_again_where_nothing_else_changed():
    """Two looks that show the same figures: each that tells of a reset concerns what is open by then."""
    model = Model()
    tracker = PeakTracker(model)
    for _ in range(2):
        interval = tracker.open()
        model.reset_elsewhere(reported=True)
        tracker.close(interval)
        assert interval.peak().quality == "sampled"


def test_a_look_that_shows_the_same_is_the_last_one():
    """Until a reset: then what is open must learn of it."""
    model = Model()
    tracker = PeakTracker(model)
    look = tracker.look()
    assert tracker.look() is look
    tracker.user_resets(model.reset)
    assert tracker.look() is not look


@pytest.mark.parametrize("certified", [False, True])
def test_the_last_figure_holds_while_nothing_was_allocated(certified):
    """What was freed still counts in it; without a stamp, or a look, it is read."""
    model = Model(certified=certified)
    tracker = PeakTracker(model)
    assert tracker.last_bytes() == 1000
    model.move(-300)
    assert tracker.last_bytes() == (1000 if certified else 700)
    model.move(10)
    assert tracker.last_bytes() == 710


# -- at hand at any time ----------------------------------------------------------------------------


def test_brought_up_to_date_while_open():
    """`fold` reads what is the highest so far and leaves all open; of one that ended it changes nothing."""
    model = Model()
    tracker = PeakTracker(model)
    interval, ended = tracker.open(), tracker.open()
    tracker.close(ended)
    model.move(300)
    assert interval.peak().hi_bytes == 1000
    tracker.fold(ended)
    assert interval.peak().hi_bytes == 1000
    tracker.fold(interval)
    assert interval.peak() == Peak(1300, 1300, "exact")
    assert ended.peak() == Peak(1000, 1000, "exact")
    model.move(-300)
    tracker.close(interval)
    assert interval.peak() == Peak(1300, 1300, "exact")


def test_a_counter_that_stops_telling_its_peak():
    """From there on it is at least what was seen, for what was open and what begins."""
    model = Model()
    tracker = PeakTracker(model)
    interval = tracker.open()
    model.move(500)
    tracker.fold(interval)
    model.peak_class = "sampled"
    tracker.close(interval)
    assert interval.peak() == Peak(1500, None, "sampled")
    assert tracker.open().peak().quality == "sampled"


@pytest.mark.parametrize("sure", [True, False])
def test_adopted(sure):
    """It goes on being measured; where somebody may have reset the counter, it is at least what is seen."""
    model = Model()
    model.move(500)
    tracker = PeakTracker(model)
    interval = tracker.adopt(sure=sure)
    assert interval.before_bytes() == 0
    assert interval.peak() == Peak(1500, *((1500, "exact") if sure else (None, "sampled")))
    assert interval.moved
    model.move(200)
    model.move(-1700)
    tracker.close(interval)
    assert interval.peak() == Peak(1700, *((1700, "exact") if sure else (None, "sampled")))


def test_adopted_under_the_highest():
    """A peak that the counter knows from before it was adopted is the interval's: it came within its scope."""
    model = Model()
    model.move(500)
    model.move(-900)
    tracker = PeakTracker(model)
    assert tracker.adopt().peak() == Peak(1500, 1500, "exact")


@pytest.mark.parametrize(
    ("peak_class", "highest"), [("resettable", 6000), ("monotone", 6000), ("sampled", 5000)]
)
def test_the_lifetime_is_read_when_it_is_asked_for(peak_class, highest):
    """Nobody need have measured anything; and what is in use counts where nothing tells a peak."""
    model = Model(peak_class)
    tracker = PeakTracker(model)
    assert tracker.lifetime_peak_bytes() == 1000
    model.move(4000)
    assert tracker.lifetime_peak_bytes() == 5000
    model.move(1000)
    model.move(-5500)
    assert tracker.lifetime_peak_bytes() == highest
    model.current = model.highest = 0
    fresh = Model(peak_class)
    fresh.current = fresh.highest = 0
    assert PeakTracker(fresh).lifetime_peak_bytes() == 0


@pytest.mark.parametrize("somebody", [False, True])
def test_the_user_resets(somebody):
    """Theirs is done once, whoever measures, and what is open keeps what was known."""
    model, resets = Model(), []
    model.before_reset = lambda: resets.append(1)
    tracker = PeakTracker(model)
    interval = tracker.open() if somebody else None
    model.move(500)
    model.move(-500)
    resets.clear()
    tracker.user_resets(model.reset)
    assert (resets, model.highest) == ([1], 1000)
    if interval:
        tracker.close(interval)
        assert interval.peak() == Peak(1500, 1500, "exact")


# -- a stranger's counter ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "readings",
    [
        (),
        ((5, 6),),
        ((5, 6), (7, 8), (9, 10)),
        ((5, 6), (7.5, 8)),
        ((5, 6), (7, 8.5)),
        ((float("nan"), 6), (7, 8)),
        ((None, 6), (7, 8)),
        ((5, 6), (7, "8")),
    ],
)
def test_what_is_no_reading_is_refused(readings):
    """Another number of series than before, or what is no whole number: one sentence that names the counter."""
    model = Pair()
    tracker = PeakTracker(model)
    interval = tracker.open()
    model.look = lambda: Observation(tuple(Reading(*one) for one in readings), (0, 0))
    with pytest.raises(Unavailable, match="Pair fails: "):
        tracker.look()
    with pytest.raises(Unavailable, match="Pair fails: "):
        tracker.close(interval)
    assert interval.peak(1).quality == "sampled"


def test_no_series_at_all_is_refused_from_the_first():
    """Nothing is no figure."""
    model = Model()
    model.look = lambda: Observation((), ())
    with pytest.raises(Unavailable, match="not a reading"):
        PeakTracker(model).look()


@pytest.mark.parametrize("error", [OSError("gone"), SystemExit(3), GeneratorExit()])
def test_a_counter_that_fails_in_any_way(error):
    """It is unavailable, and the sentence says which and why; a Ctrl-C is the user's."""
    model = Model()

    def fail():
        raise error

    model.look = fail
    with pytest.raises(Unavailable, match=f"Model fails: {type(error).__name__}"):
        PeakTracker(model).look()
    error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        PeakTracker(model).look()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_what_a_fork_leaves_open_is_the_parents():
    """In the child its peak is at least what was known; in the parent nothing has changed."""
    model = Model()
    tracker = PeakTracker(model)
    interval = tracker.open()
    model.move(500)
    model.move(-500)
    tracker.fold(interval)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            model.highest = model.current  # as the kernel does
            tracker.close(interval)
            sampled = interval.peak() == Peak(1500, None, "sampled")
            again = tracker.open()
            tracker.close(again)
            status = not (sampled and again.peak().quality == "exact" and not again.reset_elsewhere)
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    tracker.close(interval)
    assert interval.peak() == Peak(1500, 1500, "exact")


def test_a_lap_begins_with_a_counter_of_its_own():
    """After a segment that reset, what the next needs for a moment is its own, however high the last one was."""
    model = Model()
    tracker = PeakTracker(model)
    interval = tracker.open()
    for highest in (500, 200, 300):
        model.move(highest)
        model.move(-highest)
        assert tracker.next_segment(interval) == [(1000 + highest, 1000 + highest, 1000)]


@pytest.mark.parametrize("how", ["open", ("segment"), "user"])
def test_any_reset_of_ours_frees_those_under_an_old_record(how):
    """An interval that began under a record above it: after a reset, what the counter tells is its own."""
    model = Model()
    tracker = PeakTracker(model)
    other = tracker.open()
    model.move(5000)
    model.move(-5000)
    interval = tracker.open(reset=False)
    {
        "open": tracker.open,
        ("segment"): lambda: tracker.next_segment(other),
        "user": lambda: tracker.user_resets(model.reset),
    }[how]()
    model.move(300)
    model.move(-300)
    tracker.close(interval)
    assert interval.peak() == Peak(1300, 6000, "bounded")


@pytest.mark.parametrize(("grain", "noticed"), [(0, True), (1, False), (2, False)])
def test_a_peak_that_falls_by_more_than_its_grain_was_reset(grain, noticed):
    """Down to nothing, by a single byte; within the grain of the counter it may sink by itself."""
    model = Model()
    model.precision_bytes = grain
    model.current, model.highest = 0, 1
    tracker = PeakTracker(model)
    interval = tracker.open(reset=False)
    model.reset_elsewhere(reported=False)
    tracker.close(interval)
    assert interval.reset_elsewhere is noticed
    assert bool(tracker.loss(interval)) is noticed


@pytest.mark.parametrize("series", [0, 1])
def test_one_series_that_was_reset_is_enough(series):
    """Whose peak fell is not asked: nothing of that counter is sure any more."""
    model = Pair()
    tracker = PeakTracker(model)
    interval = tracker.open()
    for one in (model, model.taken):
        one.move(500)
        one.move(-500)
    tracker.fold(interval)
    (model, model.taken)[series].reset_elsewhere(reported=False)
    tracker.close(interval)
    assert [interval.peak(i) for i in (0, 1)] == [Peak(1500, None, "sampled")] * 2


@pytest.mark.parametrize("end", ["close", "fold"])
def test_an_interval_that_missed_its_owners_looks_is_never_exact(end):
    """Lost by its tracker, or asked of another one: what happened meanwhile is not in it, and it says so."""
    model = Model()
    tracker, other = PeakTracker(model), PeakTracker(Model())
    interval = tracker.open()
    model.move(100)
    getattr(other, end)(interval)
    assert interval.peak().quality == "sampled"
    known = tracker.open()
    tracker.close(known)
    peak = known.peak()
    for again in (tracker, other):  # one that has ended stays what it is
        getattr(again, end)(known)
    assert known.peak() == peak
    assert peak.quality == "exact"
