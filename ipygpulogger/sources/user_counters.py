"""The peaks that users read from a framework, kept true while we reset the framework's own.

Resetting an allocator's peaks resets them for the user as well. So while scopes are open or a logger runs,
the functions through which users read and reset peaks are wrapped. What the user reads is raised to the
highest peak that a reset of ours erased. A reset by the user is announced to the engine, which keeps the
peaks of open scopes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..runtime.wrappers import Wrappers
from .counter import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# As a framework nests them. Every dictionary within that has a "peak" is one count, such as torch's
# stats["allocated_bytes"]["all"], with "current" and "peak".
Stats = dict[str, Any]


class UserCounters:
    """The peaks of each device that the user would read if we had never reset them.

    Attributes:
        wrappers: Around the framework's functions that read and reset peaks. They stay on after the last
            scope while taking them off would make the framework forget a peak. Then they go at the
            user's next reset, or at a reading for which the framework's own peaks are as high again.
    """

    def __init__(self, place: Callable[[], Any], stats: Callable[[int], Stats]) -> None:
        """Prepare, without looking anything up.

        Args:
            place: Returns the module or class that holds the framework's functions.
            stats: Reads the framework's own statistics of a device, past the wrappers; may raise
                `Unavailable`.
        """
        self.wrappers = Wrappers(place, self._caught_up)
        self._stats = stats
        self._highest: dict[int, dict[tuple[str, ...], int]] = {}

    def remember(self, index: int, stats: Stats) -> None:
        """Keep the peaks of a device that we are about to reset."""
        highest = self._highest.setdefault(index, {})
        for path, count in _counts(stats):
            highest[path] = max(highest.get(path, 0), count["peak"])

    def user_reads(self, index: int, stats: Stats) -> None:
        """Raise the peaks in statistics that the user asked for, in place."""
        if not self._raise(index, stats):
            self.wrappers.retry()

    def user_resets(
        self,
        index: int | None,
        reset: Callable[[], Any],
        announce: Callable[[Callable[[], None]], None] | None,
    ) -> None:
        """Reset the peaks of a device for the user, who is to read only later ones from now on.

        Args:
            index: The device; None for memory of no device.
            reset: The framework's own reset.
            announce: Passes the reset to the engine, which runs it; None if there is no engine to tell.
        """

        def reset_and_forget() -> None:
            reset()
            if index is not None:
                self._highest.pop(index, None)

        if announce is None:
            reset_and_forget()
        else:
            announce(reset_and_forget)
        self.wrappers.retry()

    def _raise(self, index: int, stats: Stats) -> bool:
        """Raise the peaks to those that we erased; return whether any was lower."""
        highest, changed = self._highest.get(index), False
        if highest:
            for path, count in _counts(stats):
                if highest.get(path, 0) > count["peak"]:
                    count["peak"], changed = highest[path], True
        return changed

    def _caught_up(self) -> bool:
        """Forget the erased peaks if the framework's own are as high again; return whether they are."""
        for index in tuple(self._highest):
            try:
                if self._raise(index, self._stats(index)):
                    return False
            except Unavailable:
                pass
        self._highest.clear()
        return True


def _counts(stats: Stats, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, int]]]:
    """Yield every count that has a peak, however deeply nested, with its path."""
    for name, values in stats.items():
        if isinstance(values, dict):
            if "peak" in values:
                yield (*path, name), values
            yield from _counts(values, (*path, name))
