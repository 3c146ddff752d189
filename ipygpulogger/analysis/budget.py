"""Whether a cell went over the memory that it may use."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..records.measurement import Measurement
    from ..records.usage import Usage


class Excess(NamedTuple):
    """A peak above its budget; if it is not exact, a lower bound of it."""

    name: str  # "RAM", or the device id: "cuda:0"
    peak_bytes: int
    budget_bytes: int
    at_least: bool

    @property
    def over_bytes(self) -> int:
        """How far the peak lies above the budget."""
        return self.peak_bytes - self.budget_bytes


def excesses(
    measurement: Measurement, *, ram_bytes: int | None = None, gpu_bytes: int | None = None
) -> Iterator[Excess]:
    """Yield the peaks of this process, in RAM and on each device, that are above a budget.

    A peak that is not exact counts with its lower bound, so that an excess is certain. A device whose use
    cannot be attributed to this process is left out, because the peak there is unknown.

    Args:
        measurement: What was measured.
        ram_bytes: The budget of general RAM; None without one.
        gpu_bytes: The budget of each device; None without one.
    """
    if ram_bytes is not None:
        yield from _over("RAM", measurement.gen, ram_bytes)
    if gpu_bytes is not None:
        for gpu in measurement.gpus:
            if gpu.attributed:
                yield from _over(gpu.id, gpu, gpu_bytes)


def _over(name: str, usage: Usage, budget_bytes: int) -> Iterator[Excess]:
    if usage.peak.lo_bytes > budget_bytes:
        yield Excess(name, usage.peak.lo_bytes, budget_bytes, usage.peak.quality != "exact")
