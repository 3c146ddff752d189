"""The other threads of this process: whether each has gone on, so that none is still where it was."""

from __future__ import annotations

import threading
import time

from ..runtime.clock import monotonic_s
from .procfs import read
from .system_calls import gil_held

_TASKS = "/proc/self/task"
_RUNS = b"RDTt"  # proc_pid_stat(5); in other states a thread waits within a system call
_AT_LEAST_S = 50e-6
_LOOKS_EACH_S = 0.0005
_UNKNOWN_S = 0.01  # where the system does not tell


def let_others_go_on(limit_s: float) -> None:
    """Return once every other thread has run for a while, or waits within a system call.

    A thread may have been interrupted between any two instructions. Where more threads are busy than there
    are processors, it stays there for tens of milliseconds. Threads that C++ libraries started count as well.

    Args:
        limit_s: How long to wait at most.
    """
    end_s, own = monotonic_s() + limit_s, str(threading.get_native_id())
    try:
        _ran_s(own)
        others = [task for task in gil_held().list_folder(_TASKS) if task != own]
    except (OSError, ValueError, IndexError):
        if threading.active_count() > 1:
            time.sleep(_UNKNOWN_S)
        return
    goal_s = {task: ran_s + _AT_LEAST_S for task in others if (ran_s := _running_s(task)) is not None}
    while goal_s and monotonic_s() < end_s:
        time.sleep(_LOOKS_EACH_S)
        goal_s = {
            task: end
            for task, end in goal_s.items()
            if (ran_s := _running_s(task)) is not None and ran_s < end
        }


def _running_s(task: str) -> float | None:
    """Return for how long a thread has run; None if it has ended, or waits within a system call."""
    try:
        state = read(f"{_TASKS}/{task}/stat").rpartition(b")")[2].split()[0]
        return _ran_s(task) if state in _RUNS else None
    except (OSError, ValueError, IndexError):
        return None


def _ran_s(task: str) -> float:
    return int(read(f"{_TASKS}/{task}/schedstat").split()[0]) / 1e9
