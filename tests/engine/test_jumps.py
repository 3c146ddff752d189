"""Memory outside the allocators that jumps and is gone before the cell ends: whose it was, and how much.

The sampler's looks are made by hand, so that no test depends on when it comes.
"""

import itertools
import os
import random

import pytest
from memory import MB

from ipygpulogger.engine.machine import Machine
from ipygpulogger.engine.sampler import Sampler
from ipygpulogger.engine.scope import Scope
from ipygpulogger.records import Measurement
from ipygpulogger.render import html, text
from ipygpulogger.sources.nvidia import driver

GB = 1024 * MB


@pytest.fixture
def on(gpu, monkeypatch):
    """A machine of its own, in a process that has loaded CUDA's library; its sampler never wakes."""
    monkeypatch.setattr(driver, "absent", lambda: False)
    on = Machine()
    on.sampler = Sampler(lambda: None, delay_s=3600)
    yield on
    on.sampler.close()
    on.close()


@pytest.fixture
def asked(on, monkeypatch):
    """The devices whose processes the driver was asked for by the sampler."""
    real, found = on.ledger.examine, []

    def examine(device, *rest):
        found.append(device.uuid)
        return real(device, *rest)

    monkeypatch.setattr(on.ledger, "examine", examine)
    return found


def measured(on, *steps, **options):
    """What a scope told of its devices, by index: each step is looked at by the sampler."""
    scope = Scope(on, all_devices=True, **options).open()
    for step in steps:
        step()
        on.sample()
    scope.close()
    result = scope.result(Measurement, "test")
    assert html.report(result)
    return {usage.index: usage for usage in result.gpus}, text.report(result)


def setting(thing, name, value):
    return lambda: setattr(thing, name, value)


def test_our_own_counts(gpu, on, asked):
    """5 GB of this process for a moment, beside 200 MB: in the lower bound, and nobody else's."""
    row = gpu.dev[0].add_process(os.getpid(), 200 * MB)
    usages, report = measured(on, setting(row, "used", 5 * GB + 200 * MB), setting(row, "used", 200 * MB))
    assert usages[0].peaked_bytes == 5 * GB
    assert (usages[0].unknown_rise_bytes, usages[0].neighbours_rise_bytes) == (0, 0)
    assert "moment" not in report
    assert len(asked) == 1


def test_a_neighbours_is_named(gpu, on):
    """5 GB of somebody else for a moment: no peak of ours, and the row says whose it was."""
    gpu.dev[0].base_used = 300 * MB  # tenants that the driver does not list
    gpu.dev[0].add_process(os.getpid(), 200 * MB)
    row = gpu.dev[0].add_process(1, 10 * MB)
    usages, report = measured(on, setting(row, "used", 5 * GB + 10 * MB), setting(row, "used", 10 * MB))
    assert usages[0].peaked_bytes == 0
    assert usages[0].neighbours_rise_bytes == 5 * GB
    assert "(other processes 5120 MB more for a moment)" in report
    row.used = 0
    usages, report = measured(on, setting(row, "used", 5 * GB), setting(row, "used", 1 * GB))
    assert "(other processes 1324 MB, 4096 MB more for a moment)" in report


@pytest.mark.parametrize("how", ["container", "WSL", "no permission", "unlisted", "over", "lost"])
def test_an_unknown_owner_is_said(gpu, on, how, monkeypatch):
    """Nobody tells, or it was over before the answer: no peak, and the row says how much and that."""
    gpu.dev[0].add_process(os.getpid(), 200 * MB)
    if how == "container":
        gpu.pid_offset = 5_000_000
    elif how == "WSL":
        gpu.proc_mem_na = 1
    elif how == "no permission":
        gpu.fault("nvmlDeviceGetComputeRunningProcesses*", 4)
    row = gpu.dev[0].add_process(1, 10 * MB)
    thing, name = (gpu.dev[0], "base_used") if how == "unlisted" else (row, "used")
    real, was = on.nvml.processes, getattr(thing, name)

    def over(uuid):
        row.used = 10 * MB
        return real(uuid)

    def spike():
        setattr(thing, name, was + 5 * GB)
        if how == "over":
            monkeypatch.setattr(on.nvml, "processes", over)
        if how == "lost":
            gpu.fault("nvmlDeviceGetComputeRunningProcesses*", 15)

    usages, report = measured(on, spike, setting(thing, name, was))
    assert usages[0].peaked_bytes == 0
    assert usages[0].unknown_rise_bytes == 5 * GB
    assert usages[0].neighbours_rise_bytes == 0
    assert "(5120 MB more for a moment, owner unknown)" in report


def test_scopes_that_overlap_share_the_answer(gpu, on, asked):
    """Two open scopes, one question; one that opened on top of the jump needs none."""
    ours = gpu.dev[0].add_process(os.getpid(), 200 * MB)
    outer, inner = Scope(on).open(), Scope(on).open()
    ours.used = 3 * GB
    on.sample()
    late = Scope(on).open()
    on.sample()
    ours.used = 200 * MB
    results = []
    for scope in (late, inner, outer):
        scope.close()
        results.append(scope.result(Measurement, "").gpus[0])
    assert [usage.peak.lo_bytes for usage in results] == [3 * GB] * 3
    assert len(asked) == 1


def test_any_story(gpu, on):
    """Random steps of ours and of others: no bound above the truth, and every jump told to the byte."""
    ours, theirs = gpu.dev[0].add_process(os.getpid(), 200 * MB), gpu.dev[0].add_process(1, 100 * MB)
    chance = random.Random(3)

    def size():
        return chance.choice(
            [chance.randrange(100, 200), chance.randrange(200, 5000)]
        ) * MB + chance.randrange(MB)

    for _ in range(100):
        base = gpu.dev[0].base_used = chance.choice([0, 1500 * MB])
        seen = []

        def step(seen=seen, base=base):
            ours.used, theirs.used = size(), size()
            seen.append((ours.used, theirs.used + base))

        step()
        scope = Scope(on).open()
        for _ in range(chance.randrange(6)):
            step()
            on.sample()
        jumps = [now for was, now in itertools.pairwise(seen) if sum(now) - sum(was) > 64 * MB]
        step()
        scope.close()
        (usage,) = scope.result(Measurement, "").gpus
        ends = seen[0], seen[-1]
        assert usage.unknown_rise_bytes == 0
        assert usage.peak.lo_bytes in {own for own, _ in seen}
        assert usage.peak.lo_bytes >= max(own for own, _ in (*ends, *jumps))
        most = max(usage.neighbours_before_bytes, usage.neighbours_bytes) + usage.neighbours_rise_bytes
        assert most in {others for _, others in seen}
        assert most >= max(others for _, others in (*ends, *jumps))


# -- beside torch ----------------------------------------------------------------------------------


def tensor(size_bytes):
    import torch

    return torch.empty(size_bytes, dtype=torch.uint8, device="cuda:0")


@pytest.mark.torch
def test_tensors_that_come_and_go_while_the_driver_answers(cuda, on, monkeypatch):
    """Torch allocates during the question: what it holds then is not certain, and nothing is claimed of it."""
    kept, device = [tensor(GB)], cuda.dev[0]
    real = on.nvml.processes

    def processes(uuid):
        found = real(uuid)
        kept.clear()
        return found

    def spike():
        device.mine().used += 2 * GB
        monkeypatch.setattr(on.nvml, "processes", processes)

    def end():
        monkeypatch.setattr(on.nvml, "processes", real)
        device.mine().used -= 2 * GB

    truth = GB + device.mine().used - GB + 2 * GB
    usages, report = measured(on, spike, end)
    assert usages[0].peak.lo_bytes <= truth
    assert usages[0].neighbours_rise_bytes == 0
    assert "owner unknown" not in report


@pytest.mark.torch
@pytest.mark.parametrize("first", ["allocates", "reads"])
def test_torch_that_moves_while_nvml_is_read(cuda, on, asked, monkeypatch, first):
    """What was outside torch at that moment is unknown: no jump, and the peak stays exact."""
    kept, real = [], on.nvml.memory

    def memory(uuid):
        if first == "allocates":
            kept.append(tensor(GB))
        found = real(uuid)
        if first == "reads":
            kept.clear()
            on.settling.settle(gc_collect=False, clear_cache=True)
        return found

    def spike():
        if first == "reads":
            kept.append(tensor(GB))
        monkeypatch.setattr(on.nvml, "memory", memory)

    usages, _ = measured(on, spike, lambda: monkeypatch.setattr(on.nvml, "memory", real))
    assert usages[0].peak.quality == "exact"
    assert not asked
