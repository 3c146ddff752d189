"""Whether a cell went over the memory that it may use."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..records.measurement import Measurement
    from ..records.usage import Usage


class Excess(NamedTuple):
    """A peak above its budget."""

    name: str  # "RAM", or the device id: "cuda:0"
    peak_bytes: int  # if it is not exact, its lower bound
    budget_bytes: int
    at_least: bool

    @property
    def over_bytes(self) -> int:
        """How far the peak lies above the budget."""
        return self.peak_bytes - self.budget_bytes


def excesses(
    measurement: Measurement, *, ram_bytes: int | None = None, gpu_bytes: int | None = None
) -> Iterator[Excess]:
    """Yield the peaks of this process, in RAM and on each device, that are certainly above a budget."""
    allowed: list[tuple[str, Usage, int | None]] = [("RAM", measurement.gen, ram_bytes)]
    allowed += [(gpu.id, gpu, gpu_bytes) for gpu in measurement.gpus if gpu.attributed]
    for name, usage, budget_bytes in allowed:
        if budget_bytes is not None and usage.peak.lo_bytes > budget_bytes:
            yield Excess(name, usage.peak.lo_bytes, budget_bytes, usage.peak.quality != "exact")
