"""What each source of figures reports about itself, as text and as HTML."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from ..records.units import printable, printable_lines, without_controls
from .growth import bars, ladders
from .markup import Drawn, Text, folded, line, small, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..records import DeviceUsage, Diagnosis
    from .markup import Cell

_GOOD = "exact", "absent"  # not worth standing out


def diagnoses(found: Sequence[Diagnosis]) -> str:
    """Return what each source reports about itself, one line each, with the remedy below if there is one."""
    lines = []
    for diagnosis in found:
        lines.append(f"{diagnosis.source:12} {diagnosis.state:8} {diagnosis.says}")
        if diagnosis.remedy:
            lines.append(f"{'':21} -> {diagnosis.remedy}")
    return printable_lines(lines)


def html(found: Sequence[Diagnosis]) -> str:
    """Return the same as an HTML table, each remedy below what it is for."""
    rows: list[list[Cell]] = []
    for diagnosis in found:
        says = escape(diagnosis.says)
        if diagnosis.remedy:
            says += f"<div><b>Do this:</b> {escape(diagnosis.remedy)}</div>"
        weak = diagnosis.state not in _GOOD
        state = f"<b>{escape(diagnosis.state)}</b>" if weak else escape(diagnosis.state)
        rows.append([diagnosis.source, Text(state), Drawn(says)])
    return without_controls(
        table(
            ["Source", Text("Peaks"), Text("What it reads, or why it cannot")],
            rows,
            caption="What can be measured here",
        )
    )


def status(state: str, options: str, found: Sequence[Diagnosis], gpus: Sequence[DeviceUsage]) -> str:
    """Return what a logger does, what each source reports, and how each device's memory is divided.

    Args:
        state: Whether the logger runs, and how many cells it recorded.
        options: Those of the logger.
        found: What each source reports.
        gpus: The devices as they are now.
    """
    said = [printable(f"{one.source}: {one.state}: {one.says}") for one in found]
    return "\n".join([f"{state}; {options}", *said, *([ladders(gpus)] if gpus else [])])


def status_html(state: str, options: str, found: Sequence[Diagnosis], gpus: Sequence[DeviceUsage]) -> str:
    """Return the same as HTML: the devices first, the options folded."""
    page = line(f"<b>{escape(state)}</b>") + bars(gpus) + html(found)
    return without_controls(page + folded("Options", small(options)))
