"""Simulated NVIDIA GPUs: the control side, a ctypes view of the state in simgpu.h. See README.md.

gpu = simgpu.start(devices=2, mem_mb=16384)      # before anything imports torch or pynvml
gpu.dev[0].base_used = 3 << 30                   # what NVML says from now on
gpu.dev[0].script([(5000, 1 << 30), (9000, 0)])  # a 4 ms spike, 5 ms from now
gpu.fault("nvmlDeviceGetMemoryInfo*", 15)        # NVML_ERROR_GPU_IS_LOST
"""

import ctypes as C
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path

from . import build

MAX_DEV, MAX_PROC, MAX_STEP, MAX_FAULT, MAX_SLICE = 8, 32, 64, 16, 7
u32, u64 = C.c_uint32, C.c_uint64


class Proc(C.Structure):
    _fields_ = (
        ("pid", u32), ("kind", u32), ("owned", u32), ("ctx", u32),
        ("used", u64), ("peak", u64), ("slice", u64),
    )  # fmt: skip


class Step(C.Structure):
    _fields_ = (("at", u64), ("used", u64))


class Slice(C.Structure):
    """A MIG slice. The fields may be changed like those of a device."""

    _fields_ = (("uuid", C.c_char * 48), ("total", u64), ("base_used", u64), ("gi", u32), ("g", u32))


class Dev(C.Structure):
    _fields_ = (
        ("name", C.c_char * 96), ("uuid", C.c_char * 48), ("pci", C.c_char * 32),
        ("total", u64), ("reserved", u64), ("base_used", u64), ("ctx_bytes", u64),
        ("energy_mj", u64), ("energy_t0_ns", u64), ("load_t0", u64), ("script_t0", u64),
        ("n_meminfo", u64), ("n_launch", u64), ("n_malloc", u64), ("n_free", u64),
        ("cc_major", u32), ("cc_minor", u32), ("sm_count", u32), ("temp_c", u32),
        ("util_gpu", u32), ("util_mem", u32), ("power_mw", u32), ("power_limit_mw", u32),
        ("lost", u32), ("n_step", u32), ("script_mode", u32), ("n_load", u32),
        ("sample_us", u32), ("energy_step_ms", u32), ("integrated", u32), ("mig_mode", u32),
        ("step", Step * MAX_STEP), ("loads", Step * MAX_STEP), ("slice", Slice * MAX_SLICE), ("proc", Proc * MAX_PROC),
    )  # fmt: skip

    def script(self, steps, by_read=False):
        """Replay base_used: [(at, bytes), ...].

        `at` is in microseconds from now, or, by_read, in NVML memory reads from now
        (1 is the next read), which no scheduling can disturb.
        """
        self.script_mode = 0
        for i, (at, used) in enumerate(steps):
            self.step[i] = Step(at, used)
        self.n_step = len(steps)
        self.script_t0 = self.n_meminfo if by_read else time.monotonic_ns()
        self.script_mode = 2 if by_read else 1

    def load(self, steps):
        """Replay utilization: [(microseconds from now, percent), ...]; before the first it is util_gpu.

        Negative times are the past, which nvmlDeviceGetSamples tells.
        """
        self.n_load = 0
        first = min([0, *(at for at, _ in steps)])
        for i, (at, percent) in enumerate(steps):
            self.loads[i] = Step(at - first, percent)
        self.load_t0 = time.monotonic_ns() + 1000 * first
        self.n_load = len(steps)

    def mig(self, *sizes):
        """Put the device in MIG mode with slices of these bytes, 0 for an empty slot; -> the slices."""
        C.memset(self.slice, 0, C.sizeof(self.slice))
        for i, (size, s) in enumerate(zip(sizes, self.slice, strict=False)):
            s.uuid = f"MIG-{uuid.uuid5(uuid.UUID(self.uuid[4:].decode()), str(i))}".encode()
            s.total, s.gi, s.g = size, 7 + i, max(1, round(7 * size / self.total))
        self.mig_mode = 1
        return [self.slice[i] for i in range(len(sizes))]

    def add_process(self, pid, used, kind=1, slice=None):  # noqa: A002
        """A foreign process (kind 1 compute, 2 graphics), in MIG slice number `slice`; the pid need not exist."""
        slot = next(p for p in self.proc if not p.kind)
        slot.pid, slot.used, slot.peak, slot.owned = pid, used, used, 0
        slot.slice, slot.kind = 0 if slice is None else 1 + slice, kind
        return slot

    def mine(self, pid=None):
        """The row of this process (ground truth of `used` and `peak`), or None."""
        pid = pid or os.getpid()
        return next((p for p in self.proc if p.kind and p.pid == pid), None)


class Fault(C.Structure):
    _fields_ = (
        ("fn", C.c_char * 56), ("dev", C.c_int32), ("rc", C.c_int32),
        ("skip", u32), ("count", u32), ("delay_us", u32), ("hits", u32),
    )  # fmt: skip


class State(C.Structure):
    _fields_ = (
        ("magic", u32), ("size", u32), ("n_dev", u32), ("lock", u32), ("pid_offset", C.c_int32),
        ("proc_mem_na", u32), ("n_fault", u32), ("cuda_version", u32), ("in_flight_at_shutdown", u32), ("mig_parent_uuid", u32),
        ("driver_version", C.c_char * 32), ("cuda_order", u32 * MAX_DEV),
        ("faults", Fault * MAX_FAULT), ("dev", Dev * MAX_DEV),
    )  # fmt: skip

    def fault(self, fn, rc=-1, dev=-1, skip=0, count=0, delay_us=0):
        """Make calls of `fn` (a trailing * is a prefix match) return rc; rc=-1 only delays them."""
        slot = next(f for f in self.faults if not f.fn)
        slot.dev, slot.rc, slot.skip, slot.count, slot.delay_us, slot.hits = dev, rc, skip, count, delay_us, 0
        slot.fn = fn.encode()
        self.n_fault += 1
        return slot

    def clear(self):
        """Back to the quiet machine of the start; counters go on, rows of live CUDA processes stay."""
        self.n_fault = 0
        C.memset(self.faults, 0, C.sizeof(self.faults))
        for name, _ in State._fields_:
            if name not in ("magic", "size", "lock", "n_fault", "faults", "dev"):
                setattr(self, name, getattr(self.quiet, name))
        for dev, quiet in zip(self.dev, self.quiet.dev, strict=True):
            dev.script_mode = dev.n_load = 0
            C.memset(dev.step, 0, C.sizeof(dev.step))
            C.memset(dev.loads, 0, C.sizeof(dev.loads))
            for name, _ in Dev._fields_:
                if name not in ("n_meminfo", "n_launch", "n_malloc", "n_free", "step", "loads", "proc"):
                    setattr(dev, name, getattr(quiet, name))
            for p in dev.proc:
                if p.kind and not p.owned:
                    C.memset(C.addressof(p), 0, C.sizeof(p))


def why_not():
    """Why no machine can be simulated here, in words; None when it can."""
    if os.environ.get("SIMGPU") == "0":
        return "switched off by SIMGPU=0"
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"not Linux x86-64 but {sys.platform} {platform.machine()}"
    missing = [tool for tool in (build.GCC, "nm", "readelf") if not shutil.which(tool)]
    if missing:
        return f"{' and '.join(missing)} not found"
    probe = [build.GCC, "-fsyntax-only", "-include", "stdio.h", "-x", "c", os.devnull]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        return f"{build.GCC} cannot compile: no C headers?"
    return None


def find_torch_lib():
    """torch/lib of the installed torch if it is a CUDA build, without importing it."""
    spec = importlib.util.find_spec("torch")
    lib = Path(spec.origin).parent / "lib" if spec and spec.origin else None
    return lib if lib and (lib / "libc10_cuda.so").exists() else None


def libs(lib):
    """The built libraries, the CUDA runtime first."""
    return sorted(map(str, lib.glob("lib*.so.*")), key=lambda p: ("libcudart" not in p, p))


def environment(gpu, driver=True):
    """Variables that put a subprocess (a Jupyter kernel, say) on this machine, or on one without a driver."""
    inherited = os.environ.get("LD_LIBRARY_PATH")
    env = {
        "SIMGPU_STATE": gpu.path if driver else "",
        # enough for pynvml and for a torch without nvidia-* packages
        "LD_LIBRARY_PATH": f"{gpu.lib}:{inherited}" if inherited else str(gpu.lib),
    }
    torch_lib = find_torch_lib()
    if torch_lib and list((torch_lib / "../../nvidia").glob("**/libcudart.so*")):
        env["LD_PRELOAD"] = ":".join(libs(gpu.lib))  # wins over the RPATH of a complete torch
    return env


def start(devices=1, mem_mb=16384):
    """Give this process simulated GPUs; call before importing torch or pynvml.

    The libraries are loaded by path. Later loads by name (pynvml's CDLL, torch's DT_NEEDED)
    match their SONAMEs, so neither LD_LIBRARY_PATH nor LD_PRELOAD is needed here.
    """
    if "torch" in sys.modules:
        raise RuntimeError("start the simulated GPUs before importing torch")
    lib = build.ensure(find_torch_lib())
    # A memory file that other processes open through /proc: it is gone when this process is.
    path = f"/proc/{os.getpid()}/fd/{os.memfd_create('simgpu')}"
    os.environ.update(SIMGPU_STATE=path, SIMGPU_DEVICES=str(devices), SIMGPU_MEM_MB=str(mem_mb))
    # What the developer set for the real machine does not change the simulated one.
    for name in (
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "PYTORCH_CUDA_ALLOC_CONF",
        "PYTORCH_ALLOC_CONF",
    ):
        os.environ.pop(name, None)
    for p in libs(lib):
        C.CDLL(p, mode=C.RTLD_GLOBAL)
    nvml = C.CDLL(str(lib / "libnvidia-ml.so.1"))
    nvml.simgpu_state.restype = C.POINTER(State)
    gpu = nvml.simgpu_state().contents
    if gpu.size != C.sizeof(State):
        raise RuntimeError("simgpu/__init__.py and simgpu.h disagree")
    gpu.path, gpu.lib = path, lib
    gpu.quiet = State.from_buffer_copy(gpu)
    return gpu
