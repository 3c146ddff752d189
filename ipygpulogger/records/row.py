"""A row: the figures of a record by which cells are ranked, compared and folded, without its texts.

A row of a log is read without decoding its record, and takes little memory. The record of a cell that is
shown is decoded then, from the row's place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .cell_record import process_of
from .usage import Peak, RamUsage, consumed, needed

if TYPE_CHECKING:
    from datetime import datetime

    from .cell_record import CellRecord
    from .device_usage import DeviceUsage
    from .process import Process
    from .usage import Quality

    Key = tuple[str, int, str | None]  # `DeviceUsage.key`, and `RAM`
    Origin = CellRecord | int

RAM: Key = ("RAM", -1, None)
ELSEWHERE: tuple[Key, Key] = (("RAM", -1, "processes"), ("GPU", -1, "processes"))  # of all other processes


@dataclass(slots=True, init=False)
class Memory:
    """One memory over a cell: general RAM, or a device.

    Attributes:
        key: `DeviceUsage.key`, or `RAM`.
        before_bytes: In use at the beginning, as in `Usage`.
        after_bytes: In use at the end.
        lo_bytes: The lower bound of the peak, as in `Peak`.
        hi_bytes: The upper bound.
        quality: "exact", "bounded" or "sampled".
        precision_bytes: The granularity of the counter.
        attributed: Whether this process's memory is known.
        used_bytes: In use on the whole device by all processes; None when unknown, and for RAM.
        newly_kept_bytes: Of RAM, how much more freed memory malloc keeps than before.
        needed_bytes: As in `Usage`.
    """

    key: Key
    before_bytes: int
    after_bytes: int
    lo_bytes: int
    hi_bytes: int | None
    quality: Quality
    precision_bytes: int
    attributed: bool
    used_bytes: int | None
    newly_kept_bytes: int
    needed_bytes: int

    def __init__(  # noqa: PLR0913, PLR0917 - a third of the time of the generated one and `__post_init__`
        self,
        key: Key,
        before_bytes: int,
        after_bytes: int,
        lo_bytes: int,
        hi_bytes: int | None,
        quality: Quality,
        precision_bytes: int,
        attributed: bool = True,
        used_bytes: int | None = None,
        newly_kept_bytes: int = 0,
    ) -> None:
        self.key = key
        self.before_bytes = before_bytes
        self.after_bytes = after_bytes
        self.lo_bytes = lo_bytes
        self.hi_bytes = hi_bytes
        self.quality = quality
        self.precision_bytes = precision_bytes
        self.attributed = attributed
        self.used_bytes = used_bytes
        self.newly_kept_bytes = newly_kept_bytes
        self.needed_bytes = needed(lo_bytes, before_bytes, after_bytes)

    @classmethod
    def of(cls, usage: RamUsage | DeviceUsage) -> Memory:
        """Return the figures of a usage."""
        peak = usage.peak
        return cls(
            RAM if isinstance(usage, RamUsage) else usage.key,
            usage.before_bytes,
            usage.after_bytes,
            peak.lo_bytes,
            peak.hi_bytes,
            peak.quality,
            peak.precision_bytes,
            True if isinstance(usage, RamUsage) else usage.attributed,
            None if isinstance(usage, RamUsage) else usage.used_bytes,
            usage.newly_kept_bytes if isinstance(usage, RamUsage) else 0,
        )

    @property
    def consumed_bytes(self) -> int:
        """As in `Usage`."""
        return consumed(self.before_bytes, self.after_bytes)

    @property
    def peak(self) -> Peak:
        """The peak."""
        return Peak(self.lo_bytes, self.hi_bytes, self.quality, self.precision_bytes)


@dataclass(slots=True)
class Row:
    """The figures of one cell.

    Attributes:
        origin: Where its record is: the record itself, or the place in a log at which its line begins.
        started_at: As in `CellRecord`, and so are the others.
        time_s: Seconds.
        gen: General RAM.
        gpus: The devices, in the order of the record.
        execution_count: The 4 of "In [4]".
        cell_id: The front end's id of the cell.
        source: The cell's first line.
        succeeded: Whether the status is "ok".
        gpulog_only: Whether the cell contains only this package's own magics.
        process: The process that it came from; None for a cell of the notebook's own kernel.
        code: As in `CellRecord`.
        label: As in `CellRecord`, where it says which cell a process ran; empty for the kernel and tasks.
    """

    origin: Origin
    started_at: datetime
    time_s: float
    gen: Memory
    gpus: tuple[Memory, ...]
    execution_count: int | None
    cell_id: str | None
    source: str
    succeeded: bool
    gpulog_only: bool
    process: Process | None = None
    code: str = ""
    label: str = ""

    @classmethod
    def of(cls, record: CellRecord, origin: Origin | None = None) -> Row:
        """Return the figures of a record.

        Args:
            record: The record.
            origin: Where it is, if it need not be kept.
        """
        process = process_of(record)
        return cls(
            record if origin is None else origin,
            record.started_at,
            record.time_s,
            Memory.of(record.gen),
            tuple(map(Memory.of, record.gpus)),
            record.execution_count,
            record.cell_id,
            record.source,
            record.status == "ok",
            record.gpulog_only,
            process,
            record.code,
            "" if process is None or process.task is not None else record.label,
        )

    def all(self) -> tuple[Memory, ...]:
        """Return RAM and every device."""
        return self.gen, *self.gpus

    def key_of(self, memory: Memory) -> Key:
        """Return the key of a memory in an overview, in which all other processes are one."""
        return memory.key if self.process is None else ELSEWHERE[memory is not self.gen]

    def memories(self) -> dict[Key, Memory]:
        """Return RAM and each device whose use is attributed to this process, by its key."""
        if not self.gpus:
            return {RAM: self.gen}
        return {RAM: self.gen, **{gpu.key: gpu for gpu in self.gpus if gpu.attributed}}


def record_of(origin: Origin) -> CellRecord:
    """Return the record that is a row's origin.

    Raises:
        TypeError: The row was read from a log.
    """
    if isinstance(origin, int):
        raise TypeError("this row's record is in a log")
    return origin
