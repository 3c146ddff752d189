"""NVML: what the driver says of each NVIDIA device, all processes together.

Every call may fail at any time (no driver, an update under our feet, a lost card, no permission);
each failure costs one figure, never a cell, and is said once.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..records import Diagnosis

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


@dataclass(frozen=True, slots=True)
class NvmlDevice:
    """One physical device as NVML knows it; its indices follow the PCI bus, CUDA's may not."""

    index: int
    name: str
    uuid: str
    total_bytes: int | None


class Nvml:
    """The driver's library, opened at the first question and again after a fork."""

    def __init__(self) -> None:
        self._pid = 0
        self._module: ModuleType | None = None
        self._handles: dict[str, Any] = {}
        self._devices: tuple[NvmlDevice, ...] = ()
        self._memory_version: dict[str, int | None] = {}
        self._without: dict[str, str] = {}
        self._said: set[str] = set()
        self._unsaid: list[str] = []

    def devices(self) -> tuple[NvmlDevice, ...]:
        """Every device of the machine, whatever CUDA_VISIBLE_DEVICES hides from the frameworks."""
        if self._pid != os.getpid():
            self._open()
        return self._devices

    def used_bytes(self, uuid: str) -> int | None:
        """In use on the whole device, all processes, without what the driver reserves for itself.

        The same API version throughout: v1 counts the driver's reserve as used, v2 does not.
        """
        handle = self._handle(uuid)
        if handle is None:
            return None
        info = self._ask(lambda: self._memory(uuid, handle), "device memory")
        return None if info is None else int(info.used)

    def process_bytes(self, uuid: str) -> int | None:
        """Held on the device by this process, everything included.

        0 when the driver lists processes and this one is not there; None when it does not tell:
        without permission, under Windows and WSL, and in containers, where it lists host pids.

        Slow (4.5 ms on one laptop, holding a driver-wide lock): for boundaries where something moved.
        """
        handle = self._handle(uuid)
        if handle is None:
            return None
        module = self._module
        assert module is not None
        rows = self._ask(lambda: module.nvmlDeviceGetComputeRunningProcesses(handle), "processes")
        if rows is None:
            return None
        mine = [row.usedGpuMemory for row in rows if row.pid == os.getpid()]
        if mine:
            return None if None in mine else sum(mine)
        # The driver speaks of the host's pids, in containers too: names that mean nothing here say so.
        return 0 if all(_exists(row.pid) for row in rows) else None

    def take_notes(self) -> tuple[str, ...]:
        """What went missing since the last call, each said once."""
        notes, self._unsaid = tuple(self._unsaid), []
        return notes

    def close(self) -> None:
        """Let the library go; the next question opens it again."""
        if self._module is not None and self._pid == os.getpid():
            self._ask(self._module.nvmlShutdown, "")
        self._pid, self._devices, self._module = 0, (), None
        self._handles.clear()

    def diagnose(self) -> Diagnosis:
        """Whether the driver answers, and which devices it has."""
        if devices := self.devices():
            missing = "; ".join(self._without.values())
            return Diagnosis(
                "NVML",
                "sampled",
                f"driver {self._driver_version()}, {len(devices)} device(s): "
                + ", ".join(f"{device.name}" for device in devices)
                + (f"; missing: {missing}" if missing else "; whole-device figures"),
            )
        reason = "; ".join(self._without.values()) or "the driver knows no device"
        remedy = next((does for trouble, does in _REMEDY.items() if trouble in reason), None)
        return Diagnosis("NVML", "absent", reason, remedy)

    def _open(self) -> None:
        """Find the driver and its devices; without them there are simply none."""
        self._pid, self._devices, self._module = os.getpid(), (), None
        self._handles.clear()
        self._without.clear()
        try:
            import pynvml
        except ImportError:
            self._without["import"] = "nvidia-ml-py is not installed"
            return
        self._module = pynvml
        try:
            pynvml.nvmlInit()
        except Exception as error:  # another module may go by the name of pynvml
            self._module = None
            known = isinstance(error, getattr(pynvml, "NVMLError", ()))
            reason = _reason(pynvml, error) if known else f"pynvml fails: {error}"
            self._without["open"] = reason
            if reason != _NO_DRIVER:
                self._say("open", f"no figures of the whole GPU: {reason}")
            return
        count = self._ask(pynvml.nvmlDeviceGetCount, "device count") or 0
        devices = [self._ask(partial(self._describe, index), f"device {index}") for index in range(count)]
        self._devices = tuple(device for device in devices if device is not None)

    def _describe(self, index: int) -> NvmlDevice:
        module = self._module
        assert module is not None
        handle = module.nvmlDeviceGetHandleByIndex(index)
        uuid = module.nvmlDeviceGetUUID(handle)
        name = module.nvmlDeviceGetName(handle)
        self._handles[uuid] = handle
        info = self._ask(lambda: self._memory(uuid, handle), "device memory")
        return NvmlDevice(index, name, uuid, None if info is None else int(info.total))

    def _memory(self, uuid: str, handle: Any) -> Any:
        module = self._module
        assert module is not None
        if uuid not in self._memory_version:
            try:
                info = module.nvmlDeviceGetMemoryInfo(handle, version=module.nvmlMemory_v2)
            except (module.NVMLError_FunctionNotFound, module.NVMLError_ArgumentVersionMismatch):
                self._memory_version[uuid] = None  # a driver before R510
            else:
                self._memory_version[uuid] = module.nvmlMemory_v2
                return info
        return module.nvmlDeviceGetMemoryInfo(handle, version=self._memory_version[uuid])

    def _handle(self, uuid: str) -> Any:
        if self._pid != os.getpid():
            self._open()
        return self._handles.get(uuid)

    def _ask(self, question: Callable[[], Any], what: str) -> Any:
        """The driver's answer, or None where it gives an error; the first of each kind is noted."""
        module = self._module
        assert module is not None
        try:
            answer = question()
        except module.NVMLError as error:
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
        assert self._module is not None
        return str(self._ask(self._module.nvmlSystemGetDriverVersion, "driver version") or "?")


_NO_DRIVER = "no NVIDIA driver"
_REMEDY = {
    "nvidia-ml-py is not installed": "pip install nvidia-ml-py",
    _NO_DRIVER: "if this machine has an NVIDIA GPU, install its driver",
    "the driver's library and kernel module differ": "restart the machine: the driver was updated",
    "no permission": "ask for access to the /dev/nvidia* files",
}


def _reason(module: ModuleType, error: Exception) -> str:
    """One of the known troubles in plain words, or NVML's own."""
    known = {
        module.NVMLError_LibraryNotFound: _NO_DRIVER,
        module.NVMLError_DriverNotLoaded: _NO_DRIVER,
        module.NVMLError_LibRmVersionMismatch: "the driver's library and kernel module differ",
        module.NVMLError_NoPermission: "no permission",
    }
    return known.get(type(error)) or f"NVML says {str(error)!r}"


def _exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
