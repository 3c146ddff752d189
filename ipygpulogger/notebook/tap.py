"""Call callbacks before each call of a method of one object; a callback may suppress the call."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Tap:
    """Replaces a method of one object; each call of it, on any thread, first calls the callbacks.

    A callback that returns True withholds the call: the method is not called, and the caller gets None.
    When the last callback is removed, the object has its own method again.
    """

    lock = threading.RLock()  # of all taps

    def __init__(self, owner: Any, name: str) -> None:
        self._owner, self._name = owner, name
        self._was = vars(owner).get(name)  # None: the method of its class
        self.call = getattr(owner, name)
        self._callbacks: list[Callable[..., object]] = []

    @classmethod
    def of(cls, owner: Any, name: str) -> Tap:
        """Return the tap that is there, or a new one, which replaces nothing before it is opened."""
        tap = vars(owner).get(name)
        return tap if isinstance(tap, cls) else cls(owner, name)

    def open(self, callback: Callable[..., object]) -> None:
        """Add a callback."""
        with self.lock:
            self._callbacks.append(callback)
            if vars(self._owner).get(self._name) is not self:
                setattr(self._owner, self._name, self)

    def close(self, callback: Callable[..., object]) -> None:
        """Remove a callback; removing it again changes nothing."""
        with self.lock:
            if callback in self._callbacks:
                self._callbacks.remove(callback)
            if not self._callbacks and vars(self._owner).get(self._name) is self:
                if self._was is None:
                    delattr(self._owner, self._name)
                else:
                    setattr(self._owner, self._name, self._was)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the callbacks, then the method, unless one of them withholds the call."""
        withheld = False
        for callback in tuple(self._callbacks):
            with suppress(Exception):  # the call is the user's
                withheld = callback(*args, **kwargs) is True or withheld
        return None if withheld else self.call(*args, **kwargs)


class Taps:
    """Several taps that are closed together."""

    def __init__(self) -> None:
        self._open: list[tuple[Tap, Callable[..., object]]] = []

    def open(self, owner: Any, name: str, callback: Callable[..., object]) -> None:
        """Tap one more method; `close` can undo this even if an interrupt comes in between."""
        with Tap.lock:
            tap = Tap.of(owner, name)
            self._open.append((tap, callback))
            tap.open(callback)

    def close(self) -> None:
        """Close them all; closing again changes nothing."""
        for tap, callback in self._open:
            tap.close(callback)
        self._open.clear()  # a callback may refer to the owner of these taps


def untapped(owner: Any, name: str) -> Any:
    """Return the method itself, without the tap: calls of it do not reach the callbacks."""
    method = getattr(owner, name)
    return method.call if isinstance(method, Tap) else method
