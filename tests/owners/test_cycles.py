"""Reference cycles that wait for the garbage collector: only what nobody alive holds, and nothing is collected."""

import gc
import sys
import threading
import types
import weakref

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from memory import MB

from ipygpulogger.owners.cycles import unreachable_bytes
from ipygpulogger.owners.host_arrays import HOST

HOLDINGS = [HOST.holding]


@pytest.fixture(autouse=True)
def quiet(settled):
    """No collection but our own."""
    gc.disable()
    yield
    gc.enable()


def found_mb(claimed=()):
    found = unreachable_bytes(HOLDINGS, claimed, budget_s=60)
    assert found.keys() <= {"cpu"}
    return found.get("cpu", 0) / MB


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


def in_itself(value):
    held = [value]
    held.append(held)


def failed(value):
    try:
        len(value, value)
    except TypeError as error:
        kept = error  # a frame, and an exception that holds it by its traceback
        assert kept


def suspended(value):
    def generator():
        me = yield
        yield me, value

    running = generator()
    next(running)
    running.send(running)


def closure(value):
    def function():
        return function, value


CYCLES = {
    "an object's attribute": lambda value: Node(value=value),
    "slots": Slots,
    "a list in itself": in_itself,
    "a dict that the collector does not track": lambda value: Node(cache={"key": value}),
    "a tuple that it does not track": lambda value: Node(cache=(value, "word")),
    "both": lambda value: Node(cache={"key": ({"deep": value}, 1)}),
    "a frame and its exception": failed,
    "a generator that waits": suspended,
    "a closure": closure,
    "a class": lambda value: type("Written", (), {"value": value}),
    "far below": lambda value: Node(a=[[Node(b={"c": [Slots(value)]})]]),
    "a view of it": lambda value: Node(view=value[5:10]),
    "several views": lambda value: Node(view=value[5:10], other=[value[1:], value]),
    "a memory of bytes": lambda value: Node(value=bytes(value.nbytes)),
    "a subclass": lambda value: Node(value=value.view(type("Mine", (np.ndarray,), {}))),
}


@pytest.mark.parametrize("kind", CYCLES)
def test_every_kind_of_cycle(kind):
    """30 MB in a dropped cycle wait for the collector, and are still there after we looked; then they are not."""
    CYCLES[kind](array(30))
    assert found_mb() == pytest.approx(30, abs=0.001)
    assert found_mb() == pytest.approx(30, abs=0.001)
    gc.collect()
    assert found_mb() == 0


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
def test_what_somebody_alive_holds_is_no_garbage(holder):
    """The same array is in a dropped cycle, too: it would not go with that."""
    value = array(30)
    Node(value=value)
    release = holder(value)
    del value
    try:
        assert found_mb() == 0
    finally:
        release()


@pytest.mark.parametrize("holder", ALIVE)
def test_what_an_object_alive_holds_is_no_garbage(holder):
    """The object that has the array is somebody's."""
    node = Node(value=array(30))
    release = holder([node, np.ones(9)] if holder is not in_a_view_in_c else node.value)
    del node
    try:
        assert found_mb() == 0
    finally:
        release()


def test_a_variable_here_is_alive():
    """A local of a running function."""
    node = Node(value=array(30))
    assert found_mb() == 0
    del node
    assert found_mb() == 30


def test_what_names_hold_is_not_looked_for():
    """The keys that the walk claimed are left out."""
    value = array(30)
    key = HOST.holding(value).key
    Node(value=value)
    del value
    assert found_mb(claimed={key}) == 0
    assert found_mb() == 30


def test_nothing_changes():
    """No object dies, none is made to live, and the collector's settings stay."""
    died = []
    node = Node(value=array(2))
    weakref.finalize(node, died.append, 1).atexit = False
    del node
    before = gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.get_freeze_count()
    found_mb()
    assert (gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.get_freeze_count()) == before
    assert not died
    gc.collect()
    assert died


def test_no_time_is_no_garbage():
    """What is undecided does not count."""
    Node(value=array(30))
    assert unreachable_bytes(HOLDINGS, (), budget_s=0) == {}


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
    node = Node(value=array(30), trap=trap, cls=Meta("Hostile", (), {})())
    del node, trap
    assert found_mb() == 30


# -- any graph -------------------------------------------------------------------------------------

COUNT = 6
EDGES = st.lists(st.tuples(st.integers(0, COUNT - 1), st.integers(0, COUNT - 1)), max_size=14)
HELD = st.lists(st.tuples(st.integers(0, COUNT - 1), st.integers(0, 2)), max_size=6)


@given(EDGES, HELD, st.sets(st.integers(0, COUNT - 1), max_size=3))
@example([(2, 0), (0, 3)], [(1, 0), (3, 1)], {1, 2, 4})  # who is alive is known before all that it holds
@settings(max_examples=300, deadline=None)
def test_any_graph(edges, held, alive):
    """Exactly the arrays of unreachable objects are told: the collector agrees to the byte."""
    gc.collect()  # what the last example kept alive
    blocks = [array(2 + i) for i in range(3)]
    nodes = [[] for _ in range(COUNT)]
    for upper, lower in edges:
        nodes[upper].append(nodes[lower])
    for place, block in held:
        nodes[place].append(blocks[block])
    watched = [weakref.ref(block) for block in blocks]
    kept = [nodes[place] for place in sorted(alive)]
    del nodes, blocks
    block = upper = lower = None
    told = found_mb()
    sizes = [ref().nbytes / MB if ref() is not None else 0 for ref in watched]
    gc.collect()
    left = [ref().nbytes / MB if ref() is not None else 0 for ref in watched]
    assert told == sum(sizes) - sum(left)
    assert len(kept) == len(alive)
