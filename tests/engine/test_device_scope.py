"""One device in one scope, against a card whose whole course is written down."""

import pytest
from counters import Model
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ipygpulogger.engine.device_scope import RISE_BYTES, DeviceScope
from ipygpulogger.engine.ledger import DeviceSnapshot
from ipygpulogger.engine.peaks import PeakTracker
from ipygpulogger.records import DRIVER, Metric, Peak
from ipygpulogger.sources import Device, DeviceMemory

MB = 2**20
TOTAL = 1 << 40
GPU = Device("cuda", 1, "a card", "GPU-1", total_bytes=5)
RAW = Device(DRIVER, 0, "a card", "GPU-1")
UNIFIED = Device("cuda", 0, "a chip", "GPU-1", unified=True)
NOTHING = None, None
SILENT = DeviceSnapshot(0, 0, None, None)  # the driver tells nothing of the device


class Allocator(Model):
    """Live bytes, and reserved ones unless it does not report these."""

    def __init__(self, *, tells_reserved=True, precision_bytes=0, **how):
        super().__init__(0, count=1 + tells_reserved, grain=precision_bytes, **how)

    def allocate(self, size, *, cached=0):
        self.move(size)
        if len(self.now) > 1:
            self.move(max(size, 0) + cached, 1)


class Story:
    """A scope over one device: the truth of each moment, and what the scope was told of it."""

    def __init__(
        self, *, device=GPU, mine=0, others=0, unlisted=0, known=True, born=False, allocator=True, **how
    ):
        self.allocator = Allocator(**how)
        self.trackers = [PeakTracker(self.allocator)] if allocator else []
        self.device, self.known = device, known
        self.mine, self.others, self.unlisted = mine, others, unlisted  # outside the allocator
        self.scope, self.course = DeviceScope(device), []
        if not born:
            self.scope.before = self.snapshot()
            self.scope.neighbours_before_bytes = self.scope.before.neighbours
        for tracker in self.trackers:
            self.scope.intervals[tracker] = tracker.adopt() if born else tracker.open()
        self.note()

    @property
    def reserved(self):
        return self.allocator.now[-1]

    @property
    def other(self):
        return self.mine + self.others + self.unlisted

    def snapshot(self):
        used = self.reserved + self.other
        allocated, reserved = (self.allocator.now[0], self.reserved) if self.trackers else (None, None)
        own = self.mine + self.reserved if self.known else None
        return DeviceSnapshot(allocated, reserved, DeviceMemory(TOTAL, used, TOTAL - used), own)

    def note(self):
        self.course.append(self.mine + self.allocator.now[0])

    def blip(self, size):
        self.allocator.allocate(size)
        self.allocator.allocate(-size)
        return self

    def sample(self):
        return self.seen(self.reserved + self.other, self.other)

    def at(self, **parts):
        """Outside the allocators there is so much from now on."""
        vars(self).update(parts)
        return self

    def seen(self, used, other):
        self.scope.sampled(used, other)
        return self

    def end(self, after=None, allowance=NOTHING, timeline=()):
        for tracker, interval in self.scope.intervals.items():
            tracker.close(interval)
        return self.scope.usage(after or self.snapshot(), allowance, timeline)


megabytes = st.integers(-3, 3).map(lambda number: number * 40 * MB)
moves = st.lists(st.tuples(st.sampled_from(["allocate", "mine"]), megabytes), max_size=8)


@settings(max_examples=300)
@given(moves, st.sampled_from([0, 40 * MB]))
@example([("mine", -40 * MB), ("allocate", 80 * MB), ("allocate", -40 * MB), ("mine", 40 * MB)], 0)
@example([("allocate", 40 * MB), ("allocate", -40 * MB), ("mine", 40 * MB)], 0)
def test_the_peak_holds_both_parts(program, others):
    """Allocators and what stands outside them, sampled at each step: the truth lies in the bounds.

    It is exact where nothing outside the allocators moved.
    """
    story = Story(mine=200 * MB, others=others)
    story.allocator.allocate(200 * MB)
    for tracker, interval in story.scope.intervals.items():
        tracker.close(interval)
        story.scope.intervals[tracker] = tracker.open()
    story.scope.before, story.course = story.snapshot(), []
    story.note()
    for what, size in program:
        if what == "mine":
            story.mine = max(0, story.mine + size)
        else:
            story.allocator.allocate(max(size, -story.allocator.now[0]))
        story.note()
        story.sample()
    usage, truth = story.end(), max(story.course)
    assert (usage.before_bytes, usage.after_bytes) == (story.course[0], story.course[-1])
    assert usage.peak.lo_bytes <= truth
    assert usage.peak.hi_bytes is None or truth <= usage.peak.hi_bytes
    assert (usage.peak.hi_bytes is None) == (usage.peak.quality == "sampled")
    assert (usage.peak.hi_bytes == usage.peak.lo_bytes) == (usage.peak.quality == "exact")
    if not any(what == "mine" and size for what, size in program):
        assert usage.peak == Peak(truth, truth, "exact")
    assert usage.peak.lo_bytes >= max(story.course[0], story.course[-1])


def fallen(by, **how):
    """100 MB live for a moment, while what stands outside was seen lower by so much than at both ends."""
    story = Story(mine=50 * MB, **how)
    return story.at(mine=story.mine - by).sample().blip(100 * MB).at(mine=50 * MB).sample()


RAW_ALONE = {"device": RAW, "allocator": False}
# Each: what happened, what is known at the end, and the lowest and highest peak, in MB unless that is one byte off.
PEAKS = {
    "the allocator's peak met the lower or the higher of both ends": (
        lambda: Story(mine=10 * MB).blip(100 * MB).at(mine=17 * MB), 110 * MB, 117 * MB,
    ),
    "an end may be the highest": (lambda: Story().blip(10 * MB).at(mine=70 * MB), 70 * MB, 80 * MB),
    "a fall of a megabyte outside is noise": (lambda: fallen(MB), 150 * MB, 150 * MB),
    "more may have been ours": (lambda: fallen(MB + 1), 149 * MB - 1, 150 * MB),
    "or all of it": (lambda: fallen(50 * MB), 100 * MB, 150 * MB),
    "no part is negative": (lambda: fallen(60 * MB, others=100 * MB), 100 * MB, 150 * MB),
    "outside is everybody's RAM where it is unified": (
        lambda: fallen(40 * MB, device=UNIFIED), 150 * MB, 150 * MB,
    ),
    "what fell for good ends lower": (
        lambda: Story(mine=50 * MB).blip(100 * MB).at(mine=20 * MB).sample(), 120 * MB, 150 * MB,
    ),
    "what was lower at first began lower": (
        lambda: Story(mine=20 * MB).blip(100 * MB).sample().at(mine=50 * MB), 120 * MB, 150 * MB,
    ),
    "without an allocator it is at least the higher end, whoever rose": (
        lambda: Story(mine=50 * MB, **RAW_ALONE).seen(900 * MB, 900 * MB).at(mine=20 * MB), 50 * MB, None,
    ),
    "a sampled allocator samples the device": (
        lambda: Story(peak_class="sampled", mine=5).blip(100).at(mine=7), 7, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PEAKS)
def test_the_peak(case):
    """Each as it is called."""
    story, lo_bytes, hi_bytes = PEAKS[case]
    usage = story().end()
    assert (usage.peak.lo_bytes, usage.peak.hi_bytes) == (lo_bytes, hi_bytes)


def test_the_precision_is_the_allocators():
    """What differs by no more than that is exact."""
    story = Story(mine=17 * MB, precision_bytes=7 * MB).blip(100 * MB).at(mine=10 * MB)
    assert story.end().peak == Peak(110 * MB, 117 * MB, "exact", 7 * MB)


@pytest.mark.parametrize("above", [0, 1])
@pytest.mark.parametrize("before", [0, 300 * MB])
def test_a_sample_above_what_both_ends_explain(above, before):
    """By more than a megabyte: then nothing bounds the peak from above. Just as much is noise."""
    for used, other, later in (
        (before + 64 * MB, before + MB + above, 0),
        (before + 64 * MB + MB + above, None, 0),
        (before + 64 * MB, before + 5 + MB + above, 5),  # the higher end explains
    ):
        story = Story(mine=before)
        story.allocator.allocate(64 * MB)
        story.at(mine=before + later).seen(used, other)
        assert (story.end().peak.hi_bytes is None) == bool(above)


def test_where_nobody_tells_the_device():
    """Without its memory at an end no sample can be compared: nothing is unseen, risen or moved."""
    for before in (SILENT, None):
        story = Story().seen(910 * MB, 900 * MB)
        story.scope.before = before
        usage = story.end(SILENT)
        assert (usage.peak, usage.unknown_rise_bytes) == (Peak(0, 0, "exact"), 0)
        assert usage.unattributed_bytes == 0
    story = Story(known=False, mine=50)
    story.scope.before = SILENT
    assert story.end().unattributed_bytes == 0
    assert Story(known=False, mine=50).end(SILENT).unattributed_bytes == 0


# -- where it cannot be divided ---------------------------------------------------------------------


def test_what_nobody_can_attribute():
    """Only the allocators count; what moved outside them is told beside, but not where RAM is shared."""
    for device, moved in ((GPU, 30), (UNIFIED, 0)):
        story = Story(device=device, known=False, mine=50, others=20)
        story.allocator.allocate(7)
        usage = story.at(others=50).end()
        assert (usage.before_bytes, usage.after_bytes, usage.peak) == (0, 7, Peak(7, 7, "exact"))
        assert (usage.unattributed_bytes, usage.attributed, usage.unified) == (moved, True, device.unified)


@pytest.mark.parametrize("known", [True, False])
def test_what_was_consumed_outside_the_allocator(known):
    """A part of what was consumed, where the driver tells which process holds what; a context is none of it."""
    story = Story(mine=50, known=known)
    story.allocator.allocate(100)
    usage = story.at(mine=80).end()
    assert (usage.outside_bytes, usage.consumed_bytes) == ((30, 130) if known else (0, 100))
    assert Story(born=True, mine=400).end().outside_bytes == 0


@pytest.mark.parametrize("known", [True, False])
def test_one_unknown_end_is_enough(known):
    """A difference needs both."""
    usage = Story(mine=50, known=known).at(mine=80, known=not known).end()
    assert (usage.before_bytes, usage.after_bytes, usage.unattributed_bytes) == (0, 0, 30)


def test_a_device_that_came_to_life_within_the_scope():
    """It held nothing; its context is told apart, and stands at both ends."""
    story = Story(born=True, mine=400)
    story.allocator.allocate(100)
    usage = story.end()
    assert (usage.before_bytes, usage.after_bytes, usage.context_bytes) == (400, 500, 400)
    assert (usage.held_before_bytes, usage.peak) == (0, Peak(500, 500, "exact"))
    assert Story(mine=400).end().context_bytes == 0
    usage = Story(born=True, mine=400, known=False).end()
    assert (usage.context_bytes, usage.unattributed_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("allocated", "own", "attributed"), [(None, None, False), (0, None, True), (None, 0, True)]
)
def test_whether_anything_tells_this_process_s_part(allocated, own, attributed):
    """Its allocator, or the driver."""
    scope = DeviceScope(RAW)
    scope.before = after = DeviceSnapshot(allocated, allocated, None, own)
    assert scope.usage(after, NOTHING, ()).attributed is attributed


# -- rises ------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 200), max_size=5), st.integers(0, 200), st.booleans())
@example([64], 0, False)
def test_a_rise_outside_the_allocators(rises, later, born):
    """By how much the highest sample was above both ends; at most 64 MB are not worth a word."""
    story = Story(mine=20 * MB, born=born)
    for rise in rises:
        story.seen((20 + rise) * MB, (20 + rise) * MB + (rise == 200)).seen(1 << 40, None)
    usage = story.at(mine=(20 + later) * MB).end()
    highest_bytes = max((rise * MB + (rise == 200) for rise in rises), default=0)
    rise_bytes = highest_bytes - later * MB
    assert usage.unknown_rise_bytes == (rise_bytes if rise_bytes > RISE_BYTES else 0)
    assert RISE_BYTES == 64 * MB


def test_where_ram_is_shared_no_rise_is_said():
    """What is outside the allocators of a unified device is all RAM."""
    assert Story(device=UNIFIED).seen(900 * MB, 900 * MB).end().unknown_rise_bytes == 0


# -- what passes through ----------------------------------------------------------------------------


def test_every_figure_of_the_device():
    """As the last look tells it, under its own name."""
    story = Story(mine=3, others=20, unlisted=5)
    story.allocator.allocate(100, cached=50)
    story.allocator.allocate(-30)
    story.scope.metrics = metrics = (Metric("energy", 1.0, "J"),)
    usage = story.end(allowance=(70, 11), timeline=((0.5, 9),))
    assert (usage.index, usage.name, usage.uuid, usage.backend) == (1, "a card", "GPU-1", "cuda")
    assert (usage.total_bytes, usage.used_bytes, usage.free_bytes) == (TOTAL, 178, TOTAL - 178)
    assert (usage.allocated_bytes, usage.reserved_bytes) == (70, 150)
    assert usage.reserved_peak == Peak(150, 150, "exact")
    assert (usage.other_bytes, usage.neighbours_bytes, usage.neighbours_before_bytes) == (28, 25, 25)
    assert (usage.limit_bytes, usage.pools_bytes, usage.driver_bytes) == (70, 11, 0)
    assert (usage.metrics, usage.timeline, usage.attributed) == (metrics, ((0.5, 9),), True)
    unknown = story.scope.usage(DeviceSnapshot(70, 150, None, 153), NOTHING, ())
    assert (unknown.total_bytes, unknown.used_bytes, unknown.free_bytes) == (5, None, None)


def test_what_an_allocator_does_not_tell():
    """Without a second series nothing is known of its cache: one that does not tell is enough, or no allocator."""
    more = Story()
    silent = PeakTracker(Allocator(tells_reserved=False))
    more.scope.intervals[silent] = silent.open()
    for story in (Story(tells_reserved=False), more, Story(**RAW_ALONE)):
        usage = story.end()
        assert (usage.reserved_bytes, usage.reserved_peak) == (None, None)


def test_what_was_seen_before_a_framework_came_is_inherited():
    """The device is the same: its highest, its neighbours and its course."""
    raw = Story(mine=50 * MB, **RAW_ALONE)
    raw.scope.neighbours_before_bytes, raw.scope.energy_j = 7, 1.5
    raw.scope.series.add(0.5, 77)
    raw.seen(900 * MB, 900 * MB)
    scope = DeviceScope(GPU)
    scope.inherit(raw.scope)
    usage = scope.usage(raw.snapshot(), NOTHING, ())
    assert (scope.series.between(None, None, 1.0), scope.energy_j) == (((0.5, 77),), 1.5)
    assert (usage.neighbours_before_bytes, scope.highest_used_bytes) == (7, 900 * MB)
