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

import sys
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..engine.ledger import ALLOCATED
from ..engine.machine import machine
from ..records import CPU, CellRecord, Owner, notable
from ..records.units import MB, rounded_mb
from ..runtime.collector import undisturbed
from ..sources import Unavailable
from .libraries import Libraries

if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable, Container, Hashable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from .attribution import Kind, WalkResult
    from .libraries import Look

Named = tuple[str, str]  # a name and a device

BUDGET_S = 0.02  # of a walk, at most, and of the first one
# Of that time: a walk at least, and more for each second that cells ran, and for each byte that changed.
_LEAST = 0.15
_PER_S = 2.5
_PER_BYTE = 1 / 2**30
_OWNERS = 16  # in a record


class OwnedBlock(NamedTuple):
    """A block of memory and the name that it is attributed to."""

    name: str
    kind: Kind
    device: str
    size_bytes: int
    shared: tuple[str, ...]
    alive: weakref.ref[Any] | None = None


class Snapshot(NamedTuple):
    """Which names held which blocks at one moment.

    Attributes:
        blocks: By key.
        complete: Whether the walk visited every reachable object within its time budget.
        cut_short: The names below which it did not.
        used: The memory in use, in bytes by device.
        bound: By name, the `id` of what it was bound to.
        large: The names that hold large blocks.
        alive: Weak references that die with large blocks, where these are known.
    """

    blocks: Mapping[Hashable, OwnedBlock]
    complete: bool
    cut_short: Container[str]
    used: Mapping[str, int]
    bound: Mapping[str, int]
    large: frozenset[str]
    alive: tuple[weakref.ref[Any], ...]


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
            blocks of these keys.
    """

    def __init__(
        self,
        find: Callable[[float, Container[str]], WalkResult],
        used: Callable[[], dict[str, int]],
        bound: Callable[[], dict[str, int]],
        garbage: Callable[[Container[Hashable]], Mapping[str, int]] = lambda _: {},
    ) -> None:
        self._find, self._used, self._bound, self._garbage = find, used, bound, garbage
        self._last: Snapshot | None = None
        self._ran_s = 0.0  # cells, since the last walk
        self._libraries = Libraries()

    @classmethod
    def of(cls, shell: Any) -> Growth:
        """Make one for a shell's names."""

        def find(budget_s: float, urgent: Container[str]) -> WalkResult:
            from .array_readers import array_readers  # 10 ms of loading, which not every process needs
            from .roots import owners_in

            return owners_in(shell, array_readers(), budget_s=budget_s, urgent=urgent)

        def garbage(attributed: Container[Hashable]) -> Mapping[str, int]:
            from .array_readers import array_readers
            from .cycles import unreachable_bytes

            return unreachable_bytes(array_readers(), attributed)

        return cls(find, _in_use, lambda: _bindings(shell), garbage)

    def refresh(self, around: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        """Walk again before a cell begins, if a notable amount of memory has changed since the last walk.

        Args:
            around: Makes a context in which to walk.
        """
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
            anew = {name for name, value in after.bound.items() if before.bound.get(name) != value}
            found = growth(before.snapshot, after, anew, record.grown())
            record = record.explained(found.owners, found.gone_bytes, complete=found.complete)
            imported = (
                self._libraries.loaded(before.loaded) if dict(record.unexplained).get(CPU, 0) > 0 else None
            )
            if imported is not None:
                record = record.with_libraries(imported.names, imported.most_bytes)
            if collected or not any(size_bytes > 0 for _, size_bytes in record.unexplained):
                return record
            sizes = self._garbage(after.blocks)
            return replace(record, notes=(*record.notes, *_garbage_notes(sizes)))

    def close(self) -> None:
        """Forget the last walk."""
        self._last = None

    def _is_stale(self, snapshot: Snapshot, used: Mapping[str, int]) -> bool:
        """Return whether a notable amount of memory has changed since, or a name of a large block."""
        if any(notable(abs(size - snapshot.used.get(device, 0)), size) for device, size in used.items()):
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
        known = {} if self._last is None else self._last.bound
        urgent = {name for name, value in bound.items() if known.get(name) != value} if known else set()
        found = self._find(self._budget_s(used), urgent)
        self._ran_s = 0.0
        # With an older torch the weak reference dies before the block.
        alive = {key: weak for key, weak in found.alive.items() if weak() is not None}
        blocks = {
            key: OwnedBlock(name, kind, device, size_bytes, found.shared.get(key, ()), alive.get(key))
            for (name, device, kind), sizes in found.blocks.items()
            for key, size_bytes in sizes.items()
        }
        large = frozenset(_plain(block.name) for block in blocks.values() if block.size_bytes > MB)
        return Snapshot(blocks, found.complete, found.cut_short, used, bound, large, tuple(alive.values()))


class Grown(NamedTuple):
    """The difference between two snapshots.

    Attributes:
        owners: The names that hold more, the largest first.
        gone_bytes: By device, how much less the other names hold.
        complete: Whether both walks were complete.
    """

    owners: tuple[Owner, ...]
    gone_bytes: dict[str, int]
    complete: bool


def growth(before: Snapshot, after: Snapshot, anew: Container[str], grown: Mapping[str, int]) -> Grown:
    """Return the names that grew, on the devices that did.

    Args:
        before: The earlier snapshot.
        after: The later one.
        anew: The names that were bound since.
        grown: By device, how many bytes more are in use.
    """
    complete = before.complete and after.complete
    gains, gone = _gains(before, after, anew, grown), _gone(before, after, grown)
    gone_bytes = dict.fromkeys(grown, 0)
    for was, went_bytes in gone:
        lost_bytes = went_bytes
        for name in (was.name, *was.shared):
            one = gains.get((name, was.device))
            if one is not None:
                set_off_bytes = min(one.size_bytes, lost_bytes)
                one.size_bytes -= set_off_bytes
                lost_bytes -= set_off_bytes
        gone_bytes[was.device] += lost_bytes
    if not after.complete:  # a block that was not found may still be there
        gone_bytes = dict.fromkeys(grown, 0)
    owners = [
        Owner(name, one.size_bytes, device, one.kind, tuple(one.shared))
        for (name, device), one in gains.items()
        if one.size_bytes
    ]
    if not before.complete:
        # Some blocks that seem new may have been there before: names that gained more than was consumed are
        # left out.
        held_bytes = {device: sum(o.size_bytes for o in owners if o.device == device) for device in grown}
        owners = [o for o in owners if held_bytes[o.device] <= grown[o.device] + gone_bytes[o.device] + MB]
    return Grown(_shortened(owners), gone_bytes, complete)


@dataclass
class _Gain:
    """What one name gained on one device."""

    kind: Kind
    size_bytes: int = 0
    shared: dict[str, None] = field(default_factory=dict)


def _gains(
    before: Snapshot, after: Snapshot, anew: Container[str], grown: Container[str]
) -> dict[Named, _Gain]:
    """Return what each name gained: blocks that are new, and blocks that have grown."""
    found: dict[Named, _Gain] = {}
    for key, now in after.blocks.items():
        if now.device not in grown:
            continue
        was = before.blocks.get(key)
        if was is not None and _is_same(was, now):
            gained_bytes = now.size_bytes - was.size_bytes
        elif before.complete or _plain(now.name) in anew or _was_visited_whole(before, now.name):
            gained_bytes = now.size_bytes
        else:
            continue  # it may have been there before
        if gained_bytes > 0:
            one = found.setdefault((now.name, now.device), _Gain(now.kind))
            one.size_bytes += gained_bytes
            one.shared.update(dict.fromkeys(now.shared))
    return found


def _gone(before: Snapshot, after: Snapshot, grown: Container[str]) -> Iterator[tuple[OwnedBlock, int]]:
    """Yield the blocks that were freed or became smaller, with the bytes that are gone."""
    for key, was in before.blocks.items():
        if was.device in grown:
            now = after.blocks.get(key)
            kept_bytes = now.size_bytes if now is not None and _is_same(was, now) else 0
            if kept_bytes < was.size_bytes:
                yield was, was.size_bytes - kept_bytes


def _is_same(was: OwnedBlock, now: OwnedBlock) -> bool:
    """Return whether a block may be the one with the same key before: a list may have grown at its address.

    Without a weak reference, another block of the same size may have taken its place, which needed no new
    memory.
    """
    if was.alive is not None:
        return was.alive() is not None
    return was.size_bytes == now.size_bytes or now.name in (was.name, *was.shared)


def _was_visited_whole(snapshot: Snapshot, name: str) -> bool:
    """Return whether everything reachable from a name was visited."""
    plain = _plain(name)
    return plain in snapshot.bound and plain not in snapshot.cut_short and name not in snapshot.cut_short


def _plain(name: str) -> str:
    """Return a name without what the walk adds: "loss (autograd graph)", "last traceback: step.act"."""
    return name.partition(" (")[0].partition(": ")[0]


def _shortened(owners: list[Owner]) -> tuple[Owner, ...]:
    """Return the largest owners, and the others of each device as one."""
    owners = sorted(owners, key=lambda owner: -owner.size_bytes)
    named = [owner for owner in owners[:_OWNERS] if owner.size_bytes >= MB]
    rest: dict[str, list[int]] = {}
    for owner in owners[len(named) :]:
        rest.setdefault(owner.device, []).append(owner.size_bytes)
    for device, sizes in rest.items():
        name = "1 smaller name" if len(sizes) == 1 else f"{len(sizes)} smaller names"
        named.append(Owner(name, sum(sizes), device, "other"))
    return tuple(named)


# -- what a shell's names are, and what is in use ---------------------------------------------------


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


def _bindings(shell: Any) -> dict[str, int]:
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


def _garbage_notes(sizes: Mapping[str, int]) -> Iterator[str]:
    for device, size_bytes in sizes.items():
        if size_bytes >= MB:
            where = "" if device == CPU else f" on {device}"
            yield f"up to {rounded_mb(size_bytes)} MB{where} waits for the garbage collector"
