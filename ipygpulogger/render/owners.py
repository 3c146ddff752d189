"""Names by the memory they hold, and what releasing gave back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..records import CPU, Owner
from ..records.units import MB, clipped, nonzero_mb, printable, printable_lines, rounded_mb
from .growth import also
from .table import Column, Table

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
        dropped = ", ".join(filter(None, (frames and f"last traceback ({frames})", outputs)))
        says = f"dropped: {dropped}" if dropped else _NOTHING
        if not self.complete:
            says += " (there was no time to look everywhere)"
        came_back = ", ".join(
            f"{name} {rounded_mb(own)} MB" + "".join(f" (the device {rounded_mb(one)} MB)" for one in device)
            for name, (own, *device) in self.came_back.items()
        )
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

    `used` is what it holds by device, None if unknown; the names in `uncounted` hold memory of unknown size.
    """
    caveats = "There was no time to look everywhere: the named hold at least this much."
    lines = [*_table(owners, used).text(marks=False), *([] if complete else [caveats])]
    if names := list(uncounted):
        lines.append(f"Not counted, size unknown: {', '.join(names)}")
    return printable_lines(lines)


def _table(owners: Sequence[Owner], used: Mapping[str, int | None]) -> Table:
    """Return each large holder, the small ones together, the sum, and what has no name."""
    devices = sorted({*used, *(owner.device for owner in owners)}, key=lambda name: (name == CPU, name))
    columns = [Column("holder", "code"), Column("", "words")]
    columns += [Column("RAM" if device == CPU else device) for device in devices]
    table = Table([*columns, Column("", "words")])

    def add(name: str, sizes: Mapping[str, int], mark: str = "", remark: str = "", nothing: str = "") -> None:
        figures = (nonzero_mb(sizes[device]) if device in sizes else nothing for device in devices)
        table.add(clipped(printable(name), _NAME), mark, *figures, remark)

    rows: dict[tuple[str, str], Counter[str]] = {}
    others: dict[tuple[str, str], dict[str, None]] = {}
    for owner in owners:
        key = owner.name, _mark(owner)
        rows.setdefault(key, Counter())[owner.device] = owner.size_bytes
        others.setdefault(key, {}).update(dict.fromkeys(owner.shared))
    large = {key: sizes for key, sizes in rows.items() if max(sizes.values()) >= MB}
    small_ones = [sizes for key, sizes in rows.items() if key not in large]
    total = sum(rows.values(), Counter[str]())
    for (name, mark), sizes in sorted(large.items(), key=lambda row: -sum(row[1].values())):
        add(name, sizes, mark, also(list(others[name, mark])))
    if small_ones:
        name = "1 smaller one" if len(small_ones) == 1 else f"{len(small_ones)} smaller ones"
        add(name, sum(small_ones, Counter[str]()))
    add("named in all", total, nothing="0 MB")
    rest = {device: size - total.get(device, 0) for device, size in used.items() if size is not None}
    if known := {device: size for device, size in rest.items() if size >= 0}:
        add("not named", known, remark=_UNNAMED if CPU in known else "")
    return table


def _mark(owner: Owner) -> str:
    """Return "hidden" if no variable of the user refers to it; else nothing."""
    is_below = owner.kind == "variable" and any(below in owner.name for below in _BELOW)
    return "hidden" if is_below or owner.kind in ("output", "traceback") else ""
