"""Memory that a function frees before its peak, and what a function may not leave behind: files."""

import gc

import pytest
import torch

from ipygpulogger import estimate

pytestmark = pytest.mark.torch


def really(fn, *args):
    """Return the peak of the allocator in a run on the device."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.reset_peak_memory_stats()
    fn(*args)
    return torch.cuda.max_memory_allocated()


def test_gradients_that_are_freed_first(cuda):
    """The gradients of the step before are freed before new ones are made."""
    model = torch.nn.Linear(1024, 1024, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()

    x = torch.ones(64, 1024, device="cuda")
    step(x)
    kept = [one.grad for one in model.parameters()]
    found = estimate(step, x)
    assert all(one.grad is old for one, old in zip(model.parameters(), kept, strict=True))
    del kept
    assert found.peak_bytes == really(step, x)
    assert not [row for row in found.at_peak if row.kind == "gradients" and row.place == "before the cell"]


@pytest.mark.parametrize("frees", ["held.clear()", "del held['a']", "held['a'] = None", "big = None"])
def test_tensors_that_are_freed_first(cuda, frees):
    """Whatever held a tensor: an item that is cleared, deleted or rebound, a global of the function's."""
    big = torch.ones(1 << 20, device="cuda")
    names = (
        {"torch": torch, "held": {"a": big}} if "held" in frees else {"torch": torch, "held": {}, "big": big}
    )
    del big
    exec(f"def fn():\n    global big\n    {frees}\n    return torch.ones(1 << 20, device='cuda')", names)
    before = {name: id(one) for holder in (names, names["held"]) for name, one in holder.items()}
    found = estimate(names["fn"])
    assert before == {name: id(one) for holder in (names, names["held"]) for name, one in holder.items()}
    assert found.peak_bytes == really(names["fn"]) == 4 << 20


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_fused_optimizers_allocate_nothing(cuda, name):
    """Their kernels have no implementation for fake tensors: torch would run them on real ones."""
    model = torch.nn.Linear(512, 512, device="cuda")
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1, fused=True)

    def step(x):
        model(x).mean().backward()
        optimizer.step()

    x = torch.ones(8, 512, device="cuda")
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    assert estimate(step, x).peak_bytes
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


@pytest.mark.parametrize("whole", [False, True])
def test_a_checkpoint_stays(tmp_path, whole):
    """A function that saves one is refused before the file is opened."""
    model, path = torch.nn.Linear(8, 8), tmp_path / "best.pt"
    torch.save(model.state_dict(), path)
    before = path.read_bytes()

    def save():
        saved = {"model": model if whole else model.state_dict()}
        torch.save(saved, path)

    with pytest.raises(RuntimeError, match=r"torch.save at test_let_go.py:\d+ cannot be estimated"):
        estimate(save)
    assert path.read_bytes() == before
    assert torch.load(path)
    save()
    assert path.read_bytes() != before


def test_within_inference_mode(cuda):
    """The mode holds for the function; the twins of parameters are made outside of it."""
    model, x = torch.nn.Linear(512, 512, device="cuda"), torch.ones(64, 512, device="cuda")
    with torch.inference_mode():
        found = estimate(model, x)
        assert found.peak_bytes == really(model, x)
    assert estimate(torch.inference_mode()(model), x).peak_bytes == found.peak_bytes
