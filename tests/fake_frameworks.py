"""JAX, CuPy, TensorFlow and RMM without a GPU: the names our adapters use, with their real signatures.

Checked against jax 0.10.2, cupy 14.2 (its sources and its compiled names), tensorflow 2.21, rmm 26.10.
Behind each stands an `Allocator` that has written down every value its memory ever had.
"""

# ruff: noqa: ARG002, C901 - signatures as they are, each library in one piece

import os
import subprocess
import sys
import threading
import types
from dataclasses import dataclass

from ipygpulogger.sources.frameworks.cupy import CuPy
from ipygpulogger.sources.frameworks.jax import Jax
from ipygpulogger.sources.frameworks.rmm import Rmm
from ipygpulogger.sources.frameworks.tensorflow import TensorFlow


class Allocator:
    """Bytes in use, their peak and the count of allocations, as XLA's, TensorFlow's and RMM's keep them."""

    def __init__(self):
        self.current = self.peak = self.pool = 0
        self.count = self.total = 0
        self.story = [0]

    def move(self, step):
        step = max(step, -self.current)
        self.current += step
        self.story.append(self.current)
        self.peak, self.pool = max(self.peak, self.current), max(self.pool, self.current)
        if step > 0:
            self.count, self.total = self.count + 1, self.total + step
        for counter in getattr(self, "stack", ())[-1:]:
            counter.add(step)


class Fakes:
    """Puts modules into `sys.modules`, through pytest's monkeypatch."""

    def __init__(self, monkeypatch):
        self.monkeypatch = monkeypatch
        self.contexts = {0}  # devices with a CUDA context
        for name in ("jax", "cupy", "tensorflow", "rmm"):
            for module in [m for m in sys.modules if m == name or m.startswith(name + ".")]:
                monkeypatch.delitem(sys.modules, module)
        monkeypatch.setattr(
            "ipygpulogger.sources.nvidia.driver.contexts", lambda: tuple(sorted(self.contexts))
        )

    def module(self, name, **names):
        module = types.ModuleType(name)
        module.__dict__.update(names)
        self.monkeypatch.setitem(sys.modules, name, module)
        return module

    # -- JAX -----------------------------------------------------------------------------------

    def jax(self, *allocators, platform="gpu", initialised=True):
        """`jax._src.xla_bridge._backends` with one client; stats as jaxlib's py_device.cc makes them."""

        class Device:
            def __init__(self, index, allocator):
                self.id, self.local_hardware_id, self.platform = 10 + index, index, platform
                self.device_kind, self.allocator, self.told = "Fake GPU", allocator, {}

            def memory_stats(self):
                a = self.allocator
                return a and {
                    "num_allocs": a.count,
                    "bytes_in_use": a.current,
                    "peak_bytes_in_use": a.peak,
                    "bytes_limit": 1 << 40,
                    "pool_bytes": a.pool,
                    "peak_pool_bytes": a.pool,
                    **self.told,
                }

        class Client:
            def __init__(self, devices):
                self.local_devices = lambda: devices

        class Array:
            def __init__(self, device, address, size, *, ready=True):
                self._where, self._address, self._size, self._ready = device, address, size, ready

            def devices(self):
                return set(self._where) if isinstance(self._where, list) else {self._where}

            def on_device_size_in_bytes(self):
                return self._size

            def unsafe_buffer_pointer(self):
                assert self._ready, "this would wait"
                return self._address

            def is_ready(self):
                return self._ready

        client = Client([Device(i, a) for i, a in enumerate(allocators)])
        config = types.SimpleNamespace(jax_default_device=None)
        jax = self.module("jax", Array=Array, config=config, Device=Device)
        jax.client, jax.devices = client, client.local_devices()
        jax.bridge = self.module("jax._src.xla_bridge", _backends={"cuda": client} if initialised else {})
        return jax

    # -- CuPy ----------------------------------------------------------------------------------

    def cupy(self, *allocators):
        """A pool per device, reached through the calling thread's current device, as of CUDA 12."""
        here, fakes = threading.local(), self

        class Runtime:
            def getDevice(self):
                return getattr(here, "index", 0)

            def setDevice(self, index):
                fakes.contexts.add(index)  # since CUDA 12 this makes the context
                here.index = index

            def getDeviceProperties(self, device):
                return {"name": b"Fake GPU"}

        class Device:
            def __init__(self, device=None):
                self.id = device

            def __enter__(self):
                self._before = runtime.getDevice()
                runtime.setDevice(self.id)
                return self

            def __exit__(self, *args):
                runtime.setDevice(self._before)

        class Pool:
            limit = 0

            def used_bytes(self):
                return allocators[runtime.getDevice()].current

            def total_bytes(self):
                return allocators[runtime.getDevice()].pool

            def get_limit(self):
                return self.limit

            def free_all_blocks(self, stream=None):
                one = allocators[runtime.getDevice()]
                one.pool = one.current

        class ndarray:
            def __init__(self, index, block, size):
                memory = types.SimpleNamespace(device_id=index, ptr=block, size=size)
                self.data = types.SimpleNamespace(mem=memory, ptr=block + 8, device_id=index)

        runtime, pool = Runtime(), Pool()
        cuda = types.SimpleNamespace(runtime=runtime, Device=Device)
        return self.module(
            "cupy", cuda=cuda, ndarray=ndarray, pool=pool, get_default_memory_pool=lambda: pool
        )

    # -- TensorFlow ----------------------------------------------------------------------------

    def tensorflow(self, *allocators, hidden=(), split=None, initialised=True):
        """`tensorflow.python.eager.context`, and the public functions bound at import."""
        split = split or {}

        @dataclass(frozen=True)
        class Physical:
            name: str

        everything = [Physical(f"/physical_device:GPU:{i}") for i in range(len(allocators))]
        seen = [d for i, d in enumerate(everything) if i not in hidden]
        logical = [i for i in range(len(allocators)) if i not in hidden for _ in range(split.get(i, 1))]

        def allocator_of(device):
            kind, _, index = device.rpartition(":")
            index = "0" if index == "*" and len(logical) == 1 else index  # it matches any
            if not kind.upper().endswith("GPU") or not index.isdigit() or int(index) >= len(logical):
                raise ValueError(f"No matching devices found for '{device}'")
            return allocators[logical[int(index)]]

        class Context:
            def __init__(self):
                self._initialized, self._pluggable_devices = initialised, []

            def ensure_initialized(self):
                self._initialized = True

            def get_memory_info(self, dev):
                self.ensure_initialized()
                one = allocator_of(dev)
                return {"current": one.current, "peak": one.peak}

            def reset_memory_stats(self, dev):
                self.ensure_initialized()
                one = allocator_of(dev)
                one.peak = one.current

            def list_physical_devices(self, device_type=None):
                return list(everything)

            def get_visible_devices(self, device_type=None):
                return list(seen)

            def list_logical_devices(self, device_type=None):
                self.ensure_initialized()
                return list(logical)

        context = Context()
        self.module("tensorflow.python.eager.context", Context=Context, _context=context)
        return self.module(
            "tensorflow",
            context=context,
            Context=Context,
            get_memory_info=lambda device: context.get_memory_info(device),  # noqa: PLW0108 - looked up at the call
            reset_memory_stats=lambda device: context.reset_memory_stats(device),  # noqa: PLW0108
        )

    # -- RMM -----------------------------------------------------------------------------------

    def rmm(self, allocator, enabled=True):
        """A stack of counters as in statistics_resource_adaptor_impl.hpp."""

        @dataclass
        class Statistics:
            current_bytes: int
            current_count: int
            peak_bytes: int
            peak_count: int
            total_bytes: int
            total_count: int

        class Pair:
            def __init__(self):
                self.value = self.peak = self.total = self.count = self.counts = 0

            def add(self, step):
                self.value += step
                self.peak = max(self.peak, self.value)
                if step > 0:
                    self.total, self.counts = self.total + step, self.counts + 1

        allocator.stack = [Pair()]
        allocator.adaptor = object()

        def get_statistics():
            if not rmm.enabled:
                return None
            top = allocator.stack[-1]
            return Statistics(top.value, 0, top.peak, 0, top.total, top.counts)

        def push_statistics():
            told = get_statistics()
            if told is not None:
                allocator.stack.append(Pair())
            return told

        def pop_statistics():
            told = get_statistics()
            sub = allocator.stack.pop()
            top = allocator.stack[-1]
            top.peak = max(top.value + sub.peak, top.peak)
            top.value += sub.value
            top.total, top.counts = top.total + sub.total, top.counts + sub.counts
            return told

        rmm = self.module("rmm", enabled=enabled)
        rmm.mr = types.SimpleNamespace(get_current_device_resource=lambda: allocator.adaptor)
        functions = (get_statistics, push_statistics, pop_statistics)
        rmm.statistics = self.module("rmm.statistics", **{f.__name__: f for f in functions})
        rmm.gpu = self.module("rmm._cuda.gpu", getDevice=lambda: 0)
        return rmm


class Broken:
    """A module, or anything in one, of which every use fails."""

    def __init__(self, error):
        self.__dict__["error"] = error

    def __getattr__(self, name):
        raise self.error

    def __call__(self, *args, **kwargs):
        raise self.error


ALL = {"jax": Jax, "cupy": CuPy, "tensorflow": TensorFlow, "rmm": Rmm}


def begin(fakes, name):
    """A framework in use, its one counter, and the allocator behind it."""
    allocator = Allocator()
    module = getattr(fakes, name)(allocator)
    allocator.move(100)
    framework = ALL[name]()
    (counter,) = framework.counters()
    return framework, counter, allocator, module


def real(program):
    """Run it where nothing of this process shows; its last line."""
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def figures(interval):
    peak = interval.peak()
    return peak.lo_bytes, peak.hi_bytes, peak.quality
