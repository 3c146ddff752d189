"""NVML: what the driver says of each NVIDIA device, all processes together.

Every call may fail at any time (no driver, an update under our feet, a lost card, no permission);
each failure costs one figure, never a cell, and is said once.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..records import Diagnosis
from ..runtime import clock
from ..runtime.signals import is_from_a_handler
from . import DeviceMemory, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType


# The energy counter moves in steps of some tens of milliseconds: a shorter cell is below what it tells.
ENERGY_RESOLVES_S = 0.1


@dataclass(frozen=True, slots=True)
class NvmlDevice:
    """One device, or a MIG slice of one, as NVML knows it; its indices follow the PCI bus, CUDA's may not."""

    index: int
    name: str
    uuid: str
    total_bytes: int | None


class Processes(NamedTuple):
    """Who holds a device's memory, in bytes; None where the driver does not tell.

    Attributes:
        own: This process, everything included; 0 when it is not on the device.
        others: All other processes that the driver lists.
    """

    own: int | None
    others: int | None


class Nvml:
    """The driver's library, opened by whoever asks for the devices, and again after a fork.

    Any thread may ask while another one closes it. Only a question for the devices opens it, so that no
    thread of ours that is a little late opens again what was closed.
    """

    def __init__(self) -> None:
        self._gate = threading.RLock()  # of what opens and closes; nobody holds it during a question
        self._asking: set[int] = set()  # the threads that are in the library just now
        self._closing = False  # it is to be closed once the last of them is out of it
        self._pid = 0  # of the process that opened it
        self._module: ModuleType | None = None
        self._handles: dict[str, Any] = {}
        self._devices: tuple[NvmlDevice, ...] = ()
        self._memory_version: dict[str, int | None] = {}
        self._without: dict[str, str] = {}
        self._said: set[str] = set()
        self._unsaid: list[str] = []

    def devices(self) -> tuple[NvmlDevice, ...]:
        """Every device of the machine, whatever CUDA_VISIBLE_DEVICES hides from the frameworks."""
        if self._pid != os.getpid() or self._closing:
            with self._gate:
                self._closing = False
                if self._pid != os.getpid():
                    self._open()
        return self._devices

    def device(self, uuid: str | None) -> NvmlDevice | None:
        """The device of this UUID, however its kind ("GPU-", "MIG-") is written; None if NVML has none."""
        if uuid is None:
            return None
        return next((one for one in self.devices() if _bare(one.uuid) == _bare(uuid)), None)

    def visible(self, ordinal: int) -> NvmlDevice | None:
        """The device that CUDA counts as this one, told from the environment; None where it cannot be told.

        CUDA_VISIBLE_DEVICES selects by index, by UUID or by the beginning of one, up to the first entry
        that is no device (CUDA Programming Guide, environment variables). Unless CUDA_DEVICE_ORDER is
        PCI_BUS_ID, indices run from the fastest device to the slowest: known only where all are alike.
        """
        devices, chosen = self.devices(), os.environ.get("CUDA_VISIBLE_DEVICES")
        if chosen is None:
            return next((d for d in devices if self._in_order() and d.index == ordinal), None)
        found = []
        for entry, matches in self._chosen(chosen).items():
            if len(matches) != 1 or (entry.isdecimal() and not self._in_order()):
                break
            found.append(matches[0])
        return found[ordinal] if ordinal < len(found) else None

    def hidden(self) -> tuple[NvmlDevice, ...]:
        """The devices that CUDA_VISIBLE_DEVICES hides from CUDA; none of those of which that is not sure."""
        chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
        if chosen is None:
            return ()
        entries = self._chosen(chosen)
        if not self._in_order() and any(map(str.isdecimal, entries)):
            return ()
        shown = [device for matches in entries.values() for device in matches]
        return tuple(device for device in self.devices() if device not in shown)

    def _in_order(self) -> bool:
        """Whether CUDA's indices follow the PCI bus as NVML's do."""
        names = {device.name for device in self.devices()}
        return os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len(names) == 1

    def _chosen(self, chosen: str) -> dict[str, list[NvmlDevice]]:
        """What each entry of CUDA_VISIBLE_DEVICES may mean; an index may mean any slice of a card.

        The same device twice leaves none at all, as torch has it (`_parse_visible_devices` in
        `torch/cuda/__init__.py`).
        """
        found: dict[str, list[NvmlDevice]] = {}
        for entry in map(str.strip, chosen.split(",")):
            if entry.isdecimal():
                matches = [d for d in self.devices() if d.index == int(entry)]
            else:
                matches = [d for d in self.devices() if entry and d.uuid.startswith(entry)]
            if matches in found.values():
                return {}
            if not matches or (len(matches) > 1 and not entry.isdecimal()):
                break
            found[entry] = matches
        return found

    def memory(self, uuid: str) -> DeviceMemory | None:
        """The whole device, all processes.

        The same version of the question throughout: v1, of drivers before R510, counts what the driver
        keeps for itself as used, v2 does not (nvml-wrapper#57).
        """
        with self._device(uuid) as (module, handle):
            if module is None:
                return None
            memory: DeviceMemory | None = self._ask(lambda: self._memory(uuid, handle), "device memory")
            return memory

    def memory_of(self, handle: Any) -> DeviceMemory | None:
        """The whole device of a handle of pynvml's own; None without a driver.

        Raises:
            pynvml.NVMLError: The driver does not tell.
        """
        if not self.devices():
            return None
        with self._library() as module:
            return None if module is None else self._memory(module.nvmlDeviceGetUUID(handle), handle)

    def processes(self, uuid: str) -> Processes:
        """Who holds the device's memory.

        Nobody tells without permission, under Windows and WSL, and in containers, where the driver
        speaks of the host's pids, which mean nothing here.

        Slow (4.5 ms on one laptop, holding a driver-wide lock): for boundaries where something moved.
        """
        with self._device(uuid) as (module, handle):
            if module is None:
                return Processes(None, None)
            rows = self._ask(lambda: module.nvmlDeviceGetComputeRunningProcesses(handle), "processes")
        if rows is None:
            return Processes(None, None)
        mine = [row.usedGpuMemory for row in rows if row.pid == os.getpid()]
        theirs = [row.usedGpuMemory for row in rows if row.pid != os.getpid()]
        if not mine and not all(_exists(row.pid) for row in rows):  # the host's pids
            return Processes(None, None)
        return Processes(_sum(mine), _sum(theirs))

    def fails(self, what: str) -> bool:
        """Whether the driver's last answer to this question was an error."""
        return what in self._without

    def energy_j(self, uuid: str) -> float:
        """What the device has used up since the driver was loaded, all processes together.

        Raises:
            Unavailable: The driver does not tell (before Volta, under MIG and WSL).
        """
        with self._device(uuid) as (module, handle):
            if module is None:
                raise Unavailable("NVML does not know this device")
            try:
                return int(module.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1000
            except Exception as error:  # as in `_ask`
                if is_from_a_handler(error):
                    raise
                raise Unavailable(f"the driver does not tell: {_reason(module, error)}") from error

    def utilization_percent(self, uuid: str, since_s: float) -> float:
        """The share of time in which any kernel ran: the mean of the driver's own samples since then.

        Args:
            uuid: The device.
            since_s: Seconds of the epoch. The driver takes a sample every sixth of a second to a second.

        Raises:
            Unavailable: The driver took no sample since, or tells none.
        """
        with self._device(uuid) as (module, handle):
            if module is None:
                raise Unavailable("NVML does not know this device")
            try:
                _, samples = module.nvmlDeviceGetSamples(
                    handle, module.NVML_GPU_UTILIZATION_SAMPLES, int(since_s * 1e6)
                )
            except module.NVMLError_NotFound:
                samples = []
            except Exception as error:  # as in `_ask`
                if is_from_a_handler(error):
                    raise
                raise Unavailable(f"the driver does not tell: {_reason(module, error)}") from error
        now_s = clock.wall_s()
        values = [s.sampleValue.uiVal for s in samples if since_s <= s.timeStamp / 1e6 <= now_s]
        if not values:
            raise Unavailable("too short for the driver's samples")
        return float(sum(values) / len(values))

    def take_notes(self) -> tuple[str, ...]:
        """What went missing since the last call, each said once."""
        notes, self._unsaid = tuple(self._unsaid), []
        return notes

    def close(self) -> None:
        """Let the library go; the next question for the devices opens it again.

        While another thread is in it, which on a driver that hangs may be for good, it stays open: that
        thread closes it on its way out. Closing it under a question would free what the driver works on.
        """
        with self._gate:
            self._asking.discard(threading.get_ident())  # whoever closes it is in no question
            module = self._module if self._pid == os.getpid() else None
            if module is not None and self._asking:
                self._closing = True
                return
            if module is not None:
                self._shut_down(module)
            self._forget()

    def after_fork_in_child(self) -> None:
        """Another thread may have held the lock, and is not here."""
        self._gate = threading.RLock()
        self._asking.clear()

    def diagnose(self) -> Diagnosis:
        """Whether the driver answers, and which devices it has."""
        if devices := self.devices():
            missing, hidden = "; ".join(self._without.values()), self.hidden()
            return Diagnosis(
                "NVML",
                "sampled",
                f"driver {self._driver_version()}, {len(devices)} device(s): "
                + ", ".join(f"{device.name}" for device in devices)
                + (f"; CUDA_VISIBLE_DEVICES hides {_count(hidden, devices)} from CUDA" if hidden else "")
                + (f"; missing: {missing}" if missing else "; whole-device figures"),
            )
        reason = "; ".join(self._without.values()) or "the driver knows no device"
        remedy = next((does for trouble, does in _REMEDY.items() if trouble in reason), None)
        return Diagnosis("NVML", "absent", reason, remedy)

    def _open(self) -> None:
        """Find the driver and its devices; without them there are simply none."""
        self._forget()
        self._asking.clear()
        self._without.clear()
        pid = os.getpid()
        try:
            import pynvml
        except ImportError:
            self._without["import"] = "nvidia-ml-py is not installed"
            self._pid = pid
            return
        except Exception as error:  # broken, or no descriptor is left to read it
            if is_from_a_handler(error):
                raise
            self._without["import"] = _reason(None, error)
            self._say("import", f"no figures of the whole GPU: {self._without['import']}")
            self._pid = pid
            return
        opened_before = _openings(pynvml)
        try:
            self._initialise(pynvml)
            self._pid = pid  # last: an opening that was interrupted is done again
        except BaseException:  # what is open now is known to nobody
            if _openings(pynvml) > opened_before:
                self._shut_down(pynvml)
            self._forget()
            raise

    def _initialise(self, pynvml: ModuleType) -> None:
        try:
            pynvml.nvmlInit()
        except Exception as error:  # another module may go by the name of pynvml
            if is_from_a_handler(error):
                raise
            reason = _reason(pynvml, error)
            self._without["open"] = reason
            if reason != _NO_DRIVER:
                self._say("open", f"no figures of the whole GPU: {reason}")
            return
        self._module = pynvml
        count = self._ask(pynvml.nvmlDeviceGetCount, "device count") or 0
        found = [self._ask(partial(self._find, index), f"device {index}") or [] for index in range(count)]
        self._devices = tuple(device for devices in found for device in devices)

    def _shut_down(self, module: ModuleType) -> None:
        opened = _openings(module)
        try:
            module.nvmlShutdown()
        except module.NVMLError:
            pass
        except BaseException:
            if _openings(module) < opened:  # interrupted, but done: once more would close the user's own
                self._forget()
            raise

    def _forget(self) -> None:
        self._pid, self._devices, self._module, self._closing = 0, (), None, False
        self._handles.clear()

    @contextlib.contextmanager
    def _library(self) -> Iterator[ModuleType | None]:
        """The library, which nobody closes meanwhile; None while it is closed."""
        thread = threading.get_ident()
        within = thread in self._asking  # another question of this thread's
        try:
            with self._gate:
                self._asking.add(thread)
                module = self._module if self._pid == os.getpid() else None
            yield module
        finally:
            if not within:
                self._asking.discard(thread)
                if self._closing:
                    self.close()

    @contextlib.contextmanager
    def _device(self, uuid: str) -> Iterator[tuple[ModuleType | None, Any]]:
        """The library and a handle of this device; None twice while it is closed or knows none."""
        with self._library() as module:
            handle = None if module is None else self._handles.get(_bare(uuid))
            yield (None, None) if handle is None else (module, handle)

    def _find(self, index: int) -> list[NvmlDevice]:
        """A device, or its slices: of a card in MIG mode NVML tells what all slices use together."""
        module = self._module
        assert module is not None
        handle = module.nvmlDeviceGetHandleByIndex(index)
        slices = self._slices(handle)
        return [self._describe(index, one) for one in ([handle] if slices is None else slices)]

    def _slices(self, handle: Any) -> list[Any] | None:
        """The MIG slices of a card; None where it is not divided."""
        module = self._module
        assert module is not None
        try:
            if module.nvmlDeviceGetMigMode(handle)[0] != module.NVML_DEVICE_MIG_ENABLE:
                return None
            slots = module.nvmlDeviceGetMaxMigDeviceCount(handle)
        except (module.NVMLError, AttributeError):  # no such card, driver or binding
            return None
        slices = []
        for slot in range(slots):
            try:
                slices.append(module.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot))
            except module.NVMLError:  # an empty slot
                continue
        return slices

    def _describe(self, index: int, handle: Any) -> NvmlDevice:
        module = self._module
        assert module is not None
        uuid = module.nvmlDeviceGetUUID(handle)
        name = module.nvmlDeviceGetName(handle)
        self._handles[_bare(uuid)] = handle
        memory = self._ask(lambda: self._memory(uuid, handle), "device memory")
        return NvmlDevice(index, name, uuid, None if memory is None else memory.total_bytes)

    def _memory(self, uuid: str, handle: Any) -> DeviceMemory:
        module, key = self._module, _bare(uuid)
        assert module is not None
        if key not in self._memory_version:
            try:
                module.nvmlDeviceGetMemoryInfo(handle, version=module.nvmlMemory_v2)
                self._memory_version[key] = module.nvmlMemory_v2
            except (module.NVMLError_FunctionNotFound, module.NVMLError_ArgumentVersionMismatch):
                self._memory_version[key] = None  # a driver before R510
        version = self._memory_version[key]
        info = module.nvmlDeviceGetMemoryInfo(handle, version=version)
        return DeviceMemory(int(info.total), int(info.used), int(info.free), driver_in_used=version is None)

    def _ask(self, question: Callable[[], Any], what: str) -> Any:
        """The driver's answer, or None where it gives an error; the first of each kind is noted."""
        module = self._module
        assert module is not None
        try:
            answer = question()
        except Exception as error:  # pynvml may fail in any way
            if is_from_a_handler(error):
                raise
            if what:
                self._without[what] = f"{what}: {_reason(module, error)}"
                self._say(what, f"the driver does not tell {self._without[what]}")
            return None
        self._without.pop(what, None)
        return answer

    def _say(self, what: str, sentence: str) -> None:
        if what not in self._said:
            self._said.add(what)
            self._unsaid.append(sentence)

    def _driver_version(self) -> str:
        with self._library() as module:
            if module is None:
                return "?"
            return str(self._ask(module.nvmlSystemGetDriverVersion, "driver version") or "?")


_NO_DRIVER = "no NVIDIA driver"
_REMEDY = {
    "nvidia-ml-py is not installed": "pip install nvidia-ml-py",
    _NO_DRIVER: "if this machine has an NVIDIA GPU, install its driver",
    "the driver's library and kernel module differ": "restart the machine: the driver was updated",
    "no permission": "ask for access to the /dev/nvidia* files",
}


def _reason(module: ModuleType | None, error: Exception) -> str:
    """One of the known troubles in plain words, NVML's own, or how pynvml itself fails."""
    if module is None or not isinstance(error, getattr(module, "NVMLError", ())):
        return f"pynvml fails: {str(error) or type(error).__name__}"
    known = {
        module.NVMLError_LibraryNotFound: _NO_DRIVER,
        module.NVMLError_DriverNotLoaded: _NO_DRIVER,
        module.NVMLError_LibRmVersionMismatch: "the driver's library and kernel module differ",
        module.NVMLError_NoPermission: "no permission",
    }
    return known.get(type(error)) or f"NVML says {str(error)!r}"


def _openings(module: ModuleType) -> int:
    """How often the library is open in this process, the user's own openings included; 0 if nobody tells."""
    return int(getattr(module, "_nvmlLib_refcount", 0))


def _count(some: Sequence[Any], among: Sequence[Any]) -> str:
    return "them all" if len(some) == len(among) else f"{len(some)} of them"


def _bare(uuid: str) -> str:
    """The UUID without its kind: CUDA does not write "MIG-"."""
    return uuid.partition("-")[2] if uuid.startswith(("GPU-", "MIG-")) else uuid


def _sum(sizes: list[int | None]) -> int | None:
    return None if None in sizes else sum(size or 0 for size in sizes)


def _exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
