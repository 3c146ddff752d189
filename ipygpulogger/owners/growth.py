"""The names to which the memory that a cell consumed is attributed.

The last walk before the cell is compared with one after it. Only blocks that were allocated or freed between
them count: a block that was there before is not growth of the name that holds it now, so a rename or an alias
grows nothing. What a name lost is subtracted from what it gained.

A walk takes time. A cell that consumed next to nothing has none after it, and one walk serves several cells
as long as no notable amount of memory has changed. Its time budget is in proportion to how long cells ran
since the last walk, and to how much memory has changed. Names that were bound since are visited first.

Only names, sizes and weak references are kept: nothing here keeps a value of the user's alive.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..engine.ledger import ALLOCATED
from ..engine.machine import machine
from ..records import CPU, CellRecord, RamUsage, notable
from ..records.units import MB
from ..runtime.collector import undisturbed
from ..sources import Unavailable
from .bindings import bindings
from .libraries import Libraries
from .snapshot import Snapshot, growth, snapshot_of

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Hashable, Mapping
    from contextlib import AbstractContextManager

    from .attribution import WalkResult
    from .libraries import Look

BUDGET_S = 0.02  # of a walk, at most, and of the first one
# Of that time: a walk at least, and more for each second that cells ran, and for each byte that changed.
_LEAST = 0.15
_PER_S = 0.5  # 1 % of it
_PER_BYTE = 1 / 2**30

_SEARCHED_BYTES = 5 * MB  # unexplained: for less, garbage is not searched; the report does not show it either
_SEARCH_S, _SEARCH_S_PER_MB = 0.2, 0.004  # for that search


class Watcher(Protocol):
    """What is told of each walk."""

    def walked(self, found: WalkResult, used: Mapping[str, int], bound: Mapping[str, int]) -> None:
        """Take the walk's result, the memory in use by device, and what each name is bound to."""


class Before(NamedTuple):
    """What was known when a cell began.

    Attributes:
        snapshot: Of the last walk.
        bound: By name, the `id` of what it was bound to, where that walk was not complete.
        loaded: The libraries that were loaded.
    """

    snapshot: Snapshot
    bound: Mapping[str, int]
    loaded: Look


class Growth:
    """The growth of names over cells, which may nest and overlap.

    Args:
        find: Walks from every name, with a time budget in seconds, these names first.
        used: Returns the memory in use now, in bytes by device.
        bound: Returns, by name, the `id` of what it is bound to now.
        garbage: Returns the memory that waits for the garbage collector, in bytes by device, without the
            blocks of these keys, in a time budget.
    """

    def __init__(
        self,
        find: Callable[[float, Container[str]], WalkResult],
        used: Callable[[], dict[str, int]],
        bound: Callable[[], dict[str, int]],
        garbage: Callable[[Container[Hashable], float], Mapping[str, int]] = lambda *_: {},
    ) -> None:
        self._find, self._used, self._bound, self._garbage = find, used, bound, garbage
        self._last: Snapshot | None = None
        self._ran_s = 0.0  # cells, since the last walk
        self._libraries = Libraries()
        self._watcher: Watcher | None = None

    @classmethod
    def of(cls, shell: Any) -> Growth:
        """Make one for a shell's names."""

        def find(budget_s: float, urgent: Container[str]) -> WalkResult:
            from .array_readers import array_readers  # 10 ms of loading, which not every process needs
            from .roots import owners_in

            return owners_in(shell, array_readers(), budget_s=budget_s, urgent=urgent)

        def garbage(attributed: Container[Hashable], budget_s: float) -> Mapping[str, int]:
            from .array_readers import array_readers
            from .cycles import unreachable_bytes

            return unreachable_bytes(array_readers(), attributed, budget_s)

        return cls(find, _in_use, partial(bindings, shell), garbage)

    def watch(self, watcher: Watcher | None) -> None:
        """Pass the result of each walk on, and walk again after smaller changes; None ends that."""
        if watcher is not self._watcher:
            self._watcher, self._last = watcher, None

    @property
    def has_walked(self) -> bool:
        """Whether it is known which names held memory at some moment."""
        return self._last is not None

    def refresh(self, around: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        """Walk again before a cell begins, if a notable amount of memory has changed since the last walk.

        Args:
            around: Makes a context in which to walk.
        """
        used = self._used()
        if self._last is None or self._is_stale(self._last, used):
            with around():
                self._walk(used)

    def walk_again(self) -> None:
        """Walk again now."""
        self._walk(self._used())

    def _walk(self, used: dict[str, int]) -> None:
        with undisturbed():
            self._last = self._take(used)

    def begin(self) -> Before | None:
        """Return what is known as a cell begins, for `end`; None where nothing is."""
        if self._last is None:
            self.refresh()
        if self._last is None:
            return None
        # Which names the cell binds matters only where the walk before it was not complete.
        return Before(self._last, {} if self._last.complete else self._bound(), self._libraries.look())

    def end(self, before: Before | None, record: CellRecord, *, collected: bool) -> CellRecord:
        """Return the cell's record with its owners; the same record where the cell consumed next to nothing.

        Args:
            before: What `begin` returned.
            record: The cell's.
            collected: Whether garbage was collected before the record's snapshots.
        """
        self._ran_s += record.time_s
        if before is None or not record.grown():
            return record
        with undisturbed():
            after = self._last = self._take(self._used())
            anew = set() if before.snapshot.complete else _bound_anew(before.bound, after.bound)
            found = growth(before.snapshot, after, anew, record.grown())
            record = record.explained(found.owners, found.gone_bytes, complete=found.complete)
            imported = (
                self._libraries.loaded(before.loaded) if dict(record.unexplained).get(CPU, 0) > 0 else None
            )
            if imported is not None:
                record = record.with_libraries(imported.names, imported.most_bytes)
            rest_bytes = sum(size_bytes for _, size_bytes in record.unexplained if size_bytes > 0)
            if collected or rest_bytes < _SEARCHED_BYTES:
                return record
            from .cycles import garbage_notes

            found_bytes = self._garbage(after.blocks, min(_SEARCH_S, rest_bytes / MB * _SEARCH_S_PER_MB))
            return replace(record, notes=(*record.notes, *garbage_notes(found_bytes)))

    def unexplained(self, record: CellRecord, before: Snapshot) -> dict[str, int]:
        """Return what a cell consumed beyond what names hold more than before it, in bytes by device.

        Args:
            record: The cell's.
            before: The names as the cell began.

        Returns:
            Where a walk was cut short, what the names that the cell bound leave unexplained. Nothing if there
            was too much below one of these to visit: it may hold all of it.
        """
        self.refresh()
        now = self._last
        if now is None:
            return {}
        if before.complete and now.complete:
            was, held = before.sizes(), now.sizes()
        else:
            anew = {name for name, value in now.bound.items() if before.bound.get(name) != value}
            if anew & now.vast:
                return {}
            was, held = {}, now.sizes({key for key in now.blocks if key not in before.blocks}, anew)
        libraries = sum(owner.size_bytes for owner in record.owners if owner.is_libraries)
        found = {}
        for device, usage in record.memories().items():
            consumed_bytes = usage.consumed_bytes
            if isinstance(usage, RamUsage):
                consumed_bytes -= usage.kept_of_consumed_bytes + libraries
            found[device] = consumed_bytes - held.get(device, 0) + was.get(device, 0)
        return found

    def close(self) -> None:
        """Forget the last walk."""
        self._last = None

    def _is_stale(self, snapshot: Snapshot, used: Mapping[str, int]) -> bool:
        """Return whether a notable amount of memory has changed since, or a name of a large block."""
        for device, size_bytes in used.items():
            moved_bytes = abs(size_bytes - snapshot.used.get(device, 0))
            if moved_bytes >= MB if self._watcher else notable(moved_bytes, size_bytes):
                return True
        if any(weak() is None for weak in snapshot.alive):
            return True
        if not snapshot.large:
            return False
        bound = self._bound()
        return any(bound.get(name) != snapshot.bound.get(name) for name in snapshot.large)

    def _budget_s(self, used: Mapping[str, int]) -> float:
        """Return the time budget of a walk now, with this memory in use."""
        if self._last is None:
            return BUDGET_S
        were = self._last.used
        changed_bytes = sum(abs(size - were.get(device, 0)) for device, size in used.items())
        return BUDGET_S * min(1.0, _LEAST + _PER_S * self._ran_s + _PER_BYTE * changed_bytes)

    def _take(self, used: dict[str, int]) -> Snapshot:
        bound = self._bound()
        urgent = set() if self._last is None else _bound_anew(self._last.bound, bound)
        found = self._find(self._budget_s(used), urgent)
        self._ran_s = 0.0
        if self._watcher is not None:
            self._watcher.walked(found, used, bound)
        return snapshot_of(found, used, bound)


def _bound_anew(before: Mapping[str, int], after: Mapping[str, int]) -> set[str]:
    """Return the names that are bound to something else than before."""
    return {name for name, value in after.items() if before.get(name) != value}


# -- what is in use ---------------------------------------------------


def _in_use() -> dict[str, int]:
    """Return, by device, the resident memory and what live arrays hold."""
    found = {CPU: machine().resident_bytes()}
    for device, trackers in machine().allocators.by_device():
        try:
            held = [tracker.current_bytes(ALLOCATED) for tracker in trackers]
        except Unavailable:
            continue
        found[device.id] = sum(held)
    return found
