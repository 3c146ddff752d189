"""Which sizes of a cell's data, or numbers of its first line, varied between its runs."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .cell_record import CellRecord

_WHOLE = re.compile(r"(?<![\w.])(\d[\d_]{0,17})(?:\s*(<<|\*\*)\s*(\d{1,2}))?(?![\w.])")
_KEYWORD = re.compile(r"(\w+)\s*=\s*$")
_CALLEE = re.compile(r"[\w.]+$")
_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_LARGEST = 1 << 60  # larger numbers are not memory sizes
_SETTING = re.compile(r"(?!.*batch)(?:size|length|seq_?len|\w+_(?:size|len|length))", re.IGNORECASE)


def with_numbers(record: CellRecord) -> CellRecord:
    """Return a record whose dimensions also have the whole numbers of the cell's first line, by place.

    If no fingerprint of its code is known, that line without its numbers, however they are written, stands
    for it.
    """
    found = dict(record.dimensions)
    for number in _WHOLE.finditer(record.source):
        size = _value(number)
        if 0 < size < _LARGEST:
            found.setdefault(_place(_WHOLE.sub("...", record.source[: number.start()])), size)
    code = record.code or _WHOLE.sub("...", record.source)
    return replace(record, dimensions=tuple(found.items()), code=code)


def _value(number: re.Match[str]) -> int:
    """Return the number: also that of ``1 << 17`` and ``2**17``."""
    first, sign, second = number.groups()
    if sign is None:
        return int(first)
    size: int = int(first) << int(second) if sign == "<<" else int(first) ** int(second)
    return size


def _place(before: str) -> str:
    """Return the name of the number that follows: its variable or keyword, or "step(x, ...)", "x[:...]"."""
    keyword = _KEYWORD.search(before)
    if keyword:
        return keyword[1]
    closers = ""
    inner: list[str] = []  # the brackets that are closed again
    for at in range(len(before) - 1, -1, -1):
        if before[at] in ")]}":
            inner.append(before[at])
        elif before[at] in _CLOSERS:
            if inner:
                inner.pop()
                continue
            closers += _CLOSERS[before[at]]
            callee = _CALLEE.search(before[:at])
            if callee:
                return f"{before[callee.start() :]}...{closers}"
    return f"{before}...{closers}"


def varied(runs: Sequence[CellRecord]) -> str:
    """Return the name whose size varied in the most runs, the first of several; empty if none did."""
    sizes = _sizes(runs)
    several = [name for name, found in sizes.items() if len(set(found.values())) > 1]
    return max(several, key=lambda name: len(sizes[name]), default="")


def _sizes(runs: Sequence[CellRecord]) -> dict[str, dict[int, int]]:
    """Return by name, in the order of the last run, its size in each run, by the run's place."""
    found: dict[str, dict[int, int]] = {}
    for run in reversed(runs):
        for name, _ in run.dimensions:
            found.setdefault(name, {})
    for at, run in enumerate(runs):
        for name, size in run.dimensions:
            if size > 0:
                found[name][at] = size
    return found


def apart_and_in_step(runs: Sequence[CellRecord], name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the other names that varied, and of those apart the ones that rose whenever the size did.

    Arrays with a multiple of the size, or with a smaller last batch of it, follow from it and are left out. A
    setting such as `seq_len` does not follow from it, even if it is a multiple.
    """
    sizes = _sizes(runs)
    mine = sizes.pop(name)
    apart: list[str] = []
    in_step: list[str] = []
    for other, its in sizes.items():
        pairs = [(size, mine[at]) for at, size in its.items()]
        is_multiple = len({size / whole for size, whole in pairs}) == 1
        is_part = all(size <= whole for size, whole in pairs) and any(size == whole for size, whole in pairs)
        if len(set(its.values())) > 1 and (_SETTING.fullmatch(other) or not (is_multiple or is_part)):
            (in_step if _rise_together(pairs) else apart).append(other)
    return tuple(apart), tuple(in_step)


def _rise_together(pairs: Sequence[tuple[int, int]]) -> bool:
    """Return whether each of the two sizes is larger wherever the other is."""
    different = sorted(set(pairs))
    return all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(different))
