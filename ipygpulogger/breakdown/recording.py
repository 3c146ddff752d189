"""The recording of one measurement: begun before its scope, ended after it, and turned into rows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from ..engine.machine import machine
from ..records import Measurement
from ..sources.system.memray import installed
from .devices import DeviceRecording
from .ram import RamRecording

if TYPE_CHECKING:
    from ..records import AtPeak

M = TypeVar("M", bound=Measurement)

_NO_RAM = "Beside a GPU general RAM is recorded on request alone, because memray slows training: --peak=all."


class PeakRecording:
    """What was alive when memory was highest, for one measurement.

    It begins before the scope opens and ends after the scope has closed; then `result` adds the rows. None
    of its methods raises: what is unknown is a note. Recordings nest and overlap, across threads.
    """

    def __init__(self, shell: Any = None, *, ram: bool | None = None, always_named: bool = True) -> None:
        # `ram`: whether general RAM is recorded too, which slows code down; by default where no GPU is.
        # `always_named`: look at all that a device holds even if nothing was allocated or freed there.
        self._devices = DeviceRecording(shell, always_named=always_named)
        self._ram = RamRecording(shell) if ram is not False else None
        self._ram_beside_gpus = bool(ram)

    def begin(self) -> None:
        """Begin to record."""
        self._devices.begin()
        if self._ram is None:
            return
        if self._devices.in_use and not self._ram_beside_gpus:
            self._ram = None
            if installed() and machine().notes.is_new(_NO_RAM):
                self._devices.notes.append(_NO_RAM)
            return
        self._ram.begin()  # last, so that what the other part allocates is not in it

    def torch_imported(self) -> None:
        """Begin with the devices again, because torch was imported just now."""
        self._devices.drop()
        self._devices = DeviceRecording(None, always_named=True)
        self._devices.begin()

    def end(self) -> None:
        """End the recording, and find out what was alive at the peak."""
        try:
            if self._ram is not None:
                self._ram.end()
        finally:
            self._devices.end()

    def result(self, measurement: M) -> M:
        """Return a measurement with what was alive at its peak."""
        devices = self._devices
        ram, notes = ((), []) if self._ram is None else (self._ram.result(measurement), self._ram.notes)
        return replace(
            measurement,
            at_peak=(*devices.at_peak(), *ram),
            peak_times_s=devices.times_s(measurement.time_s),
            notes=(*measurement.notes, *devices.notes, *notes),
        )

    @property
    def at_failure(self) -> dict[str, tuple[AtPeak, ...]]:
        """By device, what was alive when an allocation last failed there, the largest first."""
        return self._devices.at_failure

    def keep_failure(self, where: str) -> None:
        """Keep torch's snapshot for ``%gpulog snapshot --failed`` if an allocation failed."""
        failed, self._devices.failed = self._devices.failed, None
        if failed is not None:
            machine().failed_snapshot = failed._replace(where=where)

    def drop(self) -> None:
        """End the recording without a result. Idempotent."""
        try:
            if self._ram is not None:
                self._ram.drop()
        finally:
            self._devices.drop()
