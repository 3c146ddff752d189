"""Many intervals over one counter: truth is known, because the counter is ours."""

import os
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipygpulogger.peaks import PeakOwner
from ipygpulogger.records import Peak
from ipygpulogger.sources import Counter, Look, Reading, Unavailable


class Model(Counter):
    """A counter with one peak and one reset for everybody, and the whole truth written down."""

    def __init__(self, peak_class="resettable", certified=True):
        self.peak_class = peak_class
        self.certified = certified
        self.current = self.highest = 1000
        self.allocated = 0  # ever: the stamp
        self.story = [self.current]  # every value the memory ever had
        self.before_reset = lambda: None
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
        return Look((Reading(self.current, peak),), (self.allocated,) if self.certified else (), erased)

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
    st.tuples(st.just("lap"), st.integers(0, 9)),
    st.tuples(st.just("user"), st.just(0)),
)


def as_peak(lap):
    """A lap's figures, judged as an interval's."""
    if lap.hi_bytes is None:
        return Peak(lap.lo_bytes, None, "sampled")
    return Peak(lap.lo_bytes, lap.hi_bytes, "exact" if lap.lo_bytes == lap.hi_bytes else "bounded")


def play(model, program):  # noqa: C901 - one branch a step
    """Run a program; for each interval its peak, whether it may be inexact, and the true one."""
    owner, open_ones, done, blip = PeakOwner(model), [], [], [0]

    def blip_now():
        height, blip[0] = blip[0], 0
        if height:
            model.move(height)
            model.move(-height)

    model.before_reset = blip_now

    def close(i):
        interval, began, reset, blips = open_ones.pop(i % len(open_ones))
        owner.close(interval)
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
            interval = owner.open(reset=value)
            open_ones.append([interval, len(model.story) - 1, value, [0]])
        elif what == "user":
            if blip[0]:
                for one in open_ones:
                    one[3][0] += 1
            owner.user_resets(model.reset)
        elif open_ones and what == "lap":
            one = open_ones[value % len(open_ones)]
            resets = model.highest > model.current
            if blip[0] and resets:  # here the owner resets
                for other in open_ones:
                    other[3][0] += 1
            (lap,) = owner.lap(one[0])
            done.append((as_peak(lap), max(model.story[one[1] :]), one[2], one[3][0]))
            one[1:] = [len(model.story) - 1, one[2] or model.peak_class == "resettable", [0]]
        elif open_ones and what == "fold":
            owner.fold(open_ones[value % len(open_ones)][0])
        elif open_ones:
            close(value)
    while open_ones:
        close(0)
    return owner, done


@settings(max_examples=500, deadline=None)
@given(st.lists(steps, max_size=40))
def test_the_truth_lies_in_the_bounds(program):
    """Whatever nests, overlaps, resets or slips in between: lo <= truth <= hi."""
    owner, done = play(Model(), program)
    for peak, truth, _, _ in done:
        assert peak.lo_bytes <= truth <= peak.hi_bytes
    assert not owner._open


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
    owner = PeakOwner(model)
    outer = owner.open()
    model.move(50)

    def blip():
        model.before_reset = lambda: None
        model.move(700)
        model.move(-700)

    model.before_reset = blip
    inner = owner.open()
    owner.close(inner)
    owner.close(outer)
    assert outer.peak().quality == "bounded"
    assert (outer.peak().lo_bytes, outer.peak().hi_bytes) == (1050, 1750)
    assert inner.peak().quality == "exact"
    assert inner.peak().lo_bytes == 1050


def test_lifetime_survives_every_reset():
    """The highest ever is kept, whoever resets."""
    model = Model()
    owner = PeakOwner(model)
    model.move(5000)
    model.move(-5000)
    interval = owner.open()
    owner.close(interval)
    owner.user_resets(model.reset)
    assert owner.lifetime_peak_bytes() == 6000


def test_a_lost_counter_is_not_exact():
    """A counter that fails at the end leaves what was known, as "at least", and no interval open."""
    model = Model()
    owner = PeakOwner(model)
    interval = owner.open()
    model.broken = True
    with pytest.raises(Unavailable):
        owner.close(interval)
    assert interval.peak().quality == "sampled"
    assert not owner._open
    owner.close(interval)  # again: harmless


def test_adopted_from_zero():
    """A counter that came to life within a scope is measured from nothing, peak included."""
    model = Model()
    model.move(500)
    model.move(-1200)
    interval = PeakOwner(model).adopt()
    assert interval.before_bytes() == 0
    assert interval.peak().lo_bytes == interval.peak().hi_bytes == 1500


def test_watched_only_while_open():
    """Sampled counters are told when the first interval opens and the last one closes."""
    model = Model("sampled")
    owner = PeakOwner(model)
    first, second = owner.open(), owner.open()
    owner.close(first)
    owner.close(second)
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
    owner = PeakOwner(model)

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
            began = owner.open()
            with model.lock:
                model.story = [model.current]
            owner.close(owner.open())
            with model.lock:
                story = list(model.story)
                truth = max(story)
            owner.close(began)
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
    """A child forked while another thread holds the owner's lock can still use the owner."""
    model = Model()
    owner = PeakOwner(model)
    held, let_go = threading.Event(), threading.Event()

    def hold():
        with owner._lock:
            held.set()
            let_go.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    pid = os.fork()
    if pid == 0:
        interval = owner.open()
        owner.close(interval)
        os._exit(0)
    let_go.set()
    holder.join()
    assert os.waitpid(pid, 0)[1] == 0


def test_a_quiet_lap_resets_nothing():
    """Where nothing came or went a lap reads once and resets nothing; where anything fell, it resets."""
    model, resets = Model(), []
    model.before_reset = lambda: resets.append(model.current)
    owner = PeakOwner(model)
    interval = owner.open()
    resets.clear()
    (lap,) = owner.lap(interval)
    assert (lap.lo_bytes, lap.hi_bytes, lap.after_bytes) == (1000, 1000, 1000)
    model.move(50)
    (lap,) = owner.lap(interval)  # the record stands at what is in use: as good as reset
    assert (lap.lo_bytes, lap.hi_bytes, lap.after_bytes) == (1050, 1050, 1050)
    assert not resets
    model.move(-150)  # moves no stamp
    (lap,) = owner.lap(interval)
    assert (lap.lo_bytes, lap.hi_bytes, lap.after_bytes) == (1050, 1050, 900)
    assert resets == [900]
    (lap,) = owner.lap(interval)
    assert (lap.lo_bytes, lap.hi_bytes, lap.after_bytes) == (900, 900, 900)
    owner.close(interval)


def test_a_lap_within_the_grain_leaves_the_record():
    """A record a little above what is in use, by less than the grain, bounds the next lap and is not reset."""
    model, resets = Model(), []
    model.precision_bytes = 100
    model.before_reset = lambda: resets.append(1)
    owner = PeakOwner(model)
    interval = owner.open()
    resets.clear()
    model.move(40)
    model.move(-40)
    assert owner.lap(interval)[0].hi_bytes == 1040
    model.move(10)
    (lap,) = owner.lap(interval)
    assert (lap.lo_bytes, lap.hi_bytes) == (1010, 1040)
    assert not resets
    owner.close(interval)


foreign_steps = st.one_of(
    st.tuples(st.just("move"), st.integers(-400, 400)),
    st.tuples(st.sampled_from(["open", "close", "lap"]), st.integers(0, 9)),
    st.tuples(st.just("reset elsewhere"), st.booleans()),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(foreign_steps, max_size=30))
def test_what_something_else_erased_is_never_exact(program):  # noqa: C901 - one branch a step
    """A foreign reset, reported or shown by a peak that fell, makes what is open sampled; not what follows."""
    model, open_ones = Model(), []
    owner = PeakOwner(model)

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
                owner.look()  # the only witness of the peak before
            shows = value or model.highest > model.current
            model.reset_elsewhere(reported=value)
            for one in open_ones:
                one["erased"] |= shows
            owner.look()
        elif what == "open":
            open_ones.append({"interval": owner.open(), "began": len(model.story) - 1, "erased": False})
        elif open_ones:
            one = open_ones[value % len(open_ones)]
            if what == "close":
                owner.close(one["interval"])
                check(one["interval"].peak(), one)
                assert ("model" in owner.loss(one["interval"])) >= one["erased"]
                open_ones.remove(one)
            else:
                (lap,) = owner.lap(one["interval"])
                check(as_peak(lap), one)
                one |= {"began": len(model.story) - 1, "erased": False}
