"""The checks of `ipygpulogger doctor --verify` on devices: simulated ones, or with SIMGPU=0 real ones."""

import contextlib
import json
import os

import pytest
from memory import MB

from ipygpulogger.sources.torch import state
from ipygpulogger.verify import device
from ipygpulogger.verify.check import Figure, Unchecked

SIMULATED = os.environ.get("SIMGPU") != "0"  # where neither can be had, ../conftest.py deselects all this
HERE = [*(f"devices: {name}" for name in device._ON_EACH), "pinned memory"]  # those in this process alone
FRESH = ["other allocators, in fresh processes", "other frameworks, in fresh processes"]
ONE, SIZES, OTHERS = "several at once", "sizes of no whole pages", "the whole device: other processes"
gpu = pytest.mark.gpu


@pytest.fixture
def devices(request, monkeypatch):
    """torch sees them, all clean; subprocesses are on the same machine."""
    if not SIMULATED:
        return None
    for name, value in request.getfixturevalue("kernel_env").items():
        monkeypatch.setenv(name, value)
    found = request.getfixturevalue("cuda").dev[:2]
    for index, one in enumerate(found):
        state.module().cuda.synchronize(index)  # the context
        one.mine().peak = one.mine().used
    return found


@pytest.fixture
def simulated(devices):
    """The same, for tests that change the machine."""
    # These fill a device or move other processes' memory, which nobody may do to a real one.
    return devices or pytest.skip("this changes the machine: only on simulated devices")


def check_of(name):
    return next(check for check in device.checks() if check.name == name)


@gpu
@pytest.mark.filterwarnings("default")  # a stranger's machine may have warnings of its own
@pytest.mark.parametrize("name", ["devices", *HERE, *FRESH])
def test_no_figure_excludes_the_truth(devices, name):
    """On every device. On the simulated ones nothing is left out, and all but what is sampled is exact."""
    found = list(check_of(name).found())
    figures = [one for one in found if isinstance(one, Figure)]
    assert not [one for one in figures if one.is_wrong]
    if not SIMULATED:
        if not figures:  # what this machine cannot check (one device, a container); simulated ones must
            pytest.skip("; ".join(one.reason for one in found if isinstance(one, Unchecked)))
        return
    allocators = "cudaMallocAsync", "no caching"
    left_out = {one.case for one in found if isinstance(one, Unchecked)}
    assert left_out <= {f"{name}: {SIZES}" for name in allocators}
    assert {one.where for one in figures} in ({"cuda:0", "cuda:1"}, {"pinned"}, set())
    sampled = {one.case.partition(":")[0] for one in figures if one.label == "at least"}
    assert sampled <= {"beside torch, for a moment", "no caching"}


def _mig(gpu, parent=0):
    gpu.dev[0].mig(4864 * MB, 0, 2432 * MB)
    gpu.mig_parent_uuid = parent


@gpu
@pytest.mark.parametrize(
    ("change", "left_out"),
    [
        (_mig, {ONE}),
        (lambda gpu: _mig(gpu, 1), {ONE, "the whole device"}),
        (lambda gpu: setattr(gpu, "pid_offset", 1000), {ONE, OTHERS}),
        (lambda gpu: setattr(gpu, "proc_mem_na", 1), {ONE, OTHERS}),
        (
            lambda gpu: setattr(gpu.dev[0], "integrated", 1),
            {ONE, "the whole device", "beside torch, kept", "beside torch, for a moment"},
        ),
        (lambda gpu: gpu.fault("nvmlInit*", 9), {ONE, "the whole device", "beside torch, for a moment"}),
        (lambda gpu: setattr(gpu.dev[0], "base_used", 14000 * MB), {"all"}),
    ],
    ids=["MIG", "MIG, CUDA 11", "container", "WSL", "unified", "no NVML", "full"],
)
def test_what_a_machine_hides_is_left_out(gpu, torch_forks, change, left_out):
    """One device of each kind of machine: no figure is wrong, and what cannot be checked is said."""
    change(gpu)
    program = """
import json
from dataclasses import asdict
from ipygpulogger.verify import device
for check in device.checks():
    if check.name in ("devices", "devices: for a moment, and kept", "devices: used, free, others", "devices: beside torch"):
        for one in check.run():
            print(json.dumps(asdict(one)))
"""
    status, said, errors = torch_forks.run(program, CUDA_VISIBLE_DEVICES="0")
    assert not status, errors
    found = [json.loads(line) for line in said.splitlines()]
    figures = [Figure(**values) for values in found if "lo" in values]
    assert not [one for one in figures if one.is_wrong]
    assert {values["case"] for values in found if "reason" in values} == left_out
    assert bool(figures) == (left_out != {"all"})


@gpu
@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("at", [0, 1])
def test_all_is_restored(simulated, name, at):
    """A Ctrl-C at a figure: nothing stays allocated, raised or current; and a tenth was always free."""
    cuda = state.module().cuda
    for one in simulated:
        one.base_used = one.total * 8 // 10 - one.mine().used
    running = check_of(name).found()
    for _ in range(at + 1):
        next(running, None)
    with contextlib.suppress(KeyboardInterrupt):
        running.throw(KeyboardInterrupt)
    del running
    assert cuda.current_device() == 0
    for index, one in enumerate(simulated):
        assert cuda.memory_allocated(index) == 0
        assert one.base_used + one.mine().peak <= one.total * 9 // 10


@gpu
def test_memory_that_others_took(simulated):
    """Out of memory within a check: others took what was free, which is no fault of a figure."""
    check = check_of("devices: for a moment, and kept")
    for one in simulated:
        one.base_used = one.total
    found = list(check.found())
    assert {one.where for one in found} == {"cuda:0", "cuda:1"}
    assert all(isinstance(one, Unchecked) and "another process" in one.reason for one in found)


@gpu
def test_memory_that_others_move(simulated, monkeypatch):
    """Other processes take and give back meanwhile: what only the whole device shows is not checked."""
    raw = device._raw

    def moving(library, size_bytes):
        simulated[0].base_used += 64 * MB
        return raw(library, size_bytes)

    monkeypatch.setattr(device, "_raw", moving)
    found = list(check_of("devices: beside torch").found())
    assert not [one for one in found if isinstance(one, Figure) and one.is_wrong]
    assert [one.where for one in found if isinstance(one, Unchecked)] == ["cuda:0"]


def test_without_torch_nothing_passes_silently(monkeypatch):
    """No device of torch's: one sentence says why, and no check finds a figure."""
    monkeypatch.setattr(state, "module", lambda: None)
    monkeypatch.setattr(device.Torch, "load", lambda _: None)
    monkeypatch.setattr(device, "_TAKES", {})
    (found,) = (one for check in device.checks() for one in check.found())
    assert isinstance(found, Unchecked) and found.reason.startswith("torch finds none: ")


@gpu
def test_each_framework_has_a_process_and_a_device_of_its_own(simulated, monkeypatch):
    """Its figures are of the device that it was given, and are as true as the others; torch stands for any."""
    take = "import torch; return torch.empty(size, dtype=torch.uint8, device='cuda')"
    monkeypatch.setattr(device, "_TAKES", {"torch": take, "json": "assert False, 'no device'", "absent": ""})
    found = device._devices()
    monkeypatch.setattr(device, "_devices", lambda: found[-1:])
    *figures, unchecked = check_of(FRESH[1]).found()
    assert [(one.case, one.what) for one in figures] == [
        ("torch: tensors", "consumed"),
        ("torch: tensors", "needed"),
    ]
    where = found[-1].id
    assert not [one for one in figures if one.is_wrong or one.label != "exact" or one.where != where]
    assert unchecked == Unchecked(where, "json: all", "no device")
