"""What is open, as the machine and the sampler treat it; and the thread that samples it.

One thread samples the devices, another updates the live display. It begins only once a scope has lasted 100
ms, sleeps between scopes, and stops at once when told. No exact figure depends on it.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from ..runtime import clock
from .peaks import PeakTracker, WeakIdentitySet

if TYPE_CHECKING:
    from ..sources import Device
    from .children import Children
    from .device_scope import DeviceScope


class Measuring:
    """An open measurement, as the machine treats it: a `scope.Scope`, the lines of a cell, a recording."""

    sees_children = False

    def with_children(self) -> Children | None:
        """Return its part that is about child processes; None where they do not concern it."""
        return None

    def adopt(self, tracker: PeakTracker, device: Device | None, *, sure: bool) -> None:
        """Measure a device (None: pinned memory) first used now, from zero; `sure` if no reset was unseen."""

    def orphaned(self) -> bool:
        """Return whether the call that should have closed it has ended."""
        return False

    def close(self) -> None:
        """End it; called of one that is orphaned."""

    def device_scopes(self) -> list[DeviceScope]:
        """Return its part on each device, for the sampler."""
        return []

    def sampled(self, resident_bytes: int) -> None:
        """Record a sample of general RAM."""

    def device_sampled(self, uuid: str, used_bytes: int, other_bytes: int | None) -> None:
        """Record the use of a device, and that outside the allocators unless they changed meanwhile."""


class OpenScopes(WeakIdentitySet[Measuring]):
    """The open measurements, held weakly: one that an interrupt kept from being closed ends by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.loggers: WeakIdentitySet[object] = WeakIdentitySet()  # keep our wrappers on between their cells

    def is_measuring(self) -> bool:
        """Return whether anything is open or a logger runs."""
        return bool(self.loggers._references or self._references)


DELAY_S = 0.1
PERIOD_S = 0.05
SLOWEST_PERIOD_S = 0.25
BUSY_SHARE = 0.02  # at most this share of the time is spent sampling: a slow driver is queried less often


class Sampler:
    """Calls `look` periodically, in a thread of its own, while anything wants samples.

    The thread is made at the first `start` and sleeps between scopes until `close`, since making one costs as
    much as everything else in a short cell. A scope that is over before the delay is never sampled.
    """

    def __init__(
        self,
        look: Callable[[], None],
        delay_s: float = DELAY_S,
        period_s: float = PERIOD_S,
        name: str = "ipygpulogger sampler",
    ) -> None:
        self._look, self._delay_s, self._period_s, self._name = look, delay_s, period_s, name
        self._lock = threading.RLock()  # a finalizer may end a scope in the middle of starting one
        self._wanted: weakref.WeakSet[object] = weakref.WeakSet()  # those that want samples, while they live
        self._since_s = 0.0
        self._thread: threading.Thread | None = None
        self._awake = False  # the thread will check `_wanted` again by itself
        # False wakes the thread, True ends it; None once it was ended. A SimpleQueue is written in C: an
        # interrupt within the Python code of a `threading.Event` would leave its lock taken for ever.
        self._calls: SimpleQueue[bool] | None = None

    def start(self, whom: object) -> bool:
        """Sample for one more scope, until `stop` or its death; False where the system gives no thread."""
        with self._lock:
            if not self._wanted:
                self._since_s = clock.monotonic_s()
            calls = self._calls
            if self._thread is None or calls is None or not self._thread.is_alive():
                # No thread yet, or lost in a fork, or an interrupt came while it was started or ended.
                if calls is not None:
                    calls.put(True)
                calls = self._calls = SimpleQueue()
                self._awake = True
                thread = threading.Thread(target=self._run, args=[calls], name=self._name, daemon=True)
                # The stream for its own errors, which a cell may have captured: it would live as long.
                thread._stderr = None  # type: ignore[attr-defined] # threading has no public API for it
                self._thread = thread
                try:
                    thread.start()
                except (RuntimeError, MemoryError):  # no exact figure depends on it
                    self._thread = None
                    return False
            self._wanted.add(whom)
            if not self._awake:
                calls.put(False)
                self._awake = True
            return True

    def stop(self, whom: object) -> None:
        """Stop sampling for this scope."""
        with self._lock:
            self._wanted.discard(whom)

    @property
    def is_running(self) -> bool:
        """Whether there is a thread."""
        return self._thread is not None and self._thread.is_alive()

    def close(self, *, although_wanted: bool = False) -> None:
        """End the thread, unless samples are still wanted; it ends as soon as the driver answers."""
        with self._lock:
            if self._wanted and not although_wanted:
                return
            thread = self._thread
            if self._calls is not None:
                self._calls.put(True)
                self._calls = None
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join(timeout=0.2)
        with self._lock:  # last: interrupted before, the next call waits for the thread
            if self._thread is thread:
                self._thread = None

    def _run(self, calls: SimpleQueue[bool]) -> None:
        wait_s: float | None = self._delay_s
        while True:
            with contextlib.suppress(Empty):
                if calls.get(timeout=wait_s):
                    return
            with self._lock:
                if self._calls is not calls:
                    return
                self._awake = bool(self._wanted)
                due_s = self._since_s + self._delay_s - clock.monotonic_s()
            if not self._awake:
                wait_s = None
            elif due_s > 0:  # another scope began since
                wait_s = due_s
            else:
                began_s = clock.monotonic_s()
                with contextlib.suppress(Exception):  # in this thread nothing could handle it
                    self._look()
                took_s = clock.monotonic_s() - began_s
                slowest_s = max(self._period_s, SLOWEST_PERIOD_S)
                wait_s = min(max(self._period_s, took_s / BUSY_SHARE), slowest_s)
