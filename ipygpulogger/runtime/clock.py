"""The clocks of every measurement, which stay right where freezegun has frozen Python's.

freezegun replaces `time.perf_counter`, `time.time` and `datetime` in every module that has them, but neither
`time.clock_gettime` nor a function that a `functools.partial` refers to.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone

monotonic_s: Callable[[], float]
wall_s: Callable[[], float]  # seconds since the epoch, by the system's clock
thread_s: Callable[[], float] = functools.partial(time.thread_time)  # of the processor's, for this thread
if hasattr(time, "clock_gettime"):
    # The clock behind `time.perf_counter`, on macOS as on Linux.
    _clock_id = getattr(time, "CLOCK_UPTIME_RAW", time.CLOCK_MONOTONIC)
    monotonic_s = functools.partial(time.clock_gettime, _clock_id)
    wall_s = functools.partial(time.clock_gettime, time.CLOCK_REALTIME)
else:
    monotonic_s, wall_s = functools.partial(time.perf_counter), functools.partial(time.time)

_at = functools.partial(datetime.fromtimestamp, tz=timezone.utc)


def utc_now() -> datetime:
    """Return the time of day."""
    return _at(wall_s())


class _ThisThread(threading.local):
    overhead_s: float = 0.0  # that tracing lines has cost the thread so far: not the user's time


this_thread: _ThisThread = _ThisThread()
