"""Objects of the user's: a set that keeps none alive, classes that lie, frames, tracebacks and code objects."""

import gc
import inspect
import sys
import threading
import traceback

from ipygpulogger.runtime.objects import (
    WeakIdentitySet,
    bases_of,
    is_made_in_python,
    module_of,
    namespace_of,
    nested_code,
    walk_stack,
    walk_tb,
)


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


def test_what_a_metaclass_overrides_is_neither_believed_nor_run():
    """Bases, namespace, module and kind are the interpreter's own."""
    asked = []

    class Hostile(type):
        def __getattribute__(cls, name):
            asked.append(name)
            raise AttributeError(name)

    class Base(list):
        held = 5

    class Victim(Base, metaclass=Hostile):
        pass

    asked.clear()  # what making the class asked
    found = bases_of(Victim), namespace_of(Victim), module_of(Victim), is_made_in_python(Victim)
    assert asked == []
    assert found[0] == (Victim, Base, list, object)
    assert found[1]["__module__"] == found[2] == __name__
    assert found[3]
    assert not is_made_in_python(list)


def test_frames_tracebacks_and_code_are_those_of_pythons_own_modules():
    """A frame and its callers, a traceback's entries, the code within code; what is none of these has none."""

    def inner():
        return list(walk_stack(sys._getframe())), [info.frame for info in inspect.stack()]

    ours, pythons = inner()
    assert ours == pythons
    assert list(walk_stack(None)) == []
    try:
        inner(1)
    except TypeError as error:
        pythons = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        assert [link.tb_frame for link in walk_tb(error.__traceback__)] == pythons
    assert [list(walk_tb(one)) for one in (None, "text", 3)] == [[], [], []]
    code = compile("def a():\n  def b(): lambda: 0\nclass c:\n  def d(self): ...\n", "", "exec")
    assert [one.co_name for one in nested_code(code)] == ["<module>", "a", "b", "<lambda>", "c", "d"]
