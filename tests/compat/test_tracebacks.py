"""A failed call lets its memory go and the very same exception goes on; with plain objects for memory.

Sentences in quotation marks are the contract's: what fastai and ipyexperiments do or promise.
"""

import asyncio
import builtins
import gc
import json
import os
import subprocess
import sys
import threading
import traceback
import types
import warnings
import weakref
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipygpulogger.compat import tracebacks
from ipygpulogger.compat.tracebacks import (
    get_ref_free_exc_info,
    gpu_mem_restore,
    gpu_mem_restore_ctx,
    ipython_tb_clear_frames,
    ipython_tb_clear_frames_ctx,
    is_in_colab,
    is_in_ipython,
)
from ipygpulogger.owners import frames
from ipygpulogger.utils import ipython as door

GROUPS = hasattr(builtins, "ExceptionGroup")  # came with 3.11
OURS, FASTAIS = "IPYGPULOGGER_TB_CLEAR_FRAMES", "FASTAI_TB_CLEAR_FRAMES"
NO_MEMORY = "CUDA out of memory. Tried to allocate 2.00 GiB"
ASSERTED = "CUDA error: device-side assert triggered"
RESTART = (  # word by word
    "When 'device-side assert triggered' error happens, it's not possible to recover and you must restart the "
    "kernel to continue. Use os.environ['CUDA_LAUNCH_BLOCKING']=\"1\" before restarting to debug"
)


class Thing:
    """Memory, of which it is known whether it is still held."""


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    monkeypatch.delenv(OURS, raising=False)
    monkeypatch.delenv(FASTAIS, raising=False)
    monkeypatch.setattr(tracebacks, "_warned_of", ())


def caught(function, *args):
    """The exception that a call ends with, which keeps its traceback alive."""
    try:
        function(*args)
    except BaseException as error:
        return error
    raise AssertionError("it did not fail")


def step(error, held):
    mine = Thing()
    held.append(weakref.ref(mine))
    raise error


def lets_go(guarded, error=None):
    """Whether a failed call's memory is back while its exception is still held."""
    held, error = [], error or ValueError("x")
    raised = caught(guarded(step), error, held)
    assert raised is error
    assert raised.__traceback__.tb_next is not None
    return held[0]() is None


def within(context):
    """A decorator that calls a function in a context."""

    def guarded(function):
        def call(*args):
            with context():
                return function(*args)

        return call

    return guarded


CONTEXTS = [gpu_mem_restore_ctx, ipython_tb_clear_frames_ctx]
GUARDS = {
    "gpu_mem_restore": gpu_mem_restore,
    "ipython_tb_clear_frames": ipython_tb_clear_frames,
    **{context.__name__: within(context) for context in CONTEXTS},
}


@pytest.fixture(params=GUARDS)
def guard(request, shell, monkeypatch):
    """Each of the four, such that any exception is a reason."""
    monkeypatch.setenv(OURS, "1")
    return GUARDS[request.param]


def test_it_can_be_seen_that_nothing_is_let_go():
    """A meta-test: without a guard the exception keeps the memory."""
    assert not lets_go(lambda function: function)


# -- which calls, which exceptions -----------------------------------------------------------------


@pytest.mark.parametrize("decorator", [gpu_mem_restore, ipython_tb_clear_frames])
def test_decorators_outside_ipython(decorator, monkeypatch):
    """ "Plain call if not IS_IN_IPYTHON"; "any exception, IPython only"."""
    for setting in (None, "0", "1"):
        if setting:
            monkeypatch.setenv(OURS, setting)
        assert not lets_go(decorator, RuntimeError(NO_MEMORY))


def test_ipython_is_asked_for_at_each_call(shell, monkeypatch):
    """Decorated before the shell was there, or after it went: the call decides, not the import."""
    guarded, held = ipython_tb_clear_frames(step), []
    monkeypatch.setattr(type(shell), "initialized", classmethod(lambda _: False))
    one = caught(guarded, ValueError(1), held)
    monkeypatch.undo()
    two = caught(guarded, ValueError(2), held)
    assert [thing() is None for thing in held] == [False, True], (one, two)


@pytest.mark.parametrize(
    ("ours", "fastais", "always", "on_no_memory"),
    [
        (None, None, False, True),
        (None, "0", False, False),
        (None, "1", True, True),
        ("0", None, False, False),
        ("1", None, True, True),
        ("0", "1", False, False),
        ("1", "0", True, True),
        ("", "1", True, True),
    ],
)
def test_the_setting(shell, monkeypatch, ours, fastais, always, on_no_memory):
    """ "Values: "0" never strip, "1" always strip, unset: only the errors above"; our own variable wins."""
    guarded, held = gpu_mem_restore(step), []
    for name, value in ((OURS, ours), (FASTAIS, fastais)):
        if value is not None:
            monkeypatch.setenv(name, value)  # "The env var is read per call"
    errors = [ValueError("x"), KeyboardInterrupt(), RuntimeError(NO_MEMORY)]
    raised = [caught(guarded, error, held) for error in errors]
    assert raised == errors
    assert [thing() is None for thing in held] == [always, always, on_no_memory]


class OutOfMemoryError(RuntimeError):
    __module__ = "torch"


class XlaRuntimeError(RuntimeError):
    pass


class Wordy(Exception):
    def __str__(self):
        return NO_MEMORY


class Broken(Exception):
    def __str__(self):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("error", "of_the_device"),
    [
        (RuntimeError(NO_MEMORY), True),
        (RuntimeError(ASSERTED), True),
        (OutOfMemoryError("in other words"), True),
        (XlaRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 17 bytes."), True),
        (RuntimeError(RuntimeError(NO_MEMORY)), True),
        (Wordy(), True),
        (Broken(), False),
        (MemoryError(), False),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (KeyboardInterrupt(), False),
        (SystemExit(3), False),
    ],
)
@pytest.mark.filterwarnings("ignore:When 'device-side")
def test_the_devices_errors(shell, error, of_the_device):
    """C13: "follow the code (OOM + device-side assert)"; `"CUDA out of memory" in str(e)`, and more kinds."""
    assert lets_go(gpu_mem_restore, error) is of_the_device


@pytest.mark.parametrize("how", ["cause", "context", "suppressed", "group", "behind a broken one"])
def test_the_devices_error_anywhere_in_the_chain(shell, how):
    """The error that led to the one that arrives is a reason too."""
    if how == "group" and not GROUPS:
        pytest.skip("exception groups came with 3.11")
    error, reason = ValueError("the epoch failed"), RuntimeError(NO_MEMORY)
    if how == "cause":
        error.__cause__ = reason
    elif how == "group":
        error = ExceptionGroup("all", [ValueError(), reason])  # noqa: F821
    else:
        error = Broken() if how == "behind a broken one" else error
        reason = Wordy() if how == "behind a broken one" else reason
        error.__context__, error.__suppress_context__ = reason, how == "suppressed"
    assert lets_go(gpu_mem_restore, error)


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize(
    "error", [ValueError("x"), KeyboardInterrupt(), SystemExit(1), asyncio.CancelledError()]
)
@pytest.mark.parametrize("setting", [None, "0"])
def test_contexts_are_unconditional(context, error, setting, monkeypatch):
    """ "any exception (BaseException incl. KeyboardInterrupt), no IPython check, no env check"."""
    if setting:
        monkeypatch.setenv(OURS, setting)
    assert not is_in_ipython()
    assert lets_go(within(context), error)


@pytest.mark.parametrize("hook", ["settrace", "setprofile"])
def test_under_a_debugger_or_a_profiler(hook):
    """Their hooks change what Python tells of a frame; a call that is over is let go all the same."""

    def watch(frame, event, argument):
        return watch

    was = getattr(sys, hook.replace("set", "get"))()

    def guarded(function):
        def call(*args):
            getattr(sys, hook)(watch)
            try:
                with gpu_mem_restore_ctx():
                    function(*args)
            finally:
                getattr(sys, hook)(was)

        return call

    assert lets_go(guarded)


def test_any_exception(shell, monkeypatch):
    """`ipython_tb_clear_frames(func)`: "any exception, IPython only"; "0" says never to it as well."""
    for error in (ValueError("x"), KeyboardInterrupt()):
        assert lets_go(ipython_tb_clear_frames, error)
    monkeypatch.setenv(OURS, "0")
    assert not lets_go(ipython_tb_clear_frames)


def test_without_failure(guard):
    """A result comes back, and nothing is collected, where nothing failed."""
    collections = []
    gc.callbacks.append(lambda _, info: collections.append(info["generation"]))
    try:
        assert guard(lambda *args: args)(1, 2) == (1, 2)
        assert 2 not in collections
    finally:
        gc.callbacks.pop()


# -- the assert that ends a device -----------------------------------------------------------------


def warned_of(function, *args):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        caught(function, *args)
    return [(str(one.message), one.category) for one in said]


def test_a_failed_assert_is_warned_of(shell):
    """ "On a device-side assert it also warns", once for each failure, through nested and chained guards."""

    @gpu_mem_restore
    def inner(error):
        raise error

    @gpu_mem_restore
    def outer(error):
        inner(error)

    @gpu_mem_restore
    def wrapped(error):
        try:
            inner(error)
        except RuntimeError as reason:
            raise RuntimeError(str(reason), 1) from reason

    @gpu_mem_restore
    def unwrapped(error):
        try:
            raise error
        except RuntimeError as reason:
            raise RuntimeError(str(reason), 1) from reason

    twice = gpu_mem_restore(unwrapped)
    for function in (inner, outer, wrapped, inner, twice, inner):
        assert warned_of(function, RuntimeError(ASSERTED)) == [(RESTART, UserWarning)]
    for error in (ValueError("x"), RuntimeError(NO_MEMORY)):
        assert warned_of(outer, error) == []


def test_the_warning_is_said_with_every_setting_but_never(shell, monkeypatch):
    """With "1" too; with "0" the function is called plainly."""
    for setting, said in (("1", [(RESTART, UserWarning)]), ("0", [])):
        monkeypatch.setenv(OURS, setting)
        assert warned_of(gpu_mem_restore(step), RuntimeError(ASSERTED), []) == said


def test_where_warnings_are_errors(shell):
    """The exception that goes on is the user's, and the memory is back."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lets_go(gpu_mem_restore, RuntimeError(ASSERTED))


def test_the_warning_keeps_nothing_alive(shell):
    """What a failed assert carried is not pinned until the next one."""
    thing = Thing()
    held = weakref.ref(thing)
    warned_of(gpu_mem_restore(step), RuntimeError(ASSERTED, thing), [])
    del thing
    gc.collect()
    assert held() is None


# -- the very same exception -----------------------------------------------------------------------


class Demanding(Exception):
    def __init__(self, code, *, where):
        super().__init__(f"{code} at {where}")
        self.code, self.where = code, where


def decode_error():
    return caught(b"ab\xff".decode, "utf-8")


ERRORS = {
    "UnicodeDecodeError": (decode_error, ("encoding", "object", "start", "end", "reason")),
    "CalledProcessError": (
        lambda: subprocess.CalledProcessError(7, ["make"], output=b"out", stderr=b"err"),
        ("returncode", "cmd", "output", "stderr"),
    ),
    "JSONDecodeError": (lambda: caught(json.loads, "{"), ("msg", "doc", "pos", "lineno", "colno")),
    "KeyError": (lambda: KeyError("a"), ()),
    "OSError": (lambda: FileNotFoundError(2, "No such file", "a.txt"), ("errno", "strerror", "filename")),
    "SystemExit": (lambda: SystemExit(3), ("code",)),
    "Demanding": (lambda: Demanding(5, where="here"), ("code", "where")),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_the_same_object_goes_on(guard, kind):
    """ "Re-raise by `Cls(val)`: ... attributes and args are lost, `__cause__` dropped": not here."""
    make, names = ERRORS[kind]
    error, cause, context = make(), ValueError("cause"), ValueError("context")
    error.__cause__, error.__context__, error.__suppress_context__ = cause, context, False
    error.mine = ["an attribute"]
    error.__notes__ = ["a note"]
    before = (
        type(error),
        error.args,
        str(error),
        repr(error),
        dict(vars(error)),
        [getattr(error, n) for n in names],
    )
    raised = caught(guard(step), error, [])
    after = (
        type(raised),
        raised.args,
        str(raised),
        repr(raised),
        dict(vars(raised)),
        [getattr(raised, n) for n in names],
    )
    assert raised is error
    assert after == before
    assert (raised.__cause__, raised.__context__, raised.__suppress_context__) == (cause, context, False)


def test_from_none_stays_from_none(guard):
    """Nothing of how the exceptions are linked changes."""

    def call():
        try:
            {}["a"]
        except KeyError:
            raise ValueError("b") from None

    raised = caught(guard(call))
    assert raised.__suppress_context__
    assert raised.__cause__ is None
    assert type(raised.__context__) is KeyError


def test_the_traceback_can_be_read(guard):
    """Every line of the failed call is shown as it is without the guard."""

    def shown(error):
        return [
            (one.filename, one.lineno, one.name, one.line)
            for one in traceback.extract_tb(error.__traceback__)
        ]

    def outer():
        try:
            step(KeyError("a"), [])
        except KeyError as error:
            raise ValueError("b") from error

    plain, guarded = caught(outer), caught(guard(outer))
    assert shown(guarded)[-1:] == shown(plain)[-1:]
    assert shown(guarded.__cause__) == shown(plain.__cause__)
    assert (
        "".join(traceback.format_exception(type(guarded), guarded, guarded.__traceback__)).count("step(") == 1
    )


@pytest.mark.parametrize("breaks", ["empty_frames", "machine", "gc", "out_of_memory_in", "chain"])
@pytest.mark.parametrize("reason", [ZeroDivisionError, KeyboardInterrupt, MemoryError])
def test_a_failure_of_ours_is_not_the_users(shell, monkeypatch, breaks, reason):
    """Whatever fails while memory is let go, or interrupts it, the user's own exception goes on."""

    def broken(*_, **__):
        raise reason

    error, call = RuntimeError(NO_MEMORY), gpu_mem_restore(step)
    if breaks == "chain":  # only once the call has begun
        whole = frames.chain
        monkeypatch.setattr(tracebacks, "chain", lambda one: whole(one) if one is None else broken())
    else:
        value = types.SimpleNamespace(collect=broken) if breaks == "gc" else broken
        monkeypatch.setattr(tracebacks, breaks, value)
    assert caught(call, error, []) is error
    assert error.__context__ is None


def test_memory_comes_back_to_the_device(guard, monkeypatch):
    """Cycles are collected, whichever generation they reached, and the framework's cache is emptied after it."""
    settled = []
    settling = types.SimpleNamespace(settle=lambda **how: settled.append((how, cycle[0]() is None)))
    monkeypatch.setattr(tracebacks, "machine", lambda: types.SimpleNamespace(settling=settling))
    cycle = []

    def call():
        thing = Thing()
        thing.itself = thing
        cycle.append(weakref.ref(thing))
        for _ in range(3):
            gc.collect()
        raise ValueError

    caught(guard(call))
    assert settled == [({"gc_collect": False, "clear_cache": True}, True)]


# -- what is let go --------------------------------------------------------------------------------


def marked(held):
    thing = Thing()
    held.append(weakref.ref(thing))
    return thing


def nested(held):
    mine = marked(held)

    def inner(x=mine, *, y=marked(held)):  # noqa: B008 - a default is what is tried
        yours = marked(held)
        return x / y / yours

    inner()


class Net:
    def __init__(self, held):
        held.append(weakref.ref(self))
        self.held = held

    def forward(self):
        act = marked(self.held)
        return act + self


def generator(held):
    mine = marked(held)
    yield mine
    yield mine + 1


def outer_generator(held):
    mine = marked(held)
    yield from generator(held)
    return mine


async def coroutine(held):
    mine = marked(held)
    await asyncio.sleep(0)
    return mine + 1


async def asynchronous_generator(held):
    mine = marked(held)
    yield 1
    yield mine + 1


async def exhaust(held):
    return [x async for x in asynchronous_generator(held)]


def comprehension(held):
    mine = [marked(held)]
    return [[x + y for y in [1]] for x in mine]


def class_body(held):
    class Inner:
        mine = marked(held)
        yours = mine + 1


def cell_variables(held):
    mine = marked(held)

    def inner():
        return mine

    return inner() + 1


def reads_locals(held):
    mine = marked(held)
    assert locals()["mine"] is mine  # up to 3.12 this leaves a copy of them in the frame
    return mine + 1


def own_namespace(held):
    exec("mine = marked(held); mine + 1", {"marked": marked, "held": held}, {})


FAILING = {
    "a nested function": nested,
    "a method": lambda held: Net(held).forward(),
    "a generator": lambda held: list(generator(held)),
    "a generator within one": lambda held: list(outer_generator(held)),
    "a comprehension": comprehension,
    "a coroutine": lambda held: asyncio.run(coroutine(held)),
    "an asynchronous generator": lambda held: asyncio.run(exhaust(held)),
    "the body of a class": class_body,
    "a variable of a closure": cell_variables,
    "a function that asks for its locals": reads_locals,
    "code in a namespace of its own": own_namespace,
}


@pytest.mark.parametrize("where", FAILING)
def test_what_failed_calls_held(guard, where):
    """ "Nested functions, methods, generators, comprehensions, class bodies": all of it is back."""
    held = []
    without = caught(FAILING[where], held)
    assert held[0]() is not None, without
    held.clear()
    error = caught(guard(FAILING[where]), held)
    assert held
    assert [thing() for thing in held] == [None] * len(held), error


def run_out(batch, held):
    raise RuntimeError(NO_MEMORY, held and batch is None)


class Trainer:
    """Each kind of function that has memory in its arguments only."""

    @gpu_mem_restore
    def method(self, batch, held):
        run_out(batch, held)

    @classmethod
    @gpu_mem_restore
    def of_class(cls, batch, held):
        run_out(batch, held)

    @gpu_mem_restore
    @staticmethod
    def static(batch, held):
        run_out(batch, held)

    @gpu_mem_restore
    def steps(self, batch, held):
        yield 1
        run_out(batch, held)

    @gpu_mem_restore
    async def wait(self, batch, held):
        await asyncio.sleep(0)
        run_out(batch, held)


CALLS = {
    "a method": lambda held: Trainer().method(marked(held), held),
    "a class method": lambda held: Trainer.of_class(marked(held), held=held),
    "a static method": lambda held: Trainer.static(batch=marked(held), held=held),
    "a generator": lambda held: list(Trainer().steps(marked(held), held)),
    "a coroutine": lambda held: asyncio.run(Trainer().wait(marked(held), held)),
}


@pytest.mark.parametrize("how", CALLS)
def test_arguments(shell, how):
    """What only the arguments hold is back too, whatever kind of function is decorated."""
    held = []
    error = caught(CALLS[how], held)
    assert error.args[0] == NO_MEMORY
    assert held[0]() is None


def test_a_decorated_function_is_itself():
    """Name, document, signature and kind stay."""
    import inspect

    for decorator in (gpu_mem_restore, ipython_tb_clear_frames):
        one = decorator(step)
        assert (one.__name__, one.__wrapped__) == ("step", step)
        assert inspect.signature(one) == inspect.signature(step)
        assert inspect.isgeneratorfunction(decorator(generator))
        assert inspect.iscoroutinefunction(decorator(coroutine))
        with pytest.raises(TypeError, match=rf"^{decorator.__name__} takes a function"):
            decorator(Thing)


def test_get_ref_free_exc_info():
    """ "-> (type, val, cleared tb)": as `sys.exc_info()`; "without them it leaks until the next exception"."""
    held = []
    try:
        step(KeyError("a"), held)
    except KeyError as error:
        assert held[0]() is not None
        assert get_ref_free_exc_info() == (KeyError, error, error.__traceback__)
        assert get_ref_free_exc_info() == sys.exc_info()
        assert held[0]() is None
    assert get_ref_free_exc_info() == (None, None, None)


# -- what is not ours to let go --------------------------------------------------------------------


def test_a_generator_that_waits_goes_on(guard):
    """Its frame is in the traceback of an exception that it caught; it is neither ended nor emptied."""
    ended, held = [], []

    def waiting():
        mine = marked(held)
        try:
            try:
                step(KeyError("a"), held)
            except KeyError as error:
                yield error
            yield mine
        finally:
            ended.append(True)

    alive = waiting()

    def call():
        raise ValueError from next(alive)

    error = caught(guard(call))
    assert type(error.__cause__) is KeyError
    assert not ended
    assert [thing() is None for thing in held] == [False, True]  # the call within it is over
    assert next(alive) is held[0]()
    assert next(alive, "over") == "over"
    assert ended


@types.coroutine
def pause():
    yield


async def waits(failures, held):
    mine = marked(held)
    failures.append(KeyError("a"))
    failures[0].__traceback__ = types.TracebackType(None, sys._getframe(), 0, 1)
    await pause()
    return mine


async def waits_within(failures, held):
    mine = marked(held)
    failures.append(KeyError("a"))
    failures[0].__traceback__ = types.TracebackType(None, sys._getframe(), 0, 1)
    yield 1
    await pause()
    yield mine


def finish(awaitable):
    """What it is worth in the end."""
    while True:
        try:
            awaitable.send(None)
        except StopIteration as end:
            return end.value


def test_a_coroutine_that_waits_goes_on(guard):
    """So do coroutines."""
    failures, held = [], []
    alive = waits(failures, held)
    alive.send(None)
    error = caught(guard(step), failures[0], [])
    assert finish(alive) is held[0]()
    assert error is failures[0]


def test_an_asynchronous_generator_that_waits_goes_on(guard):
    """So do asynchronous generators."""
    failures, held = [], []
    alive = waits_within(failures, held)
    assert finish(alive.__anext__()) == 1
    error = caught(guard(step), failures[0], [])
    assert finish(alive.__anext__()) is held[0]()
    assert error is failures[0]
    finish(alive.aclose())


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


def test_what_is_handled_outside_stays(guard):
    """An exception that was being handled as the call began, with its cause, is left as it is."""
    held, inside = [], []

    def earlier():
        try:
            step(KeyError("a"), held)
        except KeyError as error:
            raise TypeError from error

    def call():
        step(ValueError("x"), inside)

    try:
        earlier()
    except TypeError as handled:
        error = caught(guard(call))
        assert error.__context__ is handled
        assert held[0]() is not None
        assert frames.locals_of(frames.frames_of(handled.__cause__)[-1])
    assert inside[0]() is None


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


def test_the_block_keeps_nothing_alive():
    """What was handled as a generator's block began is not pinned by the block."""

    def steps():
        with gpu_mem_restore_ctx():
            yield 1
            yield 2

    held, alive = [], steps()
    try:
        step(ValueError("x"), held)
    except ValueError:
        next(alive)
    gc.collect()
    assert held[0]() is None
    assert next(alive) == 2


def test_a_closed_generator_has_not_failed(guard):
    """Leaving a decorated generator early costs no collection."""

    def steps():
        yield 1
        yield 2

    collections, alive = [], guard(steps)()
    next(alive)
    gc.callbacks.append(lambda _, info: collections.append(info["generation"]))
    try:
        alive.close()
    finally:
        gc.callbacks.pop()
    assert 2 not in collections


def test_names_of_a_module_stay(guard):
    """A cell's, a script's: what has its names in a dict of others keeps them, at any depth."""
    names = {"caught": caught, "Thing": Thing}
    code = compile("x = Thing(); y = [x]; 1 / 0", "<cell>", "exec")
    error = caught(guard(lambda: exec(code, names)))
    assert type(names["x"]) is Thing
    assert names["y"] == [names["x"]]
    assert frames.frames_of(error)[-1].f_locals is names


def test_a_namespace_that_the_user_holds_stays(guard):
    """So does one that `exec` was given, as an embedded shell does, and what `locals()` returned."""
    kept = []

    def call():
        mine = Thing()
        kept.append(locals())
        mine + 1

    names = {"kept": Thing()}
    assert caught(guard(lambda: exec("mine = kept; 1 / 0", {}, names)))
    assert set(names) == {"kept", "mine"}
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


def test_earlier_errors_stay(guard, monkeypatch):
    """What `%debug` would show of an error before this one is not touched."""
    held = []
    earlier = caught(step, KeyError("a"), held)
    monkeypatch.setattr(sys, "last_value", earlier, raising=False)
    monkeypatch.setattr(sys, "last_traceback", earlier.__traceback__, raising=False)
    caught(guard(step), ValueError("x"), [])
    assert held[0]() is not None
    assert sys.last_traceback is earlier.__traceback__


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
        raise Failure(how) from next(alive)
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


def a_comprehension(plan, world):
    return [link(plan, world) for mine in [world.mark()]]


KINDS = {
    "function": a_function,
    "generator": lambda *args: list(a_generator(*args)),
    "coroutine": lambda *args: a_coroutine(*args).send(None),
    "closure": a_closure,
    "class": a_class,
    "comprehension": a_comprehension,
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


@pytest.mark.usefixtures("frozen")
@settings(max_examples=100, deadline=None)
@given(plan=PLANS, name=st.sampled_from(list(GUARDS)), handling=st.booleans())
def test_any_nest_of_calls(plan, name, handling):
    """Every object of a call that is over is gone, everything that lives is untouched."""
    world, outside = World(), []
    with in_ipython(), pytest.MonkeyPatch.context() as patch:
        patch.setenv(OURS, "1")
        guarded = GUARDS[name](link)
        if handling:
            try:
                step(KeyError("a"), outside)
            except KeyError:
                error = caught(guarded, plan, world)
                assert outside[0]() is not None
        else:
            error = caught(guarded, plan, world)
    assert isinstance(error, Exception)
    assert world.dead
    assert [thing() for thing in world.dead] == [None] * len(world.dead)
    assert len(world.alive) == len(world.waiting)
    assert [next(alive) for alive in world.waiting] == [thing() for thing in world.alive]


@settings(max_examples=30, deadline=None)
@given(plan=PLANS)
def test_that_nests_hold_what_they_made(plan):
    """A meta-test: without a guard some of it is still held."""
    world = World()
    error = caught(link, plan, world)
    assert any(thing() is not None for thing in world.dead), error


# -- where am I ------------------------------------------------------------------------------------

WHERE = "from ipygpulogger.utils.ipython import *; print(is_in_ipython(), IS_IN_IPYTHON, is_in_colab(), IS_IN_COLAB)"
NOT_LOADED = "import sys; print('IPython' in sys.modules)"
IN_NOTEBOOKS = {"JPY_PARENT_PID": "1", "_": "/usr/bin/jupyter-notebook"}


def said_by(*command, tmp_path, **env):
    env = {**os.environ, "IPYTHONDIR": str(tmp_path), **env}
    return subprocess.check_output([sys.executable, *command], env=env, text=True).splitlines()


@pytest.mark.parametrize("env", [{}, IN_NOTEBOOKS, {"_": "/usr/bin/ipython"}])
def test_a_script_is_not_in_ipython(tmp_path, env):
    """ "True in any subprocess of a notebook": not here; IPython is not imported to find out."""
    assert said_by("-c", f"{WHERE}; {NOT_LOADED}", tmp_path=tmp_path, **env) == [
        "False False False False",
        "False",
    ]
    assert said_by("-c", f"import IPython; {WHERE}", tmp_path=tmp_path, **env) == ["False False False False"]


def test_a_terminal_is_in_ipython(tmp_path):
    """ "False under `python -m IPython`": not here, whatever the environment says."""
    script = tmp_path / "script.py"
    script.write_text(WHERE)
    for what in (["-c", WHERE], [str(script)]):
        said = said_by(
            "-m", "IPython", "--HistoryManager.enabled=False", *what, tmp_path=tmp_path, _="python"
        )
        assert said[-1].endswith("True True False False")  # 7.34 sets a terminal's title before it


def test_the_constants_are_answered_when_asked(shell, monkeypatch):
    """`IS_IN_IPYTHON` and `IS_IN_COLAB` are true of now, not of the import; `import *` brings all names."""
    assert (door.IS_IN_IPYTHON, door.IS_IN_COLAB) == (True, False)
    monkeypatch.setitem(sys.modules, "google.colab", types.ModuleType("google.colab"))
    assert (door.IS_IN_COLAB, is_in_colab()) == (True, True)
    names = {}
    exec("from ipygpulogger.utils.ipython import *", names)
    assert set(door.__all__) == set(names) - {"__builtins__"}
    assert names["IS_IN_COLAB"] is True
    monkeypatch.setattr(type(shell), "initialized", classmethod(lambda _: False))
    assert (door.IS_IN_IPYTHON, door.IS_IN_COLAB) == (False, False)
    with pytest.raises(AttributeError, match="no attribute 'IS_IN_SPACE'"):
        door.IS_IN_SPACE  # noqa: B018


def test_half_an_ipython_is_none(monkeypatch):
    """While IPython is being imported its module is there, but no shell."""
    monkeypatch.setitem(sys.modules, "IPython.core.interactiveshell", types.ModuleType("half"))
    assert is_in_ipython() is False
