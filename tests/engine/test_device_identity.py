"""Which device is which, on a machine of which all is given: its cards, what CUDA shows, what frameworks say."""

from types import SimpleNamespace

import pytest
from counters import Model
from hypothesis import given
from hypothesis import strategies as st

from ipygpulogger.engine.devices import Devices
from ipygpulogger.records import DRIVER
from ipygpulogger.sources import Device, DeviceMemory
from ipygpulogger.sources.nvidia import driver

CARDS = [Device(DRIVER, number, "a card", f"GPU-{number}", 100 + number) for number in range(4)]


def memory_of(number):
    return DeviceMemory(100 + number, number, 100)


class Arena(Model):
    """A framework's allocator on the device with this index."""

    def __init__(self, index, uuid=None, memory=None):
        super().__init__()
        self.device, self.memory = Device("cuda", index, "", uuid), memory

    def device_memory(self):
        return self.memory


class World:
    """NVML, CUDA and two frameworks, and the `Devices` that asks them."""

    def __init__(self, monkeypatch, shown, cards=CARDS, *, initialised=True):
        said = [cards[number].uuid for number in shown]
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, shown)))
        monkeypatch.setattr(driver, "count", lambda: len(said) if initialised else None)
        monkeypatch.setattr(driver, "device", lambda i: Device("cuda", i, "", self.told(i)))
        self.by_cuda = dict(enumerate(said)) if initialised else {}
        self.arenas = {}  # by framework
        self.pinned, self.late = {}, set()
        known = {card.uuid: card for card in cards}
        nvml = SimpleNamespace(
            devices=lambda: tuple(cards),
            device=known.get,
            memory=lambda uuid: memory_of(int(uuid[-1])) if uuid in known else None,
        )
        frameworks = SimpleNamespace(
            hold=lambda _: self.late,
            counters=lambda _=None: [(SimpleNamespace(name=n), found) for n, found in self.arenas.items()],
            ask=lambda *_: [(SimpleNamespace(name=n), found) for n, found in self.pinned.items()],
        )
        self.devices = Devices(nvml, frameworks)

    def told(self, ordinal):
        return self.by_cuda.get(ordinal)

    def discover(self):
        return list(self.devices.discover([]))


@given(
    st.permutations(range(4)), st.integers(0, 4), st.booleans(), st.sampled_from(["none", "blind", "tells"])
)
def test_every_index_is_the_card_that_cuda_shows(order, count, initialised, framework):
    """Whatever is hidden, and whoever knows: a framework, CUDA's driver, or `CUDA_VISIBLE_DEVICES` alone."""
    shown = order[:count]
    with pytest.MonkeyPatch.context() as monkeypatch:
        world = World(monkeypatch, shown, initialised=initialised)
        if framework != "none":
            tells = framework == "tells"
            arenas = [Arena(i, CARDS[number].uuid if tells else None) for i, number in enumerate(shown)]
            world.arenas["torch"] = arenas[::-1]
            assert {device.uuid for device, _, _ in world.discover()} == {f"GPU-{one}" for one in shown}
            found = world.devices.by_device()
            assert [device.uuid for device, _ in found] == [f"GPU-{number}" for number in shown]
            assert [device.total_bytes for device, _ in found] == [100 + number for number in shown]
            assert [[one.counter for one in trackers] for _, trackers in found] == [[one] for one in arenas]
        for index in range(5):
            number = shown[index] if index < count else None
            assert world.devices.uuid(index) == (None if number is None else f"GPU-{number}")
            assert world.devices.memory(index) == (None if number is None else memory_of(number))
        assert [world.devices.is_hidden(card.uuid) for card in CARDS] == [n not in shown for n in range(4)]
        assert world.devices.all_hidden() is not bool(shown)


def test_a_tracker_for_each_allocator(monkeypatch):
    """Of two frameworks on one device, and of page-locked memory; each is new once."""
    world = World(monkeypatch, [2, 0])
    world.arenas, world.late = {"torch": [Arena(0), Arena(1)], "cupy": [Arena(1)]}, {"cupy"}
    world.pinned = {"torch": Model(), "cupy": None}
    found = world.discover()
    assert [(device and device.uuid, sure) for device, _, sure in found] == [
        ("GPU-2", True),
        ("GPU-0", True),
        ("GPU-0", False),  # its peaks may have been reset before anybody measured
        (None, True),
    ]
    trackers = [tracker for _, tracker, _ in found]
    devices = world.devices
    asked = [("torch", 0), ("torch", 1), ("cupy", 1), ("torch", None), ("cupy", 0), ("cupy", None)]
    assert [devices.tracker(*one) for one in asked] == [*trackers, None, None]
    assert [tracker.counter for tracker in trackers] == [
        *world.arenas["torch"],
        *world.arenas["cupy"],
        world.pinned["torch"],
    ]
    assert devices.counters(Device("cuda", 1, "")) == [world.arenas["torch"][1], *world.arenas["cupy"]]
    assert world.discover() == []


def test_what_is_known_of_a_device_later(monkeypatch):
    """One that nobody could name at first has its name as soon as CUDA tells it, and keeps it."""
    cards = [Device(DRIVER, 0, "one kind", "GPU-0", 100), Device(DRIVER, 1, "another", "GPU-1", 101)]
    world = World(monkeypatch, [0, 1], cards, initialised=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")  # the order of cards of two kinds is CUDA's secret
    world.arenas["torch"] = [Arena(0, memory=memory_of(7))]
    world.discover()
    assert (world.devices.uuid(0), world.devices.memory(0)) == (None, memory_of(7))
    world.arenas["torch"][0].device = Device("cuda", 0, "", "GPU-1")
    assert (world.devices.uuid(0), world.devices.memory(0)) == ("GPU-1", memory_of(1))
    world.arenas["torch"][0].device = Device("cuda", 0, "")
    assert world.devices.uuid(0) == "GPU-1"


@pytest.mark.parametrize("told", ["MIG-1", "GPU-9", None])
def test_a_slice_of_a_card(monkeypatch, told):
    """CUDA names the slice, older versions its card, or nobody: a slice is hidden where CUDA shows nothing."""
    slices = [Device(DRIVER, 0, "a slice", f"MIG-{number}", 50) for number in range(2)]
    world = World(monkeypatch, [0], slices)
    world.by_cuda = {0: told}
    assert [world.devices.is_hidden(one.uuid) for one in slices] == [False, False]
    world.arenas["torch"] = [Arena(0, "GPU-9")]  # as frameworks write it
    world.discover()
    assert world.devices.uuid(0) == (told if told == "MIG-1" else "GPU-9")
    monkeypatch.setattr(driver, "count", lambda: 0)
    assert world.devices.all_hidden()


def test_no_card(monkeypatch):
    """Nothing is hidden where there is nothing."""
    world = World(monkeypatch, [], [])
    assert not world.devices.all_hidden()
    assert world.devices.by_device() == []
    assert world.devices.memory(0) is None
