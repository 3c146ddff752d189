"""Blocks of general RAM in, rows of `AtPeak` out: by the line that asked for them, the largest first."""

from __future__ import annotations

import os
import sys
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..owners.array_readers import array_readers
from ..owners.roots import owners_at
from ..records import AtPeak
from ..records.at_peak import OTHERS, folded
from ..records.device_usage import CPU
from .held import user_frames
from .places import Place, Places, is_shells, is_users, last_resort

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..records.at_peak import Kind
    from ..sources.memray import Event
    from .places import Frame
    from .ram_events import RamBlock, RamPeak
    from .ram_pages import Pages

_MOST_ROWS = 100
_NOTABLE_SHARE = 0.001  # of the peak: rows of less stand as one
_NAMES = 3  # in one row
_LARGE_BYTES = 64 << 10  # from here on it is looked up who holds a block, and its pages
_UNKNOWN_SHARE = 0.01  # of a row, of which it need not be known how far resident memory rose for it
_OURS = str(Path(__file__).parents[1]) + os.sep
_SMALL_OBJECTS = "small objects of Python"  # the line asked for the last of them
_NO_PYTHON = Place("", "allocated without a Python stack")
_ELSEWHERE = ("", 0, "")  # not below code of the user's: a library's thread, for example
_NOT_TOLD = (_OURS, 0, "")


def rows_of(peak: RamPeak, pages: Pages | None, shell: Any) -> tuple[AtPeak, ...]:
    """Return the rows of "cpu", without what our own code asked for.

    Args:
        peak: What was alive.
        pages: Those that were resident when the measurement began; None where that is unknown.
        shell: IPython's, whose cells and variables are named; None outside.
    """
    lines = {stack: _line(peak.askers[stack]) for stack in {block.stack for block in peak.blocks}}
    places = Places(shell)
    places.learn(line for line in lines.values() if line not in (None, _ELSEWHERE))
    told = {
        stack: _place_of(line, places)
        for stack, line in lines.items()
        if line is None or not line[0].startswith(_OURS)
    }
    names = _names([block for block in peak.blocks if block.stack in told], shell)
    rows: dict[tuple[Kind, Place, bool], _Row] = {}  # what names hold is not one with the rest of its line
    for block in peak.blocks:
        if block.stack in told:
            kind: Kind = "variables" if block.alive else "temporaries"
            place = told[block.stack]
            if block.is_arena:
                place = Place(place.place, _SMALL_OBJECTS)
            name = names.get(block.address, "") if block.alive else ""
            rows.setdefault((kind, place, bool(name)), _Row()).add(block, name, pages)
    made = [row.made(kind, place) for (kind, place, _), row in rows.items()]
    made.sort(key=lambda row: (row.is_sum, -row.size_bytes))
    least_bytes = _NOTABLE_SHARE * peak.size_bytes
    notable = sum(row.size_bytes >= least_bytes for row in made if not row.is_sum)
    return folded(made, min(notable, _MOST_ROWS))


@dataclass
class _Row:
    """The blocks of one kind and place that names hold, or those that no name holds."""

    size_bytes: int = 0
    blocks: int = 0
    risen_bytes: int = 0
    unknown_bytes: int = 0  # of blocks for which it is unknown how far resident memory rose
    names: dict[str, None] = field(default_factory=dict)

    def add(self, block: RamBlock, name: str, pages: Pages | None) -> None:
        """Add a block, and the name that holds it."""
        self.size_bytes += block.size_bytes
        self.blocks += 1
        if name:
            self.names[name] = None
        looked_at = pages is not None and block.size_bytes >= _LARGE_BYTES and not block.mapped
        risen_bytes = pages.risen_bytes(block, held=bool(name)) if pages is not None and looked_at else None
        if risen_bytes is None:
            self.unknown_bytes += block.size_bytes
        self.risen_bytes += block.size_bytes if risen_bytes is None else risen_bytes

    def made(self, kind: Kind, place: Place) -> AtPeak:
        """Return the row of the record."""
        names = list(self.names)
        more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
        name = ", ".join(names[:_NAMES]) + more or place.text or place.place
        is_known = self.unknown_bytes <= _UNKNOWN_SHARE * self.size_bytes
        resident_bytes = self.risen_bytes if is_known and self.risen_bytes != self.size_bytes else None
        return AtPeak(CPU, kind, name, place.place, self.size_bytes, self.blocks, resident_bytes)


def _line(event: Event) -> Frame | None:
    """Return the line that asked: the user's innermost one, or one of ours if that is further inside.

    Without either it is code from a text, or `_ELSEWHERE`. IPython's own work to show an error, after the
    user's code has ended, is not told.
    """
    stack = [(file, line, function) for function, file, line in event.stack_trace()]
    for frame in stack:
        file, _, function = frame
        if file.startswith(_OURS) or is_users(file):
            return frame
        if function == "showtraceback" and is_shells(file):
            return _NOT_TOLD
    found = last_resort(stack)
    if found is None or (found[0].startswith("<") and not found[0].startswith("<frozen")):
        return found
    return _ELSEWHERE


def _place_of(line: Frame | None, places: Places) -> Place:
    if line is None:
        return _NO_PYTHON
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
    walked = owners_at(user_frames(sys._getframe()), shell, array_readers(), sys.exc_info()[1])
    starts = [address for address, _ in kept]
    found: dict[int, str] = {}
    for (name, device, _), keys in walked.blocks.items():
        for key in keys if device == CPU else ():
            if type(key) is tuple and type(key[1]) is int:
                address, size_bytes = kept[bisect_right(starts, key[1]) - 1]
                if address <= key[1] < address + size_bytes:
                    found.setdefault(address, name)
    return found
