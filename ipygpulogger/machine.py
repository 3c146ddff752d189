"""One machine per process: every source, and the owner of each one's peaks.

Scopes ask it; it knows which are open, hands them devices that come to life, and puts everything
back once nobody measures.
"""

from __future__ import annotations

import gc
import os
import threading
from typing import TYPE_CHECKING, NamedTuple

from .peaks import PeakOwner
from .sampler import Sampler
from .sources import Device, DeviceCounter
from .sources.nvml import Nvml
from .sources.process import Process
from .sources.torch import Torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from .records import Diagnosis
    from .scope import Scope

ALLOCATED, RESERVED = 0, 1  # the series of a device's counter


class Holdings(NamedTuple):
    """One device at one boundary, in bytes; None where unknown."""

    allocated: int | None
    reserved: int | None
    device_used: int | None
    process: int | None

    @property
    def other(self) -> int | None:
        """In use outside the framework's allocator, whoever holds it."""
        return None if self.device_used is None else self.device_used - (self.reserved or 0)

    @property
    def outside(self) -> int | None:
        """Held by this process outside the framework's allocator: context, libraries, raw allocations."""
        return None if self.process is None else self.process - (self.reserved or 0)

    @property
    def neighbours(self) -> int | None:
        """Held by other processes."""
        if self.device_used is None or self.process is None:
            return None
        return max(0, self.device_used - self.process)


class Machine:
    """Every source of this process, and the owner of each one's peaks. One per process: `machine()`."""

    def __init__(
        self, process: Process | None = None, nvml: Nvml | None = None, torch: Torch | None = None
    ) -> None:
        self.process = process or Process()
        self.nvml = nvml or Nvml()
        self.frameworks = (torch or Torch(),)
        self.ram = PeakOwner(self.process.counter)
        for framework in self.frameworks:
            framework.on_user_reset = self._user_resets
        self.sampler = Sampler(self._sample)
        self._lock = threading.RLock()
        self._owners: dict[tuple[str, int], PeakOwner] = {}
        self._scopes: set[Scope] = set()
        self._holders = 0
        self._said: set[str] = set()
        self._outside: dict[str, tuple[int, int | None]] = {}  # uuid: (other bytes, of these ours)
        self._ran = True  # the user's code, since the last full collection

    # -- settling ------------------------------------------------------------------------------

    def preload(self) -> None:
        """Create the current device's context if the user has imported its framework."""
        for framework in self.frameworks:
            framework.preload()

    def settle(self, *, gc_collect: bool, clear_cache: bool) -> None:
        """Bring memory to rest before a snapshot.

        Where no scope ended since the last full collection, only what little came since is collected:
        a full one costs 0.1 s once torch is imported (measured).

        Args:
            gc_collect: Collect garbage.
            clear_cache: Empty the frameworks' caches.
        """
        if gc_collect:
            if self._ran:
                self._ran = False
                gc.collect()
            else:
                gc.collect(1)
        if clear_cache:
            for framework in self.frameworks:
                framework.settle()

    def current_gpu(self) -> int | None:
        """The frameworks' current device; None without one."""
        indices = (framework.current_index() for framework in self.frameworks)
        return next((index for index in indices if index is not None), None)

    def diagnose(self) -> list[Diagnosis]:
        """What each source says of itself on this machine."""
        return [
            self.process.diagnose(),
            self.nvml.diagnose(),
            *(framework.diagnose() for framework in self.frameworks),
        ]

    def first_time(self, sentence: str) -> bool:
        """Whether this is news: what is missing is said once."""
        new = sentence not in self._said
        self._said.add(sentence)
        return new

    def hold(self) -> None:
        """A logger runs from now on."""
        with self._lock:
            self._holders += 1

    def release(self) -> None:
        """One less; after the last nothing of ours stays in the frameworks."""
        with self._lock:
            self._holders -= 1
            self._rest()

    def close(self) -> None:
        """Let the driver's library go, if nobody measures; the next scope opens it again."""
        with self._lock:
            if not self._holders and not self._scopes:
                self.nvml.close()
                self._outside.clear()

    # -- what scopes ask -----------------------------------------------------------------------

    def enter(self, scope: Scope) -> None:
        """A scope opens."""
        with self._lock:
            self.nvml.devices()  # opened here, by one thread at a time
            self.discover()
            self._scopes.add(scope)

    def leave(self, scope: Scope) -> None:
        """A scope is over."""
        with self._lock:
            if scope in self._scopes:
                self._scopes.discard(scope)
                self._ran = True
                self._rest()

    def _rest(self) -> None:
        """Where nobody measures any longer, nothing of ours stays in the frameworks."""
        if not self._holders and not self._scopes:
            self.sampler.close()
            for framework in self.frameworks:
                framework.release()

    def after_fork_in_child(self) -> None:
        """Another thread may have held the lock at the moment of the fork."""
        self._lock = threading.RLock()
        self.sampler = Sampler(self._sample)

    def discover(self) -> None:
        """Take in the devices that came to life since; open scopes measure them from zero."""
        with self._lock:
            for framework in self.frameworks:
                framework.hold()
                for counter in framework.counters():
                    key = counter.device.backend, counter.device.index
                    if key not in self._owners:
                        owner = self._owners[key] = PeakOwner(counter)
                        for scope in self._scopes:
                            scope.adopt(owner, counter.device)

    def devices(self) -> list[tuple[DeviceCounter, PeakOwner]]:
        """The frameworks' devices, by index."""
        return [(_device_counter(owner), owner) for _, owner in sorted(self._owners.items())]

    def holdings(self, device: Device, owner: PeakOwner | None) -> Holdings:
        """One device now. The slow question, which process holds what, is asked only if something moved.

        Raises:
            Unavailable: The framework's allocator does not tell.
        """
        allocated = reserved = None
        if owner is not None:
            readings = owner.look().readings
            allocated, reserved = readings[ALLOCATED].current_bytes, readings[RESERVED].current_bytes
        used = self.nvml.used_bytes(device.uuid) if device.uuid else None
        if used is None:
            used = _device_counter(owner).device_used_bytes() if owner is not None else None
            return Holdings(allocated, reserved, used, None)
        uuid, other = device.uuid or "", used - (reserved or 0)
        if uuid not in self._outside or self._outside[uuid][0] != other:
            process = self.nvml.process_bytes(uuid)
            if reserved is not None and process is not None and process <= reserved:
                process = None  # with a context it is more than that: this is not about us
            self._outside[uuid] = other, None if process is None else process - (reserved or 0)
        outside = self._outside[uuid][1]
        return Holdings(allocated, reserved, used, None if outside is None else outside + (reserved or 0))

    def _user_resets(self, index: int, reset: Callable[[], None]) -> None:
        with self._lock:
            if not self._holders and not self._scopes:  # a wrapper on its way out
                reset()
                return
            self.discover()
            owner = next((o for (_, i), o in self._owners.items() if i == index), None)
        if owner is None:
            reset()
        else:
            owner.user_resets(reset)

    def _sample(self) -> None:
        with self._lock:
            watches = [watch for scope in self._scopes for watch in scope.watches()]
        for uuid in {watch.device.uuid for watch in watches if watch.device.uuid}:
            if not self._scopes:  # over meanwhile: a question now would open the library again
                return
            used_bytes = self.nvml.used_bytes(uuid)
            for watch in watches:
                if watch.device.uuid == uuid and used_bytes is not None:
                    watch.highest_used_bytes = max(watch.highest_used_bytes, used_bytes)


def _device_counter(owner: PeakOwner) -> DeviceCounter:
    counter = owner.counter
    assert isinstance(counter, DeviceCounter)
    return counter


def _after_fork_in_child() -> None:
    if _machine is not None:
        _machine.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

_machine: Machine | None = None
_machine_pid = 0


def machine() -> Machine:
    """The one machine of this process; a forked child makes its own."""
    global _machine, _machine_pid
    if _machine is None or _machine_pid != os.getpid():
        _machine, _machine_pid = Machine(), os.getpid()
    return _machine
