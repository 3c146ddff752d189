"""A set that keeps nothing alive: what is in it, after whatever happened to its members."""

import gc
import threading

from ipygpulogger.runtime.living import Living


class One:
    """Something that takes weak references."""


def test_it_holds_what_lives():
    """Members come once, and go by themselves with their last referrer, or when they are taken out."""
    living, one, other = Living(), One(), One()
    assert not living
    living.add(one)
    living.add(one)
    living.add(other)
    assert (len(living), set(living)) == (2, {one, other})
    assert one in living
    assert One() not in living
    del other
    assert list(living) == [one]
    living.discard(One())
    living.discard(one)
    living.discard(one)
    assert not living
    assert one not in living


def test_what_only_a_cycle_holds_goes_with_it():
    """As the garbage collector finds it; the set itself is no reason to keep it."""
    living, one = Living(), One()
    one.itself = one
    living.add(one)
    del one
    gc.collect()
    assert not living


def test_it_may_change_while_somebody_goes_through_it():
    """Going through it yields what was there when that began, whoever adds, drops or removes meanwhile."""
    living, kept = Living(), [One() for _ in range(100)]
    for one in kept:
        living.add(one)
    seen = iter(living)
    living.discard(kept[-1])
    living.add(fresh := One())
    assert set(seen) == set(kept)
    assert fresh in living
    stop, errors = threading.Event(), []

    def change():
        while not stop.is_set():
            living.add(one := One())
            living.discard(one)
            living.add(One())  # which dies at once

    changing = threading.Thread(target=change)
    changing.start()
    try:
        for _ in range(2000):
            assert set(kept[:-1]) <= set(living)
    except RuntimeError as error:
        errors.append(error)
    finally:
        stop.set()
        changing.join()
    assert not errors
