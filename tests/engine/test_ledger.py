"""Who holds what on a device: a card whose truth is written down, asked through a driver that we made."""

from functools import partial
from types import SimpleNamespace

import pytest
from counters import Model
from hypothesis import example, given
from hypothesis import strategies as st
from memory import MB

from ipygpulogger.engine import ledger as ledgers
from ipygpulogger.engine.ledger import NOTHING, DeviceSnapshot, Ledger, allowance, uses
from ipygpulogger.records import DRIVER
from ipygpulogger.sources import Device, DeviceMemory, Observation, Reading
from ipygpulogger.sources.nvidia import driver

SIZES = st.integers(0, 1 << 40)
GPU = Device("cuda", 0, "a card", "GPU-1")
RAW = Device(DRIVER, 0, "a card", "GPU-1")  # no framework of this process uses it


class Card:
    """One device: what is on it, and the driver's answers. Sizes are arbitrary."""

    def __init__(self, *, total=10_000, drivers=100, mine=50, listed=0, unlisted=0):
        self.total, self.drivers = total, drivers
        self.mine, self.listed, self.unlisted = mine, listed, unlisted  # `mine` stands outside the allocator
        self.allocated = self.reserved = 0
        self.tells_memory = self.tells_processes = True
        self.tells_others = False  # what no process holds may be hidden processes
        self.failing = False
        self.meanwhile = []  # what another thread does while the driver answers, one a question
        self.asked = []

    @property
    def used(self):
        return self.mine + self.reserved + self.listed + self.unlisted

    def device_memory(self):
        return DeviceMemory(self.total, self.used, self.total - self.used - self.drivers)

    def memory(self, uuid):
        assert uuid == GPU.uuid
        self.asked.append("memory")
        return self.device_memory() if self.tells_memory else None

    def own_bytes(self, uuid):
        assert uuid == GPU.uuid
        self.asked.append("processes")
        found = self.mine + self.reserved if self.tells_processes else None
        if self.meanwhile:
            self.meanwhile.pop(0)()
        return found

    def others_bytes(self, _):
        return self.listed if self.tells_others else None

    def fails(self, what):
        return what == "processes" and self.failing

    def allocate(self, size):
        self.allocated += size
        self.reserved += size

    def observe(self):
        return Observation((Reading(self.allocated, None), Reading(self.reserved, None)), ())

    def snapshot(self):
        """The truth."""
        own = self.mine + self.reserved
        return DeviceSnapshot(self.allocated, self.reserved, self.device_memory(), own)

    def slow_questions(self):
        """How often the driver was asked for its processes since the last time."""
        count = self.asked.count("processes")
        self.asked.clear()
        return count


@pytest.fixture
def clock(monkeypatch):
    """Time stands still but for what a test adds."""
    now = SimpleNamespace(s=1000.0)
    monkeypatch.setattr(ledgers.clock, "monotonic_s", lambda: now.s)
    return now


@pytest.fixture
def contexts(monkeypatch):
    """What the CUDA driver library says of this process: a list of ordinals, or None where it is not loaded."""
    said = SimpleNamespace(ordinals=None, uuids={0: "GPU-0", 1: "GPU-1"})
    monkeypatch.setattr(driver, "contexts", lambda: said.ordinals)
    monkeypatch.setattr(driver, "absent", lambda: said.ordinals is None)
    monkeypatch.setattr(driver, "device", lambda ordinal: Device("cuda", ordinal, "", said.uuids[ordinal]))
    return said


# -- the arithmetic ---------------------------------------------------------------------------------

parts = st.fixed_dictionaries(
    {"mine": SIZES, "listed": SIZES, "unlisted": SIZES, "drivers": SIZES, "total": st.just(1 << 43)}
)


@given(parts, SIZES)
def test_the_parts_of_a_device(sizes, reserved):
    """What is used and not ours is the others'; the driver's own is none of it."""
    card = Card(**sizes)
    card.allocate(reserved)
    held = card.snapshot()
    assert held.other == card.mine + card.listed + card.unlisted
    assert (held.outside, held.driver) == (card.mine, card.drivers)
    assert held.neighbours == card.listed + card.unlisted


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_no_part_is_negative(used, own):
    """The list of processes lags behind the memory: what it tells too much is nobody's loss."""
    held = DeviceSnapshot(0, 0, DeviceMemory(5000, used, 5000 - used), own)
    assert (held.neighbours, held.driver) == (max(0, used - own), 0)


def test_what_is_not_told_is_unknown():
    """None, and never a figure made of what is known beside it."""
    memory = DeviceMemory(1000, 300, 600)
    nothing = DeviceSnapshot(None, None, None, None)
    assert (nothing.other, nothing.outside, nothing.neighbours, nothing.driver) == (None,) * 4
    undivided = DeviceSnapshot(100, 200, memory, None)
    assert (undivided.other, undivided.outside, undivided.neighbours) == (100, None, None)
    assert DeviceSnapshot(100, 200, None, 250).neighbours is None
    without_allocator = DeviceSnapshot(None, None, memory, 250)
    assert (without_allocator.other, without_allocator.outside) == (300, 250)


# -- what is asked, and when ------------------------------------------------------------------------

steps = st.lists(
    st.tuples(st.sampled_from(["allocate", "mine", "listed", "unlisted", "wait"]), st.integers(1, 500)),
    max_size=30,
)


@given(steps)
def test_the_slow_question_is_asked_where_something_outside_moved(program):
    """Every answer is the truth; what the allocator did is no reason to ask."""
    card, now = Card(), SimpleNamespace(s=0.0)
    ledger = Ledger(card)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledgers.clock, "monotonic_s", lambda: now.s)
        assert ledger.take(GPU, [card]) == card.snapshot()
        assert card.slow_questions() == 1
        for what, size in program:
            if what == "wait":
                now.s += 2 * ledgers.QUERY_AGAIN_S
            elif what == "allocate":
                card.allocate(size)
            else:
                setattr(card, what, getattr(card, what) + size)
            glance = ledger.take(GPU, [card], processes=False)
            known = what in ("allocate", "wait")
            assert glance == (card.snapshot() if known else card.snapshot()._replace(own=None))
            assert card.slow_questions() == 0
            assert ledger.take(GPU, [card]) == card.snapshot()
            assert card.slow_questions() == (what != "allocate")


def test_a_neighbours_loss_that_is_our_gain_is_found_after_five_seconds(clock):
    """The two cancel out on the whole device: until then it goes unseen, and then is asked again."""
    card = Card(listed=500)
    ledger = Ledger(card)
    ledger.take(GPU, [card])
    card.listed, card.mine = 400, 150
    clock.s += 5.0
    assert ledger.take(GPU, [card]).outside == 50
    clock.s += 0.5
    assert ledger.take(GPU, [card], processes=False).outside == 50  # no slow question, however long ago
    assert ledger.take(GPU, [card]).outside == 150
    assert card.slow_questions() == 2


def test_what_is_remembered(clock):
    """That a driver never tells, as in a container, until something moves; no failure; nothing after `close`."""
    card = Card()
    ledger = Ledger(card)
    card.tells_processes = False
    for _ in range(3):
        assert ledger.take(GPU, [card]).own is None
    assert card.slow_questions() == 1
    card.mine, card.failing = 50 + 1, True
    assert ledger.take(GPU, [card]).own is None
    card.failing, card.tells_processes = False, True
    assert ledger.take(GPU, [card]).own == 51
    ledger.close()
    assert ledger.take(GPU, [card], processes=False).own is None


@pytest.mark.parametrize(
    ("outside", "looks"), [("still", 1), ("moved", 2), ("asked long ago", 2), ("unknown", 2)]
)
def test_the_allocators_are_read_again_only_if_something_outside_them_may_have_moved(clock, outside, looks):
    """As much in use beside them as before shows that none moved while the driver answered."""
    card, read = Card(), []
    owner = SimpleNamespace(observe=lambda: (read.append(1), card.observe())[1])
    ledger = Ledger(card)
    if outside != "unknown":
        ledger.take(GPU, [owner])
    card.allocate(300)
    card.unlisted += 10 * (outside == "moved")
    clock.s += 6 * (outside == "asked long ago")
    read.clear()
    assert ledger.take(GPU, [owner]) == card.snapshot()
    assert len(read) == looks
    read.clear()
    assert ledger.take(GPU, [owner], [[300, 300]]) == card.snapshot()
    assert not read  # it was told what they hold


@pytest.mark.parametrize("moves", [1, 2, 3])
def test_what_another_thread_does_meanwhile(clock, moves):
    """It allocates while the driver answers: all of what is told is of one moment, and so is what is kept."""
    card = Card()
    card.meanwhile = [lambda: card.allocate(1000)] * moves
    ledger = Ledger(card)
    assert ledger.take(GPU, [card]) == card.snapshot()
    assert ledger.take(GPU, [card]) == card.snapshot()
    assert card.slow_questions() == moves + 1


def test_several_allocators_are_added_up(clock):
    """Two frameworks on one device; the first series is what is live, the last what was taken."""
    card = Card(mine=50)
    card.allocate(300)
    card.allocated = 100
    other = SimpleNamespace(
        observe=lambda: Observation((Reading(20, None), Reading(1, None), Reading(30, None)), ())
    )
    held = Ledger(card).take(GPU, [card, other])
    assert (held.allocated, held.reserved) == (120, 330)
    nobody = Ledger(card).take(GPU, [])
    assert (nobody.allocated, nobody.reserved, nobody.other) == (None, None, 350)


@given(st.integers(0, 200), st.integers(0, 300), st.booleans())
@example(63, 0, True)
@example(64, 0, True)
@example(9, 300, True)
def test_what_no_process_holds(unlisted_mb, listed_mb, tells_others):
    """The driver's own, if it is less than a context; all else may be of processes that the driver hides."""
    card = Card(mine=500 * MB, unlisted=unlisted_mb * MB, listed=listed_mb * MB, total=8000 * MB)
    card.tells_others = tells_others
    held = Ledger(card).take(GPU, [card])
    is_drivers = unlisted_mb < 64 and tells_others
    assert held.driver == card.drivers + is_drivers * card.unlisted
    assert held.neighbours == card.listed + (not is_drivers) * card.unlisted
    assert (held.outside, held.other) == (card.mine, card.used - card.reserved)


# -- whether a process is on a device at all --------------------------------------------------------


@given(st.integers(0, 60), st.integers(0, 60))
@example(1, 0)
@example(0, 0)
def test_a_list_that_leaves_this_process_out_is_none(mine, reserved):
    """With a context it holds more than its allocator took; a list that says otherwise speaks of others."""
    card = Card(mine=0)
    card.reserved = reserved
    card.own_bytes = lambda _: mine
    assert Ledger(card).take(GPU, [card]).own == (mine if mine > reserved else None)
    if not mine:  # nor can it hold nothing where its framework has no allocator that counts
        assert Ledger(card).take(GPU, []).own is None


# Each: where this process has a context, what it holds on device 1, and how often the driver is asked for that.
CONTEXTS = [
    (None, 0, 0),  # CUDA is not loaded: nothing here uses any device
    ((), 50, 1),  # loaded, without a primary context: a library may have made one of its own
    ((0,), 0, 0),  # on another device
    ((0, 1), 50, 1),
    ((1,), 50, 1),
]


@pytest.mark.parametrize(("ordinals", "own", "asked"), CONTEXTS)
def test_a_device_that_no_framework_uses(clock, contexts, ordinals, own, asked):
    """Whether this process can be on it at all, the CUDA library tells without a question to the driver."""
    contexts.ordinals = ordinals
    card = Card()
    held = Ledger(card).take(RAW, [])
    assert (held.own, card.slow_questions()) == (own, asked)
    assert uses(RAW) == (1 in ordinals if ordinals else None if ordinals == () else False)
    assert uses(GPU)  # of a framework: whatever the CUDA library says
    assert (NOTHING.own, NOTHING.outside) == (0, 0)  # what is known of a device that is not used


# -- what the sampler sees ----------------------------------------------------------------------------


def test_a_sample_of_a_device():
    """All of it, and the part outside the allocators where none of them can have moved meanwhile."""
    card, live, other, gone = Card(mine=50, listed=70), *(Model(size, count=2) for size in (100, 30, 0))
    card.reserved, gone.broken = 130, True
    sampled = partial(Ledger(card).sample, GPU.uuid)
    assert sampled({live, other}) == (250, 120)
    assert sampled(()) == (250, 250)
    assert sampled([live, Model(certified=False)]) == sampled([live, gone]) == (250, None)
    assert card.slow_questions() == 0
    memory = card.memory
    card.memory = lambda uuid: (live.move(20, 1), memory(uuid))[1]
    assert sampled([live, other]) == (250, None)
    card.tells_memory = False
    assert sampled([live]) is None


# -- where NVML tells nothing -----------------------------------------------------------------------


class Unwilling:
    """A stranger's counter of which any question may fail."""

    def __init__(self, error=None, memory=None, limit=None, pools=None):
        self.error, self.memory, self.limit, self.pools = error, memory, limit, pools

    def _answer(self, value):
        if self.error:
            raise self.error
        return value

    def device_memory(self):
        return self._answer(self.memory)

    def limit_bytes(self):
        return self._answer(self.limit)

    def pools_bytes(self):
        return self._answer(self.pools)


@pytest.mark.parametrize("uuid", ["GPU-1", None])
def test_a_device_that_nvml_does_not_know(uuid):
    """Then the first allocator that tells the whole device is believed, but no glance asks it: that may block."""
    card = Card()
    card.tells_memory = False
    card.allocate(10)
    memories = [DeviceMemory(1000, 500, 400), DeviceMemory(1, 1, 0)]
    counters = [Unwilling(OSError()), Unwilling(), *(Unwilling(memory=memory) for memory in memories)]
    device = GPU if uuid else Device("xpu", 0, "a card")
    trackers = [SimpleNamespace(counter=one, observe=Card().observe) for one in counters]
    trackers[0].observe = card.observe
    assert Ledger(card).take(device, trackers) == DeviceSnapshot(10, 10, memories[0], None)
    assert Ledger(card).take(device, trackers[:2]) == DeviceSnapshot(10, 10, None, None)
    assert Ledger(card).take(device, trackers, processes=False) == DeviceSnapshot(10, 10, None, None)
    assert card.slow_questions() == 0


def test_what_the_allocators_allow():
    """The lowest limit holds, pools add up; silence and failures count for nothing."""
    some = [Unwilling(limit=700, pools=3), Unwilling(limit=500, pools=0), Unwilling(), Unwilling(OSError())]
    assert allowance(some) == (500, 3)
    assert allowance([*some, Unwilling(pools=4)]) == (500, 7)
    assert allowance([Unwilling(pools=0, limit=0)]) == (0, 0)
    assert allowance([Unwilling()]) == allowance([]) == (None, None)
    with pytest.raises(KeyboardInterrupt):
        allowance([Unwilling(KeyboardInterrupt())])
