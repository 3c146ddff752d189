"""The device under the hardware checks: a real one with SIMGPU=0, as `nox -s gpu` has it, else the simulated one."""

import gc
import os
import platform
import subprocess
import sys
import textwrap

import pytest

from ipygpulogger.engine.machine import machine
from ipygpulogger.engine.scope import Scope
from ipygpulogger.records import Measurement

SIMULATED = os.environ.get("SIMGPU") != "0"  # where neither can be had, ../conftest.py deselects all this
TABLE = pytest.StashKey[dict]()


def why_not():
    """Why there is nothing to check here, in words; None where there is a device."""
    try:
        import torch
    except Exception as error:  # a slim torch says it in many ways
        return f"torch cannot be imported ({str(error).splitlines()[0]})"
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is no CUDA build"
    return None if torch.cuda.is_available() else "torch finds no GPU"


@pytest.hookimpl(trylast=True)  # of what is left to run
def pytest_collection_modifyitems(items):
    """Without a device all is skipped, in one sentence."""
    ours = [item for item in items if item.get_closest_marker("gpu")]
    if ours and not SIMULATED and (reason := why_not()):
        for item in ours:
            item.add_marker(pytest.mark.skip(f"no hardware to check: {reason}"))


@pytest.fixture(scope="session")
def torch():
    """torch, its context made."""
    import torch

    torch.cuda.synchronize()
    return torch


class Card:
    """torch's current device, and what NVML says of it, asked apart from the package."""

    def __init__(self, torch):
        import pynvml

        self.torch, self._nvml = torch, pynvml
        self.index = torch.cuda.current_device()
        uuid = torch.cuda.get_device_properties(self.index).uuid
        pynvml.nvmlInit()
        for kind in ("GPU", "MIG"):
            try:
                self.handle = pynvml.nvmlDeviceGetHandleByUUID(f"{kind}-{uuid}")
                break
            except pynvml.NVMLError:
                self.handle = None

    def nvml(self):
        """Total, used and free bytes and the driver's own."""
        return self._nvml.nvmlDeviceGetMemoryInfo(self.handle, version=self._nvml.nvmlMemory_v2)

    def own_bytes(self):
        """This process, context included; None where the driver does not tell (containers, WSL)."""
        rows = self._nvml.nvmlDeviceGetComputeRunningProcesses(self.handle)
        return next((row.usedGpuMemory for row in rows if row.pid == os.getpid()), None)

    def driver(self):
        return self._nvml.nvmlSystemGetDriverVersion()

    def shutdown(self):
        self._nvml.nvmlShutdown()

    def tensor(self, size_bytes, device=None):
        return self.torch.empty(
            size_bytes, dtype=self.torch.uint8, device=f"cuda:{self.index if device is None else device}"
        )

    def measured(self, *steps, **options):
        """What a scope around these steps tells, and this device in it."""
        scope = Scope(**options).open()
        try:
            for step in steps:
                step()
        finally:
            scope.close()
        result = scope.result(Measurement, "")
        return result, next(gpu for gpu in result.gpus if gpu.index == self.index)


@pytest.fixture(scope="module")
def the_card(torch):
    card = Card(torch)
    yield card
    card.shutdown()


@pytest.fixture
def card(request, the_card):
    """Nothing cached, peaks reset; what a failed test's traceback holds stays allocated, and disturbs nobody."""
    if SIMULATED:
        request.getfixturevalue("gpu")
    cuda = the_card.torch.cuda
    cuda.synchronize()
    gc.collect()
    the_card.torch._C._cuda_clearCublasWorkspaces()
    cuda.empty_cache()
    for index in range(cuda.device_count()):
        cuda.reset_peak_memory_stats(index)
    if the_card.handle is None:
        pytest.skip("NVML does not know this device")
    yield the_card
    cuda.empty_cache()
    machine().close()


@pytest.fixture
def env(request, torch):
    """The environment of a subprocess on the same device, with torch's own allocator."""
    env = request.getfixturevalue("kernel_env") if SIMULATED else dict(os.environ)
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        env.pop(name, None)
    return env


@pytest.fixture
def printed(env):
    """Runs a program in a fresh process and tells what it printed."""

    def run(program, **more):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)],
            env={**env, **more},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    return run


@pytest.fixture
def table(request):
    """What is measured and not asserted: {what: value}, shown in the end as a table for benchmarks/results/."""
    return request.config.stash.setdefault(TABLE, {})


def pytest_terminal_summary(terminalreporter, config):
    rows = config.stash.get(TABLE, None)
    if not rows:
        return
    torch = sys.modules["torch"]
    name = torch.cuda.get_device_name()
    about = f"{platform.system()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, torch {torch.__version__}"
    width = max(map(len, rows))
    lines = [f"{what:{width}} | {value:>12} |" for what, value in rows.items()]
    terminalreporter.write_sep("-", "for benchmarks/results/")
    terminalreporter.write_line(f"### {name}{' (simulated)' if SIMULATED else ''}\n")
    terminalreporter.write_line(f"| {'':{width}} | {'':12} |\n| {':':-<{width}} | {':':->12} |")
    terminalreporter.write_line("".join(f"| {line}\n" for line in lines))
    terminalreporter.write_line(about)
