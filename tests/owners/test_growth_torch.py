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


def test_a_cpu_weight_and_never_the_temporary(run):
    """`records` name `weights` for 50 MB and never `tmp`."""
    record = run("weights = torch.ones(50 << 18); tmp = torch.ones(30 << 18); del tmp")
    assert grew(record, "cpu")["weights"] == pytest.approx(50, abs=0.001)
    assert "tmp" not in grew(record, "cpu")


def test_tied_and_view_count_once(run):
    """Other names of the same storage are told beside its owner, and grow nothing."""
    record = run("weights = torch.ones(50 << 18); tied = weights; view = weights[:10]")
    (owner,) = [owner for owner in record.owners if owner.device == "cpu"]
    assert (owner.name, owner.size_bytes, set(owner.shared)) == ("weights", 50 * MB, {"tied", "view"})
    record = run("again = view.view(-1); x = torch.ones(20 << 18)")
    assert grew(record, "cpu") == {"x": 20}, str(record.to_dict())


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


CYCLE = """
class Node:
    def __init__(self, value):
        self.me, self.value = self, value
Node(torch.empty(300 << 18, device='cuda'))
None
"""


def test_with_gc_collect_nothing_is_to_be_said(run):
    """The cycle is collected before the cell's figures are taken."""
    record = run(CYCLE)
    assert not any("garbage" in note for note in record.notes)
    assert grew(record, "cuda:0") == {}
