"""Functions of ours in the place of another library's, and the library's own back again.

Libraries that look their functions up by name at each call are reached by replacing them where the
names live. What somebody else put in the place meanwhile is left alone.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_ORIGINAL = "_ipygpulogger_original"  # marks a wrapper of ours, and holds what it wraps


class Wrappers:
    """The wrappers in one place; false while none is on.

    Attributes:
        lock: Held while they are put on or taken off, by any thread.
    """

    def __init__(self, place: Callable[[], Any]) -> None:
        """Prepare, without looking anything up.

        Args:
            place: The module or class that holds the functions; None while it does not exist.
        """
        self.lock = threading.RLock()
        self._place = place
        self._on: dict[str, tuple[Any, Any]] = {}  # name: (the library's function, ours)

    def __bool__(self) -> bool:
        return bool(self._on)

    def put_on(self, makers: Mapping[str, Callable[[Any], Callable[..., Any]]]) -> None:
        """Wrap what is there and not wrapped yet.

        Args:
            makers: By name of the function: what makes a wrapper of it.
        """
        place = self._place()
        with self.lock:
            for name, maker in makers.items():
                original = getattr(place, name, None)
                original = getattr(original, _ORIGINAL, original)  # a fork's parent may have been here
                if original is not None and name not in self._on:
                    ours = functools.wraps(original)(maker(original))
                    setattr(ours, _ORIGINAL, original)
                    try:
                        setattr(place, name, ours)
                        self._on[name] = original, ours
                    except BaseException:  # interrupted between the two
                        setattr(place, name, original)
                        raise

    def take_off(self) -> None:
        """Put the library's own back, wherever ours still stand."""
        place = self._place()
        with self.lock:
            for name, (original, ours) in self._on.items():
                if getattr(place, name, None) is ours:
                    setattr(place, name, original)
            self._on.clear()

    def own(self, name: str) -> Any:
        """The function without our wrapper.

        Raises:
            AttributeError: There is none of this name.
        """
        function = getattr(self._place(), name)
        original, ours = self._on.get(name, (None, None))
        return original if ours is function else getattr(function, _ORIGINAL, function)

    def after_fork_in_child(self) -> None:
        """Another thread may have held the lock."""
        self.lock = threading.RLock()
