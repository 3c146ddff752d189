"""Where no peak can be reset: one that only rises, or none, helped by a sampling process.

A peak that only rises (macOS, Windows, Linux where the reset is refused) is exact if a scope set a new
record, and a bound otherwise; the sampling process raises the lower bound. Where nothing counts peaks
(gVisor), the samples are all there is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..runtime.errors import named
from ..runtime.signals import is_from_a_handler
from .counter import UNREADABLE, Counter, Look, PeakClass, Reading, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from .rss_watcher import RssWatcher


class RisingPeak(Counter):
    """A peak that only rises, or no peak at all, with the samples of another process."""

    def __init__(
        self,
        current: Callable[[], int],
        peak: Callable[[], int] | None,
        watcher: RssWatcher | None = None,
        precision_bytes: int = 0,
        current_precision_bytes: int = 0,
    ) -> None:
        """Combine what this system offers.

        Args:
            current: Returns the bytes that are resident now.
            peak: Returns the highest that they have ever been; None if nothing counts it.
            watcher: The sampling process.
            precision_bytes: How far the peak may be off.
            current_precision_bytes: How far the current size may be off.
        """
        self.peak_class: PeakClass = "monotone" if peak else "sampled"
        self.precision_bytes, self.current_precision_bytes = precision_bytes, current_precision_bytes
        self._current, self._peak, self._watcher = current, peak, watcher

    def look(self) -> Look:
        """Read the resident memory, the peak if there is one, and the highest sample."""
        try:
            current_bytes = self._current()
            peak_bytes = max(self._peak(), current_bytes) if self._peak else None
        except Exception as error:  # psutil may be broken in any way
            if is_from_a_handler(error):
                raise
            raise Unavailable(f"{UNREADABLE}: {named(error)}") from error
        seen_bytes = self._watcher.highest_bytes() if self._watcher else 0
        return Look((Reading(current_bytes, peak_bytes, seen_bytes),), stamp=())

    def watch(self, *, on: bool) -> None:
        """Wake the sampling process or let it sleep."""
        if self._watcher:
            self._watcher.watch(on=on)

    def close(self) -> None:
        """End the sampling process."""
        if self._watcher:
            self._watcher.close()
