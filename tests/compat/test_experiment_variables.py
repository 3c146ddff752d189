"""Which variables the end of an experiment deletes, and what becomes of their values."""

import gc
import sys
import weakref

import pytest
from experiment_rig import FINISHED, run
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ipygpulogger.experiments import IPyExperimentsCPU

NAMES = ["a", "b", "c", "d", "_hidden"]


class Value:
    """Something that a name can hold and a weak reference can follow."""


steps = st.one_of(
    st.tuples(st.just("assign"), st.sampled_from(NAMES)),
    st.tuples(st.just("alias"), st.sampled_from(NAMES), st.sampled_from(NAMES)),
    st.tuples(st.just("delete"), st.sampled_from(NAMES)),
    st.tuples(st.just("keep"), st.integers(0, 3), st.sampled_from(NAMES)),
    st.tuples(st.just("begin")),
    st.tuples(st.just("finish"), st.integers(0, 3)),
)


class Model:
    """What the names should hold; which experiments run, the oldest first."""

    def __init__(self, names):
        self.names, self.held, self.running = names, {}, []
        for name in NAMES:
            names.pop(name, None)

    def assign(self, name):
        self.names[name] = self.held[name] = Value()

    def alias(self, name, other):
        if other in self.held:
            self.names[name] = self.held[name] = self.held[other]

    def delete(self, name):
        if name in self.held:
            del self.names[name], self.held[name]

    def begin(self):
        self.running.append((IPyExperimentsCPU(cl_enable=False), set(self.held), set()))

    def keep(self, which, name):
        if which < len(self.running):
            self.running[which][0].keep_var_names(name)
            self.running[which][2].add(name)

    def finish(self, which):
        if which < len(self.running):
            exp, _, kept = self.running[which]
            for name in set(self.held) - kept - {"_hidden"}:
                owners = [one for one, found, _ in self.running if name not in found]
                if owners and owners[-1] is exp:
                    del self.held[name]
                    for _, found, _ in self.running[which + 1 :]:
                        found.discard(name)  # made again, it is the newer one's
            del self.running[which]
            exp.finish()


@example([("begin",), ("assign", "a"), ("begin",), ("finish", 0), ("assign", "a")])
@given(st.lists(steps, max_size=25))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_namespace_after_any_story(shell, capsys, story):
    """A name goes with the newest running experiment that had not found it, or lost it since, unless that one keeps it."""
    model = Model(shell.user_ns)
    for step, *args in [*story, *[("finish", 0)] * 25]:
        getattr(model, step)(*args)
        assert {name: shell.user_ns[name] for name in NAMES if name in shell.user_ns} == model.held
    capsys.readouterr()


def test_what_is_deleted_is_free(shell, exp, capsys):
    """Nothing of IPython's holds on to it: not Out, not _, not the last result."""
    shell.user_ns["Value"] = Value
    exp.keep_var_names("Value")
    run(shell, "a = Value(); b = Value(); c = a")
    watched = [weakref.ref(shell.user_ns[name]) for name in "ab"]
    for code in ("a", "b", "a", "b"):
        run(shell, code)
    assert shell.user_ns["_"] is shell.user_ns["b"]
    exp.finish()
    assert [ref() for ref in watched] == [None, None]
    run(shell, "7")
    assert shell.user_ns["_"] == 7
    assert shell.user_ns["__"] == ""


def test_what_was_there_before_stays(shell, capsys):
    """An alias of an old object takes neither the object's own name nor an old output with it."""
    run(shell, "old = [1]; [2]")
    number = shell.execution_count - 1
    run(shell, "exp = X(cl_enable=False)")
    old, output = shell.user_ns["old"], shell.user_ns["Out"][number]
    run(shell, "alias = old\nalias")
    run(shell, f"other = Out[{number}]")
    shell.user_ns["exp"].finish()
    assert FINISHED.search(capsys.readouterr().out)["deleted"] == "alias, other"
    assert shell.user_ns["old"] is old
    assert shell.user_ns["Out"][number] is shell.user_ns[f"_{number}"] is output


def test_what_is_kept_stays_everywhere(shell, exp, capsys):
    """Out[n] and the user's own `_` of the same object; only what is there is said; what is no name is refused."""
    run(shell, "a = [1]\nkept = a\nkept")
    number = shell.execution_count - 1
    run(shell, "_ = a")
    with pytest.raises(ValueError, match=r"^expecting variable names as strings$"):
        exp.keep_var_names("a", 3)
    exp.keep_var_names("kept", "never", "X")
    exp.finish()
    assert FINISHED.search(capsys.readouterr().out)["kept"] == "kept"
    assert shell.user_ns["Out"][number] is shell.user_ns["kept"] is shell.user_ns.pop("_")
    assert "a" not in shell.user_ns


def test_ipythons_own_names_stay(shell, exp):
    """In, Out, exit and the like are as they were, even where a new name held the same object."""
    before = {name: shell.user_ns[name] for name in ("In", "Out", "exit", "get_ipython", "_ih", "_oh", "_dh")}
    run(shell, "one = In; two = Out; three = exit; four = get_ipython; five = _dh; six = None; seven = 1")
    run(shell, "import json, json as js\nX = X")  # the name of a module goes, the module does not
    assert exp.get_var_names() == ["five", "four", "js", "json", "one", "seven", "six", "three", "two"]
    exp.finish()
    assert "json" in sys.modules
    assert {name: shell.user_ns[name] for name in before} == before
    assert not {"one", "two", "three", "four", "five", "six", "seven", "json", "js"} & set(shell.user_ns)
    assert "X" in shell.user_ns
    assert run(shell, "1 + 1").result == 2


def test_what_cannot_be_deleted_is_said(shell, exp, capsys, monkeypatch):
    """A namespace that refuses breaks nothing: the others go, and the report names it."""

    class Stubborn(dict):
        def pop(self, name, *default):
            if name == "stuck":
                raise RuntimeError("not this one")
            return super().pop(name, *default)

    monkeypatch.setattr(shell, "user_ns", Stubborn(shell.user_ns))
    shell.user_ns.update(stuck=1, free=2)
    exp.finish()
    match = FINISHED.fullmatch(capsys.readouterr().out)
    assert (match["deleted"], match["failed"]) == ("free", "stuck")


@pytest.mark.parametrize("cycles", [0, 1, 5])
def test_cycles_are_counted(shell, capsys, cycles):
    """The collector's own count of what only it could free; neither ours among it nor what was garbage before."""

    def garbage(count):
        for _ in range(count):
            cycle = []
            cycle.append(cycle)

    garbage(7)
    exp = IPyExperimentsCPU(cl_enable=False)
    garbage(cycles)
    if cycles == 5:
        gc.garbage.append(Value())
    try:
        exp.finish()
    finally:
        gc.garbage.clear()
    match = FINISHED.search(capsys.readouterr().out)
    assert match["cleared"] == (str(cycles) if cycles else None)
    assert match["garbage"] == ("1" if cycles == 5 else None)
