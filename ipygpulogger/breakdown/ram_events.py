"""memray's events, replayed: which memory was asked for and not yet freed when that was most.

A mapping (mmap) reserves addresses, which become memory as they are used: Arrow's allocator reserves a
gigabyte for its first kilobyte, and a file of any size can be mapped. So a mapping may count for less than
was asked for. How much is known after a first replay, and `peak_of` then replays once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from collections.abc import Mapping as Dict

    from ..sources.memray import Calls, Event


ARENA_BYTES = 1 << 20


class RamBlock(NamedTuple):
    """Memory that one call asked for and that was not freed at the peak.

    Attributes:
        address: Where it begins.
        size_bytes: What was asked for; of a mapping, for how much it counts.
        stack: A number that is equal for equal stacks, see `RamPeak.askers`.
        mapped: Whether it is a mapping.
        alive: Whether it was still not freed at the end.
    """

    address: int
    size_bytes: int
    stack: int
    mapped: bool
    alive: bool

    @property
    def is_arena(self) -> bool:
        """Whether Python keeps small objects there, of whatever line, as it maps so much at once for them."""
        return self.mapped and self.size_bytes == ARENA_BYTES


class Mapping(NamedTuple):
    """A mapping, and what became of it.

    Attributes:
        size_bytes: What was asked for.
        ranges: The addresses (start, end) of it that were mapped at the end.
    """

    size_bytes: int
    ranges: list[tuple[int, int]]


class RamPeak(NamedTuple):
    """The moment when most was asked for.

    Attributes:
        size_bytes: The sum of the blocks.
        blocks: What was asked for since the beginning and not freed then.
        askers: By `RamBlock.stack`, an event that has this stack.
    """

    size_bytes: int
    blocks: list[RamBlock]
    askers: dict[int, Event]


class _Live(NamedTuple):
    born: int  # the number of its event
    size_bytes: int  # as it counts
    stack: int
    end: int = 0  # of a mapping's addresses


class _Replay:
    """What is not freed at one moment, and what of the peak was freed since."""

    def __init__(self, calls: Calls, counted: Dict[int, int]) -> None:
        """Prepare.

        Args:
            calls: The numbers of functions.
            counted: For how much a mapping counts, by the number of its event; for what was asked by default.
        """
        self._calls, self._counted = calls, counted
        self.blocks: dict[int, _Live] = {}  # by address
        self.maps: dict[int, _Live] = {}  # by address
        self.mappings: dict[int, Mapping] = {}  # by the number of the event
        self.freed: list[RamBlock] = []  # since the peak, of what was alive then
        self.askers: dict[int, Event] = {}
        self.total_bytes = self.peak_bytes = self.peak_at = 0

    def run(self, events: Iterable[Event]) -> None:  # noqa: C901 - one loop over millions of events
        """Replay these events."""
        blocks, askers = self.blocks, self.askers
        free, mmap, munmap = self._calls
        for number, event in enumerate(events, 1):
            kind, address = event.allocator, event.address
            if kind == free:
                if (live := blocks.pop(address, None)) is not None:  # or it was asked for before
                    self._free(address, live)
                continue
            size_bytes, stack = event.size, event.stack_id
            if kind == munmap:
                self._unmap(address, address + size_bytes)
                continue
            if kind == mmap:
                self._unmap(address, address + size_bytes)  # a mapping may replace others
                self.mappings[number] = Mapping(size_bytes, [])
                end, size_bytes = address + size_bytes, self._counted.get(number, size_bytes)
                self.maps[address] = _Live(number, size_bytes, stack, end)
            else:
                if (live := blocks.get(address)) is not None:  # memray missed that it was freed
                    self._free(address, live)
                blocks[address] = _Live(number, size_bytes, stack)
            if stack not in askers:
                askers[stack] = event
            self.total_bytes += size_bytes
            if self.total_bytes > self.peak_bytes:
                self.peak_bytes, self.peak_at = self.total_bytes, number
                if self.freed:
                    self.freed.clear()
        for address, live in self.maps.items():
            self.mappings[live.born].ranges.append((address, live.end))

    def _free(self, address: int, live: _Live) -> None:
        self.total_bytes -= live.size_bytes
        if live.born <= self.peak_at and live.size_bytes:
            self.freed.append(_block(address, live, alive=False))

    def _unmap(self, start: int, end: int) -> None:
        """Free a range of addresses: a mapping, a part of one, or several."""
        exact = self.maps.get(start)
        if exact is not None and exact.end == end:
            del self.maps[start]
            self._free(start, exact)
            return
        for address, live in list(self.maps.items()):
            first, last = max(start, address), min(end, live.end)
            if first >= last:
                continue
            del self.maps[address]
            left = live.size_bytes
            for piece, until in ((address, first), (last, live.end)):
                if piece < until:
                    size_bytes = min(left, until - piece)
                    self.maps[piece] = _Live(live.born, size_bytes, live.stack, until)
                    left -= size_bytes
            if left:
                self._free(first, live._replace(size_bytes=left))


def peak_of(events: Callable[[], Iterable[Event]], calls: Calls, counts: Callable[[Mapping], int]) -> RamPeak:
    """Return what was alive when most was asked for.

    Args:
        events: Yields the events from their beginning; called once more where a mapping counts for less.
        calls: The numbers of functions in the events.
        counts: For how many bytes a mapping counts.
    """
    replay = _Replay(calls, {})
    replay.run(events())
    counted = {
        number: counts_bytes
        for number, mapping in replay.mappings.items()
        if (counts_bytes := counts(mapping)) != mapping.size_bytes
    }
    if counted:
        replay = _Replay(calls, counted)
        replay.run(events())
    found = replay.freed
    for here in (replay.blocks, replay.maps):
        found += (
            _block(address, live, alive=True)
            for address, live in here.items()
            if live.born <= replay.peak_at and live.size_bytes
        )
    return RamPeak(replay.peak_bytes, found, replay.askers)


def _block(address: int, live: _Live, *, alive: bool) -> RamBlock:
    return RamBlock(address, live.size_bytes, live.stack, mapped=bool(live.end), alive=alive)
