"""Conversions for people: bytes to megabytes, foreign text to what a terminal or a page can show."""

from __future__ import annotations

import re
from collections.abc import Iterable

MB = 2**20
MINUS = "\u2212"

_UNITS = {unit: MB << 10 * power for power, unit in enumerate(("MB", "GB", "TB", "PB", "EB"))}
_LARGE = re.compile(r"\b(\d{4,15}) MB\b")
_SHORT = 40  # characters
_CONTROLS = frozenset(map(chr, (*range(0x09), *range(0x0A, 0x20), *range(0x7F, 0xA0))))  # without the tab
# What changes the direction of writing: text would be read as something else than it is (CVE-2021-42574).
_DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_NOT_IN_HTML = dict.fromkeys((*range(0xD800, 0xE000), *_DIRECTIONS, *map(ord, _CONTROLS - {"\n", "\r"})), "?")


def in_mb(size_bytes: float) -> float:
    """Return megabytes (``2**20`` bytes) with their fraction, for axes and for figures with decimals."""
    return size_bytes / MB


def truncated_mb(size_bytes: float) -> int:
    """Return whole megabytes (``2**20`` bytes), truncated toward zero, as ``Data`` promises."""
    return int(in_mb(size_bytes))


def rounded_mb(size_bytes: float) -> int:
    """Return whole megabytes (``2**20`` bytes), rounded to the nearest, as reports print them; never "-0"."""
    return round(size_bytes / MB)


def mb_text(size_bytes: int | None) -> str:
    """Return whole megabytes, rounded, as text; "n/a" when unknown."""
    return "n/a" if size_bytes is None else str(rounded_mb(size_bytes))


def nonzero_mb(size_bytes: int) -> str:
    """Return whole megabytes, rounded, with the unit: "123 MB"; "<1 MB" for what would read as nothing."""
    return "<1 MB" if size_bytes > 0 and not rounded_mb(size_bytes) else f"{rounded_mb(size_bytes)} MB"


def nonzero_figure(size_bytes: int) -> str:
    """Return the same for a column of figures, without the unit: "1,234", "<1"."""
    return "<1" if size_bytes > 0 and not rounded_mb(size_bytes) else f"{rounded_mb(size_bytes):,}"


def grouped(figure: str) -> str:
    """Return a figure with its thousands apart."""
    sign, digits = ("≥", figure[1:]) if figure.startswith("≥") else ("", figure)
    return f"{sign}{int(digits):,}" if digits.lstrip("-").isdecimal() else figure


def mb_range(lo_bytes: int, hi_bytes: int) -> str:
    """Return two bounds in whole megabytes, rounded: "512-560", or "512" if they are equal."""
    lo_mb, hi_mb = rounded_mb(lo_bytes), rounded_mb(hi_bytes)
    return str(lo_mb) if lo_mb == hi_mb else f"{lo_mb}-{hi_mb}"


def size_text(size_bytes: float) -> str:
    """Return a size as people read it: "123 MB", "2.4 GB", "1.0 EB"; whole megabytes below 1000 MB."""
    size_mb = rounded_mb(size_bytes)
    if abs(size_mb) < 1000:
        return f"{size_mb} MB".replace("-", MINUS)
    unit = next((one for one in ("GB", "TB", "PB") if abs(size_bytes) < 999.95 * _UNITS[one]), "EB")
    return f"{size_bytes / _UNITS[unit]:.1f} {unit}".replace("-", MINUS)


def nonzero_text(size_bytes: int) -> str:
    """Return the same, and "<1 MB" for what would read as nothing."""
    return nonzero_mb(size_bytes) if not rounded_mb(size_bytes) else size_text(size_bytes)


def readable_sizes(sentence: str) -> str:
    """Return a sentence with its sizes of 1000 MB and more in larger units, as people read them."""
    return _LARGE.sub(lambda found: size_text(int(found[1]) * MB), sentence)


def signed_size_text(size_bytes: float) -> str:
    """Return a change of size as people read it: "+2.4 GB", "\u221297 MB"."""
    return f"{'+' if size_bytes > 0 else ''}{size_text(size_bytes)}"


def share_text(size_bytes: int, total_bytes: int) -> str:
    """Return a part of a whole as people read it, in the unit of the whole: "6.4 of 16 GB"."""
    figure, _, unit = size_text(total_bytes).partition(" ")
    whole = figure.removesuffix(".0")
    if unit == "MB":
        return f"{rounded_mb(size_bytes)} of {whole} MB"
    part = f"{size_bytes / _UNITS[unit]:.1f}"
    return f"{part if float(part) else size_text(size_bytes)} of {whole} {unit}"


def time_text(time_s: float, *, whole: bool = False) -> str:
    """Return a time as people read it: "0.30 s", "12.4 s", "2 min 5 s", "3 h 20 min"; "4 s" if `whole`."""
    if whole and time_s < 99.95:
        return f"{time_s:.0f} s"
    if round(time_s, 2) < 10:
        return f"{time_s:.2f} s"
    if round(time_s, 1) < 100:
        return f"{time_s:.1f} s"
    minutes, seconds = divmod(round(time_s), 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    return f"{minutes // 60} h {minutes % 60} min"


def range_text(smallest: str, largest: str) -> str:
    """Return two sizes, or times, as one text: "100 to 300 MB"; or one of them if they read the same."""
    if smallest == largest:
        return largest
    figure, _, unit = smallest.partition(" ")
    return f"{figure if largest.endswith(f' {unit}') else smallest} to {largest}"


def cells_text(cells: int, of_processes: int) -> str:
    """Return how many records there are: "3 cells", "3 cells and 12 records of other processes"."""
    cells_text = "1 cell" if cells == 1 else f"{cells:,} cells"
    if not of_processes:
        return cells_text
    records = "1 record" if of_processes == 1 else f"{of_processes:,} records"
    return f"{cells_text} and {records} of other processes" if cells else f"{records} of processes"


def clipped(text: str, characters: int) -> str:
    """Return the text, or its beginning and an ellipsis if it is longer than this many characters."""
    return text if len(text) <= characters else text[: characters - 1] + "…"


def printable(text: str) -> str:
    """Return foreign text as one line that a terminal displays without interpreting any of it.

    A Unicode space becomes a space, any other character that `str.isprintable` rejects a question mark.
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
    """Return HTML with a question mark for what it forbids, and for what changes the direction of text."""
    harmless = markup.replace("\N{NO-BREAK SPACE}", " ").isprintable()  # translating takes much longer
    return markup if harmless else markup.translate(_NOT_IN_HTML)


_SIZE = r"(\d{1,18}(?:\.\d{1,18})?|\.\d{1,18})\s*([kmgt](?:i?b)?|b)?"
_POWERS = {"b": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(text: str) -> int:
    """Return the bytes that a text means: "10GB", "8 GB", "512MB", "1.5GiB", "4g", "4096B".

    A GB and a GiB are ``2**30`` bytes, as in NVIDIA's driver. A fraction of a byte is dropped.

    Raises:
        ValueError: The text is not a size, has no unit, or is less than a byte.
    """
    from fractions import Fraction  # nothing that every process needs

    text = str(text).strip()
    match = re.fullmatch(_SIZE, text, re.ASCII | re.IGNORECASE)
    size_bytes = int(Fraction(match[1]) * 1024 ** _POWERS[match[2][0].lower()]) if match and match[2] else 0
    if not size_bytes:
        fault = "has no unit" if match and not match[2] else "is not a memory size"
        raise ValueError(f"{text!r} {fault}: write a size such as 10GB, 512MB or 4096B")
    return size_bytes
