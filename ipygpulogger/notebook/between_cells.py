"""What moved between the end of one cell and the beginning of the next.

Garbage that is collected there, what other threads do, code that a front end runs for itself: no cell
accounts for it. What our own work in the hooks takes is left out.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..engine.machine import machine
from ..records import CPU, DRIVER, Held, moved_between
from ..records.units import MB, rounded_mb
from ..sources import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..engine.scope import Scope
    from ..records import Sizes


class Gap:
    """The time from the end of a cell, and of our work after it, to the beginning of the next."""

    def __init__(self, after: Scope | None = None) -> None:
        """It begins now.

        Args:
            after: Of the cell that is over; None where there was none, or another ran beside it.
        """
        self._ended: dict[str, Held] | None = None
        self._pid = os.getpid()
        self._own_bytes = self._context_bytes = 0  # what our own work took, and of that a GPU context
        self._context_on: int | None = None  # the index of the device for which we made it
        if after is not None:
            self._ended = after.held_after()
            self._ended[CPU] = Held(CPU, self._resident_bytes())

    @contextmanager
    def own_work(self) -> Iterator[None]:
        """Within it we work."""
        before_bytes = self._resident_bytes()
        try:
            yield
        finally:
            self._own_bytes += self._resident_bytes() - before_bytes

    def preload(self) -> None:
        """Create the GPU context, if the user has imported its framework; part of our own work."""
        on, before_bytes = machine(), self._resident_bytes()
        has_context = on.frameworks.current_index() is not None
        on.settling.preload()
        if not has_context:
            self._context_on, self._context_bytes = (
                on.frameworks.current_index(),
                self._resident_bytes() - before_bytes,
            )

    def moved(self, scope: Scope, before_bytes: int) -> Sizes:
        """By how much memory moved, in bytes by device, where that is more than 1 MB and than its grain.

        Args:
            scope: The cell after it.
            before_bytes: What was resident when that began.
        """
        if (
            self._ended is None or self._pid != os.getpid()
        ):  # in a fork's child the last cell was its parent's
            return ()
        began = {CPU: Held(CPU, before_bytes - self._own_bytes)}
        for key, held in scope.held_before().items():
            began[key] = held._replace(outside_bytes=None) if self._has_our_context(held) else held
        return moved_between(self._ended, began, 2 * machine().ram.counter.current_precision_bytes)

    def notes(self, scope: Scope) -> tuple[str, ...]:
        """What our own work created that the cell after it finds."""
        if self._context_on is None:
            return ()
        sizes = [
            f"{rounded_mb(held.outside_bytes)} MB ({held.name})"
            for held in scope.held_before().values()
            if held.outside_bytes and self._has_our_context(held)
        ]
        sizes += [f"{rounded_mb(self._context_bytes)} MB of RAM"] if self._context_bytes >= MB else []
        return (f"before this cell: + context {', '.join(sizes)}",) if sizes else ()

    def _has_our_context(self, held: Held) -> bool:
        backend, _, index = held.name.partition(":")
        return backend != DRIVER and index == str(self._context_on)

    def _resident_bytes(self) -> int:
        try:
            return machine().ram.look().readings[0].current_bytes
        except (OSError, Unavailable):  # no descriptors left, for one: what moved is not known
            self._ended = None
            return 0
