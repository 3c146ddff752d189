"""The guards that release the memory of failed calls: which exceptions, which warnings, and the very same exception."""

import asyncio
import gc
import inspect
import os
import re
import subprocess
import sys
import types
import warnings
import weakref

import pytest
from guards import (
    ASSERTED,
    CONTEXTS,
    FASTAIS,
    GROUPS,
    NO_MEMORY,
    OURS,
    RESTART,
    Thing,
    caught,
    lets_go,
    marked,
    step,
    within,
)

from ipygpulogger.compat import tracebacks
from ipygpulogger.compat.tracebacks import (
    get_ref_free_exc_info,
    gpu_mem_restore,
    ipython_tb_clear_frames,
    is_in_colab,
    is_in_ipython,
)
from ipygpulogger.utils import ipython as door

# -- which calls, which exceptions -----------------------------------------------------------------


@pytest.mark.parametrize("decorator", [gpu_mem_restore, ipython_tb_clear_frames])
def test_decorators_outside_ipython(decorator, monkeypatch):
    """ "Plain call if not IS_IN_IPYTHON"; "any exception, IPython only": else the exception keeps the memory."""
    for setting in (None, "0", "1"):
        if setting:
            monkeypatch.setenv(OURS, setting)
        assert not lets_go(decorator, RuntimeError(NO_MEMORY))


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


class Broken(Exception):
    def __str__(self):
        raise ZeroDivisionError


def linked(error=None, **links):
    error = error or ValueError("the epoch failed")
    for name, value in links.items():
        setattr(error, f"__{name}__", value)
    return error


@pytest.mark.parametrize(
    ("error", "of_the_device"),
    [
        (RuntimeError(NO_MEMORY), True),
        (RuntimeError(ASSERTED), True),
        (OutOfMemoryError("in other words"), True),
        (XlaRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 17 bytes."), True),
        (linked(cause=RuntimeError(NO_MEMORY)), True),
        (linked(context=RuntimeError(NO_MEMORY)), True),
        (linked(context=RuntimeError(NO_MEMORY), suppress_context=True), True),
        (linked(Broken(), context=RuntimeError(NO_MEMORY)), True),
        (RuntimeError(NO_MEMORY) if not GROUPS else ExceptionGroup("all", [RuntimeError(NO_MEMORY)]), True),  # noqa: F821
        (Broken(), False),
        (MemoryError(), False),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (KeyboardInterrupt(), False),
        (SystemExit(3), False),
    ],
)
@pytest.mark.filterwarnings("ignore:When 'device-side")
def test_the_devices_errors(shell, error, of_the_device):
    """C13: "follow the code (OOM + device-side assert)"; `"CUDA out of memory" in str(e)`, and more kinds.

    The error that led to the one that arrives is a reason too.
    """
    assert lets_go(gpu_mem_restore, error) is of_the_device


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


def test_memory_comes_back_to_the_device(guard, monkeypatch):
    """Cycles are collected, whichever generation they reached, and the framework's cache is emptied after it.

    Where nothing failed a result comes back, and nothing is collected.
    """
    settled, cycle, collections = [], [], []
    settling = types.SimpleNamespace(settle=lambda **how: settled.append((how, cycle[0]() is None)))
    monkeypatch.setattr(tracebacks, "machine", lambda: types.SimpleNamespace(settling=settling))

    def call():
        thing = Thing()
        thing.itself = thing
        cycle.append(weakref.ref(thing))
        for _ in range(3):
            gc.collect()
        raise ValueError

    gc.callbacks.append(lambda _, info: collections.append(info["generation"]))
    try:
        assert guard(lambda *args: args)(1, 2) == (1, 2)
    finally:
        gc.callbacks.pop()
    assert (settled, 2 in collections) == ([], False)
    caught(guard(call))
    assert settled == [({"gc_collect": False, "clear_cache": True}, True)]


# -- the assert that ends a device -----------------------------------------------------------------


def test_a_failed_assert_is_warned_of_once(shell, monkeypatch):
    """ "On a device-side assert it also warns": once, as the kernel must be restarted; not with "0"."""
    calls = [("0", RuntimeError(ASSERTED)), (None, RuntimeError(NO_MEMORY)), (None, RuntimeError(ASSERTED))]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        for setting, error in [*calls, ("1", RuntimeError(ASSERTED))]:
            if setting:
                monkeypatch.setenv(OURS, setting)
            assert caught(gpu_mem_restore(gpu_mem_restore(step)), error, []) is error
            monkeypatch.undo()
            assert len(said) == (setting is None and error is calls[-1][1]) + (setting == "1")
    assert [(str(one.message), one.category) for one in said] == [(RESTART, UserWarning)]


# -- the very same exception -----------------------------------------------------------------------


class Demanding(Exception):
    def __init__(self, code, *, where):
        super().__init__(f"{code} at {where}")
        self.code, self.where = code, where


@pytest.mark.parametrize(
    "make",
    [lambda: caught(b"ab\xff".decode, "utf-8"), lambda: KeyError("a"), lambda: Demanding(5, where="here")],
)
def test_the_same_object_goes_on(guard, make):
    """ "Re-raise by `Cls(val)`: ... attributes and args are lost, `__cause__` dropped": not here."""

    def state():
        links = error.__cause__, error.__context__, error.__suppress_context__
        return error.args, str(error), repr(error), dict(vars(error)), links

    error = make()
    error.__cause__, error.__context__, error.__suppress_context__ = ValueError(), KeyError(), False
    error.mine, error.__notes__ = ["an attribute"], ["a note"]
    before = state()
    assert caught(guard(step), error, []) is error
    assert state() == before


@pytest.mark.parametrize("breaks", ["empty_frames", "machine", "gc", "out_of_memory_in", "exception_chain"])
@pytest.mark.parametrize("reason", [ZeroDivisionError, KeyboardInterrupt, MemoryError])
def test_a_failure_of_ours_is_not_the_users(shell, monkeypatch, breaks, reason):
    """Whatever fails while memory is let go, or interrupts it, the user's own exception goes on."""

    def broken(*_, **__):
        raise reason

    error, call = RuntimeError(NO_MEMORY), gpu_mem_restore(step)
    if breaks == "exception_chain":  # only once the call has begun
        whole = tracebacks.exception_chain
        monkeypatch.setattr(tracebacks, breaks, lambda one: whole(one) if one is None else broken())
    else:
        value = types.SimpleNamespace(collect=broken) if breaks == "gc" else broken
        monkeypatch.setattr(tracebacks, breaks, value)
    assert caught(call, error, []) is error
    assert error.__context__ is None


def test_arguments(shell):
    """What only the arguments of a decorated function hold is back too."""
    held = []

    @gpu_mem_restore
    def fails(_):
        raise RuntimeError(NO_MEMORY)

    assert str(caught(lambda: fails(marked(held)))) == NO_MEMORY
    assert held[0]() is None


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


# -- where am I ------------------------------------------------------------------------------------
WHERE = "from ipygpulogger.utils.ipython import *; print(is_in_ipython(), IS_IN_IPYTHON, is_in_colab(), IS_IN_COLAB)"
NOWHERE = "False False False False"
NOT_LOADED = "import sys; print('IPython' in sys.modules)"
IN_NOTEBOOKS = {"JPY_PARENT_PID": "1", "_": "/usr/bin/jupyter-notebook"}


def said_by(*command, tmp_path, **env):
    env = {**os.environ, "IPYTHONDIR": str(tmp_path), **env}
    return subprocess.check_output([sys.executable, *command], env=env, text=True).splitlines()


@pytest.mark.parametrize("env", [{}, IN_NOTEBOOKS, {"_": "/usr/bin/ipython"}])
def test_a_process_of_its_own(tmp_path, env):
    """ "True in any subprocess of a notebook", "False under `python -m IPython`": not here, whatever the environment says.

    IPython is not imported to find out.
    """
    assert said_by("-c", f"{WHERE}; {NOT_LOADED}", tmp_path=tmp_path, **env) == [NOWHERE, "False"]
    assert said_by("-c", f"import IPython; {WHERE}", tmp_path=tmp_path, **env) == [NOWHERE]
    terminal = "-m", "IPython", "--HistoryManager.enabled=False", "-c", WHERE
    said = said_by(*terminal, tmp_path=tmp_path, **env)
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
    assert all(inspect.ismodule(names[name]) for name in ("gc", "os", "functools", "traceback"))
    monkeypatch.setattr(type(shell), "initialized", classmethod(lambda _: False))
    assert (door.IS_IN_IPYTHON, door.IS_IN_COLAB) == (False, False)
    with pytest.raises(AttributeError, match="no attribute 'IS_IN_SPACE'"):
        door.IS_IN_SPACE  # noqa: B018


@pytest.mark.parametrize(
    ("define", "body", "call"),
    [("def", "1/0", "f(3)"), ("async def", "1/0", "await f(3)"), ("def", "yield 1/0", "next(f(3))")],
)
@pytest.mark.parametrize("decorator", ["measure(report=False)", "gpu_mem_trace", "gpu_mem_restore"])
def test_our_wrapper_is_not_in_the_traceback(shell, capsys, decorator, define, body, call):
    """IPython shows the user's own call and line."""
    shell.run_cell("from ipygpulogger import measure\nfrom ipygpulogger.utils.mem import *")
    assert shell.run_cell(f"@{decorator}\n{define} f(a):\n    {body}").success
    capsys.readouterr()
    assert isinstance(shell.run_cell(call).error_in_exec, ZeroDivisionError)
    said = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    assert body in said
    assert "skipping hidden 1 frame" in said
    assert "wrapper" not in said
