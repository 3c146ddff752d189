"""What grew, with torch: on the CPU and on a device."""

import pytest
import torch
from memory import MB

from ipygpulogger import IPyGPULogger
from ipygpulogger.owners import growth

pytestmark = pytest.mark.torch


@pytest.fixture
def run(shell, cuda, monkeypatch):
    """Runs a cell under a logger and returns its record; each walk has the time it needs on a slow machine."""
    monkeypatch.setattr(growth, "BUDGET_S", 10)
    shell.user_ns["torch"] = torch
    il = IPyGPULogger(report="none", gc_collect=True).start()

    def run(source, **options):
        for name, value in options.items():
            setattr(il, name, value)
        shell.run_cell(source, store_history=True)
        return il.record

    run.logger = il
    yield run
    il.stop()
    shell.user_ns.clear()


def grew(record, device):
    return {owner.name: owner.size_bytes / MB for owner in record.owners if owner.device == device}


def test_on_a_device_it_is_exact(run):
    """The allocator's bytes are explained to the last one; RAM is judged by itself."""
    record = run(
        "net = torch.empty(64 << 18, device='cuda'); tmp = torch.empty(9 << 18, device='cuda'); del tmp"
    )
    assert grew(record, "cuda:0") == {"net": 64}
    assert "cuda:0" not in dict(record.unexplained)


def test_a_rebound_name_that_torch_s_cache_serves_again(run):
    """del a; b = ...: the allocator hands out the same block, and the sum stays true."""
    run("a = torch.empty(64 << 18, device='cuda')")
    record = run("del a; b = torch.empty(64 << 18, device='cuda'); c = torch.empty(32 << 18, device='cuda')")
    assert grew(record, "cuda:0")["c"] == 32
    assert "cuda:0" not in dict(record.unexplained)


def test_growing_three_times_is_said_with_the_name(run):
    """The report of the third run names the variable that grew each time."""
    run("kept = []")
    cell = "kept.append(torch.empty(16 << 18, device='cuda'))"
    notes = [run(cell).notes for _ in range(3)]
    assert not any("grew" in note for note in (*notes[0], *notes[1]))
    assert "grew in each of its last 3 runs: kept" in notes[2]
