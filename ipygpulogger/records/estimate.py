"""What a function would need on a device, and whether it fits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from .value import Displayed, Value, displayed_text, plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from .explained import AtPeak


class Fit(NamedTuple):
    """Whether something fits into the memory that is available.

    Attributes:
        fits: None when unknown.
        short_bytes: How much is missing; 0 if it fits, None when unknown.
    """

    fits: bool | None
    short_bytes: int | None


UNKNOWN = Fit(None, None)


def fit(
    peak_bytes: int,
    reserved_bytes: int,
    available_bytes: int | None,
    fits_within: Callable[[int], bool] | None = None,
) -> Fit:
    """Return whether a function fits into the memory that is available.

    It fits if all that the allocator would reserve is available, and it does not if less than its peak is. In
    between, the allocator has to return cached memory to the device first, and fragmentation decides.

    Args:
        peak_bytes: The highest that live tensors would take.
        reserved_bytes: The most that the allocator would reserve for them, cached memory included.
        available_bytes: None when unknown.
        fits_within: Repeats the allocations with no more than so many bytes, and returns whether all
            succeeded. Without it, what fragmentation decides does not fit.
    """
    if available_bytes is None:
        return UNKNOWN
    if reserved_bytes <= available_bytes:
        return Fit(True, 0)
    if peak_bytes > available_bytes:
        return Fit(False, peak_bytes - available_bytes)
    if fits_within is not None and fits_within(available_bytes):
        return Fit(True, 0)
    return Fit(False, reserved_bytes - available_bytes)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BatchEstimate(Value):
    """What the same function would need with another batch size.

    Attributes:
        size: The batch size.
        peak_bytes: As in `Estimate`; None if it could not be estimated.
        reserved_bytes: As in `Estimate`; None if it could not be estimated.
        fits: As in `Estimate`.
        short_bytes: As in `Estimate`.
        error: Why it could not be estimated: the error that the function raised with this size; else empty.
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

    What is needed is compared with what is available, and both count the same: all tensors that the function
    uses, those that are on the device already included. So a model that was moved to the device before does
    not count twice. The context and the libraries of a process, a few hundred MB, are outside the allocator:
    they are not part of the peak, and neither of what is available on a device where this process has them.

    Attributes:
        label: The name of the function.
        device: "cuda:0".
        peak_bytes: The highest that live tensors would take, as the allocator rounds them.
        reserved_bytes: The most that the allocator would reserve for them, cached memory included.
        at_peak: What would be alive then, the largest first; it adds up to `peak_bytes`.
        held_bytes: How much of the peak is on the device already.
        capacity_bytes: The size of the device's memory, or the capacity that was given; None when unknown.
        available_bytes: How much of it the function can have: what is free on the device, cached memory of
            this process's allocator and `held_bytes`; all of a capacity that was given. None when unknown.
        fits: Whether it fits; None when unknown.
        short_bytes: How much is missing; 0 if it fits. If only fragmentation is the reason, it is what is
            missing to `reserved_bytes`. None when unknown.
        unknown: Why it is unknown whether it fits; else empty.
        batches: The same for other batch sizes, in the order in which they were given.
        batched: What the batch sizes replaced: "the leading dimension 8 of images and labels".
        notes: Plain sentences: what the estimate leaves out, and why.
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
