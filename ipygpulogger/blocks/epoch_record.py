"""`EpochRecord`: what one epoch of a training used, and the four figures that training frameworks show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ..records import Measurement
from ..records.units import MB, truncated_mb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..records import DeviceUsage, Peak


class EpochMemory(NamedTuple):
    """One epoch in whole megabytes (``2**20``), truncated toward zero, as in fastai's PeakMemMetric.

    ``used`` is what the epoch kept, negative where it gave memory back; ``peak`` is what it needed
    temporarily on top of that, never negative. ``cpu`` is general RAM, ``gpu`` the device that the training
    ran on; without one its figures are 0.
    """

    cpu_used: int
    cpu_peak: int
    gpu_used: int
    gpu_peak: int

    def named(self, prefix: str) -> dict[str, int]:
        """Return the figures under names for loggers: ``mem_cpu_used_mb`` with the prefix ``mem_``."""
        return {f"{prefix}{name}_mb": figure for name, figure in self._asdict().items()}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EpochRecord(Measurement):
    """What one epoch used.

    Attributes:
        on_cpu: Whether the framework said that the training ran on the CPU.
        gpu_index: The index of the device it ran on. None if it is unknown: then the device whose memory
            changed most is taken.
    """

    on_cpu: bool = False
    gpu_index: int | None = None

    def trained_on(self) -> DeviceUsage | None:
        """Return the device that the training ran on; None without one."""
        if self.on_cpu:
            return None
        return self.busiest_gpu() if self.gpu_index is None else self.gpu(self.gpu_index)

    def memory(self) -> EpochMemory:
        """Return the four figures of the epoch, in whole megabytes."""
        gpu = self.trained_on()
        return EpochMemory(
            truncated_mb(self.gen.consumed_bytes),
            truncated_mb(self.gen.peaked_bytes),
            truncated_mb(gpu.consumed_bytes) if gpu else 0,
            truncated_mb(gpu.peaked_bytes) if gpu else 0,
        )


def doubts(record: EpochRecord) -> Iterator[str]:
    """Yield what is not exact about the four figures."""
    gpu = record.trained_on()
    peaks = [record.gen.peak, *([gpu.peak] if gpu and gpu.attributed else [])]
    if not all(map(_exact_to_a_megabyte, peaks)):
        yield "peak at least"
    if gpu is not None and not gpu.attributed:
        yield "per-process GPU usage unavailable"


def _exact_to_a_megabyte(peak: Peak) -> bool:
    return peak.hi_bytes is not None and peak.hi_bytes - peak.lo_bytes < MB
