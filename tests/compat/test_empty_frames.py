"""Which local variables of failed calls are released, and which are left alone."""

import gc
import sys
import threading
import types
import weakref
from contextlib import contextmanager

import pytest
from guards import GROUPS, GUARDS, OURS, Thing, caught, marked, step
from hypothesis import given, settings
from hypothesis import strategies as st

from ipygpulogger.compat import tracebacks
from ipygpulogger.compat.tracebacks import gpu_mem_restore_ctx
from ipygpulogger.owners import referents

# -- what is not ours to let go --------------------------------------------------------------------


def test_calls_that_run_go_on(guard):
    """The caller's, and another thread's whose exception has come over: their variables stay."""
    reported, over, results = [], threading.Event(), []

    def work():
        mine = Thing()
        try:
            step(KeyError("a"), [])
        except KeyError as error:
            reported.append(error)
        ready.set()
        over.wait()
        results.append(type(mine))

    def call():
        raise ValueError from reported.pop()

    ready, mine = threading.Event(), Thing()
    thread = threading.Thread(target=work)
    thread.start()
    try:
        ready.wait()
        error = caught(guard(call))
    finally:
        over.set()
        thread.join()
    assert (results, type(mine), type(error.__cause__)) == ([Thing], Thing, KeyError)


def test_what_is_raised_again_is_let_go(guard):
    """The exception that leaves the block gives its memory back, even if it came from before it."""
    held = []
    try:
        step(ValueError("x"), held)
    except ValueError as error:

        def again(one=error):
            raise one

        assert caught(guard(again)) is error
    assert held[0]() is None


def test_a_namespace_that_the_user_holds_stays(guard):
    """A cell's, a script's, one that `exec` was given as an embedded shell does, and what `locals()` returned."""
    kept = []

    def call():
        mine = Thing()
        kept.append(locals())
        mine + 1

    module, local = {"caught": caught, "Thing": Thing}, {"kept": Thing()}
    code = compile("x = Thing(); y = [x]; 1 / 0", "<cell>", "exec")
    error = caught(guard(lambda: exec(code, module)))
    assert type(module["x"]) is Thing
    assert module["y"] == [module["x"]]
    assert referents.frames_of(error)[-1].f_locals is module
    assert caught(guard(lambda: exec("mine = kept; 1 / 0", {}, local)))
    assert set(local) == {"kept", "mine"}
    assert caught(guard(call))
    assert type(kept[0]["mine"]) is Thing


def test_a_closure_that_lives_on_is_whole(guard):
    """A function that failed inside, or shares variables with one that did, works on if somebody has it."""
    kept, held = [], []

    def call():
        mine, yours = marked(held), marked(held)

        def one(*, value=marked(held)):  # noqa: B008 - a default is what is tried
            return mine, value

        def other():
            return one() + one

        kept.append(one)
        kept.append(yours)
        other()

    error = caught(guard(call))
    mine, yours, value = [thing() for thing in held]
    assert kept[0]() == (mine, value)
    assert kept[1] is yours
    assert None not in (mine, yours, value)
    kept.clear()
    del mine, yours, value
    gc.collect()
    assert [thing() for thing in held[:2]] == [None, None], error


@pytest.mark.parametrize("deferred", [False, True])
def test_another_way_of_counting_breaks_no_function(guard, monkeypatch, deferred):
    """One less for every value, as where references are borrowed; a huge number for functions (no GIL)."""
    kept, held = [], []

    def call(keep):
        mine = marked(held)

        def inner():
            return mine + 1

        keep(inner)
        inner()

    def count(value):
        return (
            plain(value) + (1 << 60) * isinstance(value, types.FunctionType) if deferred else plain(value) - 1
        )

    plain = sys.getrefcount
    monkeypatch.setattr(sys, "getrefcount", count)
    monkeypatch.setattr(tracebacks, "_ONE_MORE", tracebacks._references(list(tracebacks._HOLDER))[0])
    errors = [caught(guard(lambda keep=keep: call(keep))) for keep in (kept.append, id)]
    assert kept[0].__closure__[0].cell_contents is held[0]()
    assert deferred or held[1]() is None
    assert len(errors) == 2


def test_one_context_many_blocks():
    """One object serves one block after another, and one within another."""
    context, held = gpu_mem_restore_ctx(), []
    with context:
        for _ in range(2):
            with pytest.raises(KeyError), context, context:
                step(KeyError("a"), held)
    assert [thing() for thing in held] == [None, None]
    with pytest.raises(ValueError, match="x"), context:
        raise ValueError("x")


# -- any nest of calls -----------------------------------------------------------------------------


class World:
    """Every object that a call made: dead once the call has failed, or alive with its generator."""

    def __init__(self):
        self.dead, self.alive, self.waiting = [], [], []

    def mark(self):
        return marked(self.dead)

    def keep(self):
        return marked(self.alive)


class Failure(Exception):
    pass


def link(plan, world):
    """Fail as the plan says, with the calls that it names inside."""
    how, calls = plan
    mine = world.mark()
    if how == "raise":
        raise Failure(how)
    if how == "through":
        enter(calls[0], world)
    elif how == "bystander":  # lives on, with an exception caught that the failure is linked to
        alive = bystander(calls[0], world)
        world.waiting.append(alive)
        raise Failure(how) from alive.send(None)
    elif how == "group" and GROUPS:
        raise ExceptionGroup(how, [caught(enter, call, world) for call in calls])  # noqa: F821
    else:
        try:
            enter(calls[0], world)
        except Exception as error:
            yours = world.mark()
            if how == "from":
                raise Failure(how) from error
            if how == "from None":
                raise Failure(how) from None
            enter(calls[-1], world)
            del yours
    del mine


def bystander(call, world):
    mine = world.keep()
    try:
        enter(call, world)
    except Exception as error:
        yield error
    yield mine


def a_function(plan, world):
    mine = world.mark()
    locals()
    link(plan, world)
    return mine


def a_generator(plan, world):
    mine = world.mark()
    yield
    yield from [link(plan, world)]
    return mine


async def a_coroutine(plan, world):
    mine = world.mark()
    link(plan, world)
    return mine


def a_closure(plan, world):
    mine = world.mark()

    def inner():
        link(plan, world)
        return mine

    return inner()


def a_class(plan, world):
    class Body:
        mine = world.mark()
        value = link(plan, world)

    return Body


def defaults(plan, world):
    mine = world.mark()

    def inner(x=mine, *, y=world.mark()):  # noqa: B008 - a default is what is tried
        return link(plan, world), x, y

    inner()


class Net:
    def forward(self, plan, world):
        world.dead.append(weakref.ref(self))
        link(plan, world)


async def asynchronous_generator(plan, world):
    mine = world.mark()
    yield 1
    yield link(plan, world), mine


async def exhaust(plan, world):
    return [x async for x in asynchronous_generator(plan, world)]


def a_namespace(plan, world):
    code = "mine = world.mark(); link(plan, world)"
    exec(code, {"link": link, "plan": plan, "world": world}, {})


KINDS = {
    "asynchronous generator": lambda *args: exhaust(*args).send(None),
    "defaults": defaults,
    "method": lambda *args: Net().forward(*args),
    "namespace": a_namespace,
    "function": a_function,
    "generator": lambda *args: list(a_generator(*args)),
    "coroutine": lambda *args: a_coroutine(*args).send(None),
    "closure": a_closure,
    "class": a_class,
}


def enter(call, world):
    kind, plan = call
    return KINDS[kind](plan, world)


def calls_of(plans):
    links = st.sampled_from(["through", "from", "from None", "context", "group", "bystander"])
    return st.tuples(links, st.lists(st.tuples(st.sampled_from(list(KINDS)), plans), min_size=1, max_size=3))


PLANS = st.recursive(st.just(("raise", [])), calls_of, max_leaves=8)


@contextmanager
def in_ipython():
    """As `shell` has it, but for each example anew: none of its garbage is old."""
    was = tracebacks.is_in_ipython
    tracebacks.is_in_ipython = lambda: True
    try:
        yield
    finally:
        tracebacks.is_in_ipython = was


@settings(max_examples=100, deadline=None)
@given(plan=PLANS, name=st.sampled_from(list(GUARDS)))
def test_any_nest_of_calls(plan, name):
    """Every object of a call that is over is gone, everything that lives is untouched."""
    world = World()
    with in_ipython(), pytest.MonkeyPatch.context() as patch:
        patch.setenv(OURS, "1")
        guarded = GUARDS[name](link)
        error = caught(guarded, plan, world)
    assert isinstance(error, Exception)
    assert world.dead
    assert [thing() for thing in world.dead] == [None] * len(world.dead)
    assert len(world.alive) == len(world.waiting)
    assert [alive.send(None) for alive in world.waiting] == [thing() for thing in world.alive]
