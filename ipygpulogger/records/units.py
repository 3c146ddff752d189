"""Bytes, megabytes, seconds and foreign words as people read them; standard library only."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

MB = 2**20

_CONTROLS = frozenset(map(chr, (*range(0x09), *range(0x0A, 0x20), *range(0x7F, 0xA0))))  # but for the tab
_NOT_IN_HTML = dict.fromkeys((*range(0xD800, 0xE000), *map(ord, _CONTROLS - {"\n", "\r"})), "?")


def truncated_mb(size_bytes: int) -> int:
    """Whole megabytes (``2**20``), truncated toward zero, as ``Data`` promises."""
    return int(size_bytes / MB)


def rounded_mb(size_bytes: int) -> int:
    """Whole megabytes (``2**20``), the nearest, as the report prints them; never a minus zero."""
    return round(size_bytes / MB)


def printable(words: str) -> str:
    """Foreign words on one line that a terminal shows and never obeys.

    Tabs and spaces beyond ASCII become a space. What else Unicode does not call printable becomes a question
    mark: line ends, control characters, and with them all escape sequences, marks that turn the direction of
    writing, halves of surrogate pairs.
    """
    if words.isprintable():
        return words
    return "".join(
        c if c.isprintable() else " " if c.isspace() and c not in _CONTROLS else "?" for c in words
    )


def printable_lines(lines: Iterable[str]) -> str:
    """Lines as one text, each made `printable`, so that no foreign word begins a line of its own."""
    return "\n".join(map(printable, lines))


def without_controls(markup: str) -> str:
    """HTML with a question mark for each control character and half surrogate pair, which it cannot hold."""
    return markup if markup.isprintable() else markup.translate(_NOT_IN_HTML)
