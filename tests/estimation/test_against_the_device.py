"""Estimates against the allocator of a simulated device: to the byte, allocated and reserved."""

import gc

import pytest
import torch
from estimation import models

from ipygpulogger.estimation.run import run

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def without_cudnn():
    before = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = False  # the simulated device has none
    yield
    torch.backends.cudnn.enabled = before


def really(fn, args):
    """Return the peaks of the allocator in a run on the device: allocated and reserved."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    fn(*args)
    return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()


@pytest.mark.parametrize("builder", models.MODELS, ids=lambda one: one.__name__)
def test_models(cuda, builder):
    """The same figures, whether the model is on the device already or still on the CPU."""
    fn, args = builder("cpu")
    before = run(fn, args, {}, "cuda:0")
    fn, args = builder("cuda")
    on_device = run(fn, args, {}, "cuda:0")
    peak_bytes, reserved_bytes = really(fn, args)
    assert before.peak_bytes == on_device.peak_bytes == peak_bytes
    assert before.reserved_bytes == on_device.reserved_bytes == reserved_bytes
    assert sum(row.size_bytes for row in on_device.rows) == peak_bytes


@pytest.mark.parametrize("foreach", [True, False])
def test_a_later_step(cuda, foreach):
    """The optimizer's state is there, and its count of steps is a number on the CPU, which it asks for."""
    model = torch.nn.Linear(512, 512, device="cuda")
    optimizer = torch.optim.Adam(model.parameters(), foreach=foreach)

    def step(x):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    args = (torch.ones(64, 512, device="cuda"),)
    step(*args)
    found = run(step, args, {}, "cuda:0")
    assert (found.peak_bytes, found.reserved_bytes) == really(step, args)
    named = {row.name: row.place.partition(":")[0] for row in found.rows}
    assert named["model(x).sum().backward()"] == "test_against_the_device.py"
