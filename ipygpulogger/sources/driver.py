"""What the CUDA driver tells of a device without a context being made: frameworks keep it to themselves.

Only a driver library that some framework has loaded into this process already is asked, and only
functions that need no context. Before `cuInit`, and in a child forked after it, they return an error,
which reads here as "nothing".
"""

from __future__ import annotations

import ctypes
import os
import uuid as uuids
from typing import Any, NamedTuple


class Facts(NamedTuple):
    """One device.

    Attributes:
        uuid: As NVML writes it; None where the driver does not tell.
        total_bytes: None where the driver does not tell.
    """

    uuid: str | None = None
    total_bytes: int | None = None


def absent() -> bool:
    """Whether it is sure that nothing in this process uses CUDA: its library is not loaded."""
    return hasattr(os, "RTLD_NOLOAD") and _library() is None


def count() -> int | None:
    """How many devices CUDA shows this process; None where nobody can tell, as before `cuInit`."""
    library, found = _library(), ctypes.c_int()
    return None if library is None or library.cuDeviceGetCount(ctypes.byref(found)) else found.value


def contexts() -> tuple[int, ...] | None:
    """The devices, by ordinal, on which this process has a context; None where nobody can tell.

    Asks `cuDevicePrimaryCtxGetState`, as torch does: it changes nothing
    (CUDA Driver API, "Primary Context Management").
    """
    library = _library()
    if library is None:
        return None
    return tuple(ordinal for ordinal in range(count() or 0) if _has_context(library, ordinal))


def facts(ordinal: int) -> Facts:
    """What identifies a device.

    Args:
        ordinal: CUDA's, which `CUDA_VISIBLE_DEVICES` shapes.
    """
    library = _library()
    device = None if library is None else _device(library, ordinal)
    if device is None:
        return Facts()
    total = ctypes.c_size_t()
    unknown = library.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    return Facts(_uuid(library, device), None if unknown else total.value)


def _uuid(library: Any, device: ctypes.c_int) -> str | None:
    # The second version (driver R470) tells the slice of a divided device, the first the whole device.
    found = []
    for name in ("cuDeviceGetUuid", "cuDeviceGetUuid_v2"):
        raw = (ctypes.c_ubyte * 16)()
        function = getattr(library, name, None)
        if function is not None and not function(raw, device):
            found.append(uuids.UUID(bytes=bytes(raw)))
    if not found:
        return None
    return f"{'GPU' if found[0] == found[-1] else 'MIG'}-{found[-1]}"


def _has_context(library: Any, ordinal: int) -> bool:
    device, flags, active = _device(library, ordinal), ctypes.c_uint(), ctypes.c_int()
    if device is None:
        return False
    failed = library.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
    return not failed and bool(active.value)


def _device(library: Any, ordinal: int) -> ctypes.c_int | None:
    device = ctypes.c_int()
    return None if library.cuDeviceGet(ctypes.byref(device), ordinal) else device


def _library() -> Any:
    no_load = getattr(os, "RTLD_NOLOAD", None)  # elsewhere than on Linux there is no asking without loading
    if no_load is None:
        return None
    try:
        return ctypes.CDLL("libcuda.so.1", mode=no_load | os.RTLD_NOW)
    except OSError:
        return None
