"""A model of one resettable peak, with us and without: the user reads the same."""

import types

from hypothesis import given
from hypothesis import strategies as st

from ipygpulogger.sources import Unavailable
from ipygpulogger.sources.frameworks import ResettableFramework


class Library(ResettableFramework):
    """One device's counts as a framework nests them, with its two functions wrapped."""

    READS, RESETS = ("read_all",), ("reset",)

    def __init__(self):
        self.current = self.peak = self.users_peak = 0
        self.broken = False
        self.place = types.SimpleNamespace(read_all=self._stats, reset=self._user_resets)
        self.own = (self.place.read_all, self.place.reset)
        self.announced = 0
        super().__init__()

    def counters(self):
        return []

    def _place(self):
        return self.place

    def _is_used(self):
        return True

    def _device_of(self):
        return 0

    def move(self, size):
        self.current = size
        self.peak, self.users_peak = max(self.peak, size), max(self.users_peak, size)

    def _stats(self):
        return {"bytes": {"all": {"current": self.current, "peak": self.peak}}, "retries": 3}

    def _user_resets(self):
        self.peak = self.users_peak = self.current

    def read(self, _index):
        if self.broken:
            raise Unavailable("broken")
        return self.wrappers.own("read_all")()

    def on_user_reset(self, device, reset):
        assert device == 0  # the engine runs it
        self.announced += 1
        reset()

    def we_reset(self):
        self.remember(0, self._stats())
        self.peak = self.current

    def user_reads(self):
        return self.place.read_all()["bytes"]["all"]["peak"]


steps = st.one_of(st.integers(0, 99), st.sampled_from(["hold", "release", "we reset", "user resets"]))


@given(st.lists(steps, max_size=30))
def test_the_users_peak_is_what_it_would_be_without_us(program):
    """Whoever resets, whenever measuring begins and ends: the user's peak is that since their own reset.

    The wrappers go once the library knows that peak itself, at a reading or reset by the user at the latest.
    """
    library, held = Library(), False
    for step in program:
        if isinstance(step, int):
            library.move(step)
        elif step == "hold":
            library.hold()
            held = True
        elif step == "release":
            library.release()
            held = False
        elif step == "we reset" and held:
            library.we_reset()
        elif step == "user resets":
            announced = library.announced + (library.place.reset is not library.own[1])
            library.place.reset()
            assert library.announced == announced
        assert library.user_reads() == library.users_peak
        if not held and library.peak == library.users_peak:
            assert (library.place.read_all, library.place.reset) == library.own
    assert library.place.read_all()["retries"] == 3


def test_a_device_that_cannot_be_read_keeps_no_wrapper():
    """Its peaks are lost to the user anyway."""
    library = Library()
    library.hold()
    library.move(50)
    library.we_reset()
    library.broken = True
    library.release()
    assert (library.place.read_all, library.place.reset) == library.own
