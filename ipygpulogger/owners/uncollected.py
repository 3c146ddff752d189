"""Memory that unreachable reference cycles hold until the next full garbage collection.

A full collection visits every object of the process, so it runs only where it can give something back. That
is known from three signs:

- The path to a large block is broken, and the block lives on. A new walk then shows whether another name
  holds it.
- A walk could not visit everything below a name, the name was bound to something else, and the memory did
  not come back.
- Collections ran within the cell, which can leave its own garbage behind, and no name accounts for what the
  cell consumed.

Where the full collection would cost too much for what it may give back, the report says instead
``up to N MB waits for the garbage collector``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..engine.machine import machine
from ..records import CPU
from ..records.units import MB
from ..runtime import full_collection

if TYPE_CHECKING:
    import weakref
    from collections.abc import Hashable, Iterator, Mapping
    from typing import Any

    from ..records import CellRecord
    from .attribution import WalkResult
    from .growth import Growth
    from .hidden_memory import HiddenMemory
    from .known_paths import KnownPaths
    from .snapshot import Snapshot

_SHARE = 0.007  # of the cell's time: a full collection that costs less always runs,
_LEAST_S = 0.0003  # but none costs less than this
_S_PER_MB = 0.05  # what giving back one megabyte may cost
_MOST_S = 0.25  # what a full collection may cost after a short cell
_DRIFT_BYTES = 5 * MB  # below this, resident memory may also have grown because an allocator keeps some
_BLOCK_BYTES = 128  # of Python's allocator, where most are smaller
_ARENAS_BYTES = 3 * MB // 2  # what that allocator may have given back to the system within the cell
_LEAST_BYTES = MB // 2  # less is not counted
_YOUNG_S, _YOUNG_SHARE = 0.001, 0.002  # what a young collection may cost, at least and of the cell's time
_FOLLOW_S = 0.001  # for following the known paths


class _Block(NamedTuple):
    """Memory that was reachable at a walk.

    Attributes:
        device: Where it is.
        size_bytes: Its size.
        alive: A weak reference that dies with it; None if there is none.
    """

    device: str
    size_bytes: int
    alive: weakref.ref[Any] | None = None

    def is_freed(self) -> bool:
        """Return whether it has certainly been freed."""
        return self.alive is not None and self.alive() is None


class Mark(NamedTuple):
    """A moment between two collections.

    Attributes:
        ageings: How many collections had made objects older.
        waiting: What waited for a full collection, in bytes by device.
        blocks: How many blocks Python's allocator had handed out; None where that is unknown.
        in_use_bytes: What malloc had handed out; None where that is unknown.
    """

    ageings: int
    waiting: Mapping[str, int]
    blocks: int | None
    in_use_bytes: int | None


class Uncollected:
    """What may wait for a full collection, and the decision to run one.

    Args:
        shell: IPython's.
        growth: Walks from every name, and passes on what each walk found.
    """

    def __init__(self, shell: Any, growth: Growth) -> None:
        self._growth = growth
        self._shell = shell
        self._paths: KnownPaths | None = None  # of the last walk
        self._hidden: HiddenMemory | None = None
        self._known: dict[Hashable, _Block] = {}  # with a known path
        self._waiting: dict[Hashable, _Block] = {}  # not reachable from any name, as far as is known
        self._unexplained: dict[str, int] = {}  # garbage that cells may have left besides, in bytes by device
        self._used: Mapping[str, int] = {}  # at the last walk, in bytes by device, without what malloc keeps
        self._kept_bytes = 0  # what counts as kept by malloc
        self._told_bytes: int | None = None  # what malloc kept when that was last known
        self._was_told = False  # at the last walk
        self._full_count = full_collection.count()

    def begin(self) -> None:
        """Collect young garbage before a cell."""
        full_collection.run_young(_YOUNG_S)

    def mark(self) -> Mark:
        """Return what `settle` and `settle_unexplained` take of the moment at which a cell begins."""
        heap = machine().process.heap()
        in_use_bytes = None if heap is None else heap.in_use_bytes
        return Mark(full_collection.ageings(), self.waiting(), full_collection.live_blocks(), in_use_bytes)

    def settle(self, time_s: float, mark: Mark, *, starved: bool = False) -> bool:
        """Collect the garbage of a cell, as far as that is worth the time it takes.

        Args:
            time_s: How long the cell ran.
            mark: Of its beginning.
            starved: Whether it ran out of a device's memory. Then all garbage is collected, whatever that
                costs: what an earlier failed call held may be in it, which the next attempt needs.

        Returns:
            Whether `settle_unexplained` is to be called with the cell's record.
        """
        aged = full_collection.ageings() != mark.ageings
        if not full_collection.run_young(max(_YOUNG_S, _YOUNG_SHARE * time_s)):
            aged = True
        if full_collection.count() != self._full_count:  # one of the user's
            self._nothing_waits()
        if starved or self._is_cheap(time_s):
            self._collect()
            return False
        keys = self._paths.broken(_FOLLOW_S) if self._paths is not None else []
        broken = [self._known[key] for key in keys if key in self._known]
        if sum(block.size_bytes for block in broken if not block.is_freed()) < MB:
            return aged
        self._growth.walk_again()
        total_bytes = sum(self.waiting().values())
        if total_bytes >= MB and self._is_worth(total_bytes, time_s):
            self._collect()
            return False
        return aged

    def settle_unexplained(self, record: CellRecord, before: Snapshot, mark: Mark) -> bool:
        """Collect the garbage that a cell may have left of its own, or remember that it waits.

        Args:
            record: The cell's.
            before: The names as the cell began.
            mark: Of its beginning.

        Returns:
            Whether a full collection ran, so that the record's figures are to be read again.
        """
        # What waited and was freed within the cell made room for as much again.
        waiting, came_bytes = self.waiting(), self._came_bytes(mark)
        for device, consumed_bytes in self._growth.unexplained(record, before).items():
            size_bytes = consumed_bytes - waiting.get(device, 0) + mark.waiting.get(device, 0)
            if device == CPU and size_bytes < _DRIFT_BYTES and came_bytes is not None:
                grown_bytes = record.gen.consumed_bytes - record.gen.kept_of_consumed_bytes
                size_bytes += min(_ARENAS_BYTES, came_bytes - grown_bytes)
            if size_bytes >= _LEAST_BYTES:
                self._unexplained[device] = self._unexplained.get(device, 0) + size_bytes
        total_bytes = sum(self._unexplained.values())
        if total_bytes < MB or not self._is_worth(total_bytes, record.time_s):
            return False
        self._collect()
        return True

    def _came_bytes(self, mark: Mark) -> int | None:
        """Return how much more Python's allocator and malloc have handed out; None where unknown.

        Resident memory may grow though everything was freed: an arena of Python's goes back to the system
        only once it is empty.
        """
        now = self.mark()
        if None in (now.blocks, mark.blocks, now.in_use_bytes, mark.in_use_bytes):
            return None
        blocks = (now.blocks or 0) - (mark.blocks or 0)
        came_bytes = (now.in_use_bytes or 0) - (mark.in_use_bytes or 0)
        return max(0, blocks) * _BLOCK_BYTES + came_bytes

    def notes(self) -> Iterator[str]:
        """Yield a sentence for each device on which memory waits."""
        sizes = self.waiting() if self._waiting or self._unexplained else {}
        if sizes:
            from .cycles import garbage_notes

            yield from garbage_notes(sizes)

    def waiting(self) -> dict[str, int]:
        """Return what may wait for a full collection, in bytes by device."""
        self._waiting = {key: block for key, block in self._waiting.items() if not block.is_freed()}
        found = dict(self._unexplained)
        for block in self._waiting.values():
            found[block.device] = found.get(block.device, 0) + block.size_bytes
        return found

    def walked(self, found: WalkResult, used: Mapping[str, int], bound: Mapping[str, int]) -> None:
        """Take what a walk has found; `Growth` calls this after each.

        Args:
            found: The walk's result.
            used: The memory in use then, in bytes by device.
            bound: By name, the `id` of what it was bound to.
        """
        self._look_at_malloc()
        used = {**used, CPU: used.get(CPU, 0) - self._kept_bytes}
        blocks = _large_blocks(found)
        if self._paths is None or self._hidden is None:
            from .hidden_memory import HiddenMemory
            from .known_paths import KnownPaths

            self._paths, self._hidden = KnownPaths(self._shell), HiddenMemory(self._shell)
        sizes = self._hidden.update(found, used[CPU], bound)
        hidden = {("hidden", *key): _Block(key[0], size_bytes) for key, size_bytes in sizes.items()}
        broken = set(self._paths.broken(_MOST_S))
        left = {
            key: block for key, block in self._known.items() if key not in blocks and not block.is_freed()
        }
        lost = {key: block for key, block in left.items() if key in broken}
        kept = {} if found.complete else {key: block for key, block in left.items() if key not in lost}
        self._waiting = {key: block for key, block in self._waiting.items() if key not in blocks}
        self._waiting |= self._not_freed(lost, blocks, used)
        self._paths.learn(found.paths, {("hidden", *key): key[1] for key in sizes}, kept)
        self._known = kept | blocks | hidden
        self._used = used

    def _look_at_malloc(self) -> None:
        """Take what malloc keeps; where it keeps more, only if that is known of the last walk as well.

        It may otherwise have kept it for longer. Counted now, it would look like memory that was given back
        since the last walk, and as much of what a dropped name held would not be told.
        """
        heap = machine().process.heap()
        if heap is not None and self._told_bytes is not None:
            more_bytes = heap.kept_bytes - self._told_bytes
            self._kept_bytes += more_bytes if self._was_told else min(0, more_bytes)
        self._was_told = heap is not None
        self._told_bytes = self._told_bytes if heap is None else heap.kept_bytes

    def close(self) -> None:
        """Forget everything."""
        self._nothing_waits()
        self._known, self._used = {}, {}
        self._paths = self._hidden = None

    def _not_freed(
        self, lost: dict[Hashable, _Block], blocks: Mapping[Hashable, _Block], used: Mapping[str, int]
    ) -> dict[Hashable, _Block]:
        """Return which of the blocks that no path leads to any more are still there.

        A block with a weak reference is there until that is dead. The others count with their size less what
        memory in use fell by since the last walk, and at most with what of them is still resident.
        """
        found = {key: block for key, block in lost.items() if block.alive is not None}
        new = [block for key, block in blocks.items() if key not in self._known]
        for device in {block.device for block in lost.values() if block.alive is None}:
            left = {
                k: block.size_bytes for k, block in lost.items() if block.device == device and not block.alive
            }
            came_bytes = sum(block.size_bytes for block in new if block.device == device)
            fell_bytes = self._used.get(device, 0) - used.get(device, 0) + came_bytes
            left_bytes = min(sum(left.values()) - max(0, fell_bytes), _resident_bytes(left))
            if left_bytes >= _LEAST_BYTES:
                found["not freed", device, len(self._waiting)] = _Block(device, left_bytes)
        return found

    # -- full collections ---------------------------------------------------------------------------

    def _is_cheap(self, time_s: float) -> bool:
        return _SHARE * time_s > _LEAST_S and full_collection.cost_s() <= _SHARE * time_s

    def _is_worth(self, size_bytes: int, time_s: float) -> bool:
        """Return whether so much memory is worth a full collection."""
        most_s = min(_MOST_S, size_bytes / MB * _S_PER_MB)
        return full_collection.cost_s() <= max(most_s, _SHARE * time_s)

    def _collect(self) -> None:
        full_collection.run()
        self._nothing_waits()

    def _nothing_waits(self) -> None:
        self._waiting, self._unexplained = {}, {}
        self._full_count = full_collection.count()


def _large_blocks(found: WalkResult) -> dict[Hashable, _Block]:
    return {
        key: _Block(device, size_bytes, found.alive.get(key))
        for (_, device, _), sizes in found.blocks.items()
        for key, size_bytes in sizes.items()
        if size_bytes >= MB
    }


def _resident_bytes(sizes: Mapping[Hashable, int]) -> int:
    """Return how much of these blocks is resident, where their address is known; else their size."""
    from .mapped_memory import resident_bytes

    placed = {key: size for key, size in sizes.items() if type(key) is tuple and key[0] == CPU}
    found = resident_bytes([[(key[1], key[1] + size)] for key, size in placed.items()])
    return sum(found) + sum(size for key, size in sizes.items() if key not in placed)
