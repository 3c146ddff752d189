"""The arithmetic of a scope, on a machine of which every figure is given; nothing here is measured."""

# ruff: noqa: ARG002 - signatures as they are

import contextlib
import sys
import threading
import weakref
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipygpulogger.engine import children
from ipygpulogger.engine import scope as scopes
from ipygpulogger.engine.children import ChildPeaks
from ipygpulogger.engine.ledger import DeviceSnapshot
from ipygpulogger.engine.peaks import PeakTracker
from ipygpulogger.engine.scope import Scope
from ipygpulogger.records import DRIVER, ChildrenUsage, ChildUsage, DeviceHolding, Measurement, Metric, Peak
from ipygpulogger.sources import Counter, Device, DeviceMemory, Observation, Reading, Unavailable
from ipygpulogger.sources.contract import Notes
from ipygpulogger.sources.system.child_process import ChildProcess, Sharing
from ipygpulogger.sources.system.process import Ended

MB = 2**20
SIZES = st.integers(0, 1 << 40)
GPU = Device("cuda", 0, "a card", "GPU-1")
NONE_ENDED = Ended(0, 0)


class Number(Counter):
    """One number that a test moves."""

    peak_class, current_precision_bytes = "resettable", 0

    def __init__(self, size=0):
        self.now = self.highest = size
        self.ever, self.precision_bytes, self.broken = 1, 0, False

    def to(self, *sizes):
        for size in sizes:
            self.ever += 1
            self.now, self.highest = size, max(self.highest, size)

    def observe(self):
        if self.broken:
            raise Unavailable("the counter is broken")
        readings = Reading(self.now, self.highest), Reading(3 * self.now, 3 * self.highest)
        return Observation(readings, (self.ever,))

    def reset(self):
        self.highest = self.now

    def growth_bytes(self, earlier, later):
        return (0, 0)


class Kid(Number):
    """A child process: memory of its own, and what it shares if it is forked."""

    def __init__(self, pid, own=0, inherited=0, mapped=0, *, forked=False, walk_s=0.001):
        super().__init__(own + inherited + mapped)
        self.pid, self.name, self.parent, self.children = pid, "kid", None, ()
        self.own, self.mapped_bytes, self.forked = own, mapped, forked
        self.shared, self.high_bytes, self.inherited_bytes = inherited, self.now, None
        self.cost_s, self.shares, self.is_walked = walk_s, None, False
        self.card, self.left, self.faults = None, False, 0

    def is_seen_from_its_start(self):
        return True

    at_least_bytes = ChildProcess.at_least_bytes

    @property
    def current_bytes(self):
        return self.now

    @property
    def state(self):
        return self.now, self.ever

    def to(self, *sizes):
        """Its own memory becomes so much, one after the other."""
        for size in sizes:
            self.own, self.is_walked = size, False
            super().to(size + self.shared + self.mapped_bytes)
            self.high_bytes = max(self.high_bytes, self.now)

    def copied(self, size):
        """So much of what it inherited becomes its own: one of the two processes wrote to it."""
        size = min(size, self.shared)
        self.shared, self.own, self.is_walked = self.shared - size, self.own + size, False
        self.ever += 1

    def walk_s(self):
        return self.cost_s

    def walk(self):
        self.shares = Sharing(
            self.own, self.shared + self.mapped_bytes, self.shared, self.shared // 2, self.mapped_bytes
        )
        self.is_walked = True


class Fake:
    """A machine: what a scope asks of it, and what it said."""

    samples_ram = False

    def __init__(self, monkeypatch):
        self.s, self.ended, self.may_use_others = 1000.0, NONE_ENDED, True
        monkeypatch.setattr(scopes.clock, "monotonic_s", lambda: self.s)
        for module in (children, scopes):
            monkeypatch.setattr(module, "children_ended", lambda: self.ended)
        monkeypatch.setattr(scopes, "uses", self.uses)
        self.counter = Number(100 * MB)
        self.ram, self.exact, self.kids = PeakTracker(self.counter), [], []
        self.process = SimpleNamespace(
            has_children=lambda: self.kids != [],
            heap=lambda: None,
            exact_resident_bytes=lambda: self.exact.pop(0) if self.exact else None,
            counter=self.counter,
        )
        self.child_peaks, self.open = ChildPeaks(self), weakref.WeakSet()
        self.child_peaks._descendants = SimpleNamespace(visit=self.visit)
        self.found, self.raw = {}, []  # by device: trackers, what is held
        self.sampler = SimpleNamespace(
            start=lambda _: self.say("start", True), stop=lambda _: self.say("stop", None)
        )
        self.energy, self.own_imports = (
            [],
            SimpleNamespace(bytes=0, limits=(), importing=contextlib.nullcontext),
        )
        self.nvml = SimpleNamespace(
            devices=lambda: self.raw,
            energy_j=self.energy_j,
            utilization_percent=lambda uuid, since_s: since_s if uuid == GPU.uuid else 1 / 0,
        )
        self.said, self.notes = [], Notes()
        self.ledger = SimpleNamespace(take=self.snapshot)
        self.devices = SimpleNamespace(by_device=self.by_device, pinned={})

    def uses(self, device):
        return True if device.backend != DRIVER else None if self.may_use_others else False

    def visit(self, read):
        if self.kids is None:
            return None
        for kid in self.kids:
            read(kid)
        return list(self.kids)

    def energy_j(self, uuid):
        assert uuid == GPU.uuid
        found = self.energy.pop(0)
        if isinstance(found, Unavailable):
            raise found
        return found

    def say(self, what, answer):
        self.said.append(what)
        return answer

    def enter(self, scope):
        self.open.add(scope)
        self.said.append("enter")
        return self.raw

    def leave(self, scope):
        self.open.discard(scope)
        self.said.append("leave")

    def open_children(self):
        return [scope.with_children() for scope in self.open]

    def discover(self):
        self.said.append("discover")

    def by_device(self):
        return [
            (device, trackers) for device, (trackers, _) in self.found.items() if device.backend != DRIVER
        ]

    def snapshot(self, device, trackers, levels=None, *, processes=True):
        read = [[one.current_bytes for one in tracker.observe().readings] for tracker in trackers]
        assert levels is None or levels == read
        held = self.found[device][1]
        if isinstance(held, Unavailable):
            raise held
        return held

    def allowance(self, _):
        return (7, 8)

    def take_notes(self):
        return ("from the machine",)


@pytest.fixture
def on(monkeypatch):
    return Fake(monkeypatch)


def held(used=0, own=0, *, allocated=0):
    return DeviceSnapshot(allocated, allocated, DeviceMemory(1 << 40, used, (1 << 40) - used), own)


def run(on, step=lambda: None, seconds=1.0, **options):
    scope = Scope(on, **options).open()
    step()
    on.s += seconds
    scope.close()
    may_show = scope.may_show(MB)
    result = scope.result(Measurement, "x")
    assert may_show or max(usage.needed_bytes for usage in result.memories().values()) < MB
    return result


# -- general RAM ------------------------------------------------------------------------------------


def test_the_three_figures_of_ram_and_the_time(on):
    """Where it began, where it ends, the highest between; the clock stops before the peaks are read."""
    result = run(on, lambda: on.counter.to(500 * MB, 120 * MB), seconds=2.5)
    assert (result.gen.before_bytes, result.gen.after_bytes) == (100 * MB, 120 * MB)
    assert result.gen.peak == Peak(500 * MB, 500 * MB, "exact")
    assert (result.time_s, result.gen.precision_bytes, result.gen.timeline) == (2.5, 0, ())
    assert result.notes == ("from the machine",)
    assert on.said == ["enter", "discover", "stop", "leave"]


def test_an_end_above_the_peak_is_the_peak(on):
    """What came after the peaks were read, and before the second snapshot, is part of the scope's end."""
    scope = Scope(on).open()
    scope.close()
    on.counter.to(300 * MB)
    assert scope.result(Measurement, "x").gen.peak == Peak(300 * MB, 300 * MB, "exact")


@pytest.mark.parametrize(("exact", "expected"), [
    ([30, 70], (30, 70, 0)),
    ([None, 70], (100 * MB, 150 * MB, 22)),
    ([30, None], (100 * MB, 150 * MB, 22)),
])  # fmt: skip
def test_an_approximate_size_carries_twice_its_grain(on, exact, expected):
    """Where the exact size is known at both ends it stands; else the difference of two may be off by two grains."""
    on.exact, on.counter.current_precision_bytes = exact, 11
    gen = run(on, lambda: on.counter.to(150 * MB)).gen
    assert (gen.before_bytes, gen.after_bytes, gen.precision_bytes) == expected


def test_open_it_can_be_asked_again_and_again(on):
    """So far, with the time so far; it goes on, and its notes are told once."""
    scope = Scope(on).open()
    on.counter.to(300 * MB, 200 * MB)
    on.s += 3
    for _ in range(2):
        so_far = scope.result(Measurement, "x")
        assert (so_far.time_s, so_far.gen.peak.lo_bytes, so_far.gen.after_bytes) == (3, 300 * MB, 200 * MB)
    light = scope.so_far("x")
    assert (light.time_s, light.gen.peak.lo_bytes, light.gen.after_bytes) == (3, 300 * MB, 200 * MB)
    on.counter.to(900 * MB, 200 * MB)
    on.s += 1
    scope.close()
    on.s += 9
    scope.close()
    assert scope.time_s == 4
    assert scope.result(Measurement, "x").gen.peak.lo_bytes == 900 * MB


def test_the_course_of_ram(on):
    """Whoever watches draws it where no sampler does; before it is open and after it is closed nobody does."""
    scope = Scope(on)
    scope.sampled(1)
    scope.device_sampled("GPU-1", 1, 1)
    scope.open()
    on.s += 1
    scope.so_far("x")
    on.s += 1
    scope.sampled(77 * MB)
    on.s += 1
    scope.close()
    scope.sampled(5)
    gen = scope.result(Measurement, "x").gen
    assert gen.timeline == ((0.0, 100 * MB), (1.0, 100 * MB), (2.0, 77 * MB), (3.0, 100 * MB))


def test_what_the_result_may_show_is_known_before_it(on):
    """Little was needed for certain: neither is the peak unknown, nor may a device be in use."""

    def may_show(step=lambda: None, needed_bytes=MB, **options):
        scope = Scope(on, **options).open()
        step()
        scope.close()
        return scope.may_show(needed_bytes)

    assert not may_show(lambda: on.counter.to(101 * MB - 1, 100 * MB))
    assert may_show(lambda: on.counter.to(101 * MB, 100 * MB))
    assert may_show(needed_bytes=0)
    on.exact = [30]
    assert may_show()
    on.raw = [raw := Device(DRIVER, 0, "a card", "GPU-1", None)]
    on.found[raw], on.may_use_others = ([], held(9, 0)), False
    assert not may_show()
    assert may_show(all_devices=True)
    on.may_use_others = True
    assert may_show()
    on.may_use_others, on.found[raw] = False, ([], held(9, 3))
    assert may_show()
    on.raw, on.found = [], {GPU: ([PeakTracker(Number())], held())}
    assert may_show()
    on.found = {}
    assert may_show(lambda: setattr(on.counter, "broken", True))


# -- devices ----------------------------------------------------------------------------------------


def test_a_device_and_its_course(on):
    """Its allocator, what it holds beside, its samples; the sampler is there for it from begin to end."""
    counter = Number()
    on.found[GPU] = [PeakTracker(counter)], held(50, 50)
    scope = Scope(on).open()
    counter.to(300, 30)
    on.found[GPU] = on.found[GPU][0], held(180, 80, allocated=30)
    on.s += 2
    scope.device_sampled("GPU-1", 170, 50)
    scope.device_sampled("GPU-2", 999, 50)
    light = scope.so_far("x").gpus[0]
    assert (light.timeline, light.limit_bytes, light.pools_bytes) == ((), None, None)
    assert light.peak == Peak(350, 350, "exact")
    assert scope.held(after=True) == {}
    on.s += 1
    scope.close()
    scope.device_sampled("GPU-1", 9999, 50)
    (gpu,) = scope.result(Measurement, "x").gpus
    assert (gpu.before_bytes, gpu.after_bytes, gpu.peak) == (50, 80, Peak(350, 350, "exact"))
    assert gpu.timeline == ((0.0, 50), (2.0, 170), (3.0, 180))
    assert (gpu.limit_bytes, gpu.pools_bytes, gpu.neighbours_before_bytes) == (7, 8, 0)
    assert on.said[:2] == ["enter", "start"]
    assert on.said[-2:] == ["stop", "leave"]
    assert scope.held() == {"GPU-1": DeviceHolding("cuda:0", 0, 50)}
    assert scope.held(after=True) == {"GPU-1": DeviceHolding("cuda:0", 30, 50)}


def test_no_sampler_for_what_nobody_can_sample(on):
    """A device without a UUID, or none at all."""
    on.found[Device("xpu", 0, "a card")] = [PeakTracker(Number())], held()
    run(on)
    assert "start" not in on.said


def test_devices_of_frameworks_stand_first(on):
    """Then those that NVML alone knows, if this process is on them, or all were asked for."""
    raws = on.raw = [Device(DRIVER, i, "a card", f"GPU-{i}", 9) for i in range(4)]
    second = Device("cuda", 1, "a card", "GPU-3")
    on.found[second] = [PeakTracker(Number())], held()
    on.found[GPU] = [PeakTracker(Number())], held()
    for raw, before in zip(raws, (held(5, 0), held(5, 0), held(5, 5), held(5, 5)), strict=True):
        on.found[raw] = [], before
    assert [(gpu.backend, gpu.index) for gpu in run(on).gpus] == [("cuda", 0), ("cuda", 1), (DRIVER, 2)]
    every = run(on, all_devices=True).gpus
    assert [(gpu.backend, gpu.index) for gpu in every] == [("cuda", 0), ("cuda", 1), (DRIVER, 0), (DRIVER, 2)]
    assert every[2].total_bytes == 1 << 40


def test_slices_of_one_card_stay_apart(on):
    """They share its index."""
    on.raw = [Device(DRIVER, 0, "a slice", uuid, 9) for uuid in ("MIG-a", "MIG-b")]
    for one in on.raw:
        on.found[one] = [], held(5, 5)
    assert [gpu.uuid for gpu in run(on).gpus] == ["MIG-a", "MIG-b"]


@pytest.mark.parametrize(
    ("allocated", "own"), [(None, None), (0, None), (4, None), (None, 0), (None, 9), (4, 9)]
)
def test_what_is_held_where_anything_tells_it(on, allocated, own):
    """By the allocator or by the driver; where neither tells, it is left out."""
    memory = DeviceMemory(1 << 40, 9, (1 << 40) - 9)
    on.found[GPU] = [PeakTracker(Number())], DeviceSnapshot(allocated, allocated, memory, own)
    scope = Scope(on).open()
    outside = None if own is None else own - (allocated or 0)
    known = {"GPU-1": DeviceHolding("cuda:0", allocated or 0, outside)}
    assert scope.held() == ({} if allocated is own is None else known)
    scope.close()
    card = Device("xpu", 3, "a card")  # without a UUID
    on.found = {card: ([PeakTracker(Number())], held(9, None, allocated=4))}
    scope = Scope(on).open()
    assert scope.held() == {"xpu:3": DeviceHolding("xpu:3", 4, None)}
    scope.close()


def test_on_a_raw_device_at_either_end(on):
    """This process held something there when the scope began or ends; where that is unknown, it has a context."""
    on.raw = [raw := Device(DRIVER, 0, "a card", "GPU-1", None)]

    def touched(before, after, *, context=False):
        scopes.uses = lambda _: context or None
        on.found[raw] = [], before
        return bool(run(on, lambda: on.found.update({raw: ([], after)})).gpus)

    unknown = held(5, 0)._replace(own=None)
    assert not touched(held(5, 0), held(5, 0), context=True)
    assert touched(held(5, 3), held(5, 0))
    assert touched(held(5, 0), held(5, 3))
    assert touched(held(5, 0), unknown, context=True)
    assert not touched(held(5, 0), unknown)
    assert touched(held(5, 3), unknown)


def test_a_device_that_this_process_cannot_use_is_asked_once(on):
    """As the scope begins, and not again at its end, unless this process held something there or all are shown."""
    on.raw = [raw := Device(DRIVER, 0, "a card", "GPU-1", None)]
    asked, snapshot = [], on.snapshot
    on.ledger.take = lambda *args, **how: (asked.append(1), snapshot(*args, **how))[1]

    def times(own, **options):
        on.found[raw] = [], held(9, own)
        asked.clear()
        run(on, **options)
        return len(asked)

    assert times(0) == 2
    on.may_use_others = False
    assert times(0) == 1
    assert times(3) == times(0, all_devices=True) == 2
    on.found[raw] = [], held(9, 0)
    scope = Scope(on).open()
    scope.close()
    assert scope.result(Measurement, "x").gpus == ()
    held_after = scope.held(after=True)  # what is used from here on, is used anew
    assert held_after == {"GPU-1": DeviceHolding("nvml:0", 0, 0)}


def test_a_device_that_cannot_be_read(on):
    """At the beginning it is left out, at the end it is noted, and while somebody watches neither."""
    broken = Unavailable("the device is lost")
    on.found[GPU] = [PeakTracker(Number())], broken
    result = run(on)
    assert (result.gpus, result.notes) == ((), ("the device is lost", "from the machine"))
    on.notes = Notes()
    on.found[GPU] = [PeakTracker(Number())], held()
    on.found[Device("cuda", 1, "a card", "GPU-2")] = [PeakTracker(Number())], held()
    scope = Scope(on).open()
    on.found[GPU] = [], broken
    assert [gpu.index for gpu in scope.so_far("x").gpus] == [1]
    assert scope.notes == ()
    scope.close()
    result = scope.result(Measurement, "x")
    assert [gpu.index for gpu in result.gpus] == [1]
    assert result.notes == ("the device is lost", "from the machine")


def test_an_allocator_that_cannot_be_opened(on):
    """Then the driver's figures are all there is, and it is noted once; so it is where it fails at the end."""
    counter = Number()
    counter.broken = True
    on.found[GPU] = [PeakTracker(counter)], held(50, 50)
    result = run(on)
    assert result.notes[0] == "the counter is broken"
    assert result.gpus[0].peak.quality == "sampled"
    on.notes = Notes()
    counter.broken = False
    on.found[GPU] = [PeakTracker(counter)], held(50, 50, allocated=20)
    result = run(on, lambda: setattr(counter, "broken", True))
    assert result.notes[0] == "the counter is broken"
    assert (result.gpus[0].before_bytes, result.gpus[0].peak) == (50, Peak(50, None, "sampled"))


@pytest.mark.parametrize("own", [0, 40])
def test_a_framework_that_comes_later(on, own):
    """What NVML saw of that device until then is its own: what this process held there, the neighbours, the course."""
    on.raw = [Device(DRIVER, 5, "a card", "GPU-1", None)]
    on.found[on.raw[0]] = [], held(70, own)
    scope = Scope(on).open()
    on.s += 1
    scope.device_sampled("GPU-1", 75, 75)
    counter, late = Number(10), Number(1)
    scope.adopt(PeakTracker(counter), GPU, sure=True)
    scope.adopt(PeakTracker(late), GPU, sure=False)
    counter.to(200, 20)
    on.found = {GPU: ([], held(70 + 21, 40 + 21, allocated=21))}
    on.s += 1
    scope.close()
    (gpu,) = scope.result(Measurement, "x").gpus
    assert (gpu.backend, gpu.index, gpu.neighbours_before_bytes) == ("cuda", 0, 70 - own)
    assert (gpu.before_bytes, gpu.after_bytes, gpu.context_bytes) == (40, 61, 0 if own else 40)
    assert gpu.peak == Peak(240, None, "sampled")  # nobody is sure of the second
    assert (1.0, 75) in gpu.timeline


def test_a_stranger_device_is_not_inherited(on):
    """Another card under the same index, or one without a UUID, has nothing to do with it."""
    on.raw = [Device(DRIVER, 0, "a card", uuid, None) for uuid in ("GPU-2", None)]
    on.found.update({one: ([], held(70, 40)) for one in on.raw})
    scope = Scope(on).open()
    scope.adopt(PeakTracker(Number(10)), Device("xpu", 0, "a card"), sure=True)
    scope.adopt(PeakTracker(Number(10)), GPU, sure=True)
    assert len(scope.device_scopes()) == 4
    assert [one.before is None for one in scope.device_scopes()] == [False, False, True, True]
    scope.close()


# -- energy and utilization -------------------------------------------------------------------------


NO_COUNTER, SHORT = Unavailable("no counter"), "too short for the driver's counter"


@pytest.mark.parametrize(
    ("energies", "seconds", "value", "reason"),
    [
        ([100.0, 130.0], 0.1, 30.0, ""),
        ([100.0, 130.0], 0.099, None, SHORT),
        ([100.0, 100.0], 5.0, None, SHORT),
        ([NO_COUNTER], 1.0, None, "no counter"),
        ([1.0, NO_COUNTER], 1.0, None, "no counter"),
    ],
)
def test_metrics_of_a_device(on, energies, seconds, value, reason):
    """The difference of the driver's counter, or why there is none; utilization since the scope began, if asked for."""
    on.found[GPU] = [PeakTracker(Number())], held()
    on.energy, on.s = energies, 0.1  # so that the difference is just a tenth
    result = run(on, seconds=seconds, metrics=("utilization", "energy"))
    began = result.started_at.timestamp()
    energy = Metric("energy", value, "J", reason)
    assert result.gpus[0].metrics == (energy, Metric("utilization", began, "%"))
    assert run(on).gpus[0].metrics == ()


# -- page-locked memory -----------------------------------------------------------------------------


def test_pinned_memory_of_all_frameworks(on):
    """Added up; where none was ever used there is no figure; what comes after the peaks were read is its end."""
    assert run(on).pinned is None
    counters = [Number(), Number()]
    on.devices.pinned.update(enumerate(map(PeakTracker, counters)))
    assert run(on).pinned is None
    pinned = run(on, lambda: (counters[0].to(90, 30), counters[1].to(5))).pinned
    assert (pinned.before_bytes, pinned.after_bytes, pinned.peak) == (0, 35, Peak(90, 95, "bounded"))
    pinned = run(on, lambda: counters[0].to(0)).pinned
    assert (pinned.before_bytes, pinned.after_bytes, pinned.peak) == (35, 5, Peak(35, 35, "exact"))
    scope = Scope(on).open()
    scope.close()
    counters[0].to(900, 35)
    assert scope.result(Measurement, "x").pinned.peak == Peak(40, 40, "exact")


def test_pinned_memory_that_cannot_be_read(on):
    """It is noted, and has no figure from then on."""
    for fails in ("before", "within", "after"):
        counter, on.notes = Number(5), Notes()
        on.devices.pinned[0] = PeakTracker(counter)
        counter.broken = fails == "before"
        scope = Scope(on).open()
        counter.broken = fails != "after"
        scope.close()
        counter.broken = True
        result = scope.result(Measurement, "x")
        assert (result.pinned, result.notes) == (None, ("the counter is broken", "from the machine"))


def test_pinned_memory_first_used_within_the_scope(on):
    """It held nothing before; where it cannot be read it is noted, as a device that cannot."""
    counter = Number(50)
    scope = Scope(on).open()
    scope.adopt(PeakTracker(counter), None, sure=True)
    counter.to(80, 60)
    scope.close()
    pinned = scope.result(Measurement, "x").pinned
    assert (pinned.before_bytes, pinned.after_bytes, pinned.peak) == (0, 60, Peak(80, 80, "exact"))
    counter.broken = True
    for device in (None, GPU):
        on.notes, scope = Notes(), Scope(on).open()
        scope.adopt(PeakTracker(counter), device, sure=True)
        assert scope.notes == ("the counter is broken",)
        scope.close()


# -- children ---------------------------------------------------------------------------------------


def of_children(on, before, after, ended=NONE_ENDED, step=lambda: None, **options):
    on.kids = before

    def work():
        step()
        on.kids, on.ended = after, ended

    return run(on, work, **options).children


def test_children_that_stay(on):
    """Both ends added up; each peak is exact, and the sum of them bounds what they had at once."""
    first, second = Kid(1, 10), Kid(2, 5)
    first.to(20, 10)  # before the scope: none of its peak
    found = of_children(
        on, [first, second], [first, second], step=lambda: (first.to(30, 12), second.to(7, 6))
    )
    assert (found.before_bytes, found.after_bytes, found.count, found.ended) == (15, 18, 2, 0)
    assert found.peak == Peak(30, 37, "bounded")
    assert found.largest == (
        ChildUsage(10, 12, Peak(30, 30, "exact"), "kid", 1),
        ChildUsage(5, 6, Peak(7, 7, "exact"), "kid", 2),
    )
    still = of_children(on, [first, second], [first, second])
    assert still.peak == Peak(18, 18, "exact")
    one = of_children(on, [first, second], [first, second], step=lambda: first.to(50, 1))
    assert one.peak == Peak(50, 56, "bounded")  # the other one may have had more or less meanwhile


def test_without_resets_an_older_mark_bounds(on):
    """`reset_peaks=False`: the mark is the highest since long ago."""
    kid = Kid(1, 10)
    kid.to(90, 10)
    assert of_children(on, [kid], [kid], reset_peaks=False).peak == Peak(10, 90, "bounded")
    assert kid.highest == 90


def test_a_child_born_within_the_scope(on):
    """Its whole peak is the scope's, exact where it is the only child."""
    old, born = Kid(1, 5), Kid(2)
    born.to(80, 10)
    usage = of_children(on, [old], [old, born])
    assert (usage.before_bytes, usage.after_bytes, usage.count) == (5, 15, 2)
    assert usage.peak == Peak(80, 85, "bounded")
    assert usage.largest[0] == ChildUsage(0, 10, Peak(80, 80, "exact"), "kid", 2)
    assert of_children(on, [], [born]).peak == Peak(80, 80, "exact")


def test_children_that_ended(on):
    """What they had last is known, and their peak is at least what was seen."""
    one = of_children(on, [Kid(1, 70)], [])
    assert one == ChildrenUsage(
        70, 0, Peak(70, None, "sampled"), count=0, ended=1,
        largest=(ChildUsage(70, 0, Peak(70, None, "sampled"), "kid", 1, ended=True),),
    )  # fmt: skip
    for ended in (Ended(1, 0), Ended(0, 1)):  # one that nobody saw mapped pages, or was forked
        on.ended = NONE_ENDED
        found = of_children(on, [], [Kid(2, 80)], ended)
        assert (found.peak, found.ended) == (Peak(80, None, "sampled"), 1)
    on.ended = NONE_ENDED
    assert of_children(on, [], [], Ended(children._NOTABLE_FAULTS - 1, 0)) is None
    on.ended = NONE_ENDED
    told = of_children(on, [], [], Ended(children._NOTABLE_FAULTS, 2))
    assert told == ChildrenUsage(0, 0, Peak(0, None, "sampled"), count=0, ended=1)


def test_a_child_seen_by_an_inner_scope_and_gone(on):
    """It is counted, and its peak is at least what that scope saw."""
    outer = Scope(on).open()
    kid = Kid(1, 10)
    kid.to(300, 20)
    on.kids = [kid]
    inner = run(on, lambda: kid.to(90, 30))
    on.kids = []
    outer.close()
    assert inner.children.largest == (ChildUsage(20, 30, Peak(90, 90, "exact"), "kid", 1),)
    found = outer.result(Measurement, "x").children
    assert (found.count, found.ended, found.peak) == (0, 1, Peak(300, None, "sampled"))


def test_a_forked_child_counts_without_what_it_shares(on):
    """Walked at both ends: exact. What was copied in between leaves a bound; what only its parent knows too."""
    kid = Kid(1, 10, inherited=100, mapped=5, forked=True)
    found = of_children(on, [kid], [kid], step=lambda: kid.to(60, 20))
    assert found.largest == (ChildUsage(10, 20, Peak(60, 60, "exact"), "kid", 1),)
    assert (found.shared_bytes, found.at_least) == (50, False)
    found = of_children(on, [kid], [kid], step=lambda: (kid.to(60, 20), kid.copied(30)))
    assert found.peak == Peak(60, 90, "bounded")
    born = Kid(2, 10, inherited=100, mapped=5, forked=True)
    born.inherited_bytes = 120
    born.to(90, 40)
    assert of_children(on, [], [born]).peak == Peak(70, 95, "bounded")


def test_forked_children_too_large_to_look_through(on):
    """At either end: all is at least, above what they can have inherited, and the mark bounds it."""
    usual, large = Kid(1, 10), Kid(2, 300 * MB, inherited=50 * MB, forked=True, walk_s=1)
    found = of_children(on, [usual, large], [usual, large])
    assert found.at_least
    assert found.shared_bytes is None
    assert found.largest[0].peak == Peak(250 * MB, 350 * MB, "bounded")
    on.counter.broken = True
    kid = Kid(3, 300 * MB, inherited=50 * MB, forked=True, walk_s=1)
    on.kids = [kid]
    found = children.Children(on, on.ended)
    found.begin(reset=True)
    assert found.usage(1).largest[0].peak == Peak(0, 350 * MB, "bounded")


def test_how_long_the_pages_of_forks_may_be_walked(on, monkeypatch):
    """5 ms as the scope opens; at its end a twentieth of its time, at least as long and at most 50 ms."""
    limits = []
    monkeypatch.setattr(ChildPeaks, "walk", lambda _, __, limit_s: limits.append(limit_s))
    for seconds in (0, 0.4, 5):
        on.kids = [Kid(1, forked=True)]
        run(on, seconds=seconds)
    assert limits == [0.005, 0.005, 0.005, pytest.approx(0.02), 0.005, 0.05]


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["to", "to", "to", "copied", "open", "close"]), st.integers(0, 2), SIZES),
        max_size=20,
    ),
    forked=st.lists(st.booleans(), min_size=3, max_size=3),
    walked=st.booleans(),
)
def test_any_program_lies_within_its_bounds(steps, forked, walked):
    """Children that move in any way under nested and overlapping scopes: every peak, and that of their sum."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(children, "WALK_S", 10)
        on = Fake(patch)
        on.kids = [
            Kid(i, own=i, inherited=7 * i * MB * one, forked=one, walk_s=0.0001 if walked else 1)
            for i, one in enumerate(forked)
        ]
        on.counter.to(100 * MB)
        scopes_open = []

        def note():
            own = [kid.own for kid in on.kids]
            for _, highest in scopes_open:
                highest[:] = [*map(max, highest, [*own, sum(own)])]

        def check(scope, highest):
            scope.close()
            found = scope.result(Measurement, "x").children
            assert found.peak.lo_bytes <= highest[-1]
            assert highest[-1] <= found.peak.hi_bytes
            for kid, most in zip(on.kids, highest, strict=False):
                peak = next(one.peak for one in found.largest if one.pid == kid.pid)
                assert peak.lo_bytes <= most <= peak.hi_bytes
                assert kid.forked or peak.quality == "exact"

        for what, which, size in steps:
            if what == "open":
                scopes_open.append((Scope(on).open(), [0] * 4))
            elif what == "close" and scopes_open:
                check(*scopes_open.pop(which % len(scopes_open)))
            elif what in ("to", "copied"):
                getattr(on.kids[which], what)(size)
            note()
        for one in scopes_open:
            check(*one)


@pytest.mark.parametrize("kids", [None, "listed no more"])
def test_children_that_cannot_be_listed(on, kids):
    """No figure, whenever that is."""
    on.kids = None if kids is None else [Kid(1, 5)]
    assert run(on, lambda: setattr(on, "kids", None if kids else [Kid(1, 5)])).children is None


# -- its end ----------------------------------------------------------------------------------------


def test_a_counter_that_is_lost_at_the_end(on):
    """It is noted, everything else is told, and nobody holds the machine."""
    scope = Scope(on).open()
    on.counter.broken = True
    scope.close()
    assert scope.notes == ("the counter is broken",)
    assert on.said[-2:] == ["stop", "leave"]
    on.counter.broken = False
    assert scope.result(Measurement, "x").gen.peak.quality == "sampled"


def test_an_opening_that_fails_is_undone(on):
    """Nobody holds the machine, and the error goes on."""
    on.counter.broken = True
    scope = Scope(on)
    with pytest.raises(Unavailable):
        scope.open()
    assert on.said[-1] == "leave"
    with pytest.raises(AssertionError):
        Scope(on).result(Measurement, "x")
    with pytest.raises(AssertionError):
        Scope(on).so_far("x")


def test_who_else_resets_the_counter_is_noted(on):
    """A foreign reset of general RAM, once."""
    scope = Scope(on).open()
    on.counter.to(500 * MB, 100 * MB)
    scope.so_far("x")
    on.counter.highest = 100 * MB
    scope.close()
    assert len(scope.notes) == 1
    assert "Something else resets" in scope.notes[0]


def test_a_forgotten_scope_is_closed(on, monkeypatch):
    """When nobody has it any more; and where the machine is in pieces, nobody hears of it."""
    scope = Scope(on).open()
    del scope
    assert on.said[-1] == "leave"
    heard = []
    monkeypatch.setattr(sys, "unraisablehook", heard.append)
    scope = Scope(on).open()
    on.leave = None
    del scope
    assert not heard


def test_an_end_that_was_interrupted_is_done_again(on):
    """By whoever closes it next, on any thread; and nobody waits for a thread that is just about it."""
    scope = Scope(on).open()
    on.s += 2
    left, on.leave = on.leave, lambda _: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        scope.close()
    assert "leave" not in on.said
    on.s += 5

    def leave(_):
        on.leave = left
        meanwhile = threading.Thread(target=scope.close)
        meanwhile.start()
        meanwhile.join(10)
        assert not meanwhile.is_alive()
        left(scope)

    on.leave = leave
    scope.close()
    assert on.said.count("leave") == 2
    scope.close()
    assert (on.said.count("leave"), scope.time_s) == (2, 2)


def test_children_that_needed_much_are_named_first():
    """By what they needed; then the others, which needed less than 5 MB, by what they have."""
    sizes = [(55, 55, 55), (2, 3, 3), (0, 148, 150), (10, 10, 40)]  # MB before, after and at most
    found = [
        ChildUsage(before * MB, after * MB, Peak(most * MB, most * MB, "exact"), "python", pid)
        for pid, (before, after, most) in enumerate(sizes)
    ]
    assert [child.pid for child in children.largest_first(found)] == [2, 3, 0, 1]
