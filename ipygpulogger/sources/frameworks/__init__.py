"""The frameworks but for torch, a file each; and how peaks that users reset as well as we stay theirs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from ...runtime.wrappers import Wrappers
from ..contract import Device, DeviceCounter, Framework, PeakClass, Unavailable

NOT_OURS = -1  # in place of the index of a device

# As a framework nests them. Every dictionary that has a "peak" is one count: TensorFlow's own with "current"
# and "peak", torch's stats["allocated_bytes"]["all"].
Stats = dict[str, Any]


class ResettableFramework(Framework):
    """A framework whose peaks users read as if we had never reset them.

    While scopes are open or a logger runs, its functions that read and reset peaks are wrapped. What the user
    reads is raised to the highest peak that a reset of ours erased. A reset by the user is announced to the
    engine, which keeps the peaks of open scopes.

    Attributes:
        READS: The names of the functions that return a device's statistics.
        RESETS: The names of those that reset a device's peaks.
        wrappers: They stay on after the last scope while taking them off would make the framework forget a
            peak. Then they go at the user's next reset, or at a reading for which the framework's own peaks
            are as high again.
    """

    READS: ClassVar[tuple[str, ...]]
    RESETS: ClassVar[tuple[str, ...]]

    def __init__(self) -> None:
        super().__init__()
        self.wrappers: Wrappers = Wrappers(self._place, self._caught_up)
        self._highest: dict[int, dict[tuple[str, ...], int]] = {}  # by device: the peaks that we erased

    @abstractmethod
    def _place(self) -> Any:
        """Return the module or class that holds these functions."""

    @abstractmethod
    def _is_used(self) -> bool:
        """Return whether the framework uses a device."""

    @abstractmethod
    def _device_of(self, *args: Any, **kwargs: Any) -> int | None:
        """Return the device that a call is about, None for memory of no device, or `NOT_OURS`."""

    @abstractmethod
    def read(self, index: int) -> Stats:
        """Return a device's own statistics, past the wrappers; raises `Unavailable`."""

    def reset(self, index: int) -> None:
        """Reset a device's own peaks, past the wrappers, for a `ResettableCounter`; raises `Unavailable`."""
        raise NotImplementedError

    def hold(self) -> bool:
        """Put the wrappers on, as far as the framework is there; return whether it was in use before."""
        late = not self.wrappers and self._is_used()
        self.wrappers.put_on(dict.fromkeys(self.READS, self._read_wrapper))
        self.wrappers.put_on(dict.fromkeys(self.RESETS, self._reset_wrapper))
        return late

    def release(self) -> None:
        """Take the wrappers off, as soon as that makes the framework forget no peak of the user's."""
        self.wrappers.take_off()

    def remember(self, index: int, stats: Stats) -> None:
        """Keep the peaks of a device that we are about to reset."""
        highest = self._highest.setdefault(index, {})
        for path, count in _counts(stats):
            highest[path] = max(highest.get(path, 0), count["peak"])

    def _read_wrapper(self, original: Callable[..., Stats]) -> Callable[..., Stats]:
        def read(*args: Any, **kwargs: Any) -> Stats:
            stats = original(*args, **kwargs)
            device = self._device_of(*args, **kwargs)
            if device is None or not self._raise(device, stats):
                self.wrappers.retry()
            return stats

        return read

    def _reset_wrapper(self, original: Callable[..., Any]) -> Callable[..., None]:
        def reset(*args: Any, **kwargs: Any) -> None:
            device, listener = self._device_of(*args, **kwargs), self.on_user_reset

            def reset_and_forget() -> None:
                original(*args, **kwargs)
                if device is not None:
                    self._highest.pop(device, None)

            if listener is None or device == NOT_OURS:
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
                if self._raise(index, self.read(index)):
                    return False
            except Unavailable:
                pass
        self._highest.clear()
        return True


class ResettableCounter(DeviceCounter):
    """The allocator of one device of such a framework."""

    peak_class: PeakClass = "resettable"

    def __init__(self, source: ResettableFramework, device: Device) -> None:
        self.device = device
        self._source = source
        self._last: Stats = {}  # of the last observation

    def reset(self) -> None:
        """Reset the peaks, and keep for the user what they would have read."""
        self._source.remember(self.device.index, self._last)
        self._source.reset(self.device.index)


def _counts(stats: Stats, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, int]]]:
    """Yield every count that has a peak, however deeply nested, with its path."""
    if "peak" in stats:
        yield path, stats
    for name, values in stats.items():
        if isinstance(values, dict):
            yield from _counts(values, (*path, name))
