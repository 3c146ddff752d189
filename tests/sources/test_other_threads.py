"""Whether the other threads have gone on, real ones, many more than there are processors; what one held at a fork."""

import hashlib
import os
import threading
import time
from pathlib import Path

import pytest

from ipygpulogger.runtime import wrappers
from ipygpulogger.sources.system import memray
from ipygpulogger.sources.torch import history, state

linux = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel does not count")


def ran_ns(thread):
    return int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0])


def state_of(thread):
    return Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.fixture
def busy():
    """Four threads for each processor, and those of them that have ended: one call of C each, without the GIL."""
    ended = []

    def run():
        hashlib.pbkdf2_hmac("sha256", b"", b"", 400_000)
        ended.append(threading.current_thread())

    threads = [threading.Thread(target=run) for _ in range(4 * (os.cpu_count() or 1))]
    for thread in threads:
        thread.start()
    yield threads, ended
    for thread in threads:
        thread.join()


@linux
@pytest.mark.linux("elsewhere they have a moment")
def test_every_busy_thread_has_run(busy):
    """It is the kernel who decides which of them runs."""
    threads, ended = busy
    found = []
    for _ in range(20):
        before = [ran_ns(thread) for thread in threads]
        state.let_others_go_on(limit_s=60)
        if ended:
            break
        found += [ran_ns(thread) - ns for thread, ns in zip(threads, before, strict=True)]
    assert found
    assert min(found) >= 50_000


@linux
def test_waiting_threads_are_not_waited_for():
    """They are in a system call already, in which they may stay for ever."""
    event = threading.Event()
    waiting = threading.Thread(target=event.wait)
    waiting.start()
    try:
        while state_of(waiting) != "S":  # it is about to wait
            time.sleep(0.001)
        start_s = time.monotonic()
        state.let_others_go_on(limit_s=60)
        assert time.monotonic() - start_s < 60  # threads of the tests' own may have run for a moment
    finally:
        event.set()
        waiting.join()


@linux
def test_no_longer_than_the_limit(busy, monkeypatch):
    """A thread that a debugger has stopped does not run."""
    monkeypatch.setattr(state, "_AT_LEAST_S", 1e9)
    state.let_others_go_on(limit_s=0.01)


def test_a_system_that_does_not_tell(monkeypatch):
    """There they have a moment."""
    slept = []
    monkeypatch.setattr(state, "_TASKS", "/proc/none")
    monkeypatch.setattr(state.threading, "active_count", lambda: 2)
    monkeypatch.setattr(state.time, "sleep", slept.append)
    state.let_others_go_on(limit_s=60)
    assert slept == [0.01]


LOCKS = {
    "who records torch's history": lambda: history._shared.lock,
    "the tracker of memray": lambda: memray._lock,
    "wrappers": lambda: wrappers._lock,
}


@pytest.mark.linux("nothing forks there", "macos")
@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_that_another_thread_held_at_a_fork(name):
    """That thread is not there in the child, where nobody would ever release the lock."""
    held, over = threading.Event(), threading.Event()

    def hold():
        with LOCKS[name]():
            held.set()
            over.wait(60)

    holding = threading.Thread(target=hold)
    holding.start()
    held.wait(60)
    child = os.fork()
    if not child:
        os._exit(not LOCKS[name]().acquire(blocking=False))
    over.set()
    holding.join()
    assert os.waitpid(child, 0)[1] == 0
