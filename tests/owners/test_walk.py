"""The walk and what it attributes, with arrays of a framework that is not there."""

import functools
import itertools
import types
from collections import OrderedDict, defaultdict, deque

import pytest
from arrays import Array, holding
from hypothesis import given, settings
from hypothesis import strategies as st
from owned import Plain, held

from ipygpulogger.owners import referents
from ipygpulogger.owners import walk as walk_module
from ipygpulogger.owners.attribution import Root
from ipygpulogger.owners.walk import walk
from ipygpulogger.sources import Holding


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
    """One array and another's view of it, in whatever holds them, at any depth."""
    array = Array(5)
    assert held({"a": MAKERS[maker](array, Array(5, key=array.key), Array(2))}) == {"a": 7}
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


def test_hostile_objects():
    """No code of the user's runs, however they wrote their classes."""
    Bomb.touched = 0
    hostile = Meta("Hostile", (), {"__slots__": ("array",), "__getattr__": Bomb._boom})
    instance = object.__new__(hostile)
    vars(type)["__dict__"].__get__(hostile)["array"].__set__(instance, Array(3))
    lists = type("Lists", (list,), {"__iter__": Bomb._boom, "__len__": Bomb._boom, "__getattr__": Bomb._boom})
    values = {"a": Bomb(), "b": instance, "c": lists([Array(2)]), "d": hostile, "e": [instance, Bomb()]}
    found = walk([Root(name, "variable", value) for name, value in values.items()], [holding])
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
    """Neither modules, nor a function's globals and builtins, nor library classes, nor what the caller closes."""
    secret = [Array(9)]
    namespace = {"secret": secret, "__builtins__": {"secret": secret}}
    exec("def function(): return secret", namespace)
    module = types.ModuleType("some_library")
    module.secret = secret
    library_class = type("Library", (), {"__module__": "some_library", "secret": secret})
    names = {"f": namespace["function"], "m": module, "c": library_class(), "x": Plain(secret)}
    assert held(names, closed=[secret]) == {}
    del names["x"]
    assert held(names) == {}


@pytest.fixture
def ticks(monkeypatch):
    """A clock that goes on by a millisecond whenever it is read."""
    clock = itertools.count()
    monkeypatch.setattr(walk_module, "clock", types.SimpleNamespace(thread_s=lambda: next(clock) / 1000))
    return clock


@pytest.mark.parametrize(("size", "lists"), [(10, 1), (1_000_000, 1), (20_000, 8)])
def test_huge_lists_starve_nobody(size, lists, ticks):
    """Each name has a glance before any has its long turn; out of time, it says so and stops at once."""
    roots = [Root(f"huge{n}", "variable", [(str(i), [i]) for i in range(size)]) for n in range(lists)]
    roots += [Root(f"a{i}", "variable", Plain(Array(2))) for i in range(5)]
    found = walk(roots, [holding], budget_s=0.05)
    assert {f"a{i}" for i in range(5)} == {owner.name for owner in found.owners}
    assert found.complete == (size == 10)
    assert found.cut_short == (set() if size == 10 else {f"huge{n}" for n in range(lists)})
    assert next(ticks) <= 70


@pytest.mark.parametrize("urgent", [True, False])
def test_an_urgent_name_is_found_however_much_there_is(urgent, ticks):
    """With time for a few names only, those that are urgent are found, wherever they stand."""
    roots = [Root("huge", "variable", [(str(i), [i]) for i in range(20_000)])]
    roots += [Root(f"a{i}", "variable", Plain(Array(2))) for i in range(200)]
    late = Array(3)
    roots += [Root("late", "variable", [[late], *([i] for i in range(1000))])]
    found = walk(roots, [holding], budget_s=0.05, urgent={"late"} if urgent else ())
    sizes = {owner.name: owner.size_bytes for owner in found.owners}
    assert sizes.get("late") == (late.size_bytes if urgent else None)
    assert not found.complete
    assert {"huge", "a199"} <= found.cut_short
    assert ("late" in found.cut_short) is not urgent
    assert set(sizes).isdisjoint(found.cut_short)


@pytest.mark.parametrize(("budget_s", "found_all"), [(1e-9, True), (0, False)])
def test_urgent_names_are_begun_when_it_is_late(budget_s, found_all):
    """On a busy machine making ready may take all the time; with none at all nothing is visited."""
    roots = [Root(f"v{i}", "variable", [Array(1)]) for i in range(50)]
    roots += [Root("large", "variable", [bytearray(5), Array(7)])]
    found = walk(roots, [holding], budget_s=budget_s, urgent={"large"})
    assert {owner.name for owner in found.owners} == ({"large"} if found_all else set())
    assert not found.complete
    assert ("large" in found.cut_short) is not found_all


def test_an_urgent_name_precedes_no_other():
    """What it shares with an earlier name is that one's."""
    shared = Array(2)
    names = {"first": Plain(shared), "second": [shared, Array(1)]}
    assert held(names, urgent={"second"}) == held(names)
    assert held(names) == {"first": shared.size_bytes, "second": 1}


def test_many_small_names_are_seen_in_a_look_each(ticks):
    """5,000 names without memory take no look at the clock each, and no place in what was found."""
    makes = (
        int,
        str,
        lambda i: [i],
        lambda i: {i: i},
        bytearray,
        Array,
        lambda _: OrderedDict(),
        lambda _: hash,
    )
    roots = [Root(f"v{i}", "variable", makes[i % 8](i % 100)) for i in range(5000)]
    found = walk(roots, [holding], budget_s=60)
    assert found.complete
    assert len(found.owners) == sum(root.value.size_bytes > 0 for root in roots if type(root.value) is Array)
    assert next(ticks) < 5000


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


def test_a_graph_has_a_name_of_its_own():
    """What a result keeps of its computation, at any depth; it is nobody else's who reaches the result."""
    saved = Array(6)
    graph, weight = {"saved": [saved]}, Array(5)
    results = {}

    class Result:
        pass

    def asks(value):
        if type(value) is Result:
            return Holding(id(value), 1, "cpu", (weight,) if value is loss else (), results[id(value)])
        return holding(value)

    loss, alone = Result(), Result()
    results |= {id(loss): [graph, {"weight": weight}], id(alone): [Array(7)]}
    names = {"losses": [loss], "loss": loss, "weight": weight, "alone": alone}
    found = walk([Root(name, "variable", value) for name, value in names.items()], [asks])
    assert {(o.name, o.size_bytes, o.shared) for o in found.owners} == {
        ("losses", 5, ("loss", "weight")),
        ("losses", 1, ("loss",)),
        ("losses (autograd graph)", 6, ()),
        ("alone", 1, ()),
        ("alone (autograd graph)", 7, ()),
    }


def test_what_nobody_can_count_is_named():
    """A name whose memory cannot be told is not told as nothing."""
    found = walk(
        [Root("a", "variable", [Array(1)])],
        [lambda value: Holding(None, 0, "", counted=False) if type(value) is Array else None],
    )
    assert found.uncounted == ("a",)
    assert found.owners == ()


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
