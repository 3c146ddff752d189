"""One machine per process: it holds every source, and knows who measures.

Its parts know one thing each. What concerns several of them at once is done here, under one lock: a scope
opens or closes, a device comes to life, the user resets a counter, nobody measures any longer.
"""

from __future__ import annotations

import contextlib
import os
import threading
from functools import partial
from typing import TYPE_CHECKING

from ..records import DRIVER, Diagnosis
from ..sources import Unavailable
from ..sources.nvml import Nvml
from ..sources.process import Process
from .allocators import Allocators
from .devices import Devices
from .frameworks import Frameworks
from .ledger import Allowance, DeviceSnapshot, Ledger, allowance
from .notes import Notes
from .open_scopes import OpenScopes
from .peaks import PeakTracker
from .sampler import Sampler
from .sampling import sample_device, sample_ram
from .settling import Settling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..sources import Device, Framework
    from .open_scopes import Measuring


class Machine:
    """Every source of this process. One per process: `machine()`.

    Attributes:
        process: General RAM.
        nvml: The driver's view of the devices.
        frameworks: Those that count memory of their own.
        devices: Which device is which.
        allocators: The frameworks' allocators in use, and the trackers of their peaks.
        settling: What brings memory to rest.
        scopes: Who measures.
        ledger: Who holds what on each device.
        sampler: The thread that looks while a scope lasts.
        notes: What could not be measured.
    """

    def __init__(
        self,
        process: Process | None = None,
        nvml: Nvml | None = None,
        frameworks: Iterable[Framework] | None = None,
    ) -> None:
        self.process = process or Process()
        self.nvml = nvml or Nvml()
        self.notes = Notes()
        self.frameworks = Frameworks(self.notes, frameworks)
        for framework in self.frameworks.known():
            framework.on_user_reset = partial(self._user_resets, framework)
        self.devices = Devices(self.nvml, self.frameworks)
        self.allocators = Allocators(self.frameworks, self.devices)
        self.settling = Settling(self.frameworks)
        self.scopes = OpenScopes()
        self.sampler = Sampler(self.sample)
        self.ledger = Ledger(self.nvml)
        self._ram: PeakTracker | None = None
        self._lock = threading.RLock()

    @property
    def ram(self) -> PeakTracker:
        """The tracker of general RAM's peaks.

        Raises:
            Unavailable: Nothing here tells the memory of this process just now.
        """
        if self._ram is None:
            with self._lock:
                self._ram = self._ram or PeakTracker(self.process.counter)
        return self._ram

    def snapshot(
        self, device: Device, trackers: Iterable[PeakTracker], *, ask: bool = True
    ) -> DeviceSnapshot:
        """Return who holds what on a device now.

        Args:
            device: The device.
            trackers: Of the frameworks' allocators on it.
            ask: Ask the driver for its list of processes, which is slow, where need be.

        Raises:
            Unavailable: An allocator does not tell.
        """
        take = self.ledger.take if ask else self.ledger.glance
        return take(device, tuple(trackers), self.allocators.counters(device))

    def allowance(self, device: Device) -> Allowance:
        """Return what the allocators on a device say beside their counts; a hidden device allows nothing."""
        if device.backend == DRIVER and self.devices.is_hidden(device.uuid):
            return Allowance(0, None)
        return allowance(self.allocators.counters(device))

    def take_notes(self) -> tuple[str, ...]:
        """Return what went missing since the last call, each told once."""
        return (*self.notes.take(), *self.nvml.take_notes())

    def load(self) -> None:
        """Import the frameworks and create contexts, in a process that exists only to `diagnose` them."""
        self.frameworks.ask(lambda framework: framework.load(), self.frameworks.known())
        self.settling.preload()

    def diagnose(self) -> list[Diagnosis]:
        """Return what each source says of itself on this machine; of one that was left out, why."""
        answers = self.frameworks.ask(lambda framework: framework.diagnose(), self.frameworks.known())
        failures = self.frameworks.failures().items()
        failed = [Diagnosis(name, "absent", f"fails and is left out: {error}") for name, error in failures]
        found = [diagnosis for _, diagnosis in answers if diagnosis]
        return [self.process.diagnose(), self.nvml.diagnose(), *found, *failed]

    # -- who measures --------------------------------------------------------------------------

    def attach(self, logger: object) -> None:
        """Stay ready between the scopes of a logger, until `detach` or its death."""
        with self._lock:
            self.scopes.loggers.add(logger)

    def detach(self, logger: object) -> None:
        """Let a logger go, if it was attached; after the last, nothing of ours stays in the frameworks."""
        with self._lock:
            self.scopes.loggers.discard(logger)
        self._rest()

    def enter(self, scope: Measuring) -> None:
        """Take in a scope that opens."""
        self._end_orphans()
        with self._lock:
            self.nvml.devices()  # opened here, by one thread at a time
            self.discover()
            self.scopes.add(scope)

    def leave(self, scope: Measuring) -> None:
        """Let a scope go that is over."""
        with self._lock:
            if scope in self.scopes:
                self.settling.users_code_ran()
            self.scopes.discard(scope)
        self._end_orphans()
        self._rest()

    def discover(self) -> None:
        """Take in the devices that came to life since; open scopes measure them from zero."""
        with self._lock:
            for device, tracker, sure in self.allocators.discover():
                for scope in self.scopes:
                    if device is None:
                        scope.adopt_pinned(tracker)
                    else:
                        scope.adopt(tracker, device, sure=sure)

    def sample(self) -> None:
        """Look at everything once for the open scopes, as the sampler does while they last."""
        self._end_orphans()
        with self._lock:
            scopes = list(self.scopes)
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
        for uuid, device in devices.items():
            if uuid:
                sample_device(scopes, device, trackers.get(uuid, []), self.nvml, self.ledger)

    def close(self) -> None:
        """Let the driver's library go, if nobody measures; the next scope opens it again."""
        with self._lock:
            if not self.scopes.anybody():
                self.nvml.close()
                self.ledger.close()
                self.process.close()

    def after_fork_in_child(self) -> None:
        """Make locks anew: another thread may have held one at the moment of the fork."""
        self._lock = threading.RLock()
        self.sampler = Sampler(self.sample)
        self.nvml.after_fork_in_child()
        self.frameworks.ask(lambda framework: framework.after_fork_in_child(), self.frameworks.known())

    def _end_orphans(self) -> None:
        """Close the scopes that nobody else will."""
        with self._lock:
            scopes = list(self.scopes)
        for scope in scopes:
            if scope.orphaned():
                scope.close()

    def _rest(self) -> None:
        """Where nobody measures any longer, take whatever is ours out of the frameworks."""
        with self._lock:
            if self.scopes.anybody():
                return
            self.frameworks.release()
        self.sampler.close()  # outside the lock: its thread may be waiting for that

    def _user_resets(self, framework: Framework, index: int | None, reset: Callable[[], None]) -> None:
        with self._lock:
            if not self.scopes.anybody():  # a wrapper on its way out
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
# Held while the machine is made: two, for threads that ask first together, would reset each other's peaks.
_making = [threading.Lock()]


def machine() -> Machine:
    """Return the one machine of this process; a forked child makes its own."""
    global _machine, _machine_pid
    if _machine is None or _machine_pid != os.getpid():
        with _making[0]:
            if _machine is None or _machine_pid != os.getpid():
                _machine, _machine_pid = Machine(), os.getpid()
    return _machine
