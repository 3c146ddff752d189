"""Functions of ours in place of a library's: on once, off when they may go, and nobody else's touched."""

import types

import pytest

from ipygpulogger.runtime.wrappers import Wrappers


def original(n):
    """Return the next number."""
    return n + 1


@pytest.fixture
def library():
    return types.SimpleNamespace(next_number=original)


def doubled(function):
    return lambda n: 2 * function(n)


MAKERS = {"next_number": doubled, "absent": doubled}


def test_on_and_off(library):
    """What exists is wrapped, once however often it is asked for, and the library's own comes back."""
    wrappers = Wrappers(lambda: library)
    assert not wrappers
    wrappers.put_on(MAKERS)
    ours = library.next_number
    wrappers.put_on(MAKERS)
    assert library.next_number is ours
    assert (ours(1), ours.__doc__) == (4, original.__doc__)
    assert wrappers.own("next_number") is original
    assert wrappers
    wrappers.take_off()
    assert library.next_number is original
    assert not wrappers
    assert not hasattr(library, "absent")


def test_a_library_that_is_not_there_yet(library):
    """Nothing is wrapped until the place exists; then the next call does it."""
    places = []
    wrappers = Wrappers(lambda: places[0] if places else None)
    wrappers.put_on(MAKERS)
    assert not wrappers
    places.append(library)
    wrappers.put_on(MAKERS)
    assert library.next_number(1) == 4


def test_somebody_elses_stays(library):
    """A function that was put over ours is left alone, and `own` finds what ours wraps."""
    wrappers = Wrappers(lambda: library)
    wrappers.put_on(MAKERS)
    ours = library.next_number
    theirs = library.next_number = lambda n: ours(n) + 0
    wrappers.take_off()
    assert library.next_number is theirs
    assert theirs(1) == 4


def test_those_of_a_forks_parent_are_not_wrapped_again(library):
    """What another Wrappers left in the place is recognised, and its original is wrapped instead."""
    Wrappers(lambda: library).put_on(MAKERS)
    wrappers = Wrappers(lambda: library)
    assert wrappers.own("next_number") is original
    wrappers.put_on(MAKERS)
    assert library.next_number(1) == 4
    wrappers.take_off()
    assert library.next_number is original
