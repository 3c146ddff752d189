"""Names by the memory they hold, and what releasing gave back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ..records import CPU
from ..records.units import MB, clipped, nonzero_mb, printable, printable_lines, rounded_mb
from .growth import also
from .table import Column, Table

if TYPE_CHECKING:
    from ..records import Owner

_NOTHING = "nothing hidden: no array was in Out or in a traceback"
_NAMED = 8  # dropped owners
_NAME = 60  # characters of a name


@dataclass(frozen=True, slots=True)
class Freed:
    """Which hidden references were dropped, and how much memory that freed; its text is the report."""

    owners: tuple[Owner, ...]  # what held memory without being a variable, the largest first
    came_back: Mapping[str, tuple[int, ...]]  # bytes by device: the process's, then where known the device's
    complete: bool = True  # there was time to search everything

    def __str__(self) -> str:
        frames = _held([o for o in self.owners if o.kind == "traceback"], "last traceback: ")
        outputs = _held([o for o in self.owners if o.kind != "traceback"])
        dropped = [f"last traceback ({frames})"] if frames else []
        dropped += [outputs] if outputs else []
        says = f"dropped: {', '.join(dropped)}" if dropped else _NOTHING
        if not self.complete:
            says += " (there was no time to look everywhere)"
        came_back = ", ".join(_came_back(*item) for item in self.came_back.items())
        return printable_lines([says, f"came back: {came_back}"])

    __repr__ = __str__


def _held(owners: Sequence[Owner], prefix: str = "") -> str:
    """Return the largest by name, and how many more there are if those hold 1 MB together."""
    named = [owner for owner in owners if owner.size_bytes >= MB][:_NAMED]
    devices = {owner.device for owner in named}
    words = [
        f"{owner.name.removeprefix(prefix)} {rounded_mb(owner.size_bytes)} MB"
        + (f" on {owner.device}" if len(devices) > 1 else "")
        for owner in named
    ]
    rest = owners[len(named) :]
    rest_bytes = sum(owner.size_bytes for owner in rest)
    if rest_bytes >= MB:
        words.append(f"{len(rest)} others ({rounded_mb(rest_bytes)} MB)")
    return ", ".join(words)


def _came_back(name: str, sizes: tuple[int, ...]) -> str:
    device = f" (the device {rounded_mb(sizes[1])} MB)" if len(sizes) > 1 else ""
    return f"{name} {rounded_mb(sizes[0])} MB{device}"


_UNNAMED = "Python itself, libraries, small objects"
_BELOW = ": ", " (autograd graph)"  # in the name of memory that a variable holds indirectly


def holders(
    owners: Sequence[Owner],
    used: Mapping[str, int | None],
    *,
    complete: bool = True,
    uncounted: Iterable[str] = (),
) -> str:
    """Return the table of the names that hold memory, the largest first; those below 1 MB are summed up.

    `used` is what the process holds by device, None when unknown; the names in `uncounted` hold memory of
    unknown size.
    """
    return printable_lines([*_table(owners, used).text(marks=False), *_caveats(complete, uncounted)])


def _table(owners: Sequence[Owner], used: Mapping[str, int | None]) -> Table:
    """Return the names that hold memory."""
    devices = sorted({*used, *(owner.device for owner in owners)}, key=lambda name: (name == CPU, name))
    columns = [Column("holder", "code"), Column("", "words")]
    columns += [Column("RAM" if device == CPU else device) for device in devices]
    table = Table([*columns, Column("", "words")])
    for row in _rows(owners, used):
        nothing = "0 MB" if row.is_total else ""
        figures = (nonzero_mb(row.sizes[device]) if device in row.sizes else nothing for device in devices)
        table.add(clipped(printable(row.name), _NAME), row.mark, *figures, row.remark)
    return table


class _Row(NamedTuple):
    """A row of the table."""

    name: str
    mark: str  # "hidden" if no variable of the user refers to it; else nothing
    sizes: Mapping[str, int]  # bytes by device
    remark: str
    is_total: bool = False  # the sum of all


def _rows(owners: Sequence[Owner], used: Mapping[str, int | None]) -> list[_Row]:
    """Return the rows: each large holder, the small ones together, the sum, and what has no name."""
    rows: dict[tuple[str, str], Counter[str]] = {}
    others: dict[tuple[str, str], dict[str, None]] = {}
    for owner in owners:
        key = owner.name, _mark(owner)
        rows.setdefault(key, Counter())[owner.device] = owner.size_bytes
        others.setdefault(key, {}).update(dict.fromkeys(owner.shared))
    large = {key: sizes for key, sizes in rows.items() if max(sizes.values()) >= MB}
    small_ones = [sizes for key, sizes in rows.items() if key not in large]
    total = sum(rows.values(), Counter[str]())
    found = [
        _Row(name, mark, sizes, also(list(others[name, mark])))
        for (name, mark), sizes in sorted(large.items(), key=lambda row: -sum(row[1].values()))
    ]
    if small_ones:
        name = "1 smaller one" if len(small_ones) == 1 else f"{len(small_ones)} smaller ones"
        found.append(_Row(name, "", sum(small_ones, Counter[str]()), ""))
    found.append(_Row("named in all", "", total, "", is_total=True))
    rest = {device: size - total.get(device, 0) for device, size in used.items() if size is not None}
    if any(size >= 0 for size in rest.values()):
        known = {device: size for device, size in rest.items() if size >= 0}
        found.append(_Row("not named", "", known, "" if CPU not in known else _UNNAMED))
    return found


def _caveats(complete: bool, uncounted: Iterable[str]) -> Iterator[str]:
    """Yield what the table leaves out."""
    if not complete:
        yield "There was no time to look everywhere: the named hold at least this much."
    if names := list(uncounted):
        yield f"Not counted, size unknown: {', '.join(names)}"


def _mark(owner: Owner) -> str:
    is_below = owner.kind == "variable" and any(below in owner.name for below in _BELOW)
    return "hidden" if is_below or owner.kind in ("output", "traceback") else ""
