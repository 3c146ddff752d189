"""The names to which the memory that a cell consumed is attributed.

The last walk before the cell is compared with one after it, as `snapshot` tells.

A walk takes time. A cell that consumed next to nothing has none after it, and one walk serves several cells
as long as no notable amount of memory has changed. Its time budget is in proportion to how long cells ran
since the last walk, and to how much memory has changed. Names that were bound since are visited first.

Only names, sizes and weak references are kept: nothing here keeps a value of the user's alive.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ..engine.ledger import ALLOCATED
from ..engine.machine import machine
from ..records import CPU, CellRecord, RamUsage
from ..records.units import MB
from ..runtime.collector import undisturbed
from ..sources import Unavailable
from .libraries import Libraries
from .snapshot import OwnedBlock, Snapshot, growth, snapshot_of

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Hashable, Mapping
    from contextlib import AbstractContextManager

    from .attribution import WalkResult
    from .libraries import LibrariesNow

BUDGET_S = 0.02  # of a walk, at most, and of the first one
# Of that time: a walk at least, and more for each second that cells ran, and for each byte that changed.
_LEAST = 0.15
_PER_S = 0.5  # 1 % of it
_PER_BYTE = 1 / 2**30


class Before(NamedTuple):
    """What was known when a cell began."""

    snapshot: Snapshot  # of the last walk
    bound: Mapping[str, int]  # by name, the `id` of what it was bound to, where that walk was not complete
    loaded: LibrariesNow  # the libraries that were loaded


class Growth:
    """The growth of names over cells, which may nest and overlap.

    Args:
        find: Walks from every name, with a time budget in seconds, these names first; or from some only.
        used: Returns the memory in use now, in bytes by device.
        bound: Returns, by name, the `id` of what it is bound to now.
        values: Returns what the user's variables are bound to now.
    """

    def __init__(
        self,
        find: Callable[..., WalkResult],
        used: Callable[[], dict[str, int]],
        bound: Callable[[], dict[str, int]],
        values: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self._find, self._used, self._bound, self._values = find, used, bound, values
        self._last: Snapshot | None = None
        self._ran_s = 0.0  # cells, since the last walk
        self._libraries = Libraries()

    @classmethod
    def of(cls, shell: Any) -> Growth:
        """Make one for a shell's names."""

        def find(budget_s: float, urgent: Container[str], only: Container[str] | None = None) -> WalkResult:
            from .memory_blocks import array_readers  # 10 ms of loading, which not every process needs
            from .roots import held_by, owners_in

            if only is not None:
                return held_by(shell, only, array_readers(), budget_s)
            return owners_in(shell, array_readers(), budget_s=budget_s, urgent=urgent)

        return cls(find, _in_use, partial(bindings, shell), lambda: shell.user_ns)

    @property
    def has_walked(self) -> bool:
        """Whether it is known which names held memory at some moment."""
        return self._last is not None

    def refresh(self, around: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        """Walk again, in this context, before a cell begins, if notable memory has changed since the last."""
        used = self._used()
        if self._last is None or self._is_stale(self._last, used):
            with around(), undisturbed():
                self._last = self._take(used)

    def begin(self) -> Before | None:
        """Return what is known as a cell begins, for `end`; None where nothing is."""
        if self._last is None:
            self.refresh()
        if self._last is None:
            return None
        # Which names the cell binds matters only where the walk before it was not complete.
        return Before(self._last, {} if self._last.complete else self._bound(), self._libraries.now())

    def end(self, before: Before | None, record: CellRecord) -> CellRecord:
        """Return the cell's record with its owners; the same record where it consumed next to nothing."""
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
            return record

    # -- what a cell dropped ------------------------------------------------------------------------

    def rebound(self, before: Snapshot) -> set[str]:
        """Return the names of large blocks that are bound to something else than before, or to nothing."""
        if not before.large:
            return set()
        now = self._bound()
        return {name for name in before.large if name in before.bound and now.get(name) != before.bound[name]}

    def missing(self, held: Mapping[Hashable, OwnedBlock], budget_s: float) -> dict[Hashable, OwnedBlock]:
        """Return which of these blocks their names do not hold any more; none where time is too short."""
        names = {block.plain_name for block in held.values()}
        if not names:
            return {}
        with undisturbed():
            found = self._find(budget_s, names, names)
        now = {key for blocks in found.blocks.values() for key in blocks}
        return {key: one for key, one in held.items() if key not in now} if found.complete else {}

    def unexplained(self, record: CellRecord, before: Snapshot) -> dict[str, int]:
        """Return what a cell consumed beyond what names hold more than before it, by device.

        `end` was called before. Nothing is returned where there was no time to search everything.
        """
        if not record.grown():  # else `end` has walked
            with undisturbed():
                self._last = self._take(self._used(), BUDGET_S)
        now = self._last
        if now is None or not (before.complete and now.complete):
            return {}
        was, held = before.sizes(), now.sizes()
        libraries = sum(owner.size_bytes for owner in record.owners if owner.is_libraries)
        found = {}
        for device, usage in record.memories().items():
            consumed_bytes = usage.consumed_bytes
            if isinstance(usage, RamUsage):
                consumed_bytes -= usage.kept_of_consumed_bytes + libraries
            found[device] = consumed_bytes - held.get(device, 0) + was.get(device, 0)
        return found

    def held(self) -> Mapping[Hashable, OwnedBlock]:
        """Return the blocks that names held at the last walk."""
        return {} if self._last is None else self._last.blocks

    def in_use(self) -> dict[str, int]:
        """Return the memory in use now, in bytes by device; general RAM without what malloc keeps."""
        used, heap = self._used(), machine().process.heap()
        return {**used, CPU: used[CPU] - (0 if heap is None else heap.kept_bytes)}

    def close(self) -> None:
        """Forget the last walk."""
        self._last = None

    def _is_stale(self, snapshot: Snapshot, used: Mapping[str, int]) -> bool:
        """Return whether a notable amount of memory has changed since, or a name of a large block."""
        if any(abs(size - snapshot.used.get(device, 0)) >= MB for device, size in used.items()):
            return True
        if any(weak() is None for weak in snapshot.alive):
            return True
        return bool(self.rebound(snapshot))

    def _budget_s(self, used: Mapping[str, int]) -> float:
        """Return the time budget of a walk now, with this memory in use."""
        if self._last is None:
            return BUDGET_S
        were = self._last.used
        changed_bytes = sum(abs(size - were.get(device, 0)) for device, size in used.items())
        return BUDGET_S * min(1.0, _LEAST + _PER_S * self._ran_s + _PER_BYTE * changed_bytes)

    def _take(self, used: dict[str, int], budget_s: float = 0.0) -> Snapshot:
        bound = self._bound()
        urgent = set() if self._last is None else _bound_anew(self._last.bound, bound)
        found = self._find(budget_s or self._budget_s(used), urgent)
        self._ran_s = 0.0
        return snapshot_of(found, used, bound, self._values())


def _bound_anew(before: Mapping[str, int], after: Mapping[str, int]) -> set[str]:
    """Return the names that are bound to something else than before."""
    return {name for name, value in after.items() if before.get(name) != value}


# -- what is in use, and what names are bound to ------------------------


def bindings(shell: Any) -> dict[str, int]:
    """Return, by name as the walk calls it, the `id` of what it is bound to."""
    names = dict(shell.user_ns)  # another thread may change it meanwhile
    found = dict(zip(names, map(id, names.values()), strict=True))
    if not set(map(type, names)) <= {str}:
        found = {name: value for name, value in found.items() if type(name) is str}
    found["last traceback"] = id(getattr(sys, "last_value", None))
    outputs = shell.user_ns.get("_oh")
    if type(outputs) is dict:
        found |= {f"Out[{number}]": id(value) for number, value in list(outputs.items())}
    return found


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
