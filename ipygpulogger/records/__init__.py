"""What a measurement is: its values and their units.

`usage` and `device_usage` make a `measurement`; with the names that hold memory it is a `cell_record`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .cell_record import LIBRARIES, MIME, CellRecord, Data, Owner, Status
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
from .measurement import Measurement
from .note import Diagnosis, Note, NoteKind
from .usage import Heap, Peak, Quality, RamUsage, Timeline, Usage, notable

if TYPE_CHECKING:
    from .estimate import BatchEstimate, Estimate
    from .explained import AtPeak, ChildrenUsage, ChildUsage, LineUsage, OutOfMemory

__all__ = [
    "CPU", "DRIVER", "LIBRARIES", "MIME", "AtPeak", "BatchEstimate", "CellRecord", "ChildUsage",
    "ChildrenUsage", "Data", "DeviceHolding", "DeviceUsage", "Diagnosis", "Estimate", "Heap", "LineUsage",
    "Measurement", "Metric", "Note", "NoteKind", "OutOfMemory", "Owner", "Peak", "Quality", "RamUsage",
    "Rung", "Sizes", "Status", "Timeline", "Usage", "came_back", "device_id", "held_bytes",
    "moved_between", "notable",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Return a class that few sessions need, imported when it is first asked for (PEP 562)."""
    if name in ("BatchEstimate", "Estimate"):
        from . import estimate

        return getattr(estimate, name)
    if name in __all__:
        from . import explained

        return getattr(explained, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
