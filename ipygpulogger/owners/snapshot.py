"""Which names held which blocks of memory at one moment, and how much each grew until another.

Only blocks that were allocated or freed between the two moments count: a block that was there before is not
growth of the name that holds it now, so a rename or an alias grows nothing. What a name lost is subtracted
from what it gained.
"""

from __future__ import annotations

import sys
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ..records import Owner
from ..records.units import MB

if TYPE_CHECKING:
    from collections.abc import Container, Hashable, Iterator, Mapping

    from .attribution import Kind, WalkResult

Named = tuple[str, str]  # a name and a device

_OWNERS = 16  # in a record


class OwnedBlock(NamedTuple):
    """A block of memory and the name that it is attributed to."""

    name: str
    kind: Kind
    device: str
    size_bytes: int
    shared: tuple[str, ...]
    alive: weakref.ref[Any] | None = None

    @property
    def plain_name(self) -> str:
        """The name without what the walk adds."""
        return _plain(self.name)

    def is_freed(self) -> bool:
        """Return whether it has certainly been freed."""
        return self.alive is not None and self.alive() is None


class Snapshot(NamedTuple):
    """Which names held which blocks at one moment."""

    blocks: Mapping[Hashable, OwnedBlock]  # by key
    complete: bool  # whether the walk visited every reachable object within its time budget
    cut_short: Container[str]  # the names below which it did not
    used: Mapping[str, int]  # the memory in use, in bytes by device
    bound: Mapping[str, int]  # by name, the `id` of what it was bound to
    large: frozenset[str]  # the names that hold large blocks
    alive: tuple[weakref.ref[Any], ...]  # weak references that die with large blocks, where these are known
    # by name of a large block, a weak reference to its value, where the value takes one
    values: Mapping[str, weakref.ref[Any]] = {}

    def sizes(self) -> dict[str, int]:
        """Return what names hold, in bytes by device."""
        found: dict[str, int] = {}
        for block in self.blocks.values():
            found[block.device] = found.get(block.device, 0) + block.size_bytes
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
        key: OwnedBlock(name, kind, device, size_bytes, found.shared.get(key, ()), alive.get(key))
        for (name, device, kind), sizes in found.blocks.items()
        for key, size_bytes in sizes.items()
    }
    large = frozenset(_plain(block.name) for block in blocks.values() if block.size_bytes >= MB)
    weak = {}
    array = getattr(sys.modules.get("numpy"), "ndarray", ())
    for name in large & values.keys():
        # `ndarray.resize` refuses an array that has a weak reference; a list or a dict takes none.
        if not issubclass(type(values[name]), array):
            with suppress(TypeError):
                weak[name] = weakref.ref(values[name])
    return Snapshot(blocks, found.complete, found.cut_short, used, bound, large, tuple(alive.values()), weak)


class Grown(NamedTuple):
    """The difference between two snapshots."""

    owners: tuple[Owner, ...]  # the names that hold more, the largest first
    gone_bytes: dict[str, int]  # by device, how much less the other names hold
    complete: bool  # whether both walks were complete


def growth(before: Snapshot, after: Snapshot, anew: Container[str], grown: Mapping[str, int]) -> Grown:
    """Return the names that grew where so many bytes more are in use; `anew` are those bound since."""
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
