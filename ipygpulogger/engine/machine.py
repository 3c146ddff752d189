"""What all measurements of one process share: every source, the trackers of peaks, and the open scopes.

What concerns several of these at once is done here, under one lock: a scope opens or closes, a device is
first used, the user resets a counter, the last measurement ends.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import cached_property
from operator import methodcaller
from typing import TYPE_CHECKING

from ..records import DRIVER, Diagnosis
from ..sources import Device, DeviceMemory, Framework, Unavailable
from ..sources.contract import Notes
from ..sources.nvidia.nvml import Nvml
from ..sources.system import linux
from ..sources.system.forked import Starts, forks
from ..sources.system.process import Process
from ..sources.system.ram_limit import RamLimits
from .devices import Devices
from .frameworks import Frameworks, OwnImports, Settling
from .ledger import Ledger, allowance
from .peaks import PeakTracker
from .sampler import Measuring, OpenScopes, Sampler

if TYPE_CHECKING:
    from ..sources.torch.snapshot import SnapshotFile
    from .children import ChildPeaks, Children
    from .device_scope import DeviceScope


class Machine:
    """Every source of this process, and what all scopes share. One per process: `machine()`."""

    def __init__(
        self,
        process: Process | None = None,
        nvml: Nvml | None = None,
        frameworks: Iterable[Framework] | None = None,
        limits: RamLimits | None = None,
    ) -> None:
        self.process: Process = process or Process()
        self.limits: RamLimits = limits or RamLimits()
        self.nvml: Nvml = nvml or Nvml()
        self.notes: Notes = Notes()
        self.own_imports: OwnImports = OwnImports(self.resident_bytes)
        self.frameworks: Frameworks = Frameworks(
            self.notes, frameworks, user_resets=self._user_resets, importing=self.own_imports.importing
        )
        self.devices: Devices = Devices(self.nvml, self.frameworks)
        self.settling: Settling = Settling(self.frameworks)
        self.scopes: OpenScopes = OpenScopes()
        self.failed_snapshot: SnapshotFile | None = None
        self._child_peaks: ChildPeaks | None = None
        self.sampler: Sampler = Sampler(self.sample)
        self._programs = Starts(self._sample_children)
        self.ledger: Ledger = Ledger(self.nvml)
        self._ram: PeakTracker | None = None
        self._lock = threading.RLock()

    @cached_property
    def ram(self) -> PeakTracker:
        """The tracker of general RAM's peaks; `Unavailable` where that cannot be read."""
        with self._lock:  # two threads that ask first get the same one
            self._ram = self._ram or PeakTracker(self.process.counter)
            return self._ram

    @property
    def samples_ram(self) -> bool:
        """Whether general RAM has no peak that can be reset, so that samples show more than its counter."""
        return self._ram is not None and self._ram.counter.peak_class != "resettable"

    @property
    def child_peaks(self) -> ChildPeaks:
        """The child processes, and the trackers of their peaks; most processes have none."""
        if self._child_peaks is None:
            with self._lock, self.own_imports.importing():
                from .children import ChildPeaks

                self._child_peaks = self._child_peaks or ChildPeaks(self)
        return self._child_peaks

    def resident_bytes(self) -> int:
        """Return the resident memory of this process now; `Unavailable` where it cannot be read."""
        return self.ram.current_bytes()

    def device_memory(self, index: int) -> DeviceMemory | None:
        """Return the memory of a whole device, all processes together; None where it is unknown."""
        with self.keeping_driver():
            return self.devices.memory(index)

    def keeping_driver(self) -> AbstractContextManager[object]:
        """Return a context within which no other thread closes the driver's library."""
        return self._lock

    def allowance(self, device: Device) -> tuple[int | None, int | None]:
        """Return limit and pools of the allocators; the limit of a device that CUDA does not show is 0."""
        if device.backend == DRIVER and self.devices.is_hidden(device.uuid):
            return 0, None
        return allowance(self.devices.counters(device))

    def take_notes(self) -> tuple[str, ...]:
        """Return what could not be measured since the last call, each reason once per process."""
        return (*self.notes.take(), *self.nvml.notes.take())

    def load(self) -> None:
        """Import the frameworks and create contexts, in a process that exists only to `diagnose` them."""
        self.frameworks.ask(methodcaller("load"), self.frameworks.known())
        self.settling.preload()

    def diagnose(self) -> list[Diagnosis]:
        """Return what each source can measure here, why others were left out, and how much RAM there is."""
        answers = self.frameworks.ask(methodcaller("diagnose"), self.frameworks.known())
        failures = self.frameworks.failed.items()
        failed = [Diagnosis(name, "absent", f"fails and is left out: {error}") for name, error in failures]
        found = [diagnosis for _, diagnosis in answers if diagnosis]
        return [self.process.diagnose(), *self.limits.diagnoses(), self.nvml.diagnose(), *found, *failed]

    def attach(self, logger: object) -> None:
        """Keep wrappers and libraries between the scopes of a logger, until `detach` or its death."""
        with self._lock:
            self.scopes.loggers.add(logger)

    def detach(self, logger: object) -> None:
        """Forget a logger, if it was attached; after the last one, take our wrappers off the frameworks."""
        with self._lock:
            self.scopes.loggers.discard(logger)
        self._rest()

    def enter(self, scope: Measuring) -> tuple[Device, ...]:
        """Register a scope that opens, and return the devices that NVML lists."""
        self._end_orphans()
        with self._lock:
            listed = self.nvml.devices()  # opened here, by one thread at a time
            self.discover()
            self.scopes.add(scope)
            self._programs.put_on()
        return listed

    def leave(self, scope: Measuring) -> None:
        """Unregister a scope that has ended."""
        with self._lock:
            self.settling.ran = True
            self.scopes.discard(scope)
        self._rest()

    def discover(self) -> None:
        """Register the devices first used since the last call; open scopes measure them from zero."""
        imported = self.frameworks.imported()
        if not imported:
            return
        with self._lock:
            for device, tracker, sure in self.devices.discover(imported):
                for scope in self.scopes:
                    scope.adopt(tracker, device, sure=sure)

    def sample(self) -> None:
        """Take one sample for the open scopes, as the sampler does while they last."""
        self._end_orphans()
        with self._lock:
            scopes = list(self.scopes)
            has_children = self.process.has_children()
            if not scopes or not (has_children or self.samples_ram or _devices_of(scopes)):
                return  # also if the last scope has ended: no framework is to be held again
            self.discover()
            devices = _devices_of(scopes)
        with contextlib.suppress(Unavailable):
            resident_bytes = self.ram.current_bytes()
            for scope in scopes:
                scope.sampled(resident_bytes)
        if has_children:
            self.child_peaks.observe()
        for uuid, device_scopes in devices.items():
            # A tracker that could not be read as the scopes opened is in none of them.
            trackers = {tracker for one in device_scopes for tracker in tuple(one.intervals)}
            sample = self.ledger.sample(uuid, trackers)
            if sample is not None:
                for scope in scopes:
                    scope.device_sampled(uuid, *sample)

    def close(self) -> None:
        """Close the driver's library if nothing is being measured; the next scope opens it again."""
        with self._lock:
            if not self.scopes.is_measuring():
                self.nvml.close()
                self.ledger.close()
                self.process.close()

    def before_fork(self) -> None:
        """Prepare for one more child; Python warns of a fork if ours is the only other thread."""
        alone = sys.version_info >= (3, 12) and linux.thread_count() - self.sampler.is_running == 1
        if not alone:
            self._sample_children()
        elif not _devices_of(self.scopes):
            self.sampler.close(although_wanted=True)

    def _sample_children(self) -> None:
        for scope in self.scopes:
            if scope.sees_children:
                self.sampler.start(scope)

    def after_fork_in_child(self) -> None:
        """Make locks anew: another thread may have held one at the moment of the fork."""
        self._lock = threading.RLock()
        self.sampler = Sampler(self.sample)
        self._programs.take_off()
        self._child_peaks = None
        self.nvml.after_fork_in_child()
        self.frameworks.ask(methodcaller("after_fork_in_child"), self.frameworks.loaded)

    def open_children(self) -> list[Children]:
        """Return the part of every open scope that is about child processes."""
        return [children for scope in self.scopes if (children := scope.with_children()) is not None]

    def _end_orphans(self) -> None:
        for scope in self.scopes:
            if scope.orphaned():
                scope.close()

    def _rest(self) -> None:
        """Take our wrappers off and end the sampler, unless something is still being measured."""
        with self._lock:
            if self.scopes.is_measuring():
                return
            self.frameworks.release()
            self._programs.take_off()
        self.sampler.close()  # outside the lock: its thread may be waiting for that

    def _user_resets(self, framework: Framework, index: int | None, reset: Callable[[], None]) -> None:
        with self._lock:
            if not self.scopes.is_measuring():  # a wrapper that could not be taken off yet
                reset()
                return
            self.discover()
            tracker = self.devices.tracker(framework.name, index)
        if tracker is None:
            reset()
        else:
            tracker.user_resets(reset)


def _devices_of(scopes: Iterable[Measuring]) -> dict[str, list[DeviceScope]]:
    """Return the parts of these scopes on the devices that NVML knows, by UUID."""
    found: dict[str, list[DeviceScope]] = {}
    for scope in scopes:
        for one in scope.device_scopes():
            if one.device.uuid:
                found.setdefault(one.device.uuid, []).append(one)
    return found


def _is_measuring() -> bool:
    return _machine is not None and _machine_pid == os.getpid() and _machine.scopes.is_measuring()


def _before_fork() -> None:
    if _machine is not None:
        _machine.before_fork()


def _after_fork_in_child() -> None:
    forks.wanted, forks.called = _is_measuring, _before_fork
    _making[0] = threading.Lock()
    if _machine is not None:
        _machine.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

forks.wanted, forks.called = _is_measuring, _before_fork

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
