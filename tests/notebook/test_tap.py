"""A tapped method: callbacks are told of calls, the calls are as ever, and nothing is left."""

import pytest

from ipygpulogger.notebook.live_places import Tap, Taps, untapped


class Owner:
    """Has a method of its class, and one of its own."""

    def __init__(self):
        self.calls = []
        self.own = lambda *words: self.calls.append(("own", *words))

    def write(self, *words):
        self.calls.append(("write", *words))
        return len(words)


@pytest.mark.parametrize("name", ["write", "own"])
def test_callbacks_are_told_before_the_call(name):
    """In their order, each with the arguments; the call is made and returns what it does."""
    owner, first, second = Owner(), Taps(), Taps()
    expected = getattr(Owner(), name)("a")
    first.open(owner, name, lambda *words: owner.calls.append(("first", *words)))
    second.open(owner, name, lambda *words: owner.calls.append(("second", *words)))
    assert getattr(owner, name)("a") == expected
    assert owner.calls == [("first", "a"), ("second", "a"), (name, "a")]


@pytest.mark.parametrize("name", ["write", "own"])
def test_with_the_last_callback_gone_the_method_is_as_it_was(name):
    """In any order of closing, and however often."""
    owner, first, second = Owner(), Taps(), Taps()
    before = dict(vars(owner))
    first.open(owner, name, print)
    second.open(owner, name, repr)
    first.close()
    assert isinstance(vars(owner)[name], Tap)
    for taps in (second, second, first):
        taps.close()
    assert vars(owner) == before


def test_one_callback_withholds_a_call():
    """All are told of it, it is not made, and its caller gets None; the next one is made again."""
    owner, first, second, told = Owner(), Taps(), Taps(), []
    first.open(owner, "write", lambda *words: words == ("a",))
    second.open(owner, "write", lambda *words: told.append(words))
    assert owner.write("a") is None
    assert owner.write("b") == 1
    assert (owner.calls, told) == ([("write", "b")], [("a",), ("b",)])
    first.close(), second.close()


def test_the_method_itself_tells_nobody():
    """What we write ourselves is no output of the cell."""
    owner, taps, told = Owner(), Taps(), []
    taps.open(owner, "write", told.append)
    assert untapped(owner, "write")("a") == 1
    taps.close()
    assert untapped(owner, "write")("a") == 1
    assert told == []


def test_a_tap_that_others_replaced_is_left_alone():
    """Whoever put something in its place since keeps it."""
    owner, taps = Owner(), Taps()
    taps.open(owner, "write", print)
    owner.write = theirs = lambda *_: None
    taps.close()
    assert owner.write is theirs
