"""The line of one cell, in columns: its place in the notebook, its time, what moved, its first line.

``[ 7/21]   12.4 s  GPU +2.4 GB → 6.4 of 16 GB    for batch in loader:``
"""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

from ..records.units import clipped, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .colours import Styled

_TIME = 6  # characters, at least
_MOVED, _MOVED_AT_MOST = 30, 52  # characters: a longer one pushes its source aside
_SOURCE = 80  # characters, where no terminal limits them


class Columns:
    """The columns that the lines of one run have in common.

    A column begins narrow, and is then as wide as the widest that it has held.

    Args:
        count: How many cells there are.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._time, self._moved = _TIME, _MOVED

    def place(self, number: int) -> str:
        """Return the place of a cell by its number from 1: "[ 7/21]"."""
        return f"[{number:>{len(str(self.count))}}/{self.count}]"

    def line(
        self, number: int, time: str, moved: Sequence[Sequence[Styled]], source: str, *, room: int | None
    ) -> list[Styled]:
        """Return the line of a cell, as phrases with their weights.

        Args:
            number: The cell's number, from 1.
            time: How long it took.
            moved: What moved in each memory, the most important first; shown as far as there is room.
            source: The cell's source.
            room: The columns of the terminal; None without one.
        """
        self._time = max(self._time, len(time))
        head = f"{self.place(number)}  {time:>{self._time}}  "
        at_most = _MOVED_AT_MOST if room is None else max(_MOVED, min(room // 2, _MOVED_AT_MOST))
        shown = list(moved)
        while len(shown) > 1 and _width(_joined(shown)) > at_most:
            shown.pop()
        told = _joined(shown)
        self._moved = max(self._moved, min(_width(told), at_most))
        gap = " " * (max(0, self._moved - _width(told)) + 2)
        return fitted([(head, "plain"), *told, (gap, "plain"), (first_line(source), "plain")], room)

    def running(self, number: int, time: str, mark: str, source: str, *, room: int) -> list[Styled]:
        """Return the line of a cell that runs, in the same columns, with a mark of one character.

        A bar shows how many cells are done; a narrow terminal has none.
        """
        parts: list[Styled] = [(f"{self.place(number)} {mark}{time:>{self._time}}  ", "plain")]
        if room >= 2 * _MOVED:
            done = round(_MOVED * (number - 1) / self.count)
            gap = " " * (self._moved - _MOVED + 2)
            parts += [("━" * done, "plain"), ("╌" * (_MOVED - done), "faint"), (gap, "plain")]
        return fitted([*parts, (first_line(source), "faint")], room)


def first_line(source: str) -> str:
    """Return the first line of a cell's source, `printable` and not endless; empty without one."""
    lines = source.strip().splitlines()
    return clipped(printable(lines[0]), _SOURCE) if lines else ""


def fitted(parts: Sequence[Styled], room: int | None) -> list[Styled]:
    """Return phrases, cut off with an ellipsis where they exceed this many columns of a terminal."""
    if room is None or _width(parts) <= room:
        return list(parts)
    found: list[Styled] = []
    room -= 1
    for words, weight in parts:
        kept = 0
        while kept < len(words) and (wide := width(words[kept])) <= room:
            room -= wide
            kept += 1
        found.append((words[:kept], weight))
        if kept < len(words):
            found.append(("…", weight))
            break
    return found


def width(words: str) -> int:
    """Return how many columns of a terminal a text takes; a wide character takes two."""
    if words.isascii():
        return len(words)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in words
    )


def _width(parts: Sequence[Styled]) -> int:
    return sum(width(words) for words, _ in parts)


def _joined(clauses: Sequence[Sequence[Styled]]) -> list[Styled]:
    """Return clauses as one, with a dot between two of them."""
    parts: list[Styled] = []
    for phrases in clauses:
        parts += [(" · ", "faint")] if parts else []
        for position, (words, weight) in enumerate(phrases):
            parts.append((f"{' ' if position else ''}{printable(words)}", weight))
    return parts
