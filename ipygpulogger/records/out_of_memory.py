"""What is known about a device on which an allocation failed."""

from __future__ import annotations

from dataclasses import dataclass

from .owner import Owner  # noqa: TC001 - decoding evaluates the type hints


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """A device at the moment when an allocation on it failed; each figure is None when unknown.

    Attributes:
        device: "cuda:0".
        asked_bytes: The size of the allocation that failed.
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
