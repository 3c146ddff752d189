"""What the user has not imported is asked nothing, and what fails is asked no further."""

import sys
from types import ModuleType

import pytest
from counters import Model

from ipygpulogger.engine import frameworks
from ipygpulogger.engine.frameworks import Frameworks
from ipygpulogger.engine.machine import Machine
from ipygpulogger.engine.sampler import Measuring
from ipygpulogger.engine.scope import Scope
from ipygpulogger.records import Measurement
from ipygpulogger.sources import Device, DeviceCounter, Framework
from ipygpulogger.sources.contract import Notes


def asked(name, answer=None):
    def method(spy):
        spy.asked.append(name)
        return answer

    return method


class Spy(Framework):
    """Writes down what it is asked."""

    def __init__(self, name="spied"):
        self.name, self.asked, self.late = name, [], None

    counters, pinned, current_index = asked("counters", []), asked("pinned"), asked("current_index")
    load, preload, settle, release = map(asked, ("load", "preload", "settle", "release"))
    diagnose, after_fork_in_child = asked("diagnose"), asked("after_fork_in_child")

    def hold(self):
        self.asked.append("hold")
        return self.late


def put(monkeypatch, *names):
    for name in names:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))


def measure(on):
    """All that a cell's hooks ask."""
    on.settling.preload()
    on.settling.settle(gc_collect=False, clear_cache=True)
    scope = Scope(on).open()
    on.sample()
    scope.close()
    on.frameworks.current_index()
    on.devices.memory(0)
    scope.result(Measurement, "x")


def test_what_is_not_imported_is_asked_nothing(monkeypatch):
    """Not at a cell, nor by the sampler; once its module is there, everything."""
    spy = Spy()
    on = Machine(frameworks=[spy])
    measure(on)
    assert spy.asked == []
    put(monkeypatch, "spied")
    measure(on)
    assert set(spy.asked) == {"preload", "settle", "hold", "counters", "pinned", "current_index", "release"}
    on.close()


def test_a_process_that_only_diagnoses_asks_all():
    """There they are imported on purpose, and each says why it is not there."""
    spy = Spy()
    on = Machine(frameworks=[spy])
    on.load()
    on.diagnose()
    assert spy.asked == ["load", "diagnose"]
    on.after_fork_in_child()
    assert spy.asked[2:] == ["after_fork_in_child"]


def test_ours_come_first_in_their_order(monkeypatch):
    """The first that knows a current device is believed, so the order is not that of `sys.modules`."""
    first, second, third = Spy("first"), Spy("second"), Spy("third")
    frameworks = Frameworks(Notes(), [first, second, third])
    put(monkeypatch, "third", "first")
    assert list(frameworks) == frameworks.imported() == [first, third]
    assert frameworks.known() == (first, second, third)


def test_entry_points_are_read_once_and_a_failure_is_said(monkeypatch):
    """A machine made anew, as in a fork's child, reads no file again; without descriptors the next one does."""

    def refuse(**_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(frameworks, "_may_be_offered", lambda: True)
    frameworks._offered.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr("importlib.metadata.entry_points", refuse)
        notes = Notes()
        Frameworks(notes)
        (said,) = notes.take()
    assert said.startswith("sources of other distributions cannot be looked for: OSError")
    for entry_points in (lambda **_: (), refuse):
        monkeypatch.setattr("importlib.metadata.entry_points", entry_points)
        Frameworks(notes)
    assert notes.take() == ()
    frameworks._offered.cache_clear()


def test_what_is_first_used_is_told_to_all_that_is_open(monkeypatch):
    """Once each: the device and its counter, and whether a reset may have been unseen."""

    class Arena(Model, DeviceCounter):
        device = Device("xpu", 0, "a card")

    class Watching(Measuring):
        def __init__(self):
            self.found = []

        def adopt(self, tracker, device, *, sure):
            self.found.append((tracker.counter, device, sure))

    spy, arena, open_ = Spy(), Arena(), [Watching(), Watching()]
    spy.counters, spy.late = lambda: [arena], True
    on = Machine(frameworks=[spy])
    for one in open_:
        on.scopes.add(one)
    on.discover()
    put(monkeypatch, "spied")
    on.discover()
    on.discover()
    assert [one.found for one in open_] == [[(arena, arena.device, False)]] * 2


def test_two_of_one_name_are_both_asked(monkeypatch):
    """Another distribution may know of arrays of torch's that we do not."""
    one, other = Spy(), Spy()
    put(monkeypatch, "spied")
    assert Frameworks(Notes(), [one, other]).imported() == [one, other]


def test_what_came_late_is_told_by_name(monkeypatch):
    """It was in use before anybody measured."""
    one, late = Spy("one"), Spy("late")
    late.late = True
    put(monkeypatch, "one", "late")
    assert Frameworks(Notes(), [one, late]).hold() == {"late"}


@pytest.mark.parametrize(
    ("indices", "current"), [((None, 3, 5), 3), ((0, 1), 0), ((None, None), None), ((), None)]
)
def test_the_first_that_has_a_current_device_is_believed(monkeypatch, indices, current):
    """One that uses none is passed over; 0 is a device."""
    spies = [Spy(f"spied{number}") for number in range(len(indices))]
    put(monkeypatch, *(spy.name for spy in spies))
    for spy, index in zip(spies, indices, strict=True):
        spy.current_index = lambda index=index: index
    assert Frameworks(Notes(), spies).current_index() == current


@pytest.mark.parametrize(("answers", "can"), [((False, True), True), ((False, False), False), ((), False)])
def test_one_that_can_preload_is_enough(monkeypatch, answers, can):
    """Of several that are imported."""
    spies = [Spy(f"spied{number}") for number in range(len(answers))]
    put(monkeypatch, *(spy.name for spy in spies))
    for spy, answer in zip(spies, answers, strict=True):
        spy.can_preload = lambda answer=answer: answer
    assert Frameworks(Notes(), spies).can_preload() is can


def test_ours_comes_before_anothers_of_the_same_name(monkeypatch):
    """Whichever was there first: ours is only loaded when its framework is imported."""

    class Ours(Spy):
        pass

    theirs = Spy("torch")
    put(monkeypatch, "torch")
    monkeypatch.setattr(Frameworks, "_of_others", lambda _: iter([theirs]))
    monkeypatch.setattr(frameworks, "_adapter", lambda _: lambda: Ours("torch"))
    found = Frameworks(Notes())
    assert found.loaded == (theirs,)
    assert [type(one) for one in found.imported()] == [Ours, Spy]


def test_what_was_held_is_released_though_its_module_is_gone(monkeypatch):
    """Whoever deletes a module from `sys.modules` gets its functions back as they were; nobody else is asked."""
    spy, other = Spy(), Spy("other")
    frameworks = Frameworks(Notes(), [spy, other])
    put(monkeypatch, "spied")
    frameworks.hold()
    frameworks.hold()
    monkeypatch.delitem(sys.modules, "spied")
    frameworks.release()
    frameworks.release()
    assert (spy.asked, other.asked) == (["hold", "hold", "release"], [])


@pytest.mark.parametrize("step", ["hold", "release"])
def test_an_interrupt_leaves_nothing_held(monkeypatch, step):
    """Whoever is interrupted while holding or releasing can release all of them again."""
    spies = [Spy("one"), Spy("two")]

    def interrupted():
        raise KeyboardInterrupt

    frameworks = Frameworks(Notes(), spies)
    put(monkeypatch, "one", "two")
    with monkeypatch.context() as patched:
        patched.setattr(spies[1], step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            frameworks.hold()
            frameworks.release()
    frameworks.release()
    assert [spy.asked[-1] for spy in spies] == ["release", "release"]


@pytest.mark.parametrize(
    ("counters", "why"),
    [
        (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda: [42], "TypeError: 42 is not a DeviceCounter"),
    ],
)
def test_what_fails_is_left_out_and_said_once(monkeypatch, counters, why):
    """The others are asked on, in this round and the next."""
    notes, broken, sound = Notes(), Spy("broken"), Spy("sound")
    put(monkeypatch, "broken", "sound")
    frameworks = Frameworks(notes, [broken, sound])
    broken.counters = counters
    assert frameworks.counters() == [(sound, [])]
    assert frameworks.known() == (sound,)
    assert frameworks.failed == {"broken": why}
    assert notes.take() == (f"the source broken fails and is left out: {why}",)
    assert notes.take() == ()


@pytest.mark.parametrize("error", [MemoryError("no"), OSError(24, "Too many open files")])
def test_what_lacks_memory_or_descriptors_is_asked_again(monkeypatch, error):
    """It is said once, and its figures are there as soon as it can give them."""
    notes, spy, lacking = Notes(), Spy(), [True, True, False]

    def counters():
        if lacking.pop(0):
            raise error
        return []

    put(monkeypatch, "spied")
    frameworks, spy.counters = Frameworks(notes, [spy]), counters
    assert [frameworks.counters() for _ in range(3)] == [[], [], [(spy, [])]]
    (said,) = notes.take()
    assert said.startswith("the source spied fails: ")


def test_the_users_interrupt_is_the_users(monkeypatch):
    """It is no failure of the framework that happened to run."""
    spy = Spy()
    put(monkeypatch, "spied")
    frameworks = Frameworks(Notes(), [spy])

    def interrupted():
        raise KeyboardInterrupt

    spy.counters = interrupted
    with pytest.raises(KeyboardInterrupt):
        frameworks.counters()
    assert frameworks.known() == (spy,)


def test_each_note_is_told_once():
    """Whoever asks first whether it is news gets it; then it is no more."""
    notes = Notes()
    notes.add("a")
    notes.add("a")
    assert notes.is_new("b")
    notes.add("b")
    assert not notes.is_new("a")
    assert notes.take() == ("a",)
    assert notes.take() == ()
    notes.add("a")
    assert notes.take() == ()
