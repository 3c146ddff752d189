"""What one scope used: a block, a function call, an epoch or a cell."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from .device_usage import CPU, DRIVER, DeviceUsage
from .units import MB, shortened
from .usage import RamUsage, Usage, notable
from .value import Displayed, Value, plain

if TYPE_CHECKING:
    from .explained import AtPeak, ChildrenUsage, KindTimeline


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Measurement(Displayed, Value):
    """What one scope used.

    Attributes:
        label: "In [4]" for a cell, the caller's own text otherwise.
        started_at: When the scope began; aware, in UTC.
        time_s: The time from beginning to end, without the cost of measuring.
        gen: General RAM.
        gpus: The devices that the process used, by index.
        children: Child processes; None when there were none or their memory is unknown.
        pinned: Page-locked host memory of the frameworks' allocators; None when none was ever used.
        notes: Sentences: what could not be measured, and why; a `Note` where decisions depend on it.
        at_peak: What was alive when memory was highest, by device, the largest first; if requested.
        peak_times_s: By device of `at_peak`, how long after the beginning that was.
        timeline: By device, the memory of torch's allocator over the time, by kind; with `at_peak`.
    """

    label: str
    started_at: datetime
    time_s: float
    gen: RamUsage
    gpus: tuple[DeviceUsage, ...] = ()
    children: ChildrenUsage | None = None
    pinned: Usage | None = None
    notes: tuple[str, ...] = ()
    at_peak: tuple[AtPeak, ...] = ()
    peak_times_s: tuple[tuple[str, float], ...] = ()
    timeline: tuple[KindTimeline, ...] = ()

    def busiest_gpu(self) -> DeviceUsage | None:
        """Return the device on which this process needed most, an unattributed one last; None without one."""
        return max(self.gpus, key=lambda gpu: (gpu.attributed, gpu.needed_bytes), default=None)

    def memories(self) -> dict[str, Usage]:
        """Return general RAM as "cpu", and by id each device whose use is attributed to this process."""
        return {CPU: self.gen, **{gpu.id: gpu for gpu in self.gpus if gpu.attributed}}

    def grown(self) -> dict[str, int]:
        """Return those of `memories` that grew notably, and by how much: RAM without what malloc keeps."""
        found = {}
        for device, usage in self.memories().items():
            grown_bytes = usage.consumed_bytes
            if grown_bytes <= MB:  # not notable, as of nearly every cell
                continue
            if isinstance(usage, RamUsage):
                grown_bytes -= usage.kept_of_consumed_bytes
                if grown_bytes <= usage.precision_bytes:
                    continue
            if notable(grown_bytes, usage.after_bytes):
                found[device] = grown_bytes
        return found

    def gpu(self, index: int | None) -> DeviceUsage | None:
        """Return the device that the frameworks give this index, the first if it is None."""
        ours = [gpu for gpu in self.gpus if gpu.backend != DRIVER] or self.gpus
        return next((gpu for gpu in ours if index in (gpu.index, None)), None)

    def title(self) -> str:
        """Return what a report calls it: the label, with the process of a record of many processes."""
        return self.label

    def outcome(self) -> str:
        """Return how the scope ended if it did not succeed, such as "failed: ValueError"; else nothing."""
        return ""

    def __repr__(self) -> str:
        ended = self.outcome() and f", {shortened(self.outcome())}"
        parts = [f"RAM {self.gen.described()}"]
        parts += [f"{gpu.id} {gpu.described()}" for gpu in self.gpus]
        name = f"{type(self).__name__} {shortened(self.title())}"
        return f"<{name}, {self.time_s:.3f} s{ended}: {'; '.join(parts)}>"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: bytes, seconds, ISO 8601 time."""
        values: dict[str, Any] = plain(self)
        return values | {"started_at": self.started_at.isoformat()}
