"""NVML: what the driver reports of each NVIDIA device, all processes together.

Every call may fail at any time: no driver, an update of it, a lost card, no permission. Each failure costs
one figure, never a cell, and is reported once.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...records import Diagnosis
from ...runtime import clock
from ...runtime.errors import is_from_a_handler
from ..contract import DeviceMemory, Unavailable
from . import driver
from .library import Missing, NvmlLibrary, reason, remedy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType


# The energy counter moves in steps of some tens of milliseconds: it shows nothing of a shorter cell.
ENERGY_RESOLVES_S = 0.1


@dataclass(frozen=True, slots=True)
class NvmlDevice:
    """One device, or a MIG slice of one, as NVML knows it."""

    index: int  # NVML's, which follows the PCI bus; CUDA's may differ. All slices of a card share it
    name: str  # the name of the product
    uuid: str  # "GPU-..." or "MIG-..."
    total_bytes: int | None  # none if the driver does not report it


class Processes(NamedTuple):
    """Per-process usage of a device, in bytes; None where it is unavailable."""

    own: int | None  # this process, everything included; 0 if it is not on the device
    others: int | None  # all other processes that the driver lists


class Nvml:
    """The driver's figures of whole devices.

    Any thread may ask. Only `devices` opens NVML's library, so that a thread of ours that comes late does
    not open it again after `close`.
    """

    def __init__(self) -> None:
        self._missing = Missing()
        self._library = NvmlLibrary(self._missing, self._find_devices, self._forget_devices)
        self._handles: dict[str, Any] = {}
        self._devices: tuple[NvmlDevice, ...] = ()
        self._listed: dict[str, dict[int, int | None]] = {}  # by device, at the last query
        self._memory_version: dict[str, int | None] = {}
        self._row_classes: set[Any] = set()

    def devices(self) -> tuple[NvmlDevice, ...]:
        """Return every device of the machine, also those that `CUDA_VISIBLE_DEVICES` hides."""
        self._library.open()
        return self._devices

    def device(self, uuid: str | None) -> NvmlDevice | None:
        """Return the device of a UUID, whichever prefix ("GPU-", "MIG-") it has; None if there is none."""
        if uuid is None:
            return None
        return next((one for one in self.devices() if _bare(one.uuid) == _bare(uuid)), None)

    def visible(self, ordinal: int) -> NvmlDevice | None:
        """Return the device that CUDA counts as this one; None if the environment leaves it open."""
        return driver.visible(self.devices(), ordinal)

    def hidden(self) -> tuple[NvmlDevice, ...]:
        """Return the devices that `CUDA_VISIBLE_DEVICES` certainly hides from CUDA."""
        return driver.hidden(self.devices())

    def memory(self, uuid: str) -> DeviceMemory | None:
        """Return the memory of a whole device, all processes together; None if it is unavailable.

        A device is asked by the same version of the query each time: v1, for drivers before R510, counts
        what the driver reserves as used, v2 does not (nvml-wrapper#57).
        """
        with self._library.use() as module:
            handle = self._handles.get(_bare(uuid))
            return None if module is None or handle is None else self._ask_memory(module, uuid, handle)

    def memory_of(self, handle: Any) -> DeviceMemory | None:
        """Return the memory of the device of a pynvml handle, or raise its error; None without a driver."""
        if not self.devices():
            return None
        with self._library.use() as module:
            return None if module is None else self._memory(module, module.nvmlDeviceGetUUID(handle), handle)

    def processes(self, uuid: str) -> Processes:
        """Return which processes hold a device's memory.

        Per-process usage is unavailable without permission, under Windows and WSL, and in containers,
        where the driver lists the host's pids.

        This is slow (4.5 ms on one laptop, holding a driver-wide lock). So it is called only at the ends of
        scopes, and only if memory outside the allocators changed.
        """
        rows = None
        with self._library.use() as module:
            handle = self._handles.get(_bare(uuid))
            if module is not None and handle is not None:
                rows = self._ask(
                    module, lambda: module.nvmlDeviceGetComputeRunningProcesses(handle), "processes"
                )
            if rows and (row_class := getattr(module, "c_nvmlProcessInfo_v3_t", None)):
                # pynvml makes a class for so many rows: held, it is no garbage of the user's.
                self._row_classes.add(row_class * (2 * len(rows) + 5))
        self._listed.pop(_bare(uuid), None)
        mine = [row.usedGpuMemory for row in rows or () if row.pid == os.getpid()]
        if rows is None or (not mine and not all(Path(f"/proc/{row.pid}").exists() for row in rows)):
            return Processes(None, None)  # unknown, or the pids are the host's
        self._listed[_bare(uuid)] = {row.pid: row.usedGpuMemory for row in rows}
        return Processes(_sum(mine), _sum([row.usedGpuMemory for row in rows if row.pid != os.getpid()]))

    def listed(self, uuid: str) -> Mapping[int, int | None] | None:
        """Return what each process held of a device when `processes` last asked; None if that is unknown."""
        return self._listed.get(_bare(uuid))

    def fails(self, what: str) -> bool:
        """Return whether the driver's last answer to this question was an error."""
        return what in self._missing.reasons

    def energy_j(self, uuid: str) -> float:
        """Return the joules that a device used since the driver was loaded, all processes together.

        Unavailable before Volta, under MIG and WSL.
        """
        energy_mj: int = self._read(
            uuid, lambda nvml, handle: nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        )
        return energy_mj / 1000

    def utilization_percent(self, uuid: str, since_s: float) -> float:
        """Return the share of time in which any kernel ran, as the mean of the driver's samples since then.

        The driver takes one every sixth of a second to a second; unavailable if it took none.
        """

        def samples(module: ModuleType, handle: Any) -> list[Any]:
            kind = module.NVML_GPU_UTILIZATION_SAMPLES
            try:
                return list(module.nvmlDeviceGetSamples(handle, kind, int(since_s * 1e6))[1])
            except module.NVMLError_NotFound:
                return []

        found, now_s = self._read(uuid, samples), clock.wall_s()
        values = [s.sampleValue.uiVal for s in found if since_s <= s.timeStamp / 1e6 <= now_s]
        if not values:
            raise Unavailable("too short for the driver's samples")
        return float(sum(values) / len(values))

    def _read(self, uuid: str, question: Callable[[ModuleType, Any], Any]) -> Any:
        """Return the driver's answer about a device; raises `Unavailable`."""
        with self._library.use() as module:
            handle = self._handles.get(_bare(uuid))
            if module is None or handle is None:
                raise Unavailable("NVML does not know this device")
            try:
                return question(module, handle)
            except Exception as error:  # as in `_ask`
                if is_from_a_handler(error):
                    raise
                raise Unavailable(f"the driver does not report it: {reason(module, error)}") from error

    def take_notes(self) -> tuple[str, ...]:
        """Return what went missing since the last call, each figure once."""
        return self._missing.take_notes()

    def close(self) -> None:
        """Close the library, as soon as no other thread is in it; `devices` opens it again."""
        self._library.close()

    def after_fork_in_child(self) -> None:
        """Replace the lock, which another thread may have held at the moment of the fork."""
        self._library.after_fork_in_child()

    def diagnose(self) -> Diagnosis:
        """Say whether the driver answers, and which devices it has."""
        if devices := self.devices():
            missing, hidden = "; ".join(self._missing.reasons.values()), len(self.hidden())
            which = "them all" if hidden == len(devices) else f"{hidden} of them"
            return Diagnosis(
                "NVML",
                "sampled",
                f"driver {self._driver_version()}, {len(devices)} device(s): "
                + ", ".join(device.name for device in devices)
                + (f"; CUDA_VISIBLE_DEVICES hides {which} from CUDA" if hidden else "")
                + (f"; missing: {missing}" if missing else "; whole-device figures"),
            )
        reasons = "; ".join(self._missing.reasons.values()) or "the driver knows no device"
        return Diagnosis("NVML", "absent", reasons, remedy(reasons))

    def _find_devices(self, module: ModuleType) -> None:
        found: list[NvmlDevice] = []
        for index in range(self._ask(module, module.nvmlDeviceGetCount, "device count") or 0):
            found += self._ask(module, partial(self._find, module, index), f"device {index}") or []
        self._devices = tuple(found)

    def _forget_devices(self) -> None:
        self._devices = ()
        self._handles.clear()
        self._listed.clear()

    def _find(self, module: ModuleType, index: int) -> list[NvmlDevice]:
        """Return a device, or its MIG slices, as for a divided card NVML adds up what all slices use."""
        handle = module.nvmlDeviceGetHandleByIndex(index)
        slices = _slices(module, handle)
        return [self._describe(module, index, one) for one in ([handle] if slices is None else slices)]

    def _describe(self, module: ModuleType, index: int, handle: Any) -> NvmlDevice:
        uuid, name = module.nvmlDeviceGetUUID(handle), module.nvmlDeviceGetName(handle)
        self._handles[_bare(uuid)] = handle
        memory = self._ask_memory(module, uuid, handle)
        return NvmlDevice(index, name, uuid, None if memory is None else memory.total_bytes)

    def _ask_memory(self, module: ModuleType, uuid: str, handle: Any) -> DeviceMemory | None:
        return self._ask(module, lambda: self._memory(module, uuid, handle), "device memory")  # type: ignore[no-any-return]

    def _memory(self, module: ModuleType, uuid: str, handle: Any) -> DeviceMemory:
        key = _bare(uuid)
        if key not in self._memory_version:
            try:
                module.nvmlDeviceGetMemoryInfo(handle, version=module.nvmlMemory_v2)
                self._memory_version[key] = module.nvmlMemory_v2
            except (module.NVMLError_FunctionNotFound, module.NVMLError_ArgumentVersionMismatch):
                self._memory_version[key] = None  # a driver before R510
        version = self._memory_version[key]
        info = module.nvmlDeviceGetMemoryInfo(handle, version=version)
        return DeviceMemory(int(info.total), int(info.used), int(info.free), driver_in_used=version is None)

    def _ask(self, module: ModuleType, question: Callable[[], Any], what: str) -> Any:
        """Return the driver's answer; None if it is an error, of which the first of each kind is noted."""
        try:
            answer = question()
        except Exception as error:  # pynvml may fail in any way
            if is_from_a_handler(error):
                raise
            lack = f"{what}: {reason(module, error)}"
            self._missing.add(what, lack, f"the driver does not report {lack}")
            return None
        self._missing.found(what)
        return answer

    def _driver_version(self) -> str:
        with self._library.use() as module:
            if module is None:
                return "?"
            return str(self._ask(module, module.nvmlSystemGetDriverVersion, "driver version") or "?")


def _slices(module: ModuleType, handle: Any) -> list[Any] | None:
    """Return the handles of a card's MIG slices; None if the card is not divided."""
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


def _bare(uuid: str) -> str:
    """Return a UUID without its prefix: CUDA does not write "MIG-"."""
    return uuid.partition("-")[2] if uuid.startswith(("GPU-", "MIG-")) else uuid


def _sum(sizes: list[int | None]) -> int | None:
    return None if None in sizes else sum(size or 0 for size in sizes)
