"""Which names hold memory, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..records import CPU
from ..records.units import MB, printable_lines, rounded_mb

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..records import Owner

_UNNAMED = "Python itself, libraries, small objects"
_SHARED = 3  # other names of one owner
_HIDDEN = {"output": "hidden", "traceback": "hidden"}
_BELOW = ": ", " (autograd graph)"  # in the name of memory that a variable holds indirectly


def holders(
    owners: Sequence[Owner],
    used: Mapping[str, int | None],
    *,
    complete: bool = True,
    uncounted: Iterable[str] = (),
) -> str:
    """Return the table of the names that hold memory, the largest first; those below 1 MB are summed up.

    Args:
        owners: By name and device, the largest first.
        used: What the process holds, by device; None when unknown.
        complete: Whether there was time to search everything.
        uncounted: The names that hold memory of unknown size.
    """
    devices = sorted({*used, *(owner.device for owner in owners)}, key=lambda device: (device == CPU, device))
    rows: dict[tuple[str, str], dict[str, int]] = {}
    also: dict[tuple[str, str], dict[str, None]] = {}
    for owner in owners:
        key = owner.name, _mark(owner)
        rows.setdefault(key, {})[owner.device] = owner.size_bytes
        also.setdefault(key, {}).update(dict.fromkeys(owner.shared))
    large = {key: sizes for key, sizes in rows.items() if max(sizes.values()) >= MB}
    small = [sizes for key, sizes in rows.items() if key not in large]
    total = _summed(rows.values())
    table = [["holder", "", *map(_device, devices), ""]]
    for (name, mark), sizes in sorted(large.items(), key=lambda row: -sum(row[1].values())):
        table.append([name, mark, *_cells(sizes, devices), _also(list(also[name, mark]))])
    if small:
        name = "1 smaller one" if len(small) == 1 else f"{len(small)} smaller ones"
        table.append([name, "", *_cells(_summed(small), devices), ""])
    table.append(["named in all", "", *_cells(total, devices, nothing="0 MB"), ""])
    rest = {device: size - total.get(device, 0) for device, size in used.items() if size is not None}
    if any(size >= 0 for size in rest.values()):
        known = {device: size for device, size in rest.items() if size >= 0}
        table.append(["not named", "", *_cells(known, devices), "" if CPU not in known else _UNNAMED])
    lines = _aligned(table)
    if not complete:
        lines.append("There was no time to look everywhere: the named hold at least this much.")
    if names := list(uncounted):
        lines.append(f"Not counted, size unknown: {', '.join(names)}")
    return printable_lines(lines)


def _mark(owner: Owner) -> str:
    if owner.kind == "variable" and any(below in owner.name for below in _BELOW):
        return "hidden"
    return _HIDDEN.get(owner.kind, "")


def _device(device: str) -> str:
    return "RAM" if device == CPU else device


def _summed(rows: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for sizes in rows:
        for device, size_bytes in sizes.items():
            total[device] = total.get(device, 0) + size_bytes
    return total


def _cells(sizes: Mapping[str, int], devices: list[str], nothing: str = "") -> list[str]:
    return [_mb(sizes[device]) if device in sizes else nothing for device in devices]


def _mb(size_bytes: int) -> str:
    return "<1 MB" if size_bytes > 0 and not rounded_mb(size_bytes) else f"{rounded_mb(size_bytes)} MB"


def _also(names: list[str]) -> str:
    if not names:
        return ""
    rest = len(names) - _SHARED
    return f"also {', '.join(names[:_SHARED])}" + (f" and {rest} more" if rest > 0 else "")


def _aligned(table: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for name, mark, *sizes, also in table:
        cells = [name.ljust(widths[0]), mark.ljust(widths[1])]
        cells += [size.rjust(width) for size, width in zip(sizes, widths[2:], strict=False)]
        lines.append(
            "  ".join([*(c for c, width in zip(cells, widths, strict=False) if width), also]).rstrip()
        )
    return lines
