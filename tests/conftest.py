"""The simulated machine under every test, and the fixtures that hand it out."""

import atexit
import contextlib
import ctypes
import gc
import importlib.util
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import simgpu
from failures import pytest_terminal_summary  # noqa: F401 - a hook of pytest
from hypothesis import HealthCheck, settings
from job_summary import pytest_sessionfinish  # noqa: F401 - a hook of pytest
from memory import trim

from ipygpulogger import IPyGPULogger, measure, measure_lines
from ipygpulogger.engine import machine as machines
from ipygpulogger.sources.system import linux
from ipygpulogger.sources.system.ram_limit import RamLimits

# A busy machine draws slowly, and says nothing about the code by it.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# What was killed for lack of memory before the tests is news to none of them, nor to the kernels that they start.
if (kills := RamLimits().kills()) and kills.processes:
    os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp()
    RamLimits().new_oom_kills()

# A block of a known size shall come from the kernel and go back there, whatever tests ran before: each large
# block that is freed makes glibc keep larger ones for itself, up to 32 MB (mallopt(3), M_MMAP_THRESHOLD).
with contextlib.suppress(AttributeError, OSError, TypeError):
    ctypes.CDLL(None).mallopt(-3, 128 << 10)

# Before anything imports torch or pynvml, which load the driver's libraries once per process.
WHY_NOT = simgpu.why_not()
GPU = None if WHY_NOT else simgpu.start(devices=2, mem_mb=16384)
CUDA = bool(GPU) and simgpu.find_torch_lib() is not None


def installed(*modules):
    return all(map(importlib.util.find_spec, modules))


HERE = {  # by marker: whether what it needs is here
    "torch": CUDA,
    "gpu": CUDA or os.environ.get("SIMGPU") == "0",  # then tests/gpu looks for a real one
    "frameworks": installed("jax", "tensorflow"),
    "training": CUDA and installed("fastai", "lightning", "transformers", "keras"),
    "cluster": installed("torch", "ipyparallel", "distributed"),  # Ray has wheels for some Pythons only
    "browser": installed("jupyterlab", "playwright"),
    "package": "PACKAGE" in os.environ,
}
# Another system than Linux, here or simulated by tests/elsewhere; see there.
SYSTEM = os.environ.get("SYSTEM") or {"win32": "windows", "darwin": "macos"}.get(sys.platform, "linux")
SHARED_KERNELS = set()  # the process identifiers of those that wait for the next test of their file
ELSEWHERE = [marker for marker, here in HERE.items() if not here]


def pytest_ignore_collect(collection_path):
    """A file marked as a whole may import what it needs at its top: it stays closed where that is not here."""
    if collection_path.suffix != ".py":
        return None
    text = collection_path.read_text(encoding="utf-8")
    starts = ("\npytestmark = pytest.mark.", "\npytestmark = [pytest.mark.")
    return any(f"{start}{marker}" in text for start in starts for marker in ELSEWHERE) or None


def pytest_configure():
    """A suite that says it runs elsewhere, and does not, would prove nothing."""
    if linux.sys.platform != {"windows": "win32", "macos": "darwin"}.get(SYSTEM, sys.platform):
        raise pytest.UsageError("SYSTEM needs PYTHONPATH=tests/elsewhere; nox -s elsewhere sets both")


def pytest_collection_modifyitems(config, items):
    """What is not installed, or is no CUDA build, is tested in another lane: deselected, not skipped."""
    for item in items:
        marker = item.get_closest_marker("linux")
        if marker and SYSTEM not in ("linux", *marker.args[1:]):
            item.add_marker(pytest.mark.skip(reason=f"not on {SYSTEM}: {marker.args[0]}"))
    for marker in ELSEWHERE:
        config.hook.pytest_deselected(items=[i for i in items if i.get_closest_marker(marker)])
        items[:] = [i for i in items if not i.get_closest_marker(marker)]


@pytest.fixture(autouse=True)
def no_leaks(request):
    """After every test: no thread of ours, no child process, no scope open, nobody holding the machine.

    What an earlier test left behind was that one's fault, and is not blamed again; a note it left is nobody's.
    """
    threads, children, (scopes, holders) = _threads(), _children(), _measuring()
    if machines._machine:
        machines._machine.take_notes()
    yield
    new = _threads() - threads
    for thread in new:
        thread.join(60)  # it may be on its way out of a driver call, on a busy machine
    assert not any(thread.is_alive() for thread in new)
    assert _children() <= children, "the reports of later tests would count it"
    left, holding = _measuring()
    # With --gpulog, the teardown is measured while this runs.
    assert len(left - scopes) <= request.config.pluginmanager.has_plugin("gpulog")
    assert 0 <= holding <= holders


def _threads():
    return {thread for thread in threading.enumerate() if thread.name.startswith("ipygpulogger")}


def _children():
    """Process identifiers, zombies among them; none on a kernel that does not list them."""
    found = set()
    for listed in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that just ended
            found.update(listed.read_text().split())
    return found - SHARED_KERNELS


def _measuring():
    machine = machines._machine
    return (set(machine.scopes), len(machine.scopes.loggers)) if machine else (set(), 0)


@pytest.fixture
def fresh_machine(monkeypatch):
    """The process's machine is made anew, so that nothing is known from earlier tests."""
    monkeypatch.setattr(machines, "_machine", None)
    yield
    if machines._machine:
        machines._machine.close()


@pytest.fixture(scope="module", autouse=True)
def loaded(request):
    """A file that makes memory of known size: what a measurement loads is loaded before the first is held to it.

    Compiling a module takes megabytes for a moment, of which malloc gives some back later, within any line.
    """
    if _makes_known_memory(request.module):
        with measure():
            measure_lines(report=False)(lambda: None)()


@pytest.fixture(autouse=True)
def settled(request):
    """Before each test: nothing that was left earlier will be given back in what it measures.

    No garbage waits, and malloc keeps nothing that it could return. What lives by then is frozen: collecting,
    which many tests and most cells do, does not look at it, and that is most of the time it takes.
    """
    gc.collect()
    gc.freeze()
    trim()


@pytest.fixture
def fresh_mark():
    """No peak of an earlier test bounds this one's; once called, none of this test's either.

    On Linux it never does, as the mark is reset; another system cannot, so there only the simulated one runs this.
    """
    if SYSTEM == "linux":
        return lambda: None
    if not os.environ.get("SYSTEM"):
        # Nothing resets the mark of a real macOS or Windows: a peak of an earlier test would hide this test's.
        pytest.skip("no high-water mark can be reset here, and an earlier test may have had a higher peak")
    from sitecustomize import forget_mark

    forget_mark()
    return forget_mark


def _makes_known_memory(module):
    return not {"Block", "blip", "held_transient"}.isdisjoint(vars(module))


@pytest.fixture
def restless():
    """Threads take turns ten times as often as elsewhere: more races in less time."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(interval_s / 10)
    yield
    sys.setswitchinterval(interval_s)


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """IPython's shell in this process, history in memory, no user's configuration; left without a callback."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # the shell puts its own there
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):  # pytest's, of a test that failed
        monkeypatch.delattr(sys, name, raising=False)
    config = Config(HistoryManager={"enabled": False})
    shell = InteractiveShell.instance(config=config, ipython_dir=str(tmp_path))
    strangers = {event: list(callbacks) for event, callbacks in shell.events.callbacks.items()}
    yield shell
    left = {event: list(callbacks) for event, callbacks in shell.events.callbacks.items()}
    for logger in [one for one in shell.configurables if isinstance(one, IPyGPULogger)]:
        logger.stop()  # a test that failed left it; the next ones shall not fail with it
    atexit.unregister(shell.atexit_operations)
    shell.restore_sys_module_state()
    InteractiveShell.clear_instance()
    assert left == strangers


@pytest.fixture
def gpu():
    """The simulated machine, quiet at the start and the end of every test."""
    if GPU is None:
        pytest.skip(f"no simulated GPU: {WHY_NOT}")
    GPU.clear()
    yield GPU
    GPU.clear()


@pytest.fixture
def cuda(gpu, settled):
    """The machine as torch sees it: context made, cache empty, peaks reset. For tests marked torch."""
    import torch

    torch.cuda.set_device(0)  # a trainer of another test may have chosen another
    torch.cuda.synchronize()  # the context exists from here on
    torch._C._cuda_clearCublasWorkspaces()  # 8 MB that the first matrix product leaves behind
    torch.cuda.empty_cache()
    if any(map(torch.cuda.memory_allocated, range(torch.cuda.device_count()))):
        gc.unfreeze()  # garbage by now, but not yet when it was frozen: what a fixture of a file had held
        gc.collect()
        late_s = time.monotonic() + 10  # torch's thread for backward passes lets go a moment later
        while any(map(torch.cuda.memory_allocated, range(torch.cuda.device_count()))):
            assert time.monotonic() < late_s, "an earlier test left memory on the device"
            time.sleep(0.001)
        torch.cuda.empty_cache()
    for i in range(torch.cuda.device_count()):
        torch.cuda.reset_peak_memory_stats(i)
    yield gpu
    gpu.clear()
    torch.cuda.empty_cache()


@pytest.fixture(scope="session")
def driverless_env():
    """The environment of a subprocess on a machine without a GPU, wherever the tests run."""
    return {**os.environ, **(simgpu.environment(GPU, driver=False) if GPU else {})}


@pytest.fixture
def kernel_env(gpu):
    """The environment of a subprocess, such as a Jupyter kernel, on the same machine."""
    return {**os.environ, **simgpu.environment(gpu)}


@pytest.fixture(scope="module")
def shared_kernels(tmp_path_factory):
    """The kernels that tests of one file share, by what they were begun with."""
    from kernels import Kernel

    found = {}
    with contextlib.ExitStack() as stack:

        def started(env, cells):
            key = tuple(sorted(env.items())), tuple(cells)
            if key not in found:
                kernel = stack.enter_context(Kernel(env, tmp_path_factory.mktemp("kernel")))
                SHARED_KERNELS.add(kernel.pid)
                stack.callback(SHARED_KERNELS.discard, kernel.pid)
                kernel.begin(cells)
                found[key] = kernel
            return found[key]

        yield started


@pytest.fixture
def kernel(request, tmp_path, shared_kernels):
    """A real Jupyter kernel, as the closest marker `kernel` says; by default a new one, without a GPU.

    ``@pytest.mark.kernel(gpu=False, begin=(), around=nullcontext, shared=False, env={})``: on the simulated machine;
    with these cells run first; each test within this context manager, which is given the kernel and checks what
    is left; one kernel for all tests of the file that ask for the same; with these variables in its environment,
    where None takes one away. `kernel.folder` is the test's own, `kernel.gpu` the simulated machine.
    """
    from kernels import Kernel

    marker = request.node.get_closest_marker("kernel")
    asked = {"gpu": False, "begin": (), "around": contextlib.nullcontext, "shared": False, "env": {}}
    asked |= marker.kwargs if marker else {}
    machine = request.getfixturevalue("gpu") if asked["gpu"] else None
    simulated = simgpu.environment(GPU, driver=asked["gpu"]) if GPU else {}
    env = {**os.environ, **simulated, **asked["env"], "PYTEST_CURRENT_TEST": None}  # or no two were the same
    env = {name: value for name, value in env.items() if value is not None}
    with contextlib.ExitStack() as stack:
        if asked["shared"]:
            kernel = shared_kernels(env, asked["begin"])
        else:
            kernel = stack.enter_context(Kernel(env, tmp_path / "kernel"))
            kernel.begin(asked["begin"])
        kernel.folder, kernel.gpu = tmp_path, machine
        with asked["around"](kernel):
            yield kernel


@pytest.fixture(scope="module")
def torch_forks(machine_env):
    """Runs programs in processes of their own, which begin with torch imported; see there."""
    from torch_forks import TorchForks

    forks = TorchForks(machine_env)
    SHARED_KERNELS.add(forks.pid)
    yield forks
    SHARED_KERNELS.discard(forks.pid)
    forks.close()


@pytest.fixture(scope="module")
def machine_env():
    """The same for a kernel that the tests of a file share."""
    if GPU is None:  # outside the lanes that simulate one; in those, nox refuses to begin
        pytest.skip(f"no simulated GPU: {WHY_NOT}")
    return {**os.environ, **simgpu.environment(GPU)}
