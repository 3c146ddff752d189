"""Every device that torch sees, by torch and beside it, and each framework that is installed.

A tenth of each device stays free, and no check runs out of memory on purpose.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..engine.machine import machine
from ..engine.scope import Scope
from ..records import DRIVER, Measurement, device_id
from ..records.units import MB, size_text
from ..runtime import clock
from ..runtime.errors import first_line
from ..sources.torch import state
from ..sources.torch.allocators import Torch
from . import tensors
from .check import NOT_BY_PROCESS, Check, Found, Unchecked, exact, figures
from .tensors import PAGE_BYTES, Device

SEEN_WITHIN_S = 2.0  # the sampler looks for the first time after a tenth of a second
_ROOM_BYTES = 2048 * MB  # a context takes up to a gigabyte
_OF_CONTEXTS_BYTES = 64 * MB  # the driver's own, at most, for the contexts of processes
_FOUND = b"found:"  # what a fresh process prints before it
_WITHIN_S = 120.0  # no process of ours lasts so long
_ALLOCATORS = {  # by name: what is set before torch is imported
    "expandable segments": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "cudaMallocAsync": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
    "no caching": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
}


def _devices() -> list[Device | Unchecked]:
    """Return each device that torch sees, or why it cannot be checked."""
    source = Torch()
    source.load()
    torch = state.module()
    if torch is None or not torch.accelerator.is_available():
        return [Unchecked("devices", "all", f"torch finds none: {source.diagnose().says}")]
    backend, found = torch.accelerator.current_accelerator().type, list[Device | Unchecked]()
    for index in range(torch.accelerator.device_count()):
        try:
            device = Device(torch, backend, index)
        except state.TORCH_ERRORS as error:
            where, reason = device_id(backend, index), f"torch cannot use or count it: {first_line(error)}"
            found.append(Unchecked(where, "all", reason))
            continue
        free, total = size_text(device.free_bytes), size_text(device.total_bytes)
        little = f"too little is free: {free} of {total}, of which a tenth is left alone"
        found.append(device if device.unit_bytes > 0 else Unchecked(device.id, "all", little))
    return found


def _on_each(devices: list[Device], case: Callable[[Device], Iterator[Found]]) -> Iterator[Found]:
    for device in devices:
        accelerator = device.torch.accelerator
        was = accelerator.current_device_index()
        try:
            accelerator.set_device_index(device.index)
            device.clean()
            yield from case(device)
        except device.torch.OutOfMemoryError:
            yield Unchecked(device.id, "some", "another process took what was free")
        finally:
            device.clean()
            accelerator.set_device_index(was)  # of this thread alone
            machine().close()


def _whole(device: Device) -> Iterator[Found]:
    kept, scope, case = device.take(device.unit_bytes), Scope().open(), "the whole device"
    scope.close()
    (first, *_), usage, (last, own_bytes, listed_bytes) = device.ask(), device.usage(scope), device.ask()
    if first is None or last is None:
        yield Unchecked(device.id, case, "the driver cannot be asked apart from us")
        return
    least_bytes, most_bytes = sorted((first.used_bytes, last.used_bytes))
    free, parts = sorted((first.free_bytes, last.free_bytes)), [part.size_bytes for part in usage.ladder]
    yield exact(device.id, case, "used", (least_bytes, most_bytes), usage.used_bytes)
    yield exact(device.id, case, "free", (free[0], free[1]), usage.free_bytes)
    yield exact(device.id, case, "all its parts", last.total_bytes, sum(parts))
    yield exact(device.id, case, "least part", (0, last.total_bytes), min(parts, default=0))
    if own_bytes is None:
        yield Unchecked(device.id, f"{case}: other processes", NOT_BY_PROCESS)
    else:
        others_bytes = least_bytes - own_bytes, most_bytes - own_bytes
        if others_bytes[1] - listed_bytes < _OF_CONTEXTS_BYTES:
            others_bytes = min(listed_bytes, others_bytes[0]), others_bytes[1]
        yield exact(device.id, case, "used by other processes", others_bytes, usage.neighbours_bytes)
    del kept


@contextmanager
def _raw(library: Any, size_bytes: int) -> Iterator[None]:
    """Hold memory of the driver's, of which torch knows nothing."""
    kind, address = ("cuda" if hasattr(library, "cudaMalloc") else "hip"), ctypes.c_void_p()
    if getattr(library, f"{kind}Malloc")(ctypes.byref(address), ctypes.c_size_t(size_bytes)):
        raise MemoryError(f"the driver refuses {size_text(size_bytes)}")
    try:
        yield
    finally:
        getattr(library, f"{kind}Free")(address)


def _beside_torch(device: Device) -> Iterator[Found]:
    size_bytes = 2 * device.unit_bytes
    truth = size_bytes, size_bytes + PAGE_BYTES  # the driver may need another page to keep account
    maps = Path("/proc/self/maps").read_bytes() if sys.platform == "linux" else b""
    found = re.search(rb"/\S*lib(?:cudart|amdhip64)\S*\.so\S*", maps)
    if found is None:
        yield Unchecked(device.id, "memory beside torch", "no runtime library of the device is loaded")
        return
    library, case, (quiet, *_) = ctypes.CDLL(os.fsdecode(found[0])), "beside torch, kept", device.ask()
    before, scope = device.usage(Scope().open()), Scope().open()
    with _raw(library, size_bytes):
        scope.close()
        usage = device.usage(scope)
    of_all = list[Found]()  # what other processes would change
    if before.other_bytes is not None and usage.other_bytes is not None:
        grown_bytes = usage.other_bytes - before.other_bytes
        of_all.append(exact(device.id, case, "outside the allocator", truth, grown_bytes))
    if usage.neighbours_bytes is not None:
        yield from figures(device.id, case, usage, truth, truth)
    elif usage.unified:
        yield Unchecked(device.id, case, "beside torch, a device without memory of its own takes RAM")
    else:
        of_all.append(exact(device.id, case, "attributed to no process", truth, usage.unattributed_bytes))
    case, scope, until_s = "beside torch, for a moment", Scope().open(), clock.monotonic_s() + SEEN_WITHIN_S
    (one,) = (one for one in scope.device_scopes() if one.device.id == device.id)
    memory = machine().nvml.memory(one.device.uuid)
    with _raw(library, size_bytes):
        goal_bytes = memory.used_bytes + size_bytes if memory else 0
        while one.highest_used_bytes < goal_bytes and clock.monotonic_s() < until_s:
            time.sleep(0.01)
    scope.close()
    if memory is None:
        yield Unchecked(device.id, case, "without NVML nothing samples the whole device")
    else:
        usage = device.usage(scope)
        yield from figures(device.id, case, usage, 0, truth)
        seen_bytes = max((used for _, used in usage.timeline), default=0) - (usage.used_bytes or 0)
        of_all.append(exact(device.id, case, "used over time", truth, seen_bytes))
    asked, *_ = device.ask()
    if quiet and asked and abs(asked.used_bytes - quiet.used_bytes) > PAGE_BYTES:
        of_all = [Unchecked(device.id, "the whole device over time", "other processes take and give back")]
    yield from of_all


# -- in a fresh process --------------------------------------------------------------------------------


def _fresh(program: str, case: str, environment: dict[str, str]) -> Iterator[Found]:
    """Yield what a fresh process finds, as importing a framework, or its settings, would change this one."""
    inherited = {name: value for name, value in os.environ.items() if not name.endswith("ALLOC_CONF")}
    command = [sys.executable, "-c", f"from {__name__} import first_use, framework, say\n{program}"]
    variables, pipe = inherited | environment, subprocess.PIPE
    done = subprocess.run(command, env=variables, stdout=pipe, stderr=pipe, timeout=_WITHIN_S, check=False)  # noqa: S603 - our own program
    if done.returncode:
        raise RuntimeError(f"{case}: {(done.stderr.decode().strip() or 'it ended at once').splitlines()[-1]}")
    for one in pickle.loads(done.stdout.partition(_FOUND)[2]):  # noqa: S301 - our own
        yield replace(one, case=f"{case}: {one.case}")


def say(found: Iterator[Found]) -> None:
    """Print what this process finds, for the process that started it."""
    sys.stdout.buffer.write(_FOUND + pickle.dumps(list(found)))


def _allocators(devices: list[Device]) -> Iterator[Found]:
    if any(device.backend == "cuda" for device in devices):
        for name, environment in _ALLOCATORS.items():
            yield from _fresh("say(first_use())", name, environment)


def first_use() -> Iterator[Found]:
    """Torch is imported, and makes its contexts, within the first scope."""
    scope = Scope().open()
    found = _devices()
    scope.close()
    yield from (one for one in found if isinstance(one, Unchecked))
    devices = [one for one in found if isinstance(one, Device)]
    for device in devices:
        yield from figures(device.id, "first use", device.usage(scope), 0, 0)
    yield from _on_each(devices, tensors.amounts)


_TAKES = {  # how each framework takes bytes, on a device alone
    "cupy": "import cupy; return cupy.empty(size, dtype='uint8')",
    "jax": "import jax as it; assert it.default_backend() != 'cpu', 'no device';"
    " return it.numpy.zeros(size, 'uint8').block_until_ready()",
    "tensorflow": "import tensorflow as it; assert it.config.list_physical_devices('GPU'), 'no device';"
    " return it.zeros([size], it.uint8)",
    "rmm": "import rmm.statistics; rmm.statistics.enable_statistics(); return rmm.DeviceBuffer(size=size)",
}


def _frameworks(devices: Sequence[Device | None]) -> Iterator[Found]:
    as_needed = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    for name in (name for name in _TAKES if find_spec(name)):
        for device in devices:
            uuid = device and device.usage(Scope().open()).uuid
            only = {"CUDA_VISIBLE_DEVICES": uuid} if uuid else {}
            program = f"def take(size): {_TAKES[name]}\nsay(framework(take))"
            for one in _fresh(program, name, as_needed | only):
                yield replace(one, where=device.id if device else one.where)


def framework(take: Callable[[int], Any]) -> Iterator[Found]:
    """Yield the figures of what a framework takes."""
    unit = 16 * MB
    try:
        take(4 * unit)  # its pool has the memory from here on
    except Exception as error:  # each has its own
        yield Unchecked("devices", "all", first_line(error))
        return
    first, scope = take(unit), Scope().open()
    kept = take(unit)
    take(2 * unit)
    scope.close()
    ours = [gpu for gpu in scope.result(Measurement, "").gpus if gpu.backend != DRIVER]
    yield from figures(ours[0].id, "tensors", ours[0], unit, 3 * unit)
    del first, kept


_ON_EACH: dict[str, Callable[[Device], Iterator[Found]]] = {
    "for a moment, and kept": tensors.amounts,
    "scopes, threads and streams": tensors.scopes,
    "while a peak is reset": tensors.at_a_reset,
    "the user's own counters": tensors.users_counters,
    "CUDA graphs": tensors.graph,
    "used, free, others": _whole,
    "beside torch": _beside_torch,
}


def checks() -> list[Check]:
    """Return the checks of all devices."""
    found = _devices()
    devices = [one for one in found if isinstance(one, Device)]
    unusable = [one for one in found if isinstance(one, Unchecked)]
    if len(devices) == 1:
        unusable.append(Unchecked("devices", "several at once", "only one can be used here"))
    roomy = devices if all(one.free_bytes - one.total_bytes // 10 > _ROOM_BYTES for one in devices) else []
    if devices and not roomy:
        reason = f"a device has less than {size_text(_ROOM_BYTES)} free beside the tenth that is left alone"
        unusable.append(Unchecked("devices", "in other processes", reason))
    return [
        Check("devices", lambda: iter(unusable)),
        *(Check(f"devices: {name}", partial(_on_each, devices, case)) for name, case in _ON_EACH.items()),
        Check("other allocators, in fresh processes", partial(_allocators, roomy)),
        Check("other frameworks, in fresh processes", partial(_frameworks, roomy if devices else [None])),
        Check("pinned memory", tensors.pinned),
    ]
