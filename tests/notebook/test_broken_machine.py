"""A machine that cannot be made, or breaks later: the user's code runs, and one sentence says what is missing."""

import asyncio
import contextlib
import errno
import re
import sys
import time
import warnings
from pathlib import Path

import psutil
import pytest
from IPython.core.error import UsageError
from memory import MB, Block
from reports import run

from ipygpulogger import measure, measure_lines
from ipygpulogger.compat.gpu_mem_trace import gpu_mem_trace
from ipygpulogger.engine import machine as machines
from ipygpulogger.sources.system import linux

ON_LINUX = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="there is no /proc here")
TEN_MB = 10 * MB


def refuse(error):
    def refused(*_, **__):
        raise error

    return refused


def without_proc(break_psutil):
    def broken(patch):
        patch.setattr(linux, "read", refuse(FileNotFoundError(errno.ENOENT, "No such file or directory")))
        break_psutil(patch)

    return broken


def psutil_fails(error):
    return without_proc(lambda patch: patch.setattr(psutil, "Process", refuse(error)))


def no_descriptors(patch):
    patch.setattr(linux, "read", refuse(OSError(errno.EMFILE, "Too many open files")))


def no_machine(patch):
    for who in ("engine.scope", "lines.line_profiler"):
        patch.setattr(f"ipygpulogger.{who}.machine", refuse(RuntimeError("broken")))


FAULTS = {
    "no descriptors": no_descriptors,
    "no psutil": without_proc(lambda patch: patch.setitem(sys.modules, "psutil", None)),
    "no process": psutil_fails(psutil.NoSuchProcess(1)),
    "SystemError": psutil_fails(SystemError("broken")),
    "no machine": no_machine,
}


UNREADABLE = pytest.mark.parametrize("broken", sorted({*FAULTS} - {"no machine"}), indirect=True)


@pytest.fixture(params=FAULTS)
def broken(request, monkeypatch):
    """The process's machine, not made yet, and nothing to make it of; undone by calling it."""
    monkeypatch.setattr(machines, "_machine", None)
    with monkeypatch.context() as patch:
        FAULTS[request.param](patch)
        yield patch.undo
    if machines._machine:
        machines._machine.close()


@contextlib.contextmanager
def one_sentence(about):
    """Whatever runs within, one warning comes of it, as Python shows each of a place once."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        yield
    assert [w.category for w in found] == [RuntimeWarning], [str(w.message) for w in found]
    assert re.fullmatch(rf"{about} not measured: [^\n]+", str(found[0].message))


class OwnError(Exception):
    """The user's."""


def test_a_block_runs(broken):
    """Its own code and its own exception are untouched; nothing but its time is known; later it works again."""
    m = measure("load")
    with one_sentence("load is"):
        for _ in range(3):
            with m:
                done = 6 * 7
        with pytest.raises(OwnError, match="mine"), m:
            time.sleep(0.01)
            raise OwnError("mine")
    assert done == 42
    assert (m.last, m.gen, m.gpus) == (None, None, ())
    assert m.time_s >= 0.01
    assert "nothing measured" in repr(m)
    broken()
    with m:
        block = Block(10)
    assert abs(m.gen.consumed_bytes - TEN_MB) < 2 * MB
    block.free()


CALLS = [
    (measure, "answer is"),
    (measure(report=True), "answer is"),
    (gpu_mem_trace, "answer is"),
    (measure_lines(report=False), "(the lines of answer|lines) are"),
]


@pytest.mark.parametrize(("decorate", "about"), CALLS)
def test_a_call_runs(broken, decorate, about):
    """Functions, coroutines, generators: what they return and raise is their own, and one sentence is said."""

    def own(x):
        if x is None:
            raise OwnError("mine")
        return x

    def answer(x):
        return own(x)

    async def later(x):
        return own(x)

    def steps(x):
        yield x
        return own(x)

    for function in (answer, later, steps):
        function.__qualname__ = function.__name__ = "answer"
    answer, later, steps = map(decorate, (answer, later, steps))
    with one_sentence(about):
        for _ in range(3):
            assert answer(42) == 42
            assert asyncio.run(later(42)) == 42
            assert list(steps(42)) == [42]
        for call in (answer, lambda x: asyncio.run(later(x)), lambda x: list(steps(x))):
            with pytest.raises(OwnError, match="mine"):
                call(None)
    if hasattr(type(answer), "lines"):
        assert answer.lines == ()


@UNREADABLE
def test_cells_run(broken, shell, capsys):
    """%load_ext says one sentence, the cells after it none; it measures as soon as that is possible."""
    run(shell, "%load_ext ipygpulogger")
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"ipygpulogger measures nothing[^\n]*: [^\n]+\n", err)
    for _ in range(3):
        assert run(shell, "6 * 7").result == 42
        out, err = capsys.readouterr()
        assert ("RAM:" in out, err) == (False, "")
    assert isinstance(run(shell, "raise KeyError('mine')").error_in_exec, KeyError)
    capsys.readouterr()
    for command in ("doctor", "status", "summary"):
        assert run(shell, f"%gpulog {command}").success
    assert len(re.findall(r"\bRAM:? +absent", capsys.readouterr().out)) == 2
    for command in ("vars", "free"):
        assert isinstance(run(shell, f"%gpulog {command}").error_in_exec, UsageError)
    broken()
    run(shell, "x = 1")
    assert shell.user_ns["il"].record.status == "ok"
    run(shell, "%unload_ext ipygpulogger")
