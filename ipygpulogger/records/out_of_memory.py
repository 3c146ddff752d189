"""What is known about a device on which an allocation failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .displayed import Displayed
from .owner import Owner  # noqa: TC001 - decoding evaluates the type hints
from .units import MB, printable, rounded_mb
from .value import Value, later

if TYPE_CHECKING:
    from .at_peak import AtPeak

_GIB = 1024 * MB


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class OutOfMemory(Displayed, Value):
    """A device at the moment when an allocation on it failed; each figure is None when unknown.

    Attributes:
        device: "cuda:0".
        asked_bytes: The size of the allocation that failed. Where only torch's message tells it, it is off by
            up to 5 MB above 1 GiB; `requested` writes it no more exactly than it is known.
        free_bytes: Free on the device.
        live_bytes: In live tensors of this process.
        cached_bytes: Reserved by the framework's allocator and unused.
        fragmented_bytes: The part of the cached bytes in gaps between live tensors. It cannot be returned
            to the device, and no larger tensor fits into it.
        neighbours_bytes: In use by other processes.
        traceback_bytes: On this device, what only the failed cell's traceback still refers to.
        outputs_bytes: On this device, what only ``Out`` still refers to.
        owners: The names that hold the most on this device, the largest first.
        advice: The one next step that is most likely to help.
        alive: What was alive when the allocation failed, the largest first; empty unless the cell's
            allocations were recorded, with ``%%gpulog --peak`` or the option ``peak``.
    """

    device: str
    asked_bytes: int | None
    free_bytes: int | None
    live_bytes: int | None
    cached_bytes: int | None
    fragmented_bytes: int | None
    neighbours_bytes: int | None
    traceback_bytes: int
    outputs_bytes: int
    owners: tuple[Owner, ...]
    advice: str
    alive: tuple[AtPeak, ...] = later(())

    def __repr__(self) -> str:
        asked = [] if self.asked_bytes is None else [f"asked {requested(self.asked_bytes)}"]
        free = [] if self.free_bytes is None else [f"free {rounded_mb(self.free_bytes)} MB"]
        return f"<OutOfMemory on {', '.join([self.device, *asked, *free])}: {printable(self.advice)}>"


def requested(asked_bytes: int) -> str:
    """Return the size of an allocation that failed as text, no more exactly than it is known.

    torch's message gives a size above 1 GiB with two decimals. So a size that is a whole number of
    hundredths of a GiB is written as the message has it: "7.81 GiB", and any other in MB: "8000 MB".
    """
    hundredths = round(asked_bytes * 100 / _GIB)
    if asked_bytes > _GIB and asked_bytes == round(hundredths / 100 * _GIB):
        return f"{hundredths / 100:.2f} GiB"
    return f"{rounded_mb(asked_bytes)} MB"
