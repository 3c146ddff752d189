"""What grew, with torch: on the CPU and on a device."""

import pytest
import torch
from memory import MB

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def names(shell, cuda):
    """What the cells know."""
    shell.user_ns["torch"] = torch


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
