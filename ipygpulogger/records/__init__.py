"""What a measurement is: its values and their units.

In the order in which a reader meets them:

=============  ============================================================================
value          equality and `repr` of a record, and how a notebook displays it
usage          memory at both ends of a measurement and at its peak
device_usage   `DeviceUsage`: the same on one accelerator device; what changed between two measurements
measurement    `Measurement`: what one scope used
explained      what explains a figure: names that hold memory, lines, what was alive at the peak
estimate       `Estimate`: what a function would need on a device, and whether it fits
cell_record    `CellRecord`: what one cell used, with all of the above; `Data`
note           `Note`, `NoteKind`: what there is to say besides figures
process        `Process`, `ProcessRecord`: which process of many a record came from
units          bytes to megabytes, foreign text to printable text
=============  ============================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .cell_record import MIME, CellRecord, Data, Status
from .device_usage import (
    CPU,
    DRIVER,
    DeviceHolding,
    DeviceUsage,
    Metric,
    Rung,
    Sizes,
    came_back,
    device_id,
    held_bytes,
    moved_between,
)
from .explained import LIBRARIES, AtPeak, Diagnosis, LineUsage, OutOfMemory, Owner
from .measurement import Measurement
from .note import Note, NoteKind
from .usage import ChildrenUsage, ChildUsage, Heap, Peak, Quality, RamUsage, Timeline, Usage, notable

if TYPE_CHECKING:
    from .estimate import BatchEstimate, Estimate

__all__ = [
    "CPU",
    "DRIVER",
    "LIBRARIES",
    "MIME",
    "AtPeak",
    "BatchEstimate",
    "CellRecord",
    "ChildUsage",
    "ChildrenUsage",
    "Data",
    "DeviceHolding",
    "DeviceUsage",
    "Diagnosis",
    "Estimate",
    "Heap",
    "LineUsage",
    "Measurement",
    "Metric",
    "Note",
    "NoteKind",
    "OutOfMemory",
    "Owner",
    "Peak",
    "Quality",
    "RamUsage",
    "Rung",
    "Sizes",
    "Status",
    "Timeline",
    "Usage",
    "came_back",
    "device_id",
    "held_bytes",
    "moved_between",
    "notable",
]


def __getattr__(name: str) -> Any:
    """Return a class that few sessions need, imported when it is first asked for (PEP 562)."""
    if name in ("BatchEstimate", "Estimate"):
        from . import estimate

        return getattr(estimate, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
