"""Who holds the memory, with arrays of a framework that is not there."""

import builtins
import functools
import gc
import itertools
import sys
import types
import weakref
from collections import OrderedDict, defaultdict, deque

import pytest
from arrays import Array, holding
from hypothesis import given, settings
from hypothesis import strategies as st

from ipygpulogger.owners import referents, release, roots
from ipygpulogger.owners import walk as walk_module
from ipygpulogger.owners.attribution import Root
from ipygpulogger.owners.release import drop_hidden_references
from ipygpulogger.owners.roots import owners_in
from ipygpulogger.owners.walk import walk
from ipygpulogger.sources import Holding


def held(names, **how):
    """{name: bytes} of variables."""
    roots = [Root(name, "variable", value) for name, value in names.items()]
    found = walk(roots, [holding], budget_s=60, **how)
    assert found.complete
    return {owner.name: owner.size_bytes for owner in found.owners}


def found_in(shell, exception=None):
    found = owners_in(shell, [holding], exception, budget_s=60)
    return [(owner.name, owner.size_bytes, owner.kind) for owner in found.owners]


# -- the walk --------------------------------------------------------------------------------------


class Plain:
    def __init__(self, *values):
        self.values, self.other = values[:1], list(values[1:])


class Slots:
    __slots__ = ("values",)

    def __init__(self, *values):
        self.values = values


class OwnDict(dict):
    def __iter__(self):
        raise AssertionError("nobody asked for this")

    items = keys = values = __len__ = __iter__


class OwnList(list):
    def __init__(self, values):
        super().__init__(values[:1])
        self.others = values[1:]


def closure(*values):
    def function(default=values[:1]):
        return values, default

    return function


class Method:
    def __init__(self, *values):
        self.values = values

    def method(self):
        """Held through the bound method alone."""


def generator(*values):
    yield 1
    yield values


def started(*values):
    running = generator(*values)
    next(running)
    return running


MAKERS = {
    "list": lambda *values: list(values),
    "tuple": lambda *values: values,
    "dict": lambda *values: dict(enumerate(values)),
    "keys": lambda *values: dict.fromkeys(values, 1),
    "set": lambda *values: {*values},
    "frozenset": lambda *values: frozenset(values),
    "deque": lambda *values: deque(values),
    "OrderedDict": lambda *values: OrderedDict(enumerate(values)),
    "defaultdict": lambda *values: defaultdict(list, enumerate(values)),
    "dict of one's own": lambda *values: OwnDict(enumerate(values)),
    "object": Plain,
    "slots": Slots,
    "closure": closure,
    "partial": lambda *values: functools.partial(print, *values),
    "bound method": lambda *values: Method(*values).method,
    "generator": started,
    "namespace": lambda *values: types.SimpleNamespace(**{f"n{i}": v for i, v in enumerate(values)}),
    "cell": lambda *values: types.CellType(values),
    "proxy": lambda *values: types.MappingProxyType({"values": values}),
    "iterator": lambda *values: iter([*values]),
    "attributes of a list": lambda *values: OwnList(values),
    "class": lambda *values: type("Written", (), {"__module__": "__main__", "values": values}),
}
HASHABLE = {"keys", "set", "frozenset"}


@pytest.mark.parametrize("maker", MAKERS)
def test_every_kind_of_holder(maker):
    """One array and another's view of it, in whatever holds them."""
    array = Array(5)
    assert held({"a": MAKERS[maker](array, Array(5, key=array.key), Array(2))}) == {"a": 7}


@pytest.mark.parametrize("maker", MAKERS)
def test_a_holder_within_a_holder(maker):
    """At any depth, under the name at the top."""
    if maker not in HASHABLE:
        assert held({"a": [{"deep": MAKERS[maker]([Array(3)], Plain(Array(4)))}]}) == {"a": 7}


nodes = st.lists(
    st.tuples(
        st.sampled_from(sorted(set(MAKERS) - HASHABLE - {"class"})),
        st.lists(st.integers(0, 30), max_size=4),  # its children, by number; arrays from 20 on
    ),
    min_size=1,
    max_size=20,
)


@settings(deadline=None, max_examples=150)
@given(
    nodes,
    st.lists(st.tuples(st.integers(0, 6), st.integers(1, 1000)), min_size=11, max_size=11),
    st.lists(st.integers(0, 30), min_size=1, max_size=6),
)
def test_any_graph_against_a_model(drawn, memory, roots):
    """Shared memory, shared objects and cycles: each block once, the first name's that reaches it."""
    sizes = {}
    for key, size_bytes in memory:
        sizes.setdefault(key, size_bytes)
    arrays = [Array(sizes[key], key=("memory", key)) for key, _ in memory]
    made = []
    for maker, children in drawn:  # children made later are linked through a list: cycles
        links = []
        made.append((MAKERS[maker](links), links, children))

    def one(number):
        return arrays[number - 20] if number >= 20 else made[number % len(made)][0]

    for _, links, children in made:
        links.extend(map(one, children))

    def reach(number, seen):
        if number >= 20:
            return {memory[number - 20][0]}
        number %= len(made)
        if number in seen:
            return set()
        seen.add(number)
        return set().union(*(reach(child, seen) for child in made[number][2]), set())

    expected, taken = {}, set()
    reached = {f"name{place}": reach(number, set()) for place, number in enumerate(roots)}
    for name, blocks in reached.items():
        new = blocks - taken
        taken |= new
        if new:
            others = {other for other, theirs in reached.items() if theirs & new} - {name}
            expected[name] = sum(sizes[key] for key in new), others, new
    named = [Root(f"name{place}", "variable", one(number)) for place, number in enumerate(roots)]
    found = walk(named, [holding], budget_s=60)
    assert found.complete
    owners = {owner.name: (owner.size_bytes, set(owner.shared)) for owner in found.owners}
    assert owners == {name: (size, others) for name, (size, others, _) in expected.items()}
    blocks = {name: {key[1] for key in keys} for (name, _, _), keys in found.blocks.items()}
    assert blocks == {name: new for name, (_, _, new) in expected.items()}


def test_devices_apart_and_the_largest_first():
    """One owner for each name and device."""
    found = walk(
        [
            Root("a", "variable", [Array(5), Array(7, device="cpu")]),
            Root("b", "output", Array(6)),
            Root("nothing", "variable", Array(0)),
        ],
        [holding],
    )
    assert [(o.name, o.size_bytes, o.device, o.kind) for o in found.owners] == [
        ("a", 7, "cpu", "variable"),
        ("b", 6, "gpu:0", "output"),
        ("a", 5, "gpu:0", "variable"),
    ]


class Bomb:
    """Anything that it is asked goes off; it holds an array all the same."""

    def __init__(self):
        object.__setattr__(self, "array", Array(4))

    def _boom(self, *_):
        Bomb.touched += 1
        raise SystemExit("a hostile object was asked")

    touched = 0
    __getattr__ = __getattribute__ = __len__ = __iter__ = __eq__ = __bool__ = __repr__ = __str__ = _boom
    __class__ = property(_boom)
    __hash__ = __dir__ = __contains__ = __getitem__ = __instancecheck__ = __sizeof__ = __reduce__ = _boom
    anything = property(_boom)


class Meta(type):
    def __getattribute__(cls, name):
        Bomb.touched += 1
        raise SystemExit("a hostile class was asked")

    __instancecheck__ = __subclasscheck__ = __hash__ = __eq__ = __getattribute__


def curious(value):
    """A framework that asks as theirs do: `isinstance` reads `__class__`, and JAX's reads more."""
    if isinstance(value, (Array, type(None))) or hasattr(value, "aval"):
        return holding(value)
    return None


@pytest.mark.parametrize("asks", [holding, curious])
def test_hostile_objects(asks):
    """No code of the user's runs, however they wrote their classes."""
    Bomb.touched = 0
    hostile = Meta("Hostile", (), {"__slots__": ("array",), "__getattr__": Bomb._boom})
    instance = object.__new__(hostile)
    vars(type)["__dict__"].__get__(hostile)["array"].__set__(instance, Array(3))
    lists = type("Lists", (list,), {"__iter__": Bomb._boom, "__len__": Bomb._boom, "__getattr__": Bomb._boom})
    values = {"a": Bomb(), "b": instance, "c": lists([Array(2)]), "d": hostile, "e": [instance, Bomb()]}
    found = walk([Root(name, "variable", value) for name, value in values.items()], [asks])
    assert {o.name: o.size_bytes for o in found.owners} == {"a": 4, "b": 3, "c": 2, "e": 4}
    assert Bomb.touched == 0


def test_a_broken_array():
    """Of an array that cannot be asked nothing is said; the rest is."""

    def broken(value):
        if type(value) is Array and value.size_bytes == 13:
            raise RuntimeError("no storage")

    found = walk([Root("a", "variable", [Array(13), Array(2)])], [broken, holding])
    assert [owner.size_bytes for owner in found.owners] == [15]


def test_what_leads_out_is_closed():
    """Neither modules, nor a function's globals, nor library classes, nor what the caller closes."""
    secret = [Array(9)]
    namespace = {"secret": secret}
    exec("def function(): return secret", namespace)
    module = types.ModuleType("some_library")
    module.secret = secret
    library_class = type("Library", (), {"__module__": "some_library", "secret": secret})
    names = {"f": namespace["function"], "m": module, "c": library_class(), "x": Plain(secret)}
    assert held(names, closed=[secret]) == {}
    del names["x"]
    assert held(names) == {}


@pytest.mark.parametrize("size", [10, 3_000_000])
def test_a_huge_list_starves_nobody(size, monkeypatch):
    """Whoever comes after it is found all the same; out of time, it says so and stops at once."""
    clock = itertools.count()  # a millisecond whenever somebody looks
    monkeypatch.setattr(walk_module, "clock", types.SimpleNamespace(monotonic_s=lambda: next(clock) / 1000))
    roots = [Root("huge", "variable", [(str(i), [i]) for i in range(size)] + [Array(1)])]
    roots += [Root(f"a{i}", "variable", Plain(Array(2))) for i in range(5)]
    found = walk(roots, [holding], budget_s=0.05)
    assert {f"a{i}" for i in range(5)} <= {owner.name for owner in found.owners}
    assert found.complete == (size == 10)
    assert next(clock) <= 60


def test_many_huge_lists_starve_nobody(monkeypatch):
    """Each name has a glance before any has its long turn."""
    clock = itertools.count()  # a millisecond whenever somebody looks
    monkeypatch.setattr(walk_module, "clock", types.SimpleNamespace(monotonic_s=lambda: next(clock) / 1000))
    roots = [Root(f"huge{n}", "variable", [(str(i), [i]) for i in range(20_000)]) for n in range(8)]
    roots += [Root(f"a{i}", "variable", Plain(Array(2))) for i in range(5)]
    found = walk(roots, [holding], budget_s=0.05)
    assert {f"a{i}" for i in range(5)} == {owner.name for owner in found.owners}
    assert not found.complete
    assert {f"huge{n}" for n in range(8)} == found.cut_short


def test_the_collector_stays_as_others_set_it():
    """Another thread turns it off, or sets it, under our hands: that stands; else all is as before."""
    before = gc.get_threshold()
    held({"a": [Array(1)]})
    assert (gc.isenabled(), gc.get_threshold()) == (True, before)
    try:
        for meanwhile in (gc.disable, lambda: gc.set_threshold(500, 7, 5)):

            def changing(value, meanwhile=meanwhile):
                if type(value) is Array:
                    meanwhile()  # stands for the other thread

            walk([Root("a", "variable", [Array(1)])], [changing])
        assert not gc.isenabled()
        assert gc.get_threshold()[0] == 500
    finally:
        gc.enable()
        gc.set_threshold(*before)


def test_a_container_that_changes_meanwhile():
    """Another thread adds to a large dict under our hands: no error, the others are counted."""
    large = dict.fromkeys(range(referents._LONG + 1))

    class Changes:
        """An array whose looking-at stands for the other thread."""

    def changing(value):
        if type(value) is Changes:
            large[len(large)] = 1

    large[0] = Changes()
    found = walk([Root("a", "variable", large), Root("b", "variable", Array(2))], [changing, holding])
    assert [owner.name for owner in found.owners] == ["b"]


def test_modules_of_the_user(tmp_path, monkeypatch):
    """The globals of a module of one's own have a name; those of installed ones are not looked at."""
    (tmp_path / "ours_to_try.py").write_text("cache = []")
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "installed_to_try.py").write_text("cache = []")
    for folder in (tmp_path, tmp_path / "site-packages"):
        monkeypatch.syspath_prepend(str(folder))
    import installed_to_try
    import ours_to_try

    ours_to_try.cache.append(Array(8))
    installed_to_try.cache.append(Array(9))
    found = walk(list(roots._modules_globals()), [holding])
    assert [(o.name, o.size_bytes, o.kind) for o in found.owners] == [("ours_to_try.cache", 8, "other")]
    for name in ("ours_to_try", "installed_to_try"):
        del sys.modules[name]


# -- a shell's names, outputs and last traceback ---------------------------------------------------


@pytest.fixture
def notebook(shell):
    """A shell whose cells know `Array`; it forgets everything afterwards."""
    shell.user_ns["Array"] = Array
    yield shell
    drop_hidden_references(shell)
    shell.reset(new_session=False)
    vars(builtins).pop("_", None)


def run(notebook, source):
    return notebook.run_cell(source, store_history=True)


def test_variables_and_outputs(notebook, capsys):
    """What is a variable too is no output's; IPython's own names are no variables."""
    run(notebook, "a = [Array(10)]; b = a[0]; _mine = Array(3)")
    run(notebook, "b")
    number = notebook.execution_count
    run(notebook, "Array(5)")
    run(notebook, "{'deep': Array(4)}")
    assert found_in(notebook) == [
        ("a", 10, "variable"),
        (f"Out[{number}]", 5, "output"),
        (f"Out[{number + 1}]", 4, "output"),
        ("_mine", 3, "variable"),
    ]


FAILING = """
def step(x):
    act = Array(20)
    again = [act, x]
    layer(act)

def layer(h):
    class Inner:
        weight = Array(2)
    inside = [Array(7)]
    raise ValueError('no', h)

x = Array(100)
step(x)
"""


def test_the_last_traceback(notebook, capsys):
    """The frames hold what no variable does, the outermost first."""
    run(notebook, FAILING)
    assert found_in(notebook) == [
        ("x", 100, "variable"),
        ("last traceback: step.act", 20, "traceback"),
        ("last traceback: layer.inside", 7, "traceback"),
        ("last traceback: layer.Inner", 2, "traceback"),
    ]


CHAINED = """
def first():
    one = Array(3)
    raise KeyError('first')

def second():
    two = Array(4)
    try:
        first()
    except KeyError as error:
        raise ValueError('second') from error

def third():
    three = Array(5)
    try:
        second()
    except ValueError:
        raise RuntimeError('third', Array(6))

third()
"""


def test_chained_exceptions(notebook, capsys):
    """Causes, contexts, and what an exception itself carries."""
    run(notebook, CHAINED)
    names = {name.removeprefix("last traceback: "): size for name, size, _ in found_in(notebook)}
    assert names == {"first.one": 3, "second.two": 4, "third.three": 5, "RuntimeError": 6}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups came with 3.11")
def test_exception_groups(notebook, capsys):
    """Each member's frames."""
    run(
        notebook,
        CHAINED.replace("\nthird()", "") + "errors = []\nfor f in (first, third):\n    try:\n        f()\n"
        "    except Exception as error:\n        errors.append(error)\n"
        "raise ExceptionGroup('both', [errors.pop(0), errors.pop(0)])",
    )
    names = {name.removeprefix("last traceback: "): size for name, size, _ in found_in(notebook)}
    assert names == {"first.one": 3 + 3, "second.two": 4, "third.three": 5, "RuntimeError": 6}


def test_names_of_methods(notebook, capsys):
    """With their class, where Python tells."""
    run(
        notebook,
        "class Net:\n    def forward(self):\n        h = Array(4)\n        1 / 0\nNet().forward()",
    )
    name = "Net.forward.h" if sys.version_info >= (3, 11) else "forward.h"
    assert found_in(notebook) == [(f"last traceback: {name}", 4, "traceback")]


def test_our_own_objects_lead_nowhere(notebook, capsys):
    """The logger in `il` holds the shell and so everything that the shell hides; it is no owner."""
    from ipygpulogger import IPyGPULogger

    run(notebook, "Array(5)")
    notebook.user_ns["il"] = IPyGPULogger(report="none")
    notebook.user_ns["shell"] = notebook
    assert [kind for _, _, kind in found_in(notebook)] == ["output"]


def test_looking_changes_nothing(notebook, capsys):
    """After the walk nothing holds more than before, and `locals()` of the user's is what it was."""
    run(
        notebook,
        FAILING.replace("inside =", "mine.append(locals()); inside =").replace("x = ", "mine = []; x = "),
    )
    found_in(notebook)
    assert {"h", "Inner"} <= set(notebook.user_ns["mine"][0])
    inside = weakref.ref(sys.last_traceback.tb_next.tb_next.tb_next.tb_frame.f_locals["inside"][0])
    act = weakref.ref(sys.last_traceback.tb_next.tb_next.tb_frame.f_locals["act"])
    found_in(notebook)
    notebook.user_ns["mine"].clear()
    run(notebook, "1")  # the result of the failed cell is gone with the next one
    notebook.InteractiveTB.tb = None
    for name in release._LAST:
        vars(sys).pop(name, None)
    gc.collect()
    assert inside() is None
    assert act() is None


# -- letting go ------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [FAILING, CHAINED])
@pytest.mark.parametrize("debugged", [False, True])
def test_let_go_of_a_traceback(notebook, capsys, monkeypatch, source, debugged):
    """Every array that only frames held is gone; variables stay."""
    alive = weakref.WeakSet()
    notebook.user_ns["Array"] = lambda size: (made := Array(size)) and (alive.add(made) or made)
    run(notebook, source)
    if debugged:
        lines = iter(["up", "p dir()", "q"])
        monkeypatch.setattr("builtins.input", lambda *_: next(lines))
        run(notebook, "%debug")
    assert len(alive) >= 3
    run(
        notebook, "get_ipython().user_ns['drop_hidden_references'](get_ipython())"
    ) if "drop_hidden_references" in notebook.user_ns else drop_hidden_references(notebook)
    gc.collect()
    assert [array.size_bytes for array in alive] == ([100] if source == FAILING else [])
    assert found_in(notebook) == ([("x", 100, "variable")] if source == FAILING else [])
    assert not any(hasattr(sys, name) for name in release._LAST)
    if debugged:  # and the debugger comes again when it is asked
        lines = iter(["p 'again'", "q"])
        run(notebook, "1 / 0")
        run(notebook, "%debug")
        assert "'again'" in capsys.readouterr().out


def test_let_go_of_outputs(notebook, capsys):
    """`Out`, `_`, `__`, `___`, `_12` and IPython's hidden copies of them; the inputs stay."""
    alive = weakref.WeakSet()
    notebook.user_ns["Array"] = lambda size: (made := Array(size)) and (alive.add(made) or made)
    for size in (1, 2, 3, 4, 5):
        run(notebook, f"Array({size})")
    run(notebook, "_5mine = Array(6)")
    assert len(alive) == 6
    drop_hidden_references(notebook)
    gc.collect()
    assert [array.size_bytes for array in alive] == [6]
    assert notebook.user_ns["In"][-1]
    assert notebook.user_ns["Out"] == {}
    run(notebook, "7")  # and the machinery goes on
    run(notebook, "assert _ == 7 and Out[max(Out)] == 7")
    assert notebook.last_execution_succeeded


@pytest.mark.parametrize("name", ["_", "__", "_1", "_12", "_3_"])
def test_a_variable_of_the_users_survives(notebook, capsys, name):
    """Whoever calls their own variable `_` keeps it."""
    run(notebook, "Array(1)")
    run(notebook, f"{name} = Array(2)")
    assert (name, 2, "variable") in found_in(notebook)
    drop_hidden_references(notebook)
    assert notebook.user_ns[name].size_bytes == 2
    assert found_in(notebook) == [(name, 2, "variable")]


def test_generators_and_kept_exceptions_stay_whole(notebook, capsys):
    """What the user still holds of a traceback is not ours to empty: it may be about to go on."""
    run(
        notebook,
        "def steps():\n    state = Array(1)\n    try:\n        raise ValueError('first')\n"
        "    except ValueError as error:\n        yield error\n    yield state\ng = steps(); saved = next(g)",
    )
    run(notebook, "raise saved")
    drop_hidden_references(notebook)
    assert next(notebook.user_ns["g"]).size_bytes == 1
    run(notebook, "def f():\n    inside = Array(2)\n    raise OSError('x')")
    run(notebook, "try:\n    f()\nexcept OSError as error:\n    kept = error")
    run(notebook, "raise kept")
    drop_hidden_references(notebook)
    last = notebook.user_ns["kept"].__traceback__
    while last.tb_next is not None:
        last = last.tb_next
    assert last.tb_frame.f_locals["inside"].size_bytes == 2


def test_a_kept_exception_does_not_own_the_notebook(notebook, capsys):
    """Its traceback leads to the cell's own frame, whose variables are everybody's."""
    run(
        notebook, "errors = []\ntry:\n    1 / 0\nexcept ZeroDivisionError as error:\n    errors.append(error)"
    )
    run(notebook, "model = Array(6)")
    assert found_in(notebook) == [("model", 6, "variable")]


def test_gettext_survives(notebook, capsys):
    """A `_` among the builtins keeps IPython from using that name; nor do we."""
    builtins._ = str.upper
    run(notebook, "Array(1)")
    drop_hidden_references(notebook)
    assert "_" not in notebook.user_ns
    assert found_in(notebook) == []


def test_let_go_twice_and_of_nothing(notebook, capsys):
    """There need be nothing to let go of."""
    drop_hidden_references(notebook)
    drop_hidden_references(notebook)
    run(notebook, "1 / 0")
    drop_hidden_references(notebook)
    run(notebook, "%tb")  # says that there is none
    assert "ZeroDivisionError" in capsys.readouterr().out


def test_frames_that_run_stay(notebook, capsys):
    """Asked from within a function that is in the traceback: its variables are its own."""
    notebook.user_ns["drop_hidden_references"] = drop_hidden_references
    run(
        notebook,
        "import sys\ndef outer():\n    mine = Array(3)\n    try:\n        1 / 0\n"
        "    except ZeroDivisionError as error:\n        sys.last_value = error\n"
        "        drop_hidden_references(get_ipython())\n    return mine.size_bytes\nassert outer() == 3",
    )
    assert notebook.last_execution_succeeded


# -- what a variable keeps out of sight ------------------------------------------------------------

KEPT = """
def step(x):
    act = Array(20)
    raise ValueError('no')

def attempt():
    try:
        step(Array(3))
    except ValueError as error:
        return error
"""


def shared_in(notebook):
    found = owners_in(notebook, [holding], budget_s=60)
    return {owner.name: (owner.size_bytes, owner.kind, owner.shared) for owner in found.owners}


def test_an_exception_in_a_variable(notebook, capsys):
    """What its frames hold has the variable's name, the function's and the local's, in a container too."""
    run(notebook, KEPT + "err = attempt()")
    assert shared_in(notebook) == {
        "err: step.act": (20, "variable", ()),
        "err: step.x": (3, "variable", ()),
    }
    run(notebook, "errors = {'first': err}; del err")
    assert shared_in(notebook) == {
        "errors: step.act": (20, "variable", ()),
        "errors: step.x": (3, "variable", ()),
    }


def test_who_shares_an_exception(notebook, capsys):
    """A second name of the exception, one of a local itself, and the last traceback."""
    run(
        notebook,
        KEPT + "err = attempt(); again = [err]; act = err.__traceback__.tb_next.tb_frame.f_locals['act']",
    )
    assert shared_in(notebook) == {
        "act": (20, "variable", ("err: step.act", "again")),
        "err: step.x": (3, "variable", ("again",)),
    }
    run(notebook, "del act, again\nraise err")
    found = shared_in(notebook)
    assert found["err: step.act"] == (20, "variable", ("last traceback",))
    assert not [name for name, (_, kind, _) in found.items() if kind == "traceback"]


def test_free_leaves_an_exception_of_the_users(notebook, capsys):
    """What a variable keeps is not hidden behind the shell, and letting go does not touch it."""
    run(notebook, KEPT + "err = attempt()\nraise err")
    drop_hidden_references(notebook)
    assert set(shared_in(notebook)) == {"err: step.act", "err: step.x"}


def test_a_second_name_is_no_output(notebook, capsys):
    """What is a variable and an output too is told as shared: deleting the variable would not free it."""
    run(notebook, "a = Array(10)")
    run(notebook, "a")
    number = notebook.execution_count - 1
    assert shared_in(notebook) == {"a": (10, "variable", (f"Out[{number}]", "_"))}


def test_debuggers_and_figures(notebook, capsys, monkeypatch):
    """What pdb keeps for its convenience is hidden; pyplot's open figures have their number."""
    notebook.user_ns[roots.DEBUGGERS] = {"_exception": [Array(7)]}
    helpers = types.ModuleType("matplotlib._pylab_helpers")
    helpers.Gcf = types.SimpleNamespace(figs=OrderedDict({2: Plain(Array(9))}))
    monkeypatch.setitem(sys.modules, helpers.__name__, helpers)
    assert shared_in(notebook) == {
        "pyplot figure 2": (9, "other", ()),
        "debugger: $_exception": (7, "traceback", ()),
    }
    drop_hidden_references(notebook)
    assert list(shared_in(notebook)) == ["pyplot figure 2"]


def test_a_failed_script_stays_in_the_traceback(notebook, capsys):
    """The names of a module whose running failed, which no variable shows."""
    source = "big = Array(8)\n1 / 0\n"
    run(notebook, f"exec(compile({source!r}, 'script.py', 'exec'), {{'Array': Array}})")
    assert shared_in(notebook) == {"last traceback: <module>.big": (8, "traceback", ())}


def test_a_graph_has_a_name_of_its_own():
    """What a result keeps of its computation, at any depth; whoever reaches the result shares it."""
    saved = Array(6)
    graph, weight = {"saved": [saved]}, Array(5)
    results = {}

    class Result:
        pass

    def asks(value):
        if type(value) is Result:
            return Holding(id(value), 1, "cpu", (weight,), results[id(value)])
        return holding(value)

    loss = Result()
    results[id(loss)] = [graph, {"weight": weight}]
    names = {"losses": [loss], "loss": loss, "weight": weight}
    found = walk([Root(name, "variable", value) for name, value in names.items()], [asks])
    assert {(o.name, o.size_bytes, o.shared) for o in found.owners} == {
        ("losses", 5, ("loss", "weight")),
        ("losses", 1, ("loss",)),
        ("losses (autograd graph)", 6, ("loss",)),
    }


def test_what_nobody_can_count_is_named():
    """A name whose memory cannot be told is not told as nothing."""
    found = walk(
        [Root("a", "variable", [Array(1)])],
        [lambda value: Holding(None, 0, "", counted=False) if type(value) is Array else None],
    )
    assert found.uncounted == ("a",)
    assert found.owners == ()


def test_memory_within_memory():
    """A block inside another is that one; blocks that only overlap are one block that holds both."""
    blocks = {
        "view": (110, 10),
        "whole": (100, 50),
        "other": (200, 10),
        "left": (300, 20),
        "right": (310, 20),
    }

    def asks(value):
        return (
            Holding(("cpu", blocks[value.key][0]), blocks[value.key][1], "cpu")
            if type(value) is Array
            else None
        )

    found = walk([Root(name, "variable", Array(1, key=name)) for name in blocks], [asks])
    assert {o.name: (o.size_bytes, o.shared) for o in found.owners} == {
        "view": (50, ("whole",)),
        "other": (10, ()),
        "left": (30, ("right",)),
    }


def test_cut_short_names(monkeypatch):
    """Of what was not seen whole the names are told."""
    clock = itertools.count()
    monkeypatch.setattr(walk_module, "clock", types.SimpleNamespace(monotonic_s=lambda: next(clock) / 1000))
    roots = [Root("huge", "variable", [[i] for i in range(1_000_000)]), Root("a", "variable", Array(2))]
    found = walk(roots, [holding], budget_s=0.05)
    assert not found.complete
    assert found.cut_short == {"huge"}


@pytest.mark.parametrize("links", [20_000])
def test_a_long_chain_that_everybody_knows(links):
    """A list of all the links of a chain, and the chain itself: no depth and no sharing is too much."""
    chain = None
    nodes = []
    for i in range(links):
        chain = [chain, Array(1, key=("link", i))]
        nodes.append(chain)
    found = walk([Root("chain", "variable", chain), Root("nodes", "variable", nodes)], [holding], budget_s=60)
    assert [(o.name, o.size_bytes, o.shared) for o in found.owners] == [("chain", links, ("nodes",))]
