"""Conversions for people: bytes to megabytes, foreign text to what a terminal or a page can show."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

MB = 2**20

_SHORT = 40  # characters

_CONTROLS = frozenset(map(chr, (*range(0x09), *range(0x0A, 0x20), *range(0x7F, 0xA0))))  # without the tab
_NOT_IN_HTML = dict.fromkeys((*range(0xD800, 0xE000), *map(ord, _CONTROLS - {"\n", "\r"})), "?")


def in_mb(size_bytes: float) -> float:
    """Return megabytes (``2**20`` bytes) with their fraction, for axes and for figures with decimals."""
    return size_bytes / MB


def truncated_mb(size_bytes: float) -> int:
    """Return whole megabytes (``2**20`` bytes), truncated toward zero, as ``Data`` promises."""
    return int(in_mb(size_bytes))


def rounded_mb(size_bytes: float) -> int:
    """Return whole megabytes (``2**20`` bytes), rounded to the nearest, as reports print them.

    The result is an integer, so a small negative size prints as "0" and never as "-0".
    """
    return round(in_mb(size_bytes))


def mb_text(size_bytes: int | None) -> str:
    """Return whole megabytes, rounded, as text; "n/a" when unknown."""
    return "n/a" if size_bytes is None else str(rounded_mb(size_bytes))


def mb_range(lo_bytes: int, hi_bytes: int) -> str:
    """Return two bounds in whole megabytes, rounded: "512-560", or "512" if they are equal."""
    lo_mb, hi_mb = rounded_mb(lo_bytes), rounded_mb(hi_bytes)
    return str(lo_mb) if lo_mb == hi_mb else f"{lo_mb}-{hi_mb}"


def clipped(text: str, characters: int) -> str:
    """Return the text, or its beginning and an ellipsis if it is longer than this many characters."""
    return text if len(text) <= characters else text[: characters - 1] + "…"


def is_utf8(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8: one with a lone surrogate cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(text: str) -> str:
    """Return foreign text as one line that a terminal displays without interpreting any of it.

    A tab and any other Unicode space becomes a space. Every other character that `str.isprintable` rejects
    becomes a question mark: line ends, control characters (and so every escape sequence), marks that change
    the direction of writing, lone surrogates.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() and c not in _CONTROLS else "?" for c in text)


def shortened(text: str) -> str:
    """Return foreign text, `printable` and short."""
    return clipped(printable(text), _SHORT)


def printable_lines(lines: Iterable[str]) -> str:
    """Join lines, each made `printable`, so that foreign text cannot start a line of its own."""
    return "\n".join(map(printable, lines))


def without_controls(markup: str) -> str:
    """Return HTML with a question mark for each control character and lone surrogate, which HTML forbids."""
    return markup if markup.isprintable() else markup.translate(_NOT_IN_HTML)
