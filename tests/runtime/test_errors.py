"""What an error says; a call that no signal handler cuts in two; a stream that fails costs its report alone."""

import _thread
import errno
import signal
import sys
import threading
import warnings

import pytest

from ipygpulogger import IPyGPULogger, measure
from ipygpulogger.runtime.errors import call_uninterrupted, first_line, named, say, why


class Silent(Exception):
    """An error without a message."""


@pytest.mark.parametrize(
    ("words", "error", "says"),
    [
        (why, MemoryError(), "MemoryError"),  # as Python raises it: without a word
        (why, OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (why, LookupError("of ours"), "LookupError: of ours"),
        (named, ValueError("no number"), "ValueError: no number"),
        (named, Silent(), "Silent"),
        (
            first_line,
            RuntimeError("CUDA error: no device\nCompile with TORCH_USE_CUDA_DSA"),
            "CUDA error: no device",
        ),
        (first_line, RuntimeError("one line"), "one line"),
        (first_line, RuntimeError("\n  the first with words\nmore"), "the first with words"),
        (first_line, RuntimeError("\n"), "RuntimeError"),
        (first_line, Silent(), "Silent"),
    ],
)
def test_what_an_error_says(words, error, says):
    """The system's own words where it has some; the class alone without a message; no advice of frameworks."""
    assert words(error) == says


def interrupt():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def test_a_signal_during_the_call_is_raised_after_it():
    """What follows within the call is still done."""
    steps = []

    def call():
        interrupt()
        while len(steps) < 1000:
            steps.append(len(steps))

    with pytest.raises(KeyboardInterrupt):
        call_uninterrupted(call)
    assert len(steps) == 1000


def test_a_signal_before_the_call_has_begun_prevents_it(monkeypatch):
    """Nothing is done later by a thread that was on its way."""
    calls, start, begun = [], _thread.start_new_thread, threading.Event()

    def late(run, args):
        def wait_and_run():
            begun.wait()
            run()
            ended.set()

        start(wait_and_run, args)
        interrupt()

    ended = threading.Event()
    monkeypatch.setattr(_thread, "start_new_thread", late)
    with pytest.raises(KeyboardInterrupt):
        call_uninterrupted(lambda: calls.append(1))
    begun.set()
    assert ended.wait(20)
    assert calls == []


def test_an_error_of_a_handler_is_passed_on():
    """Also one of the type that a failed start of a thread raises."""

    def handle(*_):
        raise RuntimeError("the user's")

    calls, before = [], signal.signal(signal.SIGINT, handle)
    try:
        with pytest.raises(RuntimeError, match="the user's"):
            call_uninterrupted(lambda: (interrupt(), calls.append(1)))
    finally:
        signal.signal(signal.SIGINT, before)
    assert calls == [1]


def test_without_another_thread_it_is_called_directly(monkeypatch):
    """In another thread than the main one, and where the system gives no more threads."""

    def no_thread(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", no_thread)
    callers = []
    call_uninterrupted(lambda: callers.append(threading.get_ident()))
    monkeypatch.undo()
    other = threading.Thread(target=call_uninterrupted, args=[lambda: callers.append(threading.get_ident())])
    other.start()
    other.join()
    assert callers[0] == threading.get_ident() != callers[1]


class Broken:
    """A stream to which nothing can be written; without `flushes`, nothing else works either."""

    encoding = "utf-8"

    def __init__(self, error, *, flushes=False):
        self._error, self._flushes = error, flushes

    def _fails(self, *_):
        raise self._error

    write = isatty = _fails

    def flush(self):
        if not self._flushes:
            raise self._error


ERRORS = {  # and what is said of each
    "full disk": (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
    "closed pipe": (BrokenPipeError(errno.EPIPE, "Broken pipe"), "Broken pipe"),
    "closed file": (
        ValueError("I/O operation on closed file"),
        "ValueError: I/O operation on closed file",
    ),
}
BROKEN = {kind: Broken(error) for kind, (error, _) in ERRORS.items()}
STREAMS = {**BROKEN, "not a stream": object(), "none": None}


@pytest.mark.parametrize("stream", STREAMS)
def test_the_extension_loads_and_starts_whatever_stdout_is(shell, stream, monkeypatch):
    """`%load_ext`, `%gpulog start` and `%unload_ext` do what they do, and raise nothing."""
    # That there is no GPU is said as a logger starts.
    monkeypatch.setattr("ipygpulogger.sources.nvidia.nvml.Nvml.devices", lambda _: ())
    monkeypatch.setattr(sys, "stdout", STREAMS[stream])
    try:
        shell.extension_manager.load_extension("ipygpulogger")
        assert shell.user_ns["il"].running
        shell.run_line_magic("gpulog", "stop")
        shell.run_line_magic("gpulog", "start")
        assert shell.user_ns["il"].running
    finally:
        shell.extension_manager.unload_extension("ipygpulogger")


@pytest.mark.parametrize("aside_too", [False, True])
@pytest.mark.parametrize("report", ["text", "rich"])
@pytest.mark.parametrize("kind", ERRORS)
def test_cells_are_recorded_whatever_stdout_is(shell, monkeypatch, capsys, tmp_path, report, kind, aside_too):
    """Every cell, that of a table of lines too; on stderr, if it can be, one sentence says why none is shown."""
    il = IPyGPULogger(report=report, log=str(tmp_path / "log.jsonl")).start()
    shell.run_cell("x = 1", store_history=True)  # what is loaded once is loaded
    capsys.readouterr()
    stream = Broken(ERRORS[kind][0], flushes=True)  # which IPython does itself, in every cell
    with monkeypatch.context() as patch:
        for name in ("stdout", "stderr") if aside_too else ("stdout",):
            patch.setattr(sys, name, stream)
        patch.setattr(il, "lines", True)
        results = [shell.run_cell(f"x = {n}\ny = x", store_history=True) for n in range(3)]
    il.stop()
    assert [result.success for result in results] == [True] * 3
    assert [record.status for record in il.history] == ["ok"] * 4
    assert [len(record.lines) for record in il.history] == [0, 2, 2, 2]
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 4
    sentence = f"ipygpulogger cannot show its reports and goes on measuring: {ERRORS[kind][1]}\n"
    assert capsys.readouterr().err == ("" if aside_too else sentence)


def test_what_is_for_stderr_never_lands_in_stdout(monkeypatch, capsys):
    """Where there is no stderr, nothing is said: `print` would take the other stream."""
    monkeypatch.setattr(sys, "stderr", None)
    assert say("aside", aside=True) is None
    assert capsys.readouterr().out == ""


@measure(report=True)
def called():
    return 6 * 7


def test_a_warning_that_cannot_be_written_is_nobodys_error(monkeypatch):
    """Why a report is missing is said on stderr; where that is closed too, not at all."""
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(sys, stream, BROKEN["closed file"])
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert called() == 42
