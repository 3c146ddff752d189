"""One machine per process: every source, and the owner of each one's peaks.

Scopes ask it; it knows which are open, hands them devices that come to life, and puts everything
back once nobody measures.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from ..records import DRIVER, Diagnosis
from ..runtime import collector
from ..runtime.errors import named
from ..runtime.signals import is_from_a_handler
from ..sources import Device, DeviceCounter, Framework, Unavailable, driver
from ..sources.cupy import CuPy
from ..sources.jax import Jax
from ..sources.nvml import Nvml
from ..sources.process import Process
from ..sources.rmm import Rmm
from ..sources.tensorflow import TensorFlow
from ..sources.torch import Torch
from .ledger import RESERVED, Allowance, Holdings, Ledger, allowance
from .peaks import PeakOwner
from .sampler import Sampler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ..sources import DeviceMemory
    from .device_scope import DeviceWatch
    from .ledger import Shares

ENTRY_POINTS = "ipygpulogger.sources"

T = TypeVar("T")


class _Stand(NamedTuple):
    """Allocators at one moment; without a stamp where one of them has none."""

    reserved_bytes: int
    stamps: tuple[tuple[int, ...], ...] | None


class Measuring(Protocol):
    """Whoever measures: a `scope.Scope`, or `lines.Lines`."""

    def adopt(self, owner: PeakOwner, device: Device, *, sure: bool) -> None:
        """A framework began to use a device."""

    def adopt_pinned(self, owner: PeakOwner) -> None:
        """A framework began to count pinned memory."""

    def orphaned(self) -> bool:
        """Whether nobody will close it."""

    def close(self) -> None:
        """End it."""

    def watches(self) -> list[DeviceWatch]:
        """The devices that the sampler is to look at for it."""

    def sampled(self, resident_bytes: int) -> None:
        """The sampler looked at general RAM."""

    def device_sampled(
        self, uuid: str, used_bytes: int, other_bytes: int | None, found: Shares | None
    ) -> None:
        """The sampler looked at a device."""


class Machine:
    """Every source of this process, and the owner of each one's peaks. One per process: `machine()`."""

    def __init__(
        self,
        process: Process | None = None,
        nvml: Nvml | None = None,
        frameworks: Iterable[Framework] | None = None,
    ) -> None:
        self.process = process or Process()
        self.nvml = nvml or Nvml()
        self._ledger = Ledger(self.nvml)
        self._said: set[str] = set()
        self._notes: list[str] = []
        self._failed: dict[str, str] = {}  # the error of each source that is left out
        self.frameworks = tuple(self._find_frameworks() if frameworks is None else frameworks)
        for framework in self.frameworks:
            framework.on_user_reset = partial(self._user_resets, framework)
        self._ram: PeakOwner | None = None
        self.sampler = Sampler(self._sample)
        self._lock = threading.RLock()
        self._owners: dict[tuple[str, tuple[str, int]], PeakOwner] = {}  # by framework and device
        self._devices: dict[tuple[str, int], Device] = {}
        self._pinned: dict[str, PeakOwner] = {}
        # Held weakly: one that an interrupt kept from being closed ends with whoever had it.
        self._scopes: weakref.WeakSet[Measuring] = weakref.WeakSet()
        self._holders: weakref.WeakSet[object] = weakref.WeakSet()
        self._ran = True  # the user's code, since the last full collection

    @property
    def ram(self) -> PeakOwner:
        """The owner of general RAM's peaks.

        Raises:
            Unavailable: Nothing here tells the memory of this process just now.
        """
        if self._ram is None:
            with self._lock:
                self._ram = self._ram or PeakOwner(self.process.counter)
        return self._ram

    def _find_frameworks(self) -> Iterator[Framework]:
        """Ours, then those that other distributions offer."""
        yield from (Torch(), Jax(), CuPy(), TensorFlow(), Rmm())
        from importlib.metadata import entry_points  # 50 ms, unless IPython has it already

        try:
            entries = tuple(entry_points(group=ENTRY_POINTS))
        except Exception as error:  # no descriptors left, a broken distribution
            if is_from_a_handler(error):
                raise
            self._note(f"sources of other distributions cannot be looked for: {named(error)}")
            return
        for entry in entries:
            try:
                framework = entry.load()()
                if not isinstance(framework, Framework):
                    raise TypeError(f"{framework!r} is no Framework")  # noqa: TRY301 - said as any other failure
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                self._failed[entry.name] = named(error)
                self._note(f"the source {entry.name} of {entry.value} fails: {named(error)}")
            else:
                yield framework

    # -- settling ------------------------------------------------------------------------------

    def preload(self) -> None:
        """Create the current device's context if the user has imported its framework."""
        self._each(lambda framework: framework.preload())

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
                collector.collect()
            else:
                collector.collect(1)
        if clear_cache:
            self._each(lambda framework: framework.settle())

    def current_gpu(self) -> int | None:
        """The frameworks' current device; None without one."""
        indices = self._each(lambda framework: framework.current_index())
        return next((index for _, index in indices if index is not None), None)

    def hides_all_gpus(self) -> bool:
        """Whether CUDA shows this process no device, though the machine has some; nothing is initialised."""
        devices = self.nvml.devices()
        return bool(devices) and all(self._is_hidden(device.uuid) for device in devices)

    def _is_hidden(self, uuid: str | None) -> bool:
        """Whether CUDA surely does not show this process a device; once it is initialised, it has decided."""
        shown = driver.count()
        if shown is None:
            return any(device.uuid == uuid for device in self.nvml.hidden())
        uuids = [driver.facts(ordinal).uuid for ordinal in range(shown)]
        if None in uuids or (uuid or "").startswith("MIG-"):  # of a slice older CUDA tells the card's
            return not shown
        return uuid not in uuids

    def uuid(self, index: int) -> str | None:
        """The device that the frameworks count as this one; None where nobody knows.

        Nothing is initialised to find out, and no scope need be open.
        """
        counters = self._counting(index)
        known = self._identify(counters[0].device).uuid if counters else driver.facts(index).uuid
        if known is not None:
            return known
        seen = self.nvml.visible(index)
        return None if seen is None else seen.uuid

    def memory(self, index: int) -> DeviceMemory | None:
        """A whole device, all processes together; None where nobody tells."""
        self.nvml.devices()  # which opens the driver's library, if nobody has
        uuid = self.uuid(index)
        memory = self.nvml.memory(uuid) if uuid else None
        return memory or next((m for c in self._counting(index) if (m := c.device_memory())), None)

    def _counting(self, index: int) -> list[DeviceCounter]:
        """The frameworks' counters on the device that they count as this one."""
        answers = self._each(_counters_of)
        return [counter for _, counters in answers for counter in counters if counter.device.index == index]

    def load(self) -> None:
        """Import the frameworks and create contexts, in a process that exists only to `diagnose` them."""
        self._each(lambda framework: framework.load())
        self.preload()

    def diagnose(self) -> list[Diagnosis]:
        """What each source says of itself on this machine; why one was left out that failed."""
        found = [diagnosis for _, diagnosis in self._each(lambda f: f.diagnose()) if diagnosis]
        failed = [
            Diagnosis(name, "absent", f"fails and is left out: {e}") for name, e in self._failed.items()
        ]
        return [self.process.diagnose(), self.nvml.diagnose(), *found, *failed]

    def take_notes(self) -> tuple[str, ...]:
        """What went missing since the last call, each said once."""
        notes, self._notes = tuple(self._notes), []
        return (*notes, *self.nvml.take_notes())

    def _note(self, sentence: str) -> None:
        if self.first_time(sentence):
            self._notes.append(sentence)

    def _each(self, ask: Callable[[Framework], T]) -> list[tuple[Framework, T]]:
        """Every framework's answer; one that fails, which a stranger's may, is asked no further."""
        answers = []
        for framework in self.frameworks:
            try:
                answers.append((framework, ask(framework)))
            except BaseException as error:
                if is_from_a_handler(error):
                    raise
                self.frameworks = tuple(other for other in self.frameworks if other is not framework)
                self._failed[framework.name] = named(error)
                self._note(f"the source {framework.name} fails and is left out: {named(error)}")
        return answers

    def first_time(self, sentence: str) -> bool:
        """Whether this is news: what is missing is said once."""
        new = sentence not in self._said
        self._said.add(sentence)
        return new

    def hold(self, holder: object) -> None:
        """A logger runs from now on, until `release` or its death."""
        with self._lock:
            self._holders.add(holder)

    def release(self, holder: object) -> None:
        """It runs no longer, if it did; after the last nothing of ours stays in the frameworks."""
        with self._lock:
            self._holders.discard(holder)
        self._rest()

    def close(self) -> None:
        """Let the driver's library go, if nobody measures; the next scope opens it again."""
        with self._lock:
            if not self._holders and not self._scopes:
                self.nvml.close()
                self._ledger.close()
                self.process.close()

    # -- what scopes ask -----------------------------------------------------------------------

    def enter(self, scope: Measuring) -> None:
        """A scope opens."""
        self._end_orphans()
        with self._lock:
            self.nvml.devices()  # opened here, by one thread at a time
            self.discover()
            self._scopes.add(scope)

    def leave(self, scope: Measuring) -> None:
        """A scope is over."""
        with self._lock:
            self._ran = self._ran or scope in self._scopes
            self._scopes.discard(scope)
        self._end_orphans()
        self._rest()

    def _end_orphans(self) -> None:
        """Close the scopes that nobody else will."""
        for scope in self._measuring():
            if scope.orphaned():
                scope.close()

    def _measuring(self) -> list[Measuring]:
        with self._lock:
            return list(self._scopes)

    def _rest(self) -> None:
        """Where nobody measures any longer, nothing of ours stays in the frameworks."""
        with self._lock:
            if self._holders or self._scopes:
                return
            self._each(lambda framework: framework.release())
        self.sampler.close()  # outside the lock: its thread may be waiting for that

    def after_fork_in_child(self) -> None:
        """Another thread may have held a lock at the moment of the fork."""
        self._lock = threading.RLock()
        self.sampler = Sampler(self._sample)
        self.nvml.after_fork_in_child()
        self._each(lambda framework: framework.after_fork_in_child())

    def discover(self) -> None:
        """Take in the devices that came to life since; open scopes measure them from zero."""
        with self._lock:
            late = {framework.name for framework, late in self._each(lambda f: f.hold()) if late}
            for framework, counters in self._each(_counters_of):
                for counter in counters:
                    key = framework.name, counter.device.key
                    if key not in self._owners:
                        device = self._identify(counter.device)
                        owner = self._owners[key] = PeakOwner(counter)
                        for scope in list(self._scopes):
                            scope.adopt(owner, device, sure=framework.name not in late)
            for framework, pinned in self._each(lambda framework: framework.pinned()):
                if pinned is not None and framework.name not in self._pinned:
                    owner = self._pinned[framework.name] = PeakOwner(pinned)
                    for scope in list(self._scopes):
                        scope.adopt_pinned(owner)

    def devices(self) -> list[tuple[Device, list[PeakOwner]]]:
        """The frameworks' devices, by index, and the owner of each framework's peaks there."""
        found: dict[tuple[str, int], list[PeakOwner]] = {}
        for (_, key), owner in tuple(self._owners.items()):
            found.setdefault(key, []).append(owner)
        return [(self._devices[key], owners) for key, owners in sorted(found.items())]

    def pinned(self) -> list[PeakOwner]:
        """The owners of the frameworks' page-locked host memory."""
        return list(self._pinned.values())

    def _identify(self, device: Device) -> Device:
        """The same device with all that any framework, or NVML, tells of it."""
        known = self._devices.get(device.key)
        if known is None or known.uuid is None:
            seen = self.nvml.device(device.uuid)
            if seen is None and device.backend == "cuda":
                seen = (
                    self.nvml.visible(device.index)
                    if device.uuid is None
                    else self.nvml.device(driver.facts(device.index).uuid)  # older CUDA tells a slice's card
                )
            if seen is not None:
                total_bytes = seen.total_bytes or device.total_bytes
                device = replace(
                    device, uuid=seen.uuid, name=device.name or seen.name, total_bytes=total_bytes
                )
            self._devices[device.key] = device
        return self._devices[device.key]

    def holdings(self, device: Device, owners: Iterable[PeakOwner], *, ask: bool = True) -> Holdings:
        """One device now.

        Args:
            device: The device.
            owners: Of the frameworks' allocators on it.
            ask: Ask the driver for its list of processes, which is slow, where need be.

        Raises:
            Unavailable: An allocator does not tell.
        """
        take = self._ledger.take if ask else self._ledger.glance
        return take(device, tuple(owners), self._counters(device))

    def allowance(self, device: Device) -> Allowance:
        """What the frameworks' allocators on a device say beside their counts; a hidden one allows none."""
        if device.backend == DRIVER and self._is_hidden(device.uuid):
            return Allowance(0, None)
        return allowance(self._counters(device))

    def _counters(self, device: Device) -> list[DeviceCounter]:
        owners = tuple(self._owners.items())
        return [_device_counter(owner) for (_, key), owner in owners if key == device.key]

    def _user_resets(self, framework: Framework, index: int | None, reset: Callable[[], None]) -> None:
        with self._lock:
            if not self._holders and not self._scopes:  # a wrapper on its way out
                reset()
                return
            self.discover()
            owners = (
                owner
                for (name, (_, i)), owner in self._owners.items()
                if (name, i) == (framework.name, index)
            )
            owner = self._pinned.get(framework.name) if index is None else next(owners, None)
        if owner is None:
            reset()
        else:
            owner.user_resets(reset)

    def _sample(self) -> None:
        self._end_orphans()
        with self._lock:
            if not self._scopes:
                return
            self.discover()
            scopes = list(self._scopes)
            devices = {watch.device.uuid: watch.device for scope in scopes for watch in scope.watches()}
            owners = {device.uuid: owners for device, owners in self.devices()}
        with contextlib.suppress(Unavailable):
            resident_bytes = self.ram.look().readings[0].current_bytes
            for scope in scopes:
                scope.sampled(resident_bytes)
        for uuid in filter(None, devices):
            before = _stand(owners.get(uuid, ()))
            memory = self.nvml.memory(uuid)
            after = _stand(owners.get(uuid, ()))
            if memory is not None:
                # Only where the allocators stood still is it known what was outside them just then.
                still = before == after and after.stamps is not None
                other_bytes = memory.used_bytes - after.reserved_bytes if still else None
                watches = (w for scope in scopes for w in scope.watches() if w.device.uuid == uuid)
                found = None
                if other_bytes is not None and any(watch.asks(other_bytes) for watch in watches):
                    found = self._ledger.examine(devices[uuid], owners.get(uuid, []), memory)
                for scope in scopes:
                    scope.device_sampled(uuid, memory.used_bytes, other_bytes, found)


def _stand(owners: Iterable[PeakOwner]) -> _Stand:
    looks = []
    for owner in owners:
        try:
            looks.append(owner.look())
        except Unavailable:
            return _Stand(0, None)
    stamps = tuple(look.stamp for look in looks)
    return _Stand(
        sum(look.readings[RESERVED].current_bytes for look in looks), stamps if all(stamps) else None
    )


def _counters_of(framework: Framework) -> list[DeviceCounter]:
    counters = list(framework.counters())
    for counter in counters:
        if not isinstance(counter, DeviceCounter):
            raise TypeError(f"{counter!r} is no DeviceCounter")
    return counters


def _device_counter(owner: PeakOwner) -> DeviceCounter:
    counter = owner.counter
    assert isinstance(counter, DeviceCounter)
    return counter


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
    """The one machine of this process; a forked child makes its own."""
    global _machine, _machine_pid
    if _machine is None or _machine_pid != os.getpid():
        with _making[0]:
            if _machine is None or _machine_pid != os.getpid():
                _machine, _machine_pid = Machine(), os.getpid()
    return _machine
