"""The events of an allocator, replayed: when memory was highest, and which blocks were alive then.

The replay starts from how the allocator stood when the recording began; if older events are lost, from how it
stands at the end, and undoes them. Either way it is checked against what the allocator says of itself.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from ..sources.torch.history import DeviceHistory
from ..sources.torch.snapshot import AllocatorState, Position
from .caching_allocator import Blocks, Layout, Settings, blocks_of, live, undone


@dataclass(slots=True)  # not frozen: there may be tens of thousands, and that takes three times as long
class Block:
    """A block that was alive at some moment."""

    address: int  # where it begins
    size_bytes: int  # as the allocator counts it
    # The number of its allocation; 0 for one before the measurement and the events. If `lost`, the highest.
    count: int
    # Where it was allocated, innermost first; empty without Python, and for one before the measurement.
    frames: Sequence[dict[str, Any]]
    before: bool = False  # whether it was allocated before the measurement began, which is certain then
    freed: int | None = None  # the number of allocations when it was freed; None if it was alive at the end
    lost: bool = False  # whether it may have been allocated within the measurement, by an event that is lost
    began: int = -1  # the indices of the events at which its life began and ended
    ended: int = sys.maxsize
    kind: Any = None  # what it was for, a kind of `AtPeak`, once that has been found out

    @property
    def alive(self) -> bool:
        """Whether it was still there at the end."""
        return self.freed is None


@dataclass(frozen=True, slots=True)
class Moment:
    """What was alive at one moment."""

    blocks: tuple[Block, ...]  # all that were
    size_bytes: int  # the sum of their sizes
    count: int  # the number of allocations until then
    requested_bytes: int = 0  # what could not be allocated, if this is where an allocation failed


class Replay:
    """What one device's allocator did during a measurement."""

    def __init__(self, history: DeviceHistory, since: Position, until: Position) -> None:
        # 300,000 events take half a second.
        self._settings = Settings.of(history.settings)
        self._since, self._until = since, until
        begin, end = history.begin, history.end
        earlier = blocks_of(begin.segments) if begin is not None else {}
        begin_at = None if begin is None else _begin_of(history, begin, len(live(earlier)))
        # Those that torch still has.
        self.events: list[dict[str, Any]] = history.events[0 if begin_at is None else begin_at + 1 :]
        # The number of the last allocation before the events.
        self.first_count: int = end.before.allocated - sum(one["action"] == "alloc" for one in self.events)
        # Whether the events reach back to the beginning of the recording.
        self.whole: bool = begin_at is not None or (begin is None and not self.first_count)
        if begin is not None and begin_at is not None:
            stood, segments = earlier, begin.segments
        elif self.whole:  # the device's whole life
            stood, segments = {}, []
        else:
            stood, segments = undone(self.events, end.segments, self._settings)
        self.blocks: list[Block] = []  # all, in the order in which their lives began
        self._totals: list[int] = []  # allocated after each event
        self._allocations: list[int] = []  # the indices of the events that are allocations
        self._begin_bytes: int
        # Whether the events agree with each other, and with what the allocator says about itself. If not,
        # some of them are missing, or are not in their order.
        self.agrees: bool = self._run(stood, Layout(segments, stood, self._settings), history)
        # Where the events begin after the measurement, frees alone may be lost as well.
        reach = self.whole or since.allocated > self.first_count
        self.agrees = self.agrees and None not in map(self._index, [until, since] if reach else [until])
        for block in self.blocks:
            block.lost = self.missing > 0 and not block.count
            block.before = block.count <= since.allocated and not block.lost
            block.count = self.first_count if block.lost else block.count
            block.frames = () if block.before else block.frames

    def _run(self, stood: Blocks, layout: Layout, history: DeviceHistory) -> bool:
        """Replay all events; return whether they agree with each other and with the blocks at the end."""
        blocks, totals, allocations, agree = self.blocks, self._totals, self._allocations, True
        living = {at: Block(at, one["size"], 0, one.get("frames") or ()) for at, one in live(stood).items()}
        blocks += living.values()
        self._begin_bytes = total = sum(block.size_bytes for block in blocks)
        count = self.first_count
        for i, event in enumerate(self.events):
            action = event["action"]
            if action == "alloc":
                address = event["addr"]
                size_bytes = layout.occupy(address, event["size"])
                count += 1
                agree = agree and address not in living
                frames = event.get("frames") or ()
                living[address] = made = Block(address, size_bytes, count, frames, began=i)
                blocks.append(made)
                allocations.append(i)
                total += size_bytes
            elif action == "free_requested":
                freed = living.pop(event["addr"], None)
                if freed is None:
                    agree = False
                else:
                    freed.ended, freed.freed = i, count
                    total -= freed.size_bytes
            else:
                layout.follow(event)
            totals.append(total)
        if not history.ours:  # torch 2.13 reads a ring that was enlarged meanwhile in a wrong order
            agree = agree and all(a["time_us"] <= b["time_us"] for a, b in pairwise(self.events))
        if agree and history.end.still:
            end = live(blocks_of(history.end.segments)).items()
            found = {address: block.size_bytes for address, block in living.items()}
            agree = found == {address: block["size"] for address, block in end}
        return agree

    @property
    def missing(self) -> int:
        """How many allocations of the measurement are missing, because the events begin later."""
        return max(self.first_count - self._since.allocated, 0)

    def highest(self) -> Moment:
        """Return the moment of the most memory, of several the first."""
        first, last = (max(one.allocated - self.first_count, 0) for one in (self._since, self._until))
        return self._moment(max([self.ends[0], *self._allocations[first:last]], key=self._total))

    @property
    def ends(self) -> tuple[int, int]:
        """The indices of the last events before the measurement, -1 before all, and within it."""
        first = self._index(self._since)
        return -1 if first is None else first, self._index(self._until) or 0

    def totals(self) -> list[int]:
        """Return what was allocated as the measurement began, and after each of its events."""
        first, last = self.ends
        return [self._total(first), *self._totals[first + 1 : last + 1]]

    def failure(self) -> Moment | None:
        """Return the last moment at which an allocation failed; None if none did, or its event is lost."""
        later = self._allocations[max(self._until.allocated - self.first_count, 0) :]
        end = later[0] if later else len(self.events)
        found = [i for i in range(self.ends[0] + 1, end) if self.events[i]["action"] == "oom"]
        count = self._until.failures - self._since.failures
        # There may be more events: before the measurement, where no block was allocated or freed in between.
        if not 0 < count <= len(found):
            return None
        return replace(self._moment(found[-1]), requested_bytes=self.events[found[-1]]["size"])

    def _total(self, index: int) -> int:
        return self._begin_bytes if index < 0 else self._totals[index]

    def _index(self, position: Position) -> int | None:
        """Return the index of the last event before a position, -1 before all; None if they never meet it."""
        k = position.allocated - self.first_count
        if not 0 <= k <= len(self._allocations):
            return None
        index = self._allocations[k - 1] if k else -1
        end = self._allocations[k] if k < len(self._allocations) else len(self.events)
        # Which of the frees after that allocation had happened, the bytes tell.
        return next((i for i in range(index, end) if self._total(i) == position.size_bytes), None)

    def _moment(self, index: int) -> Moment:
        blocks = tuple(block for block in self.blocks if block.began <= index < block.ended)
        count = self.first_count + bisect_right(self._allocations, index)
        return Moment(blocks, sum(block.size_bytes for block in blocks), count)


def _begin_of(history: DeviceHistory, begin: AllocatorState, begin_blocks: int) -> int | None:
    """Return the index of the event that is our look at the beginning; None if it is lost."""
    end, found = history.end, None
    allocated, blocks = end.before.allocated, end.before.blocks
    for i in range(len(history.events) - 1, -1, -1):
        action = history.events[i]["action"]
        if action == "alloc":
            allocated, blocks = allocated - 1, blocks - 1
            if allocated < begin.before.allocated:
                break
        elif action == "free_requested":
            blocks += 1
        elif action == "snapshot" and allocated == begin.before.allocated:
            # Of several the first: no block was allocated or freed between them.
            found = i if blocks == begin_blocks or not end.still else found
    return found
