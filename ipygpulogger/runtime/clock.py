"""The clocks of every measurement, which stay right where freezegun or time-machine has frozen Python's.

freezegun replaces `time.monotonic`, `time.perf_counter`, `time.time` and `datetime` in every module that has
them. time-machine changes the time of day in C. Neither touches `time.clock_gettime(CLOCK_MONOTONIC)`, nor
a function that a `functools.partial` refers to.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

if hasattr(time, "clock_gettime"):
    # The clock behind `time.perf_counter`, on macOS as on Linux.
    _clock_id = getattr(time, "CLOCK_UPTIME_RAW", time.CLOCK_MONOTONIC)
    monotonic_s: Callable[[], float] = functools.partial(time.clock_gettime, _clock_id)
else:
    monotonic_s = functools.partial(time.perf_counter)

# clock_gettime(2), on Linux: behind CLOCK_REALTIME by at most one tick of the kernel, 10 ms.
_REALTIME_COARSE = 5


class Overhead:
    """The time that tracing lines has cost one thread so far, which is not the user's.

    Attributes:
        s: Seconds.
    """

    __slots__ = ("s",)

    def __init__(self) -> None:
        self.s = 0.0


class _ThisThread(threading.local):
    def __init__(self) -> None:
        self.overhead = Overhead()


this_thread = _ThisThread()


def wall_s() -> float:
    """Return the seconds since the epoch, by the system's clock."""
    if not hasattr(time, "clock_gettime"):
        return time.time()
    now_s = time.clock_gettime(time.CLOCK_REALTIME)
    if sys.platform == "linux":
        coarse_s = time.clock_gettime(_REALTIME_COARSE)
        if abs(now_s - coarse_s) > 1:  # time-machine changed the other clock
            return coarse_s
    return now_s


# Python's own class, even if freezegun has replaced it before this module is loaded.
_own = next(kind for kind in datetime.__mro__ if kind.__module__ == "datetime")
_at = functools.partial(_own.fromtimestamp, tz=timezone.utc)  # type: ignore[attr-defined] # no other base


def utc_now() -> datetime:
    """Return the time of day, as Python's own `datetime`."""
    now: datetime = _at(wall_s())
    return now
