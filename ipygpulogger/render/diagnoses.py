"""What each source of figures reports about itself, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..records.units import printable_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..records import Diagnosis


def diagnoses(found: Sequence[Diagnosis]) -> str:
    """Return what each source reports about itself, one line each, with the remedy below if there is one."""
    lines = []
    for diagnosis in found:
        lines.append(f"{diagnosis.source:12} {diagnosis.state:8} {diagnosis.says}")
        if diagnosis.remedy:
            lines.append(f"{'':21} -> {diagnosis.remedy}")
    return printable_lines(lines)
