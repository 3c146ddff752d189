"""Faults below the engine, each by name: in a source, in a call of a library, in what the driver answers.

The truth of a check does not pass through what is replaced here, but for the driver's own library.
"""

import gc
import sys
import threading
from dataclasses import replace
from typing import Any, NamedTuple

from ipygpulogger.records import DeviceUsage, Peak
from ipygpulogger.runtime import clock
from ipygpulogger.sources.contract import Observation, Reading
from ipygpulogger.sources.frameworks import ResettableFramework
from ipygpulogger.sources.nvidia import nvml
from ipygpulogger.sources.system import forked, linux, process
from ipygpulogger.sources.torch import allocators, state

MB = 2**20


class Fault(NamedTuple):
    """What is injected, and the figure that it makes wrong."""

    name: str
    check: str  # the name of the one that finds it
    where: str
    case: str
    what: str
    inject: Any  # called with pytest's monkeypatch


def instead(place, name, make):
    """Put ``make(original)`` in the place of a function."""
    return lambda patch: patch.setattr(place, name, make(getattr(place, name)))


def every(*injected):
    return lambda patch: [inject(patch) for inject in injected]


def always(value):
    return lambda _: lambda *_args: value


def stale(real):
    """What was read first is read for ever."""
    answers = {}
    return lambda *args: answers.setdefault(args, real(*args))


def once(real):
    """The same with arguments that cannot be told apart: the first answer counts."""
    answers = []
    return lambda *args: answers[0] if answers else answers.append(real(*args)) or answers[0]


# -- RAM and the clock -----------------------------------------------------------------------------------


def mark(change):
    """Have the kernel's high-water mark be another one, by what is resident and the real one."""

    def of_usage(real):
        def read():
            faults, mark_bytes = real()
            return faults, change(linux.resident_bytes(), mark_bytes)

        return read

    def of_status(real):
        def read(*pid):
            resident_bytes, mark_bytes = real(*pid)
            return resident_bytes, change(resident_bytes, mark_bytes)

        return read

    names = ("faults_and_mark", of_usage), ("resident_and_mark_bytes", of_status)
    return every(*(instead(linux, name, make) for name, make in names))


def after_a_reset(real):
    """Something else resets the mark just before it is read."""
    reset = linux.reset_mark
    return lambda *pid: (reset(*pid), real(*pid))[1]


RESETS_UNSEEN = every(
    instead(process.ResetWatch, "take", always(False)),
    instead(linux, "faults_and_mark", after_a_reset),
    instead(linux, "resident_and_mark_bytes", after_a_reset),
)
RISES_ONLY = instead(process.HighWaterMark, "probe", lambda _: classmethod(lambda _: False))


def no_mark(real):
    def observe(counter):
        found = real(counter)
        current_bytes = found.readings[0].current_bytes
        return Observation((Reading(current_bytes, current_bytes),), *found[1:])

    return observe


def rose_too_little(real):
    def leave(forks):
        real(forks)
        forks.mine["mark_bytes"] = 8 * MB

    return leave


def jumps(real):
    reads = []
    return lambda: reads.append(1) or real() + len(reads)


def disables_gc(real):
    return lambda: gc.disable() or real()


COMES_AND_GOES, SCOPES = "RAM that comes and goes", "RAM in nested scopes and threads"
NO_RESET, SPAWNED, TIME = "RAM without a reset of the peak", "spawned children", "the time of a block"
MOMENT, KEPT, BACK = "for a moment, taken", "kept, taken", "kept, given back"
CHILD, WAIT = "child (spawn)", "a wait, by another clock"

RAM = [
    Fault("its mark lags", COMES_AND_GOES, "RAM", MOMENT, "needed",
          mark(lambda resident, peak: max(resident, peak - 16 * MB))),
    Fault("its mark is rounded up", COMES_AND_GOES, "RAM", MOMENT, "needed",
          mark(lambda _, peak: (peak // (8 * MB) + 2) * 8 * MB)),
    Fault("its mark is reset by another", SCOPES, "RAM", "in threads, inner", "needed", RESETS_UNSEEN),
    Fault("its mark is reset though it may not be", NO_RESET, "RAM", "reset_peaks=False", "ru_maxrss", RESETS_UNSEEN),
    Fault("its mark is never reset", SCOPES, "RAM", "scopes, inner", "needed",
          instead(linux, "reset_mark", always(None))),
    Fault("statm is stale", COMES_AND_GOES, "RAM", KEPT, "consumed", instead(linux, "resident_bytes", stale)),
    Fault("status is stale", COMES_AND_GOES, "RAM", KEPT, "consumed",
          every(RISES_ONLY, instead(linux, "resident_and_mark_bytes", stale))),
    Fault("pages have another size", COMES_AND_GOES, "RAM", BACK, "consumed",
          lambda patch: patch.setattr(linux, "PAGE_BYTES", 4 * linux.PAGE_BYTES)),
    Fault("a kB is 512 bytes", COMES_AND_GOES, "RAM", KEPT, "used",
          every(RISES_ONLY, lambda patch: patch.setattr(linux, "_KIB", 512))),
    Fault("a sample is called exact", COMES_AND_GOES, "RAM", MOMENT, "needed",
          instead(process.HighWaterMark, "observe", no_mark)),
    Fault("a bound is too narrow", COMES_AND_GOES, "RAM", MOMENT, "needed",
          every(RISES_ONLY, mark(lambda resident, _: resident))),
    Fault("the mark is read as what is resident", COMES_AND_GOES, "RAM", BACK, "consumed",
          every(RISES_ONLY, instead(linux, "resident_and_mark_bytes", lambda real: lambda *pid: real(*pid)[::-1]))),
    Fault("the mark of a fork is lost", "forked children", "child (fork)", "dead at the end", "needed",
          instead(forked.Forks, "leave", rose_too_little)),
    Fault("a child is read as its parent", SPAWNED, CHILD, "kept", "needed",
          instead(linux, "resident_and_mark_bytes", lambda real: lambda *_: real())),
    Fault("children are not listed", SPAWNED, CHILD, "kept", "needed",
          instead(linux, "children_of", always(()))),
    Fault("the clock jumps", TIME, "time", WAIT, "time", instead(clock, "monotonic_s", jumps)),
    Fault("the clock runs at half speed", TIME, "time", WAIT, "time",
          instead(clock, "monotonic_s", lambda real: lambda: real() / 2)),
    Fault("gc is left disabled", "the settings of this process", "settings", "after a block", "gc.isenabled()",
          instead(linux, "faults_and_mark", disables_gc)),
]  # fmt: skip


# -- devices ---------------------------------------------------------------------------------------------


def core(name, make):
    """Put ``make(original)`` in the place of a function of torch's own core."""

    def inject(patch):
        instead(sys.modules["torch"]._C, name, make)(patch)

    return inject


def stats(change):
    """Have torch's statistics of a device be other ones, by the real ones."""
    return core("_cuda_memoryStats", lambda real: lambda index: change(real(index)))


def counted(**by):
    """Have the current value of a count be another one: of the same count, or of another."""

    def change(found):
        for name, other in by.items():
            found[name]["all"]["current"] = other(found)
        return found

    return stats(change)


def forgets_streams(found):
    """Count the blocks of the default stream alone."""
    segments = sys.modules["torch"].cuda.memory_snapshot()
    return found["allocated_bytes"]["all"]["current"] - sum(
        one["allocated_size"] for one in segments if one["stream"]
    )


def lags(found):
    for name in ("allocated_bytes", "reserved_bytes"):
        found[name]["all"]["peak"] = found[name]["all"]["current"]
    return found


def memory(change):
    """Have the driver's figures of a whole device be other ones, by the real ones."""
    return instead(nvml, "_memory", lambda real: lambda *args: change(real(*args)))


def used(change):
    return memory(lambda one: one._replace(used_bytes=change(one.used_bytes)))


def swapped(real):
    return lambda backend, index: replace(real(backend, index), uuid=real(backend, 1 - index).uuid)


def samples_too_much(real):
    def read(driver, uuid):
        found, extra = real(driver, uuid), threading.current_thread() is not threading.main_thread()
        return found and found._replace(used_bytes=found.used_bytes + extra * 1024 * MB)

    return read


def library(name, make):
    """Put ``make(original)`` in the place of a call of the driver's own library, which the checks ask, too."""

    def inject(patch):
        import pynvml

        instead(pynvml, name, make)(patch)

    return inject


def of_the_other_device(real):
    def ask(handle, **version):
        import pynvml

        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(2)]
        uuids = list(map(pynvml.nvmlDeviceGetUUID, handles))
        return real(handles[1 - uuids.index(pynvml.nvmlDeviceGetUUID(handle))], **version)

    return ask


def in_another_unit(real):
    def ask(handle, **version):
        found = real(handle, **version)
        found.used = found.used * 10**6 // MB
        return found

    return ask


def without_a_cache(patch):
    sys.modules["torch"].cuda.memory.caching_allocator_enable(False)
    patch.setattr(state, "caches", lambda: True)


def lower_end(real):
    return classmethod(lambda _, lo, hi, precision=0: real(lo, None if hi is None else lo, precision))


def unwrapped(_):
    return lambda _, original: original


AMOUNTS, STREAMS, GRAPHS = (
    "devices: for a moment, and kept",
    "devices: scopes, threads and streams",
    "devices: CUDA graphs",
)
WHOLE, BESIDE, USERS = (
    "devices: used, free, others",
    "devices: beside torch",
    "devices: the user's own counters",
)
POOL, DEVICE, RAW, OTHERS = (
    "a CUDA graph's private pool",
    "the whole device",
    "beside torch, kept",
    "used by other processes",
)

DEVICES = [
    Fault("a stream is forgotten", STREAMS, "cuda:0", "on a second stream, inner", "consumed",
          counted(allocated_bytes=forgets_streams)),
    Fault("what was requested is counted", AMOUNTS, "cuda:0", "one byte kept, taken", "consumed",
          stats(lambda found: found | {"allocated_bytes": found["requested_bytes"]})),
    Fault("a freed block is forgotten", AMOUNTS, "cuda:0", "large, given back", "consumed",
          counted(allocated_bytes=lambda found: found["allocated_bytes"]["all"]["allocated"])),
    Fault("a peak is never reset", STREAMS, "cuda:0", "in threads, inner", "needed",
          core("_cuda_resetPeakMemoryStats", always(None))),
    Fault("a peak lags", AMOUNTS, "cuda:0", "odd sizes, taken", "needed", stats(lags)),
    Fault("a peak is lost at the user's reset", STREAMS, "cuda:0", "reset_peak_memory_stats() between, inner", "needed",
          instead(ResettableFramework, "_reset_wrapper", unwrapped)),
    Fault("a peak is lost at our reset", "devices: while a peak is reset", "cuda:0", "for a moment, while we reset",
          "needed", instead(allocators.TorchCounter, "growth_bytes", always((0, 0)))),
    Fault("a bound has the wrong end", "devices: while a peak is reset", "cuda:0", "for a moment, while we reset",
          "needed", instead(Peak, "within", lower_end)),
    Fault("the user's counters are not restored", USERS, "cuda:0", "the user's own counters",
          "memory_stats()", instead(ResettableFramework, "_read_wrapper", unwrapped)),
    Fault("two devices are swapped by torch", AMOUNTS, "cuda:0", "large, taken", "used by tensors",
          core("_cuda_memoryStats", lambda real: lambda index: real(1 - index))),
    Fault("two devices are swapped by the driver", WHOLE, "cuda:0", DEVICE, "used",
          instead(allocators, "_describe", swapped)),
    Fault("private pools are forgotten", GRAPHS, "cuda:0", POOL, "in private pools",
          stats(lambda found: found | {"reserved_bytes_by_private_pools": {}})),
    Fault("what is cached is forgotten", GRAPHS, "cuda:0", POOL, "reserved",
          counted(reserved_bytes=lambda found: found["allocated_bytes"]["all"]["current"])),
    Fault("no cache is taken for one", AMOUNTS, "cuda:0", "large, taken", "used by tensors", without_a_cache),
    Fault("used lacks a context", WHOLE, "cuda:0", DEVICE, "used", used(lambda size: size - 500 * MB)),
    Fault("used is in another unit", WHOLE, "cuda:0", DEVICE, "used", used(lambda size: size * 10**6 // MB)),
    Fault("free is total", WHOLE, "cuda:0", DEVICE, "least part",
          memory(lambda one: one._replace(free_bytes=one.total_bytes))),
    Fault("free has the driver's own part", WHOLE, "cuda:0", DEVICE, "free",
          memory(lambda one: one._replace(free_bytes=one.total_bytes - one.used_bytes))),
    Fault("total lacks the driver's own part", WHOLE, "cuda:0", DEVICE, "all its parts",
          memory(lambda one: one._replace(total_bytes=one.used_bytes + one.free_bytes))),
    Fault("a part of the device twice", WHOLE, "cuda:0", DEVICE, "all its parts",
          instead(DeviceUsage, "ladder", lambda real: property(lambda one: real.fget(one) + real.fget(one)[:1]))),
    Fault("the figure of another pid", WHOLE, "cuda:0", DEVICE, OTHERS,
          instead(nvml.Nvml, "own_bytes", always(300 * MB))),
    Fault("a raw allocation is nobody's", BESIDE, "cuda:0", RAW, "consumed", instead(nvml.Nvml, "own_bytes", stale)),
    Fault("the driver answers for another device", BESIDE, "cuda:1", RAW, "outside the allocator",
          library("nvmlDeviceGetMemoryInfo", of_the_other_device)),
    Fault("the driver answers in another unit", BESIDE, "cuda:0", RAW, "outside the allocator",
          library("nvmlDeviceGetMemoryInfo", in_another_unit)),
    Fault("the driver's list is stale", BESIDE, "cuda:0", RAW, "needed",
          library("nvmlDeviceGetComputeRunningProcesses", once)),
    Fault("the driver's memory is stale", BESIDE, "cuda:0", RAW, "outside the allocator",
          instead(nvml.Nvml, "memory", stale)),
    Fault("a sample is too high", BESIDE, "cuda:0", "beside torch, for a moment", "used over time",
          instead(nvml.Nvml, "memory", samples_too_much)),
    Fault("pinned memory is not counted", "pinned memory", "pinned", "pinned memory kept", "consumed",
          core("_cuda_hostMemoryStats", lambda real: lambda: real() | {"allocated_bytes": {"current": 0, "peak": 0}})),
]  # fmt: skip
