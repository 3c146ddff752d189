"""How much memory dropping hidden references freed, as text and as HTML."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from ..records.units import (
    MB,
    clipped,
    printable,
    printable_lines,
    rounded_mb,
    size_text,
    without_controls,
)
from .markup import RED, Drawn, Part, Text, cell_bar, code, faint, line, small, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..records import Owner
    from .markup import Cell

_NAMED = 8  # dropped owners
_NAME = 60  # characters of a name in HTML


@dataclass(frozen=True, slots=True)
class Freed:
    """Which hidden references were dropped, and how much memory that freed; its text is the report.

    Attributes:
        owners: What held memory without being a variable, the largest first.
        came_back: Bytes by device, "RAM" last: the change of the process's own memory, and, where known, of
            the whole device's.
        complete: Whether there was time to search everything.
    """

    owners: tuple[Owner, ...]
    came_back: Mapping[str, tuple[int, ...]]
    complete: bool = True

    def __str__(self) -> str:
        frames = _held([o for o in self.owners if o.kind == "traceback"], "last traceback: ")
        outputs = _held([o for o in self.owners if o.kind != "traceback"])
        dropped = [f"last traceback ({frames})"] if frames else []
        dropped += [outputs] if outputs else []
        says = (
            f"dropped: {', '.join(dropped)}"
            if dropped
            else "nothing hidden: no array was in Out or in a traceback"
        )
        if not self.complete:
            says += " (there was no time to look everywhere)"
        came_back = ", ".join(_came_back(*item) for item in self.came_back.items())
        return printable_lines([says, f"came back: {came_back}"])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the report as HTML: how much came back, and a bar for each reference that was dropped."""
        head = " · ".join(
            f"<b>{escape(name)} {size_text(sizes[0])}</b>"
            + (f" {faint(f'(the device {size_text(sizes[1])})')}" if len(sizes) > 1 else "")
            for name, sizes in self.came_back.items()
        )
        told = line(f"Came back: {head}")
        large = [owner for owner in self.owners if owner.size_bytes >= MB][:_NAMED]
        scale_bytes = max((owner.size_bytes for owner in large), default=0)
        rows: list[list[Cell]] = [
            [
                Drawn(code(clipped(printable(owner.name), _NAME))),
                cell_bar([Part(owner.device, owner.size_bytes, RED)], scale_bytes),
                f"{rounded_mb(owner.size_bytes):,}",
                Text(escape(owner.device)),
            ]
            for owner in large
        ]
        if rows:
            told += table(["Dropped", "", "Held", ""], rows, caption="What was dropped, MB")
        else:
            told += small("Nothing hidden: no array was in Out or in a traceback.")
        rest = len(self.owners) - len(large)
        if rest and large:
            told += small(f"and {rest} more")
        if not self.complete:
            told += small("There was no time to look everywhere.")
        return without_controls(told)


def _held(owners: Sequence[Owner], prefix: str = "") -> str:
    """Return the largest by name, and how many more there are, unless those are below 1 MB together."""
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
        what = f"and {len(rest)} more" if words else f"{len(rest)} small ones"
        words.append(f"{what} ({rounded_mb(rest_bytes)} MB)")
    return ", ".join(words)


def _came_back(name: str, sizes: tuple[int, ...]) -> str:
    device = f" (the device {rounded_mb(sizes[1])} MB)" if len(sizes) > 1 else ""
    return f"{name} {rounded_mb(sizes[0])} MB{device}"
