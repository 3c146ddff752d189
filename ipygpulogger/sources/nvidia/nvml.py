"""NVML: what the driver reports of each NVIDIA device, all processes together.

Every call may fail at any time. Each failure costs one figure, never a cell, and is reported once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from ...records import DRIVER, Diagnosis
from ...runtime import clock
from ...runtime.errors import call_uninterrupted, is_from_a_handler
from ..contract import Device, DeviceMemory, Notes, Unavailable, unavailable
from . import driver

T = TypeVar("T")

# The energy counter moves in steps of some tens of milliseconds: it shows nothing of a shorter cell.
ENERGY_RESOLVES_S = 0.1
NO_DRIVER = "no NVIDIA driver"
NOT_INSTALLED = "nvidia-ml-py is not installed"
_MISMATCH = "the driver's library and kernel module differ"
_NO_PERMISSION = "no permission"
_REMEDIES = {
    NOT_INSTALLED: "pip install nvidia-ml-py",
    NO_DRIVER: "if this machine has an NVIDIA GPU, install its driver",
    _MISMATCH: "restart the machine: the driver was updated",
    _NO_PERMISSION: "ask for access to the /dev/nvidia* files",
}


def _reason(module: ModuleType | None, error: Exception) -> str:
    """Return why a call failed, or pynvml's import (None), in plain words, NVML's, or pynvml's."""
    if module is None and isinstance(error, ImportError):
        return NOT_INSTALLED
    if module is None or not isinstance(error, getattr(module, "NVMLError", ())):
        return f"pynvml fails: {str(error) or type(error).__name__}"
    known = {
        module.NVMLError_LibraryNotFound: NO_DRIVER,
        module.NVMLError_DriverNotLoaded: NO_DRIVER,
        module.NVMLError_LibRmVersionMismatch: _MISMATCH,
        module.NVMLError_NoPermission: _NO_PERMISSION,
    }
    return known.get(type(error)) or f"NVML says {str(error)!r}"


class Nvml:
    """The driver's figures of whole devices; any thread may ask while another opens or closes the library.

    Closing it during a call of another thread would free what the driver works on, and waiting for a driver
    that hangs would take for ever: then it stays open until the next `close`. Only `devices` opens it, so a
    thread of ours that comes late does not open it after `close`.
    """

    def __init__(self) -> None:
        self._missing: dict[str, str] = {}  # by figure: why; an entry goes when the driver answers again
        self.notes: Notes = Notes()
        self._gate = threading.RLock()  # for opening and closing; not held during a call
        self._using: set[int] = set()  # the threads that are in the library just now
        self._pid = 0  # of the process that opened it
        self._module: ModuleType | None = None
        self._handles: dict[str, Any] = {}
        self._devices: tuple[Device, ...] = ()
        self._row_classes: set[Any] = set()

    @contextmanager
    def _use(self, uuid: str | None = None) -> Iterator[tuple[ModuleType | None, Any]]:
        """Give pynvml, None while it is closed, and the handle of a device; keep it open meanwhile."""
        try:
            with self._gate:
                self._using.add(threading.get_ident())
                module = self._module if self._pid == os.getpid() else None
            yield module, self._handles.get(_bare(uuid))
        finally:
            self._using.discard(threading.get_ident())

    def close(self) -> None:
        """Close the library, unless another thread is in it; `devices` opens it again."""
        with self._gate:
            if self._pid == os.getpid():
                if self._using - {threading.get_ident()}:
                    return
                self._shut_down()
            self._forget()

    def after_fork_in_child(self) -> None:
        """Replace the lock, which another thread may have held at the moment of the fork."""
        self._gate = threading.RLock()
        self._using.clear()

    def _open(self) -> None:
        self._forget()
        self._using.clear()
        self._missing.clear()
        try:
            if driver.certainly_has_no_nvml():
                self._missing["open"] = NO_DRIVER
            else:
                self._initialise()
                if self._module is not None:
                    self._devices = tuple(self._find_all(self._module))
            self._pid = os.getpid()  # last: an opening that was interrupted is done again
        except BaseException:
            self._shut_down()  # what is open now would stay open
            self._forget()
            raise

    def _initialise(self) -> None:
        module: Any = None
        try:
            import pynvml

            module = pynvml
            call_uninterrupted(partial(self._count_in, pynvml))
        except Exception as error:  # not there, broken, another module, or no descriptor is left to read it
            if is_from_a_handler(error):
                raise
            self._missing["open"] = why = _reason(module, error)
            if why not in (NO_DRIVER, NOT_INSTALLED):
                self.notes.add(f"no figures of the whole GPU: {why}")

    def _count_in(self, module: ModuleType) -> None:
        module.nvmlInit()  # the driver counts openings, and pynvml does after it
        self._module = module

    def _shut_down(self) -> None:
        if self._module is not None:
            call_uninterrupted(self._count_out)

    def _count_out(self) -> None:
        module, self._module = self._module, None  # once more would close the user's own
        if module is not None:
            with suppress(Exception):  # pynvml may fail in any way
                module.nvmlShutdown()

    def _forget(self) -> None:
        self._pid, self._module, self._devices = 0, None, ()
        self._handles.clear()

    def devices(self) -> tuple[Device, ...]:
        """Return every device, or its MIG slices, also hidden ones; opens the library, if there is a driver.

        The index is NVML's, which follows the PCI bus; CUDA's may differ. All slices of a card share it.
        """
        if self._pid != os.getpid():
            with self._gate:
                if self._pid != os.getpid():
                    self._open()
        return self._devices

    def device(self, uuid: str | None) -> Device | None:
        """Return the device of a UUID, whichever prefix ("GPU-", "MIG-") it has; None if there is none."""
        found = (one for one in self.devices() if uuid and _bare(one.uuid) == _bare(uuid))
        return next(found, None)

    def memory(self, uuid: str | None) -> DeviceMemory | None:
        """Return the memory of a whole device, all processes together; None if it is unavailable."""
        with self._use(uuid) as (module, handle):
            if module is None or handle is None:
                return None
            return self._ask(module, partial(_memory, module, handle), "device memory")

    def memory_of(self, handle: Any) -> DeviceMemory | None:
        """Return the memory of the device of a pynvml handle, or raise its error; None without a driver."""
        if not self.devices():
            return None
        with self._use() as (module, _):
            return None if module is None else _memory(module, handle)

    def own_bytes(self, uuid: str | None) -> int | None:
        """Return what this process holds of a device, everything included; this is slow (4.5 ms).

        None if the driver does not list it: without permission, under WSL, in containers (the host's pids).
        """
        rows = None
        with self._use(uuid) as (module, handle):
            if module is not None and handle is not None:
                rows = self._ask(module, partial(self._rows, "Compute", module, handle), "processes")
        mine = [row.usedGpuMemory for row in rows or () if row.pid == os.getpid()]
        if rows is None or (not mine and not all(Path(f"/proc/{row.pid}").exists() for row in rows)):
            return None  # unknown, or the pids are the host's
        return None if None in mine else sum(mine)

    def others_bytes(self, uuid: str | None) -> int | None:
        """Return what the other processes that the driver lists hold of a device; None if it does not say."""
        with suppress(Unavailable):
            lists = [self._read(uuid, partial(self._rows, kind)) for kind in ("Compute", "Graphics")]
            held = {row.pid: row.usedGpuMemory for rows in lists for row in rows if row.pid != os.getpid()}
            return None if None in held.values() else sum(held.values())
        return None

    def _rows(self, kind: str, module: ModuleType, handle: Any) -> list[Any]:
        rows: list[Any] = getattr(module, f"nvmlDeviceGet{kind}RunningProcesses")(handle)
        if rows and (row_class := getattr(module, "c_nvmlProcessInfo_v3_t", None)):
            # ctypes makes an array type for each length, and drops it in a reference cycle unless it is kept.
            self._row_classes.add(row_class * (2 * len(rows) + 5))
        return rows

    def fails(self, what: str) -> bool:
        """Return whether the driver's last answer to this question was an error."""
        return what in self._missing

    def energy_j(self, uuid: str | None) -> float:
        """Return the joules that a device used since the driver was loaded; not before Volta, MIG or WSL."""
        energy_mj: int = self._read(uuid, lambda nvml, one: nvml.nvmlDeviceGetTotalEnergyConsumption(one))
        return energy_mj / 1000

    def utilization_percent(self, uuid: str | None, since_s: float) -> float:
        """Return the share of time in which any kernel ran: the mean of the driver's samples since then."""

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

    def _read(self, uuid: str | None, question: Callable[[ModuleType, Any], Any]) -> Any:
        with self._use(uuid) as (module, handle):
            if module is None or handle is None:
                raise Unavailable("NVML does not know this device")
            with unavailable("the driver does not report it", partial(_reason, module)):
                return question(module, handle)

    def versions(self) -> tuple[str | None, str | None]:
        """Return the version of the driver, and the latest of CUDA that it runs; None where it is unknown."""
        with self._use() as (module, _):
            if module is None:
                return None, None
            cuda = self._ask(module, module.nvmlSystemGetCudaDriverVersion, "CUDA's version")
            driver = self._ask(module, module.nvmlSystemGetDriverVersion, "driver version")
        return driver, None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}"

    def diagnose(self) -> Diagnosis:
        """Say whether the driver answers, and which devices it has."""
        if devices := self.devices():
            missing, hidden = "; ".join(self._missing.values()), len(driver.hidden(devices))
            which = "them all" if hidden == len(devices) else f"{hidden} of them"
            return Diagnosis(
                "NVML",
                "sampled",
                f"driver {self.versions()[0] or '?'}, {len(devices)} device(s): "
                + ", ".join(device.name for device in devices)
                + (f"; CUDA_VISIBLE_DEVICES hides {which} from CUDA" if hidden else "")
                + (f"; missing: {missing}" if missing else "; whole-device figures"),
            )
        reasons = "; ".join(self._missing.values()) or "the driver knows no device"
        remedy = next((does for trouble, does in _REMEDIES.items() if trouble in reasons), None)
        return Diagnosis("NVML", "absent", reasons, remedy)

    def _find_all(self, module: ModuleType) -> Iterator[Device]:
        for index in range(self._ask(module, module.nvmlDeviceGetCount, "device count") or 0):
            yield from self._ask(module, partial(self._find, module, index), f"device {index}") or []

    def _find(self, module: ModuleType, index: int) -> list[Device]:
        """Return a device, or its MIG slices, as for a divided card NVML adds up what all slices use."""
        handle = module.nvmlDeviceGetHandleByIndex(index)
        slices = _slices(module, handle)
        return [self._describe(module, index, one) for one in ([handle] if slices is None else slices)]

    def _describe(self, module: ModuleType, index: int, handle: Any) -> Device:
        uuid, name = module.nvmlDeviceGetUUID(handle), module.nvmlDeviceGetName(handle) or "GPU"
        self._handles[_bare(uuid)] = handle
        memory = self._ask(module, partial(_memory, module, handle), "device memory")
        return Device(DRIVER, index, name, uuid, None if memory is None else memory.total_bytes)

    def _ask(self, module: ModuleType, question: Callable[[], T], what: str) -> T | None:
        """Return the driver's answer; None if it is an error, of which the first of each kind is noted."""
        try:
            answer = question()
        except Exception as error:  # pynvml may fail in any way
            if is_from_a_handler(error):
                raise
            lack = f"{what}: {_reason(module, error)}"
            self._missing[what] = lack
            self.notes.add(f"the driver does not report {lack}")
            return None
        self._missing.pop(what, None)
        return answer


def _memory(module: ModuleType, handle: Any) -> DeviceMemory:
    """Return a device's memory; drivers before R510 do not have this version, which leaves out their own."""
    info = module.nvmlDeviceGetMemoryInfo(handle, version=module.nvmlMemory_v2)
    return DeviceMemory(int(info.total), int(info.used), int(info.free))


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
        with suppress(module.NVMLError):  # an empty slot
            slices.append(module.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot))
    return slices


def _bare(uuid: str | None) -> str:
    """Return a UUID without its prefix, as CUDA does not write "MIG-"; nothing for none."""
    uuid = uuid or ""
    return uuid.partition("-")[2] if uuid.startswith(("GPU-", "MIG-")) else uuid
