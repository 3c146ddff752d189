"""Garbage and caches around a measurement, and the memory that our own late imports take.

A part of this package is imported when it is first used, which may be within a cell or between two. The
memory that recording and reading a history takes, and gives back later, is counted in the same way.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from operator import methodcaller
from typing import TYPE_CHECKING

from ..runtime import collector
from ..sources import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .frameworks import Frameworks

_MOST_BYTES = 4 * 2**20  # more than any import of ours takes: the rest is what other threads allocated


class OwnImports:
    """Adds up what our late imports take: the resident bytes so far that were not given back."""

    def __init__(self, resident_bytes: Callable[[], int]) -> None:
        self._resident_bytes = resident_bytes
        self._importing: set[int] = set()  # the threads that import just now
        self.bytes = 0

    @contextmanager
    def importing(self, most_bytes: int = _MOST_BYTES, least_bytes: int = 0) -> Iterator[None]:
        """Count the resident memory that work of this package takes within, at least and at most so much."""
        thread = threading.get_ident()
        if thread in self._importing:
            yield
            return
        before_bytes = self._resident()
        self._importing.add(thread)
        try:
            yield
        finally:
            self._importing.discard(thread)
            if before_bytes is not None and (after_bytes := self._resident()) is not None:
                self.bytes += max(least_bytes, min(most_bytes, after_bytes - before_bytes))

    def _resident(self) -> int | None:
        try:
            return self._resident_bytes()
        except (OSError, Unavailable):  # no descriptors left: then nothing is measured either
            return None


class Settling:
    """Garbage collection, the frameworks' caches, the context of the current device."""

    def __init__(self, frameworks: Frameworks) -> None:
        self._frameworks, self.ran = frameworks, True

    def preload(self) -> None:
        """Create the context of the current device if the user has imported its framework."""
        self._frameworks.ask(methodcaller("preload"))

    def settle(self, *, gc_collect: bool, clear_cache: bool) -> None:
        """Collect garbage, all of it if a scope ended since (0.1 s once torch is there); empty the caches."""
        if gc_collect:
            if self.ran:
                self.ran = False
                collector.run()
            else:
                collector.collect(1)
        if clear_cache:
            self._frameworks.ask(methodcaller("settle"))
