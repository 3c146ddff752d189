"""What waits for the garbage collector, with torch: on a device, where every byte is known."""

import cyclic_programs
import pytest
import torch

from ipygpulogger.owners import growth, uncollected
from ipygpulogger.runtime import full_collection

pytestmark = pytest.mark.torch

COSTS_S = {"cheap": 0.01, "dear": 100.0}


@pytest.mark.parametrize("cost", COSTS_S)
def test_what_a_full_collection_would_give_back_is_never_told_as_held(shell, cuda, monkeypatch, capsys, cost):
    """Tensors of 1 to 100 MB in cycles: whatever a full collection costs, the report tells the truth."""
    monkeypatch.setattr(growth, "BUDGET_S", 10)
    monkeypatch.setattr(uncollected, "_FOLLOW_S", 10)
    monkeypatch.setattr(full_collection, "cost_s", lambda: COSTS_S[cost])

    def make_block(size_bytes):
        return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")

    cyclic_programs.check_that_nothing_is_told_as_held(shell, make_block, 8)
    shell.user_ns.clear()
