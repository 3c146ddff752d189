"""Which names account for what a cell consumed.

Two walks are compared, the last one before the cell and one after it. What counts is memory that came and
memory that went: a block that was there before is no growth of whoever has it now, so a rename or an alias
grows nothing, and what a name lost is set off against what it got. Walks take time, so a cell that moved next
to nothing has none, and the one before it serves the next cell as long as nothing notable has moved since.

Of names and sizes alone is kept what is needed: nothing here keeps a value of the user's alive.
"""

from __future__ import annotations

import sys
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

    from .blocks import Found, Kind
    from .libraries import Look

Named = tuple[str, str]  # a name and a device

_BUDGET_S = 0.02  # of a walk
_OWNERS = 16  # in a record


class Claim(NamedTuple):
    """A block of memory and who has it."""

    name: str
    kind: Kind
    device: str
    size_bytes: int
    shared: tuple[str, ...]
    alive: weakref.ref[Any] | None = None


class Stand(NamedTuple):
    """Who held what at one moment.

    Attributes:
        claims: By the block's key.
        complete: Whether there was time to look everywhere.
        cut_short: The names that were not seen whole.
        used: In use, in bytes by device.
        bound: What the names were bound to, by `id`.
        large: The names that hold large blocks.
        alive: What dies with such blocks, where that is known.
    """

    claims: Mapping[Hashable, Claim]
    complete: bool
    cut_short: Container[str]
    used: Mapping[str, int]
    bound: Mapping[str, int]
    large: frozenset[str]
    alive: tuple[weakref.ref[Any], ...]


class Before(NamedTuple):
    """What was known when a cell began.

    Attributes:
        stand: The last walk.
        bound: What the names were bound to, by `id`, where that walk did not see everything.
        loaded: The modules that were loaded.
    """

    stand: Stand
    bound: Mapping[str, int]
    loaded: Look


class Growth:
    """The growth of names over cells, which may nest and overlap.

    Args:
        find: Walks from all names.
        used: What is in use now, in bytes by device.
        bound: What the names are bound to now, by `id`.
        garbage: What waits for the garbage collector, in bytes by device, beside the blocks of these keys.
    """

    def __init__(
        self,
        find: Callable[[], Found],
        used: Callable[[], dict[str, int]],
        bound: Callable[[], dict[str, int]],
        garbage: Callable[[Container[Hashable]], Mapping[str, int]] = lambda _: {},
    ) -> None:
        self._find, self._used, self._bound, self._garbage = find, used, bound, garbage
        self._last: Stand | None = None
        self._libraries = Libraries()

    @classmethod
    def of(cls, shell: Any) -> Growth:
        """That of a shell's names."""

        def find() -> Found:
            from .roots import all_holdings, owners_in  # 10 ms of loading, which not every process needs

            return owners_in(shell, all_holdings(), budget_s=_BUDGET_S)

        def garbage(claimed: Container[Hashable]) -> Mapping[str, int]:
            from .cycles import waiting
            from .roots import all_holdings

            return waiting(all_holdings(), claimed)

        return cls(find, _in_use, lambda: _bindings(shell), garbage)

    def refresh(self) -> None:
        """A cell is about to begin: look again where memory moved since the last time."""
        used = self._used()
        if self._last is None or self._is_stale(self._last, used):
            with undisturbed():
                self._last = self._take(used)

    def begin(self) -> Before | None:
        """Return what is known as a cell begins, for `end`; None where nothing is."""
        if self._last is None:
            self.refresh()
        if self._last is None:
            return None
        # What the cell binds anew matters only where not all that was there is known.
        return Before(self._last, {} if self._last.complete else self._bound(), self._libraries.look())

    def end(self, before: Before | None, record: CellRecord, *, collected: bool) -> CellRecord:
        """Return the cell's record with its owners; the same where the cell consumed next to nothing.

        Args:
            before: What `begin` returned.
            record: Of the cell.
            collected: Whether garbage was collected before the record's snapshots.
        """
        if before is None or not record.grown():
            return record
        with undisturbed():
            after = self._last = self._take(self._used())
            anew = {name for name, value in after.bound.items() if before.bound.get(name) != value}
            found = growth(before.stand, after, anew, record.grown())
            record = record.explained(found.owners, found.gone_bytes, complete=found.complete)
            imported = (
                self._libraries.loaded(before.loaded) if dict(record.unexplained).get(CPU, 0) > 0 else None
            )
            if imported is not None:
                record = record.with_libraries(imported.names, imported.most_bytes)
            if collected or not any(size_bytes > 0 for _, size_bytes in record.unexplained):
                return record
            sizes = self._garbage(after.claims)
            return replace(record, notes=(*record.notes, *_garbage_notes(sizes)))

    def close(self) -> None:
        """Forget the last walk."""
        self._last = None

    def _is_stale(self, stand: Stand, used: Mapping[str, int]) -> bool:
        """Whether anything notable came or went since."""
        if any(notable(abs(size - stand.used.get(device, 0)), size) for device, size in used.items()):
            return True
        if any(weak() is None for weak in stand.alive):
            return True
        if not stand.large:
            return False
        bound = self._bound()
        return any(bound.get(name) != stand.bound.get(name) for name in stand.large)

    def _take(self, used: dict[str, int]) -> Stand:
        bound, found = self._bound(), self._find()
        # An older torch's dies before the block.
        alive = {key: weak for key, weak in found.alive.items() if weak() is not None}
        claims = {
            key: Claim(name, kind, device, size_bytes, found.shared.get(key, ()), alive.get(key))
            for (name, device, kind), blocks in found.blocks.items()
            for key, size_bytes in blocks.items()
        }
        large = frozenset(_plain(claim.name) for claim in claims.values() if claim.size_bytes > MB)
        return Stand(claims, found.complete, found.cut_short, used, bound, large, tuple(alive.values()))


class Grown(NamedTuple):
    """What two walks say of the time between them.

    Attributes:
        owners: Who holds more, the largest first.
        gone_bytes: By device, how much less the others hold.
        complete: Whether both walks looked everywhere.
    """

    owners: tuple[Owner, ...]
    gone_bytes: dict[str, int]
    complete: bool


def growth(before: Stand, after: Stand, anew: Container[str], grown: Mapping[str, int]) -> Grown:
    """Who grew, on the devices that did.

    Args:
        before: The earlier walk.
        after: The later one.
        anew: The names that were bound since.
        grown: How much each device grew by.
    """
    complete = before.complete and after.complete
    came, gone = _came(before, after, anew, grown), _gone(before, after, grown)
    gone_bytes = dict.fromkeys(grown, 0)
    for was, went_bytes in gone:
        lost_bytes = went_bytes
        for name in (was.name, *was.shared):
            one = came.get((name, was.device))
            if one is not None:
                set_off_bytes = min(one.size_bytes, lost_bytes)
                one.size_bytes -= set_off_bytes
                lost_bytes -= set_off_bytes
        gone_bytes[was.device] += lost_bytes
    if not after.complete:  # what was not found is not gone
        gone_bytes = dict.fromkeys(grown, 0)
    owners = [
        Owner(name, one.size_bytes, device, one.kind, tuple(one.shared))
        for (name, device), one in came.items()
        if one.size_bytes
    ]
    if not before.complete:
        # Some of what seems to have come may have been there: more than was consumed cannot be true.
        held_bytes = {device: sum(o.size_bytes for o in owners if o.device == device) for device in grown}
        owners = [o for o in owners if held_bytes[o.device] <= grown[o.device] + gone_bytes[o.device] + MB]
    return Grown(_shortened(owners), gone_bytes, complete)


@dataclass
class _Came:
    """What came to one name on one device."""

    kind: Kind
    size_bytes: int = 0
    shared: dict[str, None] = field(default_factory=dict)


def _came(before: Stand, after: Stand, anew: Container[str], grown: Container[str]) -> dict[Named, _Came]:
    found: dict[Named, _Came] = {}
    for key, now in after.claims.items():
        if now.device not in grown:
            continue
        was = before.claims.get(key)
        if was is not None and _is_same(was, now):
            came_bytes = now.size_bytes - was.size_bytes
        elif before.complete or _plain(now.name) in anew or _was_seen_whole(before, now.name):
            came_bytes = now.size_bytes
        else:
            continue  # it may have been there all the time
        if came_bytes > 0:
            one = found.setdefault((now.name, now.device), _Came(now.kind))
            one.size_bytes += came_bytes
            one.shared.update(dict.fromkeys(now.shared))
    return found


def _gone(before: Stand, after: Stand, grown: Container[str]) -> Iterator[tuple[Claim, int]]:
    for key, was in before.claims.items():
        if was.device in grown:
            now = after.claims.get(key)
            kept_bytes = now.size_bytes if now is not None and _is_same(was, now) else 0
            if kept_bytes < was.size_bytes:
                yield was, was.size_bytes - kept_bytes


def _is_same(was: Claim, now: Claim) -> bool:
    """Whether a block may still be the one that was at its address: a list may have grown there, for one.

    Where nobody tells, one just like it may have come in its place, which needed no new memory.
    """
    if was.alive is not None:
        return was.alive() is not None
    return was.size_bytes == now.size_bytes or now.name in (was.name, *was.shared)


def _was_seen_whole(stand: Stand, name: str) -> bool:
    plain = _plain(name)
    return plain in stand.bound and plain not in stand.cut_short and name not in stand.cut_short


def _plain(name: str) -> str:
    """Without what the walk adds to names: "loss (autograd graph)", "last traceback: step.act"."""
    return name.partition(" (")[0].partition(": ")[0]


def _shortened(owners: list[Owner]) -> tuple[Owner, ...]:
    """The largest; the others of each device as one."""
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
    """Resident memory, and what live arrays hold on each device."""
    found = {CPU: machine().ram.look().readings[0].current_bytes}
    for device, trackers in machine().allocators.by_device():
        try:
            held = [tracker.look().readings[ALLOCATED].current_bytes for tracker in trackers]
        except Unavailable:
            continue
        found[device.id] = sum(held)
    return found


def _bindings(shell: Any) -> dict[str, int]:
    """The names as the walk calls them, and the `id` of what each is bound to."""
    found = {name: id(value) for name, value in list(shell.user_ns.items()) if type(name) is str}
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
