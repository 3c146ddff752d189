"""The thread that estimates, and those that it starts: for the other threads torch is as it was.

torch's functions are attributes of its modules, which all threads share. Another thread may train, save a
checkpoint or ask how much memory is free while a function is estimated.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

from .user_lines import user_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..breakdown.places import Frame


class OwnThreads:
    """The threads in which the function that is estimated runs; a thread pool that was there is not of them.

    Attributes:
        started: Lines that started other threads.
    """

    def __init__(self) -> None:
        self._threads = {threading.current_thread()}
        self.started: list[Frame] = []

    def is_own(self) -> bool:
        """Return whether the function that is estimated runs in the current thread."""
        return threading.current_thread() in self._threads

    def only(self, new: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is a new one for own threads, and the original one for the others."""
        if isinstance(new, type) and isinstance(original, type):
            return self._only_class(new, original)

        @functools.wraps(original, updated=())
        def either(*args: Any, **kwargs: Any) -> Any:
            return (new if self.is_own() else original)(*args, **kwargs)

        return either

    def _only_class(self, new: type, original: type) -> type:
        own = self

        class Either(type):
            def __call__(cls, *args: Any, **kwargs: Any) -> Any:
                return super().__call__(*args, **kwargs) if own.is_own() else original(*args, **kwargs)

            def __instancecheck__(cls, instance: Any) -> bool:
                return super().__instancecheck__(instance) or isinstance(instance, original)

        return Either(original.__name__, (new,), {})

    def noted(self, original: Callable[..., None]) -> Callable[..., None]:
        """Return `Thread.start`, which notes the user's line: what other threads allocate is not counted."""

        @functools.wraps(original)
        def start(thread: threading.Thread) -> None:
            self._threads.add(thread)
            self.started.append(user_line())
            original(thread)

        return start
