"""What a measurement is: values, their JSON form, the history of a session, comparison and budgets.

========  =====================================================================
units     bytes, megabytes, seconds and foreign words to text
values    `Data`, `CellRecord`, `Measurement`, `Usage`, `Peak`, `DeviceUsage`, ...
decode    records as JSON, as a notebook keeps them, and back again
budget    how much memory a cell may use
history   the records kept, ranked, saved, loaded
log       a line of JSON for each cell, written as the cells end
compare   two runs of a notebook
========  =====================================================================
"""

from __future__ import annotations

from .values import (
    CPU,
    DRIVER,
    LIBRARIES,
    MIME,
    CellRecord,
    ChildrenUsage,
    Data,
    DeviceUsage,
    Diagnosis,
    Heap,
    Held,
    LineUsage,
    Measurement,
    Metric,
    OutOfMemory,
    Owner,
    Peak,
    Quality,
    RamUsage,
    Rung,
    Sizes,
    Status,
    Timeline,
    Usage,
    came_back,
    growing_names,
    held_bytes,
    moved_between,
    notable,
)

__all__ = [
    "CPU",
    "DRIVER",
    "LIBRARIES",
    "MIME",
    "CellRecord",
    "ChildrenUsage",
    "Data",
    "DeviceUsage",
    "Diagnosis",
    "Heap",
    "Held",
    "LineUsage",
    "Measurement",
    "Metric",
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
    "growing_names",
    "held_bytes",
    "moved_between",
    "notable",
]
