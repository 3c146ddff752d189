"""The background thread: when it looks, when it sleeps, and when it ends."""

import threading
from functools import partial
from queue import SimpleQueue
from types import SimpleNamespace

import pytest

from ipygpulogger.engine import sampler as samplers
from ipygpulogger.engine.sampler import Sampler
from ipygpulogger.engine.scope import Scope


@pytest.fixture
def waits(monkeypatch):
    """How long the thread says it will wait for a call, each time it does; None is "until called"."""
    found = SimpleQueue()

    class Calls(SimpleQueue):
        def get(self, block=True, timeout=None):
            found.put(timeout)
            return super().get(block, timeout)

    monkeypatch.setattr(samplers, "SimpleQueue", Calls)
    return found


def test_the_sampler_waits_before_it_looks():
    """Scopes that end before the delay are never sampled, however many come one after the other."""
    looks = []
    sampler = Sampler(lambda: looks.append(1), delay_s=60)
    for _ in range(100):
        sampler.start(sampler)
        sampler.stop(sampler)
    sampler.close()
    assert not looks


def test_the_sampler_serves_many_in_one_thread(waits):
    """One thread for any number of scopes; it sleeps after the last, wakes for the next, ends with close."""
    looked = threading.Event()
    sampler = Sampler(looked.set, delay_s=0.001, period_s=0.001)
    scopes = [Scope() for _ in range(3)]
    assert all(sampler.start(scope) for scope in scopes)
    thread = sampler._thread
    assert looked.wait(10)
    for scope in scopes:
        sampler.stop(scope)
    while waits.get(timeout=10) is not None:
        pass  # from here on it sleeps until it is called
    assert waits.empty()
    looked.clear()
    sampler.start(sampler)
    assert sampler._thread is thread
    assert looked.wait(10)
    sampler.stop(sampler)
    sampler.close()
    thread.join(10)
    assert not thread.is_alive()
    sampler.start(sampler)  # and again after close
    assert sampler._thread is not thread
    sampler.stop(sampler)
    sampler.close()


def test_a_slow_driver_is_asked_less_often(waits, monkeypatch):
    """Sampling takes at most its share of the time, up to the longest period; a new scope waits for the delay."""
    now = SimpleNamespace(s=0.0)
    looked = threading.Semaphore(0)

    def look(took_s):
        now.s += took_s
        looked.release()

    monkeypatch.setattr(samplers.clock, "monotonic_s", lambda: now.s)
    for took_s, period_s in ((0.0, 0.01), (0.001, 0.05), (1.0, samplers.SLOWEST_PERIOD_S)):
        sampler = Sampler(partial(look, took_s), delay_s=0, period_s=0.01)
        sampler.start(sampler)
        assert waits.get(timeout=10) == 0
        assert looked.acquire(timeout=10)
        assert waits.get(timeout=10) == pytest.approx(period_s)
        sampler.stop(sampler)
        sampler.close()
        while not waits.empty():
            waits.get()


def test_a_stuck_driver_does_not_hold_up_the_cell():
    """Stopping waits for no look that hangs, closing a moment at most; the thread ends by itself."""
    looking, let_go = threading.Event(), threading.Event()

    def look():
        looking.set()
        let_go.wait()

    sampler = Sampler(look, delay_s=0)
    sampler.start(sampler)
    assert looking.wait(10)
    thread = sampler._thread
    sampler.stop(sampler)
    sampler.close()  # returns although the look has not
    assert thread.is_alive()
    let_go.set()
    thread.join(10)
    assert not thread.is_alive()


def test_a_start_while_it_is_being_closed(monkeypatch):
    """Closing ends the thread that was there; one that was started meanwhile goes on."""
    sampler = Sampler(lambda: None, delay_s=60)
    sampler.start(sampler)
    sampler.stop(sampler)
    thread = sampler._thread
    monkeypatch.setattr(thread, "join", lambda timeout: sampler.start(sampler))  # noqa: ARG005
    sampler.close()
    monkeypatch.undo()
    thread.join(10)
    assert sampler.is_running
    sampler.stop(sampler)
    sampler.close()
    assert not sampler.is_running


def test_the_sampler_survives_a_failing_look():
    """A look that raises says nothing in the user's notebook and does not end the thread."""
    calls = threading.Semaphore(0)

    def look():
        calls.release()
        raise RuntimeError("the driver is gone")

    sampler = Sampler(look, delay_s=0, period_s=0.001)
    sampler.start(sampler)
    assert all(calls.acquire(timeout=10) for _ in range(3))
    sampler.stop(sampler)
    sampler.close()
