"""How far resident memory rose for what was asked for, where that can be known.

malloc serves requests from memory that it kept, which is resident already. And a page that was never written
to is not resident yet. Both are read from the page table: the heap's when a measurement begins, if malloc
keeps a notable part of it, and that of a block when it ends.
"""

from __future__ import annotations

from operator import and_
from typing import TYPE_CHECKING

from ..owners.mapped_memory import PAGE_BYTES, PRESENT, main_heap, page_table

if TYPE_CHECKING:
    from ..records import Heap
    from .ram_events import RamBlock

_NOTABLE_BYTES = 1 << 20
_FLAGS = bytes(byte in PRESENT for byte in range(256))
_MOST_HEAP_BYTES = 4 << 30  # a million pages, the table of which is read in 40 ms


class Pages:
    """Which pages of the heap were resident at one moment: when this is made."""

    def __init__(self, heap: Heap | None) -> None:
        """Read them.

        Args:
            heap: What malloc holds, in bytes; None where that is unknown.
        """
        self._first, self._pages = 0, b""  # the first page, and for each whether it was resident
        if heap is not None and heap.kept_bytes >= _NOTABLE_BYTES and (found := main_heap()) is not None:
            start, end = found
            if end - start <= _MOST_HEAP_BYTES:
                self._first, self._pages = start // PAGE_BYTES, page_table(start, end).translate(_FLAGS)

    def risen_bytes(self, block: RamBlock, *, held: bool) -> int | None:
        """Return by how much resident memory rose for a block; None where that is unknown.

        Args:
            block: A large one.
            held: Whether it is still there now.
        """
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
