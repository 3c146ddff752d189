"""RMM: the statistics of its memory resource on the current device, if the user has enabled them.

RMM resets them by pushing counters on a stack, of which the user reads the topmost: a push of ours would
change that. So we only read, and a peak is exact if the scope set a new record. The sets below the topmost
one cannot be read. So while the user has pushed, which wrappers count, the counter is unavailable.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from ...runtime.wrappers import Wrappers
from .. import contract
from ..contract import Device, DeviceCounter, Observation, Reading, Unavailable, unavailable
from ..nvidia import driver

_RISING = "total_count", "total_bytes", "peak_count", "peak_bytes"  # they go down only when the user pushes
_STEPS = ("push", 1), ("pop", -1)


class RmmCounter(DeviceCounter):
    """The bytes that RMM handed out on one device."""

    peak_class: contract.PeakClass = "monotone"

    def __init__(self, source: Rmm, device: Device) -> None:
        self.device = device
        self._source = source
        self._adaptor = 0  # of the last observation
        self._rising: tuple[int, ...] = ()
        self._interrupted = True  # the next observation need not continue the last one

    def observe(self) -> Observation:
        """Read the statistics, with the totals as the stamp."""
        statistics, adaptor = _read(self.device.index)
        rising = tuple(int(getattr(statistics, name)) for name in _RISING)
        anew = adaptor != self._adaptor
        if anew and not self._interrupted:
            raise Unavailable("RMM's statistics were started anew meanwhile")
        fell = not anew and any(a < b for a, b in zip(rising, self._rising, strict=True))
        if self._source.depth or fell or statistics.current_bytes < 0:
            raise Unavailable("RMM's statistics were pushed, so those below cannot be read")
        self._adaptor, self._rising, self._interrupted = adaptor, rising, False
        return Observation((Reading(int(statistics.current_bytes), rising[3]),), rising[:2])

    def watch(self, *, on: bool) -> None:
        """Accept restarted statistics at the next observation: between scopes the user may restart them."""
        self._interrupted = on


class Rmm(contract.FrameworkByDevice):
    """RMM in this process, once the user has enabled its statistics."""

    name = "rmm"

    def __init__(self) -> None:
        super().__init__()
        self._wrappers = Wrappers(lambda: sys.modules.get("rmm.statistics"))
        self.depth: int = 0  # how often the user pushed, less their pops, since the wrappers are on

    def in_use(self) -> tuple[int, ...]:
        """Return the calling thread's current device, of which alone RMM tells anything."""
        return _current()

    def counter(self, device: int) -> RmmCounter:
        """Return the counter of a device whose statistics are enabled."""
        _read(device)
        return RmmCounter(self, driver.device(device))

    def hold(self) -> None:
        """Count the user's pushes and pops."""
        if not self._wrappers:
            self.depth = 0
        self._wrappers.put_on({f"{what}_statistics": partial(self._wrapper, by) for what, by in _STEPS})

    def release(self) -> None:
        """Take the wrappers off."""
        self._wrappers.take_off()

    def _wrapper(self, step: int, original: Callable[[], Any]) -> Callable[[], Any]:
        def push_or_pop() -> Any:
            answer = original()
            self.depth += 0 if answer is None else step  # None: not enabled
            return answer

        return push_or_pop


def _current() -> tuple[int, ...]:
    # Without a context on it, RMM has allocated nothing there.
    return driver.current(lambda: int(sys.modules["rmm._cuda.gpu"].getDevice()))


def _read(index: int) -> tuple[Any, int]:
    """Return RMM's statistics of the current device, and the id of the adaptor that keeps them."""
    if _current() != (index,):
        raise Unavailable("RMM's current device is another one")
    with unavailable("RMM gives no statistics"):
        statistics = sys.modules["rmm.statistics"].get_statistics()
        # A reference would keep the adaptor's memory alive.
        adaptor = id(sys.modules["rmm"].mr.get_current_device_resource())
    if statistics is None:
        raise Unavailable("RMM's statistics are not enabled (rmm.statistics.enable_statistics())")
    return statistics, adaptor
