"""What a measurement is: its values and their units.

`usage` and `device_usage` make a `measurement`; with what is in `explained` it is a `cell_record`.
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
