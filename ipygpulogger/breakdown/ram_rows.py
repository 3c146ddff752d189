"""Blocks of general RAM in, rows of `AtPeak` out: by the line that asked for them, the largest first."""

from __future__ import annotations

import os
import sys
from bisect import bisect_right
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..allocator.places import Place, Places, is_shells, last_resort, user_frame
from ..owners.memory_blocks import array_readers
from ..records.device_usage import CPU
from ..records.explained import OTHERS
from .names import Search
from .rows import HELD, NO_STACK, LabelledBlock, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memray import AllocationRecord as Event

    from ..allocator.places import Frame
    from ..records import AtPeak
    from ..records.explained import Kind
    from .ram import Pages, RamBlock, RamPeak

_NOTABLE_SHARE = 0.001  # of the peak: rows of less stand as one
_LARGE_BYTES = 64 << 10  # from here on it is looked up who holds a block, and its pages
_OURS = str(Path(__file__).parents[1]) + os.sep
_SMALL_OBJECTS = "small objects of Python"  # the line asked for the last of them
_ELSEWHERE = ("", 0, "")  # not below code of the user's: a library's thread, for example
_UNLISTED = (_OURS, 0, "")


def ram_rows(peak: RamPeak, pages: Pages | None, shell: Any) -> tuple[AtPeak, ...]:
    """Return the rows of "cpu", without what our own code asked for."""
    lines = {stack: _line(peak.askers[stack]) for stack in {block.stack for block in peak.blocks}}
    lines = {stack: line for stack, line in lines.items() if line is None or not line[0].startswith(_OURS)}
    places = Places(shell)
    places.learn(line for line in lines.values() if line not in (None, _ELSEWHERE))
    place_of = {stack: _place_of(line, places) for stack, line in lines.items()}
    blocks = [block for block in peak.blocks if block.stack in lines]
    names = _names(blocks, shell)
    labelled = (
        _labelled(block, place_of[block.stack], names.get(block.address, "") if block.alive else "", pages)
        for block in blocks
    )
    return rows_of(CPU, labelled, _NOTABLE_SHARE * peak.size_bytes)


def _labelled(block: RamBlock, place: Place, name: str, pages: Pages | None) -> LabelledBlock:
    risen_bytes = None
    if pages is not None and block.size_bytes >= _LARGE_BYTES and not block.mapped:
        risen_bytes = pages.risen_bytes(block, held=bool(name))
    kind: Kind = "variables" if block.alive else "temporaries"
    place = Place(place.place, _SMALL_OBJECTS) if block.is_arena else place
    # What names hold is not one with the rest of its line.
    return LabelledBlock(kind, place, name, block.size_bytes, HELD if name else "", risen_bytes)


def _line(event: Event) -> Frame | None:
    """Return the line that asked: the user's innermost one, or one of ours if that is further inside.

    Without either it is code from a text, or `_ELSEWHERE`. IPython's own work to show an error, after the
    user's code has ended, is not listed.
    """
    stack = [(file, line, function) for function, file, line in event.stack_trace()]
    user = user_frame(stack)
    for frame in stack:
        file, _, function = frame
        if frame is user or file.startswith(_OURS):
            return frame
        if function == "showtraceback" and is_shells(file):
            return _UNLISTED
    found = last_resort(stack)
    if found is None or (found[0].startswith("<") and not found[0].startswith("<frozen")):
        return found
    return _ELSEWHERE


def _place_of(line: Frame | None, places: Places) -> Place:
    if line is None:
        return NO_STACK
    return Place("", OTHERS) if line == _ELSEWHERE else places.place_of(line)


def _names(blocks: Iterable[RamBlock], shell: Any) -> dict[int, str]:
    """Return by address which variables hold blocks now; of large blocks only."""
    kept = sorted(
        (one.address, one.size_bytes)
        for one in blocks
        if one.alive and one.size_bytes >= _LARGE_BYTES and not one.is_arena
    )
    if not kept:
        return {}
    starts = [address for address, _ in kept]
    found: dict[int, str] = {}
    for name, _, holding in Search(shell, sys._getframe(), array_readers(), len(kept)).found():
        key = holding.key
        if holding.device == CPU and type(key) is tuple and type(key[1]) is int:
            address, size_bytes = kept[bisect_right(starts, key[1]) - 1]
            if address <= key[1] < address + size_bytes:
                found.setdefault(address, name)
                if len(found) == len(kept):
                    break
    return found
