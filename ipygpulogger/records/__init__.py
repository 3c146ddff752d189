"""What a measurement is: its values, their JSON, the history of a session, comparison and budgets.

In the order in which a reader meets them:

=============  ==============================================================================
value          equality and `repr` of a record
displayed      how a notebook displays a record
usage          `Usage` and `Peak`: memory at both ends and at the peak; consumed and peaked
device_usage   `DeviceUsage`: the same on one accelerator device; the device ids
measurement    `Measurement`: what one scope used
at_peak        `AtPeak`: what was alive when memory was highest
owner          `Owner`: a name that holds memory
line_usage     `LineUsage`: what one source line used
estimate       `Estimate`: what a function would need on a device, and whether it fits
out_of_memory  `OutOfMemory`: a device on which an allocation failed
cell_record    `CellRecord`: what one cell used, with all of the above; `Data`
process        `Process`, `ProcessRecord`: which process of many a record came from
group          `Group`: what many processes used in the same cell
imbalance      how the figures of many processes are spread, and which stand out
changes        what changed between two measurements
diagnosis      `Diagnosis`: how good the figures of one source are on this machine
hints          the types of the fields of records
embed          a record as a notebook output embeds it
decode         records from JSON
history        `History`: the records of a session, ranked, saved, loaded
leaks          cells that grow with every run
line_through   the straight line nearest to some points
varied         which sizes of a cell's data varied between its runs
need           what the runs of a cell needed above what other cells hold
runs           which records are runs of the same cell
line_through   the straight line nearest to some points, and up to where it can be relied on
fit            how the memory of a cell grows with the size of its data
formats        the files that hold records
log            a file that gains a line of JSON with every cell
budget         how much memory a cell may use
row            the figures of a record by which cells are ranked, compared and folded
scan           a row from a line of a log, without decoding the record
saved          the records that a file holds, one after the other
growing        cells that grow with every run, found row by row
ranking        what a summary tells, found row by row
totals         the totals of a run, found row by row
one_process    the records of one process, where only one can be drawn
course         memory over time, in few stretches
spread         how the figures of very many cells are spread
fold           the cells of a page: all, or the worst of very many
last_runs      the last run of each cell, in little memory
compare        two runs of a notebook
units          bytes to megabytes, foreign text to printable text
=============  ==============================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .cell_record import MIME, CellRecord, Data, Status
from .changes import Held, came_back, held_bytes, moved_between
from .device_usage import CPU, DRIVER, DeviceUsage, Metric, Rung, Sizes, device_id
from .diagnosis import Diagnosis
from .leaks import growing_names
from .measurement import Measurement
from .owner import LIBRARIES, Owner
from .usage import ChildrenUsage, ChildUsage, Heap, Peak, Quality, RamUsage, Timeline, Usage, notable

if TYPE_CHECKING:
    from .at_peak import AtPeak
    from .estimate import BatchEstimate, Estimate
    from .line_usage import LineUsage
    from .out_of_memory import OutOfMemory

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
    "DeviceUsage",
    "Diagnosis",
    "Estimate",
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
    "device_id",
    "growing_names",
    "held_bytes",
    "moved_between",
    "notable",
]


def __getattr__(name: str) -> Any:
    """Return a class that few cells need, imported when it is first asked for (PEP 562)."""
    if name == "AtPeak":
        from .at_peak import AtPeak

        return AtPeak
    if name in ("BatchEstimate", "Estimate"):
        from . import estimate

        return getattr(estimate, name)
    if name == "LineUsage":
        from .line_usage import LineUsage

        return LineUsage
    if name == "OutOfMemory":
        from .out_of_memory import OutOfMemory

        return OutOfMemory
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
