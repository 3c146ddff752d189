"""What a function would need on a device, and whether it fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .explained import AtPeak, KindTimeline
from .value import Displayed, Value, displayed_text, plain


def fit(
    peak_bytes: int,
    reserved_bytes: int,
    available_bytes: int | None,
    fits_within: Callable[[int], bool] | None = None,
) -> tuple[bool | None, int | None]:
    """Return whether a function fits into the memory that is available, and how many bytes are missing.

    Between its peak and what the allocator would reserve, fragmentation decides: ``fits_within`` repeats the
    allocations with no more than so many bytes, and returns whether all succeeded. Without it, they do not.
    """
    if available_bytes is None:
        return None, None
    if peak_bytes > available_bytes:
        return False, peak_bytes - available_bytes
    if reserved_bytes <= available_bytes or (fits_within is not None and fits_within(available_bytes)):
        return True, 0
    return False, reserved_bytes - available_bytes


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BatchEstimate(Value):
    """What the same function would need with another batch size; the figures are those of `Estimate`.

    Attributes:
        size: The batch size.
        error: The error that the function raised with this size, so that the figures are None; else empty.
    """

    size: int
    peak_bytes: int | None
    reserved_bytes: int | None
    fits: bool | None
    short_bytes: int | None
    error: str = ""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Estimate(Displayed, Value):
    """What a function would need on a device, found without running it there.

    All tensors that the function uses count, also those on the device already; the context does not.

    Attributes:
        label: The name of the function.
        device: "cuda:0".
        peak_bytes: The highest that live tensors would take, as the allocator rounds them.
        reserved_bytes: The most that the allocator would reserve for them, cached memory included.
        at_peak: What would be alive then, the largest first; it adds up to `peak_bytes`.
        held_bytes: How much of the peak is on the device already.
        capacity_bytes: The size of the device's memory, or the capacity that was given; None when unknown.
        available_bytes: How much of it is free, cached by this process or in `held_bytes`; all of a capacity
            that was given. None when unknown.
        fits: Whether it fits; None when unknown.
        short_bytes: How much is missing, for lack of one piece to `reserved_bytes`; None when unknown.
        unknown: Why it is unknown whether it fits; else empty.
        batches: The same for other batch sizes, in the order in which they were given.
        batched: What the batch sizes replaced: "the leading dimension 8 of images and labels".
        notes: Plain sentences: what the estimate leaves out, and why.
        timeline: The memory by kind over the function's allocations.
    """

    label: str
    device: str
    peak_bytes: int
    reserved_bytes: int
    at_peak: tuple[AtPeak, ...] = ()
    held_bytes: int = 0
    capacity_bytes: int | None = None
    available_bytes: int | None = None
    fits: bool | None = None
    short_bytes: int | None = None
    unknown: str = ""
    batches: tuple[BatchEstimate, ...] = ()
    batched: str = ""
    notes: tuple[str, ...] = ()
    timeline: tuple[KindTimeline, ...] = ()

    @property
    def left_bytes(self) -> int | None:
        """What is available beyond the peak; negative if the peak is higher, None when unknown."""
        return None if self.available_bytes is None else self.available_bytes - self.peak_bytes

    @property
    def largest_batch(self) -> int | None:
        """The largest of the batch sizes that fit; None if none does, or none was asked for."""
        return max((batch.size for batch in self.batches if batch.fits), default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, in bytes, with the largest batch size that fits."""
        values: dict[str, Any] = plain(self)
        return values | {"largest_batch": self.largest_batch}

    def __repr__(self) -> str:
        return displayed_text(self)
