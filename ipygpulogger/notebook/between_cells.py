"""The memory that was allocated or freed between the end of one cell and the beginning of the next.

Typical causes are garbage that is collected there, other threads, and code that a front end runs silently.
None of this is attributed to a cell. Memory that our own hooks take is excluded.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..engine.machine import machine
from ..records import CPU, DRIVER, DeviceHolding, moved_between
from ..records.units import MB, rounded_mb
from ..sources import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..engine.scope import Scope
    from ..records import Sizes


class Gap:
    """The time from the end of a cell, and of our work after it, to the beginning of the next."""

    def __init__(self, after: Scope | None = None, *, freed: bool = False) -> None:
        """Begin now, after the scope of a cell that ran alone; our work since then may have `freed` much."""
        self._ended: dict[str, DeviceHolding] | None = None
        self._pid = os.getpid()
        self._own_bytes = self._context_bytes = 0  # taken by our hooks, and by the context among that
        self._context_on: int | None = None  # index of the device on which we created a context
        if after is not None:
            self._ended = after.held(after=True)
            self._ended[CPU] = DeviceHolding(CPU, self._resident_bytes(again=not freed))

    @contextmanager
    def own_work(self) -> Iterator[None]:
        """Exclude the resident memory that is taken within."""
        before_bytes = self._resident_bytes()
        try:
            yield
        finally:
            self._own_bytes += self._resident_bytes() - before_bytes

    def preload(self) -> None:
        """Create the GPU context if the user has imported its framework and uses no device so far."""
        on = machine()
        if not on.frameworks.can_preload():
            return
        index, before_bytes = on.frameworks.current_index(), self._own_bytes
        with self.own_work():
            on.settling.preload()
        if index is None:
            self._context_on = on.frameworks.current_index()
            self._context_bytes = self._own_bytes - before_bytes

    def moved(self, scope: Scope, before_bytes: int) -> Sizes:
        """Return how much memory was allocated or freed before a cell, in bytes by device, where notable.

        Args:
            scope: Of the cell.
            before_bytes: Resident memory when it began.
        """
        if self._ended is None or self._pid != os.getpid():  # in a forked child: the parent's cell
            return ()
        began = {CPU: DeviceHolding(CPU, before_bytes - scope.ours_before_bytes - self._own_bytes)}
        for key, held in scope.held().items():
            began[key] = held._replace(outside_bytes=None) if self._has_our_context(held) else held
        return moved_between(self._ended, began, 2 * machine().ram.counter.current_precision_bytes)

    def notes(self, scope: Scope) -> tuple[str, ...]:
        """Return a note about a context that we created before the cell, if we did."""
        if self._context_on is None:
            return ()
        sizes = [
            f"{rounded_mb(held.outside_bytes)} MB ({held.name})"
            for held in scope.held().values()
            if held.outside_bytes and self._has_our_context(held)
        ]
        sizes += [f"{rounded_mb(self._context_bytes)} MB of RAM"] if self._context_bytes >= MB else []
        return (f"before this cell: + context {', '.join(sizes)}",) if sizes else ()

    def _has_our_context(self, held: DeviceHolding) -> bool:
        backend, _, index = held.name.partition(":")
        return backend != DRIVER and index == str(self._context_on)

    def _resident_bytes(self, *, again: bool = False) -> int:
        """Return the resident memory without what late imports of ours took; `again`: in the same hook."""
        on = machine()
        try:
            resident_bytes = on.ram.last_bytes() if again else on.ram.current_bytes()
            return resident_bytes - on.own_imports.bytes
        except (OSError, Unavailable):  # no file descriptors left, for example: then the gap is unknown
            self._ended = None
            return 0
