"""The names, and the imported libraries, to which the memory that a cell consumed is attributed.

The last walk before the cell is compared with one after it. Only names, sizes and weak references are kept:
nothing here keeps a value of the user's alive.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Container, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ..engine.ledger import ALLOCATED
from ..engine.machine import machine
from ..records import CPU, CellRecord, Owner, RamUsage
from ..records.units import MB
from ..runtime.collector import undisturbed
from ..sources import Unavailable

if TYPE_CHECKING:
    from .address_space import LibrariesNow
    from .attribution import Kind, WalkResult

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
    """The growth of names over cells, which may overlap; `of` makes that of a shell.

    `find` walks from every name, with a time budget in seconds, these names first; or from some only.
    """

    def __init__(
        self,
        find: Callable[..., WalkResult],
        used: Callable[[], dict[str, int]],
        bound: Callable[..., dict[str, int]],
        values: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self._find, self._used, self._bound, self._values = find, used, bound, values
        self._last: Snapshot | None = None
        self._ran_s = 0.0  # how long cells ran since that
        self._filled = False  # whether one took memory that malloc had kept, so that none was consumed

    @classmethod
    def of(cls, shell: Any) -> Growth:
        """Make one for a shell's names."""

        def find(budget_s: float, urgent: Container[str], only: Container[str] | None = None) -> WalkResult:
            from .memory_blocks import array_readers  # 10 ms of loading, which not every process needs
            from .roots import owners_in

            return owners_in(shell, array_readers(), budget_s=budget_s, urgent=urgent, only=only)

        return cls(find, _in_use, partial(bindings, shell), lambda: shell.user_ns)

    @property
    def has_walked(self) -> bool:
        """Whether it is known which names held memory at some moment."""
        return self._last is not None

    def refresh(self, around: Callable[[], AbstractContextManager[None]] = nullcontext) -> Snapshot:
        """Walk again, in this context, before a cell begins, if notable memory has changed since the last."""
        used, last = self._used(), self._last
        if last is None or self._is_stale(last, used):
            with around():
                last = self._take(used)
        return last

    def begin(self) -> Before:
        """Return what is known as a cell begins, for `end`: of names only if the last walk was incomplete."""
        last = self._last or self.refresh()
        from .address_space import libraries  # as the walk: not while the extension loads

        return Before(last, {} if last.complete else self._bound(), libraries())

    def end(self, before: Before | None, record: CellRecord) -> CellRecord:
        """Return the cell's record with its owners; the same record where it consumed next to nothing."""
        self._ran_s += record.time_s
        if before is None or not record.grown():
            self._filled |= record.gen.newly_in_use_bytes >= MB
            return record
        with undisturbed():
            after = self._take(self._used())
            anew = set() if before.snapshot.complete else _bound_anew(before.bound, after.bound)
            owners, gone_bytes = growth(before.snapshot, after, anew, record.grown())
            complete = before.snapshot.complete and after.complete
            record = record.explained(owners, gone_bytes, complete=complete)
            if dict(record.unexplained).get(CPU, 0) > 0:
                from .address_space import libraries_since

                names, most_bytes = libraries_since(before.loaded)
                record = record.with_libraries(names, most_bytes) if names else record
            return record

    def since(self, before: Snapshot) -> Snapshot:
        """Return the last walk after this one; if there was none, walk now."""
        last = self._last
        return self._take(self._used()) if last is None or last is before else last

    def rebound(self, before: Snapshot) -> set[str]:
        """Return the names of large blocks that are bound to something else than before, or to nothing."""
        now = self._bound(before.large) if before.large else {}
        return {name for name in before.large if name in before.bound and now.get(name) != before.bound[name]}

    def missing(self, held: Mapping[Hashable, OwnedBlock], budget_s: float) -> dict[Hashable, OwnedBlock]:
        """Return which of these blocks their names do not hold any more; none where time is too short."""
        if not (names := {block.plain_name for block in held.values()}):
            return {}
        with undisturbed():
            found = self._find(budget_s, names, names)
        now = {key for blocks in found.blocks.values() for key in blocks}
        return {key: one for key, one in held.items() if key not in now} if found.complete else {}

    def unexplained(self, record: CellRecord, before: Snapshot) -> dict[str, int]:
        """Return by device, after `end`, what names do not explain; nothing if the search was cut short."""
        if not record.grown():  # else `end` has walked
            self._take(self._used(), whole=True)
        now = self._last
        if now is None or not (before.complete and now.complete):
            return {}
        was, held, found = before.sizes(), now.sizes(), {}
        libraries = sum(owner.size_bytes for owner in record.owners if owner.is_libraries)
        for device, usage in record.memories().items():
            consumed_bytes = usage.consumed_bytes - getattr(usage, "outside_bytes", 0)
            if isinstance(usage, RamUsage):
                consumed_bytes -= usage.kept_of_consumed_bytes + libraries
                if usage.heap_before is not None and usage.heap_after is not None:
                    # What malloc reuses or keeps of its own is neither consumed nor waits for a collection.
                    used_bytes = usage.heap_after.in_use_bytes - usage.heap_before.in_use_bytes
                    consumed_bytes = min(consumed_bytes, used_bytes)
            found[device] = consumed_bytes - held[device] + was[device]
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
        return (
            self._filled
            or any(abs(size - snapshot.used.get(device, 0)) >= MB for device, size in used.items())
            or any(weak() is None for weak in snapshot.alive)
            or bool(self.rebound(snapshot))
        )

    def _take(self, used: dict[str, int], *, whole: bool = False) -> Snapshot:
        """Walk with the time budget that is in proportion; with the `whole` of it, if so said."""
        with undisturbed():
            bound, last = self._bound(), self._last
            share, urgent = 1.0, set[str]()
            if last is not None:
                changed_bytes = sum(abs(size - last.used.get(device, 0)) for device, size in used.items())
                share = min(1.0, _LEAST + _PER_S * self._ran_s + _PER_BYTE * changed_bytes)
                urgent = _bound_anew(last.bound, bound)
            found = self._find(BUDGET_S if whole else BUDGET_S * share, urgent)
            self._ran_s, self._filled = 0.0, False
            self._last = snapshot_of(found, used, bound, self._values())
            return self._last


def _bound_anew(before: Mapping[str, int], after: Mapping[str, int]) -> set[str]:
    return {name for name, value in after.items() if before.get(name) != value}


def bindings(shell: Any, only: frozenset[str] | None = None) -> dict[str, int]:
    """Return, by name as the walk calls it, the `id` of what it is bound to now; of these variables only."""
    names = shell.user_ns  # to which IPython adds a name for each cell, and other threads at any time
    names = dict(names) if only is None else {name: names.get(name) for name in only & names.keys()}
    found = dict(zip(names, map(id, names.values()), strict=True))  # in C, for there may be thousands
    if not set(map(type, names)) <= {str}:
        found = {name: value for name, value in found.items() if type(name) is str}
    found["last traceback"] = id(getattr(sys, "last_value", None))
    outputs = shell.user_ns.get("_oh")
    if type(outputs) is dict:
        found |= {f"Out[{number}]": id(value) for number, value in list(outputs.items())}
    return found


def _in_use() -> dict[str, int]:
    """Return, by device, the resident memory and what live arrays hold."""
    on = machine()
    found = {CPU: on.resident_bytes()}
    for device, trackers in on.devices.by_device():
        with suppress(Unavailable):
            found[device.id] = sum([tracker.current_bytes(ALLOCATED) for tracker in trackers])
    return found


# -- two snapshots compared

_OWNERS = 16  # in a record


class OwnedBlock(NamedTuple):
    """A block of memory and the name that it is attributed to."""

    name: str
    kind: Kind
    device: str
    size_bytes: int
    shared: tuple[str, ...]
    alive: weakref.ref[Any] | None = None
    whole_bytes: int | None = None  # of one that is partly resident

    @property
    def plain_name(self) -> str:
        """The name without what the walk adds."""
        return plain_name(self.name)

    def is_freed(self) -> bool:
        """Return whether it has certainly been freed."""
        return self.alive is not None and self.alive() is None


class Snapshot(NamedTuple):
    """Which names held which blocks at one moment."""

    blocks: Mapping[Hashable, OwnedBlock]  # by key
    complete: bool  # whether the walk visited every reachable object within its time budget
    cut_short: frozenset[str]  # the names below which it did not
    used: Mapping[str, int]  # the memory in use, in bytes by device
    bound: Mapping[str, int]  # by name, the `id` of what it was bound to
    large: frozenset[str]  # the names that hold large blocks
    alive: tuple[weakref.ref[Any], ...]  # weak references that die with large blocks, where these are known
    values: Mapping[str, weakref.ref[Any]] = {}  # by name of a large block, to its value if that takes one
    named: Collection[str] = ()  # the variables that hold or share large blocks

    def sizes(self) -> Counter[str]:
        """Return what names hold, in bytes by device."""
        found: Counter[str] = Counter()
        for block in self.blocks.values():
            found[block.device] += block.size_bytes
        return found

    def large_of(self, names: Container[str]) -> dict[Hashable, OwnedBlock]:
        """Return the large blocks of these names."""
        if not names:
            return {}
        blocks = self.blocks.items()
        return {key: one for key, one in blocks if one.size_bytes >= MB and one.plain_name in names}


def snapshot_of(
    found: WalkResult, used: Mapping[str, int], bound: Mapping[str, int], values: Mapping[str, Any]
) -> Snapshot:
    """Return what a walk found; by name, `bound` and `values` tell what it was bound to then."""
    # With an older torch the weak reference dies before the block.
    alive = {key: weak for key, weak in found.alive.items() if weak() is not None}
    blocks = {
        key: OwnedBlock(
            name, kind, device, size_bytes, found.shared.get(key, ()), alive.get(key), found.whole.get(key)
        )
        for (name, device, kind), sizes in found.blocks.items()
        for key, size_bytes in sizes.items()
    }
    large = frozenset(plain_name(block.name) for block in blocks.values() if block.size_bytes >= MB)
    weak = {}
    array = getattr(sys.modules.get("numpy"), "ndarray", ())
    for name in large & values.keys():
        # `ndarray.resize` refuses an array that has a weak reference; a list or a dict takes none.
        if not issubclass(type(values[name]), array):
            with suppress(TypeError):
                weak[name] = weakref.ref(values[name])
    named = values.keys() & large.union(map(plain_name, itertools.chain(*found.shared.values())))
    weakly = tuple(alive.values())
    return Snapshot(blocks, found.complete, found.cut_short, used, bound, large, weakly, weak, named)


def growth(
    before: Snapshot, after: Snapshot, anew: Container[str], grown: Mapping[str, int]
) -> tuple[tuple[Owner, ...], dict[str, int]]:
    """Return the names that hold more, the largest first, and by device how much less the others hold.

    Of devices where so many bytes more are in use (`grown`); `anew` are the names bound since.
    """
    gains, gone_bytes = gained(before, after, anew, grown), dict.fromkeys(grown, 0)
    for was, went_bytes in gone(before, after, grown):
        lost_bytes = went_bytes
        for name in (was.name, *was.shared):
            one = gains.get((name, was.device))
            if one is not None:
                set_off_bytes = min(one.size_bytes, lost_bytes)
                one.size_bytes -= set_off_bytes
                lost_bytes -= set_off_bytes
        # A block that was not found may still be there.
        gone_bytes[was.device] += lost_bytes if after.complete else 0
    owners = [
        Owner(name, one.size_bytes, device, one.kind, tuple(one.shared))
        for (name, device), one in gains.items()
        if one.size_bytes
    ]
    if not before.complete:
        # Some may have been there before: names that gained more than was consumed are left out.
        held_bytes = {device: sum(o.size_bytes for o in owners if o.device == device) for device in grown}
        owners = [o for o in owners if held_bytes[o.device] <= grown[o.device] + gone_bytes[o.device] + MB]
    return _shortened(owners), gone_bytes


@dataclass
class _Gain:
    """What one name gained on one device."""

    kind: Kind
    size_bytes: int = 0
    shared: dict[str, None] = field(default_factory=dict)


def gained(
    before: Snapshot, after: Snapshot, anew: Container[str], grown: Container[str]
) -> dict[tuple[str, str], _Gain]:
    """Return what each name gained: blocks that are new, and blocks that have grown."""
    found: dict[tuple[str, str], _Gain] = {}
    for key, now in after.blocks.items():
        if now.device not in grown:
            continue
        was = before.blocks.get(key)
        if was is not None and is_same(was, now):
            gained_bytes = now.size_bytes - was.size_bytes
        elif before.complete or plain_name(now.name) in anew or _was_visited_whole(before, now.name):
            gained_bytes = now.size_bytes
        else:
            continue  # it may have been there before
        if gained_bytes > 0:
            one = found.setdefault((now.name, now.device), _Gain(now.kind))
            one.size_bytes += gained_bytes
            one.shared.update(dict.fromkeys(now.shared))
    return found


def gone(before: Snapshot, after: Snapshot, grown: Container[str]) -> Iterator[tuple[OwnedBlock, int]]:
    """Yield the blocks that were freed or became smaller, with the bytes that are gone."""
    for key, was in before.blocks.items():
        if was.device in grown:
            now = after.blocks.get(key)
            kept_bytes = now.size_bytes if now is not None and is_same(was, now) else 0
            if kept_bytes < was.size_bytes:
                yield was, was.size_bytes - kept_bytes


def is_same(was: OwnedBlock, now: OwnedBlock) -> bool:
    """Return whether a block may be the one with the same key before, as a list that grew at its address."""
    if was.alive is not None:
        return not was.is_freed()
    if now.whole_bytes is not None and now.size_bytes < was.size_bytes:
        return False  # pages that were touched stay: it is another one
    # Another block of the same size may have taken its place, which needed no new memory.
    same_size = (was.whole_bytes or was.size_bytes) == (now.whole_bytes or now.size_bytes)
    return same_size or now.name in (was.name, *was.shared)


def _was_visited_whole(snapshot: Snapshot, name: str) -> bool:
    return plain_name(name) in snapshot.bound and not {name, plain_name(name)} & snapshot.cut_short


def plain_name(name: str) -> str:
    """Return a name without what the walk adds: "loss (autograd graph)", "last traceback: step.act"."""
    return name.partition(" (")[0].partition(": ")[0]


def _shortened(owners: list[Owner]) -> tuple[Owner, ...]:
    """Return the largest owners, and the others of each device as one."""
    owners = sorted(owners, key=lambda owner: -owner.size_bytes)
    named = [owner for owner in owners[:_OWNERS] if owner.size_bytes >= MB]
    rest = owners[len(named) :]
    for device in dict.fromkeys(owner.device for owner in rest):
        sizes = [owner.size_bytes for owner in rest if owner.device == device]
        name = "1 smaller name" if len(sizes) == 1 else f"{len(sizes)} smaller names"
        named.append(Owner(name, sum(sizes), device, "other"))
    return tuple(named)
