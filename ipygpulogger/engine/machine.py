"""What all measurements of one process share: every source, the trackers of peaks, and the open scopes.

`Machine` has a part for each of these. What concerns several parts at once is done here, under one lock: a
scope opens or closes, a device is first used, the user resets a counter, the last measurement ends.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING

from ..records import DRIVER, Diagnosis
from ..sources import Unavailable
from ..sources.nvml import Nvml
from ..sources.process import Process
from ..sources.ram_limit import RamLimits
from .allocators import Allocators
from .devices import Devices
from .frameworks import Frameworks
from .ledger import Allowance, DeviceSnapshot, Ledger, Stand, allowance
from .notes import Notes
from .open_scopes import OpenScopes
from .own_imports import OwnImports
from .peaks import PeakTracker
from .sampler import Sampler
from .sampling import sample_device, sample_ram
from .settling import Settling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from ..sources import Device, DeviceMemory, Framework
    from ..sources.snapshot_file import KeptSnapshot
    from .child_peaks import ChildPeaks
    from .children import Children
    from .open_scopes import Measuring


class Machine:
    """Every source of this process. One per process: `machine()`.

    Attributes:
        process: General RAM, of this process and its children.
        limits: Of RAM, under which this process lives.
        nvml: The driver's view of the devices.
        frameworks: Those that have a device allocator.
        devices: Matches the frameworks' devices with NVML's.
        allocators: The frameworks' allocators in use, and the trackers of their peaks.
        settling: Garbage collection and emptying caches around a measurement.
        scopes: Those that are open, and the loggers that run.
        ledger: Who holds the memory of each device.
        sampler: The thread that samples while a scope lasts.
        notes: What could not be measured.
        own_imports: The memory that our own late imports take.
        failed_snapshot: Of torch's allocator, from the last recording in which an allocation failed.
    """

    def __init__(
        self,
        process: Process | None = None,
        nvml: Nvml | None = None,
        frameworks: Iterable[Framework] | None = None,
        limits: RamLimits | None = None,
    ) -> None:
        self.process = process or Process()
        self.limits = limits or RamLimits()
        self.nvml = nvml or Nvml()
        self.notes = Notes()
        self.own_imports = OwnImports(self.resident_bytes)
        self.frameworks = Frameworks(
            self.notes,
            frameworks,
            user_resets=self._user_resets,
            importing=self.own_imports.importing,
        )
        self.devices = Devices(self.nvml, self.frameworks)
        self.allocators = Allocators(self.frameworks, self.devices)
        self.settling = Settling(self.frameworks)
        self.scopes = OpenScopes()
        self.failed_snapshot: KeptSnapshot | None = None
        self._child_peaks: ChildPeaks | None = None
        self.sampler = Sampler(self.sample)
        self.ledger = Ledger(self.nvml)
        self._ram: PeakTracker | None = None
        self._lock = threading.RLock()

    @property
    def ram(self) -> PeakTracker:
        """The tracker of general RAM's peaks.

        Raises:
            Unavailable: The memory of this process cannot be read here.
        """
        if self._ram is None:
            with self._lock:
                self._ram = self._ram or PeakTracker(self.process.counter)
        return self._ram

    @property
    def child_peaks(self) -> ChildPeaks:
        """The child processes, and the trackers of their peaks; most processes have none."""
        if self._child_peaks is None:
            with self._lock, self.own_imports.importing():
                from .child_peaks import ChildPeaks

                self._child_peaks = self._child_peaks or ChildPeaks(self.process, self._open_children)
        return self._child_peaks

    def resident_bytes(self) -> int:
        """Return the resident memory of this process now.

        Raises:
            Unavailable: It cannot be read.
        """
        return self.ram.current_bytes()

    def device_memory(self, index: int) -> DeviceMemory | None:
        """Return the memory of a whole device, all processes together; None where it is unknown."""
        with self._lock:  # another thread may close the driver's library
            return self.devices.memory(index)

    def snapshot(
        self, device: Device, trackers: Iterable[PeakTracker], stand: Stand | None = None
    ) -> DeviceSnapshot:
        """Return who holds the memory of a device now; slow if per-process usage may have changed.

        Args:
            device: The device.
            trackers: Those of the frameworks' allocators there.
            stand: What each of these allocators holds, if it was read just now.

        Raises:
            Unavailable: An allocator cannot be read.
        """
        return self.ledger.take(device, tuple(trackers), self.allocators.counters(device), stand)

    def glance(self, device: Device, trackers: Iterable[PeakTracker]) -> DeviceSnapshot:
        """Return the same without querying per-process usage, for any thread.

        Raises:
            Unavailable: An allocator cannot be read.
        """
        return self.ledger.glance(device, tuple(trackers), self.allocators.counters(device))

    def allowance(self, device: Device) -> Allowance:
        """Return the limits of a device's allocators; 0 for a device that `CUDA_VISIBLE_DEVICES` hides."""
        if device.backend == DRIVER and self.devices.is_hidden(device.uuid):
            return Allowance(0, None)
        return allowance(self.allocators.counters(device))

    def take_notes(self) -> tuple[str, ...]:
        """Return what could not be measured since the last call, each reason once per process."""
        return (*self.notes.take(), *self.nvml.take_notes())

    def load(self) -> None:
        """Import the frameworks and create contexts, in a process that exists only to `diagnose` them."""
        self.frameworks.ask(lambda framework: framework.load(), self.frameworks.known())
        self.settling.preload()

    def diagnose(self) -> list[Diagnosis]:
        """Return what each source can measure here, why others were left out, and how much RAM there is."""
        from ..sources.limit_diagnosis import diagnoses

        answers = self.frameworks.ask(lambda framework: framework.diagnose(), self.frameworks.known())
        failures = self.frameworks.failures().items()
        failed = [Diagnosis(name, "absent", f"fails and is left out: {error}") for name, error in failures]
        found = [diagnosis for _, diagnosis in answers if diagnosis]
        return [self.process.diagnose(), *diagnoses(self.limits), self.nvml.diagnose(), *found, *failed]

    # -- open scopes and running loggers -------------------------------------------------------

    def attach(self, logger: object) -> None:
        """Keep wrappers and libraries between the scopes of a logger, until `detach` or its death."""
        with self._lock:
            self.scopes.loggers.add(logger)

    def detach(self, logger: object) -> None:
        """Forget a logger, if it was attached; after the last one, take our wrappers off the frameworks."""
        with self._lock:
            self.scopes.loggers.discard(logger)
        self._rest()

    def enter(self, scope: Measuring) -> None:
        """Register a scope that opens."""
        self._end_orphans()
        with self._lock:
            self.nvml.devices()  # opened here, by one thread at a time
            self.discover()
            self.scopes.add(scope)

    def leave(self, scope: Measuring) -> None:
        """Unregister a scope that has ended."""
        with self._lock:
            if scope in self.scopes:
                self.settling.users_code_ran()
            self.scopes.discard(scope)
        self._end_orphans()
        self._rest()

    def discover(self) -> None:
        """Register the devices first used since the last call; open scopes measure them from zero."""
        with self._lock:
            for device, tracker, sure in self.allocators.discover():
                for scope in self.scopes.all():
                    if device is None:
                        scope.adopt_pinned(tracker)
                    else:
                        scope.adopt(tracker, device, sure=sure)

    def sample(self) -> None:
        """Take one sample for the open scopes, as the sampler does while they last."""
        self._end_orphans()
        with self._lock:
            scopes = self.scopes.all()
            if not scopes:
                return
            self.discover()
            devices = {
                device_scope.device.uuid: device_scope.device
                for scope in scopes
                for device_scope in scope.device_scopes()
            }
            trackers = {device.uuid: trackers for device, trackers in self.allocators.by_device()}
        with contextlib.suppress(Unavailable):
            sample_ram(scopes, self.ram)
        if self.process.has_children():
            self.child_peaks.look()
        for uuid, device in devices.items():
            if uuid:
                sample_device(scopes, device, trackers.get(uuid, []), self.nvml, self.ledger)

    def close(self) -> None:
        """Close the driver's library if nothing is being measured; the next scope opens it again."""
        with self._lock:
            if not self.scopes.is_measuring():
                self.nvml.close()
                self.ledger.close()
                self.process.close()

    def after_fork_in_child(self) -> None:
        """Make locks anew: another thread may have held one at the moment of the fork."""
        self._lock = threading.RLock()
        self.sampler = Sampler(self.sample)
        self._child_peaks = None
        self.nvml.after_fork_in_child()
        self.frameworks.ask(lambda framework: framework.after_fork_in_child(), self.frameworks.loaded())

    def _open_children(self) -> list[Children]:
        """Return the part of every open scope that is about child processes."""
        found = (getattr(scope, "children", None) for scope in self.scopes.all())
        return [children for children in found if children is not None]

    def _end_orphans(self) -> None:
        """Close the scopes whose call has ended."""
        with self._lock:
            scopes = self.scopes.all()
        for scope in scopes:
            if scope.orphaned():
                scope.close()

    def _rest(self) -> None:
        """Take our wrappers off and end the sampler, unless something is still being measured."""
        with self._lock:
            if self.scopes.is_measuring():
                return
            self.frameworks.release()
        self.sampler.close()  # outside the lock: its thread may be waiting for that

    def _user_resets(self, framework: Framework, index: int | None, reset: Callable[[], None]) -> None:
        with self._lock:
            if not self.scopes.is_measuring():  # a wrapper that could not be taken off yet
                reset()
                return
            self.discover()
            tracker = self.allocators.tracker(framework.name, index)
        if tracker is None:
            reset()
        else:
            tracker.user_resets(reset)


def _after_fork_in_child() -> None:
    _making[0] = threading.Lock()
    if _machine is not None:
        _machine.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

_machine: Machine | None = None
_machine_pid = 0
# Held while the machine is created. Two of them, for two threads that call `machine` first at the same time,
# would reset each other's peaks.
_making = [threading.Lock()]


def machine() -> Machine:
    """Return the one machine of this process; a forked child makes its own."""
    global _machine, _machine_pid
    if _machine is None or _machine_pid != os.getpid():
        with _making[0]:
            if _machine is None or _machine_pid != os.getpid():
                _machine, _machine_pid = Machine(), os.getpid()
    return _machine


def importing() -> AbstractContextManager[None]:
    """Enclose a late import of this package's own modules, whose memory no measurement is to count."""
    return machine().own_imports.importing()
