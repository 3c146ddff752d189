"""General RAM at its peak, from the allocations that memray recorded: what was asked for counts.

A mapping (mmap) reserves addresses, which become memory as they are used: it is not in the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from ..engine.machine import importing, machine
from ..records.units import MB, rounded_mb
from ..runtime.collector import undisturbed
from ..runtime.errors import is_from_a_handler, named
from ..runtime.shell import current_shell
from ..sources import Unavailable
from ..sources.system.memray import ABSENT, UNKNOWN, Calls, Window, calls_of_memray
from .rows import ram_rows

if TYPE_CHECKING:
    from memray import AllocationRecord as Event

    from ..records import AtPeak, Measurement

ARENA_BYTES = 1 << 20


class RamBlock(NamedTuple):
    """Memory that one call asked for and that was not freed at the peak."""

    address: int  # where it begins
    size_bytes: int  # what was asked for
    stack: int  # A number that is equal for equal stacks, see `RamPeak.askers`
    is_arena: bool  # whether Python mapped it for small objects, of whatever line
    alive: bool  # whether it was still not freed at the end


class RamPeak(NamedTuple):
    """The moment when most was asked for."""

    size_bytes: int  # the sum of the blocks
    blocks: list[RamBlock]  # what was asked for since the beginning and not freed then, the latest last
    askers: dict[int, Event]  # by `RamBlock.stack`, an event that has this stack


def peak_of(events: Iterable[Event], calls: Calls) -> RamPeak:
    """Return what was alive when most was asked for."""
    free, mmap, munmap = calls
    blocks: dict[int, tuple[int, RamBlock]] = {}  # by address, with the number of its event
    freed: list[tuple[int, RamBlock]] = []  # since the peak, of what was alive then
    askers: dict[int, Event] = {}
    total_bytes = peak_bytes = peak_at = 0
    for number, event in enumerate(events, 1):
        kind, address, size_bytes = event.allocator, event.address, event.size
        is_arena = kind in (mmap, munmap)
        if is_arena and size_bytes != ARENA_BYTES:
            continue
        if (gone := blocks.pop(address, None)) is not None:  # freed, or memray missed that it was
            born, block = gone
            total_bytes -= block.size_bytes
            if born <= peak_at:
                freed.append((born, block._replace(alive=False)))
        if kind in (free, munmap):
            continue
        blocks[address] = number, RamBlock(address, size_bytes, event.stack_id, is_arena, alive=True)
        askers.setdefault(event.stack_id, event)
        total_bytes += size_bytes
        if total_bytes > peak_bytes:
            peak_bytes, peak_at = total_bytes, number
            freed.clear()
    found = sorted(freed + [one for one in blocks.values() if one[0] <= peak_at])
    return RamPeak(peak_bytes, [block for _, block in found if block.size_bytes], askers)


_UNSEEN_BYTES, _UNSEEN = 32 * MB, 0.25  # of the rise: from here on it is said; memray takes up to 16 MB


class RamRecording:
    """What was alive when most general RAM was asked for; as `PeakRecording`, whose part it is."""

    def __init__(self, shell: Any = None) -> None:
        self._shell = shell
        self._window: Window | None = None
        self.notes: list[str] = []  # what is not known, and why

    def begin(self) -> None:
        """Begin to record."""
        with self._noted(), importing():
            self._window = Window()

    def end(self) -> None:
        """End the recording; what it found is read by `result`."""
        with self._noted():
            if self._window is not None:
                self._window.end()

    def result(self, measurement: Measurement) -> tuple[AtPeak, ...]:
        """Return the rows of "cpu", the largest first; none where nothing is known."""
        rows: tuple[AtPeak, ...] = ()
        try:
            with self._noted():
                if self._window is not None:
                    self._window.end()
                    found = peak_of(self._window.events(), calls_of_memray())
                    rows = ram_rows(found, current_shell() if self._shell is None else self._shell)
                    rise_bytes = measurement.gen.peak.lo_bytes - measurement.gen.before_bytes
                    self.notes += _unseen(rows, rise_bytes)
        finally:
            self.drop()
        return rows

    def drop(self) -> None:
        """End the recording without a result. Idempotent."""
        window, self._window = self._window, None
        with suppress(Exception):
            if window is not None:
                with undisturbed():
                    window.drop()

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """Keep as a note why nothing is known; an interrupt or the like goes on."""
        try:
            with undisturbed():
                yield
        except Unavailable as reason:
            sentence = str(reason)
            if sentence != ABSENT or machine().notes.is_new(sentence):
                self.notes.append(sentence)
        except Exception as reason:
            if is_from_a_handler(reason):
                self.drop()
                raise
            self.notes.append(f"{UNKNOWN}: {named(reason)}.")


def _unseen(rows: Sequence[AtPeak], rise_bytes: int) -> list[str]:
    """Return a sentence if general RAM rose by clearly more than the rows have."""
    unseen_bytes = rise_bytes - sum(row.size_bytes for row in rows)
    if unseen_bytes < max(_UNSEEN_BYTES, _UNSEEN * rise_bytes):
        return []
    rise, unseen = (f"{rounded_mb(size_bytes)} MB" for size_bytes in (rise_bytes, unseen_bytes))
    where = f"Of the {rise} by which RAM rose to its highest, at least {unseen} are not in the table"
    why = "memray does not see the code of libraries, nor what ctypes allocates; mappings (mmap) do not count"
    return [f"{where}: {why}."]
