"""General RAM at its peak, from the allocations that memray recorded.

Memory that malloc kept is resident already, and a page that was never written to is not resident yet. Both
are read from the page table: the heap's when a measurement begins, and that of a block when it ends.

A mapping (mmap) reserves addresses, which become memory as they are used, so it may count for less than was
asked for. How much is known after a first replay, and `peak_of` then replays once more.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from operator import and_
from typing import TYPE_CHECKING, Any, NamedTuple

from ..engine.machine import importing, machine
from ..owners.address_space import PAGE_BYTES, PRESENT, main_heap, page_table, page_table_bytes
from ..records.units import MB, rounded_mb
from ..runtime.collector import undisturbed
from ..runtime.errors import is_from_a_handler, named
from ..runtime.shell import current_shell
from ..sources import Unavailable
from ..sources.system.memray import ABSENT, UNKNOWN, Window, calls_of_memray
from .rows import ram_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from collections.abc import Mapping as Dict

    from memray import AllocationRecord as Event

    from ..records import AtPeak, Heap, Measurement
    from ..sources.system.memray import Calls

_NOTABLE_BYTES = 1 << 20
_FLAGS = bytes(byte in PRESENT for byte in range(256))
_MOST_HEAP_BYTES = 4 << 30  # a million pages, the table of which is read in 40 ms


class Pages:
    """Which pages of the heap were resident at one moment: when this is made."""

    def __init__(self, heap: Heap | None) -> None:
        self._first, self._pages = 0, b""  # the first page, and for each whether it was resident
        if heap is not None and heap.kept_bytes >= _NOTABLE_BYTES and (found := main_heap()) is not None:
            start, end = found
            if end - start <= _MOST_HEAP_BYTES:
                self._first, self._pages = start // PAGE_BYTES, page_table(start, end).translate(_FLAGS)

    def risen_bytes(self, block: RamBlock, *, held: bool) -> int | None:
        """Return by how much resident memory rose for a block; None where that is unknown."""
        first = -(-block.address // PAGE_BYTES)  # the whole pages of it; how its ends came about is unknown
        last = (block.address + block.size_bytes) // PAGE_BYTES
        if first >= last:
            return None
        already = self._already(first, last)
        if not held:  # what was freed may have been untouched
            return block.size_bytes - len(already) * PAGE_BYTES if already.count(1) == last - first else None
        now = page_table(first * PAGE_BYTES, last * PAGE_BYTES).translate(_FLAGS)
        if len(now) != last - first:
            return None
        risen = now.count(1) - sum(map(and_, already, now))
        risen_bytes: int = block.size_bytes - (last - first - risen) * PAGE_BYTES
        return risen_bytes

    def _already(self, first: int, last: int) -> bytes:
        """Return for each of these pages whether it was resident; empty where none was."""
        if not self._first <= first < self._first + len(self._pages):
            return b""
        return self._pages[first - self._first : last - self._first].ljust(last - first, b"\0")


ARENA_BYTES = 1 << 20


class RamBlock(NamedTuple):
    """Memory that one call asked for and that was not freed at the peak."""

    address: int  # where it begins
    size_bytes: int  # what was asked for; of a mapping, for how much it counts
    stack: int  # A number that is equal for equal stacks, see `RamPeak.askers`
    mapped: bool  # whether it is a mapping
    alive: bool  # whether it was still not freed at the end

    @property
    def is_arena(self) -> bool:
        """Whether Python keeps small objects there, of whatever line, as it maps so much at once for them."""
        return self.mapped and self.size_bytes == ARENA_BYTES


class Mapping(NamedTuple):
    """A mapping, and what became of it."""

    size_bytes: int  # what was asked for
    ranges: list[tuple[int, int]]  # the addresses (start, end) of it that were mapped at the end


class RamPeak(NamedTuple):
    """The moment when most was asked for."""

    size_bytes: int  # the sum of the blocks
    blocks: list[RamBlock]  # what was asked for since the beginning and not freed then
    askers: dict[int, Event]  # by `RamBlock.stack`, an event that has this stack


class _Live(NamedTuple):
    born: int  # the number of its event
    size_bytes: int  # as it counts
    stack: int
    end: int = 0  # of a mapping's addresses


class _Replay:
    """What is not freed at one moment, and what of the peak was freed since."""

    def __init__(self, calls: Calls, counted: Dict[int, int]) -> None:
        # `counted`: for how much a mapping counts, by the number of its event; by default what was asked for.
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
    """Return what was alive when most was asked for."""
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


_MOST_OF_IT = 0.9  # meanwhile other memory may be given back
_UNSEEN_BYTES, _UNSEEN = 32 * MB, 0.25  # of the rise: from here on it is said; memray takes up to 16 MB


class RamRecording:
    """What was alive when most general RAM was asked for; as `PeakRecording`, whose part it is."""

    def __init__(self, shell: Any = None) -> None:
        self._shell = shell
        self._window: Window | None = None
        self._pages: Pages | None = None
        self.notes: list[str] = []  # what is not known, and why

    def begin(self) -> None:
        """Begin to record."""
        try:
            with undisturbed(), importing():
                self._pages = Pages(machine().process.heap())
                self._window = Window()
        except Unavailable as reason:
            sentence = str(reason)
            if sentence != ABSENT or machine().notes.is_new(sentence):
                self.notes.append(sentence)
        except Exception as reason:
            self._failed(reason)

    def end(self) -> None:
        """End the recording; what it found is read by `result`."""
        try:
            if self._window is not None:
                with undisturbed():
                    self._window.end()
        except Exception as reason:
            self._failed(reason)

    def result(self, measurement: Measurement) -> tuple[AtPeak, ...]:
        """Return the rows of "cpu", the largest first; none where nothing is known."""
        try:
            if self._window is None:
                return ()
            with undisturbed():
                self._window.end()
                peak = measurement.gen.peak
                rise_bytes = peak.lo_bytes - measurement.gen.before_bytes
                most_bytes = rise_bytes + peak.precision_bytes
                found = peak_of(self._window.events, calls_of_memray(), lambda one: _counts(one, most_bytes))
                shell = current_shell() if self._shell is None else self._shell
                rows = ram_rows(found, self._pages, shell)
                self.notes += _unseen(rows, rise_bytes)
                return rows
        except Unavailable as reason:
            self.notes.append(str(reason))
        except Exception as reason:
            self._failed(reason)
        finally:
            self.drop()
        return ()

    def drop(self) -> None:
        """End the recording without a result. Idempotent."""
        window, self._window, self._pages = self._window, None, None
        with suppress(Exception):
            if window is not None:
                with undisturbed():
                    window.drop()

    def _failed(self, reason: Exception) -> None:
        if is_from_a_handler(reason):
            self.drop()
            raise reason
        self.notes.append(f"{UNKNOWN}: {named(reason)}.")


def _counts(mapping: Mapping, rise_bytes: int) -> int:
    """Return for how much a mapping counts: for what is resident of it.

    Where that is unknown, for what was asked for, unless resident memory rose by clearly less.
    """
    if mapping.size_bytes == ARENA_BYTES:  # small objects use all of it
        return mapping.size_bytes
    if mapping.ranges and sys.platform == "linux":
        return page_table_bytes(mapping.ranges)
    return mapping.size_bytes if _MOST_OF_IT * mapping.size_bytes <= rise_bytes else 0


def _unseen(rows: Sequence[AtPeak], rise_bytes: int) -> list[str]:
    """Return a sentence if general RAM rose by clearly more than the rows have."""
    seen_bytes = sum(row.size_bytes if row.resident_bytes is None else row.resident_bytes for row in rows)
    unseen_bytes = rise_bytes - seen_bytes
    if unseen_bytes < max(_UNSEEN_BYTES, _UNSEEN * rise_bytes):
        return []
    rise, unseen = (f"{rounded_mb(size_bytes)} MB" for size_bytes in (rise_bytes, unseen_bytes))
    where = f"Of the {rise} by which general RAM rose to its peak, {unseen} are not in the table"
    return [f"{where}: memray does not see the code of libraries, nor what ctypes allocates."]
