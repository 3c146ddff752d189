"""Functions of ours in place of another library's, and the library's own functions put back.

A library that looks its functions up by name at each call is reached by replacing them where the names
live. A replacement that another tool made in the meantime is left alone.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_ORIGINAL = "_ipygpulogger_original"  # marks a wrapper of ours, and holds the function that it wraps


class Wrappers:
    """The wrappers in one module or class; false while none is on.

    Attributes:
        lock: Held while wrappers are put on or taken off, by any thread.
    """

    def __init__(self, place: Callable[[], Any], may_go: Callable[[], bool] = lambda: True) -> None:
        """Prepare, without looking anything up.

        Args:
            place: Returns the module or class that holds the functions; None while it does not exist.
            may_go: Returns whether the wrappers can be taken off now without a loss for the user.
        """
        self.lock = threading.RLock()
        self._place, self._may_go = place, may_go
        self._on: dict[str, tuple[Any, Any]] = {}  # name: (the library's function, ours)
        self._leaving = False

    def __bool__(self) -> bool:
        return bool(self._on)

    def put_on(self, makers: Mapping[str, Callable[[Any], Callable[..., Any]]]) -> None:
        """Wrap the functions that exist and are not wrapped yet.

        Args:
            makers: For each function's name, what makes a wrapper of the function.
        """
        place = self._place()
        with self.lock:
            self._leaving = False
            for name, maker in makers.items():
                if name in self._on:
                    continue
                original = getattr(place, name, None)
                original = getattr(original, _ORIGINAL, original)  # a fork's parent may have wrapped it
                if original is not None:
                    ours = functools.wraps(original)(maker(original))
                    setattr(ours, _ORIGINAL, original)
                    try:
                        setattr(place, name, ours)
                        self._on[name] = original, ours
                    except BaseException:  # interrupted between the two
                        setattr(place, name, original)
                        raise

    def take_off(self) -> None:
        """Put the library's own functions back, at once or, while `may_go` refuses, at a later `retry`."""
        with self.lock:
            self._leaving = True
            self.retry()

    def retry(self) -> None:
        """Take the wrappers off after all, if `take_off` had to leave them on."""
        if not self._leaving:
            return
        with self.lock:
            if self._leaving and self._may_go():
                place = self._place()
                for name, (original, ours) in self._on.items():
                    if getattr(place, name, None) is ours:
                        setattr(place, name, original)
                self._on.clear()

    def own(self, name: str) -> Any:
        """Return the library's own function, without our wrapper.

        Raises:
            AttributeError: There is no function of this name.
        """
        function = getattr(self._place(), name)
        original, ours = self._on.get(name, (None, None))
        return original if ours is function else getattr(function, _ORIGINAL, function)

    def after_fork_in_child(self) -> None:
        """Replace the lock, which another thread may have held at the moment of the fork."""
        self.lock = threading.RLock()
