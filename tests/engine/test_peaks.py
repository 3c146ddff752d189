"""Many intervals over one counter: the truth is known, because the counter is ours."""

import contextlib
import gc
import os
import threading

import pytest
from counters import Model
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ipygpulogger.engine.peaks import SEGMENT_SLACK_BYTES, PeakTracker, WeakIdentitySet, peak_of_sum
from ipygpulogger.records import Peak
from ipygpulogger.sources import Unavailable


def bounds(one):
    """The bounds of a peak or of a segment."""
    return one.lo_bytes, one.hi_bytes


class Play:
    """Runs steps such as "open a", "+500", "blip 700", "segment a" over one model."""

    def __init__(self, model):
        self.model, self.tracker, self.intervals, self.told = model, PeakTracker(model), {}, []

    def once(self, where, act):
        """Do something at the next reset or stamp, and only then."""

        def now():
            setattr(self.model, where, lambda: None)
            act()

        setattr(self.model, where, now)

    def refuse(self):
        raise OSError("no reset today")

    def run(self, program):  # noqa: C901 - one branch a step
        model, tracker = self.model, self.tracker
        for step in program.split("; "):
            what, _, name = step.partition(" ")
            interval = self.intervals.get(name)
            how = {"open!": {"reset": False}, "segment!": {"reset": False}, "adopt?": {"sure": False}}.get(
                what, {}
            )
            if what[0] in "+-":
                model.move(int(what), int(name or 0))
            elif what in ("open", "open!"):
                self.intervals[name] = tracker.open(**how)
            elif what in ("adopt", "adopt?"):
                self.intervals[name] = tracker.adopt(**how)
            elif what in ("segment", "segment!"):
                self.told += map(tuple, tracker.next_segment(interval, **how))
            elif what == "peek":
                self.told.append(bounds(interval.peak()))
            elif what in ("close", "fold"):
                getattr(tracker, what)(interval)
            elif what == "user":
                tracker.user_resets(model.reset)
            elif what in ("observe", "lifetime_peak_bytes"):
                getattr(tracker, what)()
            elif what in ("erase", "erase!"):  # other code resets the counter, unseen or reported
                model.highest, model.erased = list(model.now), what == "erase!"
            elif what == "uncount":
                model.peak_class = "sampled"
            elif what == "refuse":
                model.before_reset = self.refuse
            else:  # other threads, just before or after the reset or stamp that comes next
                where = {"late": "after_reset", "early": "before_stamp"}.get(what, "before_reset")
                act = model.move if what == "rise" else model.blip
                self.once(where, lambda act=act, size=int(name): act(size))
        return self


# Each: what happens, what segments and peeks tell, the bounds of the peaks, and how often the counter is reset.
SCENES = {
    "a blip between observation and reset bounds those open": (
        "open a; +60; -10; blip 700; open b; close b; close a",
        [], {"a": (1060, 1750), "b": (1050, 1050)}, 1,
    ),
    "what comes right after the reset is the new interval's own": (
        "+500; -500; late 700; open a; +10; close a", [], {"a": (1700, 1700)}, 1,
    ),
    "one that came to life later is measured from zero": (
        "+500; -1200; adopt a; peek a; +2000; -1700; close a", [(1500, 1500)], {"a": (2300, 2300)}, 0,
    ),
    "which is at least what is seen where it may have been reset": (
        "+500; adopt? a; peek a; +200; -1700; close a", [(1500, None)], {"a": (1700, None)}, 0,
    ),
    "a segment resets only where anything fell": (
        "open a; segment a; +50; segment a; -150; segment a; segment a",
        [(1000, 1000, 1000), (1050, 1050, 1050), (1050, 1050, 900), (900, 900, 900)], {}, 1,
    ),
    "a blip before the reset of a segment is read": (
        "open a; -100; early 700; segment a; segment a", [(1600, 1600, 900), (900, 900, 900)], {}, 1,
    ),
    "what a segment loses with its reset bounds the others": (
        "open a; open b; +500; -500; blip 900; segment b; close a", [(1500, 1900, 1000)], {"a": (1500, 1900)}, 1,
    ),
    "without a reset the old record bounds the next segment": (
        "open a; +500; -500; segment! a; segment! a", [(1500, 1500, 1000), (1000, 1500, 1000)], {}, 0,
    ),
    "a rise with the reset of a segment counts from then on": (
        "open a; open b; -100; rise 500; segment b; peek a; -500; close a",
        [(1400, 1400, 1400), (1400, 1400)], {"a": (1400, 1400)}, 1,
    ),
    "an opening whose reset fails is under the old record": (
        "open o; +500; -500; refuse; open a; +200; fold a; peek a; +600; close a",
        [(1200, 1500)], {"a": (1800, 1800)}, 0,
    ),
    "so is a segment": (
        "open a; +500; -500; refuse; segment a; +200; fold a; peek a; +600; close a",
        [(1500, 1500, 1000), (1200, 1500)], {"a": (1800, 1800)}, 0,
    ),
    "a counter that stops telling its peak": (
        "open a; +500; fold a; uncount; close a; open b", [], {"a": (1500, None), "b": (1500, None)}, 0,
    ),
    "an opening frees those under an old record": (
        "open o; +5000; -5000; open! a; open b; +300; -300; close a", [], {"a": (1300, 6000)}, 1,
    ),
    "a reported reset makes sampled whoever observes": (
        "open a; +500; -500; erase!; observe; close a; open b; erase!; close b",
        [], {"a": (1000, None), "b": (1000, None)}, 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("scene", SCENES)
def test_scenes(scene):
    """Each as it is called."""
    program, told, peaks, resets = SCENES[scene]
    play = Play(Model()).run(program)
    assert play.told == told
    assert {name: bounds(play.intervals[name].peak()) for name in peaks} == peaks
    assert play.model.log.count("reset") == resets


# -- any program ------------------------------------------------------------------------------------

KINDS = [("resettable", True), ("resettable", False), ("monotone", True), ("sampled", True)]
WHICH = st.integers(0, 9)
any_open = precondition(lambda self: self.open)
resettable = precondition(lambda self: self.model.peak_class == "resettable")


class Truth:
    """What happened since an interval, or its present segment, began."""

    def __init__(self, interval, began, *, reset):
        self.interval, self.began, self.reset = interval, began, reset
        self.blipped = self.erased = self.ever_erased = self.lost = False


class AnyProgram(RuleBasedStateMachine):
    """Whatever nests, overlaps, resets, fails or slips in between: the truth lies in the bounds of every peak.

    It is exact where nothing could be lost.
    """

    @initialize(kind=st.sampled_from(KINDS))
    def begin(self, kind):
        self.model = Model(peak_class=kind[0], certified=kind[1])
        self.tracker, self.open, self.ended = PeakTracker(self.model), [], []
        self.any_lost = False

    @rule(size=st.integers(-400, 400))
    def move(self, size):
        self.model.move(max(size, -self.model.now[0]))

    @rule(reset=st.booleans())
    def opens(self, reset):
        interval = self.tracker.open(reset=reset)
        self.open.append(Truth(interval, len(self.model.story) - 1, reset=reset))

    @resettable
    @rule(size=st.integers(1, 900))
    def blip_at_next_reset(self, size):
        def blip():
            self.model.before_reset = lambda: None
            self.model.blip(size)
            self.any_lost = True
            for one in self.open:
                one.blipped = True

        self.model.before_reset = blip

    @resettable
    @rule()
    def user_resets(self):
        self.any_lost |= not self.open  # then the tracker need not know of it
        self.tracker.user_resets(self.model.reset)

    @resettable
    @rule(reported=st.booleans())
    def other_code_resets(self, reported):
        if not reported:
            self.tracker.observe()  # the only witness of the peak before
        for one in self.open:
            one.erased |= reported or self.model.highest > self.model.now
            one.ever_erased |= one.erased
        self.model.highest, self.model.erased = list(self.model.now), reported
        self.tracker.observe()
        self.any_lost = True

    @any_open
    @rule(which=WHICH)
    def fold(self, which):
        self.tracker.fold(self.open[which % len(self.open)].interval)

    @any_open
    @rule(which=WHICH)
    def next_segment(self, which):
        one = self.open[which % len(self.open)]
        (segment,) = self.tracker.next_segment(one.interval)
        self.judge(one, *bounds(segment))
        assert segment.after_bytes == self.model.now[0]
        one.began, one.blipped, one.erased = len(self.model.story) - 1, False, False
        one.reset = one.reset or self.model.peak_class == "resettable"

    @any_open
    @rule(which=WHICH, broken=st.booleans())
    def close(self, which, broken=False):
        one = self.open.pop(which % len(self.open))
        self.ended.append(one)
        self.model.broken = one.lost = broken
        with pytest.raises(Unavailable) if broken else contextlib.nullcontext():
            self.tracker.close(one.interval)
        self.model.broken = False
        self.judge(one, *bounds(one.interval.peak()))
        assert ("the model" in self.tracker.loss(one.interval)) == one.ever_erased

    @precondition(lambda self: self.ended)
    @rule(which=WHICH)
    def close_again(self, which):
        self.tracker.close(self.ended[which % len(self.ended)].interval)

    def judge(self, one, lo_bytes, hi_bytes):
        model, truth = self.model, max(self.model.story[one.began :])
        assert lo_bytes <= truth
        if one.erased or one.lost or model.peak_class == "sampled":
            assert hi_bytes is None
            return
        assert hi_bytes is None or truth <= hi_bytes
        assert hi_bytes is not None or not model.certified
        if one.reset and not one.blipped and model.certified and model.peak_class == "resettable":
            assert lo_bytes == hi_bytes

    @invariant()
    def watched_while_anything_is_open(self):
        watched = self.model.watched
        assert watched == [i % 2 == 0 for i in range(len(watched))]  # told once each time
        assert len(watched) % 2 == bool(self.open)

    def teardown(self):
        while self.open:
            self.close(0)
        if self.model.peak_class != "sampled" and not self.any_lost:
            assert self.tracker.lifetime_peak_bytes() == max(self.model.story)


TestAnyProgram = AnyProgram.TestCase
TestAnyProgram.settings = settings(max_examples=500, stateful_step_count=40, deadline=None)


# -- what is read, and when -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "step", "log"),
    [
        ("open a; -100", "segment a", ["observe", "stamp", "reset", "stamp"]),  # quiet: the stamp alone
        ("+500; -500", "open a", ["observe", "reset", "observe"]),  # nobody's peak could be lost
        ("observe", "open a", ["observe"]),  # the peak is at what is in use
        ("open o; +500", "open a", ["observe"]),
        ("open a", "segment a", ["observe"]),
    ],
)
@pytest.mark.parametrize("start", [1000, 0])
def test_no_more_looks_than_needed(before, step, log, start):
    """A quiet counter is read once, and reset only where its peak is above what is in use, be that nothing."""
    play = Play(Model(start)).run(before)
    play.model.log.clear()
    assert play.run(step).model.log == log


@pytest.mark.parametrize("moves", range(7))
def test_before_a_reset_it_waits_for_quiet(moves):
    """While other threads move the stamp the tracker observes again, four times at most; alone, once."""
    play, left = Play(Model()).run("open a; +100; -100"), [moves]
    model, observe = play.model, play.model.observe
    model.log.clear()

    def restless():
        if left[0]:
            left[0] -= 1
            model.move(1)
        return observe()

    model.observe = restless
    play.run("open b")
    assert model.log.index("reset") == 1 + min(max(moves, 1), 4)


@pytest.mark.parametrize("grain", [100, SEGMENT_SLACK_BYTES, 1 << 20])
def test_a_segment_leaves_a_little(grain):
    """The record may stand above what is in use by the grain, by 256 KiB at most; it bounds the next segment."""
    play = Play(Model(1 << 30, grain=grain)).run(f"open a; -{min(grain, 256 * 1024)}; segment a")
    assert "reset" not in play.model.log
    assert bounds(play.intervals["a"].peak()) == (play.model.now[0], 1 << 30)
    assert "reset" in play.run("-1; segment a").model.log


def test_what_a_handler_raises_goes_on():
    """Ctrl-C during the reset of a segment is the user's."""
    play = Play(Model()).run("open a; -100")

    def interrupt():
        raise KeyboardInterrupt

    play.model.before_reset = interrupt
    with pytest.raises(KeyboardInterrupt):
        play.run("segment a")


def test_a_look_that_shows_the_same_is_the_last_one():
    """Until a reset: then what is open must learn of it."""
    model = Model()
    tracker = PeakTracker(model)
    observation = tracker.observe()
    assert tracker.observe() is observation
    tracker.user_resets(model.reset)
    assert tracker.observe() is not observation


@pytest.mark.parametrize(("grain", "noticed"), [(0, True), (1, False), (2, False)])
def test_a_peak_that_falls_by_more_than_its_grain_was_reset(grain, noticed):
    """Down to nothing, by a single byte; within the grain of the counter it may sink by itself."""
    play = Play(Model(0, grain=grain)).run("+1; -1; open! a; erase; close a")
    assert play.intervals["a"].reset_elsewhere is noticed
    assert bool(play.tracker.loss(play.intervals["a"])) is noticed


@pytest.mark.parametrize("end", ["close", "fold"])
def test_an_interval_that_missed_its_owners_looks_is_never_exact(end):
    """Asked of another tracker: what happened meanwhile is not in it; one that has ended stays what it is."""
    play, other = Play(Model()).run("open a; +100; open b; close b"), PeakTracker(Model())
    for name, quality in (("a", "sampled"), ("b", "exact")):
        getattr(other, end)(play.intervals[name])
        assert play.intervals[name].peak().quality == quality


# -- several series, several counters ----------------------------------------------------------------


def test_each_series_has_its_own_figures():
    """The first is meant where none is named: at the beginning, at its peak, and over the whole life."""
    play = Play(Model(count=2)).run("+500 1; open a; +10; +100 1; -600 1; segment a")
    interval, tracker = play.intervals["a"], play.tracker
    assert play.told == [(1010, 1010, 1010), (1600, 1600, 1000)]
    assert interval.before_bytes() == interval.before_bytes(0) == 1010
    assert interval.before == [1010, 1000]
    assert interval.peak() == interval.peak(0) == Peak(1010, 1010, "exact")
    assert interval.peak(1) == peak_of_sum([interval], 1) == Peak(1000, 1000, "exact")
    assert tracker.lifetime_peak_bytes() == tracker.lifetime_peak_bytes(0) == 1010
    assert tracker.lifetime_peak_bytes(1) == 1600
    assert tracker.current_bytes() == tracker.current_bytes(0) == 1010
    assert tracker.current_bytes(1) == 1000


@pytest.mark.parametrize("series", [0, 1])
def test_any_series_is_enough(series):
    """To be reset as an interval or a segment begins; and to be known as reset by other code."""
    play = Play(Model(count=2)).run(f"+500 {series}; -500 {series}; open a")
    assert play.intervals["a"].peak(series) == Peak(1000, 1000, "exact")
    play.run(f"-100 {series}; segment a")
    assert play.model.log.count("reset") == 2
    play.run("+500; -500; +500 1; -500 1; fold a")
    play.model.highest[series] = 900
    play.run("close a")
    assert [play.intervals["a"].peak(i).hi_bytes for i in (0, 1)] == [None, None]


sum_steps = st.lists(
    st.tuples(st.sampled_from(["move", "blip"]), st.integers(0, 2), st.integers(-300, 300)), max_size=12
)


@settings(max_examples=300, deadline=None)
@given(sum_steps, st.sampled_from([0, 7]))
def test_the_sum_of_several_counters(program, precision):
    """The highest sum lies within the bounds."""
    models = [Model(grain=precision) for _ in range(3)]
    trackers = [PeakTracker(model) for model in models]
    intervals = [tracker.open() for tracker in trackers]
    sums = [3000]
    for what, i, step in program:
        if what == "blip":
            models[i].move(abs(step))
            sums.append(sum(model.now[0] for model in models))
            models[i].move(-abs(step))
        else:
            models[i].move(step)
            trackers[i].fold(intervals[i])
        sums.append(sum(model.now[0] for model in models))
    for tracker, interval in zip(trackers, intervals, strict=True):
        tracker.close(interval)
    peak = peak_of_sum(intervals, 0)
    assert peak.lo_bytes <= max(sums) <= peak.hi_bytes
    assert peak.precision_bytes == 3 * precision
    assert peak.hi_bytes == sum(interval.peak().hi_bytes for interval in intervals)
    assert (peak.quality == "exact") == (peak.hi_bytes - peak.lo_bytes <= 3 * precision)
    assert peak.lo_bytes == max(3000, *(interval.peak().lo_bytes for interval in intervals))


def test_a_sum_with_one_that_nobody_counts():
    """It is at least what is known, whatever the others are."""
    plays = [Play(model).run("open a") for model in (Model(), Model(peak_class="sampled"))]
    plays[1].run("+50; close a")
    plays[0].run("+7; close a")
    intervals = [play.intervals["a"] for play in plays]
    assert peak_of_sum(intervals, 0) == peak_of_sum(intervals[::-1], 0) == Peak(2000, None, "sampled")


# -- a stranger's counter ---------------------------------------------------------------------------


@pytest.mark.parametrize("error", [OSError("gone"), SystemExit(3), GeneratorExit(), KeyboardInterrupt()])
def test_a_counter_that_fails_in_any_way(error):
    """It is unavailable, and the sentence says which and why; a Ctrl-C is the user's."""
    model = Model()

    def fail():
        raise error

    model.observe = fail
    expected = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else Unavailable
    with pytest.raises(expected) as raised:
        PeakTracker(model).observe()
    if expected is Unavailable:
        assert f"Model fails: {type(error).__name__}" in str(raised.value)


@pytest.mark.linux("nothing forks there", "macos")
def test_a_fork(monkeypatch):
    """In the child nothing waits for the parent's threads, and what the parent left open is at least what is known."""
    play = Play(Model()).run("open a; +500; -500; fold a")
    held, let_go = threading.Event(), threading.Event()

    def hold():  # another thread of the parent is within the tracker
        held.set()
        let_go.wait()

    monkeypatch.setattr(play.model, "before_reset", hold)
    holder = threading.Thread(target=play.run, args=("user",))
    holder.start()
    held.wait()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            play.model.before_reset = lambda: None
            play.run("erase; close a; open b; close b")  # the kernel resets the mark of a child
            a, b = play.intervals["a"], play.intervals["b"]
            told = a.peak() == Peak(1500, None, "sampled") and b.peak() == Peak(1000, 1000, "exact")
            status = not (told and not b.reset_elsewhere)
        finally:
            os._exit(status)
    let_go.set()
    holder.join()
    assert os.waitpid(pid, 0)[1] == 0
    assert play.run("close a").intervals["a"].peak() == Peak(1500, 1500, "exact")


# -- the open ones --------------------------------------------------------------------------------------


class One:
    """Something that takes weak references."""


def test_a_weak_set_holds_what_lives():
    """Members come once, and go by themselves with their last referrer, or when they are taken out."""
    living, one, other = WeakIdentitySet(), One(), One()
    for member in (one, one, other):
        living.add(member)
    assert (len(living), set(living)) == (2, {one, other})
    assert one in living
    assert One() not in living
    del member, other
    assert list(living) == [one]
    for member in (One(), one, one):
        living.discard(member)
    assert not living
    one.itself = one  # a cycle: the set is no reason to keep it
    living.add(one)
    del one, member
    gc.collect()
    assert not living


def test_a_weak_set_may_change_while_somebody_goes_through_it():
    """Going through it yields what was there when that began, whoever adds, drops or removes meanwhile."""
    living, kept = WeakIdentitySet(), [One() for _ in range(100)]
    for one in kept:
        living.add(one)
    seen = iter(living)
    living.discard(kept[-1])
    living.add(fresh := One())
    assert set(seen) == set(kept)
    assert fresh in living
    stop = threading.Event()

    def change():
        while not stop.is_set():
            living.add(One())  # which dies at once

    changing = threading.Thread(target=change)
    changing.start()
    for _ in range(2000):
        assert set(kept[:-1]) <= set(living)
    stop.set()
    changing.join()
