"""The CUDA driver, asked without a context, and the devices that `CUDA_VISIBLE_DEVICES` shows.

Its library is used only if a framework has loaded it. Before `cuInit`, and in a child forked after it,
answers are None or empty. CUDA numbers devices from the fastest on, unless `CUDA_DEVICE_ORDER` is PCI_BUS_ID.
"""

from __future__ import annotations

import ctypes
import os
import sys
import uuid as uuids
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from typing import Any

from ...records import device_id
from ..contract import Device


def absent() -> bool:
    """Return whether nothing in this process can use CUDA, because its library is not loaded."""
    return hasattr(os, "RTLD_NOLOAD") and _library() is None


def count() -> int | None:
    """Return how many devices CUDA shows this process; None if unknown, as before `cuInit`."""
    library, found = _library(), ctypes.c_int()
    return None if library is None or library.cuDeviceGetCount(ctypes.byref(found)) else found.value


def contexts() -> tuple[int, ...] | None:
    """Return the ordinals of the devices on which this process has a context; None if unknown."""
    library = _library()
    if library is None:
        return None
    return tuple(ordinal for ordinal in range(count() or 0) if _has_context(library, ordinal))


def current(ask: Callable[[], int]) -> tuple[int, ...]:
    """Return the calling thread's current device, as a framework says, if there is a context on it."""
    with suppress(Exception):
        if ordinals := contexts():
            return tuple({ask()}.intersection(ordinals))
    return ()


def device(ordinal: int) -> Device:
    """Return a device as the driver describes it, by CUDA's ordinal, which `CUDA_VISIBLE_DEVICES` shapes."""
    known = Device("cuda", ordinal, device_id("cuda", ordinal))
    library = _library()
    handle = None if library is None else _handle(library, ordinal)
    if handle is None:
        return known
    total = ctypes.c_size_t()
    unknown = library.cuDeviceTotalMem_v2(ctypes.byref(total), handle)
    return replace(known, uuid=_uuid(library, handle), total_bytes=None if unknown else total.value)


def _uuid(library: Any, handle: ctypes.c_int) -> str | None:
    # Of a MIG slice the second version (driver R470) returns the slice's UUID, the first one the card's.
    found = []
    for name in ("cuDeviceGetUuid", "cuDeviceGetUuid_v2"):
        raw = (ctypes.c_ubyte * 16)()
        function = getattr(library, name, None)
        if function is not None and not function(raw, handle):
            found.append(uuids.UUID(bytes=bytes(raw)))
    if not found:
        return None
    return f"{'GPU' if found[0] == found[-1] else 'MIG'}-{found[-1]}"


def _has_context(library: Any, ordinal: int) -> bool:
    handle, flags, active = _handle(library, ordinal), ctypes.c_uint(), ctypes.c_int()
    if handle is None:
        return False
    failed = library.cuDevicePrimaryCtxGetState(handle, ctypes.byref(flags), ctypes.byref(active))
    return not failed and bool(active.value)


def _handle(library: Any, ordinal: int) -> ctypes.c_int | None:
    handle = ctypes.c_int()
    return None if library.cuDeviceGet(ctypes.byref(handle), ordinal) else handle


def _library() -> Any:
    no_load = getattr(os, "RTLD_NOLOAD", None)  # without it, asking would load the library
    if no_load is not None:
        with suppress(OSError):
            return _loaded(no_load | os.RTLD_NOW)
    return None


@cache  # of the library alone, which stays loaded then; that it is absent is asked anew each time
def _loaded(mode: int) -> Any:
    # `ctypes.CDLL` makes a class first: where the library is absent that would be garbage, after every cell.
    from _ctypes import dlopen

    return ctypes.CDLL("libcuda.so.1", handle=dlopen("libcuda.so.1", mode))


def certainly_has_no_nvml() -> bool:
    """Return whether NVML's library is not on this machine: to let pynvml find out takes 7 ms and 2 MB."""
    if sys.platform == "win32" or "pynvml" in sys.modules or find_spec("pynvml") is None:
        return False
    from _ctypes import dlopen  # as above

    try:
        dlopen("libnvidia-ml.so.1", ctypes.DEFAULT_MODE)
    except OSError as error:  # else it cannot be loaded, or no descriptor is left
        return isinstance(error, FileNotFoundError) or "no such file" in str(error).lower()
    return False


def visible(devices: Sequence[Device], ordinal: int) -> Device | None:
    """Return the device that CUDA counts as this one; None if that is not certain."""
    shown = _shown(devices)
    return shown[ordinal] if shown is not None and ordinal < len(shown) else None


def hidden(devices: Sequence[Device]) -> tuple[Device, ...]:
    """Return the devices that CUDA certainly does not see."""
    shown = _shown(devices) if "CUDA_VISIBLE_DEVICES" in os.environ else None
    return () if shown is None else tuple(device for device in devices if device not in shown)


def _shown(devices: Sequence[Device]) -> list[Device] | None:
    """Return the devices that CUDA shows, in its order; None where that is not certain."""
    by_index = {str(device.index): device for device in devices}
    is_one_kind = len({device.name for device in devices}) == 1
    is_ordered = is_one_kind or os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    # No card is divided, and none is missing.
    is_certain = is_ordered and [device.index for device in devices] == list(range(len(devices)))
    shown: list[Device] = []
    # By index or the beginning of a UUID, up to the first entry that matches none (CUDA Programming Guide).
    for entry in map(str.strip, os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(by_index)).split(",")):
        if entry.isdecimal() and not is_certain:
            return None
        matches = [device for device in devices if entry and (device.uuid or "").startswith(entry)]
        matches = [by_index[entry]] if entry in by_index else matches
        if len(matches) != 1:
            break
        if matches[0] in shown:
            return []  # a device twice leaves none, as in torch
        shown += matches
    return shown
