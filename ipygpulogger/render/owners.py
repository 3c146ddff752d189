"""Names by the memory they hold, and what releasing gave back."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from ..records import CPU
from ..records.units import (
    MB,
    clipped,
    nonzero_figure,
    nonzero_mb,
    printable,
    printable_lines,
    rounded_mb,
    without_controls,
)
from .growth import also
from .markup import BLUE, GREY, RED, Part, colours, footnote, scrolling
from .table import Bar, Column, Faint, Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ..records import Owner

_NOTHING = "nothing hidden: no array was in Out or in a traceback"
_NAMED = 8  # dropped owners
_NAME = 60  # characters of a name in HTML


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
    table = _table(owners, used, html=False)
    return printable_lines([*table.text(marks=False), *_caveats(complete, uncounted)])


def html(
    owners: Sequence[Owner],
    used: Mapping[str, int | None],
    *,
    complete: bool = True,
    uncounted: Iterable[str] = (),
) -> str:
    """Return the same as HTML: a table with a bar for each holder; red is memory that no variable holds."""
    table = scrolling(_table(owners, used, html=True).html("Who holds memory, MB"))
    below = "".join(map(footnote, _caveats(complete, uncounted)))
    return without_controls(table + colours(_fills(owners)) + below)


def _fills(owners: Sequence[Owner]) -> dict[str, str]:
    """Return what the colours of the bars mean, as far as these holders have them."""
    large = [owner for owner in owners if owner.size_bytes >= MB]
    devices = {owner.device == CPU for owner in large if not _mark(owner)}
    known = ("on a device", BLUE, False in devices), ("in RAM", GREY, True in devices)
    hidden = "hidden: no variable holds it", RED, any(map(_mark, large))
    return {words: fill for words, fill, is_there in (*known, hidden) if is_there}


def _table(owners: Sequence[Owner], used: Mapping[str, int | None], *, html: bool) -> Table:
    """Return the names that hold memory, with a bar for each; one that is hidden is red."""
    devices = sorted({*used, *(owner.device for owner in owners)}, key=lambda name: (name == CPU, name))
    found = _rows(owners, used)
    scale_bytes = max((sum(row.sizes.values()) for row in found if row.kind == "holder"), default=0)
    columns = [Column("holder", "code", html_head="Holder"), Column("", "words")]
    columns += [Column("RAM" if device == CPU else device) for device in devices]
    table = Table([*columns, Column("", "drawn"), Column("", "words")])
    shown, unit = (nonzero_figure, "") if html else (nonzero_mb, " MB")
    for row in found:
        held, nothing = row.kind == "holder", f"0{unit}" if row.kind == "total" else ""
        figures = (shown(row.sizes[device]) if device in row.sizes else nothing for device in devices)
        parts = [
            Part(device, row.sizes[device], RED if row.mark else GREY if device == CPU else BLUE)
            for device in devices
            if device in row.sizes
        ]
        name = clipped(printable(row.name), _NAME)
        bar = Bar(parts, scale_bytes if held else 0)
        table.add(name if held else Faint(name), row.mark, *figures, bar, row.remark)
    return table


class _Row(NamedTuple):
    """A row of the table."""

    name: str
    mark: str  # "hidden" if no variable of the user refers to it; else nothing
    sizes: Mapping[str, int]  # bytes by device
    remark: str
    kind: Literal["holder", "total", "rest"]  # the sum of all; what no name holds


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
        _Row(name, mark, sizes, also(list(others[name, mark])), "holder")
        for (name, mark), sizes in sorted(large.items(), key=lambda row: -sum(row[1].values()))
    ]
    if small_ones:
        name = "1 smaller one" if len(small_ones) == 1 else f"{len(small_ones)} smaller ones"
        found.append(_Row(name, "", sum(small_ones, Counter[str]()), "", "rest"))
    found.append(_Row("named in all", "", total, "", "total"))
    rest = {device: size - total.get(device, 0) for device, size in used.items() if size is not None}
    if any(size >= 0 for size in rest.values()):
        known = {device: size for device, size in rest.items() if size >= 0}
        found.append(_Row("not named", "", known, "" if CPU not in known else _UNNAMED, "rest"))
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
