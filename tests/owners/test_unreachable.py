"""The proof that a dropped object is garbage: never of what is reachable, and nothing is collected."""

import gc
import sys
import threading
import types
import weakref
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory import MB
from owned import proven

from ipygpulogger.owners import garbage, growth
from ipygpulogger.owners.memory_blocks import host_holding


@pytest.fixture(autouse=True)
def quiet(settled):
    """No collection but our own."""
    gc.disable()
    yield
    gc.enable()


def found_mb(root, **how):
    """MB of RAM that are proven to be garbage with what a weak reference refers to."""
    return proven(root, [host_holding], **how).get("cpu", 0) / MB


class Node:
    """Something of the user's."""

    def __init__(self, **names):
        self.__dict__.update(names)
        self.me = self


class Slots:
    __slots__ = ("me", "value")

    def __init__(self, value):
        self.me, self.value = self, value


def array(size_mb):
    return np.ones(size_mb * MB, dtype=np.uint8)


def suspended(me, value):
    def generator():
        both = yield
        yield both, value

    me.running = generator()
    next(me.running)
    me.running.send((me, me.running))


def closure(me, value):
    def function():
        return function, value, me

    me.function = function


def failed(me, value):
    try:
        len(value, value)
    except TypeError as error:
        me.kept = error  # a frame, and an exception that holds it by its traceback


def set_(**names):
    return lambda me, value: me.__dict__.update({name: make(value) for name, make in names.items()})


CYCLES = {
    "an attribute": set_(value=lambda value: value),
    "slots": set_(value=Slots),
    "a dict that the collector does not track": set_(cache=lambda value: {"key": value}),
    "a tuple that it does not track": set_(cache=lambda value: (value, "word")),
    "both": set_(cache=lambda value: {"key": ({"deep": value}, 1)}),
    "a frame and its exception": failed,
    "a generator that waits": suspended,
    "a closure": closure,
    "far below": set_(a=lambda value: [[Node(b={"c": [Slots(value)]})]]),
    "a view of it": set_(view=lambda value: value[5:10]),
    "several views": set_(views=lambda value: [value[5:10], [value[1:], value]]),
    "a memory of bytes": set_(value=lambda value: value.tobytes()),
    "a subclass": set_(value=lambda value: value.copy().view(type("Mine", (np.ndarray,), {}))),
}


@pytest.mark.parametrize("kind", CYCLES)
def test_every_kind_of_cycle(kind):
    """30 MB in a dropped cycle are proven garbage, and still there after we looked; then they are not."""
    node = Node()
    root = weakref.ref(node)
    CYCLES[kind](node, array(30))
    assert found_mb(root) == 0
    del node
    assert found_mb(root) == pytest.approx(30, abs=0.001)
    assert found_mb(root) == pytest.approx(30, abs=0.001)
    gc.collect()
    assert found_mb(root) == 0


def test_a_class_that_is_redefined():
    """A class refers to itself; what it holds is garbage with it, unless an instance lives."""
    made = type("Written", (), {"value": array(30)})
    root, instance = weakref.ref(made), made()
    del made
    assert found_mb(root) == 0
    del instance
    assert found_mb(root) == 30


CACHE = types.ModuleType("somebody_s_cache")


def in_a_module(value):
    CACHE.value = value
    return lambda: vars(CACHE).clear()


def in_a_registered_module(value):
    module = sys.modules["a_library"] = types.ModuleType("a_library")
    module.cache = {"deep": [value]}
    return lambda: sys.modules.pop("a_library")


def in_a_thread(value):
    begun, end = threading.Event(), threading.Event()

    def work(value):
        begun.set()
        end.wait()
        return value

    thread = threading.Thread(target=work, args=(value,))
    thread.start()
    begun.wait()
    del value

    def stop():
        end.set()
        thread.join()

    return stop


def in_c(value):
    """A reference that no object tells of."""
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))

    def release():
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(value))

    return release


def in_a_view_in_c(value):
    return in_c(value[5:])


def in_a_frozen_object(value):
    held = [value]
    gc.freeze()
    return held.clear


ALIVE = [in_a_module, in_a_registered_module, in_a_thread, in_c, in_a_view_in_c, in_a_frozen_object]


@pytest.mark.parametrize("holder", ALIVE)
def test_what_something_alive_holds_is_no_garbage(holder):
    """The same array is in a dropped cycle, too: it would not be freed with that."""
    value = array(30)
    root = weakref.ref(Node(value=value))
    release = holder(value)
    del value
    try:
        assert found_mb(root) == 0
    finally:
        release()


@pytest.mark.parametrize("holder", [one for one in ALIVE if one is not in_a_view_in_c])
@pytest.mark.parametrize("below", [False, True])
def test_what_an_object_alive_holds_is_no_garbage(holder, below):
    """The object that has the array, or one above it, is held by something that is not looked at."""
    node = Node(value=array(30))
    root = weakref.ref(node)
    release = holder([Node(below=node), 9] if below else node)
    del node
    try:
        assert found_mb(root) == 0
    finally:
        release()


async def awaiting(value):
    await asked(value, await Given())


class Given:
    def __await__(self):
        yield
        return 1


async def asked(*_values):
    """Called with a value that waits on the stack of the caller."""


def waiting(value):
    asked(value, (yield))


async def waiting_among_many(value):
    asked(value, await Given())
    yield


def begun(make, value):
    call = make(value)
    start = call.asend(None) if hasattr(call, "asend") else call
    start.send(None)
    return call, start


@pytest.mark.parametrize("shown_twice", [False, True])
@pytest.mark.parametrize("make", [waiting, awaiting, waiting_among_many])
def test_what_a_stack_borrows_from_a_variable_counts_once(monkeypatch, make, shown_twice):
    """A call that waits shows its argument twice; since Python 3.14 only one of them is a reference."""
    plain = gc.get_referents

    def show_twice(value):
        found = plain(value)
        if hasattr(value, "send") or hasattr(value, "asend"):
            found += [one for one in found if type(one) is np.ndarray][:1]
        return found

    value = array(30)
    node = Node(calls=begun(make, value))
    root = weakref.ref(node)
    del node
    if shown_twice:
        monkeypatch.setattr(gc, "get_referents", show_twice)
    assert value.size == 30 * MB  # held by this variable
    assert found_mb(root) == 0


@pytest.mark.parametrize("counts_of", [types.FunctionType, np.ndarray, Node, tuple])
def test_without_a_count_nothing_is_proven(monkeypatch, counts_of):
    """Python says a huge number for what is immortal, or is counted elsewhere (no GIL)."""
    plain = sys.getrefcount

    def count(value):
        return (1 << 60) + plain(value) if isinstance(value, counts_of) else plain(value) - 1

    node = Node()
    root = weakref.ref(node)
    node.function = lambda held=array(30): held  # noqa: B008 - what a default holds is what is tried
    node.function.me = node
    del node
    assert found_mb(root) == 30
    monkeypatch.setattr(sys, "getrefcount", count)
    assert found_mb(root) == 0


def test_one_count_less_is_the_same_proof(monkeypatch):
    """What a reference counts for in the asking call differs between versions."""
    held = array(20)
    roots = [weakref.ref(Node(value=array(30))), weakref.ref(Node(value=held))]
    plain = sys.getrefcount
    monkeypatch.setattr(sys, "getrefcount", lambda value: plain(value) - 1)
    assert [found_mb(root) for root in roots] == [30, 0]


def test_a_finalizer_may_keep_it():
    """Nothing is proven where code of the user's runs before the memory is freed."""
    kept = []

    class Pooled(Node):
        def __del__(self):
            kept.append(self.value)

    root = weakref.ref(Pooled(value=array(30)))
    assert found_mb(root) == 0
    assert found_mb(weakref.ref(Node(below=Pooled(value=array(20)), value=array(30)))) == 0
    gc.collect()
    assert len(kept) == 2


def test_what_is_frozen_is_not_freed():
    """The collector does not look at it, so it is not said to wait for the collector."""
    node = Node(value=array(30))
    root = weakref.ref(node)
    gc.freeze()
    del node
    gc.collect()
    assert root() is not None
    assert found_mb(root) == 0
    gc.unfreeze()
    assert found_mb(root) == 30


def test_what_is_undecided_does_not_count():
    """Without time nothing is proven."""
    assert found_mb(weakref.ref(Node(value=array(30))), budget_s=-1) == 0


def test_what_much_is_below_takes_no_longer_than_finding_it():
    """Each object is looked at once, also of a long chain that is alive: in squares this would take minutes."""
    chain = None
    for _ in range(100_000):
        chain = [chain]
    root = weakref.ref(Node(value=array(30), chain=chain))
    assert found_mb(root) == 30
    while chain:  # else a deep recursion frees it
        chain = chain[0]


def test_the_collector_s_settings_stay():
    """Neither the proof nor a collection of ours touches thresholds, whether it is on, what is frozen or callbacks."""

    def settings_now():
        return gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), gc.get_debug(), list(gc.callbacks)

    node = Node(value=array(30))
    root = weakref.ref(node)
    gc.callbacks.append(print_nothing)
    gc.freeze()
    was_threshold = gc.get_threshold()
    ours = garbage.Garbage(None, growth.Growth(None, lambda: {"cpu": 0}, dict))
    try:
        for threshold, switch in product((was_threshold, (123, 7, 5), (0, 0, 0)), (gc.enable, gc.disable)):
            gc.set_threshold(*threshold)
            switch()
            before = settings_now()
            found_mb(root)
            assert settings_now() == before
            ours.settle(1.0, starved=True)
            assert settings_now() == before
    finally:
        gc.callbacks.remove(print_nothing)
        gc.set_threshold(*was_threshold)
        gc.unfreeze()
        gc.disable()  # as the fixture left it


def print_nothing(_phase, _info):
    """Stands for a callback of the user's."""


def test_no_code_of_the_user_s_runs():
    """Whatever their classes say."""

    class Trap:
        def __getattribute__(self, name):
            raise AssertionError(name)

        __len__ = __eq__ = __hash__ = __repr__ = __sizeof__ = __iter__ = __bool__ = __getattribute__

    class Meta(type):
        __eq__ = __hash__ = None
        __instancecheck__ = __subclasscheck__ = None

    trap = Trap()
    root = weakref.ref(Node(value=array(30), trap=trap, cls=Meta("Hostile", (), {})()))
    del trap
    assert found_mb(root) == 30


# -- any graph -------------------------------------------------------------------------------------

COUNT = 6
EDGES = st.lists(st.tuples(st.integers(0, COUNT - 1), st.integers(0, COUNT - 1)), max_size=14)
HELD = st.lists(st.tuples(st.integers(0, COUNT - 1), st.integers(0, 2)), max_size=6)


class Plain:
    def __init__(self):
        self.below = []


@given(EDGES, HELD, st.sets(st.integers(0, COUNT - 1), max_size=3))
@settings(max_examples=300, deadline=None)
def test_any_graph(edges, held, alive):
    """From each object exactly the arrays below it that the collector then frees, if it is freed itself."""
    gc.collect()  # what the last example kept alive
    blocks = [array(2 + i) for i in range(3)]
    nodes = [Plain() for _ in range(COUNT)]
    for upper, lower in edges:
        nodes[upper].below.append(nodes[lower])
    for place, block in held:
        nodes[place].below.append(blocks[block])
    roots = [weakref.ref(node) for node in nodes]
    reach = [{place} for place in range(COUNT)]
    for _ in range(COUNT):
        for upper, lower in edges:
            reach[upper] |= reach[lower]
    watched = [weakref.ref(block) for block in blocks]
    kept = [nodes[place] for place in sorted(alive)]
    below = [{block for place, block in held if place in reach[root]} for root in range(COUNT)]
    del nodes, blocks
    block = upper = lower = None
    told = [found_mb(root) for root in roots]
    was = [ref() is not None for ref in roots]
    gc.collect()
    gone = {place for place, ref in enumerate(watched) if ref() is None}
    for place, root in enumerate(roots):
        sizes = sum(2 + block for block in below[place] & gone)
        # Never more than is freed. An object that another garbage one refers to is not proven to be garbage.
        assert told[place] <= (sizes if was[place] and root() is None else 0)
        holders = {upper for upper, lower in edges if lower in reach[place]}
        if was[place] and root() is None and holders <= reach[place]:
            in_it = {b for b in below[place] if {p for p, one in held if one == b} <= reach[place]}
            assert told[place] >= sum(2 + block for block in in_it & gone)
    assert len(kept) == len(alive)
