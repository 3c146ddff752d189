"""The peaks that users read from a framework, kept true while we reset the framework's own.

Resetting an allocator's peaks resets them for the user as well. So while scopes are open or a logger runs,
the functions through which users read and reset peaks are wrapped. What the user reads is raised to the
highest peak that a reset of ours erased. A reset by the user is announced to the engine, which keeps the
peaks of open scopes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...runtime.wrappers import Wrappers
from ..contract import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..contract import Framework

_NOT_OURS = -1

# As a framework nests them. Every dictionary that has a "peak" is one count: TensorFlow's own with "current"
# and "peak", torch's stats["allocated_bytes"]["all"].
Stats = dict[str, Any]


class UserCounters:
    """The peaks of each device that the user would read if we had never reset them.

    Attributes:
        wrappers: Around the framework's functions that read and reset peaks. They stay on after the last
            scope while taking them off would make the framework forget a peak. Then they go at the
            user's next reset, or at a reading for which the framework's own peaks are as high again.
    """

    def __init__(
        self,
        framework: Framework,
        place: Callable[[], Any],
        stats: Callable[[int], Stats],
        device_of: Callable[..., int | None],
    ) -> None:
        """Prepare, without looking anything up.

        Args:
            framework: Its `on_user_reset` is called when the user resets peaks.
            place: Returns the module or class that holds the framework's functions.
            stats: Reads the framework's own statistics of a device, past the wrappers; may raise
                `Unavailable`.
            device_of: Returns the device that a call of a wrapped function is about, from its arguments; None
                for memory of no device, -1 for a device that is not ours.
        """
        self.wrappers = Wrappers(place, self._caught_up)
        self._framework, self._stats, self._device_of = framework, stats, device_of
        self._highest: dict[int, dict[tuple[str, ...], int]] = {}

    def remember(self, device: int, stats: Stats) -> None:
        """Keep the peaks of a device that we are about to reset."""
        highest = self._highest.setdefault(device, {})
        for path, count in _counts(stats):
            highest[path] = max(highest.get(path, 0), count["peak"])

    def read_wrapper(self, original: Callable[..., Stats]) -> Callable[..., Stats]:
        """Wrap a function that returns a device's statistics: the user reads the peaks that we erased."""

        def read(*args: Any, **kwargs: Any) -> Stats:
            stats = original(*args, **kwargs)
            device = self._device_of(*args, **kwargs)
            if device is None or not self._raise(device, stats):
                self.wrappers.retry()
            return stats

        return read

    def reset_wrapper(self, original: Callable[..., Any]) -> Callable[..., None]:
        """Wrap a function that resets a device's peaks: the engine runs it, what we erased is forgotten."""

        def reset(*args: Any, **kwargs: Any) -> None:
            device, listener = self._device_of(*args, **kwargs), self._framework.on_user_reset

            def reset_and_forget() -> None:
                original(*args, **kwargs)
                if device is not None:
                    self._highest.pop(device, None)

            if listener is None or device == _NOT_OURS:
                reset_and_forget()
            else:
                listener(device, reset_and_forget)
            self.wrappers.retry()

        return reset

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
    if "peak" in stats:
        yield path, stats
    for name, values in stats.items():
        if isinstance(values, dict):
            yield from _counts(values, (*path, name))
