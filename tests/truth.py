"""The simulated devices as they are, beside what a scope told of them; in the tests' process and in others."""

import ctypes
import os

import simgpu
from memory import MB

from ipygpulogger.engine.scope import Scope
from ipygpulogger.records import Measurement


def state():
    """The machine that this process is on."""
    library = ctypes.CDLL("libnvidia-ml.so.1")
    library.simgpu_state.restype = ctypes.POINTER(simgpu.State)
    return library.simgpu_state().contents


def place(uuid):
    """A device and, where the UUID is a slice's, the number of its slot."""
    for device in state().dev:
        if device.uuid.decode() == uuid:
            return device, None
        for slot, part in enumerate(device.slice):
            if device.mig_mode and part.total and part.uuid.decode() == uuid:
                return device, slot
    raise LookupError(uuid)


def rungs(usage, *, known=True, nvml=True):
    """The ladder as it should be, by name.

    Args:
        usage: Of a device that this process uses through torch, or not at all.
        known: The driver tells which process holds what.
        nvml: NVML tells the device's memory; CUDA's figures leave out what the driver keeps.
    """
    import torch

    device, slot = place(usage.uuid)
    rows = [p for p in device.proc if p.kind and (slot is None or p.slice == slot + 1)]
    mine = sum(p.used for p in rows if p.pid == os.getpid())
    listed = sum(p.used for p in rows) - mine
    unlisted = device.base_used if slot is None else device.slice[slot].base_used
    drivers = device.reserved if slot is None and nvml and not device.integrated else 0
    if slot is not None:
        total = device.slice[slot].total
    elif drivers:
        total = device.total
    else:
        total = torch.cuda.mem_get_info(usage.index)[1]
    free = total - drivers - mine - listed - unlisted
    if nvml and known and unlisted < 64 * MB:  # too little for a process's context
        drivers, unlisted = drivers + unlisted, 0
    found, reserved = {}, 0
    if usage.backend != "nvml":
        allocated, reserved = (
            torch.cuda.memory_allocated(usage.index),
            torch.cuda.memory_reserved(usage.index),
        )
        found |= {"tensors": allocated, "cached": reserved - allocated}
    if not known:
        rest = mine + listed + unlisted - reserved
        return (
            found
            | {"context, libraries, other processes": rest, "free": free}
            | ({"the driver's own": drivers} if drivers else {})
        )
    found |= {"context and libraries": mine - reserved, "other processes": listed + unlisted, "free": free}
    return found | ({"the driver's own": drivers} if drivers else {})


def assert_ladder(usage, **how):
    """Every rung is the truth, none is negative, and together they are the device's total."""
    told, true = dict(usage.ladder), rungs(usage, **how)
    assert told == true, (told, true)
    assert min(told.values()) >= 0
    assert sum(told.values()) == usage.total_bytes
    device, slot = place(usage.uuid)
    total_bytes = device.total if slot is None else device.slice[slot].total
    if how.get("nvml", True) and not device.integrated:
        assert abs(usage.total_bytes - total_bytes) <= 2 * MB


def measured(on, *steps, settle=True, **options):
    """A scope as the logger's hooks make it, garbage apart: settle, open, run, close, settle."""
    if settle:
        on.settling.settle(gc_collect=False, clear_cache=True)
    scope = Scope(on, **options).open()
    try:
        for step in steps:
            step()
    finally:
        scope.close()
    if settle:
        on.settling.settle(gc_collect=False, clear_cache=True)
    return scope.result(Measurement, "test")


def run(on, *steps, ladder=None, **options):
    """The same; every ladder that comes out is the truth."""
    result = measured(on, *steps, **options)
    for usage in result.gpus:
        assert_ladder(usage, **(ladder or {}))
    return result


def gpu_of(result, index=0):
    return next(gpu for gpu in result.gpus if gpu.index == index)
