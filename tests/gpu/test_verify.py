"""The checks of `ipygpulogger doctor --verify` on devices: simulated ones, or with SIMGPU=0 real ones."""

import contextlib
import gc
import json
import os
import signal

import pytest
from memory import MB

from ipygpulogger.sources.torch import state
from ipygpulogger.verify import device
from ipygpulogger.verify.check import Figure, Unchecked

SIMULATED = os.environ.get("SIMGPU") != "0"  # where neither can be had, ../conftest.py deselects all this
CHECKS = device.checks()
HERE = [check for check in CHECKS[1:] if "process" not in check.name]  # those in this process alone
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


def by_name(checks):
    return pytest.mark.parametrize("check", checks, ids=[check.name for check in checks])


@gpu
@pytest.mark.filterwarnings("default")  # a stranger's machine may have warnings of its own
@by_name(CHECKS)
def test_no_figure_excludes_the_truth(devices, check):
    """On every device. On the simulated ones nothing is left out, and all but what is sampled is exact."""
    found = list(check.run())
    figures = [one for one in found if isinstance(one, Figure)]
    assert not [one for one in figures if one.is_wrong]
    if not SIMULATED:
        if not figures:
            pytest.skip("; ".join(one.reason for one in found if isinstance(one, Unchecked)))
        return
    allocators = "split blocks", "cudaMallocAsync", "no caching"
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
        (lambda gpu: gpu.fault("nvmlInit*", 9), {ONE, OTHERS, "beside torch, for a moment"}),
        (lambda gpu: setattr(gpu.dev[0], "base_used", 14000 * MB), {"all"}),
    ],
    ids=["MIG", "MIG, CUDA 11", "container", "WSL", "unified", "no NVML", "full"],
)
def test_what_a_machine_hides_is_left_out(gpu, torch_forks, change, left_out):
    """One device of each kind of machine: no figure is wrong, and what cannot be checked is said."""
    change(gpu)
    program = """
from ipygpulogger.verify import device
for check in device.checks():
    if check.name in ("devices", "devices: for a moment, and kept", "devices: used, free, others", "devices: beside torch"):
        device.say(check.run())
"""
    status, said, errors = torch_forks.run(program, CUDA_VISIBLE_DEVICES="0")
    assert not status, errors
    found = [json.loads(line.removeprefix("found ")) for line in said.splitlines()]
    figures = [Figure(**values) for values in found if "lo" in values]
    assert not [one for one in figures if one.is_wrong]
    assert {values["case"] for values in found if "reason" in values} == left_out
    assert bool(figures) == (left_out != {"all"})


@gpu
def test_a_second_interrupt_does_not_cut_the_restoring(devices, monkeypatch):
    """One more Ctrl-C while the first one's checks let go: that is done to its end all the same."""
    used = [one.mine().used for one in devices]
    running = HERE[0].run()
    next(running)
    with monkeypatch.context() as patch:
        patch.setattr(gc, "collect", lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            running.throw(KeyboardInterrupt)
    assert [one.mine().used for one in devices] == used


@gpu
@by_name(HERE)
@pytest.mark.parametrize("at", [0, 1])
def test_all_is_restored(devices, check, at):
    """A Ctrl-C at a figure: nothing stays allocated, cached, raised or current; and a tenth was always free."""
    cuda, before = state.module().cuda, [one.mine().used for one in devices]
    for one in devices:
        one.base_used = one.total * 8 // 10 - one.mine().used
    running = check.run()
    for _ in range(at + 1):
        next(running, None)
    with contextlib.suppress(KeyboardInterrupt):
        running.throw(KeyboardInterrupt)
    assert cuda.current_device() == 0
    for index, (one, used) in enumerate(zip(devices, before, strict=True)):
        assert (one.mine().used, cuda.max_memory_allocated(index)) == (used, 0)
        assert one.base_used + one.mine().peak <= one.total * 9 // 10


def test_without_torch_nothing_passes_silently(monkeypatch):
    """No device of torch's: one sentence says why, and no check finds a figure."""
    monkeypatch.setattr(state, "module", lambda: None)
    monkeypatch.setattr(device.Torch, "load", lambda _: None)
    monkeypatch.setattr(device, "_TAKES", {})
    (found,) = (one for check in CHECKS for one in check.run())
    assert isinstance(found, Unchecked) and found.reason.startswith("torch finds none: ")


@gpu
def test_each_framework_has_a_process_and_a_device_of_its_own(devices, monkeypatch):
    """Its figures are of the device that it was given, and are as true as the others; torch stands for any."""
    take = "import torch; return torch.empty(size, dtype=torch.uint8, device='cuda')"
    monkeypatch.setattr(device, "_TAKES", {"torch": take, "json": "assert False, 'no device'", "absent": ""})
    monkeypatch.setattr(device, "_roomy", lambda: device._usable()[-1:])
    check = next(check for check in CHECKS if check.name.startswith("other frameworks"))
    *figures, unchecked = check.run()
    assert [(one.case, one.what) for one in figures] == [
        ("torch: tensors", "consumed"),
        ("torch: tensors", "needed"),
    ]
    where = device._usable()[-1].id
    assert not [one for one in figures if one.is_wrong or one.label != "exact" or one.where != where]
    assert unchecked == Unchecked(where, "json: all", "no device")
