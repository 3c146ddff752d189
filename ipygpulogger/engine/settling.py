"""Settle memory around a measurement: collect garbage and empty caches, so that leftovers are not counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..runtime import collector, full_collection

if TYPE_CHECKING:
    from .frameworks import Frameworks


class Settling:
    """Garbage collection, the frameworks' caches, and the context of the current device."""

    def __init__(self, frameworks: Frameworks) -> None:
        self._frameworks = frameworks
        self._ran = True  # whether the user's code ran since the last full collection

    def preload(self) -> None:
        """Create the context of the current device if the user has imported its framework."""
        self._frameworks.ask(lambda framework: framework.preload())

    def settle(self, *, gc_collect: bool, clear_cache: bool) -> None:
        """Collect all garbage and empty the caches.

        Where no scope ended since the last full collection, only the two younger generations are collected:
        a full one costs 0.1 s once torch is imported (measured).

        Args:
            gc_collect: Collect garbage.
            clear_cache: Empty the frameworks' caches.
        """
        if gc_collect:
            if self._ran:
                self._ran = False
                full_collection.run()
            else:
                collector.collect(1)
        if clear_cache:
            self.empty_caches()

    def empty_caches(self) -> None:
        """Empty the frameworks' caches."""
        self._frameworks.ask(lambda framework: framework.settle())

    def users_code_ran(self) -> None:
        """Note that a scope ended, so that the next collection is a full one."""
        self._ran = True
