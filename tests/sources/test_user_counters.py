"""A model of one resettable peak, with us and without: the user reads the same."""

import types

from hypothesis import given
from hypothesis import strategies as st

from ipygpulogger.sources import Unavailable
from ipygpulogger.sources.frameworks.user_counters import UserCounters


class Library:
    """One device's counts as a framework nests them."""

    def __init__(self):
        self.current = self.peak = self.users_peak = 0
        self.broken = False

    def move(self, size):
        self.current = size
        self.peak, self.users_peak = max(self.peak, size), max(self.users_peak, size)

    def read(self):
        return {"bytes": {"all": {"current": self.current, "peak": self.peak}}, "retries": 3}

    def reset(self):
        self.peak = self.current


class World:
    """The library with its two functions wrapped."""

    def __init__(self):
        self.library = Library()
        self.place = types.SimpleNamespace(read=self.library.read, reset=self._user_resets)
        self.own = (self.place.read, self.place.reset)
        self.users = UserCounters(self, lambda: self.place, self.stats, lambda: 0)
        self.announced = 0

    def _user_resets(self):
        self.library.reset()
        self.library.users_peak = self.library.current

    def stats(self, _index):
        if self.library.broken:
            raise Unavailable("broken")
        return self.users.wrappers.own("read")()

    def hold(self):
        makers = {"read": self.users.read_wrapper, "reset": self.users.reset_wrapper}
        self.users.wrappers.put_on(makers)

    def on_user_reset(self, device, reset):
        assert device == 0  # the engine runs it
        self.announced += 1
        reset()

    def we_reset(self):
        self.users.remember(0, self.library.read())
        self.library.reset()

    def user_reads(self):
        return self.place.read()["bytes"]["all"]["peak"]


steps = st.one_of(
    st.integers(0, 99), st.sampled_from(["hold", "release", "we reset", "user resets", "user reads"])
)


@given(st.lists(steps, max_size=30))
def test_the_users_peak_is_what_it_would_be_without_us(program):
    """Whoever resets, whenever measuring begins and ends: the user's peak is that since their own reset.

    The wrappers go once the library knows that peak itself, at a reading or reset by the user at the latest.
    """
    world, held = World(), False
    for step in program:
        if isinstance(step, int):
            world.library.move(step)
        elif step == "hold":
            world.hold()
            held = True
        elif step == "release":
            world.users.wrappers.take_off()
            held = False
        elif step == "we reset" and held:
            world.we_reset()
        elif step == "user resets":
            announced = world.announced + (world.place.reset is not world.own[1])
            world.place.reset()
            assert world.announced == announced
        assert world.user_reads() == world.library.users_peak
        if not held and world.library.peak == world.library.users_peak:
            assert (world.place.read, world.place.reset) == world.own
    assert world.place.read()["retries"] == 3


def test_a_device_that_cannot_be_read_keeps_no_wrapper():
    """Its peaks are lost to the user anyway."""
    world = World()
    world.hold()
    world.library.move(50)
    world.we_reset()
    world.library.broken = True
    world.users.wrappers.take_off()
    assert (world.place.read, world.place.reset) == world.own
