"""What an error says in few words; a call that no signal handler cuts in two."""

import _thread
import errno
import signal
import threading

import pytest

from ipygpulogger.runtime.errors import call_uninterrupted, first_line, named, why


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
