"""Which process a record came from, and a record that says so."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from .cell_record import CellRecord
from .measurement import Measurement
from .units import shortened
from .value import Value

_CELL_DEFAULTS: dict[str, Any] = {"execution_count": None, "cell_id": None, "source": "", "status": "ok"}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Process(Value):
    """One process of many.

    Attributes:
        host: The name of its machine.
        pid: Its process id there.
        rank: Its number among the processes of its job; None where they have no numbers.
        worker: The name that its engine gives it, such as "engine 0"; None without one.
        task: What ran there, such as "train" or "Actor.step"; None for the whole process.
    """

    host: str
    pid: int
    rank: int | None = None
    worker: str | None = None
    task: str | None = None

    def named(self) -> str:
        """Return what a reader calls it: "rank 2", "engine 0" or "pid 1234"."""
        if self.worker is not None:
            return shortened(self.worker)
        return f"pid {self.pid}" if self.rank is None else f"rank {self.rank}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ProcessRecord(CellRecord):
    """What one process of many used in a cell, in a task, or in a gathered block; `process` says which."""

    process: Process

    @classmethod
    def of(cls, measured: Measurement, process: Process) -> ProcessRecord:
        """Return a measurement of any kind as the record of a process."""
        kept = {one.name for one in fields(cls)} - {"process"}
        values = {one.name: getattr(measured, one.name) for one in fields(measured) if one.name in kept}
        return cls(**{**_CELL_DEFAULTS, **values}, process=process)

    def title(self) -> str:
        """Return the label and the process: "In [4], rank 2", "In [4], train on worker 1"."""
        name, task = self.process.named(), self.process.task
        return f"{self.label}, {name if task is None else f'{shortened(task)} on {name}'}"

    @property
    def host(self) -> str:
        """The name of the machine."""
        return self.process.host

    @property
    def pid(self) -> int:
        """The process id on that machine."""
        return self.process.pid

    @property
    def rank(self) -> int | None:
        """Its number in its job; None without one."""
        return self.process.rank

    @property
    def worker(self) -> str | None:
        """The name that its engine gives it, or None."""
        return self.process.worker

    @property
    def task(self) -> str | None:
        """What ran there; None for the whole process."""
        return self.process.task
